"""`holdfast watch NAME`: what happens to a lock, line by line."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from typing import Any

import holdfast
from holdfast.cli import exits
from holdfast.cli.options import Parser, add_report_options, client_options
from holdfast.cli.report import JSON_VERSION, clean, json_line, say
from holdfast.cli.table import named, person

_EPILOG = """\
examples:
  holdfast watch nightly-report
  holdfast watch --json orders:42 | jq -r 'select(.what == "expired") | .who.host'

Starts with the current state and runs until it is interrupted. It looks at the lock 20 times a second: what begins and
ends between two looks is reported as missed, if at all. It waits for a server that has gone away.

exit status: that of the signal that ended it; 64 usage  77 access refused"""

_WORDS = {
    "held": "held by",
    "handed_on": "handed on to",
    "released": "released by",
    "expired": "expired, of",
    "broken": "taken from",
    "waiting": "waits:",
    "left": "left the queue:",
    "missed": "held and released between two looks",
}
#: Pause before a server that did not answer is asked again, s.
_AGAIN_S = 1.0


def main(words: list[str]) -> int:
    parser = Parser("watch", description="What happens to a lock, as it happens.", epilog=_EPILOG)
    parser.add_argument("name", metavar="NAME", help="the lock, semaphore or election")
    parser.add_duration("--poll", "how often to look (default: 50ms)", 0.05, 0.01)
    add_report_options(parser, "print JSON, a line for each change")
    options = parser.parse_args(words)
    gone = False
    with holdfast.connect(**client_options(options)) as client:
        while True:
            try:
                for change in client.watch(options.name, poll=options.poll):
                    _print(change, options)
                    gone = False
            except holdfast.HoldfastError as error:
                if exits.status_of(error) != exits.UNAVAILABLE:
                    raise
                if not gone:
                    say(f"{exits.sentence(error)}; looking again until it answers")
                gone = True
                time.sleep(_AGAIN_S)


def _print(change: holdfast.Change, options: argparse.Namespace) -> None:
    if options.json:
        sys.stdout.write(json_line({"version": JSON_VERSION, "command": "watch", **_fact(change)}))
    else:
        kind = "" if change.kind == "lock" else f" [{change.kind}]"
        by = ", by" if change.what == "missed" else ""
        who = "" if change.who is None else f"{by} {named(change.who)}"
        rest = [f"fencing token {change.fencing_token}"] if change.what in ("held", "handed_on") else []
        rest += [] if change.reason is None else [f"by {clean(change.reason)}"]
        rest += [f"{change.waiters} waiting"] if change.waiters else []
        at = change.at.astimezone()
        sys.stdout.write(
            f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}{kind}  {_WORDS[change.what]}{who}"
            + (f"  ({', '.join(rest)})" if rest else "")
            + "\n"
        )
    sys.stdout.flush()


def _fact(change: holdfast.Change) -> dict[str, Any]:
    who = change.who and person(change.who)
    return {**dataclasses.asdict(change), "who": who, "fencing_token": change.fencing_token or None}
