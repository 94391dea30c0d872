"""The scripts that ship, read from their `.lua` files.

A line `-- #include PART` is replaced by the text of PART.lua, so that a piece of logic stands in one file.
`SCRIPTS` holds the runnable ones by the stem of their file; parts are not runnable. A script is made when it is first
used, since a program uses few of them; but the files are read with this module, half a millisecond for all: a renewal
must not depend on a free descriptor, nor on files that an upgrade has replaced meanwhile.
"""

from __future__ import annotations

import os
import re
from typing import Any

try:
    # hashlib loads OpenSSL, which takes longer than all else here.
    from _sha1 import sha1  # type: ignore[import-not-found]
except ImportError:
    from hashlib import sha1

_INCLUDE = re.compile(r"^-- #include (\w+)\n", re.MULTILINE)


class Script:
    """A script's name, whole text and SHA-1, the name that a server knows it by."""

    __slots__ = ("head", "name", "sha", "text")
    text: str
    sha: str
    #: What every EVALSHA of this script starts with after its argument count.
    head: bytes

    def __init__(self, name: str, text: str | None = None) -> None:
        self.name = name
        if text is not None:
            self._make(text)

    def _make(self, text: str) -> None:
        self.text = text
        self.sha = sha1(text.encode()).hexdigest()
        self.head = b"$7\r\nEVALSHA\r\n$40\r\n" + self.sha.encode() + b"\r\n"

    def __getattr__(self, name: str) -> Any:
        if name in Script.__slots__:
            self._make(_whole(self.name))
        return object.__getattribute__(self, name)

    def __repr__(self) -> str:
        return f"Script({self.name!r}, {self.sha[:8]}…)"


def _stems() -> list[str]:
    try:
        names = os.listdir(os.path.dirname(__file__))
    except OSError:  # an archive
        from importlib.resources import files

        names = [file.name for file in files(__name__).iterdir()]
    return sorted(name[:-4] for name in names if name.endswith(".lua"))


def _text_of_file(stem: str) -> str:
    # Not importlib.resources: importing that takes longer than all else here. The loader reads from archives too.
    loader: Any = __spec__.loader
    data: bytes = loader.get_data(os.path.join(os.path.dirname(__file__), f"{stem}.lua"))
    return data.decode()


_TEXTS = {stem: _text_of_file(stem) for stem in _stems()}
#: Files that are only ever included.
PARTS = frozenset(stem for stem, text in _TEXTS.items() if text.startswith("-- Part: "))


def _whole(stem: str) -> str:
    """The text of `stem`.lua with what it includes."""
    return _INCLUDE.sub(lambda found: _whole(found[1]), _TEXTS[stem])


SCRIPTS = {stem: Script(stem) for stem in _TEXTS if stem not in PARTS}
