"""What one call of a script does on the server is bounded, however much has piled up there.

Counted, not timed: commands, what is given to them, and what they answer or remove. `python -m bench.blocking` prints
how long the same calls take.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from holdfast._core import batch, overview
from holdfast._lua import SCRIPTS
from testbed import servers
from testbed.piles import LISTED, PILES, listening

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
    "last of 1000 parties, the others living": 9_100,
    "break a barrier of 1000": 6_100,
    "abort a barrier of 1000": 6_100,
    "reset a barrier of 1000": 6_100,
}


#: Scripts that do the same few things whatever there is: no loop, and no command that goes over many.
FEW = frozenset({"fenced_set", "inspect", "quorum_acquire", "raise_fence", "renew", "set_if", "tell"})


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


def test_every_script_is_among_those_calls() -> None:
    assert {pile.script for pile in PILES.values()} | FEW == {script.name for script in SCRIPTS.values()}


def test_clients_ask_for_no_more_than_those_calls() -> None:
    assert max(len(pile.keys) for pile in PILES.values() if pile.script == "renew_many") == batch._KEYS_MAX
    assert (LISTED[0][0], LISTED[1][0] * LISTED[1][1]) == (overview.NAMES_MAX, overview.NAMED_MAX)
