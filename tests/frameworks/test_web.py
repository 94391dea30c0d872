"""FastAPI in two workers of uvicorn, Flask in two of gunicorn: requests for one order take turns."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="`make frameworks` has it")

import httpx

import holdfast
from testbed.servers import free_port, start
from testbed.waiting import eventually
from tests.frameworks.programs import Programs
from tests.frameworks.shops import PATIENCE_S


class Site:
    """A web server with workers, and a client of the same locks."""

    def __init__(self, programs: Programs, locks: Any, port: int, *command: str) -> None:
        self.programs = programs
        self.locks = locks
        self.url = f"http://127.0.0.1:{port}"
        self.server = programs.start(*command)
        eventually(self._answers, "it answers", PATIENCE_S)

    def _answers(self) -> bool:
        self.programs.check()
        try:
            return bool(httpx.get(f"{self.url}/nothing").status_code == 404)
        except httpx.TransportError:
            return False

    def post(self, path: str, **params: Any) -> httpx.Response:
        # By a connection of its own: any worker may take it.
        return httpx.post(f"{self.url}{path}", params=params, timeout=PATIENCE_S)


@pytest.fixture(scope="module", params=["uvicorn", "gunicorn"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    port = free_port()
    commands = {
        "uvicorn": ("uvicorn", "--workers", "2", "--port", str(port), "examples.frameworks.fastapi_app:app"),
        "gunicorn": (
            *("gunicorn", "--preload", "--workers", "2", "--threads", "4", "--bind", f"127.0.0.1:{port}"),
            "examples.frameworks.flask_app:app",
        ),
    }
    folder = tmp_path_factory.mktemp(request.param)
    with start() as server, holdfast.connect(server.url) as locks:
        programs = Programs(folder, HOLDFAST_URL=server.url)
        try:
            yield Site(programs, locks, port, *commands[request.param])
        finally:
            programs.close()
            print(programs.logs())


def test_requests_for_one_order_take_turns(site: Site) -> None:
    with ThreadPoolExecutor(8) as threads:
        packed = list(threads.map(lambda _: site.post("/orders/1/pack"), range(16)))
    answers = [each.json() for each in packed if each.status_code == 200]
    assert answers and {each.status_code for each in packed} <= {200, 423}
    fences = [each["fencing_token"] for each in answers]
    assert len(set(fences)) == len(fences)


def test_taken_says_when_to_come_back(site: Site) -> None:
    with site.locks.lock("order:2", ttl=20):
        refused = site.post("/orders/2/pack")
    assert refused.status_code == 423 and "order:2" in refused.json()["detail"]
    assert 1 <= int(refused.headers["Retry-After"]) <= 20
    assert site.post("/orders/2/pack").status_code == 200


def test_a_lost_lease_is_no_success(site: Site, request: pytest.FixtureRequest) -> None:
    lost_as = {"uvicorn": 503, "gunicorn": 500}[request.node.callspec.params["site"]]
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(site.post, "/orders/3/pack", seconds=5)
        eventually(site.locks.lock("order:3").locked, "it works", PATIENCE_S)
        assert site.locks.break_("order:3", reason="a test")
        assert working.result(PATIENCE_S).status_code == lost_as


def test_what_a_killed_worker_held_is_free_after_its_ttl(site: Site) -> None:
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(site.post, "/orders/5/pack", seconds=60)
        holder = eventually(site.locks.lock("order:5").holder, "it works", PATIENCE_S)
        os.kill(holder.pid, signal.SIGKILL)
        assert isinstance(working.exception(PATIENCE_S), httpx.TransportError)
    site.locks.lock("order:5").acquire(timeout=30).release()
    eventually(lambda: site.post("/orders/4/pack").status_code == 200, "another worker goes on", PATIENCE_S)


def test_a_graceful_stop_releases(tmp_path: Path) -> None:
    port = free_port()
    with start() as server, holdfast.connect(server.url) as locks:
        programs = Programs(tmp_path, HOLDFAST_URL=server.url)
        try:
            command = ("uvicorn", "--port", str(port), "--timeout-graceful-shutdown", "1")
            site = Site(programs, locks, port, *command, "examples.frameworks.fastapi_app:app")
            with ThreadPoolExecutor(1) as threads:
                working = threads.submit(site.post, "/orders/1/pack", seconds=60)
                eventually(locks.lock("order:1").locked, "it works", PATIENCE_S)
                site.server.terminate()
                locks.lock("order:1").acquire(timeout=8).release()  # less than its ttl of 10 s
                site.server.wait(PATIENCE_S)
                assert working.exception(PATIENCE_S) is not None or working.result().status_code >= 500
        finally:
            programs.close()
            print(programs.logs())


def test_in_the_tests_of_an_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a web server, as tests of a FastAPI app do."""
    with start() as server:
        monkeypatch.setenv("HOLDFAST_URL", server.url)
        from examples.frameworks.fastapi_app import app

        async def play() -> list[httpx.Response]:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=transport, base_url="http://test") as client,
            ):
                reports = [client.post("/reports/monday") for _ in range(3)]
                return [*await asyncio.gather(*reports), await client.post("/reports/monday")]

        *first, later = [answer.status_code for answer in asyncio.run(play())]
    assert sorted(first) == [200, 409, 409] and later == 200
