"""`holdfast elect`: one leader, and another one when it goes."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

import holdfast as library
from holdfast import embedded
from tests.support.commands import PATIENCE_S, alive, holdfast, started, wait_for

#: Says who leads, and goes on until it is told to end.
LEADS = ["sh", "-c", 'echo "$HOLDFAST_NAME $HOLDFAST_FENCING_TOKEN $$"; exec sleep 600']


def term(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """(fencing token, pid of the command) of the next term."""
    assert process.stdout is not None
    _, token, pid = process.stdout.readline().split()
    return int(token), int(pid)


def campaigning(url: str, name: str) -> int:
    """How many wait to be elected."""
    with redis.Redis.from_url(url) as client:
        return int(client.zcard(f"holdfast:{{{name}}}:leader:queue"))


def test_one_leads_and_another_one_takes_over(valkey_server: embedded.Server, unique_name: str) -> None:
    url = valkey_server.url
    with (
        library.connect(url) as client,
        started("elect", "--ttl", "5s", unique_name, "--", *LEADS, url=url) as first,
    ):
        first_token, first_pid = term(first)
        with started("elect", "--ttl", "5s", unique_name, "--", *LEADS, url=url) as second:
            wait_for(lambda: campaigning(url, unique_name) == 1, "the second one campaigns")
            first.kill()
            second_token, second_pid = term(second)
            assert second_token > first_token
            wait_for(lambda: not alive(first_pid), "the first leader's command has gone")
            assert alive(second_pid)
            second.send_signal(signal.SIGTERM)
            assert second.wait(PATIENCE_S) == 128 + 15
        assert client.election(unique_name).leader() is None


def test_a_leader_that_lost_it_is_elected_again_and_starts_anew(
    valkey_server: embedded.Server, unique_name: str
) -> None:
    with (
        redis.Redis.from_url(valkey_server.url) as client,
        started("elect", "--ttl", "3s", unique_name, "--", *LEADS, url=valkey_server.url) as process,
    ):
        first_token, first_pid = term(process)
        assert client.delete(f"holdfast:{{{unique_name}}}:leader") == 1
        second_token, second_pid = term(process)
        assert second_token > first_token and second_pid != first_pid
        assert not alive(first_pid)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 128 + 2
        assert b"no longer the leader" in said


def test_it_outlives_its_server(private_server: Callable[..., embedded.Server], unique_name: str) -> None:
    server = private_server()
    with started("elect", "--ttl", "2s", unique_name, "--", *LEADS, url=server.url) as process:
        _, first_pid = term(process)
        server.kill()
        wait_for(lambda: not alive(first_pid), "the command is ended")
        server.start()
        _, second_pid = term(process)
        assert second_pid != first_pid


@pytest.mark.parametrize("status", [0, 5])
def test_the_end_of_the_command_is_the_end(valkey_server: embedded.Server, unique_name: str, status: int) -> None:
    done = holdfast("elect", unique_name, "--", "sh", "-c", f"exit {status}", url=valkey_server.url)
    assert (done.returncode, done.stderr) == (status, b"")
    with library.connect(valkey_server.url) as client:
        assert client.election(unique_name).leader() is None


def test_who_cannot_be_executed_does_not_lead_for_ever(valkey_server: embedded.Server, unique_name: str) -> None:
    assert holdfast("elect", unique_name, "--", "/no/such/command", url=valkey_server.url).returncode == 127


def test_a_signal_ends_the_waiting(valkey_server: embedded.Server, unique_name: str, tmp_path: Path) -> None:
    url, trace = valkey_server.url, tmp_path / "ran"
    with library.connect(url) as client, client.election(unique_name):
        with started("elect", unique_name, "--", "touch", str(trace), url=url) as process:
            wait_for(lambda: campaigning(url, unique_name) == 1, "it waits")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 128 + 15
        wait_for(lambda: campaigning(url, unique_name) == 0, "its place in the queue is given up")
    assert not trace.exists()
