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
#: There is no inbox to be lost.
_ELSEWHERE = ("test_waiting_survives_the_loss_of_its_inbox", "test_a_wait_survives_the_loss_of_its_inbox")

for _module in _MODULES:
    for _name, _found in vars(_module).items():
        if _name in _FIXTURES:
            globals()[_name] = _found
        elif _name.startswith("test_") and not _name.startswith(("test_bad_", *_ELSEWHERE)):
            globals()[f"{_name}_{_module.__name__.rpartition('_')[2]}"] = _found


#: Not where redis-py cannot look, which tests do; for Clusters there is `test_contract_in_a_cluster.py`.
_ON = [
    name
    for name, profile in PROFILES.items()
    if not (profile.refused or profile.cluster or profile.full or "HELLO" in profile.forbids)
]


@pytest.fixture(scope="module", params=_ON, ids=[name.replace(" ", "-")[:12] for name in _ON])
def profile_url(request: pytest.FixtureRequest) -> Iterator[str]:
    with running(PROFILES[request.param]) as url:
        yield url


@pytest.fixture
def url(profile_url: str) -> str:
    return profile_url


class Unmarked(redis.Redis):
    """Looks at everything but the marks of those that ask, which go by themselves."""

    def keys(self, pattern: Any = "*", **options: Any) -> Any:
        return [key for key in super().keys(pattern, **options) if ":there" not in key]

    def scan_iter(self, *args: Any, **options: Any) -> Iterator[Any]:
        return (key for key in super().scan_iter(*args, **options) if ":there" not in key)


@pytest.fixture
def raw(url: str) -> Iterator[Any]:
    with Unmarked.from_url(url.replace("redis+cluster", "redis"), decode_responses=True) as client:
        yield client
