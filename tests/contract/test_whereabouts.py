"""`whereabouts()`: where in their programs holders are, as their clients answer."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from holdfast.errors import ConfigurationError
from testbed.waiting import eventually
from tests.contract.test_kept import keep
from tests.contract.test_list import all_of
from tests.support.apis import Api

HERE = __file__


def told(asker: Any, name: str, **options: Any) -> Any:
    """Return the answer of the only holder, once it listens: after a tenth of a second."""
    eventually(lambda: asker.whereabouts(name, **options)[0].runs_as)
    (found,) = asker.whereabouts(name, **options)
    return found


def acquire_and_wait(lock: Any, release: threading.Event) -> None:
    lease = lock.acquire()
    release.wait(60)
    lease.release()


def line_of(function: Any, text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    return f"{HERE}:{first + next(place for place, line in enumerate(lines) if text in line)}"


def test_a_thread_says_what_it_does(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    if api.name != "threads":
        pytest.skip("tasks: see below")
    release = threading.Event()
    thread = threading.Thread(target=acquire_and_wait, args=(locks.lock(unique_name), release), name="a thread")
    thread.start()
    try:
        eventually(lambda: others.lock(unique_name).locked())
        found = told(others, unique_name)
        assert found.runs_as == "a thread" and found.holder.host
        assert found.acquired_at == line_of(acquire_and_wait, "lock.acquire()")
        assert f"{line_of(acquire_and_wait, 'release.wait')} in acquire_and_wait" in found.stack
        assert found.acquired_at in str(found) and found.stack[0] in str(found)
    finally:
        release.set()
        thread.join()


def test_a_task_says_where_it_waits(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    if api.name != "asyncio":
        pytest.skip("threads: see above")
    inner = locks._target
    release = asyncio.Event()

    async def work() -> None:
        async with inner.lock(unique_name):
            await pause()

    async def pause() -> None:
        await release.wait()

    tasks: list[asyncio.Task[None]] = []
    api.call(lambda: tasks.append(asyncio.create_task(work(), name="a task")))  # type: ignore[attr-defined]
    eventually(lambda: others.lock(unique_name).locked())
    found = told(others, unique_name)
    assert found.runs_as == "a task"
    lines = [line.rpartition(" in ")[2] for line in found.stack]
    assert lines[-2:] == ["pause", "work"]  # the innermost first
    api.call(release.set)  # type: ignore[attr-defined]
    api.call(lambda: tasks[0])  # type: ignore[attr-defined]


def test_the_thread_that_holds_it_now_is_meant(api: Api, server: Any, others: Any, unique_name: str) -> None:
    """Within a tenure the token stays, and another thread has it."""
    if api.name != "threads":
        pytest.skip("a task is found in the same way")
    lock, release = api.connect(server.url, tenure=0.1).lock(unique_name), threading.Event()
    lease = lock.acquire()
    assert told(others, unique_name).runs_as == threading.current_thread().name
    thread = threading.Thread(target=acquire_and_wait, args=(lock, release), name="the second")
    thread.start()
    try:
        eventually(lambda: lock.waiters() == 1)
        lease.release()
        eventually(lambda: [each.runs_as for each in others.whereabouts(unique_name)] == ["the second"])
    finally:
        release.set()
        thread.join()


@pytest.mark.parametrize("kind", ["rwlock", "semaphore", "election"])
def test_other_kinds(locks: Any, others: Any, api: Api, unique_name: str, kind: str) -> None:
    actor = api.actor()
    if kind == "election":
        lease = actor.ask(locks.election(unique_name), "campaign")
    else:
        what = locks.rwlock(unique_name).read() if kind == "rwlock" else locks.semaphore(unique_name, 2)
        lease = actor.ask(what, "acquire")
    found = told(others, unique_name, kind=kind)
    assert found.holder.token == lease.token and found.stack
    assert others.whereabouts(unique_name, kind=kind, holder=lease.token)[0].stack
    lease.release()


def test_who_does_not_answer(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    assert locks.whereabouts(unique_name) == ()
    raw.set(f"holdfast:{{{unique_name}}}", "someone", px=60_000)
    (found,) = locks.whereabouts(unique_name)
    assert (found.holder.token, found.runs_as, found.acquired_at, found.stack) == ("someone", None, None, ())
    assert str(found) == found.holder.who
    with pytest.raises(ConfigurationError, match="kind"):
        locks.whereabouts(unique_name, kind="latch")


def test_an_answer_goes_only_where_it_belongs(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    """A client that may publish to an inbox cannot have other keys written, nor as many as it likes."""
    lease = locks.lock(unique_name).acquire()
    eventually(lambda: others.ask(unique_name))
    question = re.sub("[^0-9a-z]", ":", f"{unique_name}-")[-60:]
    inbox = f"holdfast:inbox:{lease.token.partition(':')[0]}"
    for message in (
        f"where {lease.token} {question}a}}b",
        f"where {lease.token} {question}{'c' * 80}",
        f"where {lease.token} {question}d{f',{lease.token}' * 60}",
        f"where {lease.token} {question}e{',' * 100_000}",
        f"where {lease.token}",
        "where",
    ):
        assert raw.publish(inbox, message) == 1
    began_at = time.monotonic()
    with raw.pipeline(transaction=False) as pipeline:
        for number in range(100):
            pipeline.publish(inbox, f"where {lease.token} {question}{number}{f',{lease.token}' * 49}")
        pipeline.publish(inbox, f"want {lease.token} me")
        pipeline.execute()
    eventually(lambda: raw.exists(f"holdfast:where:{question}0"))
    eventually(lambda: lease.wanted.is_set())  # the rest has been read by then
    most = 20 * (2 + time.monotonic() - began_at)
    answers = list(raw.scan_iter(f"holdfast:where:{question}*", count=1000))
    assert 1 <= len(answers) <= most, "of 1,000 leases in a second"
    assert all(0 < raw.pttl(each) <= 10_000 for each in answers)
    assert all(each.removeprefix(f"holdfast:where:{question}").isdigit() for each in answers)
    lease.release()


# ---------------------------------------------------------------- of a whole list


def listed(api: Api, asker: Any, pattern: str) -> dict[tuple[str, str], Any]:
    """Return what is listed with where it is held, once all that may answer do: after a tenth of a second."""
    found: list[Any] = []

    def answered() -> bool:
        found[:] = all_of(api, asker, pattern, where=True)
        return all(its.acquired_at for each in found for its in each.where if its.holder.host)

    eventually(answered)
    assert all([its.holder for its in each.where] == list(each.holders) for each in found)
    return {(each.kind, each.name): each for each in found}


def test_a_list_says_where_each_is_held(locks: Any, others: Any, api: Api, raw: Any, unique_name: str) -> None:
    actors = [api.actor() for _ in range(8)]
    semaphore, read = locks.semaphore(f"{unique_name}-s", 3), locks.rwlock(f"{unique_name}-r").read()
    leases = [
        actors[0].ask(locks.lock(f"{unique_name}-l"), "acquire"),
        *(actor.ask(semaphore, "acquire") for actor in actors[1:3]),
        *(actor.ask(read, "acquire") for actor in actors[3:5]),
        actors[5].ask(locks.multilock(f"{unique_name}-m1", f"{unique_name}-m2"), "acquire"),
        actors[6].ask(others.election(f"{unique_name}-e"), "campaign"),
    ]
    reader = actors[7].ask(others.rwlock(f"{unique_name}-u").read(), "acquire")
    leases += [actors[7].ask(reader, "upgrade"), reader]
    raw.set(f"holdfast:{{{unique_name}-f}}", "someone", px=60_000)
    found = listed(api, others, f"{unique_name}-*")
    assert len(found) == 8
    for (_, name), each in found.items():
        if name == f"{unique_name}-f":
            (its,) = each.where
            assert (its.runs_as, its.acquired_at, its.stack) == (None, None, ())
            continue
        assert len(each.where) == each.held == (2 if name[-2:] in ("-s", "-r") else 1)
        assert all(its.stack and its.acquired_at for its in each.where)
        if api.name == "asyncio":  # threads that play have one name
            assert len({its.runs_as for its in each.where}) == each.held
    where = [found["multilock", f"{unique_name}-m{number}"].where[0] for number in (1, 2)]
    assert where[0].stack == where[1].stack and where[0].runs_as == where[1].runs_as
    for lease in leases:
        lease.release()


def test_a_client_answers_for_all_that_it_holds(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    """For more than one message asks about."""
    leases = [locks.lock(f"{unique_name}-{number}").acquire() for number in range(150)]
    found = listed(api, others, f"{unique_name}-*")
    assert len(found) == 150
    assert len({each.where[0].acquired_at for each in found.values()}) == 1
    for lease in leases:
        lease.release()


def test_a_lease_that_no_one_uses_is_nowhere(api: Api, url: str, others: Any, unique_name: str) -> None:
    locks = api.connect(url)
    keep(locks, unique_name, ttl=60, cache_for=30)

    def idle() -> Any:
        (found,) = all_of(api, others, unique_name, where=True)
        return found

    began_at = time.monotonic()
    eventually(lambda: idle().holder.kept)
    (its,) = idle().where
    assert its.holder.kept
    assert time.monotonic() - began_at > 30 or (its.runs_as, its.acquired_at, its.stack) == (None, None, ())


def test_a_list_is_not_held_up_by_each_that_does_not_answer(
    server: Any, others: Any, api: Api, unique_name: str
) -> None:
    """Six stopped clients take less than a second each, on whatever pages of a full server they are."""
    program = (
        "import sys, time, holdfast\n"
        "locks = [holdfast.connect(sys.argv[1], ttl=60) for _ in range(6)]\n"
        "leases = [each.lock(f'{sys.argv[2]}-{n}').acquire() for n, each in enumerate(locks)]\n"
        "print(flush=True)\n"
        "time.sleep(600)"
    )

    def answered(found: list[Any]) -> set[str]:
        return {each.name for each in found if each.where[0].acquired_at}

    mine = others.lock(f"{unique_name}-mine").acquire()
    command = [sys.executable, "-c", program, server.url, unique_name]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"\n"
            assert len(listed(api, others, f"{unique_name}-*")) == 7
            process.send_signal(signal.SIGSTOP)
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1]), "all of its threads"
            began_at = time.monotonic()
            found = all_of(api, others, f"{unique_name}-*", where=True)
            took_s = time.monotonic() - began_at
            if not answered(found):  # on the last of many pages, it has little time
                found = all_of(api, others, f"{unique_name}-*", where=True)
        finally:
            process.kill()
    assert answered(found) == {mine.name}
    assert len(found) == 7 and took_s < 5
    mine.release()
