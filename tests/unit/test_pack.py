"""Packed requests."""

from __future__ import annotations

import enum
import subprocess
import sys

import pytest

from holdfast._core.effects import Call
from holdfast._engine.pack import PreparedRequest, pack_command, pack_script
from holdfast._engine.requests import Ask
from holdfast._lua import SCRIPTS

KEYS = ("{k}", "{k}:fence", "{k}:queue", "{k}:gone")


def test_a_script_is_its_hash_its_keys_and_its_arguments() -> None:
    script = SCRIPTS["acquire"]
    words = [b"EVALSHA", script.sha.encode(), b"4", *map(str.encode, KEYS), b"token", b"30000", "é".encode()]
    packed = b"*10\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    assert pack_script(script, KEYS, ("token", 30_000, "é")) == packed


class Permits(enum.IntEnum):
    THREE = 3


class Name(str):
    __slots__ = ()


def test_words_may_be_of_any_kind_of_text_and_number() -> None:
    packed = pack_command((Name("é"), Permits.THREE, True, 2.5, b"\x00"))
    assert packed == "*5\r\n$2\r\né\r\n$1\r\n3\r\n$1\r\n1\r\n$3\r\n2.5\r\n$1\r\n\x00\r\n".encode()
    with pytest.raises(TypeError):
        pack_command((None,))  # type: ignore[arg-type]


_INTERRUPTED = """
import signal, time
from holdfast._engine.pack import pack_command

class Stop(Exception): pass

stops = 0
until = time.monotonic() + 20

def stop(*_):
    global stops
    stops += 1
    raise Stop

signal.signal(signal.SIGALRM, stop)
words = ("EVALSHA", "0" * 40, 3, "a", "b", "c", "token", 30_000, 2.5, 86_400_000, "inbox")
while stops < 300 and time.monotonic() < until:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0001)
        while True:
            pack_command(words)
    except Stop:
        pass
print(stops >= 100)
"""


def test_a_signal_handler_may_raise_while_a_command_is_packed() -> None:
    """Where the library makes a number text itself, that ended the process."""
    told = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert (told.returncode, told.stdout) == (0, "True\n"), told.stderr


def test_a_prepared_request_takes_any_token() -> None:
    prepared = PreparedRequest(Call("acquire", KEYS, ("first", 30_000, "wait"), 1.0))
    for token in ("first", "x", "a-longer-one"):
        assert Ask(prepared, token, 0.0).pack() == pack_script(SCRIPTS["acquire"], KEYS, (token, 30_000, "wait"))
