"""Every rung of the ladder, as its article describes it, on the effects of the core."""

from holdfast.lab.schemes.base import Interrupted, Scheme
from holdfast.lab.schemes.optimistic import Watch
from holdfast.lab.schemes.plain import (
    GetThenSet,
    Incr,
    IncrExpire,
    LockObject,
    LuaSetnxExpire,
    MultiSetnxExpire,
    PhpLoop,
    Setnx,
    SetNxEx,
    SetnxExpire,
    SetnxExpireAlways,
)
from holdfast.lab.schemes.quorum import Redlock, RedlockForgetful, RedlockNaive, RedlockPhp
from holdfast.lab.schemes.timestamp import GetsetAfter, GetsetAt, SetnxTimestamp, SetnxTimestampInverted
from holdfast.lab.schemes.tokens import ObjectLocks, SetNxToken, SetNxTokenGetDel

__all__ = [
    "LADDER",
    "GetThenSet",
    "GetsetAfter",
    "GetsetAt",
    "Incr",
    "IncrExpire",
    "Interrupted",
    "LockObject",
    "LuaSetnxExpire",
    "MultiSetnxExpire",
    "ObjectLocks",
    "PhpLoop",
    "Redlock",
    "RedlockForgetful",
    "RedlockNaive",
    "RedlockPhp",
    "Scheme",
    "SetNxEx",
    "SetNxToken",
    "SetNxTokenGetDel",
    "Setnx",
    "SetnxExpire",
    "SetnxExpireAlways",
    "SetnxTimestamp",
    "SetnxTimestampInverted",
    "Watch",
]

#: The locks among them, from the first rung to the last.
LADDER: tuple[type[Scheme], ...] = (
    GetThenSet,
    IncrExpire,
    Incr,
    Setnx,
    LockObject,
    SetnxExpireAlways,
    SetnxExpire,
    MultiSetnxExpire,
    SetnxTimestamp,
    SetnxTimestampInverted,
    GetsetAfter,
    GetsetAt,
    LuaSetnxExpire,
    SetNxEx,
    PhpLoop,
    SetNxTokenGetDel,
    SetNxToken,
    RedlockNaive,
    RedlockPhp,
    RedlockForgetful,
    Redlock,
)
