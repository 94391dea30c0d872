"""What is interrupted in tests of interruptions, and what has to be true afterwards: the threads' API."""

from __future__ import annotations

import contextlib
import dis
import functools
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any, NamedTuple

import redis

import holdfast
from testbed.servers import unique
from tests.support.bytecodes import Place

__all__ = ["OPERATIONS", "Bench", "Interrupted", "Operation", "Place", "block_ends", "excused", "name_for"]

#: What is ours must be gone from the server this long after an interruption, s: no one has to wait for a ttl.
PATIENCE_S = 15.0
#: Long beside that, so that no ttl does the work.
TTL_S = 60.0
#: What `name_for` makes: names begin with this.
_NAME = "intr"
_NAMES = re.compile(rf"{_NAME}-\d+-\d+-[0-9a-f]{{8}}")


class Interrupted(BaseException):
    """As KeyboardInterrupt, but of the test's own."""


class Bench:
    """One client under test, another one beside it, and a look at the server."""

    def __init__(self, url: str, **options: Any) -> None:
        self.redis = redis.Redis.from_url(url)
        self.locks = holdfast.connect(url, ttl=TTL_S, **options)
        self.other = holdfast.connect(url, ttl=TTL_S, **options)
        #: Leases that have reached the caller, who releases them.
        self.reached: list[Any] = []

    def close(self) -> None:
        self.locks.close()
        self.other.close()
        self.redis.close()

    def tidy_up(self) -> None:
        """The caller releases what it got."""
        while self.reached:
            with contextlib.suppress(holdfast.HoldfastError):
                self.reached.pop().release()

    def left(self, name: str) -> dict[str, Any]:
        """Return what is on the server of that name: holders, waiters, permits, readers."""
        return self._found(f"*{name}*")

    def _found(self, pattern: str) -> dict[str, Any]:
        left: dict[str, Any] = {}
        for key in sorted(str(key, "utf-8") for key in self.redis.scan_iter(pattern, count=10_000)):
            if key.endswith((":fence", ":gone", ":fenced", ":limit", ":barrier", ":latch", ":event", ":sem", ":done")):
                continue  # what it is, not who is at it
            if ":order:" in key:
                continue  # which request was the last one
            kind = str(self.redis.type(key), "utf-8")  # type: ignore[arg-type]
            if kind == "string":
                left[key] = self.redis.get(key)
            elif kind == "zset":
                left[key] = self.redis.zrange(key, 0, -1, withscores=True)
            elif kind == "hash":
                left[key] = self.redis.hgetall(key)
            else:
                left[key] = kind
        return left

    def left_of(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The names of `name_for` of which something is left, and what: one look at the server for all of them."""
        wanted, found = set(names), dict[str, dict[str, Any]]()
        for key, value in self._found(f"*{_NAME}-*").items():
            for name in wanted.intersection(_NAMES.findall(key)):
                found.setdefault(name, {})[key] = value
        return found

    def gone(self, name: str) -> dict[str, Any]:
        """Waits for it; returns what is left all the same."""
        return self.gone_of([name]).get(name, {})

    def gone_of(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Waits until nothing of them is left; returns those of which something is left all the same."""
        until = time.monotonic() + PATIENCE_S
        names = list(names)
        pause_s = 0.002
        while (left := self.left_of(names)) and time.monotonic() < until:
            time.sleep(pause_s)
            pause_s = min(0.1, 2 * pause_s)
        return left

    @contextlib.contextmanager
    def held_by_other(self, lock: Any, release_after: float | None = None) -> Iterator[None]:
        """Someone else holds it, and lets go in the end or after a while."""
        lease = lock.acquire(timeout=5)
        timer = None
        if release_after is not None:
            timer = threading.Timer(release_after, lease.release)
            timer.start()
        try:
            yield
        finally:
            if timer is not None:
                timer.join()
            else:
                lease.release()


class Operation(NamedTuple):
    """`act(bench, name)` is interrupted; `beside` is a context around it."""

    act: Callable[[Bench, str], None]
    beside: Callable[[Bench, str], contextlib.AbstractContextManager[None]] | None = None


def _with(make: Callable[[Bench, str], Any]) -> Callable[[Bench, str], None]:
    def act(bench: Bench, name: str) -> None:
        with make(bench, name):
            pass

    return act


def _acquire(make: Callable[[Bench, str], Any], **options: Any) -> Callable[[Bench, str], None]:
    def act(bench: Bench, name: str) -> None:
        lock = make(bench, name)
        with contextlib.suppress(holdfast.AcquireTimeout):
            lease = lock.acquire(**options)
            bench.reached.append(lease)
            lease.release()

    return act


def _try_acquire(make: Callable[[Bench, str], Any]) -> Callable[[Bench, str], None]:
    def act(bench: Bench, name: str) -> None:
        lease = make(bench, name).try_acquire()
        bench.reached.append(lease)
        lease.release()

    return act


def _lock(bench: Bench, name: str) -> Any:
    return bench.locks.lock(name)


def _kept(bench: Bench, name: str) -> Any:
    # Kept by the bench, as by a service: what is given back is not so because the lock object was thrown away.
    lock = bench.locks.lock(name)
    bench.__dict__.setdefault("kept", []).append(lock)
    return lock


def _reentrant(bench: Bench, name: str) -> Any:
    return bench.locks.lock(name, reentrant=True)


def _read(bench: Bench, name: str) -> Any:
    return bench.locks.rwlock(name).read()


def _write(bench: Bench, name: str) -> Any:
    return bench.locks.rwlock(name).write()


def _semaphore(bench: Bench, name: str) -> Any:
    return bench.locks.semaphore(name, permits=2)


def _multilock(bench: Bench, name: str) -> Any:
    return bench.locks.multilock(name, f"{name}-b")


def _election(bench: Bench, name: str) -> Any:
    return bench.locks.election(name)


def _with_lease(bench: Bench, name: str) -> None:
    with bench.locks.lock(name).acquire(timeout=5) as lease:
        lease.ensure_held()


def _twice(bench: Bench, name: str) -> None:
    lock = _reentrant(bench, name)
    with lock:
        with lock:
            pass


def _extend(bench: Bench, name: str) -> None:
    with bench.locks.lock(name) as lease:
        lease.extend(30)
        lease.extend(60)


def _upgrade(bench: Bench, name: str) -> None:
    with bench.locks.rwlock(name).read() as reader:
        writer = reader.upgrade(timeout=5)
        bench.reached.append(writer)
        writer.release()


def _upgrade_and_downgrade(bench: Bench, name: str) -> None:
    with bench.locks.rwlock(name).read() as reader:
        writer = reader.upgrade(timeout=5)
        bench.reached.append(writer)
        writer.downgrade()


def _downgrade(bench: Bench, name: str) -> None:
    writer = bench.locks.rwlock(name).write().acquire(timeout=5)
    bench.reached.append(writer)
    reader = writer.downgrade()
    bench.reached.append(reader)
    reader.release()


def _condition(bench: Bench, name: str) -> None:
    lock = bench.locks.lock(name)
    condition = bench.locks.condition(lock)
    with condition:
        condition.wait(0.01)


def _latch(bench: Bench, name: str) -> None:
    bench.locks.latch(name, 1).wait(0.01)


def _event(bench: Bench, name: str) -> None:
    bench.locks.event(name).wait(0.01)


def _barrier(bench: Bench, name: str) -> None:
    with contextlib.suppress(holdfast.BrokenBarrierError):
        bench.locks.barrier(name, 2).wait(0.01)


def _campaign(bench: Bench, name: str) -> None:
    election = bench.locks.election(name)
    bench.reached.append(_Campaign(election))
    election.campaign(5)
    election.resign()


class _Campaign:
    """The object knows whether it was elected, and is told to resign."""

    def __init__(self, election: Any) -> None:
        self.release = election.resign


def _elected(bench: Bench, name: str) -> None:
    bench.locks.election(name).run(lambda lease: None)


def _decorated(bench: Bench, name: str) -> None:
    @bench.locks.locked(name)
    def work() -> None:
        pass

    work()


def _decorated_or_skipped(bench: Bench, name: str) -> None:
    @bench.locks.locked(name, skip_if_held=True)
    def work() -> None:
        pass

    work()


def _once(bench: Bench, name: str) -> None:
    bench.locks.once(name, lambda lease: None)


def _busy(bench: Bench, name: str) -> contextlib.AbstractContextManager[None]:
    return bench.held_by_other(bench.other.lock(name))


def _handed_over(bench: Bench, name: str) -> contextlib.AbstractContextManager[None]:
    return bench.held_by_other(bench.other.lock(name), release_after=0.004)


def _all_permits(bench: Bench, name: str) -> contextlib.AbstractContextManager[None]:
    lock = bench.other.semaphore(name, permits=2)

    class _Both:
        def acquire(self, timeout: float) -> Any:
            return lock.acquire(timeout=timeout, permits=2)

    return bench.held_by_other(_Both(), release_after=0.004)


def _writer(bench: Bench, name: str) -> contextlib.AbstractContextManager[None]:
    return bench.held_by_other(bench.other.rwlock(name).write(), release_after=0.004)


def _unconfirmed(bench: Bench, name: str) -> None:
    """The second block asks behind the release of the first one."""
    lock = bench.locks.lock(name, confirm_release=False)
    for _ in range(2):
        with lock:
            pass


def _stays(bench: Bench, name: str) -> None:
    lock = bench.locks.lock(name, cache_for=0.2)
    if not bench.locks._session.driver.client.listening(lock._keys.lock):
        bench.locks._session.run(bench.locks._session.driver.lease_cache._listen(lock._keys.lock))
    with lock:
        pass
    with lock:
        pass
    lease = lock.acquire()
    bench.reached.append(lease)
    lease.release()


OPERATIONS: dict[str, Operation] = {
    "lock, releases not waited for": Operation(_unconfirmed),
    "lock, with": Operation(_with(_lock)),
    "lock that stays with its client": Operation(_stays),
    "lock that is kept, with": Operation(_with(_kept)),
    "lock, acquire and release": Operation(_acquire(_lock)),
    "lock, acquire with a timeout": Operation(_acquire(_lock, timeout=5)),
    "lock, try_acquire": Operation(_try_acquire(_lock)),
    "lock, with lease": Operation(_with_lease),
    "lock, extend": Operation(_extend),
    "reentrant lock, with": Operation(_twice),
    "lock that is busy": Operation(_acquire(_lock, timeout=0.01), _busy),
    "lock handed over": Operation(_acquire(_lock, timeout=5), _handed_over),
    "lock handed over, with": Operation(_with(_lock), _handed_over),
    "reader": Operation(_with(_read)),
    "reader after a writer": Operation(_with(_read), _writer),
    "writer": Operation(_with(_write)),
    "upgrade": Operation(_upgrade),
    "upgrade and downgrade": Operation(_upgrade_and_downgrade),
    "downgrade": Operation(_downgrade),
    "semaphore": Operation(_with(_semaphore)),
    "semaphore, acquire": Operation(_acquire(_semaphore, permits=2, timeout=5)),
    "semaphore after others": Operation(_with(_semaphore), _all_permits),
    "multilock": Operation(_with(_multilock)),
    "multilock, acquire": Operation(_acquire(_multilock, timeout=5)),
    "election, with": Operation(_with(_election)),
    "election, campaign": Operation(_campaign),
    "election, run": Operation(_elected),
    "condition, wait": Operation(_condition),
    "latch, wait": Operation(_latch),
    "event, wait": Operation(_event),
    "barrier, wait": Operation(_barrier),
    "locked": Operation(_decorated),
    "locked, skipping": Operation(_decorated_or_skipped),
    "once": Operation(_once),
}


def name_for(operation: str) -> str:
    """A name that is no one else's."""
    return unique(_NAME)


@functools.cache
def block_ends(code: CodeType) -> frozenset[int]:
    """Find where the code leaves `with` blocks: from the end of the body up to the call of `__exit__`.

    CPython looks for signals when a function begins, when a loop goes back, and after a call into C has returned. So no
    signal handler runs in these few bytecodes, and a lock of C, whose `__exit__` is C too, cannot stay locked.
    """
    found: set[int] = set()
    instructions = list(dis.get_instructions(code))
    for at in range(len(instructions) - 4):
        loads, rest = instructions[at : at + 3], instructions[at + 3 : at + 5]
        if any(one.opname != "LOAD_CONST" or one.argval is not None for one in loads):
            continue
        calls = [one for one in rest if one.opname in ("PRECALL", "CALL")]
        if rest[0].opname in ("PRECALL", "CALL") and rest[0].arg == 2:
            before = [one for one in instructions[at - 1 : at] if one.opname == "SWAP"]  # of what it returns
            found.update(one.offset for one in (*before, *loads, *calls))
    return frozenset(found)


#: Functions between whose last step and the caller's next one CPython looks for no signal: a count is raised, or a kept
#: lease was taken, and the lease returned. An exception there would leave the count too high, or the lease in a frame.
_COUNTS_AND_RETURNS = frozenset({"Acquirable._acquire"})


#: Here what a Python function returns, a lease, is the argument of a function in C, and CPython looks for signals
#: behind the latter only. What a trace function raises in between drops the lease, which may be taken for received.
_PASSES_ON = "Enterable.__enter__"


@functools.cache
def _passed_on(code: CodeType) -> frozenset[int]:
    """The first call whose argument another call has just made, and whose result is not wanted."""
    every = list(dis.get_instructions(code))
    calls = [one for one in every if one.opname != "PRECALL"]
    call = next(
        second.offset
        for first, second, then in zip(calls, calls[1:], calls[2:], strict=False)
        if (first.opname, second.opname, then.opname) == ("CALL", "CALL", "POP_TOP")
    )
    return frozenset({call}.union(one.offset for one in every if one.opname == "PRECALL" and one.offset == call - 4))


def excused(place: Place) -> bool:
    """True if no signal handler can raise there, though a trace function can."""
    code, offset, _ = place
    if offset in block_ends(code) or (code.co_qualname == _PASSES_ON and offset in _passed_on(code)):
        return True
    return code.co_qualname in _COUNTS_AND_RETURNS and offset in _straight_returns(code)


@functools.cache
def _straight_returns(code: CodeType) -> frozenset[int]:
    """From the count, or from the lease that a function of Python has returned, up to the return behind it.

    No call, and no jump back.
    """
    instructions = list(dis.get_instructions(code))
    found: set[int] = set()
    for at, one in enumerate(instructions[:-1]):
        counts = one.opname == "SWAP" and instructions[at + 1].argval == "_entries"
        if counts or (one.opname == "STORE_FAST" and one.argval == "lease" and instructions[at - 1].opname == "CALL"):
            for after in instructions[at:]:
                found.add(after.offset)
                if after.opname.startswith("RETURN"):
                    break
    return frozenset(found)
