"""Frames of the protocol between client and server, found and read without changing a byte."""

from __future__ import annotations

from typing import Any

__all__ = ["Frames", "Push", "Refusal", "short", "show"]


class Refusal(str):
    """An error reply."""

    __slots__ = ()


class Push(list[Any]):
    """An unsolicited message (RESP3)."""

    __slots__ = ()


class _Incomplete(Exception):
    pass


class Frames:
    """Cuts a stream into (bytes, value) frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> tuple[bytes, Any] | None:
        """The next whole frame, or None."""
        try:
            value, end = self._parse(0)
        except _Incomplete:
            return None
        raw = bytes(self._buffer[:end])
        del self._buffer[:end]
        return raw, value

    def _line(self, start: int) -> tuple[bytes, int]:
        end = self._buffer.find(b"\r\n", start)
        if end < 0:
            raise _Incomplete
        return bytes(self._buffer[start:end]), end + 2

    def _parse(self, start: int) -> tuple[Any, int]:
        line, at = self._line(start)
        kind, rest = line[:1], line[1:]
        if kind in b"+(":
            return rest.decode(errors="replace"), at
        if kind == b"-":
            return Refusal(rest.decode(errors="replace")), at
        if kind == b":":
            return int(rest), at
        if kind == b"#":
            return rest == b"t", at
        if kind == b",":
            return float(rest), at
        if kind == b"_":
            return None, at
        if kind in b"$=!":
            size = int(rest)
            if size < 0:
                return None, at
            end = at + size + 2
            if len(self._buffer) < end:
                raise _Incomplete
            return bytes(self._buffer[at : at + size]), end
        if kind in b"*~>%|":
            count = int(rest)
            if count < 0:
                return None, at
            values: list[Any] = Push() if kind == b">" else []
            for _ in range(count * 2 if kind in b"%|" else count):
                value, at = self._parse(at)
                values.append(value)
            return values, at
        return line.split(), at  # an inline command


def show(value: Any, most: int = 40) -> str:
    """A reply for people."""
    if value is None:
        return "nil"
    if isinstance(value, Refusal):
        return f"error {value}"
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, list):
        value = "[" + ", ".join(show(item, 20) for item in value) + "]"
    text = str(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def short(words: list[str]) -> str:
    """A command for people: scripts by their first key and arguments, long values cut."""
    if not words:
        return ""
    shown = [words[0].upper(), *(" ".join(word.split()) for word in words[1:])]
    if [word.upper() for word in words[:2]] == ["SCRIPT", "LOAD"]:
        return "SCRIPT LOAD …"
    if shown[0] in ("EVAL", "EVALSHA") and len(shown) > 3 and shown[2].isdigit():
        keys = int(shown[2])
        name = "script" if shown[0] == "EVAL" else shown[1][:6]
        shown = [shown[0], name, *shown[3:4], *shown[3 + keys :]]
    return " ".join(word if len(word) <= 28 else word[:12] + "…" + word[-6:] for word in shown)
