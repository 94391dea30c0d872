"""Commands as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import hiredis

from holdfast._core.effects import Call
from holdfast._core.mutex import Each
from holdfast._core.replies import FITS
from holdfast._lua import SCRIPTS, Script

#: Groups that are remembered.
_GROUPS_MAX = 2_000

#: Kinds of words that `str` makes text.
_USUAL = frozenset({str, int})

_KEYS, _TOKEN = attrgetter("prepared.keys"), attrgetter("token")


def pack_command(words: Sequence[str | int | float | bytes]) -> bytes:
    """Any command."""
    # Numbers are made text here: where a signal handler raises while the library does that, the process crashes.
    texts: Any = map(str, words)
    if not _USUAL.issuperset(map(type, words)):
        texts = [
            f"{word:d}" if isinstance(word, int) else str(word) if isinstance(word, float) else word for word in words
        ]
    packed: bytes = hiredis.pack_command(tuple(texts))
    return packed


def pack_script(script: Script, keys: Sequence[str], args: Sequence[str | int | bytes]) -> bytes:
    """EVALSHA of a script."""
    return pack_command(("EVALSHA", script.sha, len(keys), *keys, *args))


def _part(*words: str | int | bytes) -> bytes:
    """Some words of a command, without its count."""
    return pack_command(words).partition(b"\r\n")[2]


def spelled_out(packed: bytes, script: Script) -> bytes:
    """EVALSHA made into EVAL, which loads and runs in one go: the server cannot forget it in between."""
    count, _, rest = packed.partition(script.head)
    text = script.text.encode()
    return b"%b$4\r\nEVAL\r\n$%d\r\n%b\r\n%b" % (count, len(text), text, rest)


class Group:
    """Requests that may travel together: the script that takes them, its shared arguments, and its keys for each."""

    __slots__ = ("args", "args_count", "keys_count", "script")

    def __init__(self, each: Each) -> None:
        self.script = SCRIPTS[each.script]
        self.args = _part(*each.args)
        self.args_count = len(each.args)
        self.keys_count = len(each.keys)

    def packed(self, asks: Sequence[Any]) -> bytes:
        """One request for all of these."""
        count = len(asks)
        keys = self.keys_count * count
        parts = [b"*%d\r\n" % (3 + keys + self.args_count + count), self.script.head, _part(keys)]
        return b"".join([*parts, *map(_KEYS, asks), self.args, _part(*map(_TOKEN, asks))])


_groups: dict[tuple[object, ...], Group] = {}


def _group_of(each: Each) -> Group:
    """The one of all that are alike. A program has as many as ttls."""
    known = (each.script, each.args, len(each.keys))
    group = _groups.get(known)
    if group is None:
        if len(_groups) >= _GROUPS_MAX:
            _groups.clear()
        group = _groups.setdefault(known, Group(each))
    return group


class PreparedRequest:
    """A protocol's first request, ready but for its token, so that where it succeeds no protocol has to be started.

    `group` and `keys`: for going together with others, where it can.
    """

    __slots__ = (
        *("_call", "before", "behind", "confirm", "fits", "grants", "group", "key", "keys"),
        *("request_timeout_s", "script"),
    )

    def __init__(self, call: Call, each: Each | None = None) -> None:
        self._call = call
        #: Whether the answer is waited for.
        self.confirm = True
        self.grants = call.script == "acquire"
        self.group = None if each is None else _group_of(each)
        self.keys = b"" if each is None else _part(*each.keys)
        self.key = call.keys[0]
        self.request_timeout_s = call.request_timeout_s
        self.script, self.fits = SCRIPTS[call.script], FITS[call.script]
        count = b"*%d\r\n" % (3 + len(call.keys) + len(call.args))
        self.before = count + self.script.head + _part(len(call.keys), *call.keys)
        self.behind = _part(*call.args[1:])

    def call(self, token: str) -> Call:
        """Return it for a protocol, with that token."""
        call = self._call
        return Call(call.script, call.keys, (token, *call.args[1:]), call.request_timeout_s)


_INFO_REPLICATION = pack_command(("INFO", "replication"))


def pack_sync(sync: tuple[int, int] | tuple[int, int, bool]) -> list[bytes]:
    """The commands that follow a script whose write replicas have to acknowledge."""
    wait = pack_command(("WAIT", sync[0], sync[1]))
    return [wait, _INFO_REPLICATION] if len(sync) > 2 else [wait]
