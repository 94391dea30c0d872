"""A Cluster: which node owns which slot, for both APIs.

Laws: a key's slot is computed as servers do; MOVED and ASK are believed at once; the table is read again when there is
reason to, from nodes that answer, and not more often than it helps.

Theory: nothing is known at first, and any node answers with MOVED, which is followed; that, and any trouble at a node,
marks the table as stale. How it is read depends on the API: `ThreadsCluster` reads in the thread
that asks next, `AioCluster` in a task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from holdfast._core.failure import RequestFailed
from holdfast._core.keys import SLOTS
from holdfast._core.keys import slot_of as slot_of_key
from holdfast._engine.handshake import UnfitServer
from holdfast._runtime.clock import clock

__all__ = [
    "REFRESH_EVERY_S",
    "REFRESH_STAGGER_S",
    "REFRESH_TIMEOUT_S",
    "REFRESH_TRIES",
    "REFRESH_WAIT_S",
    "ClusterTopology",
    "refuse",
    "slot_of",
]

N = TypeVar("N")

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
#: Computed slots that are kept. Cleared when full.
_SLOTS_KEPT = 10_000
#: Of keys up to this many characters.
_SLOT_KEY_MAX = 200

_slots: dict[str, int] = {}


def _is_below(digits: str, limit: int) -> bool:
    return digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits) < limit


def slot_of(key: str) -> int:
    """The slot of a key, computed once for those that are not long."""
    slot = _slots.get(key)
    if slot is None:
        slot = slot_of_key(key)
        if len(key) <= _SLOT_KEY_MAX:
            if len(_slots) >= _SLOTS_KEPT:
                _slots.clear()
            _slots[key] = slot
    return slot


def _is_single(failure: RequestFailed) -> bool:
    """True if a server that was asked for the table says that it is no node of a Cluster."""
    return "cluster support disabled" in failure.message


def refuse() -> Any:
    raise UnfitServer("it is not a node of a Cluster (cluster support is disabled there): use redis:// for it")


class ClusterTopology(Generic[N]):
    """The nodes that are known, and the owners of the slots."""

    #: Whether MOVED and ASK can come, and another node can take over.
    moves = True
    fails_over = True

    def __init__(self, seeds: Sequence[tuple[str, int]], make: Callable[[str, int], N]) -> None:
        self._make = make
        self._known: dict[tuple[str, int], N] = {}
        self._seeds = frozenset(seeds)
        for host, port in seeds:
            self._node_at(host, port)
        #: Since when tables have not named a node that is known, and nodes that have left, but still have connections.
        self._unnamed: dict[tuple[str, int], float] = {}
        self._leaving: list[N] = []
        self._owners: list[N | None] = [None] * SLOTS
        self._suspects: list[N] = []
        self._any = 0
        self._stale = True
        self._read_at = float("-inf")
        self._learned = False  # it has been read
        #: Nodes that are none, but servers for themselves: they would grant what others have granted, too.
        self._singles: list[N] = []

    def _node_at(self, host: str, port: int) -> N:
        node = self._known.get((host, port))
        if node is None:
            node = self._known.setdefault((host, port), self._make(host, port))
        return node

    def node_for(self, key: str | None, index: int | None) -> N:
        """The owner of the key's slot, as far as is known; the `index`-th master; else any node."""
        if key is None and index is not None and index < len(masters := self.masters()):
            return masters[index]
        owner = None if key is None else self._owners[slot_of(key)]
        return self._anybody() if owner is None else owner

    def _anybody(self) -> N:
        candidates = self._candidates()
        if self._singles:
            nodes = [node for node in candidates if node not in self._singles]
            if not nodes:
                return self._refusing(candidates[0])
            candidates = nodes
        return candidates[self._any % len(candidates)]

    def _refusing(self, node: N) -> N:
        """Return a stand-in that refuses whatever it is asked, since the node is not one of the Cluster."""
        raise NotImplementedError

    def _said(self, node: N, failure: RequestFailed) -> None:
        """Note a node that did not tell the table because it is a single server."""
        if _is_single(failure) and node not in self._singles:
            self._singles.append(node)

    def _candidates(self) -> list[N]:
        """Nodes to ask for the table, those without trouble first."""
        nodes = list(
            dict.fromkeys([*(owner for owner in set(self._owners) if owner is not None), *self._known.values()])
        )
        return [node for node in nodes if node not in self._suspects] + self._suspects

    @property
    def is_learned(self) -> bool:
        """Whether the table has ever been read."""
        return self._learned

    def nodes(self) -> Sequence[N]:
        return (*self._known.values(), *self._leaving)

    def masters(self) -> Sequence[N]:
        """Return the nodes that own slots, as far as is known."""
        return [*dict.fromkeys(owner for owner in self._owners if owner is not None)]

    def redirect(self, node: N, failure: RequestFailed) -> tuple[N, bool] | None:
        """Return the node that MOVED or ASK leads to; True: say ASKING first."""
        words = failure.message.split(" ")
        if len(words) < 3 or not _is_below(words[1], SLOTS):
            return None
        host, _, port = words[2].rpartition(":")
        if not _is_below(port, 65536) or not int(port):
            return None
        if host in ("", "?"):  # it does not know its own address: the one at which we reached it
            host = next((known[0] for known, other in self._known.items() if other is node), "localhost")
        target = self._node_at(host.strip("[]"), int(port))
        if failure.kind == "ASK":
            return target, True
        self._owners[int(words[1])] = target
        self._outdated()
        return target, False

    def troubled(self, node: N, failure: RequestFailed) -> None:
        """A request ended so: the table may be out of date."""
        if failure.kind in _HARMLESS:
            return
        if failure.kind in ("refused", "silent", "broken"):
            if node not in self._suspects:
                self._suspects.append(node)
            self._any += 1
        self._outdated()

    def _outdated(self) -> None:
        self._stale = True

    def _due(self) -> bool:
        return self._stale and clock() - self._read_at >= REFRESH_EVERY_S

    def _learn(self, node: N, shares: Any) -> bool:
        """Take over what CLUSTER SLOTS said; whether it made sense."""
        own_host = next((known[0] for known, other in self._known.items() if other is node), "localhost")
        try:
            read = _shares_of(shares, own_host)
        except (TypeError, ValueError, AttributeError, IndexError):
            return False
        owners: list[N | None] = [None] * SLOTS
        for first, last, (address, *replicas) in read:
            owner = self._node_at(*address)
            for replica in replicas:
                self._node_at(*replica)
            owners[first : last + 1] = [owner] * (last + 1 - first)
        self._owners = owners
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
                self._leave(node)
                self._leaving.append(node)
        self._unnamed = unnamed
        self._leaving = [node for node in self._leaving if not self._has_left(node)]

    def _leave(self, node: N) -> None:
        """Close its connections, once they owe nothing."""
        raise NotImplementedError

    def _has_left(self, node: N) -> bool:
        """True if none of its connections is left."""
        raise NotImplementedError


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
