"""As `test_interrupted_threads`, for asyncio: an exception at any bytecode between a grant and its caller."""

from __future__ import annotations

import asyncio
import dis
import sys
from types import CodeType, FrameType
from typing import Any

import pytest

import holdfast.asyncio
from holdfast import embedded
from tests.process.interruptions import Bench, Interrupted, name_for

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning"
)

#: Where it is ours to clean up.
_WHERE = ("Leasable._acquire", "Leasable.__aenter__", "Leasable.__aexit__", "Lease.__aexit__", "Lease._release")
#: The same for what is made of several steps.
_WHERE_OF: dict[str, tuple[str, ...]] = {
    "upgrade": ("ReadLease.upgrade", "cast"),
    "downgrade": ("WriteLease.downgrade", "cast"),
    "condition": ("Condition.wait", "cast"),
    "election": ("Election.campaign", "Election.__aenter__", "Election.__aexit__", "Entered.pop"),
    "locked": ("locked.<locals>.decorate.<locals>.call", "Lease.__aenter__", "Lease.__aexit__", "Lease._leave"),
    "exit": ("Entered.pop", "Lease.__aexit__", "Lease._exit", "Lease._leave"),
}


async def _act(locks: Any, kind: str, name: str) -> None:
    """What is interrupted."""
    if kind in ("lock", "exit"):
        async with locks.lock(name):
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


#: Before a `try` of a coroutine has begun and after it has ended only these are gone through. CPython looks for no
#: signal in them, but for the first step of all: a signal in the first step of `__aexit__` leaves a lease to its ttl.
_NO_SIGNAL = frozenset({"END_SEND", "LOAD_CONST", "NOP", "RETURN_CONST", "RETURN_VALUE", "STORE_FAST"})
#: Nor in these, which come between a grant and what is done with it.
_NO_SIGNAL_EITHER = ("LOAD_FAST", "STORE_FAST", "LOAD_ATTR", "STORE_ATTR")


_FILES = ("/_faces/aio.py", "/_faces/aio_family.py", "/_faces/entered.py", "/typing.py")


class _Interruptions:
    """Raises at the n-th bytecode in these functions; counts them."""

    def __init__(self, n: int, where: tuple[str, ...]) -> None:
        self.left = n
        self.where = where
        self.places: list[tuple[CodeType, int]] = []

    def call(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if code.co_qualname not in self.where or not code.co_filename.endswith(_FILES):
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


def _opname(code: CodeType, offset: int) -> str:
    return next(one.opname for one in dis.get_instructions(code) if one.offset == offset)


@pytest.mark.parametrize("kind", ["lock", "semaphore", *_WHERE_OF])
def test_an_exception_between_a_grant_and_its_caller_leaves_nothing(kind: str, valkey_server: embedded.Server) -> None:
    bench = Bench(valkey_server.url)

    async def main() -> dict[str, Any]:
        async with holdfast.asyncio.connect(valkey_server.url, ttl=60) as locks:
            await _interrupted(locks, kind, name_for("task"), -1)
            places = await _interrupted(locks, kind, name_for("task"), -1)
            names = {}
            for n, (code, offset) in enumerate(places):
                opname = _opname(code, offset)
                if opname in _NO_SIGNAL or (kind in _WHERE_OF and opname.startswith(_NO_SIGNAL_EITHER)):
                    continue
                name = name_for("task")
                await _interrupted(locks, kind, name, n)
                names[name] = f"{places[n][0].co_qualname} {places[n][1]} {_opname(*places[n])}"
            await asyncio.sleep(0.3)
            return {names[name]: left for name in names if (left := bench.left(name))}

    left = asyncio.run(main())
    bench.close()
    assert sorted(left) == []
