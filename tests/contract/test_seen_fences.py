"""The fencing token that those who look are told: never greater than that of the holder, whose writes it would stop."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import pytest

import holdfast
from holdfast import cli
from holdfast._core.settings import DEFAULT
from holdfast.web import view
from holdfast.web.rates import Rate
from testbed.waiting import eventually
from tests.contract.test_list import all_of
from tests.support.apis import Api, close_brought

BLOCK = 1024


@pytest.fixture(params=["tenure", "kept"])
def later(request: pytest.FixtureRequest, api: Api, url: str, unique_name: str) -> Any:
    """A lease of a block of fencing tokens that is not the first of it."""
    if request.param == "kept":
        lock = api.connect(url).lock(unique_name, cache_for=5.0)
        yield eventually(lambda: _taken_again(lock))
        return
    brought = api.redis().Redis.from_url(url)
    client = api.client(brought, _settings=DEFAULT._replace(tenure_ms=60_000.0))
    lock = client.lock(unique_name)
    actors = [api.actor() for _ in range(4)]
    futures = [actors[0].tell(lock, "acquire")]
    leases = [futures[0].result(30)]
    for actor in actors[1:]:
        futures.append(actor.tell(lock, "acquire"))
        eventually(lambda: lock.waiters() == len(futures) - 1)
    for actor, future in zip(actors, futures[1:], strict=False):
        actor.ask(leases[-1], "release")
        leases.append(future.result(30))
    assert leases[3].token == leases[2].token
    yield leases[3]
    client.close()
    close_brought(api, brought)


def _taken_again(lock: Any) -> Any:
    """Return the lease, when that was taken a second time without the server."""
    with lock as before:
        pass
    lease = lock.acquire()
    if lease.token == before.token:
        return lease
    lease.release()
    return None


def told_by_command(*words: str) -> dict[str, Any]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert cli.main([*words, "--json"]) == 0
    told: dict[str, Any] = json.loads(out.getvalue())
    return told


def test_no_look_tells_more_than_the_holder_has(api: Api, others: Any, url: str, unique_name: str, later: Any) -> None:
    lock, shared = others.lock(unique_name), others.rwlock(unique_name)
    (listed,) = all_of(api, others, unique_name)
    status, shared_status = lock.status(), shared.status()
    with pytest.raises(holdfast.AcquireTimeout) as refused:
        lock.acquire(timeout=0.05)
    of_status = told_by_command("status", unique_name, "--url", url)
    (of_list,) = told_by_command("list", unique_name, "--url", url)["locks"]
    told = {
        "last_fencing_token": lock.last_fencing_token(),
        "status": status.fencing_token,
        "status.holder": status.holder.fencing_token,
        "holder": lock.holder().fencing_token,
        "rwlock.status": shared_status.fencing_token,
        "rwlock.status.writer": shared_status.writer.fencing_token,
        "list": listed.fencing_token,
        "list holder": listed.holder.fencing_token,
        "AcquireTimeout.holder": refused.value.holder.fencing_token,
        "holdfast status": of_status["last_fencing_token"],
        "holdfast status, holder": of_status["holder"]["fencing_token"],
        "holdfast list": of_list["fencing_token"],
        "page": view.row_of(listed, Rate(0.0, False))["fencing_token"],
    }
    fence = later.fencing_token
    assert {what: fence - token for what, token in told.items() if not fence - BLOCK < token <= fence} == {}
    assert lock.holder().since == status.holder.since


def test_nor_does_a_break(others: Any, unique_name: str, later: Any) -> None:
    fence = later.fencing_token
    assert not others.break_(unique_name, holder=fence + 2 * BLOCK)
    broken = others.break_(unique_name, holder=fence, grace=0.05)
    assert [fence - BLOCK < each.fencing_token <= fence for each in broken.holders] == [True]


def test_it_is_exact_after_the_release(others: Any, api: Api, url: str, unique_name: str) -> None:
    locks = api.connect(url)
    lock = locks.lock(unique_name, cache_for=5.0)
    lease = eventually(lambda: _taken_again(lock))
    fence = lease.fencing_token
    lease.release()
    locks.close()
    eventually(lambda: not others.lock(unique_name).locked())
    assert others.lock(unique_name).last_fencing_token() == fence
