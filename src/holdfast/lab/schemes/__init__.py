"""Every rung of the ladder, as its article describes it, on the effects of the core."""

from holdfast.lab.schemes.base import Interrupted, Scheme
from holdfast.lab.schemes.optimistic import Watch
from holdfast.lab.schemes.plain import Incr, LuaSetnxExpire, Setnx, SetNxEx, SetnxExpire
from holdfast.lab.schemes.quorum import Redlock, RedlockNaive
from holdfast.lab.schemes.timestamp import SetnxTimestamp, SetnxTimestampInverted
from holdfast.lab.schemes.tokens import ObjectLocks, SetNxToken, SetNxTokenGetDel

__all__ = [
    "Incr",
    "Interrupted",
    "LuaSetnxExpire",
    "ObjectLocks",
    "Redlock",
    "RedlockNaive",
    "Scheme",
    "SetNxEx",
    "SetNxToken",
    "SetNxTokenGetDel",
    "Setnx",
    "SetnxExpire",
    "SetnxTimestamp",
    "SetnxTimestampInverted",
    "Watch",
]
