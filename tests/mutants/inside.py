"""Mutants of scripts within this process, without a copy of the package: for a quick sample."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath

from holdfast._lua import PARTS, SCRIPTS, Script
from sim.server import forget_scripts
from tests.mutants.table import Mutant

__all__ = ["changed"]


@contextmanager
def changed(mutant: Mutant) -> Iterator[None]:
    """The scripts with this mutant in them, for as long as that."""
    stem = PurePath(mutant.file).stem
    before = dict(SCRIPTS.items())
    names = [name for name in before if stem in PARTS or name == stem]
    texts = {name: before[name].text.replace(mutant.old, mutant.new) for name in names}
    try:
        SCRIPTS.update({name: Script(name, text) for name, text in texts.items() if text != before[name].text})
        assert dict(SCRIPTS.items()) != before, "there is something to change"
        forget_scripts()
        yield
    finally:
        SCRIPTS.update(before)
        forget_scripts()
