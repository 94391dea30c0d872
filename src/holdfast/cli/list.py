"""`holdfast list [PATTERN]`: the locks there are, who holds them, how many wait."""

from __future__ import annotations

import argparse
import shutil
import sys
from typing import TYPE_CHECKING, Any

from holdfast.cli import exits
from holdfast.cli.options import Parser, add_server_options, client_options
from holdfast.cli.report import clean, emit_json, json_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast import Holder, Listed, Waiter

__all__ = ["main"]

_EPILOG = """\
examples:
  holdfast list
  holdfast list 'orders:*' --waiting
  holdfast list --json | jq -r '.locks[] | select(.waiters > 10) | .name'

For people and reports: what comes or goes meanwhile may be missed. It looks at a few keys at a time, so it may run on a
busy server.

exit status: 0 when the server answered; 64 usage  69 server not available  77 access refused"""

_HEADS = ("KIND", "NAME", "HELD BY", "LEFT", "SINCE", "WAITERS", "OLDEST")
#: A table wider than the terminal is cut here: in these columns, down to this many characters.
_NAME_LEAST = 12


def main(words: list[str]) -> int:
    """The command."""
    parser = Parser("list", description="Which locks are held or waited for, and by whom.", epilog=_EPILOG)
    parser.add_argument(
        "pattern", metavar="PATTERN", nargs="?", default="*", help="which names, as in 'orders:*' (default: all)"
    )
    parser.add_argument("--waiting", action="store_true", help="only those that are waited for, and who waits")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_server_options(parser, embedded=False)
    options = parser.parse_args(words)
    if options.json:
        try:
            found = [_fact(each) for each in _look(options)]
        except Exception as error:
            return json_error("list", error)
        emit_json("list", {"pattern": options.pattern, "locks": found})
    else:
        _print(sorted(_look(options), key=lambda each: (each.name, each.kind)), options.waiting)
    return exits.OK


def _look(options: argparse.Namespace) -> Iterator[Listed]:
    import holdfast

    with holdfast.connect(**client_options(options)) as client:
        for found in client.list(options.pattern):
            if found.waiters or not options.waiting:
                yield found


def _fact(found: Listed) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "name": found.name,
        "held": found.held,
        "holders": [
            {**_who(holder), "remaining_s": holder.remaining_s, "since": holder.since and holder.since.isoformat()}
            for holder in found.holders
        ],
        "waiters": found.waiters,
        "queue": [{**_who(waiter), "age_s": waiter.age_s} for waiter in found.queue],
        "fencing_token": found.fencing_token or None,
        "permits": found.permits or None,
    }


def _who(one: Holder | Waiter) -> dict[str, Any]:
    return {"token": one.token, "host": one.host, "pid": one.pid, "program": one.program}


def _print(found: Sequence[Listed], waiting: bool) -> None:
    if not found:
        sys.stdout.write("no lock is waited for\n" if waiting else "no lock is held or waited for\n")
        return
    rows = [_HEADS, *(_row(each) for each in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    over = sum(widths) + 2 * len(widths) - 2 - shutil.get_terminal_size((120, 24)).columns
    for column in (2, 1):  # shorten holders first, then names
        cut = min(max(over, 0), max(0, widths[column] - _NAME_LEAST))
        if sys.stdout.isatty():
            widths[column] -= cut
            over -= cut
    for row, each in zip(rows, (None, *found), strict=True):
        cells = [_fitted(text, width) for text, width in zip(row, widths, strict=True)]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
        if waiting and each is not None:
            for place, waiter in enumerate(each.queue, 1):
                sys.stdout.write(f"    {place:>3}. {_named(waiter)}, for {_span(waiter.age_s)}\n")
            if each.waiters > len(each.queue):
                sys.stdout.write(f"         and {each.waiters - len(each.queue)} more\n")
    held = sum(1 for each in found if each.held)
    sys.stdout.write(f"\n{len(found)} in all, {held} held, {sum(each.waiters for each in found)} waiters\n")


def _row(found: Listed) -> tuple[str, ...]:
    holder = found.holder
    who = "-" if holder is None else _named(holder)
    if found.held > 1:
        who += f" and {found.held - 1} more"
    if found.permits:
        who = f"{found.permits} permits: {who}"
    left = since = "-"
    if holder is not None:
        left = "no ttl" if holder.remaining_s is None else _span(holder.remaining_s)
        since = f"{holder.since:%m-%d %H:%M:%S}" if holder.since else "-"
    oldest = _span(found.queue[0].age_s) if found.queue else "-"
    return (found.kind, clean(found.name), who, left, since, str(found.waiters), oldest)


def _named(one: Holder | Waiter) -> str:
    if one.host is None:
        return f"token {clean(one.token)}"
    return f"{clean(one.program)} ({clean(one.host)}, pid {one.pid})"


def _fitted(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else text[: width - 1] + "…"


def _span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"
