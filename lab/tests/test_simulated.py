"""The schemes run in virtual time as well: the same text, on the model of the server, judged by the same checker."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from holdfast_lab import schemes
from holdfast_lab.effects import Command, Effect, Now, Random, Sleep
from holdfast_lab.history import History
from holdfast_lab.verdicts import judge
from sim.server import Refused, Server

TTL_MS = 1000


def simulate(kind: type[schemes.Scheme], seed: int, *, longest_s: float, skew_s: float = 0.0) -> History:
    """Three clients take two turns each; a section lasts up to `longest_s`, clocks are up to `skew_s` apart."""
    rng = random.Random(seed)
    now = 0.0
    servers = [Server(lambda: 1_700_000_000_000_000 + int(now * 1e6)) for _ in range(kind.SERVERS)]
    key = kind("job", 1).key
    history = History(kind.NAME, "virtual time", lock_keys=(key,), clients=["A", "B", "C"])
    history.servers = [f"server {n}" for n in range(len(servers))]
    queue: list[tuple[float, int, Callable[[], None]]] = []
    order = itertools.count()

    def later(seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(queue, (now + seconds, next(order), act))

    def note(lane: str, what: str, **more: Any) -> None:
        # No two events at one moment, as on a real clock.
        history.add(int(now * 1e9) + next(order), lane, what, **more)

    def ask(client: str, effect: Command) -> Any:
        server = servers[effect.node]
        before = server.snapshot()
        words = effect.args
        if words[0] == "EVAL":
            count = int(words[2])
            keys = [str(word) for word in words[3 : 3 + count]]
            reply = server.text(str(words[1]), keys, [str(word) for word in words[3 + count :]])
        else:
            reply = server.command(*words)
        was, after = before.get(key.encode()), server.snapshot().get(key.encode())
        if was != after:
            lane = history.servers[effect.node]
            texts = [found[0].decode() if found is not None else None for found in (was, after)]
            note(lane, "key", key=key, by=client, was=texts[0], now=texts[1])
        return reply

    async def life(client: str) -> None:
        lock = kind("job", TTL_MS)
        for _ in range(2):
            note(client, "asks", ttl_ms=TTL_MS)
            await lock.lock()
            note(client, "acquired")
            note(client, "entered")
            await Sleep(rng.uniform(0, longest_s))
            note(client, "left")
            note(client, "releases")
            await lock.unlock()
            note(client, "released")

    def step(client: str, protocol: Coroutine[Effect[Any], Any, None], value: Any) -> None:
        try:
            effect = protocol.send(value)
        except StopIteration:
            return
        match effect:
            case Command():
                # On its way, carried out, on its way back.
                def arrive() -> None:
                    try:
                        reply = ask(client, effect)
                    except Refused as refused:  # pragma: no cover - a mistake in a scheme
                        raise AssertionError(refused.message) from None
                    later(rng.uniform(0.0001, 0.02), lambda: step(client, protocol, reply))

                later(rng.uniform(0.0001, 0.02), arrive)
            case Sleep():
                later(effect.seconds, lambda: step(client, protocol, None))
            case Now():
                reading = now + (skew_s if client == "B" else 0.0)
                later(0, lambda: step(client, protocol, reading))
            case Random():
                number = rng.random()
                later(0, lambda: step(client, protocol, number))

    for client in history.clients:
        step(client, life(client), None)
    for _ in range(100_000):
        if not queue:
            return history
        now, _, act = heapq.heappop(queue)
        act()
    raise AssertionError(f"{kind.NAME}, seed {seed}: the clients never came to an end")


def found(kind: type[schemes.Scheme], seeds: int, **how: float) -> set[str]:
    """Every kind of finding over that many seeds."""
    return {verdict.kind for seed in range(seeds) for verdict in judge(simulate(kind, seed, **how))}


RUNGS = [schemes.Incr, schemes.Setnx, schemes.SetnxExpire, schemes.SetnxTimestamp, schemes.LuaSetnxExpire]
RUNGS += [schemes.SetNxEx, schemes.SetNxTokenGetDel, schemes.SetNxToken, schemes.Redlock]


@pytest.mark.parametrize("kind", RUNGS, ids=lambda kind: str(kind.NAME))
def test_every_rung_excludes_while_all_goes_well(kind: type[schemes.Scheme]) -> None:
    assert found(kind, 40, longest_s=0.2) == {"safe"}


@pytest.mark.parametrize(
    "kind", [schemes.SetnxTimestampInverted, schemes.RedlockNaive], ids=lambda kind: str(kind.NAME)
)
def test_two_do_not_even_then(kind: type[schemes.Scheme]) -> None:
    assert {"exclusion violated", "foreign release"} <= found(kind, 20, longest_s=0.2)


def test_sections_longer_than_the_ttl() -> None:
    assert {"exclusion violated", "foreign release"} <= found(schemes.SetNxEx, 20, longest_s=3)
    assert "exclusion violated" in (token := found(schemes.SetNxToken, 20, longest_s=3))
    assert "foreign release" not in token
    assert found(schemes.Setnx, 20, longest_s=3) == {"safe"}


def test_clocks_apart() -> None:
    assert "exclusion violated" in found(schemes.SetnxTimestamp, 20, longest_s=0.2, skew_s=5)
    assert found(schemes.SetNxToken, 20, longest_s=0.2, skew_s=5) == {"safe"}


def test_the_same_seed_is_the_same_history() -> None:
    first, second = (simulate(schemes.Redlock, 7, longest_s=0.2).as_json() for _ in range(2))
    assert first == second
