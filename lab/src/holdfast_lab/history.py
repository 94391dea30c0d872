"""What happened in one run, in real-time order, from one monotonic clock.

All clients of a run are on one machine and stamp their events with CLOCK_MONOTONIC, which they share; so an
event with a smaller stamp did happen earlier. A history knows nothing of what a scheme ought to do.

Kinds of events, by lane:

a client's lane
    ``asks``      begins to acquire (``ttl_ms``)
    ``refused``   one attempt ended without the lock
    ``acquired``  its code was told that it has the lock (``valid_until_ns``, ``fence``: where it knows them)
    ``entered``   is inside the critical section
    ``read``, ``wrote``   the counter (``value``, and for a write ``base`` and ``accepted``)
    ``left``      is outside again
    ``looked``    has looked at its lease, and goes by that in what it does next
    ``lost``      noticed by itself that its lease is over (``since_ns``: it relied on it until then)
    ``releases``, ``released``    begins and ends to give back
    ``conflict``  an optimistic commit was refused by the server
    ``failed``    its code got an error (``doing``, ``error``)
    ``check failed``   the lock's check raised what says neither yes nor no (``error``)
    ``gave up``   stopped trying
    ``killed``, ``stopped``, ``continued``, ``clock``   what the lab did to its process or thread
    ``others``    holds locks of other names (``held`` of ``wanted``)
a server's lane
    ``command``   reached it (``client``, ``phase``, ``text``, ``reply``, ``answered_ns``, ``fate``)
    ``key``       a key changed (``key``, ``was``, ``now``, ``ttl_ms``, ``by``: client, ``expiry``, ``lab``, ``unseen``;
                  ``over_ns``: when its ttl was over, which may have been seen later)
    ``prolonged`` the ttl of a key was set again (``key``, ``ttl_ms``, ``by``)
    ``left over`` what lies there at the end (``key``, ``value``, ``ttl_ms``; -1: forever)
    ``killed``, ``started``, ``stopped``, ``continued``, ``clock``, ``promoted``, ``flushed``
the lab's lane
    ``fault``     begins (``text``, ``lasting``), ``healed`` ends a lasting one
    ``broken``    the lock did not do what the play needs (``text``)
    ``others gone``   keys of locks of other names were removed (``keys``)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LAB", "Event", "History"]

#: The lane of what the lab itself did.
LAB = "lab"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: when (ns, CLOCK_MONOTONIC), to whom, what, and its particulars."""

    at_ns: int
    lane: str
    kind: str
    data: dict[str, Any] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        return self.data.get(name, default)

    def as_json(self) -> dict[str, Any]:
        return {"at_ns": self.at_ns, "lane": self.lane, "kind": self.kind, **self.data}


@dataclass(slots=True)
class History:
    """The events of one run with what is needed to read them.

    ``exclusive`` is what the scheme promises: False for optimistic ones, which let everyone in and promise
    only that no update is lost. ``lock_keys``: the keys that *are* the lock; empty where that is not known.
    """

    scheme: str
    fault: str
    variant: str = ""
    exclusive: bool = True
    lock_keys: tuple[str, ...] = ()
    #: Whether the clients were threads of one process.
    threads: bool = False
    clients: list[str] = field(default_factory=list)
    servers: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    _signals: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def add(self, at_ns: int, lane: str, kind: str, **data: Any) -> Event:
        event = Event(at_ns, lane, kind, data)
        self.events.append(event)
        return event

    def sort(self) -> None:
        """Into real-time order: messages about events may have arrived in another one."""
        self.events.sort(key=lambda event: event.at_ns)
        doing: dict[str, str] = {}
        made: dict[str, set[str]] = {"asks": set(), "releases": set()}
        for event in self.events:
            if event.kind in ("asks", "acquired", "releases", "released"):
                doing[event.lane] = event.kind
            elif event.kind == "key" and event.get("was") is None:
                made.get(doing.get(event.get("by"), ""), set()).add(event.get("key"))
        self._signals = made["releases"] - made["asks"]

    def is_lock_key(self, key: str) -> bool:
        """True if that key is the lock; where that is not known, any may be, except those that only releases make."""
        return key in self.lock_keys if self.lock_keys else key not in self._signals

    def of(self, *kinds: str, lane: str | None = None) -> Iterator[Event]:
        return (event for event in self.events if event.kind in kinds and lane in (None, event.lane))

    @property
    def start_ns(self) -> int:
        return min((event.at_ns for event in self.events), default=0)

    @property
    def end_ns(self) -> int:
        return max((event.at_ns for event in self.events), default=0)

    def as_json(self) -> dict[str, Any]:
        return {
            "scheme": self.scheme,
            "fault": self.fault,
            "variant": self.variant,
            "exclusive": self.exclusive,
            "lock_keys": list(self.lock_keys),
            "threads": self.threads,
            "clients": self.clients,
            "servers": self.servers,
            "events": [event.as_json() for event in self.events],
        }
