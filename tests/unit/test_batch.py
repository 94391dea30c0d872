"""Which renewals leave in one request, and whose its answers are."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast._core.agent.renewals import Batch, batches
from holdfast._core.effects import Call
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import slot_of

KINDS = {"renew": 2, "sem_renew": 6, "rw_renew": 7, "multi_renew": 41}


def renewal(number: int, script: str = "renew", sync: Any = None, timeout_s: float = 1.0, ttl_ms: int = 9) -> Call:
    keys = tuple(f"{{{number}}}:{part}" for part in range(KINDS[script]))
    return Call(script, keys, (f"token-{number}", ttl_ms, 0, -1), timeout_s, sync=sync)


def asked_together(calls: list[Call], moves: bool = False) -> list[list[int]]:
    return sorted(sorted(batch.members) for batch in batches(calls, moves))


def test_every_call_is_asked_for_once_in_requests_that_are_bounded() -> None:
    calls = [renewal(number, script, ttl_ms=number % 3) for script in KINDS for number in range(70)]
    found = batches(calls, False)
    assert sorted(position for batch in found for position in batch.members) == list(range(len(calls)))
    together = [batch for batch in found if len(batch.members) > 1]
    assert all(len(batch.call.keys) <= 120 for batch in together)
    assert len([batch for batch in found if batch.call.script == "multi_renew"]) == 70, "too much to go with others"
    assert len(together) <= 70 * (2 + 6 + 7) / 120 + 3


def test_a_request_says_what_each_lease_alone_would() -> None:
    calls = [renewal(1), renewal(2, ttl_ms=7), renewal(3), renewal(4, "sem_renew")]
    (batch,) = batches(calls, False)
    assert batch.members == [0, 2, 1, 3]
    assert list(batch.call.keys) == [key for at in batch.members for key in calls[at].keys]
    assert batch.call.args == [
        *("renew", 2, 2, 3, 9, 0, -1, "token-1", "token-3"),
        *("renew", 1, 2, 3, 7, 0, -1, "token-2"),
        *("sem_renew", 1, 6, 3, 9, 0, -1, "token-4"),
    ]


def test_one_alone_is_asked_for_as_it_is() -> None:
    call = renewal(1)
    (batch,) = batches([call], False)
    assert batch.call is call
    assert batch.answers(7) == [7]


def test_what_one_request_cannot_ask_for_is_asked_for_apart() -> None:
    assert asked_together([renewal(1), renewal(2, sync=(1, 50)), renewal(3), renewal(4, sync=(1, 50))]) == [
        [0, 2],
        [1, 3],
    ]
    assert asked_together([renewal(1), renewal(2, timeout_s=0.05)]) == [[0], [1]], "one is given up much sooner"
    number = next(number for number in range(2, 10**6) if slot_of(f"{{{number}}}") == slot_of("{1}"))
    assert asked_together([renewal(1), renewal(2), renewal(number)], moves=True) == [[0, 2], [1]]


def test_each_gets_its_own_answer() -> None:
    (batch,) = batches([renewal(1), renewal(2), renewal(3)], False)
    assert batch.answers([1, 0, -1]) == [1, 0, None], "the last one has to be asked for alone"
    assert batch.answers([1, 1]) == [None] * 3
    (batch,) = batches([renewal(1, sync=(1, 50)), renewal(2, sync=(1, 50))], False)
    assert batch.answers(([1, -1], 2)) == [(1, 2), None]


@pytest.mark.parametrize("kind", ["NOPERM", "WRONGTYPE", "TRYAGAIN", "CROSSSLOT", "MOVED", "ERR"])
def test_where_the_server_refuses_all_each_is_asked_for_alone(kind: str) -> None:
    (batch,) = batches([renewal(1), renewal(2)], False)
    assert batch.answers(RequestFailed(kind, kind, "", maybe_executed=False, transient=True)) == [None, None]


@pytest.mark.parametrize("kind", ["silent", "broken", "refused", "nonsense"])
def test_what_ends_a_connection_is_the_answer_for_each(kind: str) -> None:
    (batch,) = batches([renewal(1), renewal(2)], False)
    failures: list[Any] = batch.answers(RequestFailed(kind, kind, "node", maybe_executed=True, transient=True))
    assert [type(failure) for failure in failures] == [RequestFailed] * 2
    assert failures[0] is not failures[1], "each gathers a traceback of its own"
    assert all(failure.kind == kind and failure.maybe_executed for failure in failures)
    assert type(batch) is Batch
