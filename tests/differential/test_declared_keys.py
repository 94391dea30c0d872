"""Scripts use only keys that they are given, on real servers: each call is made by a user who has no other keys.

What is denied inside of `redis.pcall` is in the server's ACL LOG, too. The simulator's server refuses the same.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
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


@pytest.fixture
def call(server: RealServer) -> Iterator[Callable[..., Any]]:
    """Runs a script of that text with these keys alone. A key that was denied to it fails the test."""
    user = unique("keys")
    with redis.Redis.from_url(server.url, decode_responses=True) as admin:
        admin.execute_command("ACL", "SETUSER", user, "on", ">secret", "+@all", "allchannels")
        limited = redis.Redis.from_url(server.url, username=user, password="secret", decode_responses=True)

        def run(text: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
            # What notes that a holder is there has a name that only its token leads to: docs/design/0058.
            given = ["~*:fence:crash", *[f"~{key}" for key in keys]]
            admin.execute_command("ACL", "SETUSER", user, "resetkeys", *given)
            answer = limited.eval(text, len(keys), *keys, *args)
            denied = [entry["object"] for entry in admin.acl_log() if entry["username"] == user]
            assert not denied, f"not among {keys}"
            return answer

        yield run
        limited.close()
        admin.execute_command("ACL", "DELUSER", user)


@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_scripts_use_only_keys_that_they_are_given(
    server: RealServer, call: Callable[..., Any], primitive: str
) -> None:
    rng = random.Random(zlib.crc32(primitive.encode()))
    with redis.Redis.from_url(server.url) as admin:
        for _ in range(ROUNDS):
            world = SomeAsk(rng, unique("declared"))
            used: set[str] = set()
            for name in "ab":
                admin.set(f"{world.prefix}:{{{name}}}:fence", HIGH_FENCE, px=FENCE_MS)
            for _ in range(CALLS):
                script = rng.choice(PRIMITIVES[primitive])
                keys, args = GENERATORS[script](world)
                used.update(keys)
                call(SCRIPTS[script].text, keys, args)
                if rng.random() < 0.1:
                    admin.pexpireat(rng.choice(sorted(used)), 1_000)
            admin.delete(*used)


_WRONG = "return redis.pcall('EXISTS', KEYS[1], KEYS[1] .. ':more') and 1"


def test_a_script_that_uses_another_key_is_found(call: Callable[..., Any]) -> None:
    with pytest.raises(AssertionError, match="not among"):
        call(_WRONG, [unique("declared")], [])
    with pytest.raises(AssertionError, match="not given"):
        Server(lambda: 1_700_000_000_000_000).text(_WRONG, ["some"], ())
