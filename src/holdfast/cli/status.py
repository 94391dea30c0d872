"""`holdfast status NAME`: who holds a lock, since when, for how long still, and how many wait."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from holdfast.cli import exits
from holdfast.cli.options import Parser, add_server_options, client_options
from holdfast.cli.report import clean, emit_json, json_error
from holdfast.cli.table import unknown_of

if TYPE_CHECKING:
    from holdfast import Client, Holder, Semaphore

__all__ = ["main"]

_KINDS: tuple[Literal["lock", "semaphore", "election"], ...] = ("lock", "semaphore", "election")
_EPILOG = """\
examples:
  holdfast status nightly-report
  holdfast status --json nightly-report | jq .holder.host
  holdfast status --where orders:42

For people and reports. Never base a decision on it: the answer may be out of date (use `holdfast run --no-wait`).

exit status: 0 when the server answered, whether the lock is held or free;
  64 usage  69 server not available  77 access refused"""


def main(words: list[str]) -> int:
    """The command."""
    parser = Parser("status", description="Who holds a lock, since when, and for how much longer.", epilog=_EPILOG)
    parser.add_argument("name", metavar="NAME", help="the lock")
    parser.add_argument("--where", action="store_true", help="ask each holder where in its program it is, too")
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
        lock = client.lock(options.name)
        status = lock.status()
        holder = status.holder
        found: dict[str, Any] = {
            "name": options.name,
            "held": holder is not None,
            "holder": None,
            "sharers": 0,
            "waiters": status.waiters,
            "last_fencing_token": status.fencing_token or None,
            "slots": None,
            "leader": _person(client.election(options.name).leader()),
        }
        try:
            found["sharers"] = client.rwlock(options.name).readers()
            found["slots"] = _slots(client.semaphore(options.name))
        except holdfast.ConfigurationError:
            pass  # a quorum offers neither
        except holdfast.ServerError as error:
            if "eval" not in error.message.lower():
                raise
            # Nor does a server without scripts; who has them was not seen by this user.
        if options.where:
            found["where"] = [each for kind in _KINDS for each in _where(client, options.name, kind)]
    if holder is not None and not found["sharers"]:
        found["holder"] = _person(holder)
    return found


def _where(client: Client, name: str, kind: Literal["lock", "semaphore", "election"]) -> list[dict[str, Any]]:
    return [
        {
            "kind": kind,
            "token": each.holder.token,
            "who": each.holder.who,
            "runs_as": each.runs_as,
            "acquired_at": each.acquired_at,
            "stack": list(each.stack),
            "kept": each.holder.kept,
        }
        for each in client.whereabouts(name, kind=kind)
    ]


def _person(holder: Holder | None) -> dict[str, Any] | None:
    if holder is None:
        return None
    return {
        "token": holder.token,
        "holdfast": holder.ours,
        "host": holder.host,
        "pid": holder.pid,
        "program": holder.program,
        "since": _stamp(holder.since),
        "remaining_s": holder.remaining_s,
        "fencing_token": holder.fencing_token,
    }


def _slots(semaphore: Semaphore) -> dict[str, int] | None:
    """What `holdfast run --slots` of the same name uses; None when there was none for long."""
    status = semaphore.status()
    return {"total": status.permits, "free": status.available, "waiters": status.waiters} if status.permits else None


def _stamp(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="milliseconds")


def _print(found: dict[str, Any]) -> None:
    lines = [("lock", clean(found["name"]))]
    if found["sharers"]:
        lines.append(("held by", f"{found['sharers']} that share it"))
    elif found["holder"] is None:
        lines.append(("held by", "no one"))
    else:
        lines += _about("held by", found["holder"])
    if found["last_fencing_token"] is not None:
        lines.append(("fencing token", f"{found['last_fencing_token']} (the last one)"))
    lines.append(("waiters", str(found["waiters"])))
    if found["slots"] is not None:
        lines.append(("slots", "{free} of {total} free, {waiters} waiters".format(**found["slots"])))
    if found["leader"] is not None:
        lines += _about("led by", found["leader"])
    for each in found.get("where", ()):
        lines.append(("asked", clean(each["who"])))
        lines += [("  runs as", each["runs_as"])] if each["runs_as"] else []
        lines += [("  acquired at", each["acquired_at"])] if each["acquired_at"] else []
        silent = unknown_of(each["acquired_at"], each["kept"])
        lines += [("" if place else "  now at", line) for place, line in enumerate(each["stack"] or [silent])]
    sys.stdout.write("".join(f"{label:<14} {clean(value)}\n" for label, value in lines))


def _about(label: str, person: dict[str, Any]) -> list[tuple[str, str]]:
    lines = []
    if person["host"] is not None:
        lines.append((label, f"{clean(person['host'])}, pid {person['pid']}"))
        lines.append(("program", clean(person["program"])))
    elif person["holdfast"]:
        lines.append((label, f"a holdfast client without a description, token {clean(person['token'])}"))
    else:
        lines.append((label, f"a client of another library, token {clean(person['token'])}"))
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
