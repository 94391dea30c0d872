"""The scripts on a real server, called one by one, and what they publish: for models to be compared with."""

from __future__ import annotations

from typing import Any

import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from holdfast._lua import SCRIPTS
from testbed.servers import unique

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
    """Calls of scripts, and what was published meanwhile."""

    def __init__(self, url: str) -> None:
        connect: Any = redis.Redis.from_url
        self.server = connect(url, decode_responses=True)
        self.inbox: Any = self.server.pubsub(ignore_subscribe_messages=True)
        self.inbox.subscribe(*[INBOXES + client for client in CLIENTS[:-1]], "marker")
        for _ in CLIENTS:
            self.inbox.get_message(ignore_subscribe_messages=True, timeout=10)

    def call(self, script: str, keys: tuple[str, ...], *args: Any) -> Any:
        return self.server.eval(SCRIPTS[script].text, len(keys), *keys, *args)

    def heard(self) -> list[tuple[str, str]]:
        """("grant" or "ask", token) since the last time, in order."""
        mark = unique("marker")
        self.server.publish("marker", mark)  # comes after all that was published before
        heard: list[tuple[str, str]] = []
        while True:
            message = self.inbox.get_message(timeout=10)
            assert message is not None, "the marker has to come"
            if message["data"] == mark:
                return heard
            kind, token, *more = message["data"].split()
            if message["channel"] != "marker":
                told = [int(number) for number in more]
                assert told == ([max(told), CLAIM_MS] if kind == "grant" else []), "a fencing token, and the window"
                heard.append((kind, token))

    def told(self) -> list[str]:
        """Return the tokens that were granted since the last time, in order."""
        return [token for kind, token in self.heard() if kind == "grant"]

    def close(self) -> None:
        self.inbox.close()
        self.server.close()
