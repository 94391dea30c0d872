"""Deadlocks: circles of parties, each of which waits for what the next one holds.

Laws: nothing is reported that was not so at one moment; nothing is changed by looking; one party of a circle at a time
gives up.

Theory: a *party* is a thread or task, as the tokens of what it holds and waits for name it. It is *stuck* while it
waits for what only stuck parties could let go: the holder of a lock; any reader, for a writer; all holders of a
semaphore whose permits would suffice. The stuck ones are the greatest set with that property, found by leaving out,
again and again, who is not. All is read twice. A token never comes back, so what stands there both times stood there
at every moment between the end of the first reading and the beginning of the second: only that counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from holdfast._core.kinds import ALONE
from holdfast._core.overview import Entry
from holdfast._core.rwlock import READER, reader_beneath
from holdfast._core.tokens import MARK, client_of, is_ours, mark_of, owner_of

#: The client, and which of its threads or tasks.
Party: TypeAlias = tuple[str, str]


class Step(NamedTuple):
    """One party of a circle: by `token` it waits for `name`; by `held_token` it keeps the one before it waiting.

    `holds`: it holds `held_name`; else it stands before the other one in the queue of that.
    """

    token: str
    kind: str
    name: str
    waited_s: float
    held_kind: str
    held_name: str
    held_token: str
    holds: bool


class Edge(NamedTuple):
    """What keeps a party waiting in that place of a queue: another one, by its `token`."""

    party: Party
    entry: Entry
    at: int
    to: Party
    token: str
    holds: bool

    @property
    def waits_by(self) -> str:
        return self.entry.waiters[self.at][0]


#: By each party that is stuck.
Edges: TypeAlias = "dict[Party, list[Edge]]"


def party_of(token: str, known: Mapping[str, Party], holds: bool) -> Party | None:
    """Return a token's party; None where it names none: another program's, or of a lease that its client hands on."""
    if not is_ours(token) or (holds and token.endswith(MARK)):
        return known.get(token)
    return client_of(token), owner_of(token)


def common(first: Entry, second: Entry) -> Entry:
    """Return what was the same in two readings of a lock."""
    same = first.kind == second.kind and (first.kind not in ALONE or first.fence == second.fence)
    held = {token for token, _ in first.holders} if same else set()
    waiting = {token for token, _ in first.waiters}
    return second._replace(
        permits=max(first.permits, second.permits),
        holders=tuple(each for each in second.holders if each[0] in held),
        waiters=tuple(each for each in second.waiters if each[0] in waiting),
    )


def circles(edges: Edges) -> list[tuple[Step, ...]]:
    """The deadlocks in it, one circle for each knot of parties."""
    found = []
    done: set[Party] = set()
    for party in sorted(edges):
        circle = () if party in done else _circle(party, edges)
        if circle:
            # What can be reached from it, and reaches it, is of the same knot.
            done.update(each for each in _reached(party, edges) if party in _reached(each, edges))
            found.append(circle)
    return found


def circle_of(token: str, edges: Edges) -> tuple[Step, ...]:
    """A circle of which the party is that waits by that token; () when there is none."""
    # It may stand in queues by other tokens, too: of a late request, or of what a signal handler has interrupted.
    its = [edge for each in edges.values() for edge in each if edge.waits_by == token]
    return _circle(its[0].party, {**edges, its[0].party: its}) if its else ()


def stuck(entries: Iterable[Entry], known: Mapping[str, Party]) -> Edges:
    """Return the edges of each stuck party: what it waits for. `known`: who holds by tokens that do not say it."""
    waits = [
        (party, entry, at)
        for entry in entries
        for at, (token, _) in enumerate(entry.waiters)
        if (party := party_of(token, known, False)) is not None
    ]
    those = {party for party, _, _ in waits}
    while True:
        edges: Edges = {}
        for party, entry, at in waits:
            if party in those and (blocked := _blocked(party, entry, at, those, known)):
                edges.setdefault(party, []).extend(blocked)
        if len(edges) == len(those):
            return edges
        those = set(edges)


def _blocked(party: Party, entry: Entry, at: int, stuck: Collection[Party], known: Mapping[str, Party]) -> list[Edge]:
    """Return the stuck parties that keep a waiter waiting, as edges; none where it may be granted all the same."""

    def stuck_by(tokens: Iterable[str], holds: bool) -> list[Edge]:
        parties = [(each, party_of(each, known, holds)) for each in tokens]
        return [Edge(party, entry, at, to, each, holds) for each, to in parties if to is not None and to in stuck]

    *before, token = [each for each, _ in entry.waiters[: at + 1]]
    if entry.kind == "rwlock" and _is_reader(token):  # it waits for those that came before it and do not read
        return stuck_by([each for each in before if not _is_reader(each)], False)
    beneath = reader_beneath(token)
    holders = stuck_by([each for each, _ in entry.holders if each != beneath], True)
    if entry.kind == "semaphore":
        left = entry.permits - sum(_weight(edge.token) for edge in holders)
        return holders if left < max(map(_weight, [*before, token])) else []
    return holders


def _weight(token: str) -> int:
    permits = mark_of(token).partition(".")[0]
    return int(permits) if permits.isdigit() else 1


def _is_reader(token: str) -> bool:
    return f"{mark_of(token)}.".startswith(READER)


def _reached(party: Party, edges: Edges) -> dict[Party, Edge]:
    """Map the parties reachable from this one (itself too, in a circle) to the last edge of a shortest path."""
    by: dict[Party, Edge] = {}
    waiting = deque([party])
    while waiting:
        for edge in edges.get(waiting.popleft(), ()):
            if edge.to not in by:
                by[edge.to] = edge
                waiting.append(edge.to)
    return by


def _circle(party: Party, edges: Edges) -> tuple[Step, ...]:
    """The shortest circle that begins with it, through others where there is one; () when it is in none."""
    # One that waits for permits waits for its own, too: that says nothing of the holders of the rest.
    by = _reached(party, {each: [edge for edge in its if edge.to != each] for each, its in edges.items()})
    if party not in by:
        by = _reached(party, edges)
    if party not in by:
        return ()
    way = [by[party]]
    while way[0].party != party:
        way.insert(0, by[way[0].party])
    circle = []
    for before, edge in zip([way[-1], *way[:-1]], way, strict=True):
        entry, held = edge.entry, before.entry
        waits = (edge.waits_by, entry.kind, entry.name, entry.waiters[edge.at][1])
        circle.append(Step(*waits, held.kind, held.name, before.token, before.holds))
    return tuple(circle)
