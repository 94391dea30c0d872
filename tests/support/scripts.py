"""The scripts on a real server, called one by one, and what they publish: for models to be compared with."""

from __future__ import annotations

from typing import Any

import hiredis
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from holdfast._engine.dial import address_of_url
from holdfast._engine.pack import pack_command
from holdfast._lua import SCRIPTS

__all__ = [
    "CLAIM_MS",
    "CLIENTS",
    "DEAD",
    "FENCE_MS",
    "INBOXES",
    "TOMBSTONE_MS",
    "TTL_MS",
    "Scripts",
    "clients",
    "run_machine",
    "trim",
]

INBOXES = "holdfast:inbox:"
CLIENTS = [f"{number:024x}" for number in range(1, 6)]
#: The last one never listens: its process is gone.
DEAD = CLIENTS[-1]
TTL_MS, CLAIM_MS, FENCE_MS, TOMBSTONE_MS = 600_000, 500_000, 86_400_000, 60_000

_MORE = object()

clients = st.sampled_from(CLIENTS)


def trim(waiting: list[str], token: str, new: bool) -> None:
    """The dead right before a waiter are taken out: of few when it is queued, of more when it asks again."""
    if token in waiting:
        at = waiting.index(token)
        start = max(at - (4 if new else 32), 0)
        waiting[start:at] = [each for each in waiting[start:at] if not each.startswith(DEAD)]


def run_machine(machine: Any, examples: int = 25, steps: int = 30) -> None:
    """Run a state machine, in bounded time."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            phases=(Phase.generate,),  # shrinking takes longer than a test may; 30 steps can be read as they are
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


class Scripts:
    """Calls of scripts, and what was published meanwhile. Both come by one connection, so that no message is late."""

    def __init__(self, url: str) -> None:
        self.server: Any = redis.Redis.from_url(url, decode_responses=True)
        address = address_of_url(url)
        assert address is not None
        self._connection = address.connection()
        self._connection.connect()
        assert self._connection._sock is not None
        self._sock = self._connection._sock
        self._sock.settimeout(10)
        self._reader = hiredis.Reader(encoding="utf-8", notEnoughData=_MORE)
        self._heard: list[tuple[str, str]] = []
        self.ask(("HELLO", 3))
        self._sock.sendall(pack_command(("SUBSCRIBE", *[INBOXES + client for client in CLIENTS[:-1]])))
        self.heard()

    def call(self, script: str, keys: tuple[str, ...], *args: Any) -> Any:
        known = SCRIPTS[script]
        try:
            return self.ask(("EVALSHA", known.sha, len(keys), *keys, *args))[0]
        except redis.exceptions.NoScriptError:
            return self.ask(("EVAL", known.text, len(keys), *keys, *args))[0]

    def ask(self, *commands: tuple[Any, ...]) -> list[Any]:
        """The replies to some commands, which are sent in one piece."""
        self._sock.sendall(b"".join(map(pack_command, commands)))
        return [self._reply() for _ in commands]

    def _reply(self) -> Any:
        while True:
            reply = self._reader.gets()
            if reply is _MORE:
                data = self._sock.recv(65_536)
                assert data, "the server has closed the connection"
                self._reader.feed(data)
            elif isinstance(reply, hiredis.PushNotification):
                self._note(reply)
            elif isinstance(reply, hiredis.ReplyError):
                is_unknown = str(reply).startswith("NOSCRIPT")
                raise (redis.exceptions.NoScriptError if is_unknown else redis.ResponseError)(str(reply))
            else:
                return reply

    def _note(self, push: list[Any]) -> None:
        if push[0] == "message":
            kind, token, *more = push[2].split()
            told = [int(number) for number in more]
            assert told == ([max(told), CLAIM_MS] if kind == "grant" else []), "a fencing token, and the window"
            self._heard.append((kind, token))

    def heard(self) -> list[tuple[str, str]]:
        """("grant" or "ask", token) since the last time, in order."""
        self.ask(("PING",))  # its answer comes after all that was published before
        return self.heard_so_far()

    def heard_so_far(self) -> list[tuple[str, str]]:
        """As `heard`, up to the last reply to `ask`."""
        heard, self._heard = self._heard, []
        return heard

    def told_so_far(self) -> list[str]:
        """Return the tokens that were granted since the last time, in order, up to the last reply to `ask`."""
        return [token for kind, token in self.heard_so_far() if kind == "grant"]

    def close(self) -> None:
        self._connection.disconnect()
        self.server.close()
