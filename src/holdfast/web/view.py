"""What was seen, as JSON for the page and as metrics. Times are ms since 1970 by the clock of the locks' server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Any

from holdfast import Change, Deadlock, Holder, Listed, Waiter
from holdfast.web.rates import Rate

KINDS = ("lock", "rwlock", "multilock", "semaphore", "election")


def id_of(found: Listed | Change) -> str:
    """A lock keeps its row when readers hold it, or a multilock."""
    return id_by(found.kind, found.name)


def id_by(kind: str, name: str) -> str:
    """The same of these two."""
    return f"{'lock' if kind in ('rwlock', 'multilock') else kind}:{name}"


def ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def label(one: Holder | Waiter) -> str:
    """Name a holder or waiter, in the words that a person has to type to break its lease."""
    return f"{one.program} ({one.host}, pid {one.pid})" if one.host is not None else f"token {one.token}"


def row_of(seen: Listed, rate: Rate) -> dict[str, Any]:
    now = ms(seen.seen_at)
    return {
        "id": id_of(seen),
        "kind": seen.kind,
        "name": seen.name,
        "held": seen.held,
        "permits": seen.permits,
        **_lease_of(seen.holder, now),
        "gone": seen.holder is not None and seen.holder.gone,
        "waiters": seen.waiters,
        "oldest": now - round(seen.queue[0].age_s * 1000) if seen.queue else None,
        "rate": round(rate.per_s, 1),
        "rate_at_least": rate.at_least,
        "fencing_token": seen.fencing_token or None,
        "odd": seen.odd,
    }


def deadlock_of(deadlock: Deadlock) -> list[dict[str, Any]]:
    """Describe the parties, and what each of them holds and waits for."""
    return [{**asdict(party), "who": party.who, "text": str(party)} for party in deadlock.parties]


def detail_of(seen: Listed, rate: Rate, history: Iterable[dict[str, Any]]) -> dict[str, Any]:
    now = ms(seen.seen_at)
    return {
        **row_of(seen, rate),
        "holders": [{**_who(each), **_lease_of(each, now)} for each in seen.holders],
        "queue": [{**_who(each), "since": now - round(each.age_s * 1000)} for each in seen.queue],
        "history": list(history),
    }


def _lease_of(holder: Holder | None, now: int) -> dict[str, Any]:
    if holder is None:
        return dict.fromkeys(("who", "note", "token", "since", "until"))
    left, since = holder.remaining_s, None if holder.since is None else ms(holder.since)
    until = None if left is None else now + round(left * 1000)
    return {"who": label(holder), "note": holder.note, "token": holder.token, "since": since, "until": until}


def _who(one: Holder | Waiter) -> dict[str, Any]:
    return {"who": label(one), "token": one.token, "host": one.host, "pid": one.pid, "program": one.program}


def change_of(change: Change) -> dict[str, Any]:
    return {
        "at": ms(change.at),
        "what": change.what,
        "who": None if change.who is None else label(change.who),
        "token": None if change.who is None else change.who.token,
        "since": _since(change.who, change.at),
        "held": change.held,
        "waiters": change.waiters,
        "fencing_token": change.fencing_token or None,
        "reason": change.reason,
    }


def _since(who: Holder | Waiter | None, at: datetime) -> int | None:
    """Since when it has held, or waited."""
    if isinstance(who, Waiter):
        return round((at.timestamp() - who.age_s) * 1000)
    return None if who is None or who.since is None else ms(who.since)


def metrics(seen: Iterable[Listed], up: bool, took_s: float, looks: int, grants: int) -> str:
    """Write what a Prometheus server reads: sums by kind, never a name, of which there may be too many."""
    locks: Counter[str] = Counter()
    held: Counter[str] = Counter()
    waiters: Counter[str] = Counter()
    oldest = dict.fromkeys(KINDS, 0.0)
    for each in seen:
        locks[each.kind] += 1
        held[each.kind] += each.held > 0
        waiters[each.kind] += each.waiters
        oldest[each.kind] = max(oldest[each.kind], each.queue[0].age_s if each.queue else 0.0)

    def by_kind(values: dict[str, float] | Counter[str]) -> dict[str, float]:
        return {f'{{kind="{kind}"}}': values[kind] for kind in KINDS}

    lines = []
    for name, kind, help_text, values in (
        ("up", "gauge", "Whether the last look at the server succeeded.", {"": int(up)}),
        ("look_seconds", "gauge", "How long the last look took.", {"": round(took_s, 6)}),
        ("looks_total", "counter", "Looks at the server.", {"": looks}),
        ("grants_total", "counter", "Grants that were seen, at least.", {"": grants}),
        ("locks", "gauge", "Locks that are held or waited for.", by_kind(locks)),
        ("held", "gauge", "Locks that are held.", by_kind(held)),
        ("waiters", "gauge", "Waiters in queues.", by_kind(waiters)),
        ("oldest_waiter_seconds", "gauge", "How long the oldest waiter has waited.", by_kind(oldest)),
    ):
        lines += [f"# HELP holdfast_web_{name} {help_text}", f"# TYPE holdfast_web_{name} {kind}"]
        lines += [f"holdfast_web_{name}{labels} {value}" for labels, value in values.items()]
    return "\n".join(lines) + "\n"
