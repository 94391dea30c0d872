"""What can go wrong between a protocol and a server, as one exception with two questions answered.

`maybe_executed`: may the server have carried the request out? False only where that is certain to be not so.
`transient`: does this go by itself (LOADING, a broken connection, a failover), so that asking again makes sense?
"""

from __future__ import annotations

import re
from typing import Any

from holdfast._core.kinds import KIND_OF_SCRIPT, KINDS, RWLOCK
from holdfast._core.rights import lacking, missing
from holdfast.errors import (
    ConfigurationError,
    HoldfastError,
    OutcomeUnknown,
    ScriptRefused,
    ServerError,
    ServerUnreachable,
    quoted,
    shown,
)

#: Error words that pass by themselves, and the reason for which they do.
_PASSING = frozenset(
    {
        "LOADING",  # reading its data set
        "BUSY",  # a script runs too long
        "READONLY",  # we speak to a former master
        "MASTERDOWN",  # a replica without its master
        "CLUSTERDOWN",  # slots without an owner, for now
        "TRYAGAIN",  # half of a slot's keys have moved
        "MOVED",
        "ASK",
        "NOREPLICAS",  # too few replicas for min-replicas-to-write
        "UNBLOCKED",  # a failover ended the command
        "NOSCRIPT",
    }
)

_FOREIGN = "locks need this command; if this is a Sentinel, use redis+sentinel://HOST:PORT/SERVICE"
_WAY_OUT = {
    "MAXCLIENTS": "close connections, or raise the server's maxclients",
    "NOAUTH": "give a password or user in the URL or the client",
    "WRONGPASS": "check user name and password",
    "NOPERM": "the user needs the commands and keys that `holdfast doctor --rights` lists",
    "OOM": "the server is at its maxmemory: give it memory or a smaller data set",
    "READONLY": "this is a replica: connect to the master, or through Sentinel",
    "MISCONF": "the server cannot persist and refuses writes: see its log",
    "NOREPLICAS": "too few replicas are connected for min-replicas-to-write",
    "BUSY": "a script is blocking the server: SCRIPT KILL ends it",
    "LOADING": "the server is still reading its data set",
    "CROSSSLOT": "use names that share a hash tag",
    "MOVED": "this is a node of a Cluster: connect to it with redis+cluster:// or a Cluster client",
    "CLUSTERDOWN": "the Cluster has slots without an owner: see CLUSTER INFO",
    "NOSCRIPT": "the server forgets scripts at once",
    "nonsense": "the connection was closed, and the command may have been executed; is this a Redis or Valkey server, "
    "with nothing between that changes replies?",
}
#: What servers say of a command that is denied inside a script (Redis 7, Redis 6.2 and Valkey).
_DENIED_INSIDE = re.compile(
    r"acl failure in script|the user executing the script can't|user_script.*(noperm|no permissions)", re.IGNORECASE
)
#: And of one that they do not have, or not in scripts.
_LACKS = re.compile(r"unknown (redis )?command|unsupported|not (allowed|supported|available)", re.IGNORECASE)
#: Where in a script that was, which says nothing to users (Redis 6.2, later servers).
_PLACE = re.compile(
    r"Error running script \(call to \w+\): |@user_script: ?\d+: -?|\.? script: (\w+, )?on @user_script:\d+\.?"
)
_RIGHTS = "`holdfast doctor --rights` lists all"
#: A key of ours: namespace, name, and what of that name it is.
_KEY = re.compile(r"(?:[^{}]+:)?\{(.*)\}(?::([a-z]+))?", re.DOTALL)
_KIND_OF_PART = {kind.part: kind.name for kind in KINDS if kind.part}
_NAME_SHOWN_MAX = 100
#: Servers repeat what they do not know, with its arguments.
_SAID_SHOWN_MAX = 60
#: How many of the keys of a request are named. A lock has four, a readers-writer lock six.
_KEYS_SHOWN_MAX = 12


def _about(request: Any) -> str | None:
    """Describe what a request was about, as `semaphore 'uploads'`."""
    keys = getattr(request, "keys", None)
    key = keys[0] if keys else getattr(request, "key", None)
    script = getattr(request, "script", None)
    if script == "inspect" and keys and keys[-1].endswith(":upgraded"):
        script = RWLOCK.ask  # one script looks at locks of all kinds
    return what_is_at(key, script) if isinstance(key, str) else None


def what_is_at(key: str, script: str | None = None) -> str:
    """Describe what a key belongs to, as `semaphore 'uploads'`; `script` was called with it."""
    found = _KEY.fullmatch(key)
    name, part = (found[1], found[2]) if found is not None else (key, None)
    if script in ("set_if", "fenced_set") or (script is None and found is None):
        kind, name = "key", key
    else:
        kind = _KIND_OF_PART.get(part or "", part or KIND_OF_SCRIPT.get(script or "", "lock"))
        kind = "condition of lock" if kind == "condition" else kind
    return f"{kind} {quoted(name)}"


def _way_out(kind: str, request: Any) -> str | None:
    """Advise on that kind of error. The server does not name the key of the wrong type: all of the request are."""
    if kind != "WRONGTYPE":
        return _WAY_OUT.get(kind)
    key = getattr(request, "key", None)
    keys = [
        repr(key if len(key) <= 2 * _NAME_SHOWN_MAX else key[: 2 * _NAME_SHOWN_MAX] + "…")
        for key in getattr(request, "keys", None) or ([] if key is None else [key])
    ]
    more = f", … ({len(keys)} in all)" if len(keys) > _KEYS_SHOWN_MAX else ""
    shown = ", ".join(keys[:_KEYS_SHOWN_MAX]) + more
    where = f"the key {shown}" if len(keys) == 1 else f"one of the keys {shown}" if keys else "a key of that name"
    return f"something else is stored under {where}: delete it, or use another name or namespace"


class RequestFailed(Exception):
    """A request that did not end in a reply. `kind` is the server's error word, or one of ours in lower case.

    Ours: "refused" (no connection), "silent" (no answer in time), "broken" (the connection ended), "nonsense" (an
    answer that is none; see `holdfast._core.replies`), "untold" (no message can come from there), "unfit" (the client
    cannot connect, whatever the server), "foreign" (the server is of another kind than the client is for), "closed".
    """

    def __init__(self, kind: str, message: str, node: str, *, maybe_executed: bool, transient: bool) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.node = node
        self.maybe_executed = maybe_executed
        self.transient = transient
        #: The request (an effect) that ended so, where it is known.
        self.request: Any = None
        #: What to do about it, where that depends on more than the kind.
        self.way_out: str | None = None
        #: Until it is known to have passed, s; 0: that is not known.
        self.passes_in_s = 0.0

    @property
    def lacks_command(self) -> bool:
        """Whether the server does not have the command, or lets no script use it."""
        return self.kind == "ERR" and _LACKS.search(self.message) is not None

    def about(self, request: Any) -> None:
        """Note the effect that ended so, unless one is noted that says more."""
        if self.request is None:
            self.request = request

    @property
    def unsettled(self) -> bool:
        """Whether a give-back that ended so has to be sent again: it may not have been carried out, and can be."""
        return self.transient or self.kind == "nonsense"

    def public(self) -> HoldfastError:
        """The error to raise to the user."""
        about = _about(self.request)
        if self.kind == "unfit":
            return ConfigurationError(
                "redis_client", self.node, f"a client, or a URL, that can connect: {self.message}"
            )
        if self.kind == "foreign":
            return ConfigurationError("server", self.node, self.message)
        if self.lacks_command and (command := lacking(self.message, self.request)) is not None:
            needs = f"{about or 'this'} needs {command}, and it said: {shown(self.message, _SAID_SHOWN_MAX)}"
            return ConfigurationError("server", self.node, f"{needs}; `holdfast doctor` says what works there")
        if self.kind in ("refused", "silent", "broken", "closed"):
            if self.maybe_executed and self.kind != "refused":
                return OutcomeUnknown(self.node, self.message, about)
            return ServerUnreachable(self.node, self.message, about, self.way_out)
        said = _PLACE.sub("", self.message)
        if self.kind == "NOPERM" and self.way_out is None:
            out = self.denied() or _WAY_OUT["NOPERM"]
            of_scripts = "eval" in self.message.lower() or "script" in self.message.lower()
            refused = ScriptRefused if of_scripts and not _DENIED_INSIDE.search(self.message) else ServerError
            return refused(self.node, self.kind, said, out, about)
        known = _FOREIGN if self.lacks_command else _way_out(self.kind, self.request)
        return ServerError(self.node, self.kind, said, self.way_out or known, about)

    def denied(self) -> str | None:
        """The right that the user lacks, in words; None where it is not that, or not known which."""
        right = missing(self.message, self.request) if self.kind == "NOPERM" else None
        return None if right is None else f"no permission: the user needs {right}; {_RIGHTS}"

    def again(self, *, maybe_executed: bool) -> RequestFailed:
        """The same for another request."""
        failure = RequestFailed(
            self.kind, self.message, self.node, maybe_executed=maybe_executed, transient=self.transient
        )
        failure.way_out = self.way_out
        return failure

    def __repr__(self) -> str:
        return (
            f"RequestFailed({self.kind!r}, {self.message!r}, {self.node!r}, "
            f"maybe_executed={self.maybe_executed}, transient={self.transient})"
        )


def refusal(message: str, node: str) -> RequestFailed:
    """The trouble behind a server's error reply.

    A refused request changed nothing: our scripts check and refuse before their first write, and the words that
    can come out of a running script (OOM, READONLY) come from its first write. UNBLOCKED and a script killed
    half-way are the exceptions.
    """
    kind = message.split(" ", 1)[0]
    if kind == "ERR" and "max number of clients" in message:
        return RequestFailed("MAXCLIENTS", message, node, maybe_executed=False, transient=True)
    if _DENIED_INSIDE.search(message):
        return RequestFailed("NOPERM", message, node, maybe_executed=True, transient=False)  # those before it were not
    if kind == "ERR" and ("Error running script" in message or "user_script" in message):
        # Redis 6.2 wraps what a command inside the script message: "ERR Error running script …: @user_script:… -OOM …"
        for word in ("OOM", "READONLY", "NOPERM", "MISCONF", "NOREPLICAS", "WRONGTYPE"):
            if f"-{word}" in message or f" {word} " in message:
                return RequestFailed(word, message, node, maybe_executed=True, transient=word in _PASSING)
    if kind == "EXECABORT" and " NOPERM " in message:
        kind = "NOPERM"  # EXEC itself is denied
    sent = kind in ("UNBLOCKED", "UNKILLABLE") or "killed" in message.lower()
    return RequestFailed(kind, message, node, maybe_executed=sent, transient=kind in _PASSING)
