"""What both drop-ins for redis-py's Lock share, with what users and subclasses of that may replace."""

from __future__ import annotations

import threading
from typing import Any, Literal

from redis.lock import Lock as Theirs

from holdfast.compat.redis.errors import as_theirs
from holdfast.errors import ConfigurationError, HoldfastError, LeaseLost, NotHeld

__all__ = ["Common", "is_replaced", "text_of"]

#: The scripts of their lock that a program may bring its own of.
_SCRIPTS = ("release", "extend", "reacquire")


class _Shared:
    """What the lock holds: the token (bytes; other code may set a str), what is known of it, why it was refused."""

    token: Any = None
    held: Any = None
    refused: Any = None


class _PerThread(_Shared, threading.local):
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


def _script_texts(lock: Any) -> dict[str, str]:
    """The scripts that a subclass has texts of its own for, by the attribute that each is called by."""
    texts = {f"lua_{name}": f"LUA_{name.upper()}_SCRIPT" for name in _SCRIPTS}
    return {
        attribute: getattr(lock, text)
        for attribute, text in texts.items()
        if getattr(lock, attribute) is None and getattr(lock, text) != getattr(Theirs, text)
    }


class Common:
    """What a drop-in has in both APIs: its settings, and what it holds."""

    # Not those that redis-py registers for its own class.
    lua_release: Any = None
    lua_extend: Any = None
    lua_reacquire: Any = None

    #: The `TokenLock` behind it, and its name.
    _lock: Any
    _key: str

    def __init__(
        self,
        redis: Any,
        name: str | bytes | memoryview,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> None:
        self.redis = redis
        self.name: Any = name
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.local: Any = _PerThread() if thread_local else _Shared()
        self._aim(redis, name, timeout)
        self.register_scripts()

    def _aim(self, redis: Any, name: Any, timeout: Any) -> None:
        """Have `_lock` and `_key` be those of these settings."""
        raise NotImplementedError

    def __setattr__(self, attribute: str, value: object) -> None:
        if attribute in ("redis", "name", "timeout") and "_key" in vars(self):
            now = {**vars(self), attribute: value}
            self._aim(now["redis"], now["name"], now["timeout"])
        super().__setattr__(attribute, value)

    def register_scripts(self) -> None:
        """Register the scripts of a subclass (`LUA_EXTEND_SCRIPT`, …); there are no others."""
        for attribute, text in _script_texts(self).items():
            setattr(self, attribute, self.redis.register_script(text))

    @property
    def fencing_token(self) -> int | None:
        """The fencing token for the protected resource to check; None unless this object has acquired the lock."""
        held = self._known
        return held.fencing_token if held is not None else None

    @property
    def _known(self) -> Any:
        return getattr(self.local, "held", None)  # `local` may be another object by now

    def _found(self, done: object, held: Any) -> Literal[True]:
        if not done:
            raise LeaseLost(self._key, held.loss)
        return True

    def _held(self, operation: str) -> Any:
        """Return what is held under `local.token`, which other code may have set."""
        token = self.local.token
        if token is None:
            raise as_theirs(NotHeld(self._key, operation), self._key)
        held = self.local.held = self._as(token)
        return held

    def _as(self, token: Any) -> Any:
        text, held = text_of(token, "token"), self._known
        return held if held is not None and held.token == text else self._lock.of(text)

    def _call(self, script: Any, *args: int | str) -> Any:
        """Call a script of the program's; with asyncio, what this returns is awaited."""
        return script(keys=[self.name], args=[self.local.token, *args], client=self.redis)

    def _refuse_unlimited(self, what: str) -> None:
        self._held(f"{what}()")
        if not self.timeout:
            raise as_theirs(HoldfastError(f"Cannot {what} a lock with no timeout: it is renewed by itself"), self._key)
