"""The primitives of the simulation: every module here that has a `PRIMITIVE` is found by itself."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable

from sim.world import Primitive, World

__all__ = ["found"]


@functools.cache
def found() -> dict[str, Callable[[World], Primitive]]:
    """Find every primitive by its name."""
    primitives = {}
    for module in pkgutil.iter_modules(__path__):
        primitive = importlib.import_module(f"{__name__}.{module.name}").PRIMITIVE
        primitives[primitive.name] = primitive
    return dict(sorted(primitives.items()))
