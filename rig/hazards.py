"""Faults of the process, from inside: signals, the collector, and the limits of threads and descriptors."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import resource
import signal
import threading
import time
from typing import Any

from rig.state import NO_THREAD, Interrupted, LifeState, excused

__all__ = ["FAULTS", "Hazards"]

#: What can happen to a life, by API. "stops" comes from outside; "gevent" has no signals and no forks.
FAULTS: dict[str, tuple[str, ...]] = {
    "threads": (
        *("exception", "handler", "tick", "stops", "fork", "collector"),
        *("threads", "descriptors", "outlived", "close", "cycles"),
    ),
    "asyncio": ("handler", "tick", "stops", "fork", "collector", "descriptors", "outlived", "close", "cycles"),
    "gevent": ("collector", "close", "cycles"),
}


class Hazards:
    """Those of one life; begins and ends in the main thread."""

    def __init__(self, life: LifeState, faults: frozenset[str]) -> None:
        self._life = life
        self._faults = faults
        self._random = random.Random(f"{life.seed}-hazards")
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._threshold = gc.get_threshold()
        self._fillers: list[int] = []
        self._pid = os.getpid()
        self._threads_fail = False
        self._next_s = 0.0
        self._on = False
        self._ended = False

    def begin(self) -> None:
        """From now on."""
        if "collector" in self._faults:
            gc.set_threshold(1)
            self._life.played["gc.set_threshold(1)"] += 1
        if "threads" in self._faults:
            self._patch_threads()
        if self._faults & {"exception", "handler", "tick"}:
            signal.signal(signal.SIGALRM, self._alarm)
            self._arm()
        if self._faults & {"threads", "descriptors"}:
            self._life.watch.each(self._limit)

    def end(self) -> None:
        """All is well again."""
        self._ended = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGALRM, lambda *_: None)  # of one that is still pending Python would complain
        gc.set_threshold(*self._threshold)
        self._threads_fail = False
        if threading.current_thread() is threading.main_thread() and os.getpid() == self._pid:
            time.sleep(0.1)  # a look at the limits that is under way in the watch's thread ends
        self._free(*self._limits)

    def lift(self) -> None:
        """The limits, from any thread."""
        self._ended = True
        self._threads_fail = False
        self._free(*self._limits)

    # ---- signals ----

    def _arm(self) -> None:
        if self._ended:
            return
        if "tick" in self._faults:
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        else:
            signal.setitimer(signal.ITIMER_REAL, min(0.2, self._random.expovariate(1 / 0.012)) + 1e-4)

    def _alarm(self, *_: Any) -> None:
        life = self._life
        if "tick" in self._faults:
            life.played["a timer's signal every 10 ms"] += 1
            if self._random.random() < 0.8:
                return
        if self._ended:
            return
        armed, life.armed = life.armed, False
        if "handler" in self._faults and self._random.random() < 0.5:
            life.watch.begin("handler", "a signal's handler", life.bound_s)
            try:
                self._use_the_library()
            except life.errors:
                pass
            except (RuntimeError, OSError) as error:
                if not excused(error):
                    raise
            finally:
                life.watch.end("handler")
            life.armed = armed
            self._arm()
            return
        self._arm()
        if armed and "exception" in self._faults:
            life.played["an exception at a random bytecode"] += 1
            raise Interrupted
        life.armed = armed

    def _use_the_library(self) -> None:
        life = self._life
        choice = self._random.choice((0, 0, 1, 2, 3, 4))
        if choice == 0 and life.cancels:
            life.played["Cancel.set() in a handler"] += 1
            life.cancels[-1].set()
        elif choice == 1 and life.spare_leases:
            lease = life.spare_leases.popleft()
            if life.blocking:
                life.played["release() in a handler"] += 1
                lease.release()
            else:
                life.call_soon(lease.release)
        elif choice == 2 and life.spare_clients:
            client, _ = life.spare_clients.popleft()
            if life.blocking:
                life.played["close() in a handler"] += 1
                client.close()
            else:
                life.call_soon(client.close)
        elif choice == 3 and life.blocking:
            life.played["try_acquire() in a handler"] += 1
            lease = life.clients[0].client.lock(f"own-{life.name}-handler", ttl=60).try_acquire()
            if lease is not None:
                lease.release()
        elif life.spare_leases:
            life.played["lost.is_set() in a handler"] += 1
            lease = life.spare_leases[0]
            lease.lost.is_set()
            repr(lease)

    # ---- limits ----

    def _patch_threads(self) -> None:
        """Refuse new threads at random, as in a container with a limit of processes."""
        name = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
        start = getattr(threading, name)

        def perhaps(*args: Any, **options: Any) -> Any:
            if self._threads_fail and self._random.random() < 0.5:
                self._life.played["a thread that cannot be started"] += 1
                raise RuntimeError(NO_THREAD)
            return start(*args, **options)

        setattr(threading, name, perhaps)

    def _limit(self, now_s: float) -> None:
        """Turn limits on for a moment, and off for a while. Called in the watch's thread."""
        if now_s < self._next_s or self._ended:
            return
        self._on = not self._on
        self._next_s = now_s + (self._random.uniform(0.05, 0.25) if self._on else self._random.uniform(0.1, 0.5))
        self._threads_fail = self._on and "threads" in self._faults
        if "descriptors" in self._faults:
            soft, hard = self._limits
            if self._on:
                self._life.played["no descriptor left"] += 1
                highest = max(map(int, os.listdir("/proc/self/fd")))
                resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
                with contextlib.suppress(OSError):
                    while True:
                        self._fillers.append(os.dup(2))
                if self._fillers and self._random.random() < 0.3:
                    os.close(self._fillers.pop())  # one is left
            else:
                self._free(soft, hard)

    def _free(self, soft: int, hard: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        while self._fillers:
            os.close(self._fillers.pop())
