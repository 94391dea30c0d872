"""Scripts use only keys that they are given, on real servers: each call is made by a user who has no other keys.

What is denied inside of `redis.pcall` is in the server's ACL LOG, too. The simulator's server refuses the same.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis

from holdfast._lua import SCRIPTS
from holdfast.embedded import Server as RealServer
from sim.server import Server
from testbed.servers import unique
from tests.differential.calls import FENCE_MS, GENERATORS, HIGH_FENCE, World
from tests.differential.test_model import PRIMITIVES

ROUNDS, CALLS = 6, 100


class SomeAsk(World):
    """The same with some who cannot be told, and leave marks."""

    @property
    def inboxes(self) -> str:
        return self.rng.choice(("", "?")) + super().inboxes


class Calls:
    """Runs scripts, each by a user who has the keys that it is given alone."""

    def __init__(self, server: RealServer) -> None:
        self.user = unique("keys")
        self.admin = ("default", server.password or "none is needed")
        connect: Any = redis.Redis.from_url
        self.client = connect(server.url, decode_responses=True)
        self.client.execute_command("ACL", "SETUSER", self.user, "on", ">secret", "+@all", "allchannels")
        self.pipeline = self.client.pipeline(transaction=False)

    def add(self, text: str, keys: Sequence[str], args: Sequence[Any]) -> None:
        # What notes that a holder is there has a name that only its token leads to: docs/design/0058.
        given = ["~*:fence:crash", *[f"~{key}" for key in keys]]
        self.pipeline.execute_command("ACL", "SETUSER", self.user, "resetkeys", *given)
        self.pipeline.execute_command("AUTH", self.user, "secret")
        self.pipeline.eval(text, len(keys), *keys, *args)
        self.pipeline.execute_command("AUTH", *self.admin)

    def run(self) -> None:
        """Run what was added. Fails the test if a script was denied a key, or refused."""
        self.pipeline.execute()
        denied = [entry["object"] for entry in self.client.acl_log() if entry["username"] == self.user]
        assert not denied, "not among the keys that a script was given"


@pytest.fixture
def calls(server: RealServer) -> Iterator[Calls]:
    made = Calls(server)
    yield made
    made.client.execute_command("ACL", "DELUSER", made.user)
    made.client.close()


@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_scripts_use_only_keys_that_they_are_given(calls: Calls, primitive: str) -> None:
    rng = random.Random(zlib.crc32(primitive.encode()))
    for _ in range(ROUNDS):
        world = SomeAsk(rng, unique("declared"))
        used: set[str] = set()
        for name in "ab":
            calls.pipeline.set(f"{world.prefix}:{{{name}}}:fence", HIGH_FENCE, px=FENCE_MS)
        for _ in range(CALLS):
            script = rng.choice(PRIMITIVES[primitive])
            keys, args = GENERATORS[script](world)
            used.update(keys)
            calls.add(SCRIPTS[script].text, keys, args)
            if rng.random() < 0.1:
                calls.pipeline.pexpireat(rng.choice(sorted(used)), 1_000)
        calls.pipeline.delete(*used)
        calls.run()


_WRONG = "return redis.pcall('EXISTS', KEYS[1], KEYS[1] .. ':more') and 1"


def test_a_script_that_uses_another_key_is_found(calls: Calls) -> None:
    calls.add(_WRONG, [unique("declared")], [])
    with pytest.raises(AssertionError, match="not among"):
        calls.run()
    with pytest.raises(AssertionError, match="not given"):
        Server(lambda: 1_700_000_000_000_000).text(_WRONG, ["some"], ())
