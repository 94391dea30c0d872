"""`holdfast list [PATTERN]`: the locks there are, who holds them, how many wait."""

from __future__ import annotations

import argparse
import shutil
import sys
from typing import TYPE_CHECKING, Any

from holdfast.cli import exits
from holdfast.cli.options import Parser, add_server_options, client_options
from holdfast.cli.report import clean, emit_json, json_error
from holdfast.cli.table import held_by, left_of, named, oldest_of, person, span, sums, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast import Listed

__all__ = ["main"]

_EPILOG = """\
examples:
  holdfast list
  holdfast list 'orders:*' --waiting
  holdfast list --json | jq -r '.locks[] | select(.waiters > 10) | .name'

For people and reports: what appears or disappears meanwhile may be missed. It looks at a few keys at a time, so it may
run on a busy server.

exit status: 0 when the server answered; 64 usage  69 server not available  77 access refused"""

_HEADS = ("KIND", "NAME", "HELD BY", "LEFT", "SINCE", "WAITERS", "OLDEST")


def main(words: list[str]) -> int:
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
            {
                **person(holder),
                "remaining_s": holder.remaining_s,
                "since": holder.since and holder.since.isoformat(),
                "gone": holder.gone,
            }
            for holder in found.holders
        ],
        "waiters": found.waiters,
        "queue": [{**person(waiter), "age_s": waiter.age_s} for waiter in found.queue],
        "fencing_token": found.fencing_token or None,
        "permits": found.permits or None,
        "odd": found.odd,
    }


def _print(found: Sequence[Listed], waiting: bool) -> None:
    if not found:
        sys.stdout.write("no lock is waited for\n" if waiting else "no lock is held or waited for\n")
        return
    width = shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else None
    lines = table([_HEADS, *(_row(each) for each in found)], width, cut=(2, 1))
    for line, each in zip(lines, (None, *found), strict=True):
        sys.stdout.write(line + "\n")
        if waiting and each is not None:
            for place, waiter in enumerate(each.queue, 1):
                sys.stdout.write(f"    {place:>3}. {named(waiter)}, for {span(waiter.age_s)}\n")
            if each.waiters > len(each.queue):
                sys.stdout.write(f"         and {each.waiters - len(each.queue)} more\n")
    sys.stdout.write(f"\n{sums(found)}\n")


def _row(found: Listed) -> tuple[str, ...]:
    holder = found.holder
    since = "-" if holder is None or holder.since is None else f"{holder.since:%m-%d %H:%M:%S}"
    return (
        found.kind,
        clean(found.name),
        held_by(found),
        left_of(holder),
        since,
        str(found.waiters),
        oldest_of(found),
    )
