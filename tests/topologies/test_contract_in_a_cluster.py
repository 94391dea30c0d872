"""The lock's contract in a Cluster of three masters with a replica each."""

from __future__ import annotations

import pytest

from tests.contract import test_lock as contract
from tests.topologies.borrowing import borrowed

#: They bring a client, or a wrong password, in a URL for one server; redis-py has no lock for a Cluster's client.
_ONE_SERVER = ("test_a_brought_client", "test_a_wrong_password", "test_other_libraries_are_excluded_and_exclude")

globals().update(borrowed(contract, without=_ONE_SERVER))


@pytest.fixture
def kind() -> str:
    return "cluster"
