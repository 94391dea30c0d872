"""What can go wrong between a protocol and a server, as one exception with two questions answered.

`sent`: may the server have carried the request out? False only where that is certain to be not so.
`passing`: does this go by itself (LOADING, a broken connection, a failover), so that asking again makes sense?
"""

from __future__ import annotations

from holdfast.errors import HoldfastError, OutcomeUnknown, ScriptRefused, ServerError, ServerUnreachable

__all__ = ["Trouble", "refusal"]

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

_WAY_OUT = {
    "NOAUTH": "give a password or user in the URL or the client",
    "WRONGPASS": "check user name and password",
    "NOPERM": "the user needs the commands and keys that `holdfast doctor` lists",
    "OOM": "the server is at its maxmemory: give it memory or a smaller data set",
    "READONLY": "this is a replica: connect to the master, or through Sentinel",
    "MISCONF": "the server cannot persist and refuses writes: see its log",
    "NOREPLICAS": "too few replicas are connected for min-replicas-to-write",
    "BUSY": "a script is blocking the server: SCRIPT KILL ends it",
    "LOADING": "the server is still reading its data set",
    "CROSSSLOT": "use names that share a hash tag",
}


class Trouble(Exception):
    """A request that did not end in a reply. `kind` is the server's error word, or one of ours in lower case.

    Ours: "refused" (no connection), "silent" (no answer in time), "broken" (the connection ended), "nonsense" (an
    answer that is none; see `holdfast._core.replies`), "closed".
    """

    def __init__(self, kind: str, said: str, node: str, *, sent: bool, passing: bool) -> None:
        super().__init__(said)
        self.kind = kind
        self.said = said
        self.node = node
        self.sent = sent
        self.passing = passing

    @property
    def unsettled(self) -> bool:
        """Whether a give-back that ended so has to be sent again: it may not have been carried out, and can be."""
        return self.passing or self.kind == "nonsense"

    def public(self) -> HoldfastError:
        """The error to raise at a face."""
        if self.kind == "refused":
            return ServerUnreachable(self.node, self.said)
        if self.kind in ("silent", "broken", "closed"):
            return OutcomeUnknown(self.node, self.said) if self.sent else ServerUnreachable(self.node, self.said)
        if self.kind == "NOPERM" and ("eval" in self.said.lower() or "script" in self.said.lower()):
            return ScriptRefused(self.node, self.kind, self.said, _WAY_OUT["NOPERM"])
        return ServerError(self.node, self.kind, self.said, _WAY_OUT.get(self.kind))

    def __repr__(self) -> str:
        return f"Trouble({self.kind!r}, {self.said!r}, {self.node!r}, sent={self.sent}, passing={self.passing})"


def refusal(said: str, node: str) -> Trouble:
    """The trouble behind a server's error reply.

    A refused request changed nothing: our scripts check and refuse before their first write, and the words that
    can come out of a running script (OOM, READONLY) come from its first write. UNBLOCKED and a script killed
    half-way are the exceptions.
    """
    kind = said.split(" ", 1)[0]
    if kind == "ERR" and "max number of clients" in said:
        return Trouble("MAXCLIENTS", said, node, sent=False, passing=True)
    if kind == "ERR" and ("Error running script" in said or "user_script" in said):
        # Redis 6.2 wraps what a command inside the script said: "ERR Error running script …: @user_script:… -OOM …"
        for word in ("OOM", "READONLY", "NOPERM", "MISCONF", "NOREPLICAS"):
            if f"-{word}" in said or f" {word} " in said:
                return Trouble(word, said, node, sent=True, passing=word in _PASSING)
    sent = kind in ("UNBLOCKED", "UNKILLABLE") or "killed" in said.lower()
    return Trouble(kind, said, node, sent=sent, passing=kind in _PASSING)
