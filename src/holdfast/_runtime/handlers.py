"""What a signal handler of the program raises while a request is under way.

Law: it comes out as it is, and is never taken for a failure of the server: a time limit of the program, for example.

Theory: it may be of any type, TimeoutError included, so its type does not tell. But its traceback goes through the
code of a handler that is installed.
"""

from __future__ import annotations

import signal
from types import CodeType, TracebackType
from typing import Any


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
