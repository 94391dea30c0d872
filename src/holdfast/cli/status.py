"""`holdfast status NAME`: who holds a lock, since when, for how long still, and how many wait."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from holdfast.cli import exits
from holdfast.cli.options import Parser, add_server_options, client_options
from holdfast.cli.report import clean, emit_json, json_error

if TYPE_CHECKING:
    from holdfast import Client, Holder, Listed, Semaphore

__all__ = ["main"]

_KINDS: tuple[Literal["lock", "semaphore", "election"], ...] = ("lock", "semaphore", "election")
_EPILOG = """\
examples:
  holdfast status nightly-report
  holdfast status --json nightly-report | jq .holder.host

For people and reports. Never base a decision on it: the answer may be out of date (use `holdfast run --no-wait`).

exit status: 0 when the server answered, whether the lock is held or free;
  64 usage  69 server not available  77 access refused"""


def main(words: list[str]) -> int:
    parser = Parser("status", description="Who holds a lock, since when, and for how much longer.", epilog=_EPILOG)
    parser.add_argument("name", metavar="NAME", help="the lock")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_server_options(parser, embedded=False)
    options = parser.parse_args(words)
    if not options.json:
        _print(_look(options))
        return exits.OK
    try:
        found = _look(options)
    except Exception as error:
        return json_error("status", error)
    emit_json("status", found)
    return exits.OK


def _look(options: argparse.Namespace) -> dict[str, Any]:
    import holdfast

    with holdfast.connect(**client_options(options)) as client:
        try:
            found, also = client.lock(options.name)._everything()
            by_kind = dict(zip(_KINDS, found, strict=True))
            slots = _slots(client.semaphore(options.name)) if by_kind["semaphore"].permits else None
        except holdfast.HoldfastError as error:
            if not isinstance(error, holdfast.ConfigurationError) and "eval" not in str(error).lower():
                raise
            # A quorum offers locks alone, and so does a server without scripts, for this user.
            by_kind, also, slots = _of_locks_alone(client, options.name), {}, None
    lock, semaphore, election = (by_kind[kind] for kind in _KINDS)
    main = next((each for each in (lock, semaphore, election) if each.held or each.waiters), lock)
    sharers = lock.held if lock.holder is not None and ":r." in lock.holder.token else 0
    return {
        "name": options.name,
        "kind": main.kind,
        "held": bool(lock.held or semaphore.held),
        "holder": None if sharers else _person(lock.holder),
        "holders": [_person(each) for each in main.holders],
        "sharers": sharers,
        "waiters": main.waiters,
        "last_fencing_token": main.fencing_token or None,
        "slots": slots,
        "leader": _person(election.holder),
        "also": also,
        "odd": [each.odd for each in by_kind.values() if each.odd],
    }


def _of_locks_alone(client: Client, name: str) -> dict[str, Listed]:
    from holdfast import Listed

    def seen(kind: Any, holder: Holder | None, waiters: int, fence: int) -> Listed:
        holders = () if holder is None else (holder,)
        return Listed(kind, name, holders, len(holders), (), waiters, fence, 0, datetime.now(UTC))

    status = client.lock(name).status()
    return {
        "lock": seen("lock", status.holder, status.waiters, status.fencing_token),
        "semaphore": seen("semaphore", None, 0, 0),
        "election": seen("election", client.election(name).leader(), 0, 0),
    }


def _person(holder: Holder | None) -> dict[str, Any] | None:
    if holder is None:
        return None
    return {
        "token": holder.token,
        "holdfast": holder.ours,
        "host": holder.host,
        "pid": holder.pid,
        "program": holder.program,
        "note": holder.note,
        "since": _stamp(holder.since),
        "remaining_s": holder.remaining_s,
        "fencing_token": holder.fencing_token,
    }


def _slots(semaphore: Semaphore) -> dict[str, int] | None:
    """Return the slots that `holdfast run --slots` of this name uses; None when there were none for long."""
    status = semaphore.status()
    if not status.permits:
        return None
    return {
        "total": status.permits,
        "free": status.available,
        "used": status.used,
        "holders": status.holders,
        "waiters": status.waiters,
    }


def _stamp(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="milliseconds")


def _print(found: dict[str, Any]) -> None:
    slots, of_lock = found["slots"], found["kind"] not in ("semaphore", "election")
    is_other = bool(found["also"]) and not (found["holders"] or found["waiters"] or found["last_fencing_token"])
    lines = [("name" if is_other else found["kind"], clean(found["name"]))]
    if found["sharers"]:
        lines.append(("held by", f"{found['sharers']} that share it"))
        lines += [("", line) for line in _named(found["holders"], found["sharers"])]
    elif found["holder"] is not None:
        lines += _about("held by", found["holder"])
    elif of_lock and not is_other:
        lines.append(("held by", "no one"))
    if slots is not None:
        lines.append(("slots", f"{slots['free']} of {slots['total']} free, {_waiters(slots['waiters'])}"))
    if found["kind"] == "semaphore":
        lines += [("" if at else "held by", line) for at, line in enumerate(_named(found["holders"], slots["holders"]))]
    if found["leader"] is not None:
        lines += _about("led by", found["leader"])
    if found["last_fencing_token"] is not None:
        lines.append(("fencing token", f"{found['last_fencing_token']} (the last one)"))
    lines += [] if is_other else [("waiters", str(found["waiters"]))]
    lines += [(kind, _also(kind, facts)) for kind, facts in found["also"].items()]
    lines += [("odd key", f"{key} holds what holdfast does not write") for key in found["odd"]]
    sys.stdout.write("".join(f"{label:<14} {clean(value)}\n" for label, value in lines))


def _also(kind: str, facts: dict[str, Any]) -> str:
    """Describe a latch, an event, a barrier, a condition or a call of `once`."""
    if kind == "once":
        return "done"
    if kind == "barrier":
        broken = ", broken" if facts["broken"] else ""
        return f"{facts['waiting']} of {facts['parties']} parties wait, generation {facts['generation']}{broken}"
    said = _waiters(facts["waiters"])
    if "set" in facts:
        return f"{'set' if facts['set'] else 'not set'}, {said}"
    if facts.get("count") is not None:
        return f"{facts['missing']} of {facts['count']} missing, {said}" if facts["missing"] else "open"
    return said


def _waiters(count: int) -> str:
    return f"{count} waiter{'' if count == 1 else 's'}"


def _named(holders: list[dict[str, Any]], count: int) -> list[str]:
    """A line for each of those that are named, and one for the others."""
    lines = []
    for each in holders:
        who = f"token {each['token']}"
        if each["host"] is not None:
            who = f"{each['host']}, pid {each['pid']} ({each['program']})"
        if each["note"] is not None:
            who = f'"{each["note"]}" {who}'
        left = "no ttl" if each["remaining_s"] is None else f"{each['remaining_s']:.1f} s left"
        lines.append(f"{who}, {left}")
    return lines + ([f"and {count - len(lines)} more"] if count > len(lines) else [])


def _about(label: str, person: dict[str, Any]) -> list[tuple[str, str]]:
    lines = []
    if person["host"] is not None:
        lines.append((label, f"{clean(person['host'])}, pid {person['pid']}"))
        lines.append(("program", clean(person["program"])))
    elif person["holdfast"]:
        lines.append((label, f"a holdfast client without a description, token {clean(person['token'])}"))
    else:
        lines.append((label, f"a client of another library, token {clean(person['token'])}"))
    if person["note"] is not None:
        lines.append(("note", person["note"]))
    if person["since"] is not None:
        since = datetime.fromisoformat(person["since"])
        ago_s = max(0, round((datetime.now(UTC) - since).total_seconds()))
        lines.append(("since", f"{since:%Y-%m-%d %H:%M:%S} UTC ({_span(ago_s)} ago)"))
    left = person["remaining_s"]
    lines.append(("remaining", "no ttl" if left is None else f"{left:.1f} s, unless it is renewed"))
    return lines


def _span(seconds: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
