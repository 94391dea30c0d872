"""Ending a protocol that will not be driven any more.

Law: a protocol that is left where it waits is told so, and what it does then is done as far as that takes no time.
It is not told by `GeneratorExit`, as by `coroutine.close()`: that must not be answered with an effect, and a protocol
that spawns a give-back on its way out does so ("coroutine ignored GeneratorExit").
"""

from __future__ import annotations

from typing import Any

from holdfast._core.effects import Protocol, Spawn

#: A protocol that wants to wait again is told again, this often at most.
_TOLD_MAX = 20


class Abandoned(BaseException):
    """Thrown into a protocol whose caller has left, or that is not driven any further: it cleans up, and ends."""


def abandon(protocol: Protocol[Any]) -> None:
    """Abandon a protocol; never raises. Nothing that it spawns begins."""
    if getattr(protocol, "cr_frame", None) is None or getattr(protocol, "cr_running", False):
        return  # it has ended; or a thread of the parent ran it when the process was forked
    if getattr(protocol, "cr_suspended", True) is False:
        protocol.close()  # it has not begun
        return
    for _ in range(_TOLD_MAX):
        try:
            effect = protocol.throw(Abandoned())
            while isinstance(effect, Spawn):
                effect.protocol.close()
                effect = protocol.send(None)
        except BaseException:
            return
