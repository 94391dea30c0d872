"""Breaking leases from the page: only where it is allowed, with the token, from the page, and for the holder shown."""

from __future__ import annotations

import http.client
import json
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

import holdfast as library
from holdfast import embedded
from testbed.waiting import eventually
from tests.support.commands import PATIENCE_S, holdfast, started
from tests.web.conftest import get

TOKEN = "a-token-for-the-tests"


@pytest.fixture(scope="module")
def page(shared_servers: Callable[[Any], embedded.Server]) -> Iterator[str]:
    """A page that may break leases."""
    words = ("web", "--listen", "127.0.0.1:0", "--interval", "100ms", "--allow-break")
    with started(*words, url=shared_servers("valkey").url, env={"HOLDFAST_WEB_TOKEN": TOKEN}) as process:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()


def post(address: str, body: Any, **headers: str | None) -> tuple[int, str]:
    """As the page does it, but for what `headers` say."""
    place = urllib.parse.urlsplit(address)
    given = {"Origin": address.rstrip("/"), "X-Holdfast-Token": TOKEN, "Content-Type": "application/json"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}  # type: ignore[misc]
    with closing(http.client.HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE_S)) as connection:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent: dict[str, str] = {name: value for name, value in given.items() if value}
        connection.request("POST", "/api/break", data, sent)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def held(page: str, name: str) -> dict[str, str]:
    """Make the request that breaks the lease, once it is shown with the name of its holder."""

    def shown() -> Any:
        found = get(page, f"api/locks?name={name}")["locks"]
        return found and found[0]["holders"] and found[0]["holders"][0]["host"]

    eventually(shown)
    (found,) = get(page, f"api/locks?name={name}")["locks"]
    holder = found["holders"][0]
    return {"kind": found["kind"], "name": name, "token": holder["token"], "confirm": holder["who"], "reason": "test"}


def test_a_lease_is_broken(page: str, valkey_server: embedded.Server, unique_name: str) -> None:
    with library.connect(valkey_server.url) as client:
        lease = client.lock(unique_name).acquire()
        body = held(page, unique_name)
        status, said = post(page, body)
        assert status == 200, said
        eventually(lambda: lease.state is library.LeaseState.LOST)
        with client.lock(unique_name).acquire(timeout=PATIENCE_S) as second:
            assert second.fencing_token > lease.fencing_token
            assert post(page, body)[0] == 409  # the holder of now is another one
            assert second.state is library.LeaseState.HELD
    ends = ends_of(page, unique_name, lease.token)
    assert [each["what"] for each in ends] == ["broken"] and ends[0]["reason"].endswith(": test")


def test_what_comes_of_it_is_said_in_the_language_of_the_page(
    page: str, valkey_server: embedded.Server, unique_name: str
) -> None:
    with library.connect(valkey_server.url) as client:
        lease = client.lock(unique_name).acquire()
        body = held(page, unique_name)
        answers = [post(page, body, X_Holdfast_Token="another")[1], post(page, body)[1], post(page, body)[1]]
        with pytest.raises(library.LeaseLost):
            lease.release()
    said = {json.loads(each)["said"] if each.startswith("{") else each for each in answers}
    with urllib.request.urlopen(page + "page.js", timeout=PATIENCE_S) as script:
        texts = script.read().decode()
    assert len(said) == 3 and [each for each in said if f'"{each}": "' not in texts] == []


def ends_of(page: str, name: str, token: str) -> list[dict[str, Any]]:
    """Return what the history says of the end of that lease, once it does."""

    def told() -> list[dict[str, Any]]:
        (found,) = get(page, f"api/locks?name={name}")["locks"]
        return [each for each in found["history"] if each["token"] == token and each["what"] not in ("held", "waiting")]

    eventually(lambda: bool(told()))
    return told()


def test_a_break_from_elsewhere_shows_as_one(page: str, valkey_server: embedded.Server, unique_name: str) -> None:
    with library.connect(valkey_server.url) as client:
        lease = client.lock(unique_name).acquire()
        held(page, unique_name)
        assert client.break_(unique_name, reason="from elsewhere")
    (end,) = ends_of(page, unique_name, lease.token)
    assert end["what"] == "broken" and end["reason"].endswith(": from elsewhere")


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"X_Holdfast_Token": None}, 401),
        ({"X_Holdfast_Token": TOKEN[:-1]}, 401),
        ({"X_Holdfast_Token": "\xe9"}, 401),
        ({"Origin": None}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 421),
    ],
)
def test_who_may_not(
    page: str, valkey_server: embedded.Server, unique_name: str, headers: dict[str, str | None], status: int
) -> None:
    with library.connect(valkey_server.url) as client, client.lock(unique_name) as lease:
        assert post(page, held(page, unique_name), **headers)[0] == status
        lease.ensure_held()


def test_the_holder_has_to_be_named(page: str, valkey_server: embedded.Server, unique_name: str) -> None:
    with library.connect(valkey_server.url) as client, client.lock(unique_name) as lease:
        body = held(page, unique_name)
        for change, status in (
            ({"confirm": "worker (web1, pid 1)"}, 409),
            ({"confirm": ""}, 409),
            ({"token": "other"}, 409),
            ({"token": ""}, 400),
            ({"name": unique_name + "x"}, 409),
            ({"kind": "something"}, 400),
            ({"reason": None}, 400),
            ({"reason": "a\nb"}, 400),
        ):
            assert post(page, {**body, **change})[0] == status, change
        for wrong in (b"", b"{", b"[]", b"[" * 5_000, b"x" * 100_000):
            assert post(page, wrong)[0] == 400
        lease.ensure_held()


def test_it_is_read_only_unless_allowed(serve: Callable[..., str]) -> None:
    address = serve()
    assert post(address, {})[0] in (404, 405)
    assert holdfast("web", "--token", TOKEN).returncode == 64
    assert holdfast("web", "--allow-break", "--token", "short").returncode == 64


def test_a_token_is_made_and_told_once(valkey_server: embedded.Server) -> None:
    with started("web", "--listen", "127.0.0.1:0", "--allow-break", url=valkey_server.url) as process:
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        label, _, token = process.stdout.readline().decode().strip().partition(": ")
        assert label == "token" and len(token) >= 32
        assert post(address, {}, X_Holdfast_Token=token)[0] == 400
        assert post(address, {}, X_Holdfast_Token=token[:-1])[0] == 401
