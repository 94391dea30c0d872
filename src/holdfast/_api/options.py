"""What callers pass in, checked before anything is sent. The same for both APIs.

The options of a lease are declared once, in `LeaseOptions`; `Options` is what they come to.

Durations are seconds as int or float, or a timedelta; on the wire they are whole ms, rounded up.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict, TypeVar

from holdfast._runtime.lazily import lazily
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from datetime import timedelta

Duration: TypeAlias = "float | int | timedelta"

#: Below this a lease would end before a renewal could come through.
TTL_MIN_S = 0.01
#: A look takes longer than that where there are many keys.
DEADLOCK_CHECK_MIN_S = 0.1
#: A holder has to be heard of three times meanwhile, also on a busy machine.
CRASH_MIN_S = 0.3
#: Others wait meanwhile, and more than a few ms gain nothing.
TENURE_MAX_S = 0.1
#: A year: a longer one is almost certainly ms passed as s.
TTL_MAX_S = 365 * 86_400
#: Ten years: the calls that wait take no more than some hundred.
WAIT_MAX_S = 10 * TTL_MAX_S
#: Longer names are a mistake too (a whole document as the name).
NAME_MAX_BYTES = 1_024
#: One script takes them all, and no other client is served meanwhile.
NAMES_MAX = 100
#: A grant of permits looks at every holder.
PERMITS_MAX = 10_000
#: More waiters than that are a limit in name only.
QUEUE_MAX = 10_000
#: All parties of a barrier are told by one script.
PARTIES_MAX = 1_000
#: A note is to be read in a table.
NOTE_MAX_BYTES = 256
#: A latch's count is only a number; more is a mistake.
COUNT_MAX = 1_000_000_000


def _between(argument: str, value: object, least_s: float, most_s: float, words: str = "") -> float:
    """Seconds from `least_s` to `most_s`, or as `words` say."""
    seconds = math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:  # an int beyond all floats
            seconds = math.copysign(sys.float_info.max, value > 0 or -1)
    else:
        if isinstance(value, lazily("datetime").timedelta):  # its caller has imported it before
            seconds = value.total_seconds()
    if not least_s <= seconds <= most_s:
        allowed = f"seconds (int or float) or a timedelta, {words or f'from {least_s} to {most_s}'}"
        raise ConfigurationError(argument, value, allowed)
    return seconds


def _whole_ms(seconds: float) -> int:
    # Rounded up, but not for what is only a float's error: 0.1 s is 100 ms.
    return math.ceil(round(seconds * 1000, 6))


def ttl_ms_of(ttl: object, argument: str = "ttl") -> int:
    return _whole_ms(_between(argument, ttl, TTL_MIN_S, TTL_MAX_S))


def tenure_ms_of(tenure: object) -> float:
    """Return for how many ms a client hands a lock on among its own."""
    return _between("tenure", tenure, 0, TENURE_MAX_S) * 1000


def timeout_of(timeout: object, argument: str = "timeout") -> float | None:
    """A budget for waiting in seconds, or None for no limit. One that is beyond what can be waited for is cut."""
    if timeout is None:
        return None
    words = "0 or more, or None to wait without limit"
    return min(_between(argument, timeout, 0, sys.float_info.max, words), WAIT_MAX_S)


def check_name(name: object, argument: str = "name") -> str:
    if not isinstance(name, str) or not name:
        raise ConfigurationError(argument, name, "a non-empty str")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(argument, name, "a str that can be encoded as UTF-8") from None
    if size > NAME_MAX_BYTES:
        raise ConfigurationError(argument, name, f"at most {NAME_MAX_BYTES} bytes")
    return name


def check_namespace(namespace: object) -> str | None:
    """A prefix of keys: a non-empty str without braces, or None for none."""
    if namespace is None:
        return None
    if not isinstance(namespace, str) or not namespace or "{" in namespace or "}" in namespace:
        raise ConfigurationError("namespace", namespace, 'a non-empty str without "{" and "}", or None')
    return namespace


def check_bool(value: Any, argument: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(argument, value, "True or False")
    return value


def check_count(argument: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigurationError(argument, value, f"an int from {low} to {high}")
    return value


def check_value(argument: str, value: object) -> bytes:
    """A value of a key, or an argument of a command: bytes, str, int or float, as what is sent."""
    allowed = "bytes, str, int or float; anything else has to be encoded by the caller, as by json.dumps"
    try:
        if isinstance(value, bytes):
            return bytes(value)
        if isinstance(value, str):
            return str.encode(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return int.__repr__(value).encode()
        if isinstance(value, float):
            return float.__repr__(value).encode()
    except ValueError as error:  # lone surrogates; a number of thousands of digits
        raise ConfigurationError(argument, value, f"what can be written as UTF-8 ({error})") from None
    raise ConfigurationError(argument, value, allowed)


def check_names(names: tuple[object, ...]) -> tuple[str, ...]:
    checked = tuple(check_name(name) for name in names)
    if not checked:
        raise ConfigurationError("names", names, "at least one name")
    if len(checked) > NAMES_MAX:
        raise ConfigurationError("names", names, f"at most {NAMES_MAX} names")
    if len(set(checked)) < len(checked):
        raise ConfigurationError("names", names, "every name once")
    return checked


# ---------------------------------------------------------------------- the options of a lease


class LeaseOptions(TypedDict, total=False):
    """What `Client` and whatever makes a lease take; None, or left out, takes the client's.

    `ttl`: lease duration in seconds (0.01 up to a year; 30 unless the client says otherwise): a holder that dies blocks
    others for this long at most.
    `renew`: extend the lease in the background while it is held (True).
    `max_hold`: seconds after which it is no longer renewed, ends by itself and is released, as a guard against a holder
    that hangs; None: no limit.
    `at_least`: seconds for which it stays held, however soon it is released: then only its ttl is cut to what is
    left of them (or to a second, if less is left), and it is no longer renewed. For jobs that run once a tick in
    many places, and do not wait: `try_acquire`, `skip_if_held`. Waiters get in later, when they next look. None:
    released at once.
    `sync_replicas`: a lease counts only when this many replicas have acknowledged it, and so do its renewals; "all":
    every replica that the master has, so that no failover to one of them undoes it. Too few: it is given back, and
    `InsufficientReplicas` raised. Costs a round trip between the servers. None: none.
    `confirm_release`: wait until the server has confirmed a release (True). False: a release is sent, and what comes of
    it is told later like any loss; where it takes more than one request to one server, it is waited for all the same.
    `deadlock_check`: seconds of waiting (0.1 or more) after which, and again each time that they have passed, the
    client checks whether this wait is part of a deadlock; one party of it gets `DeadlockDetected`. A check goes
    over the keys of the namespace. None: no check.
    `queue_limit`: who would have to wait while that many (0 to 10,000) wait already gets `QueueFull` at once; counted
    by the server, over all clients (just after a failover, only those that have found the new master). 0: "not while
    it is held"; 1: one runs, one waits, the rest is turned away. Not for several locks at once; over a quorum, which
    has no queue, 0 alone. Waiters of one client wait on the server then, as with `tenure=0`. None: no limit.
    `crash_release`: of a lock alone: seconds (0.3 up to half of the ttl) after which others get in when the connection
    of its client has ended, as that of a process that was killed, though its ttl is longer. One that was only stopped
    keeps it. The lease is trusted for as long after each renewal, of which there are three in that time: see
    `LeaseSuspect`. Not with `renew=False`, `at_least` or `cache_for`. 0: as None without a default of the client. None:
    only at the end of the ttl.
    `on_wanted`: called as by `lease.on_wanted` when another client asks for the lease. None: no callback.
    `note`: one line for people (256 bytes at most) that is shown wherever the holder is, as "deploy 1.4 by ana".
    Written behind the grant, by a request of its own, and with renewals. Waiters of one client wait on the server then.
    None: none.
    """

    ttl: Duration | None
    renew: bool | None
    max_hold: Duration | None
    at_least: Duration | None
    sync_replicas: int | Literal["all"] | None
    confirm_release: bool | None
    deadlock_check: Duration | None
    queue_limit: int | None
    crash_release: Duration | None
    on_wanted: Callable[[Any], object] | None
    note: str | None


class LockOptions(LeaseOptions, total=False):
    """What a lock takes beside them."""

    cache_for: Duration | None


class CallOptions(LeaseOptions, total=False):
    """Options of a decorated function beside them."""

    timeout: Duration | None
    reentrant: bool


class Options(NamedTuple):
    """The same, resolved. Not a dataclass: importing those takes longer than all of this."""

    ttl_ms: int = 30_000
    renew: bool = True
    max_hold_ms: int | None = None
    sync_replicas: int | Literal["all"] | None = None
    confirm_release: bool = True
    on_wanted: Callable[[Any], object] | None = None
    at_least_ms: int = 0
    kept_ms: int = 0
    deadlock_check_s: float | None = None
    queue_limit: int | None = None
    crash_release_ms: int = 0
    note_text: str | None = None


def options_after(record: Any) -> Options:
    """Return the options of a lease that goes on from another one, for as long as that would."""
    return Options(record.ttl_ms, record.renews, note_text=record.says)


#: What other libraries call it, and what it is here.
_ELSEWHERE = {
    "timeout": "ttl=… is for how long it is held without a renewal, acquire(timeout=…) for how long to wait",
    "expire": "ttl=… is for how long it is held without a renewal",
    "auto_renewal": "it renews itself, unless renew=False",
    "blocking": "acquire() waits, try_acquire() does not",
    "blocking_timeout": "acquire(timeout=…) is for how long to wait",
    "sleep": "waiters do not poll: leave it out",
    "thread_local": "what acquire() returns, the lease, is what is held: leave it out",
    "lock_class": "holdfast.compat.redis.Lock is for redis.Redis().lock(…)",
}


def _replicas_of(value: Any, name: str) -> int | Literal["all"]:
    if value != "all" and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 100):
        raise ConfigurationError(name, value, 'a number from 1 to 100, "all", or None')
    return value  # type: ignore[no-any-return]


def _callback_of(value: object, name: str) -> object:
    if not callable(value):
        raise ConfigurationError(name, value, "something that can be called with what says who wants it, or None")
    return value


def _note_of(value: object, name: str) -> object:
    if isinstance(value, str) and value.isprintable() and 0 < len(value.encode()) <= NOTE_MAX_BYTES:
        return value
    raise ConfigurationError(name, value, f"a str of one line, of 1 to {NOTE_MAX_BYTES} bytes of UTF-8, or None")


def _period_s_of(value: object, name: str) -> float:
    words = f"from {DEADLOCK_CHECK_MIN_S} to {TTL_MAX_S}, or None to disable"
    return _between(name, value, DEADLOCK_CHECK_MIN_S, TTL_MAX_S, words)


def _crash_ms_of(value: object, name: str) -> int:
    words = f"from {CRASH_MIN_S} to half of the ttl, or 0 for none"
    seconds = _between(name, value, 0, TTL_MAX_S, words)
    return _whole_ms(_between(name, value, CRASH_MIN_S, TTL_MAX_S, words)) if seconds else 0


#: Where each option stands in `Options`, and what makes that of (what was given, its name).
_FIELDS: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "ttl": ("ttl_ms", ttl_ms_of),
    "renew": ("renew", check_bool),
    "max_hold": ("max_hold_ms", ttl_ms_of),
    "at_least": ("at_least_ms", ttl_ms_of),
    "sync_replicas": ("sync_replicas", _replicas_of),
    "confirm_release": ("confirm_release", check_bool),
    "on_wanted": ("on_wanted", _callback_of),
    "deadlock_check": ("deadlock_check_s", _period_s_of),
    "crash_release": ("crash_release_ms", _crash_ms_of),
    "queue_limit": ("queue_limit", lambda value, name: check_count(name, value, 0, QUEUE_MAX)),
    "note": ("note_text", _note_of),
    "cache_for": ("kept_ms", ttl_ms_of),
}
#: Those that locks alone take, and what else they have to be.
_OF_LOCKS = {
    "cache_for": "None: only what lock() makes is cached",
    "crash_release": "None: only what lock() makes has it",
}


def unexpected(name: str) -> str:
    """Return the words of a TypeError; of what other libraries take, with what to write instead."""
    return f"unexpected keyword argument {name!r}" + (f"; {_ELSEWHERE[name]}" if name in _ELSEWHERE else "")


def options_of(
    given: LeaseOptions | LockOptions,
    defaults: Options = Options(),  # noqa: B008 - it is immutable
    of_locks: Collection[str] = (),
) -> Options:
    """Check what was given, and return it over the defaults. TypeError for an unknown option, as for any call.

    `of_locks`: which of the options that locks alone take may be given.
    """
    changed: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _FIELDS:
            raise TypeError(f"{unexpected(name)}; options are {', '.join(_FIELDS)}")
        if value is None:
            continue
        if name in _OF_LOCKS and name not in of_locks:
            raise ConfigurationError(name, value, _OF_LOCKS[name])
        field, make = _FIELDS[name]
        changed[field] = make(value, name)
    return defaults._replace(**changed) if changed else defaults


def lock_options_of(given: LockOptions, defaults: Options) -> Options:
    """The same for a lock."""
    options = options_of(given, defaults, _OF_LOCKS)
    argument, kept_ms, half_s = "cache_for", options.kept_ms, options.ttl_ms / 2000
    if 2 * kept_ms > options.ttl_ms:
        allowed = f"half of the ttl at most: {half_s:g} s"
    elif kept_ms and options.sync_replicas is not None:
        allowed = "None with sync_replicas: the two do not go together"
    elif kept_ms and options.note_text is not None:
        allowed = "None with a note: what is kept goes from one lease to the next"
    elif options.crash_release_ms and (kept_ms or options.at_least_ms or not options.renew):
        argument, allowed = "crash_release", "0 with cache_for, at_least or renew=False: they do not go together"
    elif 2 * options.crash_release_ms > options.ttl_ms:
        argument, allowed = "crash_release", f"half of the ttl at most: {half_s:g} s; or 0 for none"
    else:
        return options
    value = given.get("cache_for") if argument == "cache_for" else options.crash_release_ms / 1000
    raise ConfigurationError(argument, value, allowed)


F = TypeVar("F", bound=Callable[..., Any])

#: The part of the docstring above that says what each option is.
_EXPLAINED = "\n".join((LeaseOptions.__doc__ or "").rstrip().splitlines()[2:])


def explains_options(function: F) -> F:
    """Let the docstring of a function with `**options: Unpack[LeaseOptions]` say what these are."""
    if function.__doc__ is not None:
        function.__doc__ = f"{function.__doc__.rstrip()}\n\n    Options:\n{_EXPLAINED}\n    "
    return function
