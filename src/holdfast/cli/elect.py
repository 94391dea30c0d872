"""`holdfast elect NAME -- CMD …`: a command that runs on one host at a time, wherever the leader is.

Theory: campaign, run the command under the lease, and campaign again when the lead was lost. Every round has a
client, a guard and a process of its own, so that each fork finds as few threads as possible.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from holdfast.cli import exits
from holdfast.cli.asking import acquired
from holdfast.cli.options import Parser, add_server_options, client_options, duration, private_server, split_command
from holdfast.cli.report import say
from holdfast.cli.signals import ENDING, Signals
from holdfast.cli.supervise import TTL_MIN_S, Supervisor
from holdfast.errors import quoted

if TYPE_CHECKING:
    from holdfast import Election

__all__ = ["main"]

#: Once we have led, a server that is away is asked again after a pause that grows from the first to the second, s.
_PAUSE_S, _PAUSE_MOST_S = 1.0, 30.0

_DESCRIPTION = """\
Run a command while this host is the leader. Start it on any number of hosts: it runs on one of them at a time.

Waits to be elected, then runs the command as `holdfast run` does (same environment, signals, output). When leadership
is lost, because the server or the connection to it is gone, the command is stopped before another host can be
elected, and started again when this host is elected again. When the command ends by itself, leadership ends, and
holdfast exits."""

_EPILOG = """\
examples:
  holdfast elect scheduler -- ./scheduler --port 8080
  holdfast elect --ttl 10s ingest -- python -m ingest      another host takes over within 10 s

exit status: that of CMD when it ended by itself; 128+N when signal N came while waiting
  64 usage  69 server not available at the start  77 access refused"""


def main(words: list[str]) -> int:
    before, command = split_command(words, "elect")
    parser = Parser("elect", usage="holdfast elect [OPTIONS] NAME -- CMD …", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("name", metavar="NAME", help="the election")
    parser.add_argument(
        "--ttl",
        metavar="D",
        type=duration,
        default=30.0,
        help="how long a leader that has died still counts as the leader (default: 30s)",
    )
    add_server_options(parser)
    options = parser.parse_args(before)
    if options.ttl < TTL_MIN_S:
        parser.error(f"--ttl: at least {TTL_MIN_S:g}s")
    sys.argv = [f"holdfast elect {options.name} -- {os.path.basename(command[0])}"]
    with private_server(options) as environment:
        return _elect(options, command, environment)


def _elect(options: argparse.Namespace, argv: list[str], environment: dict[str, str]) -> int:
    import holdfast

    signals = Signals()
    has_led = False
    pause_s = _PAUSE_S
    while True:
        try:
            status = _round(options, argv, environment, signals)
        except holdfast.HoldfastError as error:
            if not has_led or exits.status_of(error) != exits.UNAVAILABLE:
                raise
            say(f"{exits.sentence(error)}; retrying in {pause_s:.0f} s")
            interrupted = next((number for number in signals.wait(pause_s) if number in ENDING), None)
            if interrupted is not None:
                return exits.SIGNALLED + interrupted
            pause_s = min(pause_s * 2, _PAUSE_MOST_S)
            continue
        if status is not None:
            return status
        has_led, pause_s = True, _PAUSE_S


def _what_of(election: Election) -> str:
    leader = election.leader()
    return ", which no one leads just now" if leader is None else f", led by {leader}"


def _round(options: argparse.Namespace, argv: list[str], environment: dict[str, str], signals: Signals) -> int | None:
    """Lead once; returns the exit status, or None when the lead was lost."""
    import holdfast

    with holdfast.connect(**client_options(options), ttl=options.ttl) as client:
        election = client.election(options.name)
        supervisor = Supervisor(argv, signals)
        lease = acquired(
            lambda cancel: election.campaign(cancel=cancel),
            supervisor,
            lambda: _what_of(election),
            f"to lead {quoted(options.name)}",
        )
        status = supervisor.run(lease, environment, options.ttl)
        try:
            lease.release()
        except holdfast.LeaseLost:
            pass  # told already, or the command had ended by itself: then its status counts
        except holdfast.HoldfastError as error:
            say(f"could not resign; the lead expires within {options.ttl:g} s: {error}")
        if supervisor.ended_for is None or supervisor.asked_to_end:
            return status
    say(f"no longer the leader of {quoted(options.name)}; waiting to be elected again")
    return None
