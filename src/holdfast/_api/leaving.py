"""Blocks that end without their `__exit__`: an exception came where Python lets go of it uncalled.

Law: what is done here in a finalizer takes no lock and waits for nothing.

Theory: a signal handler may raise between the end of a block and the first step of `__exit__`, where neither the
`with` statement nor `__exit__` can catch it. But `with` looks `__exit__` up before it calls `__enter__`, keeps what it
found, and lets go of it when the statement is over, in whatever way. So what it finds is an object for that block
alone: when it dies uncalled, the block will not be left any more, and its lease is given back. A traceback
that is kept does not keep it, since it is in no frame of Python code: that is why it is a `partial`.

`async with` lets go of it once it has the coroutine of `__aexit__`, which may be interrupted before its first step. So
the coroutine is watched from then on: it is over when it is destroyed, and a traceback keeps its frame, but not itself.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from opcode import opmap
from threading import get_ident
from types import CodeType
from typing import Any

#: What a block has entered: nothing yet, its lease, or None when it was left; and the coroutine that leaves it.
Block = list[Any]

#: The blocks whose `with` statement has just begun, and of which object: by thread.
_beginning: dict[int, tuple[int, Block]] = {}
#: Coroutines of `__aexit__` that have not ended, by the block's id.
_leaving: dict[int, weakref.ref[Any]] = {}


def _codes(*names: str) -> frozenset[int]:
    return frozenset(opmap[name] for name in names if name in opmap)


_WITH = _codes("BEFORE_WITH", "BEFORE_ASYNC_WITH", "LOAD_SPECIAL")
_SEND = opmap["SEND"]
_GET_AWAITABLE = opmap["GET_AWAITABLE"]


def opening(owner: object) -> Block | None:
    """Return where `__enter__` has to put the lease once it is held; None when no `with` statement calls it."""
    begun = _beginning.pop(get_ident(), None)
    return begun[1] if begun is not None and begun[0] == id(owner) else None


def instruction_of(code: CodeType, at: int) -> int:
    """Return where the instruction begins that `at` is in."""
    raw = code.co_code
    while at > 0 and not raw[at]:  # what an instruction remembers for itself
        at -= 2
    return at


def line_of(code: CodeType, at: int) -> str:
    line = next((line for start, end, line in code.co_lines() if start <= at < end), None)
    return f"{code.co_filename}:{line or code.co_firstlineno}"


def opens_block(code: CodeType, at: int) -> bool:
    """True if the result of the call (or `await`) there is what a `with` statement begins with."""
    raw = code.co_code
    jump = 2 * raw[at + 1] if raw[at] == _SEND else 0  # to where the awaited one has ended
    at = _next(raw, at)
    if jump:
        at += jump
        if raw[at] not in _WITH:
            at = _next(raw, at)  # END_SEND
    return at < len(raw) and raw[at] in _WITH


def _next(raw: bytes, at: int) -> int:
    at += 2
    while at < len(raw) and not raw[at]:
        at += 2
    return at


def _enters(code: CodeType, at: int) -> bool:
    """True if a `with` statement is being entered there, or waits for its `__aenter__`."""
    raw, at = code.co_code, instruction_of(code, at)
    if raw[at] == _SEND:
        at -= 4  # the constant in between
    return raw[at] in _WITH or (raw[at] == _GET_AWAITABLE and raw[at + 1] == 1)


def _take(owner: Any, block: Block) -> None:
    """Take the lease out of a block that will not be left."""
    lease, block[:] = block[0], (None,)
    if lease is not None:
        owner._not_left(lease)


class _Exit(functools.partial[Any]):
    """What one `with` statement calls at its end."""

    __slots__ = ()

    def __del__(self) -> None:
        block = self.args[-1]
        if not block:
            begun = _beginning.get(get_ident())
            if begun is not None and begun[1] is block:
                _beginning.pop(get_ident(), None)  # it was only looked at
            try:
                frame = sys._getframe(1)
            except ValueError:
                return  # no Python code lets go of it: a thread ends, or the interpreter
            if _enters(frame.f_code, frame.f_lasti):
                self.args[-2]._not_entered()
        elif block[0] is not None and len(block) == 1:
            _take(self.args[-2], block)


def _begin(leave: Callable[..., Any], owner: Any, block: Block, *error: Any) -> Any:
    """The coroutine that leaves the block, watched."""
    coroutine = leave(owner, block, *error)
    watch = weakref.ref(coroutine, functools.partial(_ended, owner, block))
    _leaving[id(block)] = watch
    if block:
        block += (watch,)  # not a call, after which a signal handler could raise: here it is handed over
    return coroutine


def _ended(owner: Any, block: Block, watch: weakref.ref[Any]) -> None:
    _leaving.pop(id(block), None)
    if block and block[0] is not None:
        _take(owner, block)


class Leaving:
    """Makes `__exit__` of a class: calls `leave(self, block, kind, error, trace)`, an own object for each block.

    On the class it is `plain`, the function as it would be without all this. The class has `_not_entered()` and
    `_not_left(lease)`, which finalizers call: a statement has ended before `__enter__`, or without `__exit__`.
    """

    def __init__(self, leave: Callable[..., Any], plain: Callable[..., Any]) -> None:
        self._calls: tuple[Callable[..., Any], ...] = (leave,)
        self._plain = plain
        self.__doc__ = plain.__doc__

    def __get__(self, owner: Any, kind: type | None = None) -> Callable[..., Any]:
        if owner is None:
            return self._plain
        block: Block = []
        _beginning[get_ident()] = (id(owner), block)
        return _Exit(*self._calls, owner, block)


class AsyncLeaving(Leaving):
    """Makes `__aexit__` of a class, in the same way."""

    def __init__(self, leave: Callable[..., Any], plain: Callable[..., Any]) -> None:
        super().__init__(leave, plain)
        self._calls = (_begin, leave)
