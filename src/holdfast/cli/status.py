"""`holdfast status NAME`: who holds a lock, since when, for how long still, and how many wait."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from typing import Any

from holdfast.cli import exits
from holdfast.cli.options import Parser, add_server_options, client_options
from holdfast.cli.report import clean, emit_json, json_error

__all__ = ["main"]

_EPILOG = """\
examples:
  holdfast status nightly-report
  holdfast status --json nightly-report | jq .holder.host

For people and reports. Never decide by it: the answer may be old when it comes (use `holdfast run --no-wait`).

exit status: 0 when the server answered, whether the lock is held or free;
  64 usage  69 server not available  77 server refuses us"""


def main(words: list[str]) -> int:
    """The command."""
    parser = Parser("status", description="Who holds a lock, since when, for how long still.", epilog=_EPILOG)
    parser.add_argument("name", metavar="NAME", help="the lock")
    parser.add_argument("--json", action="store_true", help="for programs")
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
        holder = lock.holder()
        waiters = lock.waiters()
    found: dict[str, Any] = {"name": options.name, "held": holder is not None, "waiters": waiters, "holder": None}
    if holder is not None:
        found["holder"] = {
            "token": holder.token,
            "holdfast": holder.ours,
            "host": holder.host,
            "pid": holder.pid,
            "program": holder.program,
            "since": _stamp(holder.since),
            "remaining_s": holder.remaining_s,
            "fencing_token": holder.fencing_token,
        }
    return found


def _stamp(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="milliseconds")


def _print(found: dict[str, Any]) -> None:
    lines = [("lock", clean(found["name"]))]
    holder = found["holder"]
    if holder is None:
        lines.append(("held by", "nobody"))
    else:
        if holder["host"] is not None:
            lines.append(("held by", f"{clean(holder['host'])}, pid {holder['pid']}"))
            lines.append(("program", clean(holder["program"])))
        elif holder["holdfast"]:
            lines.append(("held by", f"a holdfast client that has not said who it is, token {clean(holder['token'])}"))
        else:
            lines.append(("held by", f"a client of another kind, token {clean(holder['token'])}"))
        if holder["since"] is not None:
            since = datetime.fromisoformat(holder["since"])
            ago_s = max(0, round((datetime.now(UTC) - since).total_seconds()))
            lines.append(("since", f"{since:%Y-%m-%d %H:%M:%S} UTC ({_span(ago_s)} ago)"))
        left = holder["remaining_s"]
        lines.append(("remaining", "without a limit" if left is None else f"{left:.1f} s, unless it is renewed"))
        if holder["fencing_token"] is not None:
            lines.append(("fencing token", str(holder["fencing_token"])))
    lines.append(("waiters", str(found["waiters"])))
    sys.stdout.write("".join(f"{label:<14} {value}\n" for label, value in lines))


def _span(seconds: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
