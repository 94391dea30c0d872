"""The nemesis: what strikes machines, connections and tasks, drawn by the seed."""

from __future__ import annotations

from sim.driver import Process
from sim.network import Node, Noise
from sim.world import World

__all__ = ["Nemesis"]


class Nemesis:
    """Strikes until it heals everything."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._resting = False
        self._calm = False

    def begin(self) -> None:
        world = self.world
        if world.options.mode != "calm":
            world.noise = Noise(world.options)
        for kind, rate in sorted(world.options.rates.items()):
            world.after(world.rng.expovariate(rate), self._strike, kind, rate)

    def _strike(self, kind: str, rate: float) -> None:
        world = self.world
        if self._resting or (self._calm and kind not in ("cancel", "close")):
            return
        world.after(world.rng.expovariate(rate), self._strike, kind, rate)
        world.steps += 1
        world.counted[kind] += 1
        getattr(self, f"_{kind.replace(' ', '_').replace('-', '_')}")()

    def heal(self) -> None:
        """The last fault is over."""
        world = self.world
        self._calm = True
        world.noise = None
        world.network.slow = 1.0
        world.network.cuts.clear()
        for node in world.nodes:
            if not node.up:
                node.start(empty=False)
            node.loading = False
            node.server.out_of_memory = False
            node.unpause()
            self._demote(node)
        for node in world.nodes:
            self._relink(node)
            for inboxes in list(node.subscribers.values()):
                for inbox in list(inboxes):
                    if inbox.deaf or not inbox.process.alive:
                        world.network.broke(inbox)
        for process in world.alive():
            process.unpause()

    def rest(self) -> None:
        """Stop all faults, even cancellations."""
        self._resting = True

    def _note(self, what: str) -> None:
        if self.world.trace is not None:
            self.world.note("!", what)

    # -- clients ----------------------------------------------------------------------------------

    def _someone(self) -> Process | None:
        alive = self.world.alive()
        return self.world.rng.choice(alive) if alive else None

    def _length(self) -> float:
        """Draw how long something lasts: mostly short, at times longer than any ttl."""
        r = self.world.rng.random()
        return r * 0.5 if r < 0.4 else self.world.options.ttl_s[1] * 2.5 * self.world.rng.random() ** 2

    def _pause(self) -> None:
        process = self._someone()
        if process is None or process.paused:
            return
        seconds = self._length()
        self._note(f"{process.name} is paused for {seconds:.3f} s")
        process.pause()
        self.world.after(seconds, process.unpause)

    def _frozen(self) -> None:
        """A process is paused, and its connections end: it does not notice."""
        process = self._someone()
        if process is None or process.paused:
            return
        seconds = self.world.rng.random() * 2.0
        self._note(f"{process.name} is paused for {seconds:.3f} s, and disconnected")
        process.pause()
        for inbox in list(process.subscriptions.values()):
            self.world.network.broke(inbox)
        self.world.after(seconds, process.unpause)

    def _crash(self) -> None:
        process = self._someone()
        if process is None:
            return
        world = self.world
        self._note(f"{process.name} crashes")
        process.crash()
        for primitive in world.primitives:
            primitive.crashed(process)
        # A killed process closes its connections, a machine without power does not.
        seconds = world.rng.choice((world.options.latency_s, 5.0, 30.0))
        for inbox in list(process.subscriptions.values()):
            inbox.deaf = True
            world.after(seconds, world.network.close, inbox)
        world.after(world.rng.random() * 5.0, self._reborn)

    def _close(self) -> None:
        process = self._someone()
        if process is None or process.closing or process.paused:
            return
        self._note(f"{process.name} is closed")
        self.world.played.add("Client.close")
        process.shut()
        self.world.after(2.0 + self.world.rng.random() * 5.0, self._reborn)

    def _reborn(self) -> None:
        if self.world.phase != "drain":
            process = self.world.add_process()
            self._note(f"{process.name} starts")

    def _cancel(self) -> None:
        world = self.world
        tasks = [
            (process, task)
            for process in world.processes
            if process.alive
            for task in process.tasks
            if not task.background and not process.is_doomed(task)
        ]
        if tasks:
            process, task = world.rng.choice(tasks)
            process.doom(task, world.rng.randrange(1, 30))

    def _inbox_broken(self) -> None:
        inboxes = [inbox for process in self.world.alive() for inbox in process.subscriptions.values() if inbox.up]
        if inboxes:
            inbox = self.world.rng.choice(inboxes)
            self._note(f"the inbox of {inbox.process.name} at s{inbox.server} breaks")
            self.world.network.broke(inbox)

    def _inbox_deaf(self) -> None:
        inboxes = [inbox for process in self.world.alive() for inbox in process.subscriptions.values() if inbox.up]
        if inboxes:
            inbox = self.world.rng.choice(inboxes)
            seconds = self.world.rng.random() * 30
            self._note(f"the inbox of {inbox.process.name} at s{inbox.server} is half-open for {seconds:.3f} s")
            inbox.deaf = True
            self.world.after(seconds, self.world.network.broke, inbox)

    # -- the network ------------------------------------------------------------------------------

    def _cut(self) -> None:
        world = self.world
        node = world.rng.choice(world.nodes)
        process = self._someone() if world.rng.random() < 0.7 else None
        pair = (process.number if process is not None else None, node.number)
        seconds = self._length()
        self._note(f"{process.name if process else 'everyone'} is cut off from {node.name} for {seconds:.3f} s")
        world.network.cuts[pair] = None
        world.after(seconds, world.network.cuts.pop, pair, None)

    def _slow(self) -> None:
        world = self.world
        world.network.slow = world.rng.choice((10.0, 100.0, 500.0))
        seconds = self._length()
        self._note(f"the network is {world.network.slow:.0f} times slower for {seconds:.3f} s")
        world.after(seconds, self._fast)

    def _fast(self) -> None:
        self.world.network.slow = 1.0

    # -- servers ----------------------------------------------------------------------------------

    def _server_pause(self) -> None:
        node = self.world.rng.choice(self.world.nodes)
        if not node.up or node.paused:
            return
        seconds = self._length()
        self._note(f"{node.name} is paused for {seconds:.3f} s")
        node.pause()
        self.world.after(seconds, self._server_unpause, node)

    def _server_unpause(self, node: Node) -> None:
        if node.up:
            node.unpause()

    def _memory(self) -> None:
        node = self.world.rng.choice(self.world.nodes)
        seconds = self._length()
        self._note(f"{node.name} is out of memory for {seconds:.3f} s")
        node.server.out_of_memory = True
        self.world.after(seconds, self._memory_back, node)

    def _memory_back(self, node: Node) -> None:
        node.server.out_of_memory = False

    def _restart(self) -> None:
        self._down(empty=False)

    def _empty(self) -> None:
        self._down(empty=True)

    def _empty_and_clock_back(self) -> None:
        node = self._down(empty=True)
        if node is not None:
            node.jump(-self.world.rng.random() * 60)

    def _down(self, *, empty: bool) -> Node | None:
        """A server stops and starts again after a while, with its data or without."""
        world = self.world
        node = world.rng.choice(world.nodes)
        if not node.up or (world.options.replicas and node.master is None):
            return None  # with replicas, a failover does this to a master
        seconds = world.rng.random() ** 2 * 10
        self._note(f"{node.name} stops for {seconds:.3f} s{', its data are lost' if empty else ''}")
        node.stop()
        node.loading = world.rng.random() < 0.5
        if empty:
            node.wipe()
        world.after(seconds, self._up, node)
        return node

    def _up(self, node: Node) -> None:
        if not node.up:
            node.start(empty=False)
            if node.master is not None:
                node.link_cut = True
                self._relink(node)
            if node.loading:
                self.world.after(self.world.rng.random(), self._loaded, node)

    def _loaded(self, node: Node) -> None:
        node.loading = False

    def _clock_forward(self) -> None:
        node = self.world.rng.choice(self.world.nodes)
        seconds = self.world.rng.random() * 30
        self._note(f"the clock of {node.name} jumps {seconds:.3f} s forward")
        node.jump(seconds)

    def _failover(self) -> None:
        self.failover()

    def failover(self) -> None:
        """A replica is promoted; the old master is down, or cut off and still believing in itself."""
        world = self.world
        old = world.master
        candidates = [node for node in world.nodes if node.master is old and node.up]
        if not candidates:
            return
        promoted = world.rng.choice(candidates)
        stays = world.rng.random() < 0.5
        self._note(f"{promoted.name} is promoted, {old.name} {'goes on as a stale master' if stays else 'stops'}")
        if not stays:
            old.stop()
        # Nothing more reaches the replicas of the old master.
        promoted.master = None
        promoted.link_cut = False
        promoted.changes = promoted.has
        promoted.begin_term()
        # What is still under way to the others is not what they will have from the new master.
        for replica in old.replicas:
            replica.generation = -1
        promoted.generation = world.new_generation()
        promoted.drop_subscribers()
        old.replicas = []
        world.master = promoted
        for node in world.nodes:
            if node not in (old, promoted) and node.up:
                self._follow(node, promoted)
        world.lost_data(promoted)
        world.after(1.0 + world.rng.random() * 5.0, self._rejoin, old)

    def _follow(self, node: Node, master: Node) -> None:
        node.drop_subscribers()
        node.follow(master)

    def _rejoin(self, node: Node) -> None:
        """A former master comes back as a replica."""
        if not node.up:
            node.start(empty=False)
        self._demote(node)

    def _demote(self, node: Node) -> None:
        world = self.world
        if world.options.replicas and node is not world.master and node.master is not world.master:
            self._note(f"{node.name} follows {world.master.name}")
            self._follow(node, world.master)

    def _link(self) -> None:
        """The link between a replica and its master is cut; then it gets a full copy."""
        world = self.world
        replicas = [node for node in world.master.replicas if node.up and not node.link_cut]
        if replicas:
            replica = world.rng.choice(replicas)
            seconds = self._length()
            self._note(f"{replica.name} gets nothing from {world.master.name} for {seconds:.3f} s")
            replica.link_cut = True
            world.after(seconds, self._relink, replica)

    def _relink(self, node: Node) -> None:
        master = self.world.master
        if not node.link_cut or node.master is not master or not node.up:
            return
        node.link_cut = False
        if node in master.replicas:
            master.replicas.remove(node)
        self._follow(node, master)
