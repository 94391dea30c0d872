"""The simulator's model of a server against real ones: the same random calls, the same replies, the same keys.

Both run the same script with the same arguments; what depends on the server's clock is compared as a time. Time
does not pass in these rounds: what is over is made so, with PEXPIREAT into the past and with scores in the past.
"""

from __future__ import annotations

import random
import re
import zlib
from typing import Any

import pytest
import redis

from holdfast._lua import SCRIPTS
from holdfast.embedded import Server as RealServer
from sim.server import Refused, Server, ZSet
from testbed.servers import unique
from tests.differential.calls import CLIENTS, FENCE_MS, GENERATORS, HIGH_FENCE, World, inbox

#: For each kind of server.
ROUNDS = 60
CALLS = 140

#: Times of the same call on two servers are this close, µs.
CLOSE_US = 120e6
#: Remaining times, ms.
CLOSE_MS = 15_000

PRIMITIVES = {
    "lock": (
        *("acquire", "release", "acquire_each", "release_each", "renew"),
        *("counts", "hears", "inspect", "overview", "quorum_acquire", "tell", "there"),
    ),
    "crash": ("crash_acquire", "crash_renew", "acquire", "release", "overview"),
    "several": ("acquire", "release", "multi_acquire", "multi_release", "multi_renew"),
    "shared": (
        "rw_acquire",
        "rw_release",
        "rw_renew",
        "rw_downgrade",
        "inspect",
        "counts",
        "overview",
        "tell",
        "acquire",
        "release",
    ),
    "permits": ("sem_acquire", "sem_release", "sem_renew", "sem_resize", "inspect", "counts", "overview", "tell"),
    "condition": ("cond_wait", "cond_notify", "cond_leave", "acquire", "release", "renew"),
    "gate": ("gate_wait", "gate_move"),
    "barrier": ("barrier_wait", "barrier_move"),
    "values": ("fenced_set", "set_if"),
    "renewals": ("renew_many", "acquire", "multi_acquire", "rw_acquire", "sem_acquire", "release", "rw_release"),
}


def same(real: Any, model: Any) -> bool:
    """True if two replies are the same but for what the time was."""
    if type(real) is not type(model):
        return False
    if isinstance(real, list | tuple):
        return len(real) == len(model) and all(map(same, real, model))
    if isinstance(real, dict):
        return real.keys() == model.keys() and all(same(real[key], model[key]) for key in real)
    if isinstance(real, int | float):
        return bool(real == model) or close(real, model)
    if isinstance(real, bytes):
        if real == model:
            return True
        if len(real) == 40 and re.fullmatch(b"[0-9a-f]{40}", real):
            return len(model) == 40  # a server's run id
        return len(real.split()) == len(model.split()) and all(map(same_word, real.split(), model.split()))
    return bool(real == model)


def same_word(real: bytes, model: bytes) -> bool:
    return real == model or (real.isdigit() and model.isdigit() and close(int(real), int(model)))


def close(real: float, model: float) -> bool:
    """Two numbers that are times, and about the same one."""
    if real < -1e15 and model < -1e15:
        real, model = -real, -model  # a waiter that was told
    if real > 4e15 or model > 4e15:
        return False  # a fencing token above all times
    if real > 1e15 and model > 1e15:
        return abs(real - model) < CLOSE_US
    if real > 1e12 and model > 1e12:
        return abs(real - model) < CLOSE_US / 1000
    return real > CLOSE_MS and model > CLOSE_MS and abs(real - model) < CLOSE_MS


class Pair:
    """A real server and a model, asked the same things."""

    def __init__(self, server: RealServer, prefix: str) -> None:
        self.prefix = prefix
        client: Any = redis.Redis
        self.real = client.from_url(server.url)
        self.pubsub = self.real.pubsub()
        for client in CLIENTS[:2]:
            self.pubsub.subscribe(inbox(prefix, client))
        for _ in CLIENTS[:2]:
            assert self.pubsub.get_message(timeout=10.0) is not None
        for script in SCRIPTS.values():
            self.real.script_load(script.text)
        seconds, microseconds = self.real.time()
        self.now_us = int(seconds) * 1_000_000 + int(microseconds)
        self.model = Server(self.tick)
        self.model.replid = self.real.info("replication")["master_replid"].encode()
        self.model.numsub = lambda channel: int(channel.decode() in self.subscribed())
        self.model.publish = self.heard
        self.messages: list[tuple[bytes, bytes]] = []
        self.pipeline = self.real.pipeline(transaction=False)
        self.asked: list[tuple[str, Any]] = []

    def tick(self) -> int:
        self.now_us += 1
        return self.now_us

    def subscribed(self) -> set[str]:
        return {inbox(self.prefix, client) for client in CLIENTS[:2]}

    def heard(self, channel: bytes, message: bytes) -> int:
        if channel.decode() not in self.subscribed():
            return 0
        self.messages.append((channel, message))
        return 1

    def script(self, name: str, keys: Any, args: Any) -> None:
        self.pipeline.execute_command("EVALSHA", SCRIPTS[name].sha, len(keys), *keys, *args)
        self.asked.append(
            (f"{name} {list(keys)} {list(args)}", self.answer(lambda: self.model.script(name, keys, args)))
        )

    def command(self, *words: str | int) -> None:
        self.pipeline.execute_command(*words)
        self.asked.append((str(words), self.answer(lambda: self.model.command(*words))))

    def answer(self, ask: Any) -> Any:
        try:
            reply = ask()
        except Refused as refused:
            return refused
        return bytes(reply) if isinstance(reply, bytes) else reply

    def compare(self) -> int:
        """Run what was asked, and compare replies, keys and messages; how many calls there were."""
        replies = self.pipeline.execute(raise_on_error=False)
        for number, ((what, model), real) in enumerate(zip(self.asked, replies, strict=True)):
            if isinstance(real, redis.ResponseError):
                assert isinstance(model, Refused), f"call {number}: {what}: real {real!r}, model {model!r}"
            else:
                assert same(plain(real, model), model), f"call {number}: {what}: real {real!r}, model {model!r}"
        real_keys = self.real_keys()
        model_keys = self.model_keys()
        story = "\n".join(what for what, _ in self.asked)
        assert sorted(real_keys) == sorted(model_keys), story
        for key, (value, left_ms) in real_keys.items():
            model_value, model_left_ms = model_keys[key]
            assert same(value, model_value), f"{key!r}: real {value!r}, model {model_value!r}\n{story}"
            assert left_ms == model_left_ms or close(left_ms, model_left_ms), (
                f"{key!r}: ends in {left_ms} ms, in the model in {model_left_ms} ms\n{story}"
            )
        heard: list[tuple[bytes, bytes]] = []
        while len(heard) < len(self.messages):
            message = self.pubsub.get_message(ignore_subscribe_messages=True, timeout=10.0)
            assert message is not None, f"messages missing: {self.messages[len(heard) :]}"
            heard.append((message["channel"], message["data"]))
        assert all(map(same, heard, self.messages)), f"real {heard}, model {self.messages}"
        assert self.pubsub.get_message(ignore_subscribe_messages=True, timeout=0.0) is None
        self.messages.clear()
        self.asked.clear()
        return len(replies)

    def real_keys(self) -> dict[bytes, tuple[Any, int]]:
        found: dict[bytes, tuple[Any, int]] = {}
        for key in self.real.scan_iter(f"{self.prefix}:*", count=1000):
            kind = self.real.type(key)
            left_ms = self.real.pttl(key)
            if kind == b"string":
                value: Any = self.real.get(key)
            elif kind == b"zset":
                value = dict(self.real.zrange(key, 0, -1, withscores=True))
            else:
                assert kind == b"hash", f"the model has no {kind!r}"
                value = self.real.hgetall(key)
            found[key] = value, left_ms
        return found

    def model_keys(self) -> dict[bytes, tuple[Any, int]]:
        found: dict[bytes, tuple[Any, int]] = {}
        for key, (value, when) in self.model.snapshot().items():
            if isinstance(value, ZSet):
                value = dict(value.scores)
            found[key] = value, -1 if when is None else when - self.now_us // 1000
        return found

    def close(self) -> None:
        for key in self.real.scan_iter(f"{self.prefix}:*", count=1000):
            self.real.delete(key)
        self.pubsub.close()
        self.real.close()


def plain(reply: Any, model: Any) -> Any:
    """redis-py makes booleans of +OK and of counts; as the model's reply would be, if it says the same."""
    return model if isinstance(reply, bool) and reply == (model is not None and model != 0) else reply


def test_every_script_that_ships_is_compared() -> None:
    assert sorted(GENERATORS) == sorted(SCRIPTS), "a new script needs a generator in tests/differential/calls.py"
    assert {name for names in PRIMITIVES.values() for name in names} == set(SCRIPTS)


@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_the_model_does_what_servers_do(server: RealServer, primitive: str) -> None:
    rounds = ROUNDS * len(PRIMITIVES[primitive]) // len(GENERATORS) + 1
    seed = zlib.crc32(primitive.encode())
    pair = Pair(server, unique("differential"))
    try:
        calls = 0
        for number in range(rounds):
            calls += one_round(pair, World(random.Random(seed + number), pair.prefix), primitive)
        assert calls >= rounds * CALLS
    finally:
        pair.close()


def one_round(pair: Pair, world: World, primitive: str) -> int:
    """Random calls of a primitive's scripts, with expiry in between."""
    rng = world.rng
    names = PRIMITIVES[primitive]
    if rng.random() < 0.5:
        for name in "ab":
            for kind in ("fence", "sem:fence"):
                pair.command("SET", f"{world.prefix}:{{{name}}}:{kind}", HIGH_FENCE, "PX", FENCE_MS)
    keys: set[str] = set()
    for _ in range(CALLS):
        drawn, args = GENERATORS[name := rng.choice(names)](world)
        pair.script(name, drawn, args)
        keys.update(drawn)
        if rng.random() < 0.05 and keys:
            key = rng.choice(sorted(keys))
            if key.endswith((":readers", ":holders")):
                # Its members have their own time: one of them is over.
                pair.command("ZADD", key, "XX", 1_000, world.reader() if key.endswith("readers") else world.weighted())
            else:
                pair.command("PEXPIREAT", key, 1_000)
    done = pair.compare()
    for name in sorted(keys):
        pair.command("DEL", name)
    pair.compare()
    return done


def test_arguments_that_are_numbers_arrive_as_redis_writes_them(server: RealServer) -> None:
    """Lua writes numbers on their way into a command and out of a script.

    Fractions such as 1/3 are left out: their digits differ between servers, and no script of ours has any.
    """
    text = """
local out = {}
for _, number in ipairs({1, 0.5, 1e15, 123456789012345, -3, 2^53, 1e20}) do
  redis.call('SET', KEYS[1], number, 'PX', 1000)
  out[#out + 1] = redis.call('GET', KEYS[1])
  out[#out + 1] = tostring(number)
  out[#out + 1] = '' .. number
end
out[#out + 1] = 3.99
out[#out + 1] = -3.99
out[#out + 1] = true
out[#out + 1] = redis.call('SET', KEYS[1], 'x', 'PX', 1000)
out[#out + 1] = {1, {2, 'a'}, {}}
out[#out + 1] = redis.call('ZADD', KEYS[2], 5, 'm', '1.5', 'n')
redis.call('PEXPIRE', KEYS[2], 1000)
out[#out + 1] = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
out[#out + 1] = tostring(redis.call('GET', KEYS[3]))
out[#out + 1] = redis.call('ZPOPMIN', KEYS[3])
out[#out + 1] = redis.call('HMGET', KEYS[3], 'a', 'b')[1] == false and 'false' or 'not false'
out[#out + 1] = redis.pcall('INCR', KEYS[2]).err ~= nil and 1 or 0
out[#out + 1] = false
out[#out + 1] = 'never seen: nil above ends it'
return out
"""
    name = unique("numbers")
    keys = [f"{name}:{{n}}:{number}" for number in range(3)]
    client = redis.Redis.from_url(server.url)
    real = client.eval(text, 3, *keys)
    model = Server(lambda: 1_700_000_000_000_000)
    assert [bytes(part) if isinstance(part, bytes) else part for part in model.text(text, keys, ())] == real
    client.close()


@pytest.mark.parametrize(
    "body",
    [
        "return redis.call('PEXPIRE', KEYS[1], 'x')",
        "return redis.call('NOSUCH', KEYS[1])",
        "return redis.call('GET')",
        "return {err = 'MINE all mine'}",
        "return undeclared",
        "new_global = 1",
        "return redis.call('SET', KEYS[1], 'x', 'PX', 0)",
        "return redis.call('SET', KEYS[1], {})",
        "return 'a' + 1",
    ],
)
def test_what_a_server_refuses_the_model_refuses(server: RealServer, body: str) -> None:
    key = unique("refused")
    client = redis.Redis.from_url(server.url)
    with pytest.raises(redis.ResponseError):
        client.eval(body, 1, key)
    with pytest.raises(Refused):
        Server(lambda: 1_700_000_000_000_000).text(body, [key], ())
    client.close()
