"""What has happened to a lock between two looks. For people and for programs that report it; never for decisions.

Laws: nothing is told that the two looks do not show. What was granted and released between them leaves at most a
greater fencing token, which is told as "missed".

Theory: a holder or waiter is its token. A token that holds now and did not before was granted the lock, from the queue
if it was seen there. One that has gone from the holders was released, or its time was up, as the look before says. The
lists are cut at some length: of a list that is not whole, a token that is missing may only have moved behind the cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from holdfast._api.holder import Holder
from holdfast._api.overview import Kind, Listed, Waiter

What: TypeAlias = Literal["held", "handed_on", "released", "expired", "broken", "waiting", "left", "missed"]


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a lock, semaphore or election.

    `what`: "held" (granted), "handed_on" (granted to one that was seen waiting), "released", "expired" (its time was
    up), "broken" (taken away: `reason` says by whom and why; see `Client.explain`), "waiting" (joined the queue),
    "left" (gave up, or its process ended), "missed" (between two looks it was held and released again, at least once:
    by `who`, unless that waiter gave up just then, or by an unknown one, None). `at`: when it was seen, by the server's
    clock. `held`, `waiters` and `fencing_token`: as they were then.
    """

    what: What
    kind: Kind
    name: str
    at: datetime
    who: Holder | Waiter | None
    held: int
    waiters: int
    fencing_token: int
    reason: str | None = None

    @staticmethod
    def grants(before: Listed | None, after: Listed) -> int:
        """Return the number of grants between two looks (None: it was not listed), at least: they show no more."""
        return grants(changes(before, after))


def changes(before: Listed | None, after: Listed) -> Iterator[Change]:
    """Yield what has changed since the look before; without one, all that there is."""
    if before is not None and _same(before, after):
        return  # in a long list most are

    def change(what: What, who: Holder | Waiter | None) -> Change:
        return Change(what, after.kind, after.name, after.seen_at, who, after.held, after.waiters, after.fencing_token)

    if before is None:
        for holder in after.holders:
            yield change("held", holder)
        for waiter in after.queue:
            yield change("waiting", waiter)
        return
    was, waited = _tokens(before.holders), _tokens(before.queue)
    holds, waits = _tokens(after.holders), _tokens(after.queue)
    gap = after.seen_at - before.seen_at
    grew = before.fencing_token < after.fencing_token
    all_named = after.held == len(holds)
    gone = [each for each in before.holders if each.token not in holds] if all_named else []
    for holder in gone:
        left = holder.remaining_s
        yield change("expired" if left is not None and left <= gap.total_seconds() else "released", holder)
    passed = [each for each in before.queue if each.token not in waits and each.token not in holds]
    passed = [each for each in passed if all_named and _would_be_named(after, each, gap)]
    for waiter in passed:
        yield change("missed" if grew else "left", waiter)
    granted = [each for each in after.holders if each.token not in was]
    if before.held > len(was):
        granted = [each for each in granted if each.token in waited]
    for holder in granted:
        yield change("handed_on" if holder.token in waited else "held", holder)
    if grew and not granted and not passed and (not holds or after.kind in ("rwlock", "semaphore")):
        yield change("missed", None)
    for waiter in after.queue:
        if waiter.token not in waited and (before.waiters == len(waited) or waiter.age_s <= gap.total_seconds()):
            yield change("waiting", waiter)


def grants(told: Iterable[Change]) -> int:
    """Count the grants between two looks, at least: who is told as missed may have given up instead."""
    whats = [each.what for each in told]
    return whats.count("held") + whats.count("handed_on") or int("missed" in whats)


def _tokens(of: Iterable[Holder | Waiter]) -> set[str]:
    return {each.token for each in of}


def _same(before: Listed, after: Listed) -> bool:
    counts = (before.held, before.waiters, before.fencing_token) == (after.held, after.waiters, after.fencing_token)
    return (
        counts
        and [each.token for each in before.holders] == [each.token for each in after.holders]
        and [each.token for each in before.queue] == [each.token for each in after.queue]
    )


def _would_be_named(after: Listed, waiter: Waiter, gap: timedelta) -> bool:
    """True if it would stand in the list if it were still waiting: all are named, or those that came after it are."""
    if after.waiters == len(after.queue):
        return True
    return bool(after.queue) and waiter.age_s + gap.total_seconds() > after.queue[-1].age_s
