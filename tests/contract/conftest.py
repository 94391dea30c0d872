"""One contract for both APIs on every kind of server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from holdfast import embedded
from tests.support.apis import Api


@pytest.fixture
def locks(api: Api, url: str) -> Any:
    """A client for the shared server."""
    return api.connect(url)


@pytest.fixture
def others(api: Api, url: str) -> Any:
    """A second client, as another process would have."""
    return api.connect(url)


@pytest.fixture
def raw(server: embedded.Server) -> Iterator[Any]:
    """A plain redis-py client, to look at the server and to play the outsider."""
    client = redis.Redis.from_url(server.url, decode_responses=True)
    yield client
    client.close()
