"""`holdfast list [PATTERN]`: the locks there are, who holds them, how many wait."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from holdfast.cli import exits
from holdfast.cli.options import Parser, add_report_options, connected
from holdfast.cli.report import emit_json
from holdfast.cli.table import named, person, row, span, sums, table, width_of_output

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    add_report_options(parser)
    options = parser.parse_args(words)
    with connected(options, "list") as client:
        found = [each for each in client.list(options.pattern) if each.waiters or not options.waiting]
    if options.json:
        emit_json("list", {"pattern": options.pattern, "locks": [_fact(each) for each in found]})
    else:
        _print(sorted(found, key=lambda each: (each.name, each.kind)), options.waiting)
    return exits.OK


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
    lines = table([_HEADS, *(row(each, _HEADS) for each in found)], width_of_output(), cut=(2, 1))
    for line, each in zip(lines, (None, *found), strict=True):
        sys.stdout.write(line + "\n")
        if waiting and each is not None:
            for place, waiter in enumerate(each.queue, 1):
                sys.stdout.write(f"    {place:>3}. {named(waiter)}, for {span(waiter.age_s)}\n")
            if each.waiters > len(each.queue):
                sys.stdout.write(f"         and {each.waiters - len(each.queue)} more\n")
    sys.stdout.write(f"\n{sums(found)}\n")
