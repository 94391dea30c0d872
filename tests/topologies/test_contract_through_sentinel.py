"""The lock's contract at the master that Sentinels name."""

from __future__ import annotations

import pytest

from tests.contract import test_lock as contract
from tests.topologies.borrowing import borrowed

#: They bring a client, or a wrong password, in a URL for one server.
_ONE_SERVER = ("test_a_brought_client", "test_a_wrong_password")

globals().update(borrowed(contract, without=_ONE_SERVER))


@pytest.fixture
def kind() -> str:
    return "sentinel"
