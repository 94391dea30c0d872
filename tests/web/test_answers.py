"""What `holdfast web` answers, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import signal
import socket
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.message import Message
from typing import Any

import pytest

import holdfast as library
from holdfast import embedded
from holdfast.web.poller import Poller
from testbed.waiting import eventually
from tests.support.commands import PATIENCE_S, holdfast, started
from tests.web.conftest import get


@dataclass
class Answer:
    status: int
    headers: Message
    text: str


@contextlib.contextmanager
def asked(address: str, path: str, method: str = "GET", **headers: str) -> Iterator[http.client.HTTPResponse]:
    """One request, with the path as it is written."""
    place = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        with connection.getresponse() as answer:
            yield answer


def ask(address: str, path: str = "/", method: str = "GET", **headers: str) -> Answer:
    """The whole answer."""
    with asked(address, path, method, **headers) as answer:
        return Answer(answer.status, answer.headers, answer.read().decode())


def messages(stream: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Return what a browser is told."""
    while line := stream.readline():
        if line.startswith(b"data: "):
            yield json.loads(line[6:])
    raise AssertionError("the stream has ended")


@pytest.fixture(scope="module")
def page(shared_servers: Callable[[Any], embedded.Server]) -> Iterator[str]:
    """The address of a page of all locks, for tests that share it."""
    words = ("web", "--listen", "127.0.0.1:0", "--interval", "100ms", "--allow-host", "friend.example")
    with started(*words, url=shared_servers("valkey").url) as process:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()


def test_a_lock_and_what_happened_to_it(
    serve: Callable[..., str], valkey_server: embedded.Server, unique_name: str
) -> None:
    address = serve(f"{unique_name}*")
    eventually(lambda: get(address, "api/locks")["looks"])
    with library.connect(valkey_server.url) as client:
        with client.lock(unique_name, note="deploy") as lease:
            eventually(lambda: [row["note"] for row in get(address, "api/locks")["rows"]] == ["deploy"])
            (row,) = get(address, "api/locks")["rows"]
            assert (row["kind"], row["name"], row["held"], row["token"]) == ("lock", unique_name, 1, lease.token)
            assert row["fencing_token"] == lease.fencing_token
            (found,) = get(address, f"api/locks/{unique_name}")["locks"]
            assert [(each["token"], each["note"]) for each in found["holders"]] == [(lease.token, "deploy")]
            assert abs(found["holders"][0]["until"] - row["since"] - 30_000) < 2_000
        eventually(lambda: not get(address, "api/locks")["rows"])
    (found,) = get(address, f"api/locks?name={unique_name}")["locks"]
    assert [each["what"] for each in found["history"]] == ["held", "released"]
    assert found["history"][0]["token"] == lease.token


@pytest.mark.parametrize("name", ["a/../b", "..", "<b>&\"'", "a b\tc", "über\u202ereversed", "{x}", "%2e", "?", "#"])
def test_any_name_has_its_details(page: str, valkey_server: embedded.Server, unique_name: str, name: str) -> None:
    name = f"{name}-{unique_name}"
    quoted = urllib.parse.quote(name, safe="")
    with library.connect(valkey_server.url) as client, client.lock(name):
        eventually(lambda: get(page, f"api/locks?name={quoted}")["locks"])
        for path in (f"/api/locks/{quoted}", f"/api/locks?name={quoted}"):
            (found,) = json.loads(ask(page, path).text)["locks"]
            assert found["name"] == name
    assert ask(page, f"/api/locks/never-{quoted}").status == 404


def test_metrics_have_no_names(serve: Callable[..., str], valkey_server: embedded.Server, unique_name: str) -> None:
    address = serve(f"{unique_name}*")
    with library.connect(valkey_server.url) as client, client.lock(unique_name):

        def text() -> str:
            return ask(address, "/metrics").text

        eventually(lambda: 'holdfast_web_held{kind="lock"} 1\n' in text())
        assert unique_name not in text()
        for line in text().splitlines():
            name, value = line.rsplit(" ", 1)
            assert line.startswith("# ") or (name.startswith("holdfast_web_") and float(value) >= 0), line


def test_a_browser_is_told_of_changes(
    serve: Callable[..., str], valkey_server: embedded.Server, unique_name: str
) -> None:
    with asked(serve(f"{unique_name}*"), "/api/events") as stream:
        told = messages(stream)
        assert next(told)["all"]
        with library.connect(valkey_server.url) as client, client.lock(unique_name):
            message = next(each for each in told if each["rows"])
            assert message["rows"][0]["name"] == unique_name
            # What does not change is not told again; that there was a look is.
            message = next(each for each in told if not each["rows"])
            assert "all" not in message and not message["gone"]
        assert next(each for each in told if each["gone"])["gone"] == [f"lock:{unique_name}"]


def test_a_server_that_is_gone_and_comes_back(
    serve: Callable[..., str], private_server: Callable[..., embedded.Server]
) -> None:
    server = private_server()
    port, address = server.port, serve(url=server.url)
    eventually(lambda: get(address, "api/locks")["looks"])
    server.close()
    eventually(lambda: get(address, "api/locks")["error"])
    assert "holdfast_web_up 0" in ask(address, "/metrics").text
    private_server(port=port)
    eventually(lambda: get(address, "api/locks")["error"] is None)


def test_a_server_that_is_not_there_is_said_once() -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    words = ("web", "--listen", "127.0.0.1:0", "--interval", "100ms", "--url", f"redis://127.0.0.1:{port}")
    with started(*words) as process:
        assert process.stdout is not None and process.stderr is not None
        address = process.stdout.readline().decode().strip()
        with asked(address, "/api/events"):  # so that it looks as often as it may
            eventually(lambda: get(address, "api/locks")["looks"] > 2)
        assert "cannot be reached" in get(address, "api/locks")["error"]
        process.send_signal(signal.SIGTERM)
        (line,) = process.stderr.read().decode().splitlines()
    assert f"127.0.0.1:{port} cannot be reached" in line and line.endswith("looking again until it answers")


def test_a_look_that_fails_by_a_mistake_is_followed_by_others() -> None:
    class Client:
        looks = 0
        locks: tuple[library.Listed, ...] = ()

        async def list(self, pattern: str, *, grants: bool) -> AsyncIterator[library.Listed]:
            self.looks += 1
            if self.looks < 3:
                raise RuntimeError("a mistake")
            for each in self.locks:
                yield each

    async def run() -> None:
        poller = Poller(Client(), "*", 0.01, said.append)
        streaming = poller.stream()
        looking = asyncio.ensure_future(poller.run())
        try:
            errors = [json.loads(await anext(streaming))["error"]]
            while len(errors) < 2 or errors[-1] is not None:
                errors.append(json.loads(await anext(streaming))["error"])
        finally:
            looking.cancel()
            await streaming.aclose()
        # And what a look that succeeds has found is told at once, without the error of the one before.
        assert errors == [None, "RuntimeError: a mistake", "RuntimeError: a mistake", None]

    said: list[Exception] = []
    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
    assert [str(each) for each in said] == ["a mistake"]


def test_the_end_of_a_lease_is_not_shown_before_it_is_known_whether_it_was_broken() -> None:
    shown: list[list[str]] = []

    class Client:
        held = True

        async def list(self, pattern: str, *, grants: bool) -> AsyncIterator[library.Listed]:
            if self.held:
                holders = (library.Holder("token", True, 30.0, None, None),)
                yield library.Listed("lock", "a", holders, 1, (), 0, 7, 0, datetime.now(UTC))

        async def explain(self, change: library.Change) -> library.Change:
            shown.append([each["what"] for each in poller.detail("a")[0]["history"]])
            return replace(change, what="broken", reason="for a test")

        async def deadlocks(self) -> tuple[library.Deadlock, ...]:
            return ()

    async def run() -> None:
        await poller._look()
        client.held = False
        await poller._look()

    client = Client()
    poller = Poller(client, "*", 0.01)
    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
    assert shown == [["held"]]
    assert [each["what"] for each in poller.detail("a")[0]["history"]] == ["held", "broken"]


def test_a_browser_that_is_slow_is_told_in_one_message_what_it_has_missed() -> None:
    class Client:
        held: tuple[str, ...] = ("a", "b")

        async def list(self, pattern: str, *, grants: bool) -> AsyncIterator[library.Listed]:
            for name in self.held:
                holders = (library.Holder(f"token of {name}", True, 30.0, None, None),)
                yield library.Listed("lock", name, holders, 1, (), 0, 7, 0, datetime.now(UTC))

        async def explain(self, change: library.Change) -> library.Change:
            return change

        async def deadlocks(self) -> tuple[library.Deadlock, ...]:
            return ()

    async def run() -> None:
        client = Client()
        poller = Poller(client, "*", 0.01)

        async def look(*held: str) -> None:
            client.held = held
            await poller._look()
            poller._tell()

        async def told(stream: AsyncGenerator[bytes, None]) -> tuple[bool, list[str], list[str]]:
            message = json.loads(await anext(stream))
            return "all" in message, [row["name"] for row in message["rows"]], message.get("gone", [])

        quick, slow = poller.stream(), poller.stream()
        assert await told(quick) == await told(slow) == (True, [], [])
        await look("a", "b")
        assert await told(quick) == (False, ["a", "b"], [])
        await look("a", "c")
        assert await told(quick) == (False, ["c"], ["lock:b"])
        await look("a", "c", "d")
        assert await told(quick) == (False, ["d"], [])
        assert await told(slow) == (False, ["a", "c", "d"], [])
        await look("a", "c", "d")
        assert await told(quick) == await told(slow) == (False, [], [])
        assert await told(poller.stream()) == (True, ["a", "c", "d"], [])
        poller.stop()
        for stream in (quick, slow):
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


@pytest.mark.parametrize(
    "host, status",
    [
        ("127.0.0.1:8765", 200),
        ("localhost", 200),
        ("[::1]:1", 200),
        ("evil.example", 421),
        ("evil.example:80", 421),
        ("127.0.0.1.evil.example", 421),
        ("192.0.2.1", 421),
        ("", 421),
        ("friend.example:99", 200),
    ],
)
def test_other_names_are_refused(page: str, host: str, status: int) -> None:
    assert ask(page, Host=host).status == status
    assert ask(page, "/api/locks", Host=host).status == status


def test_headers_keep_the_page_to_itself(page: str) -> None:
    for path in ("/", "/page.js", "/page.css", "/icon.svg", "/api/locks", "/metrics", "/nothing"):
        answer = ask(page, path)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Access-Control-Allow-Origin"] is None
    for path in ("/", "/api/locks", "/api/locks/a", "/metrics"):
        for method in ("POST", "PUT", "DELETE"):
            assert ask(page, path, method).status == 405


@pytest.mark.parametrize(
    "accepted, language",
    [
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh-CN"),
        ("en-GB,zh;q=0.5", "en"),
        ("de, zh;q=0.3, en;q=0.7", "en"),
        ("fr", "en"),
        ("", "en"),
        ("zh-TW", "zh-CN"),
        (";q=x,zh", "zh-CN"),
    ],
)
def test_the_language_is_the_browsers(page: str, accepted: str, language: str) -> None:
    assert f'<html lang="{language}"' in ask(page, Accept_Language=accepted).text


def test_it_ends_at_once_though_a_page_is_open(valkey_server: embedded.Server) -> None:
    with started("web", "--listen", "127.0.0.1:0", url=valkey_server.url) as process:
        assert process.stdout is not None and process.stderr is not None
        address = process.stdout.readline().decode().strip()
        with asked(address, "/api/events") as stream:
            assert stream.readline().startswith(b"data: ")
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 130
        assert process.stderr.read() == b""


def test_what_is_wrong_is_said() -> None:
    for words in (
        ["--listen", "8765"],
        ["--listen", "a:99999"],
        ["--interval", "1ms"],
        ["", "--listen", "127.0.0.1:0"],
    ):
        assert holdfast("web", *words).returncode == 64
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        done = holdfast("web", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
        assert done.returncode == 69 and done.stderr.endswith(b"Address already in use\n")


def test_browsers_that_go_leave_no_complaint(valkey_server: embedded.Server) -> None:
    with started("web", "--listen", "127.0.0.1:0", "--interval", "100ms", url=valkey_server.url) as process:
        assert process.stdout is not None and process.stderr is not None
        address = process.stdout.readline().decode().strip()
        for _ in range(10):
            with asked(address, "/api/events") as stream:
                next(messages(stream))
        eventually(lambda: get(address, "api/locks")["looks"] > 2)
        process.send_signal(signal.SIGTERM)
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE_S) == -signal.SIGTERM
