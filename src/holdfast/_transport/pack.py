"""Commands as bytes, packed once where they repeat."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast._lua import Script

__all__ = ["pack_command", "pack_script"]

#: Packed key tuples that are kept: locks are taken again and again. Cleared when full.
_KEYS_MAX = 10_000
_packed_keys: dict[Sequence[str], bytes] = {}


def _pack_keys(keys: Sequence[str]) -> bytes:
    packed = b"".join(_bulk(key.encode()) for key in keys)
    packed = _bulk(b"%d" % len(keys)) + packed
    if len(_packed_keys) >= _KEYS_MAX:
        _packed_keys.clear()
    _packed_keys[tuple(keys)] = packed
    return packed


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def pack_script(script: Script, keys: Sequence[str], args: Sequence[str | int | bytes]) -> bytes:
    """EVALSHA of a script."""
    packed_keys = _packed_keys.get(keys) or _pack_keys(keys)
    parts = [b"*%d\r\n" % (3 + len(keys) + len(args)), script.head, packed_keys]
    for arg in args:
        data = arg.encode() if isinstance(arg, str) else b"%d" % arg if isinstance(arg, int) else arg
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def pack_command(args: Sequence[str | int | float | bytes]) -> bytes:
    """Any command."""
    parts = [b"*%d\r\n" % len(args)]
    for arg in args:
        data = arg if isinstance(arg, bytes) else str(arg).encode()
        parts.append(_bulk(data))
    return b"".join(parts)
