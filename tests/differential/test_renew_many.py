"""Many leases renewed in one request, beside the same leases renewed one by one: the same answers, the same keys."""

from __future__ import annotations

import random
from itertools import islice
from typing import Any

import redis

from holdfast._core.agent.renewals import batches
from holdfast._core.effects import Call
from holdfast._lua import SCRIPTS
from holdfast.embedded import Server as RealServer
from testbed.servers import unique
from tests.differential.calls import GENERATORS, RENEWALS, World
from tests.differential.test_model import same

ROUNDS = 40
BEGINNINGS = ("acquire", "acquire", "multi_acquire", "rw_acquire", "rw_acquire", "sem_acquire")


def run(client: Any, calls: list[Call]) -> list[Any]:
    """Their replies; a refusal is one."""
    pipeline = client.pipeline(transaction=False)
    for call in calls:
        pipeline.eval(SCRIPTS[call.script].text, len(call.keys), *call.keys, *call.args)
    return pipeline.execute(raise_on_error=False)  # type: ignore[no-any-return]


def renewals_of(rng_seed: int, prefix: str, client: Any) -> list[Call]:
    """Some state under the prefix, and renewals of what holds there; the same for each prefix."""
    world = World(random.Random(rng_seed), prefix)
    rng = world.rng
    run(client, [Call(name, *GENERATORS[name](world), 1.0) for name in rng.choices(BEGINNINGS, k=30)])
    base = f"{prefix}:{{b}}"
    if rng.random() < 0.4:
        for key in rng.sample((base, f"{base}:sem:holders", f"{base}:readers"), 2):
            client.delete(key)
            client.hset(key, "of another", "kind")
    found = []
    for name in rng.choices(RENEWALS, k=rng.randrange(20, 80)):
        keys, args = GENERATORS[name](world)
        found.append(Call(name, tuple(keys), tuple(args), 1.0))
    return found


def keys_of(client: Any, prefix: str) -> dict[str, tuple[Any, ...]]:
    """Every key there, with its value and its time."""
    found = [*client.scan_iter(f"{prefix}:*", count=1000)]
    pipeline = client.pipeline(transaction=False)
    for key in found:
        pipeline.type(key).pttl(key).get(key).zrange(key, 0, -1, withscores=True)
    replies = iter(pipeline.execute(raise_on_error=False))
    return {
        key.decode().removeprefix(prefix): tuple(
            None if isinstance(each, redis.ResponseError) else each for each in islice(replies, 4)
        )
        for key in found
    }


def test_many_at_once_are_renewed_like_each_alone(server: RealServer) -> None:
    client: Any = redis.Redis.from_url(server.url)
    held = refused = 0
    for number in range(ROUNDS):
        together, alone = unique("together"), unique("alone")
        ones, others = renewals_of(number, together, client), renewals_of(number, alone, client)
        assert {batch.call.script for batch in batches(ones, False)} <= {"renew_many", *RENEWALS}
        together_as = batches(ones, False)
        replies = run(client, [batch.call for batch in together_as])
        alone_as = run(client, others)
        for batch, reply in zip(together_as, replies, strict=True):
            for position, answer in zip(batch.members, batch.answers(reply), strict=True):
                single, expected = others[position], alone_as[position]
                if isinstance(expected, redis.ResponseError):
                    expected = None
                    refused += 1
                assert same(expected, answer), (
                    f"round {number}: {single.script} {list(single.keys)} {list(single.args)}"
                )
                held += type(answer) is int and answer > 0
        assert same(keys_of(client, alone), keys_of(client, together)), f"round {number}"
        for prefix in (together, alone):
            client.delete(*client.scan_iter(f"{prefix}:*", count=1000))
    assert held > ROUNDS and refused > ROUNDS // 4, "the rounds have to meet what they are about"
    client.close()
