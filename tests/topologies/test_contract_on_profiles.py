"""The contract of every primitive, on servers that forbid what services forbid, but do not rule out a primitive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from testbed.profiles import PROFILES, running
from tests.contract import test_condition, test_gates, test_lock, test_multilock, test_once, test_rwlock, test_semaphore

pytestmark = pytest.mark.thorough

_MODULES = (test_condition, test_gates, test_lock, test_multilock, test_once, test_rwlock, test_semaphore)
_FIXTURES = ("apart", "names", "nowhere", "party")
#: There is no inbox to be lost, or to tell by whether a client has gone; and those that ask leave marks, in a key
#: more.
_ELSEWHERE = (
    "test_a_wait_that_is_over_is_not_kept_by_a_client_that_has_gone",
    *("test_waiting_survives_the_loss_of_its_inbox", "test_a_wait_survives_the_loss_of_its_inbox"),
    "test_every_key_has_a_ttl",
)

for _module in _MODULES:
    for _name, _found in vars(_module).items():
        if _name in _FIXTURES:
            globals()[_name] = _found
        elif _name.startswith("test_") and not _name.startswith(("test_bad_", *_ELSEWHERE)):
            globals()[f"{_name}_{_module.__name__.rpartition('_')[2]}"] = _found


#: They bring a client of redis-py, which sends HELLO, and is of one server; they end connections by CLIENT KILL.
_BRING = (
    *("test_a_brought_client", "test_who_waits_goes_on_by_the_count_though_its_place_is_gone"),
    *("test_what_was_set_before_the_data_were_lost_counts_no_more",),
    "test_waiting_for_an_event_survives_the_loss_of_the_message",
)
_KILL = ("test_data_loss_ends_the_wait", "test_reentrant_locks_are_let_go_wholly", "test_a_dead_party_does_not_count")
_WITHOUT = {
    "PUBLISH in the keys' slot": (*_BRING, "test_waits_for_the_holder_of_one"),  # in an order that slots change
    "no HELLO, CLIENT, INFO, CONFIG": (*_BRING, *_KILL),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "profile_url" not in metafunc.fixturenames:
        return
    test = metafunc.function
    on = [
        name
        for name, profile in PROFILES.items()
        if not profile.refused and test.__name__ not in _WITHOUT.get(name, ())
    ]
    metafunc.parametrize(
        "profile_url", on, indirect=True, scope="module", ids=[name[:12].replace(" ", "-") for name in on]
    )


@pytest.fixture(scope="module")
def profile_url(request: pytest.FixtureRequest) -> Iterator[str]:
    with running(PROFILES[request.param]) as url:
        yield url


@pytest.fixture
def url(profile_url: str) -> str:
    return profile_url


@pytest.fixture
def raw(url: str) -> Iterator[Any]:
    with redis.Redis.from_url(url.replace("redis+cluster", "redis"), decode_responses=True, protocol=2) as client:
        yield client
