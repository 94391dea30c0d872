"""`holdfast list [PATTERN]`: the locks there are, who holds them, how many wait."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence

import holdfast
from holdfast.cli.options import Parser, add_report_options
from holdfast.cli.table import NOTHING, Answer, answered, facts_of, named, row, span, sums, table, width_of_output

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
    return answered(parser.parse_args(words), "list", _ask)


def _ask(client: holdfast.Client, options: Namespace) -> Answer:
    found = [each for each in client.list(options.pattern) if each.waiters or not options.waiting]
    facts = {"pattern": options.pattern, "locks": [*map(facts_of, found)]}
    return Answer(facts, _lines(sorted(found, key=lambda each: (each.name, each.kind)), options.waiting))


def _lines(found: Sequence[holdfast.Listed], waiting: bool) -> Iterator[str]:
    if not found:
        yield "no lock is waited for" if waiting else NOTHING
        return
    lines = table([_HEADS, *(row(each, _HEADS) for each in found)], width_of_output(), cut=(2, 1))
    for line, each in zip(lines, (None, *found), strict=True):
        yield line
        if waiting and each is not None:
            for place, waiter in enumerate(each.queue, 1):
                yield f"    {place:>3}. {named(waiter)}, for {span(waiter.age_s)}"
            if each.waiters > len(each.queue):
                yield f"         and {each.waiters - len(each.queue)} more"
    yield from ("", sums(found))
