"""A command that runs while a lease is held, and not a moment longer.

Laws: the command has gone before another client can hold the lock; while it runs, the signals that we get it gets.

Theory: a lease may be trusted up to its local deadline, which lies before the moment at which the server lets
go (it counts from before the request was sent, and allows for clocks of different speed). The command is told to end
(SIGTERM) `term_lead_s` before that deadline, and killed `kill_lead_s` before it. In normal life renewal moves the
deadline long before either. The kill is given to the guard as well, which does it even when we are stopped or dead.

What the leads are made of: a lease of T is renewed at T/3, and again every T/12 when that failed, so that at 3/4 of
T, when the command is told to end, it has been tried for 5/12 of T in vain. Then it has T/5 to clean up. The last T/20
(50 ms at the shortest T that is allowed, 1 s) is for the signal to be delivered, the processes to be taken
apart, and a machine that is slow to do so.
"""

from __future__ import annotations

import os
import signal
import threading
import time

import holdfast
from holdfast._runtime.clock import clock
from holdfast.cli import exits
from holdfast.cli.child import Command
from holdfast.cli.guard import Guard
from holdfast.cli.report import say
from holdfast.cli.signals import JOBS, PASSED_ON, Signals
from holdfast.cli.terminal import JOB_CONTROL, Terminal
from holdfast.errors import quoted

#: A command cannot be ended reliably in the time that a shorter lease leaves.
TTL_MIN_S = 1.0
#: Told to end when this part of the lease is left, but not more than the second (s): enough for any program.
_TERM_PART, _TERM_MOST_S = 1 / 4, 15.0
#: Killed when this part of the lease is left, but not more than the second (s): no machine is that slow.
_KILL_PART, _KILL_MOST_S = 1 / 20, 2.0
#: How often the deadline is looked at, as a part of the lease and in s: often enough that the guard hears of a renewal
#: (due after a third) long before it would act, and for a signal that the system gave to another thread.
_LOOK_PART, _LOOK_MOST_S = 1 / 8, 1.0
#: How long a lease that was broken waits for the end of its command, s: more than the holder is given.
_KILL_S = 1.0
#: How long the renewal that brings a lease to its ttl is waited for before the command begins, looking this often, s.
_STRETCH_MOST_S, _STRETCH_LOOK_S = 0.5, 0.005


class Supervisor:
    """One run of one command, at most. Made while there is one thread only, since it forks."""

    def __init__(self, argv: list[str], environment: dict[str, str], signals: Signals) -> None:
        self._command = Command(argv, environment)
        self._guard = Guard(self._command.group)
        self.signals = signals
        signals.catch(PASSED_ON)
        self._terminal = Terminal(self._command.group)
        #: Why the command was ended by us, or None.
        self.ended_for: str | None = None
        #: Whether the command was there, and could be executed.
        self.was_executed = False
        self._killed = False
        self._unguarded = False
        self._over = threading.Event()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        """End the command, where it has not ended, or was not run."""
        self._command.close()
        self._over.set()
        self._guard.dismiss()
        self._terminal.close()

    def run(
        self, lease: holdfast.Lease, span_s: float, *, max_hold_s: float | None = None, on_wanted: int | None = None
    ) -> int:
        """Run the command under the lease, to its end; returns its exit status as a shell would say it.

        `span_s` is how long the lease lasts without renewal. `max_hold_s`: when it ends in any case. `on_wanted`: the
        signal that the command gets when another client asks for the lease. `ended_for` says afterwards whether the
        command ended for our sake, `was_executed` whether it began.
        """
        self.prepare(lease, span_s, max_hold_s)
        lease.on_lost(self._lost)
        if on_wanted is not None:
            lease.on_wanted(self.signals.poke)
        command = self._command
        self._wait_for_the_ttl()
        self._tell_guard(clock(), lease.remaining())
        if self._terminal.interactive():
            self._terminal.give()
        self.signals.catch(JOBS)
        command.start(lease.fencing_token)
        while True:
            command.look()
            if command.status is not None:
                break
            self._stop_with_it()
            wait_s = self._look_after_lease()
            if on_wanted is not None and lease.wanted.is_set():
                by = lease.wanted.reason
                say(f"lock {quoted(lease.name)} is wanted by {by}; the command gets signal {on_wanted}")
                command.signal(on_wanted)
                on_wanted = None
            for number in self.signals.wait(wait_s):
                self._pass_on(number)
        if self.ended_for is not None:
            command.signal(signal.SIGKILL)  # what is left of its group
        why_not = command.why_not_executed()
        self.was_executed = why_not is None
        if why_not is not None:
            say(f"{command.name}: {why_not}")
        if self.ended_for is None and command.status == exits.SIGNALLED + signal.SIGKILL and lease.remaining() <= 0.0:
            # We were stopped ourselves, and the guard did it.
            self.ended_for = f"the lease is lost ({lease.lost.reason or 'expired'}); the command was killed"
            say(f"lock {quoted(lease.name)}: {self.ended_for}")
        return command.status

    def prepare(self, lease: holdfast.Lease, span_s: float, max_hold_s: float | None) -> None:
        """Set what follows from the lease that the command will run under."""
        self._lease = lease
        #: A deadline behind this is that of --max-hold. As every one is, where the lease needs no renewal until then.
        self._limited_from = float("inf")
        if max_hold_s is not None:
            self._limited_from = clock() + 0.95 * max_hold_s if span_s < max_hold_s else 0.0
        self._term_lead_s = min(span_s * _TERM_PART, _TERM_MOST_S)
        self._kill_lead_s = min(span_s * _KILL_PART, _KILL_MOST_S)
        self._look_s = min(span_s * _LOOK_PART, _LOOK_MOST_S)

    def _wait_for_the_ttl(self) -> None:
        """A lease that was handed over begins with less, in which a command would be told to end at once."""
        until = clock() + _STRETCH_MOST_S
        while self._term_lead_s >= self._lease.remaining() > 0.0 and clock() < until:
            time.sleep(_STRETCH_LOOK_S)

    def _lost(self, error: object) -> None:
        """In a thread of its own. A lease that was broken is not released before this returns."""
        self.signals.poke()
        self._over.wait(_KILL_S)

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        if number == signal.SIGCONT and self._terminal.interactive():
            self._terminal.give()
        self._command.signal(number)

    def _look_after_lease(self) -> float:
        """Do what the lease asks for now; returns when to look again, in s."""
        now = clock()
        left_s = self._lease.remaining()
        if left_s <= 0.0 or self._lease.lost.is_set():
            self._end(f"the lease is lost ({self._lease.lost.reason or 'expired'}); the command is killed", kill=True)
        elif left_s <= self._kill_lead_s and self.ended_for is not None:
            self._end("the command did not end in time; it is killed", kill=True)
        elif left_s <= self._term_lead_s and self.ended_for is None:
            limited = now + left_s > self._limited_from
            why = "--max-hold ends" if limited else "the lease could not be renewed, and ends"
            self._end(f"{why} in {left_s:.1f} s; the command is told to end", kill=False)
        self._tell_guard(now, left_s)
        until = left_s - (self._term_lead_s if self.ended_for is None else self._kill_lead_s)
        return min(max(until, 0.0), self._look_s) if not self._killed else self._look_s

    def _end(self, why: str, *, kill: bool) -> None:
        if kill and self._killed:
            return
        if kill:
            self._killed = True
            self._command.signal(signal.SIGKILL)
        else:
            self._command.signal(signal.SIGTERM)
            self._command.signal(signal.SIGCONT)  # one that is stopped would not see it
        self.ended_for = why
        say(f"lock {quoted(self._lease.name)}: {why}")

    def _tell_guard(self, now: float, left_s: float) -> None:
        is_told = self._guard.protect(now + left_s - self._kill_lead_s)
        if not (is_told or self._unguarded):
            self._unguarded = True
            say(f"lock {quoted(self._lease.name)}: the guard process was killed; the command continues without it")

    def _stop_with_it(self) -> None:
        """The command was stopped by the terminal: so that the shell sees it, we stop too, and go on together."""
        command, terminal = self._command, self._terminal
        if command.stopped_by not in JOB_CONTROL or not terminal.there:
            return
        wants_terminal = command.stopped_by != signal.SIGTSTP
        if not (wants_terminal and terminal.give()):
            own = os.getpgrp()
            if terminal.take_back():
                # Ctrl-Z went to the command's group alone; others in ours (a script that called us) must stop as well.
                os.killpg(own, signal.SIGTSTP)
                self.signals.wait(0.0)
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
            # Here we have been told to go on (or were not stopped, if there is no shell that could do that).
            self.signals.catch(JOBS)
            terminal.give()
        command.stopped_by = None
        command.signal(signal.SIGCONT)
