"""Every error that holdfast raises on purpose.

Laws: one fact, one error; every error carries its facts as fields, names a way out where there is one,
survives pickling, and is a `HoldfastError`.
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
    "DeclarationMismatch",
    "HoldfastError",
    "InsufficientReplicas",
    "LeaseLost",
    "LeaseReleased",
    "NotHeld",
    "OptimisticConflict",
    "OutcomeUnknown",
    "QuorumUnreachable",
    "ScriptRefused",
    "ServerError",
    "ServerUnreachable",
    "StaleFencingToken",
    "TooManyPermits",
    "UpgradeRefused",
]


def shown(text: object, most: int = 200) -> str:
    """Text of somebody else's for a message: not longer than that, and without control characters."""
    text = str(text)
    cut = text[:most] + "…" if len(text) > most else text
    return cut if cut.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in cut)


class HoldfastError(Exception):
    """Root of all errors of this library."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self._fields = fields
        for field, value in fields.items():
            setattr(self, field, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.message, self._fields)


def _revive(kind: type[HoldfastError], message: str, fields: dict[str, Any]) -> HoldfastError:
    error = kind.__new__(kind)
    HoldfastError.__init__(error, message, **fields)
    return error


class ConfigurationError(HoldfastError, ValueError):
    """An argument was refused before anything was sent: `argument`, `value`, `allowed`."""

    argument: str
    value: object
    allowed: str

    def __init__(self, argument: str, value: object, allowed: str) -> None:
        value = _without_secrets(value)
        shown = _shown(value)
        super().__init__(
            f"{argument} = {shown} is not allowed: {allowed}", argument=argument, value=value, allowed=allowed
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A value may be anything a caller passed in, also something that does not pickle.
        return _revive, (
            type(self),
            self.message,
            {"argument": self.argument, "value": _shown(self.value), "allowed": self.allowed},
        )


#: What may be told of an address: hosts and ports, and a path without anything unusual.
_HOSTS = re.compile(r"((\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]*)(:[0-9]{1,5})?(,|$))*")
_PATH = re.compile(r"[A-Za-z0-9_./~-]{0,120}")
_SCHEME = re.compile(r"(redis|rediss|valkey|valkeys)(\+(sentinel|cluster))?|redlocks?|unix|https?", re.IGNORECASE)


def redacted(url: str) -> str:
    """The URL without user, password and options. What may be a part of them, in a URL that is wrong, is left out."""
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


def _without_secrets(value: Any) -> Any:
    """What an error may keep of an argument: URLs and clients of redis-py know passwords."""
    if isinstance(value, (bytes, bytearray)) and (b"://" in value or b"@" in value):
        value = bytes(value).decode("utf-8", "replace")
    if isinstance(value, str):
        return redacted(value) if "://" in value or "@" in value else value
    if type(value) in (list, tuple) and len(value) <= 100:
        return [_without_secrets(each) for each in value]
    if hasattr(type(value), "from_url") or hasattr(value, "connection_pool") or hasattr(value, "connection_kwargs"):
        return f"<{type(value).__module__}.{type(value).__qualname__}>"
    return value


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except Exception:  # an int of thousands of digits; a broken object
        return f"<{type(value).__name__} that cannot be shown>"
    return shown if len(shown) <= 200 else shown[:200] + "…"


class AcquireTimeout(HoldfastError, TimeoutError):
    """Waiting ended before the turn came: `name`, `waited_s`, `holder` (its token, if known), `kind` of what."""

    kind: str
    name: str
    waited_s: float
    holder: str | None

    def __init__(
        self,
        name: str,
        waited_s: float,
        holder: str | None = None,
        because: str | None = None,
        kind: str = "lock",
    ) -> None:
        by = f", held by {shown(holder, 128)}" if holder else ""
        why = f" ({because})" if because else ""
        super().__init__(
            f"{kind} {name!r} was not acquired within {waited_s:.3f} s{by}{why}",
            kind=kind,
            name=name,
            waited_s=waited_s,
            holder=holder,
            because=because,
        )


class AcquireCancelled(HoldfastError):
    """The `cancel` object of this acquire was set from elsewhere while it waited: `name`, `kind` of what."""

    kind: str
    name: str

    def __init__(self, name: str, kind: str = "lock") -> None:
        super().__init__(f"waiting for {kind} {name!r} was cancelled", kind=kind, name=name)


class AlreadyHeld(HoldfastError):
    """This thread or task holds it already and would wait for itself indefinitely.

    `name` and `kind` of what it holds; `wanted`: the kind of what it asked for.
    """

    kind: str
    name: str
    wanted: str

    def __init__(self, name: str, kind: str = "lock", wanted: str = "lock") -> None:
        out = _WAYS_OUT.get((kind, wanted), "release that lease first")
        super().__init__(
            f"{kind} {name!r} is held by this thread or task already, which asked for the {wanted}; {out}",
            kind=kind,
            name=name,
            wanted=wanted,
        )


#: For a thread that holds the first and asks for the second.
_WAYS_OUT = {
    ("lock", "lock"): "release it first, or use reentrant=True",
    ("read lock", "read lock"): "go on with the lease it has, or release that first",
    ("write lock", "write lock"): "go on with the lease it has, or release that first",
    ("read lock", "write lock"): "use upgrade() of its read lease",
    ("write lock", "read lock"): "use downgrade() of its write lease",
    ("election", "election"): "it leads: go on with the lease it has, or resign() first",
}


class NotHeld(HoldfastError):
    """An operation that only a holder may do was asked for by somebody else: `name`, `operation`, `kind` of what."""

    kind: str
    name: str
    operation: str

    def __init__(self, name: str, operation: str, kind: str = "lock") -> None:
        super().__init__(self._said(name, operation, kind), kind=kind, name=name, operation=operation)

    @staticmethod
    def _said(name: str, operation: str, kind: str) -> str:
        return f"{operation} needs {kind} {name!r} to be held by the thread or task that calls it, and it is not"


class LeaseReleased(NotHeld):
    """The lease was released before: `name`, `operation`, `kind` of what."""

    @staticmethod
    def _said(name: str, operation: str, kind: str) -> str:
        return f"{operation}: the lease of {kind} {name!r} was released before; acquire it anew"


class LeaseLost(HoldfastError):
    """The lease ended before it was released: `name`, `reason` ("expired", "taken", "closed", …), `kind` of what."""

    kind: str
    name: str
    reason: str

    def __init__(self, name: str, reason: str, kind: str = "lock") -> None:
        super().__init__(
            f"the lease of {kind} {name!r} is lost ({reason}); somebody else may have it now",
            kind=kind,
            name=name,
            reason=reason,
        )


def _of(about: str | None) -> str:
    return f"{about}: " if about else ""


class ServerError(HoldfastError):
    """The server refused: `node`, `kind` (its error word, as NOAUTH), `server_message`, `about` (what was asked
    for, as "lock 'orders:42'", or None)."""

    node: str
    kind: str
    server_message: str
    about: str | None

    def __init__(
        self, node: str, kind: str, server_message: str, way_out: str | None = None, about: str | None = None
    ) -> None:
        out = f"; {way_out}" if way_out else ""
        where = f"server {node}" if node else "the server"
        super().__init__(
            f"{_of(about)}{where} said: {shown(server_message, 500)}{out}",
            node=node,
            kind=kind,
            server_message=server_message,
            about=about,
        )


class ScriptRefused(ServerError):
    """The server does not let this user run scripts, and what was asked for needs them.

    A plain lock does not, where WATCH and MULTI are allowed; semaphores, `sync_replicas`, a quorum and the rest do.
    """


class ServerUnreachable(HoldfastError):
    """No connection to the server: `node`, `because`, `about` (what was asked for, or None)."""

    node: str
    because: str
    about: str | None

    def __init__(self, node: str, because: str, about: str | None = None) -> None:
        super().__init__(
            f"{_of(about)}server {node} cannot be reached: {because}", node=node, because=because, about=about
        )


class OutcomeUnknown(HoldfastError):
    """A request was sent and no answer came, so that it may have been carried out: `node`, `because`, `about`."""

    node: str
    because: str
    about: str | None

    def __init__(self, node: str, because: str, about: str | None = None) -> None:
        super().__init__(
            f"{_of(about)}no answer from server {node}: {because}; what was asked may have been done",
            node=node,
            because=because,
            about=about,
        )


class QuorumUnreachable(HoldfastError):
    """Too few of the independent servers gave an answer that counts: `needed`, `heard`, `problems` (text for each)."""

    needed: int
    heard: int
    problems: tuple[str, ...]

    def __init__(self, needed: int, heard: int, problems: tuple[str, ...]) -> None:
        listed = "; ".join(problems)
        super().__init__(
            f"{heard} servers gave an answer that counts and {needed} are needed: {listed}",
            needed=needed,
            heard=heard,
            problems=problems,
        )


class InsufficientReplicas(HoldfastError):
    """Too few replicas acknowledged the write, so that it was given back: `name`, `needed`, `acked`, `kind` of what."""

    kind: str
    name: str
    needed: int
    acked: int

    def __init__(self, name: str, needed: int, acked: int, kind: str = "lock") -> None:
        super().__init__(
            f"{kind} {name!r}: {acked} replicas acknowledged and {needed} are needed, so that it is not held",
            kind=kind,
            name=name,
            needed=needed,
            acked=acked,
        )


class ClientClosed(HoldfastError):
    """The client was closed and cannot be used any more."""

    def __init__(self, message: str = "this client is closed; make a new one with connect() or Client(...)") -> None:
        super().__init__(message)


class CannotStartThread(HoldfastError, RuntimeError):
    """The thread that renews leases and tells of losses could not be started: `because`. Nothing is held."""

    because: str

    def __init__(self, because: str) -> None:
        super().__init__(
            f"the thread that looks after leases could not be started ({because}): allow more threads (ulimit -u, the "
            f"pids limit of the container), or acquire before the interpreter ends",
            because=because,
        )


class UpgradeRefused(HoldfastError):
    """Another reader is upgrading already; both would wait for each other: `name`."""

    name: str

    def __init__(self, name: str) -> None:
        super().__init__(
            f"another reader of shared lock {name!r} is waiting to become the writer; release the read lease first",
            name=name,
        )


class DeclarationMismatch(HoldfastError):
    """Another client declared it with another number: `kind`, `name`, `declared` and `stored` (0: none was given)."""

    kind: str
    name: str
    declared: int
    stored: int

    def __init__(self, kind: str, name: str, declared: int, stored: int) -> None:
        unit = {"semaphore": "permits", "barrier": "parties"}.get(kind, "count")
        if stored:
            out = ", or change it with resize()" if kind == "semaphore" else ""
            message = f"{kind} {name!r} has {unit}={stored} and not {declared}; declare it alike everywhere{out}"
        else:
            message = f"{kind} {name!r} is not known yet: say how many ({unit}=n)"
        super().__init__(message, kind=kind, name=name, declared=declared, stored=stored)


class TooManyPermits(HoldfastError):
    """More permits were asked for than the semaphore has: `name`, `asked`, `limit`."""

    name: str
    asked: int
    limit: int

    def __init__(self, name: str, asked: int, limit: int) -> None:
        super().__init__(
            f"{asked} permits of semaphore {name!r} can never be granted: it has {limit}; ask for fewer, "
            "or resize() it",
            name=name,
            asked=asked,
            limit=limit,
        )


class BrokenBarrierError(HoldfastError):
    """The barrier was broken while, or before, this party waited: `name`."""

    name: str

    def __init__(self, name: str) -> None:
        super().__init__(f"barrier {name!r} is broken; reset() makes it usable again", name=name)


class OptimisticConflict(HoldfastError):
    """The watched keys changed at every attempt: `keys`, `attempts`."""

    keys: tuple[str, ...]
    attempts: int

    def __init__(self, keys: tuple[str, ...], attempts: int) -> None:
        super().__init__(
            f"{', '.join(keys)} changed during each of {attempts} attempts; try more often, or take a lock",
            keys=keys,
            attempts=attempts,
        )


class StaleFencingToken(HoldfastError):
    """A newer holder has been here: `resource`, `token` (refused), `seen` (the newest so far, or None: not told)."""

    resource: str
    token: int
    seen: int | None

    def __init__(self, resource: str, token: int, seen: int | None) -> None:
        super().__init__(
            f"fencing token {token} is not accepted by {resource!r}, which has seen {seen or 'a newer one'}: the lease "
            "it belongs to is over",
            resource=resource,
            token=token,
            seen=seen,
        )
