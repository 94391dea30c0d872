"""`holdfast status NAME`: who holds a lock, since when, for how long still, and how many wait."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import holdfast
from holdfast.cli.asking import sharers
from holdfast.cli.options import Parser, add_report_options
from holdfast.cli.table import Answer, answered, person, span, waiters

_EPILOG = """\
examples:
  holdfast status nightly-report
  holdfast status --json nightly-report | jq .holder.host

For people and reports. Never base a decision on it: the answer may be out of date (use `holdfast run --no-wait`).

exit status: 0 when the server answered, whether the lock is held or free;
  64 usage  69 server not available  77 access refused"""


@dataclass(frozen=True)
class _Seen:
    """All that has the name. `also`: by its kind, what is no lock. `slots`: those of `holdfast run --slots`."""

    lock: holdfast.Listed
    semaphore: holdfast.Listed
    election: holdfast.Listed
    also: dict[str, dict[str, Any]]
    slots: holdfast.SemaphoreStatus | None

    @property
    def main(self) -> holdfast.Listed:
        """The first of them that is held or waited for."""
        return next(
            (each for each in (self.lock, self.semaphore, self.election) if each.held or each.waiters), self.lock
        )

    @property
    def sharers(self) -> int:
        return self.lock.held if self.lock.holder is not None and ":r." in self.lock.holder.token else 0


def main(words: list[str]) -> int:
    parser = Parser("status", description="Who holds a lock, since when, and for how much longer.", epilog=_EPILOG)
    parser.add_argument("name", metavar="NAME", help="the lock")
    add_report_options(parser)
    return answered(parser.parse_args(words), "status", _ask)


def _ask(client: holdfast.Client, options: Namespace) -> Answer:
    seen = _look(client, options.name)
    return Answer(_facts(seen), (f"{label:<14} {value}" for label, value in _lines(seen)))


def _look(client: holdfast.Client, name: str) -> _Seen:
    try:
        (lock, semaphore, election), also = client.lock(name)._everything()
        slots = client.semaphore(name).status() if semaphore.permits else None
    except holdfast.HoldfastError as error:
        if not isinstance(error, holdfast.ConfigurationError) and "eval" not in str(error).lower():
            raise
        # A quorum offers locks alone, and so does a server without scripts, for this user.
        return _locks_alone(client, name)
    return _Seen(lock, semaphore, election, also, slots if slots and slots.permits else None)


def _locks_alone(client: holdfast.Client, name: str) -> _Seen:
    def seen(kind: Any, holder: holdfast.Holder | None, waiters: int = 0, fence: int = 0) -> holdfast.Listed:
        holders = () if holder is None else (holder,)
        return holdfast.Listed(kind, name, holders, len(holders), (), waiters, fence, 0, datetime.now(UTC))

    status, leader = client.lock(name).status(), client.election(name).leader()
    lock = seen("lock", status.holder, status.waiters, status.fencing_token)
    return _Seen(lock, seen("semaphore", None), seen("election", leader), {}, None)


def _facts(seen: _Seen) -> dict[str, Any]:
    main, slots = seen.main, seen.slots
    return {
        "name": main.name,
        "kind": main.kind,
        "held": bool(seen.lock.held or seen.semaphore.held),
        "holder": None if seen.sharers or seen.lock.holder is None else person(seen.lock.holder),
        "holders": [*map(person, main.holders)],
        "sharers": seen.sharers,
        "waiters": main.waiters,
        "last_fencing_token": main.fencing_token or None,
        "slots": slots
        and {
            "total": slots.permits,
            "free": slots.available,
            "used": slots.used,
            "holders": slots.holders,
            "waiters": slots.waiters,
        },
        "leader": seen.election.holder and person(seen.election.holder),
        "also": seen.also,
        "odd": [each.odd for each in (seen.lock, seen.semaphore, seen.election) if each.odd],
    }


def _lines(seen: _Seen) -> Iterator[tuple[str, str]]:
    main, slots = seen.main, seen.slots
    is_other = bool(seen.also) and not (main.holders or main.waiters or main.fencing_token)
    yield "name" if is_other else main.kind, main.name
    if seen.sharers:
        yield "held by", sharers(seen.sharers)
        yield from (("", line) for line in _named(main))
    elif seen.lock.holder is not None:
        yield from _about("held by", seen.lock.holder)
    elif main.kind not in ("semaphore", "election") and not is_other:
        yield "held by", "no one"
    if slots is not None:
        yield "slots", f"{slots.available} of {slots.permits} free, {waiters(slots.waiters)}"
    if main.kind == "semaphore":
        yield from (("" if at else "held by", line) for at, line in enumerate(_named(main)))
    if seen.election.holder is not None:
        yield from _about("led by", seen.election.holder)
    if main.fencing_token:
        yield "fencing token", f"{main.fencing_token} (the last one)"
    if not is_other:
        yield "waiters", str(main.waiters)
    yield from ((kind, _also(kind, facts)) for kind, facts in seen.also.items())
    for each in (seen.lock, seen.semaphore, seen.election):
        if each.odd:
            yield "odd key", f"{each.odd} holds what holdfast does not write"


def _named(found: holdfast.Listed) -> Iterator[str]:
    """Yield a line for each of those that are named, and one for the others."""
    yield from map(str, found.holders)
    if found.held > len(found.holders):
        yield f"and {found.held - len(found.holders)} more"


def _about(label: str, holder: holdfast.Holder) -> Iterator[tuple[str, str]]:
    if holder.host is not None:
        yield label, f"{holder.host}, pid {holder.pid}"
        yield "program", str(holder.program)
    else:
        what = "a holdfast client without a description" if holder.ours else "a client of another library"
        yield label, f"{what}, token {holder.token}"
    if holder.note is not None:
        yield "note", holder.note
    if holder.since is not None:
        ago_s = max(0.0, (datetime.now(UTC) - holder.since).total_seconds())
        yield "since", f"{holder.since:%Y-%m-%d %H:%M:%S} UTC ({span(ago_s, 0)} ago)"
    left = holder.remaining_s
    yield "remaining", "no ttl" if left is None else f"{left:.1f} s, unless it is renewed"


def _also(kind: str, facts: dict[str, Any]) -> str:
    """Describe a latch, an event, a barrier, a condition or a call of `once`."""
    if kind == "once":
        return "done"
    if kind == "barrier":
        broken = ", broken" if facts["broken"] else ""
        return f"{facts['waiting']} of {facts['parties']} parties wait, generation {facts['generation']}{broken}"
    said = waiters(facts["waiters"])
    if "set" in facts:
        return f"{'set' if facts['set'] else 'not set'}, {said}"
    if facts.get("count") is not None:
        return f"{facts['missing']} of {facts['count']} missing, {said}" if facts["missing"] else "open"
    return said
