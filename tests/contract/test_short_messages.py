"""What messages show of what is given: names cut, ports and URLs named for what they are."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import holdfast
import holdfast.asyncio
from holdfast import errors

LONG = "n" * 400


@pytest.mark.parametrize(
    "error",
    [
        errors.AcquireTimeout(LONG, 1.0),
        errors.AcquireCancelled(LONG),
        errors.AlreadyHeld(LONG),
        errors.NotHeld(LONG, "release()"),
        errors.LeaseReleased(LONG, "release()"),
        errors.LeaseLost(LONG, "expired"),
        errors.DeclarationMismatch("semaphore", LONG, 1, 2),
        errors.BrokenBarrierError(LONG),
        errors.UpgradeRefused(LONG),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_long_name_is_cut_in_the_message_and_whole_in_its_field(error: Any) -> None:
    assert error.name == LONG
    assert "'" + "n" * 100 + "…'" in str(error) and "n" * 101 not in str(error)
    assert error.message == str(error)


def test_so_is_that_of_a_lock_of_a_server_that_is_away() -> None:
    with holdfast.connect("redis://127.0.0.1:1") as locks:
        with pytest.raises(holdfast.ServerUnreachable) as caught:
            locks.lock(LONG).try_acquire()
    assert "n" * 101 not in str(caught.value)
    words = [sys.executable, "-m", "holdfast", "run", "--no-wait", LONG, "--url", "redis://127.0.0.1:1", "--", "true"]
    assert b"n" * 101 not in subprocess.run(words, capture_output=True, check=False).stderr


def test_a_name_that_is_not_long_is_told_whole() -> None:
    assert repr("n" * 100) in str(errors.LeaseLost("n" * 100, "expired"))


@pytest.mark.parametrize("client", [holdfast.Client, holdfast.asyncio.Client])
def test_a_url_where_a_client_belongs(client: Any) -> None:
    with pytest.raises(holdfast.ConfigurationError) as caught:
        client("redis://:secret@localhost:6379")
    said = str(caught.value)
    assert said.startswith("redis_client = 'redis://…@localhost:6379' is not allowed: ")
    assert said.endswith("connect(url), which takes a URL") and "secret" not in said


@pytest.mark.parametrize(
    "url",
    [
        "redis://:pass/word@host:99999",
        "redis://host:99999/1",
        "rediss://[::1]:65536",
        "redis+sentinel://a:26379,b:99999/service",
        "redis+cluster://a:99999",
    ],
)
def test_a_port_that_is_none(url: str) -> None:
    with pytest.raises(holdfast.ConfigurationError) as caught:
        holdfast.connect(url)
    if "word" not in url:  # of that no one can say what is wrong
        assert "65535" in str(caught.value) and "password" not in str(caught.value)
    assert "pass/word" not in str(caught.value)


def test_doctor_does_not_advise_to_run_doctor() -> None:
    words = [sys.executable, "-m", "holdfast", "doctor", "--url", "redis://127.0.0.1:1"]
    for more in ([], ["--json"]):
        done = subprocess.run([*words, *more], capture_output=True, check=False)
        said = done.stdout + done.stderr
        assert done.returncode == 69 and b"cannot be reached" in said and b"doctor`" not in said
        assert b"check the address (--url or HOLDFAST_URL) and that the server is running" in said
