"""Every error that holdfast raises on purpose.

Laws: one fact, one error; every error carries its facts as fields, names a way out where there is one, survives
pickling, and is a `HoldfastError`. A message of another program is shortened and printed without control characters.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = [
    "AcquireCancelled",
    "AcquireTimeout",
    "AlreadyHeld",
    "BrokenBarrierError",
    "CannotStartThread",
    "ClientClosed",
    "ConfigurationError",
    "DeadlockDetected",
    "DeclarationMismatch",
    "HoldfastError",
    "InsufficientReplicas",
    "LeaseLost",
    "LeaseReleased",
    "LeaseSuspect",
    "MakeFailed",
    "NotHeld",
    "OnceConflict",
    "OptimisticConflict",
    "OutcomeUnknown",
    "QueueFull",
    "QuorumUnreachable",
    "ScriptRefused",
    "ServerError",
    "ServerUnreachable",
    "StaleFencingToken",
    "TooManyPermits",
    "UpgradeRefused",
]


def shown(text: object, most: int = 200) -> str:
    """Foreign text for a message: at most `most` characters, and none of them a control character."""
    text = str(text)
    cut = text[:most] + "…" if len(text) > most else text
    return cut if cut.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in cut)


#: So much of a name is said, characters; a field of the error has all of it.
_NAME_MOST = 100


def quoted(name: str) -> str:
    """A name for a message: a long one is shortened."""
    return repr(name if len(name) <= _NAME_MOST else name[:_NAME_MOST] + "…")


class HoldfastError(Exception):
    """Base class of every error that this library raises. `message` is the whole text, a long name cut."""

    def __init__(self, message: str, **fields: Any) -> None:
        vars(self).update(fields)
        name = getattr(self, "name", None)
        if isinstance(name, str) and len(name) > _NAME_MOST:
            message = message.replace(repr(name), quoted(name))
        super().__init__(message)
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return revived, (type(self), vars(self))


def revived(kind: type[HoldfastError], fields: dict[str, Any]) -> HoldfastError:
    """An error of this kind with these fields, of which `message` is one."""
    error = kind.__new__(kind)
    HoldfastError.__init__(error, **fields)
    return error


class ConfigurationError(HoldfastError, ValueError):
    """An argument, a URL or a client cannot be used as given. Nothing was acquired.

    Fields: `argument` (its name), `value` (what was given, without passwords), `allowed` (what may be given instead).
    Way out: give what `allowed` says.
    """

    def __init__(self, argument: str, value: object, allowed: str) -> None:
        self.argument, self.allowed = argument, allowed
        self.value = _without_secrets(value, argument in _ADDRESSES)
        super().__init__(f"{argument} = {_shown(self.value)} is not allowed: {allowed}")

    def __reduce__(self) -> tuple[Any, ...]:
        # A value may be anything a caller passed in, also something that does not pickle.
        return revived, (type(self), {**vars(self), "value": _shown(self.value)})


#: What a message may show of an address: hosts and ports, and a path without anything unusual.
_HOSTS = re.compile(r"((\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]*)(:[0-9]{1,5})?(,|$))*")
_PATH = re.compile(r"[A-Za-z0-9_./~-]{0,120}")
_SCHEME = re.compile(r"(redis|rediss|valkey|valkeys)(\+(sentinel|cluster))?|redlocks?|unix|https?", re.IGNORECASE)


def redacted(url: str) -> str:
    """The URL without user, password and options. Of a malformed URL, whatever could belong to these is left out."""
    scheme, apart, rest = url.partition("://")
    if not apart or not _SCHEME.fullmatch(scheme):
        return "…"
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    behind = rest[len(authority) :]
    path = re.split(r"[?#]", behind, maxsplit=1)[0]
    _, at, hosts = authority.rpartition("@")
    if not _HOSTS.fullmatch(hosts) or not _PATH.fullmatch(path) or "@" in behind:
        return f"{scheme}://…"
    return f"{scheme}://{'…@' if at else ''}{hosts}{path}{'?…' if len(behind) > len(path) else ''}"


#: Arguments that say where a server is: whatever else is given there may be a setting with a password in it.
_ADDRESSES = frozenset({"url", "redis_client", "servers", "client"})
_PLAIN = (str, bytes, bytearray, bool, int, float, type(None))


def _without_secrets(value: Any, address: bool) -> Any:
    """The part of an argument that an error may keep: URLs and clients of redis-py contain passwords."""
    if isinstance(value, (bytes, bytearray)) and (b"://" in value or b"@" in value):
        value = bytes(value).decode("utf-8", "replace")
    if isinstance(value, str):
        return redacted(value) if "://" in value or "@" in value else value
    if type(value) in (list, tuple) and len(value) <= 100:
        return [_without_secrets(each, address) for each in value]
    if not isinstance(value, _PLAIN) and (address or _may_show_secrets(value)):
        return _KindOf(f"<{type(value).__module__}.{type(value).__qualname__}>")
    return value


def _may_show_secrets(value: object) -> bool:
    marks = ("from_url", "connection_pool", "connection_kwargs", "netloc")  # the last one: a URL in its parts
    if any(hasattr(value, mark) for mark in marks):
        return True
    try:
        shown = repr(value)
    except Exception:
        return False  # and nothing is shown
    return "://" in shown or "@" in shown


class _KindOf(str):
    """What an error keeps of a value that it must not show."""

    __repr__ = str.__str__


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except Exception:  # an int of thousands of digits; a broken object
        return f"<{type(value).__name__} that cannot be shown>"
    return shown if len(shown) <= 200 else shown[:200] + "…"


class _Named(HoldfastError):
    """One about the primitive of that kind and name."""

    def __init__(self, message: str, name: str, kind: str) -> None:
        self.name, self.kind = name, kind
        super().__init__(message)


def _by(holder: Any) -> str:
    return f", held by {holder.who}" if holder else ""


class AcquireTimeout(_Named, TimeoutError):
    """`acquire(timeout=...)` gave up: another client held it until the timeout ended. Nothing was acquired.

    Fields: `kind` and `name` of what was waited for, `waited_s`, `holder` (a `Holder`: who held it when last seen; None
    where that is not known; without a wait only its token). Way out: a longer `timeout`; `holdfast status` says who
    holds it now, `Client.ask` and `Client.break_` do something about it.
    """

    def __init__(
        self, name: str, waited_s: float, holder: Any = None, because: str | None = None, kind: str = "lock"
    ) -> None:
        self.waited_s, self.holder, self.because = waited_s, holder, because
        why = f" ({because})" if because else ""
        super().__init__(f"{kind} {name!r} was not acquired within {waited_s:.3f} s{_by(holder)}{why}", name, kind)


class QueueFull(AcquireTimeout):
    """`queue_limit` others wait for it already (with 0: it is held). Nothing was waited for, and nothing acquired.

    Fields: as of `AcquireTimeout`, and `queue_limit`. Way out: a higher `queue_limit`, or to drop the work, which is
    what the limit is for.
    """

    def __init__(
        self, name: str, waited_s: float, holder: Any = None, queue_limit: int = 0, kind: str = "lock"
    ) -> None:
        self.waited_s, self.holder, self.queue_limit = waited_s, holder, queue_limit
        why = "others wait for it already" if queue_limit else "it is not free"
        message = f"{kind} {name!r} was not acquired: {why}, and queue_limit is {queue_limit}{_by(holder)}"
        _Named.__init__(self, message, name, kind)


class AcquireCancelled(_Named):
    """The `Cancel` object given to `acquire` was set while it waited (threads only). Nothing was acquired.

    Fields: `kind` and `name` of what was waited for. Way out: none is needed; this was asked for.
    """

    def __init__(self, name: str, kind: str = "lock") -> None:
        super().__init__(f"waiting for {kind} {name!r} was cancelled", name, kind)


class AlreadyHeld(_Named):
    """This thread or task already holds it, and would wait for itself indefinitely.

    Fields: `kind` and `name` of what it holds, `wanted` (the kind of what it asked for). Way out: release the first
    lease, or use `reentrant=True` for a lock, `upgrade()` or `downgrade()` for a readers-writer lock.
    """

    def __init__(self, name: str, kind: str = "lock", wanted: str = "lock") -> None:
        self.wanted = wanted
        out = _WAYS_OUT.get((kind, wanted), "release that lease first")
        message = f"{kind} {name!r} is already held by this thread or task, which asked for the {wanted}; {out}"
        super().__init__(message, name, kind)


#: What to do for a thread that holds the first and asks for the second.
_WAYS_OUT = {
    ("lock", "lock"): "release it first, or use reentrant=True",
    ("read lock", "read lock"): "go on with the lease it has, or release that first",
    ("write lock", "write lock"): "go on with the lease it has, or release that first",
    ("read lock", "write lock"): "use upgrade() of its read lease",
    ("write lock", "read lock"): "use downgrade() of its write lease",
    ("election", "election"): "it leads: go on with the lease it has, or resign() first",
}


class DeadlockDetected(_Named):
    """`acquire` with `deadlock_check` gave up: it was part of a deadlock. The others go on waiting, and get on
    when this party releases what it holds. Nothing was acquired.

    Fields: `kind` and `name` of what was waited for, `deadlock` (a `Deadlock`: its `parties`, this one first). Way out:
    release what is held, and begin again; acquire locks in the same order everywhere, or all at once by `multilock`.
    """

    def __init__(self, name: str, deadlock: Any, kind: str = "lock") -> None:
        self.deadlock = deadlock
        message = f"{kind} {name!r} was not acquired, to end a deadlock: {deadlock}"
        super().__init__(f"{message}; release what is held and begin again", name, kind)


class NotHeld(_Named):
    """An operation that needs the lock was called by a thread or task that does not hold it.

    Fields: `kind` and `name` of what is not held, `operation`. Way out: call it within `with lock:`, in the thread or
    task that acquired the lease.
    """

    def __init__(self, name: str, operation: str, kind: str = "lock") -> None:
        self.operation = operation
        super().__init__(self._said(name, operation, kind), name, kind)

    @staticmethod
    def _said(name: str, operation: str, kind: str) -> str:
        return f"{operation} needs {kind} {name!r} to be held by the calling thread or task: acquire it there first"


class LeaseReleased(NotHeld):
    """An operation was called on a lease that has already been released.

    Fields: `kind` and `name` of what it was a lease of, `operation`. Way out: acquire a new lease.
    """

    @staticmethod
    def _said(name: str, operation: str, kind: str) -> str:
        return f"{operation}: the lease of {kind} {name!r} was already released; acquire a new one"


class LeaseLost(_Named):
    """The lease ended before it was released: what it protects may be in use by its next holder.

    Fields: `kind` and `name` of what it was a lease of, `reason`: "expired" (it was not renewed in time), "taken" (the
    server does not know it any more, or gave it to another client), "max_hold" (its `max_hold` is over), "closed" (its
    client was closed), "forked" (this process is a fork of the one that holds it), "broken by …" (who took it away with
    `Client.break_`, and why; `acquire` raises this where the lease was broken before it was told of it). Way out: stop
    writing, have the resource check fencing tokens, acquire a new lease.
    """

    def __init__(self, name: str, reason: str, kind: str = "lock") -> None:
        self.reason = reason
        message = f"the lease of {kind} {name!r} is lost ({reason}); another client may hold it now"
        super().__init__(message, name, kind)


class LeaseSuspect(_Named):
    """A lease with `crash_release` was not renewed for that long, so that another client may have got in by now. It is
    not lost for certain: a renewal that the server answers says whether it still holds.

    Fields: `kind` and `name` of what it is a lease of. Way out: `check()` asks the server; or wait for the next renewal
    while nothing is written.
    """

    def __init__(self, name: str, kind: str = "lock") -> None:
        message = f"the lease of {kind} {name!r} is suspect: no renewal was answered within its crash_release; check()"
        super().__init__(f"{message} asks the server whether it still holds", name, kind)


#: What to do where the error itself says nothing better.
_LOOK = "`holdfast doctor` checks what locks need of a server"
_DOCTOR_TRIES = " (`holdfast doctor` tries it)"
_REACH = f"check the address and that the server is running{_DOCTOR_TRIES}"


def _of(about: str | None) -> str:
    return f"{about}: " if about else ""


class ServerError(HoldfastError):
    """The server answered with an error, or with something that is not an answer. Usually the command was not
    executed: errors that can come half-way through a command say so.

    Fields: `node` (its address), `kind` (the server's error word, as "NOAUTH"; "nonsense" for what is no answer),
    `server_message`, `about` (what was asked for, as "lock 'orders:42'"; None where no key was involved). Way out: the
    message ends with it where one is known; `holdfast doctor` checks what locks need of a server.
    """

    def __init__(
        self, node: str, kind: str, server_message: str, way_out: str | None = None, about: str | None = None
    ) -> None:
        self.node, self.kind, self.server_message, self.about = node, kind, server_message, about
        where = f"server {node}" if node else "the server"
        super().__init__(f"{_of(about)}{where} said: {shown(server_message, 500)}; {way_out or _LOOK}")


class ScriptRefused(ServerError):
    """The server does not let this user run Lua scripts, and the operation needs them.

    Fields: those of `ServerError`. Way out: allow the user EVAL, EVALSHA and SCRIPT LOAD. A plain lock works without,
    where WATCH and MULTI are allowed; semaphores, `sync_replicas`, a quorum and the rest do not.
    """


class ServerUnreachable(HoldfastError):
    """There was no connection to the server, so that the command was certainly not executed.

    `acquire` without a timeout raises it after 30 s without a server, everything else sooner. Fields: `node` (the
    address), `because`, `about` (what was asked for, as "lock 'orders:42'"; None where no key was involved). Way out:
    check the address, the server and the network between; `holdfast doctor` tries them.
    """

    def __init__(self, node: str, because: str, about: str | None = None, way_out: str | None = None) -> None:
        self.node, self.because, self.about = node, because, about
        super().__init__(f"{_of(about)}server {node} cannot be reached: {shown(because, 500)}; {way_out or _REACH}")


class OutcomeUnknown(HoldfastError):
    """A command was sent and no answer came: it may have been executed.

    A lease that `acquire` may have been granted this way is given back in the background. Fields: `node` (the
    address), `because`, `about` (what was asked for, as "lock 'orders:42'"; None where no key was involved). Way out:
    look at the state before repeating what must not be done twice.
    """

    def __init__(self, node: str, because: str, about: str | None = None) -> None:
        self.node, self.because, self.about = node, because, about
        super().__init__(
            f"{_of(about)}no answer from server {node}: {shown(because, 500)}; the command may have been executed: "
            "check the state before repeating it"
        )


class QuorumUnreachable(HoldfastError):
    """Fewer than a majority of the independent servers gave an answer that counts.

    Fields: `needed` and `heard` (numbers of servers), `problems` (a text for each server that did not count), `about`
    (what was asked for, as "lock 'orders:42'"). Way out: bring these servers back; one that was restarted votes again
    after `restart_delay`.
    """

    def __init__(self, needed: int, heard: int, problems: tuple[str, ...], about: str | None = None) -> None:
        self.needed, self.heard, self.problems, self.about = needed, heard, problems, about
        listed = "; ".join(shown(problem, 500) for problem in problems)
        counted = f"{heard} servers gave an answer that counts and {needed} are needed"
        super().__init__(f"{_of(about)}{counted}; bring the others back: {listed}")


class InsufficientReplicas(_Named):
    """Fewer replicas than `sync_replicas` asks for acknowledged the write. What was acquired was given back; a lease
    that was to be extended lasts as long as it did before.

    Fields: `kind` and `name` of what was asked for, `needed` and `acked` (numbers of replicas). Way out: bring the
    replicas back, or ask for fewer.
    """

    def __init__(self, name: str, needed: int, acked: int, kind: str = "lock") -> None:
        self.needed, self.acked = needed, acked
        message = f"{kind} {name!r}: {acked} replicas acknowledged the write and {needed} are needed"
        super().__init__(f"{message}; bring the replicas back, or ask for fewer (sync_replicas)", name, kind)


class ClientClosed(HoldfastError):
    """The client was closed, before this call or while it waited. No fields. Way out: make a new client."""

    def __init__(self, message: str = "this client is closed; make a new one with connect() or Client(...)") -> None:
        super().__init__(message)


class CannotStartThread(HoldfastError, RuntimeError):
    """The background thread, which renews leases and reports their loss, could not be started. Nothing is held.

    Field: `because`. Way out: allow the process more threads, or acquire before the interpreter shuts down.
    """

    def __init__(
        self,
        because: str,
        way_out: str = "allow more threads (ulimit -u, the pids limit of the container), or acquire before the "
        "interpreter shuts down",
    ) -> None:
        self.because = because
        super().__init__(f"the thread that renews leases could not be started ({because}): {way_out}")


class UpgradeRefused(HoldfastError):
    """Another reader is already waiting for `upgrade()`: both would wait for each other.

    Field: `name` of the readers-writer lock. Way out: release the read lease, then acquire the write lock.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"another reader of rwlock {name!r} is already waiting to become the writer; release the read lease, then "
            "acquire the write lock"
        )


class DeclarationMismatch(_Named):
    """A semaphore, latch or barrier exists with another number than the one given here.

    Fields: `kind` and `name`, `declared` (the number given here), `stored` (the number on the server; 0: there is
    none, and none was given here). Way out: use the same number in every client; `resize()` changes a semaphore's.
    """

    def __init__(self, kind: str, name: str, declared: int, stored: int) -> None:
        self.declared, self.stored = declared, stored
        unit = {"semaphore": "permits", "barrier": "parties"}.get(kind, "count")
        if stored:
            out = ", or change it with resize()" if kind == "semaphore" else ""
            message = f"{kind} {name!r} has {unit}={stored}, not {declared}; use the same value in every client{out}"
        else:
            message = f"{kind} {name!r} does not exist yet: give its number ({unit}=n)"
        super().__init__(message, name, kind)


class TooManyPermits(HoldfastError):
    """More permits were asked for than the semaphore has in all, so that waiting would never end.

    Fields: `name`, `asked`, `limit`. Way out: ask for fewer, or `resize()` it.
    """

    def __init__(self, name: str, asked: int, limit: int) -> None:
        self.name, self.asked, self.limit = name, asked, limit
        super().__init__(
            f"{asked} permits of semaphore {name!r} can never be granted: it has {limit}; ask for fewer, or resize() it"
        )


class BrokenBarrierError(HoldfastError):
    """The barrier was broken before or while this party waited: the time of a party was over, or `abort()` or
    `reset()` was called.

    Field: `name`. Way out: `reset()` makes it usable again.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"barrier {name!r} is broken; reset() makes it usable again")


class OptimisticConflict(HoldfastError):
    """The watched keys changed during each attempt of an optimistic transaction. Nothing was written.

    Fields: `keys`, `attempts`. Way out: more attempts, or a lock where contention is the rule.
    """

    def __init__(self, keys: tuple[str, ...], attempts: int) -> None:
        self.keys, self.attempts = keys, attempts
        changed = f"{', '.join(keys)} changed during each of {attempts} attempts"
        super().__init__(f"{changed}; allow more attempts, or take a lock")


class OnceConflict(HoldfastError):
    """`once` was called with the key of a job that was run for another request: its `fingerprint` differs.

    Fields: `name`. Way out: a key of its own for each request; payment APIs answer 409 or 422 to that.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"once {name!r} was run for another request: the fingerprint differs")


class MakeFailed(HoldfastError):
    """The call that was waited for has failed, and its failure is shared (`failure="share"`).

    Fields: `name` of the lock, and `error`, as text: its type and message. Way out: as for the error itself.
    """

    def __init__(self, name: str, error: str) -> None:
        self.name, self.error = name, error
        super().__init__(f"{name!r} could not be made by the one who tried: {error}")


class StaleFencingToken(HoldfastError):
    """A write was refused because a newer lease has already written: this lease is over.

    Fields: `resource`, `token` (the fencing token that was refused), `seen` (the newest one so far, or None where the
    resource did not say). Way out: stop writing; acquire a new lease.
    """

    def __init__(self, resource: str, token: int, seen: int | None) -> None:
        self.resource, self.token, self.seen = resource, token, seen
        super().__init__(
            f"fencing token {token} is refused by {resource!r}, which has seen {seen or 'a newer one'}: the lease it "
            "belongs to is over; acquire a new one"
        )
