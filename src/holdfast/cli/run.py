"""`holdfast run NAME -- CMD …` and `holdfast elect NAME -- CMD …`: a command under a lock, or while this host leads.

Theory of `elect`: campaign, run the command under the lease, and campaign again when the lead was lost. Every round has
a client, a guard and a process of its own, so that each fork finds as few threads as possible.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial

import holdfast
from holdfast._runtime.clock import clock
from holdfast.cli import exits
from holdfast.cli.asking import acquired, held_by
from holdfast.cli.options import (
    TTL_MAX_S,
    Parser,
    add_server_options,
    client_options,
    duration,
    private_server,
    shortened,
    split_command,
)
from holdfast.cli.report import say
from holdfast.cli.signals import Signals
from holdfast.cli.supervise import TTL_MIN_S, Supervisor
from holdfast.errors import quoted

#: That of a lease, unless --ttl says otherwise, s.
_TTL_S = 30.0
#: Less than this is not worth a request (and no ttl): --at-least is over, s.
_MOMENT_S = 0.01

_DESCRIPTION = """\
Run a command while holding a lock. On any number of hosts, one at a time.

The command is not run by a shell. It gets HOLDFAST_NAME and HOLDFAST_FENCING_TOKEN in its environment; its input
and output are left alone, signals are passed on to its process group, and holdfast exits with its status. It is
stopped (SIGTERM, then SIGKILL) before a lease that cannot be renewed expires."""

_EPILOG = """\
examples:
  holdfast run nightly-report -- /usr/local/bin/report --all
  holdfast run --no-wait backup -- restic backup /srv            skip it while another host does it
  holdfast run --no-wait --at-least 55s minutely -- ./job.sh     cron on many hosts: once a minute, not once per host
  holdfast run --wait 10m deploy -- sh -c 'make && make deploy'  a shell, if you need one
  holdfast run --slots 3 encode -- ffmpeg …                      three at a time, over all hosts
  holdfast run --embedded demo -- env                            to try it: needs no server

durations: 30 or 30s, 500ms, 2m, 1h, 1d

exit status: that of CMD; 128+N when signal N ended it; 126, 127 when it cannot be executed or was not found;
  64 usage  69 server not available  75 held by someone else  76 lease lost  77 access refused"""


#: Once we have led, a server that is away is asked again after a pause that grows from the first to the second, s.
_PAUSE_S, _PAUSE_MOST_S = 1.0, 30.0

_ELECT_DESCRIPTION = """\
Run a command while this host is the leader. Start it on any number of hosts: it runs on one of them at a time.

Waits to be elected, then runs the command as `holdfast run` does (same environment, signals, output). When leadership
is lost, because the server or the connection to it is gone, the command is stopped before another host can be
elected, and started again when this host is elected again. When the command ends by itself, leadership ends, and
holdfast exits."""

_ELECT_EPILOG = """\
examples:
  holdfast elect scheduler -- ./scheduler --port 8080
  holdfast elect --ttl 10s ingest -- python -m ingest      another host takes over within 10 s

exit status: that of CMD when it ended by itself; 128+N when signal N came while waiting
  64 usage  69 server not available at the start  77 access refused"""


def main(words: list[str]) -> int:
    before, command = split_command(words, "run")
    parser = _parser()
    options = parser.parse_args(before)
    _check(options, parser)
    with private_server(options) as environment:
        return _run(options, command, environment)


def _parser() -> Parser:
    parser = Parser("run", usage="holdfast run [OPTIONS] NAME -- CMD …", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("name", metavar="NAME", help="the lock")
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument("--wait", metavar="D", type=duration, help="wait this long at most (default: indefinitely)")
    waiting.add_argument("--no-wait", action="store_const", const=0.0, dest="wait", help="do not wait")
    parser.add_argument(
        "--queue-limit",
        metavar="N",
        type=partial(_number, "queue limit"),
        help="do not wait if N others do already: with 1, one runs, one waits, and the rest is turned away",
    )
    parser.add_duration(
        "--ttl",
        "lease duration (default: 30s); it is renewed while the command runs, "
        "and locks others out for this long if this host dies",
        _TTL_S,
        TTL_MIN_S,
    )
    parser.add_duration(
        "--crash-release",
        "let others in this long after this process was killed or has crashed, not after the ttl; "
        "the command is stopped when no renewal was answered for this long, too",
    )
    parser.add_duration(
        "--at-least",
        "keep the lock this long even if the command ends sooner: "
        "hosts whose clocks differ by less do not run a job twice",
        0.0,
    )
    parser.add_argument("--note", metavar="TEXT", help="one line that says why it is held, shown beside the holder")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--shared",
        action="store_true",
        help="share the lock with others that use --shared, but not with those that do not (readers and writers)",
    )
    kind.add_argument(
        "--slots",
        metavar="N",
        type=partial(_number, "number of slots"),
        help="run up to N at a time instead of one; use the same N on every host",
    )
    parser.add_argument(
        "--on-wanted",
        metavar="SIGNAL",
        type=_signal,
        help="the signal, as USR1, that the command gets when another client asks for the lock (holdfast ask)",
    )
    parser.add_duration("--max-hold", "stop a command that takes longer than this", least_s=TTL_MIN_S)
    add_server_options(parser)
    return parser


def _number(what: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{shortened(text)!r} is not a valid {what}: 1 or more")
    return int(text)


def _signal(text: str) -> int:
    import signal

    name = text.upper().removeprefix("SIG")
    for number in signal.valid_signals():
        if name in (str(int(number)), getattr(number, "name", "").removeprefix("SIG")):
            return int(number)
    raise argparse.ArgumentTypeError(f"{shortened(text)!r} is not a valid signal: USR1, TERM, 12, …")


def _check(options: argparse.Namespace, parser: Parser) -> None:
    if options.crash_release is not None:
        if not TTL_MIN_S <= options.crash_release <= options.ttl / 2:
            parser.error(f"--crash-release: at least {TTL_MIN_S:g}s, and at most half of --ttl, {options.ttl / 2:g}s")
        if options.at_least or options.shared or options.slots is not None:
            parser.error("--crash-release does not go together with --at-least, --shared or --slots")
    if options.at_least > TTL_MAX_S:
        parser.error(f"--at-least: at most {TTL_MAX_S / 86_400:g}d")
    if options.max_hold is not None and options.at_least > options.max_hold:
        parser.error("--at-least is more than --max-hold")


def _run(options: argparse.Namespace, argv: list[str], environment: dict[str, str]) -> int:
    # What others see of us on the server: not the URL, and not the command's arguments, which may hold secrets.
    sys.argv = [f"holdfast run {options.name} -- {os.path.basename(argv[0])}"]
    client = holdfast.connect(
        **client_options(options),
        ttl=options.ttl,
        max_hold=options.max_hold,
        queue_limit=options.queue_limit,
        crash_release=options.crash_release,
        note=options.note or None,
    )  # connects to nothing yet
    wanted, label, look = _wanted(client, options)
    signals = Signals()
    span_s = min(each for each in (options.ttl, options.max_hold, options.crash_release) if each is not None)
    with client:
        try:
            with Supervisor(argv, {**environment, "HOLDFAST_NAME": options.name}, signals) as supervisor:
                lease = acquired(
                    lambda cancel: wanted.acquire(timeout=options.wait, cancel=cancel),
                    signals,
                    look,
                    f"for {label}",
                    options.wait,
                )
                started_at = clock()
                status = supervisor.run(lease, span_s, max_hold_s=options.max_hold, on_wanted=options.on_wanted)
        except holdfast.AcquireTimeout as error:
            _say_why(error, client, options)
            return exits.NOT_ACQUIRED
        # Where nothing was done, others may try.
        at_least_s = options.at_least - (clock() - started_at) if supervisor.was_executed else 0.0
        lost = supervisor.ended_for is not None
        if not _given_back(lease, at_least_s, told=lost) or lost:
            status = exits.LEASE_LOST
        if options.embedded or lease.lost.is_set():
            return status  # one that was broken is released in the background
        # Nothing is held any more that an orderly end of Python would have to release, which takes its time.
        os._exit(status)


def _wanted(
    client: holdfast.Client, options: argparse.Namespace
) -> tuple[holdfast.Lock | holdfast.ReadLock | holdfast.Semaphore, str, Callable[[], str]]:
    """Make what is asked for, which sends nothing: how it is called, and what asks the server why it is waited for."""
    name = quoted(options.name)
    if options.slots is None:
        lock = client.rwlock(options.name).read() if options.shared else client.lock(options.name)
        return lock, f"lock {name}", lambda: f", {held_by(client, options.name)}"
    slots = client.semaphore(options.name, options.slots)

    def look() -> str:
        status = slots.status()
        return f", all of which are taken, with {status.waiters} waiting" if not status.available else ""

    return slots, f"one of {options.slots} slots of {name}", look


def _say_why(error: holdfast.AcquireTimeout, client: holdfast.Client, options: argparse.Namespace) -> None:
    """Say why the command is not run."""
    waited = f"; waited {error.waited_s:.1f} s" if options.wait else ""
    if isinstance(error, holdfast.QueueFull):
        waited = f", and others wait for it already (--queue-limit {options.queue_limit})"
    if options.slots is not None:
        say(f"all {options.slots} slots of {quoted(options.name)} are taken{waited}")
        return
    try:
        held = held_by(client, options.name)
    except holdfast.HoldfastError:
        held = "held by another client"  # which it was; the server has gone
    say(f"lock {quoted(options.name)} is {held}{waited}")


def _given_back(lease: holdfast.Lease, at_least_s: float, *, told: bool) -> bool:
    """Release it, or have it end after that time."""
    name = quoted(lease.name)
    if told or at_least_s <= _MOMENT_S:
        return _end(lease.release, f"lock {name} could not be released, and expires within its ttl", told=told)
    how = f"lock {name} may end up to {at_least_s:.1f} s before --at-least has passed"
    return _end(partial(lease.extend, at_least_s), how)  # it ends by itself, with no client there


def _end(end: Callable[[], object], otherwise: str, *, told: bool = False) -> bool:
    """Give a lease back; False when it was lost before, which is said unless it has been `told`."""
    try:
        end()
    except (holdfast.LeaseLost, holdfast.LeaseReleased) as error:
        if not told:
            say(f"{error}; that happened while the command ran")
        return False
    except holdfast.HoldfastError as error:
        say(f"{otherwise}: {error}")
    return True


# ---- elect ----


def main_of_elect(words: list[str]) -> int:
    before, command = split_command(words, "elect")
    parser = Parser(
        "elect", usage="holdfast elect [OPTIONS] NAME -- CMD …", description=_ELECT_DESCRIPTION, epilog=_ELECT_EPILOG
    )
    parser.add_argument("name", metavar="NAME", help="the election")
    how_long = "how long a leader that has died still counts as the leader (default: 30s)"
    parser.add_duration("--ttl", how_long, _TTL_S, TTL_MIN_S)
    add_server_options(parser)
    options = parser.parse_args(before)
    sys.argv = [f"holdfast elect {options.name} -- {os.path.basename(command[0])}"]
    with private_server(options) as environment:
        return _elect(options, command, environment)


def _elect(options: argparse.Namespace, argv: list[str], environment: dict[str, str]) -> int:
    signals = Signals()
    has_led = False
    pause_s = _PAUSE_S
    while True:
        try:
            status = _lead(options, argv, environment, signals)
        except holdfast.HoldfastError as error:
            if not has_led or exits.status_of(error) != exits.UNAVAILABLE:
                raise
            say(f"{exits.sentence(error)}; retrying in {pause_s:.0f} s")
            if signals.ending.wait(pause_s):
                return exits.SIGNALLED + signals.ended_by
            pause_s = min(pause_s * 2, _PAUSE_MOST_S)
            continue
        if status is not None:
            return status
        has_led, pause_s = True, _PAUSE_S


def _led_by(election: holdfast.Election) -> str:
    leader = election.leader()
    return ", which no one leads just now" if leader is None else f", led by {leader}"


def _lead(options: argparse.Namespace, argv: list[str], environment: dict[str, str], signals: Signals) -> int | None:
    """Lead once; returns the exit status, or None when the lead was lost."""
    with holdfast.connect(**client_options(options), ttl=options.ttl) as client:
        election = client.election(options.name)
        with Supervisor(argv, {**environment, "HOLDFAST_NAME": options.name}, signals) as supervisor:
            lease = acquired(
                lambda cancel: election.campaign(cancel=cancel),
                signals,
                lambda: _led_by(election),
                f"to lead {quoted(options.name)}",
            )
            status = supervisor.run(lease, options.ttl)
        # A loss was told already, or the command had ended by itself: then its status counts.
        _end(lease.release, f"could not resign; the lead expires within {options.ttl:g} s", told=True)
        if supervisor.ended_for is None or signals.ended_by:
            return status
    say(f"no longer the leader of {quoted(options.name)}; waiting to be elected again")
    return None
