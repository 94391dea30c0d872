"""Signal handlers of the program: what they raise while a request is under way, and where they have to wait.

Laws: what one raises comes out as it is, and is never taken for a failure of the server: a time limit of the program,
for example. No signal is lost to one that waits.

Theory: what it raises may be of any type, TimeoutError included, so its type does not tell. But its traceback goes
through the code of a handler that is installed. To mask signals does not keep handlers away: another thread may take
the signal, and the main thread runs the handler all the same. So others stand in for them, and note what has come.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from types import CodeType, TracebackType
from typing import Any, TypeVar

R = TypeVar("R")


def raised_by_handler(error: BaseException) -> bool:
    """True if a signal handler raised the error."""
    if error.__traceback__ is None or error.__traceback__.tb_next is None:
        return False  # raised where it was caught: the usual case, for what is no error to us
    codes = {_code(signal.getsignal(number)) for number in signal.valid_signals()}
    at: TracebackType | None = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code in codes:
            return True
        at = at.tb_next
    return False


def _code(handler: Any) -> CodeType | None:
    handler = getattr(handler, "func", handler)  # of a partial
    handler = getattr(handler, "__func__", handler)  # of a method
    if callable(handler) and not hasattr(handler, "__code__"):
        handler = getattr(type(handler).__call__, "__func__", type(handler).__call__)
    found = getattr(handler, "__code__", None)
    return found if isinstance(found, CodeType) else None


def without_handlers(act: Callable[[], R]) -> R:
    """Call it while no signal handler runs in this thread; those of signals that come meanwhile run behind it."""
    held: dict[int, Any] = {}
    came: deque[int] = deque()
    try:
        if threading.current_thread() is threading.main_thread():  # no other one runs them
            try:
                for number in signal.valid_signals():
                    if callable(handler := signal.getsignal(number)):
                        held[number] = handler
                        signal.signal(number, lambda number, _frame: came.append(number))
            except ValueError as error:
                if raised_by_handler(error):
                    raise
                held.clear()  # a subinterpreter: signals are the main one's
        return act()
    finally:
        _let_run(held, came)


def _let_run(held: Mapping[int, Any], came: deque[int]) -> None:
    done = False
    try:
        for number, handler in held.items():
            signal.signal(number, handler)
        while came:
            number = came.popleft()
            held[number](number, sys._getframe())
        done = True
    finally:
        if not done:
            _let_run(held, came)  # one has raised
