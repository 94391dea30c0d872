"""A Cluster: which node owns which slot, and requests that follow their keys.

Laws: a key's slot is computed as servers do; MOVED and ASK are believed at once; the table is read again when there is
reason to, from nodes that answer, and not more often than it helps.

Theory: nothing is known at first, and any node answers with MOVED, which is followed; that, and any trouble at a node,
marks the table as stale, and has it read. Requests wait for that a moment where nothing is known, or a node in trouble
would be asked; the others go on with the old one. All of it happens in the engine, but for looking up who owns a key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from holdfast._core.effects import Reply
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import SLOTS, slot_of
from holdfast._core.snapshot import snapshot
from holdfast._engine.handshake import UnfitServer
from holdfast._engine.loop import Engine
from holdfast._engine.pack import pack_command
from holdfast._engine.requests import Request
from holdfast._engine.server import Server, Topology
from holdfast._runtime.clock import clock

#: The table is not read more often than this, s.
REFRESH_EVERY_S = 0.25
#: How long a node is asked for it, s, and how many nodes at a time.
REFRESH_TIMEOUT_S = 1.0
REFRESH_TRIES = 3
#: The next one is asked when the one before has not answered for this long, s.
REFRESH_STAGGER_S = 0.05
#: Trouble that says nothing about who owns what.
_HARMLESS = frozenset({"closed", "OOM", "NOSCRIPT", "BUSY", "NOACK", "NOREPLICAS", "NOPERM"})
#: How long a request waits for the table, s: any node will tell it where to go.
REFRESH_WAIT_S = 0.25
#: A node that no table has named for this long has left, s: until then, it may be new and known to few.
FORGET_AFTER_S = 30.0
#: With more nodes than this, those that are not named are forgotten at once: a server may tell of any number.
KNOWN_MAX = 2_000

_SLOTS_COMMAND = pack_command(("CLUSTER", "SLOTS"))


def _is_below(digits: str, limit: int) -> bool:
    return digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits) < limit


def _refuse() -> Any:
    raise UnfitServer("it is not a node of a Cluster (cluster support is disabled there): use redis:// for it")


class Cluster(Topology):
    """The nodes that are known, and the owners of the slots. `make(host, port)` makes what makes connections there."""

    moves = True

    def __init__(
        self,
        engine: Engine,
        seeds: Sequence[tuple[str, int]],
        make: Callable[[str, int], Callable[[], Any]],
    ) -> None:
        super().__init__()
        self._engine = engine
        self._make = make
        self._known: dict[tuple[str, int], Server] = {}
        self._seeds = frozenset(seeds)
        for host, port in seeds:
            self._node_at(host, port)
        #: Since when tables have not named a node that is known, and nodes that have left, but still have connections.
        self._unnamed: dict[tuple[str, int], float] = {}
        self._leaving: list[Server] = []
        self._owners: list[Server | None] = [None] * SLOTS
        self._suspects: list[Server] = []
        self._any = 0
        self._stale = True
        self._read_at = float("-inf")
        self._learned = False  # it has been read
        self._reading: _Reading | None = None
        #: Nodes that are none, but servers for themselves: they would grant what others have granted, too.
        self._singles: list[Server] = []

    def _node_at(self, host: str, port: int) -> Server:
        node = self._known.get((host, port))
        if node is None:
            name = f"{host}:{port}"
            node = self._known[host, port] = Server(self._engine, name, self._make(host, port))
        return node

    def _host_of(self, node: Server) -> str:
        """Where we have reached it."""
        return next((host for (host, _), known in self._known.items() if known is node), "localhost")

    # -- who owns what ----------------------------------------------------------------------------

    def node_for(self, key: str | None, index: int | None) -> Server:
        """The owner of the key's slot, as far as is known; the `index`-th master; else any node. Any thread may ask."""
        if key is None and index is not None and index < len(masters := self.masters()):
            return masters[index]
        owner = None if key is None else self._owners[slot_of(key)]
        return self._anybody() if owner is None else owner

    def _anybody(self) -> Server:
        candidates = self._candidates()
        if self._singles:
            nodes = [node for node in candidates if node not in self._singles]
            if not nodes:
                return Server(self._engine, candidates[0].name, _refuse)
            candidates = nodes
        return candidates[self._any % len(candidates)]

    def _candidates(self) -> list[Server]:
        """Nodes to ask for the table, those without trouble first."""
        nodes = [*dict.fromkeys([*self.masters(), *snapshot(self._known.values())])]
        return [node for node in nodes if node not in self._suspects] + self._suspects

    def nodes(self) -> Sequence[Server]:
        """All nodes that are known now, and those that have left and are not closed yet."""
        return (*snapshot(self._known.values()), *self._leaving)

    def masters(self) -> Sequence[Server]:
        """Return the nodes that own slots, as far as is known."""
        return [*dict.fromkeys(owner for owner in self._owners if owner is not None)]

    def redirect(self, node: Server, failure: RequestFailed) -> tuple[Server, bool] | None:
        """Return the node that MOVED or ASK leads to; True: say ASKING first. None: nowhere."""
        words = failure.message.split(" ")
        if failure.kind not in ("MOVED", "ASK") or len(words) < 3 or not _is_below(words[1], SLOTS):
            return None
        host, _, port = words[2].rpartition(":")
        if not _is_below(port, 65536) or not int(port):
            return None
        if host in ("", "?"):  # it does not know its own address
            host = self._host_of(node)
        target = self._node_at(host.strip("[]"), int(port))
        if failure.kind == "ASK":
            return target, True
        slot = int(words[1])
        if self._owners[slot] is not target:
            self._owners[slot] = target
            self._engine.soon(self.on_moved)
        self._stale = True
        self._read()
        return target, False

    def troubled(self, node: Server, failure: RequestFailed) -> None:
        """A request ended so: the table may be out of date."""
        if failure.kind in _HARMLESS:
            return
        self._suspect(node, failure)
        self._any += 1
        self._stale = True
        self._read()

    def _suspect(self, node: Server, failure: RequestFailed) -> None:
        """Have others asked before it, if it did not answer."""
        if failure.kind in ("refused", "silent", "broken"):
            self._suspects = [*(each for each in self._suspects if each is not node), node]

    def find(self, key: str | None, index: int | None, then: Callable[[Server], None]) -> None:
        self._read()
        owner = None if key is None else self._owners[slot_of(key)]
        is_doubtful = not self._learned if owner is None else owner in self._suspects
        if is_doubtful and self._reading is not None and clock() - self._read_at < REFRESH_WAIT_S:
            self._reading.waiting.append(lambda: then(self.node_for(key, index)))
        else:
            then(self.node_for(key, index))

    # -- reading the table ------------------------------------------------------------------------

    def _read(self) -> None:
        """Have the table read, if there is reason to, and it is time for that."""
        now = clock()
        if self._stale and self._reading is None and now - self._read_at >= REFRESH_EVERY_S:
            self._read_at = now
            self._reading = _Reading(self, self._engine, self._candidates()[:REFRESH_TRIES])

    def told(self, node: Server, shares: Reply, failure: RequestFailed | None) -> bool:
        """A node was asked for the table: whether it has told."""
        if failure is None:
            return self._learn(node, shares)
        self._suspect(node, failure)  # those that are asked next time are other ones
        if "cluster support disabled" in failure.message and node not in self._singles:
            self._singles.append(node)
        return False

    def read_ended(self) -> None:
        self._reading = None

    def _learn(self, node: Server, shares: Any) -> bool:
        """Take over what CLUSTER SLOTS said; whether it made sense."""
        try:
            read = _shares_of(shares, self._host_of(node))
        except (TypeError, ValueError, AttributeError, IndexError):
            return False
        owners: list[Server | None] = [None] * SLOTS
        for first, last, (address, *replicas) in read:
            owner = self._node_at(*address)
            for replica in replicas:
                self._node_at(*replica)
            owners[first : last + 1] = [owner] * (last + 1 - first)
        if owners != self._owners:
            self._owners = owners
            self._engine.soon(self.on_moved)
        self._forget_except({address for _, _, addresses in read for address in addresses})
        self._singles = [single for single in self._singles if single is not node and single not in owners]
        self._suspects = [suspect for suspect in self._suspects if suspect in owners]
        self._stale = False
        self._learned = True
        return True

    def _forget_except(self, named: set[tuple[str, int]]) -> None:
        """Let go of nodes that have left, so that a Cluster whose nodes change their addresses costs what it has."""
        now = clock()
        unnamed = {}
        for address in tuple(self._known):
            if address in named or address in self._seeds:
                continue
            since = unnamed[address] = self._unnamed.get(address, now)
            if now - since >= FORGET_AFTER_S or len(self._known) > KNOWN_MAX:
                del unnamed[address]
                node = self._known.pop(address)
                node.reconnect()
                self._leaving.append(node)
        self._unnamed = unnamed
        self._leaving = [node for node in self._leaving if node.is_used]

    def forget(self, engine: Engine) -> None:
        """After fork, in the child, which has an engine of its own."""
        super().forget(engine)
        self._engine = engine
        self._reading = None


class _Reading:
    """Asks one node after the other for the table, without waiting long for those before, until one has told."""

    def __init__(self, cluster: Cluster, engine: Engine, nodes: list[Server]) -> None:
        self._cluster = cluster
        self._engine = engine
        self._nodes = nodes
        self._asked = 0
        self._open = len(nodes)
        #: Requests that wait for it.
        self.waiting: list[Callable[[], None]] = []
        engine.later(REFRESH_WAIT_S, self._go_on)
        self._ask_next(0)

    def _ask_next(self, asked: int) -> None:
        """Ask another one, unless one was asked since `asked` were."""
        if self._open and self._asked == asked < len(self._nodes):
            node = self._nodes[asked]
            self._asked += 1
            until = clock() + REFRESH_TIMEOUT_S
            node.send(Request(_SLOTS_COMMAND, until, None, None, partial(self._answered, node)))
            self._engine.later(REFRESH_STAGGER_S, self._ask_next, asked + 1)

    def _answered(self, node: Server, reply: Reply, failure: RequestFailed | None) -> None:
        told = self._cluster.told(node, reply, failure)
        if not self._open:
            return
        self._open = 0 if told else self._open - 1
        if self._open:
            self._ask_next(self._asked)
        else:
            self._cluster.read_ended()
            self._go_on()

    def _go_on(self) -> None:
        waiting, self.waiting = self.waiting, []
        for act in waiting:
            act()


def _shares_of(shares: Any, own_host: str) -> list[tuple[int, int, list[tuple[str, int]]]]:
    """(first slot, last slot, addresses of the master and its replicas). Raises on a malformed reply."""
    if type(shares) is not list or not shares:
        raise ValueError("no shares")
    read = []
    for share in shares:
        first, last = share[:2]
        if not (type(first) is type(last) is int and 0 <= first <= last < SLOTS):
            raise ValueError("no slots")
        addresses = []
        for at, (named, port, *_) in enumerate(share[2:]):
            host = (named or b"").decode()
            if type(port) is not int or not 0 < port < 65536:
                raise ValueError("no port")
            if host not in ("", "?") or at == 0:
                addresses.append((own_host if host in ("", "?") else host, port))
        if not addresses:
            raise ValueError("no master")
        read.append((first, last, addresses))
    return read
