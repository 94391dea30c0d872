"""Servers as machines, and what lies between them and the clients.

Laws: a request is carried out as a whole or not at all; a message of one inbox never overtakes another; a connection
that broke stays broken.

Theory: every request travels for itself, as over a pool of connections, so that more orders occur than over one.
A lost request or reply is silence to the asker until its patience ends; a reset tells it at once, and leaves open
whether the request was carried out.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from typing import Any

from holdfast._core.effects import Call, Command
from holdfast._core.failure import RequestFailed, refusal
from holdfast._core.keys import inbox_prefix, slot_of
from sim.driver import AnswerTo, Inbox, Process, Surroundings
from sim.options import Options
from sim.server import OK, QUEUED, Refused, Server, copied

__all__ = ["SLOWEST_S", "Network", "Node", "Noise", "Request", "Site", "shown"]

#: The servers' clocks start here, µs.
EPOCH_US = 1_700_000_000_000_000

#: No delay of the network is longer, s; requests that are late beyond that are a fault of their own.
SLOWEST_S = 15.0


class Noise:
    """What happens to single messages."""

    __slots__ = ("_late_s", "_table", "lost_push", "total")

    def __init__(self, options: Options) -> None:
        self._table: list[tuple[float, str]] = []
        self.total = 0.0
        for kind, chance in sorted(options.noise.items()):
            self.total += chance
            self._table.append((self.total, kind))
        self.lost_push = options.lost_push
        self._late_s = options.late_s

    def kind(self, r: float) -> str:
        """The fault for a random number below `total`."""
        for bound, kind in self._table:
            if r < bound:
                return kind
        return self._table[-1][1]

    def late_s(self, rng: random.Random) -> float:
        return rng.random() ** 2 * self._late_s


class Request:
    """A call under way."""

    __slots__ = ("answer", "call", "lose_reply", "process", "reply_late_s", "sent_at", "twin")

    def __init__(self, process: Process, call: Call | Command, answer: AnswerTo, sent_at: float) -> None:
        self.process = process
        self.call = call
        self.answer = answer
        self.sent_at = sent_at
        self.lose_reply = False
        self.reply_late_s = 0.0
        #: Made by the network: the client does not know of it.
        self.twin = False


class Connection:
    """What a server keeps of one connection of a client: what it watches, and what it has queued."""

    __slots__ = ("queued", "watched")

    def __init__(self) -> None:
        #: Key → how often it had changed.
        self.watched: dict[bytes, int] = {}
        self.queued: list[Command] | None = None

    def take(self, node: Node, command: Command) -> Any:
        """WATCH, MULTI, EXEC, and what comes between them; raises `Refused`."""
        word = str(command.args[0])
        if word == "EXEC":
            queued, self.queued = self.queued or (), None
            watched, self.watched = self.watched, {}
            if any(node.version(key) != version for key, version in watched.items()):
                return None
            replies = []
            touched: dict[bytes, None] = {}
            for each in queued:
                replies.append(node.server.command(*each.args))
                touched |= node.server.touched
            node.server.touched.update(touched)
            return replies
        if word == "DISCARD":
            self.queued = None
            self.watched.clear()
        elif self.queued is not None:
            self.queued.append(command)
            return QUEUED
        elif word == "MULTI":
            self.queued = []
        elif word == "WATCH":
            self.watched |= {str(key).encode(): node.version(str(key).encode()) for key in command.args[1:]}
        elif word == "UNWATCH":
            self.watched.clear()
        else:
            return node.server.command(*command.args)
        return OK


class Node:
    """A machine with a server: its clock, its state, its subscribers and its replicas."""

    def __init__(self, world: Site, number: int) -> None:
        self.world = world
        self.number = number
        self.name = f"s{number}"
        self.rate = world.options.server_rate(world.rng)
        self.offset_us = EPOCH_US + world.rng.randrange(0, 1000)
        self.up = True
        self.paused = False
        self.loading = False
        self.replicas: list[Node] = []
        #: Of a replica: when what was sent to it has all arrived; whether its link is cut.
        self.arrived_at = 0.0
        self.link_cut = False
        self.master: Node | None = None
        #: Counts changes (of a master), and what a replica has of them.
        self.changes = 0
        self.has = 0
        #: Which data this is: a new number whenever data was lost or replaced.
        self.generation = 0
        self.subscribers: dict[bytes, dict[Inbox, None]] = {}
        #: Connections that a client keeps for itself, by their names; how often keys have changed, for WATCH.
        self.connections: dict[str, Connection] = {}
        self.versions: dict[bytes, int] = {}
        self.last_us = 0
        #: How often it has begun to be a master.
        self.terms = 0
        self._backlog: list[Request] = []
        self.server = Server(self.now_us)
        self._equip()

    def _equip(self) -> None:
        self.server.run_id = b"%040x" % (self.number + 1)
        self.begin_term()
        self.server.numsub = lambda channel: len(self.subscribers.get(channel, ()))
        self.server.publish = self._publish

    def begin_term(self) -> None:
        """Begin to be a master: after a start, or a promotion."""
        self.terms += 1
        self.server.replid = b"%020x%020x" % (self.number + 1, self.terms)

    def now_us(self) -> int:
        """Return the node's wall clock; no two commands in one µs."""
        now = self.offset_us + int(self.world.now * self.rate * 1e6)
        if now <= self.last_us:
            now = self.last_us + 1
        self.last_us = now
        return now

    def wall_ms(self) -> int:
        """Return the node's wall clock, without moving it."""
        return max(self.offset_us + int(self.world.now * self.rate * 1e6), self.last_us) // 1000

    def jump(self, seconds: float) -> None:
        """Set the node's clock forward or back."""
        self.offset_us += int(seconds * 1e6)
        self.last_us = 0

    def until(self, at_ms: int) -> float:
        """The virtual time at which its clock shows `at_ms`."""
        return (at_ms * 1000 - self.offset_us) / self.rate / 1e6

    def _publish(self, channel: bytes, message: bytes) -> int:
        inboxes = self.subscribers.get(channel)
        if not inboxes:
            return 0
        for inbox in list(inboxes):
            self.world.network.push(self, inbox, message)
        return len(inboxes)

    # -- requests ---------------------------------------------------------------------------------

    def receive(self, request: Request) -> None:
        """A request has arrived."""
        if not self.up:
            return
        if self.paused:
            self._backlog.append(request)
            return
        world = self.world
        world.steps += 1
        call = request.call
        value: Any = None
        error: RequestFailed | None = None
        if self.loading:
            error = refusal("LOADING server is loading the dataset in memory", self.name)
        elif type(call) is Command and call.session is not None and self._unknown(call):
            error = RequestFailed("broken", "connection reset", self.name, maybe_executed=True, transient=True)
        elif self.master is not None:
            error = refusal("READONLY You can't write against a read only replica.", self.name)
        else:
            server = self.server
            try:
                if type(call) is Call:
                    value = server.script(call.script, call.keys, call.args)
                elif type(call) is Command and call.session is not None:
                    value = self.connections.setdefault(call.session, Connection()).take(self, call)
                else:
                    value = server.command(*call.args)
            except Refused as refused:
                error = refusal(refused.message, self.name)
                if refused.message.startswith("ERR"):
                    world.fail("server error", f"{shown(call)}: {refused.message}")
            if world.trace is not None:
                world.note(self.name, f"{shown(call)} of {request.process.name} -> {error or value!r}")
            if server.touched:
                self.changed()
            world.executed(self, request, value, error)
            if type(call) is Call and call.sync is not None and error is None:
                self._wait(request, value, call.sync[0], world.now + call.sync[1] / 1000, self.changes)
                return
        world.network.reply(self, request, value, error)

    def _unknown(self, command: Command) -> bool:
        """True if it goes on with a connection that ended when the server did."""
        return command.session not in self.connections and command.args[0] not in ("WATCH", "UNWATCH")

    def _wait(self, request: Request, value: Any, need: int, until: float, change: int) -> None:
        """WAIT: answer when that many replicas have it, or when the time has passed."""
        acked = sum(1 for replica in self.replicas if replica.has >= change and replica.up)
        if acked >= need or self.world.now >= until or not self.up:
            self.world.network.reply(self, request, (value, acked), None)
        else:
            arrivals = sorted(r.arrived_at for r in self.replicas if r.up and not r.link_cut and r.has < change)
            missing = need - acked
            at = arrivals[missing - 1] if 0 < missing <= len(arrivals) else until
            at = min(at if at > self.world.now else until, until) + 1e-6
            self.world.after(at - self.world.now, self._wait, request, value, need, until, change)

    def version(self, key: bytes) -> int:
        """Return how often the key has changed."""
        return self.versions.get(key, 0)

    def changed(self) -> None:
        """A request has written something: the replicas are told."""
        world = self.world
        server = self.server
        self.changes += 1
        if self.connections:
            for key in server.touched:
                self.versions[key] = self.versions.get(key, 0) + 1
        for key in server.touched:
            if key in server.data and key not in server.expires:
                world.fail("immortal key", f"{key.decode()} has no ttl on {self.name}")
        if self.replicas:
            batch = [(key, copied(server.data.get(key)), server.expires.get(key)) for key in server.touched]
            for replica in self.replicas:
                world.network.replicate(self, replica, batch, self.changes)

    def apply(self, generation: int, batch: list[tuple[bytes, Any, int | None]], change: int) -> None:
        """Apply a change of the master to its replica."""
        if generation != self.generation or not self.up or self.master is None or change <= self.has:
            return
        for key, value, when in batch:
            self.server.data.pop(key, None)
            self.server.expires.pop(key, None)
            if value is not None:
                self.server.data[key] = copied(value)
                if when is not None:
                    self.server.expires[key] = when
        self.has = change

    # -- what happens to it -----------------------------------------------------------------------

    def pause(self) -> None:
        self.paused = True

    def unpause(self) -> None:
        self.paused = False
        waiting, self._backlog = self._backlog, []
        for request in waiting:
            self.receive(request)

    def stop(self) -> None:
        """The process of the server ends; its connections break."""
        self.up = False
        self.paused = False
        self._backlog.clear()
        self.connections.clear()
        self.drop_subscribers()

    def start(self, *, empty: bool) -> None:
        self.up = True
        if empty:
            self.wipe()
        self.begin_term()
        self.server.started_us = self.now_us()

    def wipe(self) -> None:
        """Delete all data."""
        self.generation = self.world.new_generation()
        self.server = Server(self.now_us)
        self._equip()
        self.world.lost_data(self)

    def drop_subscribers(self) -> None:
        """End the connections of all inboxes."""
        gone = [inbox for inboxes in self.subscribers.values() for inbox in inboxes]
        self.subscribers.clear()
        for inbox in gone:
            self.world.network.broke(inbox)

    def follow(self, master: Node) -> None:
        """Become a replica with a full copy."""
        self.master = master
        self.link_cut = False
        self.replicas = []
        self.generation = master.generation
        self.server = Server(self.now_us)
        self._equip()
        for key, value in master.server.data.items():
            self.server.data[key] = copied(value)
        self.server.expires.update(master.server.expires)
        self.has = master.changes
        self.arrived_at = self.world.now
        master.replicas.append(self)


def shown(call: Call | Command) -> str:
    if type(call) is Call:
        return f"{call.script}({', '.join(str(arg) for arg in call.args)}) on {call.keys[0]}"
    return " ".join(str(arg) for arg in call.args)


class Network:
    """Delays, losses and resets of everything between clients and servers."""

    def __init__(self, world: Site) -> None:
        self.world = world
        #: (process number or None for all, node number) that cannot reach each other.
        self.cuts: dict[tuple[int | None, int], None] = {}
        self.slow = 1.0
        #: By session: when its last command arrives.
        self._ordered: dict[str, float] = {}

    def delay(self) -> float:
        r = self.world.rng.random()
        scale = self.world.options.latency_s * self.slow
        return min(scale * (0.3 + r) if r < 0.98 else scale * 10 * r, SLOWEST_S)

    def cut(self, process: Process, node: Node) -> bool:
        cuts = self.cuts
        return bool(cuts) and ((process.number, node.number) in cuts or (None, node.number) in cuts)

    def request(self, process: Process, node: Node, call: Call | Command, answer: AnswerTo) -> None:
        """Send a request on its way."""
        world = self.world
        if not node.up:
            error = RequestFailed("refused", "connection refused", node.name, maybe_executed=False, transient=True)
            world.after(self.delay(), answer, None, error)
            return
        if self.cut(process, node):
            world.counted["cut request"] += 1
            return
        request = Request(process, call, answer, world.now)
        delay = self.delay()
        noise = world.noise
        if noise is not None:
            r = world.rng.random()
            if r < noise.total:
                kind = noise.kind(r)
                world.counted[kind] += 1
                if world.trace is not None:
                    world.note("net", f"{kind}: {shown(call)} of {process.name}")
                if kind == "drop request":
                    return
                if kind == "drop reply":
                    request.lose_reply = True
                elif kind == "duplicate" and type(call) is Command:
                    pass  # no one sends a plain command twice
                elif kind == "duplicate":
                    twin = Request(process, call, _nobody, world.now)
                    twin.twin = True
                    world.after(delay + noise.late_s(world.rng), node.receive, twin)
                elif kind == "late request":
                    delay += noise.late_s(world.rng)
                elif kind == "late reply":
                    request.reply_late_s = noise.late_s(world.rng)
                else:  # reset
                    error = RequestFailed("broken", "connection reset", node.name, maybe_executed=True, transient=True)
                    world.after(self.delay(), answer, None, error)
                    if world.rng.random() < 0.5:
                        return
                    request.answer = _nobody
        if type(call) is Command and call.session is not None:
            # On one connection nothing overtakes.
            at = max(world.now + delay, self._ordered.get(call.session, 0.0) + 1e-9)
            self._ordered[call.session] = at
            delay = at - world.now
        world.after(delay, node.receive, request)

    def reply(self, node: Node, request: Request, value: Any, error: RequestFailed | None) -> None:
        if request.answer is _nobody or request.lose_reply or self.cut(request.process, node):
            return
        self.world.after(self.delay() + request.reply_late_s, request.answer, value, error)

    # -- inboxes ----------------------------------------------------------------------------------

    def subscribe(self, inbox: Inbox, answer: AnswerTo) -> None:
        """Open it (in place of a broken one)."""
        world, process, node = self.world, inbox.process, self.world.nodes[inbox.server]
        if not node.up:
            error = RequestFailed("refused", "connection refused", node.name, maybe_executed=False, transient=True)
            world.after(self.delay(), answer, None, error)
            return
        if self.cut(process, node):
            return
        noise = world.noise
        if noise is not None and world.rng.random() < noise.total / 2:
            return
        world.after(self.delay(), self._subscribed, inbox, answer)

    def _subscribed(self, inbox: Inbox, answer: AnswerTo) -> None:
        process, node = inbox.process, self.world.nodes[inbox.server]
        if not node.up or not process.alive:
            return
        if node.paused or node.loading:
            self.world.after(0.05, self._subscribed, inbox, answer)
            return
        self.world.steps += 1
        inbox.last_at = self.world.now
        node.subscribers.setdefault(inbox.channel, {})[inbox] = None
        if not self.cut(process, node):
            self.world.after(self.delay(), self._confirmed, inbox, answer)

    def _confirmed(self, inbox: Inbox, answer: AnswerTo) -> None:
        node, process = self.world.nodes[inbox.server], inbox.process
        if inbox not in node.subscribers.get(inbox.channel, {}):
            answer(None, RequestFailed("broken", "connection reset", node.name, maybe_executed=True, transient=True))
            return
        old = process.subscriptions.get(inbox.place)
        process.subscriptions[inbox.place] = inbox
        inbox.up = True
        if old is not None:
            self.close(old)
        answer(None, None)

    def close(self, inbox: Inbox) -> None:
        """The server forgets the subscription."""
        subscribers = self.world.nodes[inbox.server].subscribers
        there = subscribers.get(inbox.channel)
        if there is not None:
            there.pop(inbox, None)
            if not there:
                del subscribers[inbox.channel]

    def broke(self, inbox: Inbox) -> None:
        """The connection ends on both sides; the process learns it a little later."""
        self.close(inbox)
        self.world.after(self.delay(), inbox.process.subscription_broke, inbox)

    def push(self, node: Node, inbox: Inbox, message: bytes) -> None:
        world = self.world
        noise = world.noise
        if inbox.deaf or self.cut(inbox.process, node):
            world.counted["deaf inbox"] += 1
            return
        if noise is not None and world.rng.random() < noise.lost_push:
            world.counted["lost push"] += 1
            if world.trace is not None:
                world.note("net", f"lost push: {message.decode()}")
            return
        at = max(world.now + self.delay(), inbox.last_at + 1e-9)
        inbox.last_at = at
        world.after(at - world.now, self._pushed, inbox, message)

    def _pushed(self, inbox: Inbox, message: bytes) -> None:
        self.world.steps += 1
        inbox.process.hear(inbox, message)

    # -- replication ------------------------------------------------------------------------------

    def replicate(self, master: Node, replica: Node, batch: list[tuple[bytes, Any, int | None]], change: int) -> None:
        if replica.link_cut or not replica.up:
            return
        world = self.world
        at = max(world.now + world.options.lag_s * (0.3 + world.rng.random()), replica.arrived_at + 1e-9)
        replica.arrived_at = at
        world.after(at - world.now, replica.apply, master.generation, batch, change)


def _nobody(value: Any, error: RequestFailed | None) -> None:
    """Ignore an answer that no one waits for."""


class Site(Surroundings):
    """The servers and the network between them and the clients."""

    def __init__(self, options: Options, *, trace: bool = False) -> None:
        super().__init__(options, trace=trace)
        self._generations = 0
        self.inboxes = inbox_prefix("holdfast")
        self.noise: Noise | None = None
        self.network = Network(self)
        self.nodes = [Node(self, number) for number in range(options.nodes)]
        self.master = self.nodes[0]
        if options.replicas:
            for replica in self.nodes[1:]:
                replica.rate = self.master.rate
                replica.follow(self.master)

    def new_generation(self) -> int:
        """The number of data that no one had before."""
        self._generations += 1
        return self._generations

    def home(self, key: str) -> Node:
        """The server that a key lies on: the current master, or in a Cluster the owner of its slot."""
        return self.nodes[slot_of(key) % len(self.nodes)] if self.options.cluster else self.master

    # -- what processes ask -----------------------------------------------------------------------

    def master_number(self) -> int:
        return self.master.number

    def home_number(self, key: str) -> int:
        return self.home(key).number

    def request(self, process: Process, server: int, call: Call | Command, answer: AnswerTo) -> None:
        self.network.request(process, self.nodes[server], call, answer)

    def subscribe(self, process: Process, place: int | tuple[int, str], answer: AnswerTo) -> None:
        self.network.subscribe(Inbox(process, place), answer)

    # -- what those who watch are told ------------------------------------------------------------

    @abstractmethod
    def executed(self, node: Node, request: Request, value: Any, error: RequestFailed | None) -> None:
        """A server has carried a request out; `node.server.touched` holds the keys that it changed."""

    @abstractmethod
    def lost_data(self, node: Node) -> None:
        """A server has lost its data, or other data than before are the master's."""
