"""What a user of the server (ACL) must be allowed, for each primitive: the least, ready to paste.

Theory: what happens inside of scripts is allowed or denied command by command, so the commands are read from the
scripts themselves; what is sent beside them stands here. `tests/contract/test_rights.py` tries each primitive with
just its rights, and with one right less. Connecting, AUTH and HELLO need no right; what a client library sends of its
own accord then (CLIENT SETINFO) may be denied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from holdfast._core.kinds import KINDS
from holdfast._lua import SCRIPTS

_COMMAND = re.compile(r"(?:redis\.p?call|ask)\(\s*'([A-Z]+)'(?:\s*,\s*'([A-Z]+)')?")
#: Sub-commands that can be allowed alone.
_SUBCOMMANDS = ("pubsub|numsub", "pubsub|shardnumsub")
#: What scripts do without, and not every server knows.
_SHARDED = ("spublish", "pubsub|shardnumsub")
#: How scripts are run; the description of who a client is; the inbox of waiters and holders.
_SCRIPTS = ("evalsha", "eval", "script|load")
_INBOX = ("subscribe",)
_DESCRIPTION = ("set", "getrange")
#: Gates have the same scripts.
_SIGNALS = ", ".join(kind.name for kind in KINDS if kind.says)

#: The scripts of each primitive, and what it sends beside them: who holds something says who it is.
PRIMITIVES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    _SIGNALS if kind.says else kind.name: ((*kind.scripts, "hears"), _DESCRIPTION + _INBOX if kind.extend else _INBOX)
    for kind in KINDS
} | {
    "optimistic": ((), ("watch", "unwatch", "multi", "exec", "discard", "get", "set", "del")),
    "compare_and_set": (("set_if",), ("set", "get")),
    "fencing": (("fenced_set",), ()),
    "once, get_or_set": (
        ("rw_acquire", "rw_release", "rw_renew", "inspect", "fenced_set", "hears"),
        (*_DESCRIPTION, *_INBOX, "get"),
    ),
    "quorum": (
        ("quorum_acquire", "multi_renew", "release", "renew", "renew_many", "inspect"),
        _DESCRIPTION,
    ),
    "list, top": (("overview",), ("scan", "get", "getrange")),
    "grants a second (top, web)": (("overview", "counts"), ("scan", "get", "getrange")),
    "watch": (("overview",), ("get", "getrange")),
    "deadlocks, web": (("overview", "there"), ("scan", "get", "getrange")),
    "break, ask": (("overview", "tell", "release", "rw_release", "sem_release"), ("get",)),
}
#: What stands in a part that a script includes, where the script does not go.
_NOT_REACHED = {"inspect": {"zcount", "zrange", "zrangebyscore"}}
#: Without it, no lease has `crash_release`.
_NOT_REACHED |= {script: {"info"} for script in ("acquire", "cond_wait", "crash_acquire", "crash_renew", "renew_many")}
#: What else is needed, and when.
NEEDS = {
    "sync_replicas": ("wait", "info"),
    "crash_release": ("info",),
    "Cluster": ("cluster|slots", "asking"),
    "sharded messages in a Cluster (Redis 7 and later)": ("ssubscribe", "sunsubscribe", *_SHARDED),
    "a database other than 0": ("select",),
    "holdfast doctor": ("time", "info", "config|get"),
}


#: What servers say of a command that is denied: it is named (Valkey and, outside of scripts, Redis), or its line is.
_NAMED = re.compile(r"run the '([^']+)' command")
_LINE = re.compile(r"user_script:\s?(\d+)")
#: And of one that they do not have.
_NO_EVAL = re.compile(r"unknown command\W*eval", re.IGNORECASE)


def _commands(text: str) -> set[str]:
    found = set()
    for command, argument in _COMMAND.findall(text):
        both = f"{command}|{argument}".lower()
        found.add(both if both in _SUBCOMMANDS else command.lower())
    return found


def rights(*primitives: str) -> list[str]:
    """The commands of these primitives, or of all: in alphabetical order, those that run scripts first."""
    names = primitives or tuple(PRIMITIVES)
    needed: set[str] = set()
    for name in names:
        scripts, beside = PRIMITIVES[name]
        needed.update(beside)
        for script in scripts:
            needed |= _commands(SCRIPTS[script].text) - _NOT_REACHED.get(script, set())
    needed.difference_update(_SHARDED)
    runs = _SCRIPTS if any(PRIMITIVES[name][0] for name in names) else ()
    return [*runs, *sorted(needed - set(runs))]


def rule(commands: Iterable[str], namespace: str | None = "holdfast") -> str:
    """The rights as ACL SETUSER takes them, on every version that is supported."""
    given = " ".join(f"+{command}" for command in commands)
    keys = f"~{namespace}:*" if namespace is not None else "~*"
    return f"resetkeys {keys} resetchannels &{namespace or 'holdfast'}:inbox:* -@all {given}"


def table(namespace: str | None = "holdfast") -> list[tuple[str, str]]:
    """(What it is for, the rights) of each primitive, and of what else is needed sometimes."""
    rows = [("all of it", rule(rights(), namespace))]
    rows += [(name, rule(rights(name), namespace)) for name in PRIMITIVES]
    return rows + [(f"also, for {what}", " ".join(f"+{command}" for command in more)) for what, more in NEEDS.items()]


def missing(message: str, request: Any) -> str | None:
    """The right without which a request was denied with this message, as ACL SETUSER takes it; None: not known."""
    named = _NAMED.search(message)
    if named is not None:  # Redis 6.2 names "pubsub" where it lacks "pubsub|numsub"
        return "+" + next((each for each in _SUBCOMMANDS if each.startswith(f"{named[1]}|")), named[1])
    keys = getattr(request, "keys", None) or [getattr(request, "key", None) or ""]
    namespace, has_tag, _ = keys[0].partition(":{")
    if "channel" in message:
        return f"&{namespace if has_tag else 'holdfast'}:inbox:*"
    if "access" in message and "key" in message:
        return f"~{namespace}:*" if has_tag else "~" + " ~".join(key for key in keys if key)
    return " ".join(f"+{command}" for command in _at_fault(message, request)) or None


def lacking(message: str, request: Any) -> str | None:
    """Name what a script needs that the server lacks, or lets none use; None: it is not known, or no script."""
    if getattr(request, "script", None) is None:
        return None
    if _NO_EVAL.search(message) is not None:
        return "EVAL"
    named = " or ".join(command.replace("|", " ").upper() for command in _at_fault(message, request))
    return f"{named} in scripts" if named else None


def _at_fault(message: str, request: Any) -> list[str]:
    """The commands of the script's line that a message is about."""
    script = getattr(request, "script", None)
    lines = [] if script is None else SCRIPTS[script].text.split("\n")
    for line in _LINE.findall(message):  # of nested calls, the one that names a command
        commands = _commands(lines[int(line) - 1]) if int(line) <= len(lines) else ()
        if commands:
            return sorted(commands)
    return []
