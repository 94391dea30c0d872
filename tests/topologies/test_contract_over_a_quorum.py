"""The lock's contract over a quorum of five: all of it but what needs one queue, or one server."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from testbed.waiting import PATIENCE_S, eventually
from tests.contract import test_lock as contract
from tests.support.apis import Api
from tests.topologies.borrowing import borrowed

#: There is no queue; what they say of the rest is said in test_quorum.py.
_QUEUE = (
    "test_every_key_has_a_ttl",
    "test_first_come_first_served",
    "test_a_release_names_the_next_holder",
    "test_nobody_overtakes_the_queue",
    "test_a_dead_waiter_costs_nothing",
    "test_a_foreign_holder_is_polled_for",
    "test_waiting_survives_the_loss_of_its_inbox",
)
#: They bring a client, or a wrong password, for one server; or are of what is refused over a quorum.
_ONE_SERVER = (
    "test_a_brought_client",
    "test_other_libraries_are_excluded_and_exclude",
    "test_a_wrong_password",
    "test_others_get_in_when_max_hold_has_ended_another",
)

#: All data lost at once, with all locks: that is not what a quorum is safe against.
_ALL_LOST = ("test_fencing_tokens_only_grow",)

globals().update(borrowed(contract, without=(*_QUEUE, *_ONE_SERVER, *_ALL_LOST)))


@pytest.fixture
def kind() -> str:
    return "quorum"


def test_who_waits_is_told_for_whom(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    lease = locks.lock(unique_name).acquire()
    told: list[holdfast.Waiting] = []
    waiting = api.start(others.lock(unique_name).acquire, PATIENCE_S, on_wait=told.append)
    eventually(lambda: len(told) > 1)
    assert told[-1].place is None  # there is no queue
    eventually(lambda: told[-1].holder is not None and told[-1].holder.token == lease.token)
    lease.release()
    waiting.result().release()
