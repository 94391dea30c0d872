"""What one call of a script does on the server is bounded, however much has piled up there.

Counted, not timed: commands, what is given to them, and what they answer or remove. `python -m bench.blocking` prints
how long the same calls take.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from holdfast._core import overview
from holdfast._core.agent import renewals
from holdfast._lua import SCRIPTS
from testbed import servers
from testbed.piles import LISTED, PILES, listening
from tests.support.keys import key_of
from tests.support.scripts import CLIENTS, INBOXES, TOMBSTONE_MS, TTL_MS, Scripts

#: In the text of a script, before all else: what it asks the server for is counted.
_COUNTING = """
local uncounted = redis
local function counted(ask)
  return function(what, ...)
    local answer = ask(what, ...)
    local removed = string.find(what, '^ZREMRANGE') and type(answer) == 'number' and answer or 0
    uncounted.call('INCRBY', 'work', 1 + select('#', ...) + removed + (type(answer) == 'table' and #answer or 0))
    return answer
  end
end
local redis = {call = counted(redis.call), pcall = counted(redis.pcall), error_reply = redis.error_reply}
"""
#: A thousand of them take a server a quarter of a millisecond, about.
WORK_MAX = 3_200
#: What does more, and why, is in docs/design/0018-work-per-call.md.
KNOWN = {
    "acquire, holders of one permit, the limit is lost": 10_100,
    "acquire, holders of two, the limit is lost": 10_100,
    "last of 1000 parties, the others dead": 5_100,
    "last of 1000 parties, the others living": 6_500,
}


#: Scripts that do the same few things whatever there is: no loop but over arguments, no command that goes over many.
FEW = frozenset(
    (
        *("counts", "crash_renew", "fenced_set", "hears", "inspect", "quorum_acquire", "renew"),
        *("set_if", "tell", "there"),
    )
)


@pytest.fixture(scope="module")
def raw() -> Iterator[Any]:
    """A server whose keys are all ours."""
    with servers.start() as server, redis.Redis.from_url(server.url, decode_responses=True) as client:
        with listening(client):
            yield client


def work_of(raw: Any, what: str) -> int:
    pile = PILES[what]
    pile.set_up(raw)
    pile.call(raw, _COUNTING)
    return int(raw.get("work"))


@pytest.mark.parametrize("what", PILES)
def test_one_call_does_a_bounded_amount_of_work(raw: Any, what: str) -> None:
    assert work_of(raw, what) <= KNOWN.get(what, WORK_MAX)


class Crowd:
    """The parties of a barrier, each of which asks again when it is told to."""

    def __init__(self, url: str, name: str, parties: int) -> None:
        self.scripts = Scripts(url)
        self.keys = tuple(f"{key_of(name)}:barrier{part}" for part in ("", ":arrived", ":released", ":gone"))
        self.parties = parties
        self.tokens = [f"{CLIENTS[number % 4]}:1:{number}" for number in range(parties)]

    def ask(self, token: str, what: str = "wait", generation: int = 1) -> Any:
        late = (self.parties, TTL_MS, INBOXES, 5_000, TOMBSTONE_MS)
        return self.scripts.call("barrier_wait", self.keys, token, what, generation, *late)

    def arrive(self) -> Any:
        """Each waits; returns what the last one is answered."""
        answers = [self.ask(token, generation=0) for token in self.tokens]
        assert all(answer[0] == 0 for answer in answers[:-1])
        return answers[-1]

    def rounds(self) -> list[dict[str, Any]]:
        """Let those that are told ask, until no more are told; returns the answers of each round."""
        found: list[dict[str, Any]] = []
        while told := self.scripts.heard():
            assert len(found) < self.parties
            found.append({token: self.ask(token) for _, token in told})
        return found


@pytest.fixture(params=(2, 128, 300, 1_000))
def crowd(request: pytest.FixtureRequest, valkey_server: Any, unique_name: str) -> Iterator[Crowd]:
    made = Crowd(valkey_server.url, unique_name, request.param)
    yield made
    made.scripts.close()


def test_parties_tell_each_other_that_all_go_on(crowd: Crowd) -> None:
    assert crowd.arrive() == [1, crowd.parties - 1, 1]
    rounds = crowd.rounds()
    assert {token: answer for told in rounds for token, answer in told.items()} == {
        token: [1, index, 1] for index, token in enumerate(crowd.tokens[:-1])
    } | ({crowd.tokens[-1]: [1, crowd.parties - 1, 1]} if crowd.parties > 128 else {})
    assert len(rounds) == (1 if crowd.parties <= 128 else 2)


def test_parties_tell_each_other_that_it_is_broken(crowd: Crowd) -> None:
    crowd.tokens.pop()  # one is missing
    crowd.arrive()
    assert crowd.ask(crowd.tokens[0], "break") == [-2]
    rounds = crowd.rounds()
    assert {token for told in rounds for token in told} == set(crowd.tokens[1:])
    assert all(answer == [-1] for told in rounds for answer in told.values()), "refused from now on"
    assert crowd.scripts.server.zcard(crowd.keys[1]) == 0
    assert crowd.scripts.server.zcard(crowd.keys[3]) == len(crowd.tokens)


def test_a_reset_of_many_parties_ends_only_when_all_are_told(crowd: Crowd, far: Any, unique_name: str) -> None:
    crowd.tokens.pop()
    crowd.arrive()
    barrier = far.barrier(unique_name, crowd.parties)
    barrier.reset()
    assert not barrier.broken()
    assert {token for _, token in crowd.scripts.heard()} == set(crowd.tokens)
    assert {str(crowd.ask(token, generation=0)) for token in crowd.tokens} == {"[-1]"}, "also where a reply was lost"


def test_every_script_is_among_those_calls() -> None:
    assert {pile.script for pile in PILES.values()} | FEW == {script.name for script in SCRIPTS.values()}


def test_clients_ask_for_no_more_than_those_calls() -> None:
    assert max(len(pile.keys) for pile in PILES.values() if pile.script == "renew_many") == renewals._KEYS_MAX
    assert (LISTED[0][0], LISTED[1][0] * LISTED[1][1]) == (overview.NAMES_MAX, overview.NAMED_MAX)
