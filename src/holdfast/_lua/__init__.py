"""The scripts that ship, read from their `.lua` files.

A line `-- #include PART` is replaced by the text of PART.lua, so that a piece of logic stands in one file.
`SCRIPTS` holds the runnable ones by the stem of their file; parts are not runnable. A script is made when it is first
used, since a program uses few of them; but the files are read with this module, half a millisecond for all: a renewal
must not depend on a free descriptor, nor on files that an upgrade has replaced meanwhile.
"""

from __future__ import annotations

import os
import re
from collections import UserDict
from collections.abc import Iterator
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

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.sha = sha1(text.encode()).hexdigest()
        #: What every EVALSHA of this script starts with after its argument count.
        self.head = b"$7\r\nEVALSHA\r\n$40\r\n" + self.sha.encode() + b"\r\n"

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


def load(name: str) -> Script:
    """Read `name`.lua and what it includes."""

    def text_of(stem: str) -> str:
        return _INCLUDE.sub(lambda found: text_of(found[1]), _TEXTS[stem])

    return Script(name, text_of(name))


class _Scripts(UserDict[str, Script]):
    """Makes each when it is first asked for."""

    def __missing__(self, name: str) -> Script:
        if name not in self:
            raise KeyError(name)
        script = self[name] = load(name)
        return script

    def __contains__(self, name: object) -> bool:
        return name in _TEXTS and name not in PARTS

    def __iter__(self) -> Iterator[str]:
        return (stem for stem in _TEXTS if stem not in PARTS)

    def __len__(self) -> int:
        return len(_TEXTS) - len(PARTS)


SCRIPTS = _Scripts()
