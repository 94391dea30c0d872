"""The lock's contract over a quorum of five: all of it but what needs one queue, or one server."""

from __future__ import annotations

import pytest

from tests.contract import test_lock as contract
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
#: They bring a client, or a wrong password, for one server.
_ONE_SERVER = ("test_a_brought_client", "test_other_libraries_are_excluded_and_exclude", "test_a_wrong_password")

#: All data lost at once, with all locks: that is not what a quorum is safe against.
_ALL_LOST = ("test_fencing_tokens_only_grow",)

globals().update(borrowed(contract, without=(*_QUEUE, *_ONE_SERVER, *_ALL_LOST)))


@pytest.fixture
def kind() -> str:
    return "quorum"
