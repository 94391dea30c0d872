"""The processes and threads that play the clients, and the process that forks them.

A client obeys lines of JSON on a socket pair and reports what happens to it, stamped in its own process. The
forking process (`main`) has everything imported, so that a new client costs
milliseconds; it does not reap a child before it is told to, so that a pid means the same process until then. When
its socket closes, for whatever reason, it kills all that it made.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from holdfast_lab.handle import Handle, Setup
from holdfast_lab.handles import ENTRIES, WatchHandle, entry_for_factory
from holdfast_lab.schemes import Interrupted, Skipped

__all__ = ["Client", "main", "serve_forks"]

_PAUSE_S = 0.05
_TICK_S = 0.02
#: A process that could not run for this long loses a renewal, or takes an answer for late, s.
_BEAT_S, _STALL_S = 0.05, 0.4
#: How long a lock may take to be acquired for the first time, with no contention: one of the lab, which is known to
#: work, on a busy machine; and a user's, after that many attempts.
_WARM_UP_S = 20.0
_OWN_WARM_UP_S, _OWN_TRIES = 4.0, 5


class _Stop(BaseException):
    """The director wants no more attempts."""


class _Gone(BaseException):
    """The director has closed the channel."""


class _End(SystemExit):
    """Ends a thread; an event loop lets it through, too."""


class _Gate:
    """Stops one thread, or ends it, at its next call or return: its profile function (`sys.setprofile`).

    A thread that waits in a system call stands still from the moment the gate is closed: it does nothing before the
    call returns, and nothing after that.
    """

    def __init__(self) -> None:
        self._goes = threading.Event()
        self._goes.set()
        self._ends = False

    def stop(self) -> None:
        self._goes.clear()

    def go(self) -> None:
        self._goes.set()

    def end(self) -> None:
        self._ends = True
        self._goes.set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self._goes.is_set():
            self._goes.wait()
        if self._ends:
            raise _End


class _Heart:
    """Beats in a thread of its own, and notes when the machine, or a stop, kept this process from running."""

    def __init__(self) -> None:
        #: From when to when, ns.
        self.stalls: list[tuple[int, int]] = []

    def start(self) -> None:
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while True:
            before_ns = time.monotonic_ns()
            time.sleep(_BEAT_S)
            if time.monotonic_ns() - before_ns > (_BEAT_S + _STALL_S) * 1e9:
                self.stalls.append((before_ns, time.monotonic_ns()))


_HEART = _Heart()


class Client:
    """One client: its lock, its commands, its reports.

    Args:
        channel: to the director.
        kept: takes what a thread leaves to the others of its process.
    """

    def __init__(self, channel: socket.socket, kept: list[object]) -> None:
        self._channel = channel
        self._kept = kept
        self._buffer = b""
        self._lines: list[dict[str, Any]] = []
        self._handle: Handle | None = None
        self._inside = False
        self._holding = False
        self._valid_until_ns: int | None = None
        self._base: int | None = None
        self._quiet = False
        self._interrupted = False
        self._waits = False
        #: It has just looked at its lease, and goes by that in what it does next.
        self._looked = False
        #: What its check failed with, as far as it has been reported.
        self._check_failed = ""
        self._stalls_told = 0

    def run(self) -> None:
        """Obey until the other side closes."""
        while True:
            order = self._next(_TICK_S)
            if self._stalls_told < len(_HEART.stalls):
                self._send({"stalled": _HEART.stalls[self._stalls_told]})
                self._stalls_told += 1
            if not self._looked:
                self._notice_loss()
            if order is not None:
                self._looked = False
                self._obey(order)

    # ---- talking to the director ----

    def _report(self, kind: str, **data: Any) -> None:
        if not self._quiet:
            self._send({"kind": kind, "at_ns": time.monotonic_ns(), **data})

    def _send(self, message: dict[str, Any]) -> None:
        self._channel.sendall(json.dumps(message).encode() + b"\n")

    def _next(self, timeout_s: float | None) -> dict[str, Any] | None:
        """The next order, or None after the time."""
        while not self._lines:
            if self._handle is not None:
                readable = self._handle.wait_readable(self._channel, timeout_s)
            else:
                readable = bool(select.select([self._channel], [], [], timeout_s)[0])
            if not readable:
                return None
            data = self._channel.recv(65536)
            if not data:
                raise _Gone
            *whole, self._buffer = (self._buffer + data).split(b"\n")
            self._lines.extend(json.loads(line) for line in whole)
        return self._lines.pop(0)

    def _ask(self, question: str, **data: Any) -> dict[str, Any]:
        """Something of the shared resource; the director answers at once, other orders wait."""
        self._send({"ask": question, **data})
        waiting: list[dict[str, Any]] = []
        while True:
            answer = self._next(None)
            assert answer is not None
            if "answer" in answer:
                self._lines[:0] = waiting
                return answer
            waiting.append(answer)

    # ---- orders ----

    def _obey(self, order: dict[str, Any]) -> None:
        orders: dict[str, Callable[[dict[str, Any]], None]] = {
            "set up": self._set_up,
            "warm up": self._warm_up,
            "hold others": self._hold_others,
            "acquire": self._acquire,
            "read": self._read,
            "write": self._write,
            "look": self._look,
            "leave": self._leave,
            "release": self._release,
            "interrupt": self._note_interrupt,
            "stop": lambda _: None,
        }
        orders[order["do"]](order)
        if "reply" in order:
            self._send({"done": order["reply"]})

    def _set_up(self, order: dict[str, Any]) -> None:
        for folder in order.get("path", ()):
            if folder not in sys.path:
                sys.path.insert(0, folder)
        if order["clock_offset_s"]:
            _shift_wall_clock(order["clock_offset_s"])
        entry = ENTRIES.get(order["scheme"]) or entry_for_factory(order["scheme"])
        self._make, self._is_own = entry.make, entry.own
        self._restart_delay_s = order["restart_delay_s"]
        self._addresses = [(host, port) for host, port in order["addresses"]]
        self._password: str = order["password"]
        try:
            self._handle = self._make(self._of(order["name"], order["ttl_ms"]))
            self._kept.append(self._handle.shared)
        except Exception as error:
            self._send({"broken": f"{type(error).__name__}: {error}"})

    def _of(self, name: str, ttl_ms: int) -> Setup:
        return Setup(
            name,
            ttl_ms,
            self._addresses,
            self._interrupt,
            self._restart_delay_s,
            self._password,
        )

    def _warm_up(self, order: dict[str, Any]) -> None:
        """Acquire and release another lock: connections open, scripts load, and a lock that never works shows."""
        if self._handle is None:
            return
        self._quiet = True
        try:
            handle = self._make(self._of(order["name"], 30_000))
            deadline = time.monotonic() + (_OWN_WARM_UP_S if self._is_own else _WARM_UP_S)
            tries = _OWN_TRIES if self._is_own else 1
            while not self._warm_try(handle, deadline, is_last=tries <= 1):
                handle.sleep(_PAUSE_S)
                tries -= 1
            if isinstance(handle, WatchHandle):
                handle.commit()
            else:
                handle.release()
            handle.close()
        except Exception as error:
            self._send({"broken": f"{type(error).__name__}: {error}"})
        finally:
            self._quiet = False

    def _hold_others(self, order: dict[str, Any]) -> None:
        """Acquire locks of other names, all at once."""
        held, why = 0, ""
        for number in range(order["count"]):
            try:
                handle = self._make(self._of(f"other {number}", order["ttl_ms"]))
                self._kept.append(handle)
                for _ in range(_OWN_TRIES):
                    if handle.try_acquire():
                        held += 1
                        break
                    handle.sleep(_PAUSE_S)
            except Exception as error:
                why = f" ({type(error).__name__}: {error})"
        self._report("others", held=held, wanted=order["count"], why=why)

    @staticmethod
    def _warm_try(handle: Handle, deadline: float, is_last: bool) -> bool:
        """One attempt; errors count as "no" (a server may still be too young) until time and attempts are used up."""
        try:
            got = handle.try_acquire()
        except Exception:
            if is_last and time.monotonic() > deadline:
                raise
            return False
        if not got and is_last and time.monotonic() > deadline:
            raise TimeoutError("could not be acquired without any fault")
        return got

    def _interrupt(self) -> None:
        """Before every pause of a scheme: may end it. Within one call that waits, an attempt has come to nothing."""
        if self._waits:
            self._report("refused")
        self._end_if_told()

    def _end_if_told(self) -> None:
        if self._wants_stop():
            raise _Stop

    def _wants_stop(self) -> bool:
        """True if "stop" has come; other orders stay in their place."""
        order = self._next(0)
        if order is None:
            return False
        if order["do"] == "stop":
            return True
        if order["do"] == "interrupt":
            self._note_interrupt(order)
            return self._wants_stop()
        self._lines.insert(0, order)
        return False

    def _note_interrupt(self, order: dict[str, Any]) -> None:
        self._interrupted = True

    def _is_interrupted(self) -> bool:
        self._end_if_told()
        return self._interrupted

    def _wait(self, handle: Handle, how: str) -> bool:
        """Wait as the listing does; True when its call has come back."""
        self._waits = True
        try:
            handle.wait(self._is_interrupted if how == "interruptibly" else None)
        finally:
            self._waits = False
        return True

    def _acquire(self, order: dict[str, Any]) -> None:
        handle = self._handle
        assert handle is not None
        self._report("asks", ttl_ms=order["ttl_ms"])
        how = order.get("waits", "")
        try:
            while True:
                self._end_if_told()
                try:
                    got = self._wait(handle, how) if how else handle.try_acquire()
                except Skipped:
                    self._report("skipped")
                    return
                except Interrupted:
                    raise _Stop from None
                except Exception as error:
                    self._report("failed", doing="acquire", error=f"{type(error).__name__}: {error}")
                    got = False
                    if order.get("once"):
                        return
                else:
                    if not got:
                        self._report("refused")
                        if order.get("once"):
                            return
                if got:
                    break
                handle.sleep(handle.pause_s)
        except _Stop:
            self._report("gave up")
            return
        self._valid_until_ns = handle.valid_until_ns()
        self._inside = self._holding = True
        more: dict[str, Any] = {}
        if handle.fence() is not None:
            more["fence"] = handle.fence()
        if self._valid_until_ns is not None:
            more["valid_until_ns"] = self._valid_until_ns
        self._report("acquired", **more)
        self._report("entered")
        if isinstance(handle, WatchHandle):
            self._report("read", value=handle.base)

    def _notice_loss(self) -> None:
        handle = self._handle
        if not self._inside or handle is None:
            return
        try:
            lost = handle.is_lost()
        except Exception as error:
            # Neither yes nor no: the client goes on, as one without a check would.
            lost, said = False, f"{type(error).__name__}: {error}"
            if said != self._check_failed:
                self._check_failed = said
                self._report("check failed", error=said)
        if lost:
            self._inside = False
            since_ns = self._valid_until_ns
            self._report("lost", **({} if since_ns is None else {"since_ns": since_ns}))
        else:
            self._valid_until_ns = handle.valid_until_ns()

    def _read(self, order: dict[str, Any]) -> None:
        if self._inside and not isinstance(self._handle, WatchHandle):
            self._base = self._ask("read")["answer"]

    def _write(self, order: dict[str, Any]) -> None:
        if not self._inside or isinstance(self._handle, WatchHandle) or self._base is None:
            return
        assert self._handle is not None
        base, self._base = self._base, None
        self._ask("write", base=base, value=base + 1, fence=self._handle.fence())

    def _look(self, order: dict[str, Any]) -> None:
        self._looked = True
        if self._inside:
            self._report("looked")

    def _leave(self, order: dict[str, Any]) -> None:
        if self._inside:
            self._inside = False
            self._report("left")

    def _release(self, order: dict[str, Any]) -> None:
        handle = self._handle
        if handle is None or not (self._holding or order.get("unheld")):
            return
        self._holding = False
        self._report("releases")
        try:
            if isinstance(handle, WatchHandle):
                self._commit(handle)
            else:
                handle.release()
        except Exception as error:
            self._report("failed", doing="release", error=f"{type(error).__name__}: {error}")
        else:
            self._report("released")

    def _commit(self, handle: WatchHandle) -> None:
        while not handle.commit():
            self._report("conflict", base=handle.base)
            time.sleep(_PAUSE_S)
            handle.try_acquire()
            self._report("read", value=handle.base)
        self._report("wrote", base=handle.base, value=handle.base + 1, accepted=True)


def _shift_wall_clock(offset_s: float) -> None:
    """This process's `time.time` runs ahead; locks of libraries see it as well."""
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + offset_s
    time.time_ns = lambda: real_ns() + int(offset_s * 1e9)


def serve_forks(control: socket.socket) -> NoReturn:
    """Fork a client for every message with a descriptor; reap and end when told to."""
    children: set[int] = set()
    try:
        while True:
            message, fds, _, _ = socket.recv_fds(control, 64, 1)
            if not message:
                break
            if fds:
                pid = os.fork()
                if pid == 0:
                    control.close()
                    (_become_host if message == b"host" else _become_client)(fds[0])
                os.close(fds[0])
                children.add(pid)
                control.sendall(pid.to_bytes(8, "big"))
            else:
                pid = int.from_bytes(message, "big")
                if pid in children:
                    children.discard(pid)
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                control.sendall(pid.to_bytes(8, "big"))
    except (OSError, KeyboardInterrupt):
        pass
    for pid in children:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    os._exit(0)


#: What a client ends through without a word.
_QUIET = (_Gone, _End, BrokenPipeError, ConnectionResetError, KeyboardInterrupt)


def _become_client(fd: int) -> NoReturn:
    _HEART.start()
    try:
        Client(socket.socket(fileno=fd), []).run()
    except _QUIET:
        pass
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def _become_host(fd: int) -> NoReturn:
    """Run clients as threads, and obey what the director says of each."""
    _HEART.start()
    control = socket.socket(fileno=fd)
    gates: dict[str, _Gate] = {}
    kept: list[object] = []
    while True:
        message, fds, _, _ = socket.recv_fds(control, 64, 1)
        if not message:
            os._exit(0)
        what, name = message.decode().split(" ", 1)
        if what == "start":
            gates[name] = _Gate()
            channel = socket.socket(fileno=fds[0])
            threading.Thread(target=_run_thread, args=(channel, gates[name], kept), name=name, daemon=True).start()
        else:
            getattr(gates[name], what)()
        control.sendall(b".")


def _run_thread(channel: socket.socket, gate: _Gate, kept: list[object]) -> None:
    with channel:
        sys.setprofile(gate)
        try:
            Client(channel, kept).run()
        except _QUIET:
            pass
        except BaseException:
            sys.setprofile(None)
            traceback.print_exc()
        finally:
            sys.setprofile(None)


def _preload() -> None:
    """Import what clients will need, once for all of them. Libraries' warnings are no output of the lab."""
    logging.getLogger().addHandler(logging.NullHandler())
    for module in ("redis", "redis.lock", "redis_lock", "holdfast.asyncio", "encodings.idna"):
        with contextlib.suppress(ImportError):
            __import__(module)


def main() -> NoReturn:
    """Fork clients until the socket, whose descriptor is the only argument, closes."""
    _preload()
    serve_forks(socket.socket(fileno=int(sys.argv[1])))
