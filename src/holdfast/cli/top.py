"""`holdfast top`: the locks that matter most now, live.

Laws: the terminal is left as it was found, however we end (Ctrl-C, Ctrl-Z, SIGTERM, a mistake of ours); a server that
is slow or gone holds up no key.

Theory: threads of their own look at the locks and read keys, and poke the main one, which alone draws. What is drawn
is a whole screen from its upper left corner, each line to its end, so that nothing flickers and a resize needs
no more than another drawing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any, TypeAlias

import holdfast
from holdfast.cli import exits
from holdfast.cli.options import INTERVAL_LEAST_S, Parser, add_report_options
from holdfast.cli.report import clean, emit_json
from holdfast.cli.signals import JOBS, Signals
from holdfast.cli.table import NOTHING, connected, facts_of, fitted, hold_s, row, sums, table, width_of_output
from holdfast.web.rates import Rate, Rates
from holdfast.web.view import id_of

_EPILOG = """\
examples:
  holdfast top
  holdfast top 'orders:*' --sort hold
  holdfast top --once --json

Keys: w h r sort by waiters, hold time, rate; q ends. Without a terminal it prints one table. The rate is that of grants
in the last ten seconds, which the server counts meanwhile. ">" means at least: it is not counted (yet).

exit status: 0 when the server answered; 64 usage  69 server not available  77 access refused"""

_HEADS = ("KIND", "NAME", "HELD BY", "FOR", "LEFT", "WAITERS", "OLDEST")
_KEYS = {"w": "waiters", "h": "hold", "r": "rate"}
_SORTS = tuple(_KEYS.values())
#: Between two drawings, at most, s.
_DRAWN_S = 1.0

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # another screen, no cursor, no wrapping
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"


#: One line: a lock, and how often it is granted.
Top: TypeAlias = tuple[holdfast.Listed, Rate]


def main(words: list[str]) -> int:
    parser = Parser("top", description="The locks with most waiters, longest held or busiest, live.", epilog=_EPILOG)
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", default="*", help="which names (default: all)")
    parser.add_argument("--sort", choices=_SORTS, default="waiters", help="sort by this (default: waiters)")
    parser.add_duration("--interval", "how often to look (default: 1s)", 1.0, INTERVAL_LEAST_S)
    parser.add_argument("--once", action="store_true", help="print one table, and end")
    add_report_options(parser, "print JSON: a line for each look")
    options = parser.parse_args(words)
    with connected(options, "top") as client:
        looks = _Looks(client, options.pattern)
        if options.json:
            _report(looks, options)
        elif options.once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            tops = _sorted(looks.look(), options.sort)
            sys.stdout.write("\n".join([*_table(tops, width_of_output()), "", _sums(tops)]) + "\n")
        else:
            return _Screen(looks, options).run()
    return exits.OK


class _Looks:
    """Looks at all locks, and remembers from one to the next how often each was granted."""

    def __init__(self, client: holdfast.Client, pattern: str) -> None:
        self._client = client
        self._pattern = pattern
        self._before: dict[str, holdfast.Listed] | None = None
        self._rates = Rates()

    def look(self) -> list[Top]:
        found: dict[str, holdfast.Listed] = {
            id_of(each): each for each in self._client.list(self._pattern, grants=True)
        }
        for which, each in found.items():
            seen = 0 if self._before is None else holdfast.Change.grants(self._before.get(which), each)
            self._rates.saw(which, each, seen)
        if found:
            self._rates.forget(max(each.seen_at for each in found.values()).timestamp())
        self._before = found
        return [(each, self._rates.of(which)) for which, each in found.items()]


def _sorted(tops: list[Top], by: str) -> list[Top]:
    def key(top: Top) -> tuple[Any, ...]:
        found, rate = top
        held_s = hold_s(found) or 0.0
        first = {"waiters": found.waiters, "hold": held_s, "rate": rate.per_s}[by]
        return (-first, -found.waiters, -held_s, found.name, found.kind)

    return sorted(tops, key=key)


def _table(tops: list[Top], width: int | None) -> list[str]:
    if not tops:
        return [NOTHING]
    rates = [f"{'>' if rate.at_least else ''}{rate.per_s:.1f}/s" if rate.per_s else "-" for _, rate in tops]
    rows = [(*row(found, _HEADS), rate) for (found, _), rate in zip(tops, rates, strict=True)]
    return table([(*_HEADS, "RATE"), *rows], width, cut=(2, 1))


def _sums(tops: list[Top]) -> str:
    return sums([found for found, _ in tops])


def _report(looks: _Looks, options: argparse.Namespace) -> None:
    while True:
        tops = _sorted(looks.look(), options.sort)
        emit_json("top", {"pattern": options.pattern, "locks": [_fact(*top) for top in tops]})
        if options.once:
            return
        time.sleep(options.interval)


def _fact(found: holdfast.Listed, rate: Rate) -> dict[str, Any]:
    return {**facts_of(found), "takeovers_per_s": round(rate.per_s, 3), "at_least": rate.at_least}


class _Screen:
    """The terminal, while it is ours."""

    def __init__(self, looks: _Looks, options: argparse.Namespace) -> None:
        self._looks = looks
        self._options = options
        self._tops: list[Top] | None = None
        self._error: BaseException | None = None
        self._signals = Signals()
        self._ended = threading.Event()

    def run(self) -> int:
        import termios
        import tty

        self._signals.catch((*JOBS, signal.SIGWINCH))
        before = termios.tcgetattr(0)
        try:
            tty.setcbreak(0)
            _write(_ENTER)
            for work in (self._look, self._read_keys):
                threading.Thread(target=work, name="holdfast-top", daemon=True).start()
            while not self._ended.is_set():
                self._draw()
                if signal.SIGTSTP in self._signals.wait(_DRAWN_S):
                    _write(_LEAVE)
                    termios.tcsetattr(0, termios.TCSADRAIN, before)
                    os.kill(os.getpid(), signal.SIGSTOP)
                    tty.setcbreak(0)
                    _write(_ENTER)
                if self._signals.ended_by:
                    return exits.SIGNALLED + self._signals.ended_by
            return exits.OK
        finally:
            self._ended.set()
            _write(_LEAVE)
            with suppress(termios.error):
                termios.tcsetattr(0, termios.TCSADRAIN, before)

    def _look(self) -> None:
        while not self._ended.is_set():
            try:
                self._tops = self._looks.look()
                self._error = None
            except Exception as error:
                self._error = error
            self._signals.poke()
            self._ended.wait(self._options.interval)

    def _read_keys(self) -> None:
        while not self._ended.is_set():
            try:
                key = os.read(0, 64).decode("latin-1").lower()  # several of an arrow
            except OSError:
                key = ""  # it has hung up
            if key in ("q", ""):
                self._ended.set()
            self._options.sort = _KEYS.get(key, self._options.sort)
            self._signals.poke()

    def _draw(self) -> None:
        size = shutil.get_terminal_size()
        lines = [f"holdfast top  {time.strftime('%H:%M:%S')}  by {self._options.sort}  {clean(self._options.pattern)}"]
        tops = self._tops
        if self._error is not None:
            lines[0] += f"   ! {clean(exits.sentence(self._error))}"
        if tops is None:
            lines.append("" if self._error else "looking …")
        else:
            shown = _sorted(tops, self._options.sort)[: max(1, size.lines - 4)]
            lines += ["", *_table(shown, size.columns)]
            lines += [""] * (size.lines - 1 - len(lines))
            lines[size.lines - 1 :] = [f"{_sums(tops)}   w waiters  h hold  r rate  q quit"]
        _write("\x1b[H" + "\n".join(fitted(line, size.columns) for line in lines[: size.lines]) + "\x1b[J")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
