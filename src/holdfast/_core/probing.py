"""The questions of `holdfast doctor` to a server that are not about a lock."""

from __future__ import annotations

from holdfast._core.effects import Command, Listen, Reply
from holdfast._core.failure import RequestFailed
from holdfast._core.waiting import once_more


async def say(words: tuple[str, ...], node: int | None, request_timeout_s: float) -> Reply:
    """Send a plain command to that server of several, or any; returns the reply with its bytes as text."""
    return _text(await Command(words, request_timeout_s, node=node))


def _text(reply: Reply) -> Reply:
    if isinstance(reply, bytes):
        return reply.decode(errors="replace")
    if isinstance(reply, list):
        return [_text(each) for each in reply]
    return {_text(key): _text(value) for key, value in reply.items()} if isinstance(reply, dict) else reply


async def hears(key: str, request_timeout_s: float) -> tuple[bool | None, bool]:
    """Find out whether a script can tell us something there (None: no answer), and whether asking has hung up."""
    try:
        # Twice at most: the first time may have found out that no message can come.
        return not await once_more(Listen(f"{key} hears", key, request_timeout_s)), False
    except RequestFailed as failure:
        return None, failure.kind == "broken"
