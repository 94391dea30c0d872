"""Forms of replies, for the table of kinds and for whatever else reads a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

#: Whether a reply fits.
Fits = Callable[[Any], bool]
#: A list's first number, and the types behind it.
Form: TypeAlias = "tuple[int, type, *tuple[type, ...]] | tuple[int]"
I, B = int, bytes  # noqa: E741


def forms(*known: Form, fenced: bool = False) -> Fits:
    """A list whose first number says how it goes on. `fenced`: where that is 1, with a fencing token."""
    whole = {(form[0], int, *form[1:]) for form in known}

    def fits(reply: Any) -> bool:
        if type(reply) is not list or not reply or type(reply[0]) is not int:
            return False
        return (reply[0], *map(type, reply)) in whole and not (fenced and reply[0] == 1 and reply[1] <= 0)

    return fits


def granting(*others: Form) -> Fits:
    """Granted with a fencing token, busy, buried, or one of `others`."""
    return forms((1, I), (0, I, B, I, I), (-1,), *others, fenced=True)


def row(*known: list[type]) -> Fits:
    return lambda reply: type(reply) is list and [*map(type, reply)] in known


def one_of(*known: bytes | None) -> Fits:
    return lambda reply: (reply is None or type(reply) is bytes) and reply in known


def number(least: float, most: float = float("inf")) -> Fits:
    return lambda reply: type(reply) is int and least <= reply <= most


def EACH(reply: Any) -> bool:
    """A list of numbers from 0 on, one for each lock."""
    return type(reply) is list and all(type(each) is int and each >= 0 for each in reply)


#: Of a release, and of an extension.
RELEASED, LASTING = number(-1, 3), number(0)
