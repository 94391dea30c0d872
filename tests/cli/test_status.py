"""`holdfast status`: for people, and the JSON contract for programs."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import redis

import holdfast as library
from holdfast import embedded
from tests.support.commands import holdfast, started, wait_for


def status(url: str, name: str) -> dict[str, Any]:
    done = holdfast("status", "--json", name, url=url)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"\n") == 1
    report: dict[str, Any] = json.loads(done.stdout)
    assert (report["version"], report["command"], report["ok"]) == (1, "status", True)
    return report


def test_a_free_lock(server: embedded.Server, unique_name: str) -> None:
    report = status(server.url, unique_name)
    assert (report["name"], report["held"], report["holder"], report["waiters"]) == (unique_name, False, None, 0)
    assert set(report) == {
        *("version", "command", "ok", "name", "held", "holder", "sharers", "waiters", "last_fencing_token", "slots"),
        *("leader", "kind", "holders", "also", "odd"),
    }
    assert (report["last_fencing_token"], report["slots"], report["sharers"]) == (None, None, 0)
    said = holdfast("status", unique_name, url=server.url).stdout.decode()
    assert "no one" in said and unique_name in said


def test_a_held_lock_with_a_waiter(valkey_server: embedded.Server, unique_name: str) -> None:
    url = valkey_server.url
    with library.connect(url, ttl=60) as client, client.lock(unique_name) as lease:
        lock = client.lock(unique_name)
        with started("run", unique_name, "--", "true", url=url):
            wait_for(lambda: lock.waiters() == 1, "someone waits")
            report = status(url, unique_name)
            said = holdfast("status", unique_name, url=url).stdout.decode()
    holder = report["holder"]
    assert report["held"] is True and report["waiters"] == 1
    assert (holder["token"], holder["fencing_token"]) == (lease.token, lease.fencing_token)
    assert holder["holdfast"] is True
    assert (holder["host"], holder["pid"]) == (socket.gethostname(), os.getpid())
    assert 0 < holder["remaining_s"] <= 60
    since = datetime.fromisoformat(holder["since"])
    assert 0 <= (datetime.now(UTC) - since).total_seconds() < 60
    assert set(holder) == {
        *("token", "holdfast", "host", "pid", "program", "client_since", "note", "since", "remaining_s"),
        *("fencing_token", "gone"),
    }
    for fact in (socket.gethostname(), str(os.getpid()), str(lease.fencing_token), f"{since:%Y-%m-%d %H:%M:%S} UTC"):
        assert fact in said
    assert "waiters        1\n" in said


def test_the_last_fencing_token_outlives_its_lease(valkey_server: embedded.Server, unique_name: str) -> None:
    with library.connect(valkey_server.url) as client, client.lock(unique_name) as lease:
        token = lease.fencing_token
    report = status(valkey_server.url, unique_name)
    assert (report["held"], report["last_fencing_token"]) == (False, token)
    assert str(token) in holdfast("status", unique_name, url=valkey_server.url).stdout.decode()


def test_a_leader(valkey_server: embedded.Server, unique_name: str) -> None:
    with library.connect(valkey_server.url) as client, client.election(unique_name) as lease:
        report = status(valkey_server.url, unique_name)
        said = holdfast("status", unique_name, url=valkey_server.url).stdout.decode()
    assert report["held"] is False and report["leader"]["token"] == lease.token
    assert "led by" in said


def test_sharers_and_slots(valkey_server: embedded.Server, unique_name: str) -> None:
    url = valkey_server.url
    with (
        library.connect(url) as client,
        library.connect(url) as other,
        client.rwlock(unique_name).read(),
        other.rwlock(unique_name).read(),
        client.semaphore(unique_name, 3),
    ):
        report = status(url, unique_name)
        said = holdfast("status", unique_name, url=url).stdout.decode()
    assert (report["held"], report["holder"], report["sharers"]) == (True, None, 2)
    assert report["slots"] == {"total": 3, "free": 2, "used": 1, "holders": 1, "waiters": 0}
    assert "2 clients that share it" in said and "2 of 3 free" in said


def test_a_semaphore_without_a_free_permit(valkey_server: embedded.Server, unique_name: str) -> None:
    url = valkey_server.url
    with library.connect(url) as client, client.semaphore(unique_name, 3).acquire(permits=3) as lease:
        semaphore = client.semaphore(unique_name, 3)
        with started("run", "--slots", "3", unique_name, "--", "true", url=url):
            wait_for(lambda: semaphore.waiters() == 1, "someone waits")
            report = status(url, unique_name)
            said = holdfast("status", unique_name, url=url).stdout.decode()
    assert (report["kind"], report["held"], report["waiters"]) == ("semaphore", True, 1)
    assert [each["token"] for each in report["holders"]] == [lease.token]
    assert report["slots"] == {"total": 3, "free": 0, "used": 3, "holders": 1, "waiters": 1}
    assert report["last_fencing_token"] == lease.fencing_token
    assert "no one" not in said and "0 of 3 free, 1 waiter\n" in said and "waiters        1\n" in said
    assert f"held by        {socket.gethostname()}, pid {os.getpid()} " in said


def test_the_kinds_that_have_a_locks_name(valkey_server: embedded.Server, unique_name: str) -> None:
    url = valkey_server.url
    with library.connect(url) as client:
        for kind, wanted in (
            ("rwlock", client.rwlock(unique_name).write()),
            ("multilock", client.multilock(unique_name, f"{unique_name}-2")),
        ):
            with wanted.acquire() as lease:
                report = status(url, unique_name)
                said = holdfast("status", unique_name, url=url).stdout.decode()
            assert (report["kind"], report["held"], report["sharers"]) == (kind, True, 0)
            assert report["holder"]["token"] == lease.token and report["holder"]["host"] == socket.gethostname()
            assert said.startswith(f"{kind:<14} {unique_name}\nheld by        {socket.gethostname()}, pid "), said
        reader = client.rwlock(unique_name).read().acquire()
        upgraded = reader.upgrade()
        assert status(url, unique_name)["holder"]["token"] == upgraded.token
        upgraded.release()
        assert [each["token"] for each in status(url, unique_name)["holders"]] == [reader.token]
        reader.release()


def test_what_is_no_lock(valkey_server: embedded.Server, unique_name: str) -> None:
    url = valkey_server.url
    with library.connect(url) as client, library.connect(url) as other:
        latch, barrier = client.latch(f"{unique_name}-l", 5), client.barrier(f"{unique_name}-b", 3)
        latch.count_down(2)
        lock = other.lock(f"{unique_name}-c")
        condition = other.condition(lock)

        def waits_for_it() -> None:
            with lock:
                condition.wait(timeout=60)

        def breaks() -> None:
            with contextlib.suppress(library.BrokenBarrierError):
                other.barrier(f"{unique_name}-b", 3).wait(timeout=60)

        waits: list[Callable[[], object]] = [
            lambda: other.latch(f"{unique_name}-l", 5).wait(timeout=60),
            lambda: other.event(f"{unique_name}-e").wait(timeout=60),
            breaks,
            waits_for_it,
        ]

        def is_told(name: str, also: dict[str, Any]) -> bool:
            return bool(status(url, name)["also"] == also)

        waiting = [threading.Thread(target=each, daemon=True) for each in waits]
        for each in waiting:
            each.start()
        expected: dict[str, tuple[dict[str, Any], str]] = {
            "l": ({"latch": {"count": 5, "missing": 3, "waiters": 1}}, "3 of 5 missing, 1 waiter"),
            "e": ({"event": {"set": False, "waiters": 1}}, "not set, 1 waiter"),
            "b": (
                {"barrier": {"parties": 3, "waiting": 1, "generation": 0, "broken": False}},
                "1 of 3 parties wait, generation 0",
            ),
            "c": ({"condition": {"waiters": 1}}, "1 waiter"),
        }
        for name, (also, words) in expected.items():
            wait_for(partial(is_told, f"{unique_name}-{name}", also), str(also))
            said = holdfast("status", f"{unique_name}-{name}", url=url).stdout.decode()
            assert f"{next(iter(also)):<14} {words}\n" in said, said
        latch.count_down(3)
        client.event(f"{unique_name}-e").set()
        barrier.abort()
        with client.lock(f"{unique_name}-c") as _:
            client.condition(client.lock(f"{unique_name}-c")).notify_all()
        for thread in waiting:
            thread.join(60)
        assert status(url, f"{unique_name}-l")["also"]["latch"]["missing"] == 0
        assert status(url, f"{unique_name}-e")["also"]["event"] == {"set": True, "waiters": 0}
        assert status(url, f"{unique_name}-b")["also"]["barrier"]["broken"] is True
        client.once(f"{unique_name}-o", lambda lease: None)
        for name in (f"{unique_name}-o", f"once:{unique_name}-o"):
            assert status(url, name)["also"] == {"once": {"done": True}}


def test_a_holder_of_another_kind(valkey_server: embedded.Server, unique_name: str) -> None:
    import redis

    with redis.Redis.from_url(valkey_server.url) as client:
        client.set(f"holdfast:{{{unique_name}}}", "\x1b[31mforeign", px=60_000)
    holder = status(valkey_server.url, unique_name)["holder"]
    assert holder["holdfast"] is False
    assert (holder["host"], holder["since"], holder["fencing_token"]) == (None, None, None)
    said = holdfast("status", unique_name, url=valkey_server.url).stdout
    assert b"another library" in said and b"\x1b" not in said


def test_without_a_namespace_the_name_is_the_key(valkey_server: embedded.Server, unique_name: str) -> None:
    import redis

    with redis.Redis.from_url(valkey_server.url) as client:
        client.set(unique_name, "theirs", px=60_000)
        done = holdfast("run", "--namespace", "", "--no-wait", unique_name, "--", "true", url=valkey_server.url)
        assert done.returncode == 75
        done = holdfast("status", "--json", "--namespace", "", unique_name, url=valkey_server.url)
        assert json.loads(done.stdout)["holder"]["token"] == "theirs"


def test_errors_keep_the_envelope() -> None:
    for command in (["status", "--json", "x"], ["doctor", "--json"]):
        done = holdfast(*command, url="redis://:geheim@127.0.0.1:1")
        assert (done.returncode, done.stderr) == (69, b"")
        report = json.loads(done.stdout)
        assert (report["version"], report["command"], report["ok"]) == (1, command[0], False)
        assert set(report["error"]) == {"kind", "message", "exit"}
        assert (report["error"]["kind"], report["error"]["exit"]) == ("ServerUnreachable", 69)
        assert "geheim" not in done.stdout.decode()


def test_a_user_who_may_not_run_scripts(private_server: Callable[..., embedded.Server], unique_name: str) -> None:
    """Show what can be seen; the warning is a sentence, not a line of our source."""
    server = private_server()
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "poor", "on", ">pw", "~*", "&*", "+@all", "-@scripting")
    url = f"redis://poor:pw@127.0.0.1:{server.port}"
    with library.connect(server.url) as ours, ours.lock(unique_name) as lease:
        done = holdfast("status", "--json", unique_name, url=url)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["holder"]["token"] == lease.token
        assert (report["sharers"], report["slots"]) == (0, None)
        (said,) = done.stderr.decode().splitlines()
        assert said.startswith("holdfast: NOPERM") and "+evalsha" in said
    done = holdfast("run", unique_name, "--", "true", url=url)
    assert done.returncode == 0
    (said,) = done.stderr.decode().splitlines()
    assert said.startswith("holdfast: NOPERM")
