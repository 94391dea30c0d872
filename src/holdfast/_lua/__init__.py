"""The scripts that ship, read from their `.lua` files.

A line `-- #include PART` is replaced by the text of PART.lua, so that a piece of logic stands in one file.
`SCRIPTS` holds the runnable ones by the stem of their file; parts are not runnable.
"""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

__all__ = ["PARTS", "SCRIPTS", "Script", "load"]

#: Files that are only ever included.
PARTS = frozenset({"fence", "permits", "queue", "readers"})

_INCLUDE = re.compile(r"^-- #include (\w+)\n", re.MULTILINE)


class Script:
    """A script's name, whole text and SHA-1, the name that a server knows it by."""

    __slots__ = ("head", "name", "sha", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.sha = hashlib.sha1(text.encode()).hexdigest()
        #: What every EVALSHA of this script starts with after its argument count.
        self.head = b"$7\r\nEVALSHA\r\n$40\r\n" + self.sha.encode() + b"\r\n"

    def __repr__(self) -> str:
        return f"Script({self.name!r}, {self.sha[:8]}…)"


def load(name: str) -> Script:
    """Read `name`.lua and what it includes."""
    folder = files(__name__)

    def text_of(stem: str) -> str:
        text = folder.joinpath(f"{stem}.lua").read_text(encoding="utf-8")
        return _INCLUDE.sub(lambda found: text_of(found[1]), text)

    return Script(name, text_of(name))


def _load_all() -> dict[str, Script]:
    stems = sorted(file.name[:-4] for file in files(__name__).iterdir() if file.name.endswith(".lua"))
    return {stem: load(stem) for stem in stems if stem not in PARTS}


SCRIPTS: dict[str, Script] = _load_all()
