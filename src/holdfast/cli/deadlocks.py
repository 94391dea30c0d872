"""`holdfast deadlocks`: circles of processes that wait for each other."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections.abc import Iterator, Sequence

import holdfast
from holdfast.cli import exits
from holdfast.cli.options import Parser, add_report_options
from holdfast.cli.table import Answer, answered, span

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
    return answered(parser.parse_args(words), "deadlocks", _ask)


def _ask(client: holdfast.Client, _options: Namespace) -> Answer:
    found = client.deadlocks()
    facts = {"deadlocks": [dataclasses.asdict(each) for each in found]}
    return Answer(facts, _lines(found), exits.DEADLOCK if found else exits.OK)


def _lines(found: Sequence[holdfast.Deadlock]) -> Iterator[str]:
    if not found:
        yield "no deadlock"
    for number, deadlock in enumerate(found, 1):
        many = len(deadlock.parties)
        what = "one party that waits for itself" if many == 1 else f"{many} parties that wait for each other"
        if number > 1:
            yield ""
        yield f"deadlock {number}: {what}"
        for place, party in enumerate(deadlock.parties, 1):
            has = "holds" if party.holds else "stands before in the queue of"
            left = "" if party.timeout_left_s is None else f", for another {span(party.timeout_left_s)} at most"
            yield f"  {place}. {party.who}"
            yield f"     {has:9} {party.held_kind} {party.held_name}"
            yield f"     waits for {party.kind} {party.name}, for {span(party.waited_s)}{left}"
            if party.where is not None:
                yield f"     at        {party.where}"
