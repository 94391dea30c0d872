"""The table of kinds: what is particular to each kind of primitive, in one row.

Law: whatever lists kinds, their keys or their scripts reads it here, and what their replies look like.

Theory: a turn (`Acquisition`) asks, extends and undoes by the scripts of its kind, which take the same arguments in the
same order; where a kind needs more, they stand behind those, and its turn adds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

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


class Kind(NamedTuple):
    """One row. `scripts`: all of them, with the forms of their replies; `ask`, `extend`, `undo`: those of its turns."""

    name: str
    scripts: Mapping[str, Fits]
    ask: str
    undo: str
    #: "" where nothing is held.
    extend: str = ""
    #: What its keys' names have behind the lock's. "": they are the lock's.
    part: str = ""
    #: Its keys behind lock, fence, queue and gone.
    beside: tuple[str, ...] = ()
    #: Whether all that is held stands in the first of its keys, under one token.
    alone: bool = False
    #: The one of its keys in which many holders stand.
    many: str = "readers"
    #: Whether leases are of this kind; and what the owner in their tokens begins with.
    leased: bool = True
    marks: tuple[str, ...] = ()
    #: What a gate says of itself when a name is looked at: of "set", "count", "missing".
    says: tuple[str, ...] = ()
    #: As what it is listed whose keys it has, where the two exclude each other.
    listed_as: str = ""


_seen = row([B, I, I, I], [B, I, I, I, I], [B, *[I] * 6])

LOCK = Kind(
    "lock",
    {
        "acquire": granting((1, I, I)),
        "acquire_each": EACH,
        "crash_acquire": granting((1, I, I), (-2,), (-3,)),
        "release": RELEASED,
        "release_each": EACH,
        "renew": LASTING,
        "crash_renew": number(-2),
        "renew_many": lambda reply: type(reply) is list and {*map(type, reply)} <= {I} and min(reply, default=0) >= -2,
        "inspect": _seen,
    },
    ask="acquire",
    extend="renew",
    undo="release",
    alone=True,
)
RWLOCK = Kind(
    "rwlock",
    {
        "rw_acquire": granting((-2,), (-3,)),
        "rw_release": RELEASED,
        "rw_renew": LASTING,
        "rw_downgrade": forms((1, I), (0,)),
        "inspect": _seen,
    },
    ask="rw_acquire",
    extend="rw_renew",
    undo="rw_release",
    beside=("readers", "upgraded"),
    marks=("r", "w", "u"),
    listed_as="lock",
)
SEMAPHORE = Kind(
    "semaphore",
    {
        "sem_acquire": granting((-2, I), (-3, I)),
        "sem_release": RELEASED,
        "sem_renew": LASTING,
        "sem_resize": number(0),
        "inspect": _seen,
    },
    ask="sem_acquire",
    extend="sem_renew",
    undo="sem_release",
    part="sem",
    beside=("holders",),
    many="holders",
)
MULTILOCK = Kind(
    "multilock",
    {"multi_acquire": granting(), "multi_release": RELEASED, "multi_renew": LASTING},
    ask="multi_acquire",
    extend="multi_renew",
    undo="multi_release",
    marks=("m",),
    listed_as="lock",
)
CONDITION = LOCK._replace(
    name="condition",
    scripts={
        **LOCK.scripts,
        "cond_wait": forms((1, I, I), (0, I, B, I, I), (0, I, B, I, I, I), (-1,), (-2,)),
        "cond_notify": lambda reply: number(-1)(reply[0] if type(reply) is list and len(reply) == 1 else reply),
        "cond_leave": RELEASED,
    },
    ask="cond_wait",
    undo="cond_leave",
    beside=("cond",),  # with the condition's own name behind it
    leased=False,
)
ELECTION = LOCK._replace(name="election", part="leader")
LATCH = Kind(
    "latch",
    {
        "gate_wait": forms((1, I), (0, I, B, I, I), (-1,), (-2, I)),
        "gate_move": forms((1, I), (1, I, I), (-2, I)),
    },
    ask="gate_wait",
    undo="gate_wait",
    part="latch",
    says=("count", "missing"),
    leased=False,
)
EVENT = LATCH._replace(name="event", part="event", says=("set",))
BARRIER = Kind(
    "barrier",
    {
        "barrier_wait": forms((1, I, I), (0, I, B, I, I), (-1,), (-2,), (-3, I)),
        "barrier_move": forms((1, I, I, I), (-3, I)),
    },
    ask="barrier_wait",
    undo="barrier_wait",
    part="barrier",
    beside=("arrived", "released"),
    leased=False,
)

KINDS = (LOCK, RWLOCK, SEMAPHORE, MULTILOCK, CONDITION, ELECTION, LATCH, EVENT, BARRIER)
#: Those of leases; and those of them that keys tell apart.
LEASED = {kind.name: kind for kind in KINDS if kind.leased}
LISTED = {name: kind for name, kind in LEASED.items() if not kind.listed_as}
LISTED_AS = {name: kind.listed_as or name for name, kind in LEASED.items()}
#: Listed ones with one holder at a time, whose time is that of the key.
ALONE = frozenset(name for name, kind in LISTED.items() if kind.alone)
#: The kind that each script belongs to: the first that has it.
KIND_OF_SCRIPT = {script: kind.name for kind in reversed(KINDS) for script in kind.scripts}
#: The kinds of leases that a token tells, by its mark without numbers.
KIND_OF_MARK = {mark: kind.name for kind in KINDS for mark in kind.marks}
