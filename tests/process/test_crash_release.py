"""Holders with `crash_release`: one that is killed is followed soon, one that is stopped keeps its lease."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from holdfast import embedded
from testbed.waiting import eventually
from tests.support.worker import workers

pytestmark = pytest.mark.usefixtures("nothing_left")

APIS = pytest.mark.parametrize("api", ["threads", "asyncio"])
#: Long enough that no test sees its end.
TTL_S = 600


@pytest.fixture
def raw(valkey_server: embedded.Server) -> Iterator[Any]:
    client = redis.Redis.from_url(valkey_server.url, decode_responses=True)
    yield client
    client.close()


def key(name: str, part: str = "") -> str:
    return f"holdfast:{{{name}}}{part}"


def ids(raw: Any) -> set[str]:
    """The connections of the server."""
    return {each["id"] for each in raw.client_list()}


@APIS
def test_a_killed_holder_is_followed_long_before_its_ttl(
    api: str, valkey_server: embedded.Server, raw: Any, unique_name: str
) -> None:
    with workers(api, valkey_server.url, 3) as (first, second, third):
        held = first.ask(f"acquire {unique_name} {TTL_S} 1")
        assert raw.get(key(unique_name, ":fence:crash")).startswith("alive ")
        second.tell(f"acquire {unique_name} {TTL_S} 1")
        eventually(lambda: raw.zcard(key(unique_name, ":queue")) == 1)
        first.signal(signal.SIGKILL)
        after = second.answer()
        assert (after["state"], after["fence"] > held["fence"]) == ("HELD", True)
        # What was handed over is released as soon: it was not noted until its first renewal.
        third.tell(f"acquire {unique_name} {TTL_S}")
        eventually(lambda: raw.zcard(key(unique_name, ":queue")) == 1)
        eventually(lambda: after["token"] in (raw.get(key(unique_name, ":fence:crash")) or ""))
        second.signal(signal.SIGKILL)
        assert third.answer()["fence"] > after["fence"]


@APIS
def test_a_stopped_holder_keeps_its_lease(api: str, valkey_server: embedded.Server, raw: Any, unique_name: str) -> None:
    with workers(api, valkey_server.url, 2) as (stopped, other):
        held = stopped.ask(f"acquire {unique_name} {TTL_S} 0.3")
        other.tell(f"acquire {unique_name} {TTL_S} 0.3")
        eventually(lambda: raw.zcard(key(unique_name, ":queue")) == 1)
        stopped.signal(signal.SIGSTOP)
        time.sleep(1.5)
        assert raw.get(key(unique_name)) == held["token"]
        stopped.signal(signal.SIGCONT)
        eventually(lambda: stopped.ask("ensure").get("state") == "HELD")
        assert stopped.ask("release")["state"] == "RELEASED"
        assert other.answer()["fence"] > held["fence"]


@APIS
def test_who_was_cut_off_knows_that_its_lease_is_gone(
    api: str, valkey_server: embedded.Server, raw: Any, unique_name: str
) -> None:
    """The server closes its connection while it is stopped, so that others get in; then it trusts nothing."""
    with workers(api, valkey_server.url, 2) as (stopped, other):
        before = ids(raw)
        held = stopped.ask(f"acquire {unique_name} {TTL_S} 0.5")
        its = ids(raw) - before
        other.tell(f"acquire {unique_name} {TTL_S} 0.5")
        eventually(lambda: raw.zcard(key(unique_name, ":queue")) == 1)
        stopped.signal(signal.SIGSTOP)
        for each in its:
            raw.client_kill_filter(_id=each)
        assert other.answer()["fence"] > held["fence"]
        stopped.signal(signal.SIGCONT)
        assert stopped.ask("ensure")["error"] in ("LeaseSuspect", "LeaseLost")
        eventually(lambda: stopped.ask("ensure")["error"] == "LeaseLost")
