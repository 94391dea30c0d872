"""What users and subclasses of redis-py's Lock may replace, as far as both APIs share it."""

from __future__ import annotations

import threading
from typing import Any

from redis.lock import Lock as Theirs

from holdfast.errors import ConfigurationError

__all__ = ["PerThread", "Shared", "is_replaced", "script_texts", "text_of"]

#: The scripts of their lock that a program may bring its own of.
_SCRIPTS = ("release", "extend", "reacquire")


class Shared:
    """What the lock holds: the token (bytes; other code may set a str), what is known of it, why it was refused."""

    token: Any = None
    held: Any = None
    refused: Any = None


class PerThread(Shared, threading.local):
    """The same, for each thread its own."""


def text_of(value: Any, argument: str) -> str:
    """A name or token as text. Raises `ConfigurationError` where it is none: keys and tokens have to be UTF-8."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            pass
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value)
    raise ConfigurationError(argument, value, "a str, or bytes that are UTF-8: for others, use their hex() or base64")


def is_replaced(lock: Any, base: type[Any], method: str) -> bool:
    """True if a subclass, or an attribute of the object, stands in for this method of `base`."""
    return getattr(getattr(lock, method), "__func__", None) is not getattr(base, method)


def script_texts(lock: Any) -> dict[str, str]:
    """The scripts that a subclass has texts of its own for, by the attribute that each is called by."""
    texts = {f"lua_{name}": f"LUA_{name.upper()}_SCRIPT" for name in _SCRIPTS}
    return {
        attribute: getattr(lock, text)
        for attribute, text in texts.items()
        if getattr(lock, attribute) is None and getattr(lock, text) != getattr(Theirs, text)
    }
