"""As `test_interrupted_threads`, for asyncio: an exception at any bytecode between a grant and its caller."""

from __future__ import annotations

import asyncio
import contextlib
import dis
import functools
import gc
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import pytest

import holdfast.asyncio
from holdfast import embedded
from holdfast._engine import loop
from holdfast._front.home import Body, Home
from testbed.waiting import PATIENCE_S
from tests.process.interruptions import Bench, Interrupted, Place, excused, name_for
from tests.support.bytecodes import signals_come

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning"
)

#: Where it is ours to clean up.
_WHERE = (
    *("Acquirable._acquire", "AcquirableBase._start", "AcquirableBase._go_on", "AcquirableBase._granted"),
    *("AcquirableBase._held_by", "Lease.release"),
    *("Enterable.__aenter__", "Enterable._leave", "Lease._leave", "Lease._exit"),
    *("Lease.__aenter__", "Lease._begin_body", "Lease._end_body", "Leaving.__get__", "Leaving._exit", "_begin"),
    *("opening", "LeaseStack.take", "LeaseStack.forget"),
)
#: The same for what is made of several steps.
_WHERE_OF: dict[str, tuple[str, ...]] = {
    "upgrade": ("ReadLease.upgrade", "_Upgrade._granted"),
    "downgrade": ("WriteLease.downgrade",),
    "condition": ("Condition.wait", "wait_turn"),
    "election": (
        "Election.campaign",
        "Leads.won",
        "Leads.forget",
        "Enterable.__aenter__",
        "Enterable._leave",
    ),
    "lease": tuple(name for name in _WHERE if not name.startswith("Leaving.")),  # where a variable still has it
    "locked": ("locked.<locals>.decorate.<locals>.call", "Enterable._leave", "Lease._leave"),
}
_KINDS = ["lock", "lease at once", "reentrant", "semaphore", *_WHERE_OF]


async def _act(locks: Any, kind: str, name: str) -> None:
    """Do what is interrupted."""
    if kind == "lock":
        async with locks.lock(name):
            pass
    elif kind == "lease":
        lease = await locks.lock(name).acquire()
        async with lease:
            pass
    elif kind == "lease at once":
        async with await locks.lock(name).acquire():
            pass
    elif kind == "reentrant":
        lock = locks.lock(name, reentrant=True)
        async with lock:
            async with lock:
                pass
    elif kind == "semaphore":
        async with locks.semaphore(name, permits=2):
            pass
    elif kind == "upgrade":
        async with locks.rwlock(name).read() as reader:
            await (await reader.upgrade()).release()
    elif kind == "downgrade":
        async with locks.rwlock(name).write() as writer, await writer.downgrade():
            pass
    elif kind == "condition":
        lock = locks.lock(name)
        async with lock:
            await locks.condition(lock).wait(timeout=0.001)
    elif kind == "election":
        async with locks.election(name):
            pass
        election = locks.election(name)
        await election.campaign()
        await election.resign()
    else:

        async def function() -> None:
            pass

        await locks.locked(name)(function)()


#: CPython looks for signals at the first step of a function, where a loop goes back, and behind calls into C: in none
#: of these, which come between a grant and what is done with it, and after the end of a `try`.
_NO_SIGNAL = (
    *("END_SEND", "LOAD_CONST", "NOP", "RETURN_CONST", "RETURN_VALUE"),
    *("LOAD_FAST", "STORE_FAST", "LOAD_ATTR", "STORE_ATTR"),
)
_FILES = ("/_async/", "/_api/")


class _Interruptions:
    """Raises at the n-th bytecode in these functions; counts them."""

    def __init__(self, n: int, where: tuple[str, ...]) -> None:
        self.left = n
        self.where = where
        self.places: list[tuple[CodeType, int]] = []

    def call(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if code.co_qualname not in self.where or not any(part in code.co_filename for part in _FILES):
            return None
        frame.f_trace_lines = False
        frame.f_trace = self.step
        frame.f_trace_opcodes = True
        return self.step

    def step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            self.left -= 1
            self.places.append((frame.f_code, frame.f_lasti))
            if self.left == -1:
                raise Interrupted
        return self.step


async def _interrupted(locks: Any, kind: str, name: str, n: int) -> list[tuple[CodeType, int]]:
    interruptions = _Interruptions(n, _WHERE_OF.get(kind, _WHERE))
    here: FrameType | None = sys._getframe()
    while here is not None:
        here.f_trace_opcodes = True  # Python 3.12 looks whether any frame wants them when tracing begins
        here = here.f_back
    before = sys.gettrace()
    sys.settrace(interruptions.call)
    try:
        await asyncio.create_task(_act(locks, kind, name))
    except Interrupted:
        pass
    finally:
        sys.settrace(before)
    return interruptions.places


@functools.cache
def _opnames(code: CodeType) -> dict[int, str]:
    """Offset → name of the instruction there."""
    return {one.offset: one.opname for one in dis.get_instructions(code)}


def _is_first(code: CodeType, offset: int) -> bool:
    """True if it is the first step of the function, which looks for signals."""
    resume = next(at for at, opname in _opnames(code).items() if opname == "RESUME")
    return offset <= resume + 2


@pytest.mark.parametrize("kind", _KINDS)
def test_an_exception_between_a_grant_and_its_caller_leaves_nothing(kind: str, valkey_server: embedded.Server) -> None:
    bench = Bench(valkey_server.url)

    async def main() -> dict[str, Any]:
        async with holdfast.asyncio.connect(valkey_server.url, ttl=60) as locks:
            await _interrupted(locks, kind, name_for("task"), -1)
            names = {}
            for n in range(len(await _interrupted(locks, kind, name_for("task"), -1))):
                name = name_for("task")
                places = await _interrupted(locks, kind, name, n)
                if len(places) <= n:
                    continue  # ran through: a task whose id is that of another one before takes a few bytecodes more
                code, offset = places[n]
                opname = _opnames(code)[offset]
                if (opname.startswith(_NO_SIGNAL) and not _is_first(code, offset)) or excused(Place(code, offset, 0)):
                    continue
                if code.co_qualname == "Enterable.__aenter__" and opname in ("PRECALL", "CALL") and kind == "reentrant":
                    continue
                names[name] = f"{code.co_qualname} {offset} {opname}"
            await asyncio.sleep(0.3)
            return {names[name]: left for name, left in bench.left_of(names).items()}

    left = asyncio.run(main())
    bench.close()
    gc.collect()  # coroutines that were never awaited complain
    assert sorted(left) == []


class _Struck(Exception):
    """Of a handler: an event loop goes on after a callback that raises."""


@contextlib.contextmanager
def _strikes(callback: Any, n: int) -> Iterator[list[int]]:
    """Have a handler raise where one comes there for the n-th time; the list has where that was, once it was."""
    struck, left = list[int](), n

    def call(frame: FrameType, _event: str, _arg: Any) -> Any:
        if frame.f_code is not callback.__code__:
            return None
        frame.f_trace_lines = False
        frame.f_trace = step
        frame.f_trace_opcodes = True
        return step

    def step(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal left
        if event == "opcode" and frame.f_lasti in signals_come(frame.f_code):
            left -= 1
            if left == -1:
                struck.append(frame.f_lasti)
                raise _Struck
        return step

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks whether any frame wants them when tracing begins
    sys.settrace(call)
    try:
        yield struck
    finally:
        sys.settrace(None)


@pytest.mark.parametrize("callback", [Home._flush, Home._wake])
def test_a_loop_goes_on_where_a_handler_raises_in_a_callback_of_ours(
    callback: Any, valkey_server: embedded.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all tasks of that loop would wait, from then on."""
    monkeypatch.setattr(loop, "_SLEEP_MAX_S", 0.05)

    async def main() -> None:
        async with holdfast.asyncio.connect(valkey_server.url, ttl=60) as locks:
            async with locks.lock(name_for("loop")):
                home = locks._session.driver.home
            for n in range(1_000):
                with _strikes(callback, n) as struck:
                    future = home.loop.future()
                    threading.Thread(target=home.ring, args=(future,)).start()
                    acquires = [locks.lock(name_for("loop")).acquire() for _ in range(3)]
                    leases = await asyncio.wait_for(asyncio.gather(*acquires), PATIENCE_S)
                    await asyncio.wait_for(future, PATIENCE_S)
                for lease in leases:
                    await lease.release()
                if not struck:
                    break
            assert 3 <= n < 999

    asyncio.run(main())


def test_a_block_under_a_lost_lease_ends_where_a_handler_raises_in_its_cancellation(
    valkey_server: embedded.Server,
) -> None:
    async def main() -> None:
        async with holdfast.asyncio.connect(valkey_server.url, ttl=60) as locks:
            for n in range(1_000):
                with _strikes(Body._cancel, n) as struck, pytest.raises(holdfast.LeaseLost):
                    async with locks.lock(name_for("loop")) as lease:
                        locks._session.driver.engine.call(lease._record.lose, "taken")
                        await asyncio.sleep(PATIENCE_S)
                        raise AssertionError("it was not cancelled")
                task = asyncio.current_task()
                assert task is not None
                assert not task.cancelling()
                if not struck:
                    break
            assert 3 <= n < 999

    asyncio.run(main())
