"""`holdfast deadlocks`: circles of processes that wait for each other."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

from holdfast.cli import exits
from holdfast.cli.options import Parser, add_report_options, connected
from holdfast.cli.report import clean, emit_json
from holdfast.cli.table import span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast import Deadlock, DeadlockParty

__all__ = ["main"]

_EPILOG = """\
examples:
  holdfast deadlocks
  holdfast deadlocks --json | jq '.deadlocks[].parties[].pid'
  holdfast break orders:42        # ends one, by taking a lock away from its holder

The report shows one moment. It looks at a few keys at a time, so it may run on a busy server.

exit status: 0 no deadlock  1 deadlocks were found  64 usage  69 server not available  77 access refused"""


def main(words: list[str]) -> int:
    what = "Threads, tasks and processes that wait for each other, in a cycle."
    parser = Parser("deadlocks", description=what, epilog=_EPILOG)
    add_report_options(parser)
    options = parser.parse_args(words)
    with connected(options, "deadlocks") as client:
        found = client.deadlocks()
    if options.json:
        emit_json("deadlocks", {"deadlocks": [dataclasses.asdict(each) for each in found]})
    else:
        _print(found)
    return exits.DEADLOCK if found else exits.OK


def _print(found: Sequence[Deadlock]) -> None:
    if not found:
        sys.stdout.write("no deadlock\n")
    for number, deadlock in enumerate(found, 1):
        many = len(deadlock.parties)
        what = "one party that waits for itself" if many == 1 else f"{many} parties that wait for each other"
        sys.stdout.write(f"{'' if number == 1 else chr(10)}deadlock {number}: {what}\n")
        for place, party in enumerate(deadlock.parties, 1):
            sys.stdout.write("\n".join(_lines(place, party)) + "\n")


def _lines(place: int, party: DeadlockParty) -> list[str]:
    has = "holds" if party.holds else "stands before in the queue of"
    left = "" if party.timeout_left_s is None else f", for another {span(party.timeout_left_s)} at most"
    lines = [
        f"  {place}. {clean(party.who)}",
        f"     {has:9} {party.held_kind} {clean(party.held_name)}",
        f"     waits for {party.kind} {clean(party.name)}, for {span(party.waited_s)}{left}",
    ]
    return lines if party.where is None else [*lines, f"     at        {clean(party.where)}"]
