"""The code of `docs/questions` in programs of the real frameworks, and the same without locks, which has to fail."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

import holdfast
from testbed.servers import free_port, start
from tests.frameworks.asked import PATIENCE_S, QUESTIONS, Asked, answers

#: What makes a line one of holdfast: the client, or what came from it.
OURS = re.compile(r"\b(locks|lease|outcome|body|leading|handle)\b")

both = pytest.mark.parametrize("locked", [True, False], ids=["locked", "unlocked"])
Opens = Callable[[str, bool], Asked]


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Opens]:
    with ExitStack() as stack:

        def opened(name: str, locked: bool) -> Asked:
            asked = Asked(name, locked, stack.enter_context(start()).url, tmp_path)
            stack.callback(asked.close)
            return asked

        yield opened


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


class Site:
    """A server at a port, and requests to it, each in a thread."""

    def __init__(self, asked: Asked, threads: ThreadPoolExecutor, *command: str) -> None:
        port = free_port()
        self._url = f"http://127.0.0.1:{port}/"
        self._threads = threads
        asked.start(*(word.replace("PORT", str(port)) for word in command))

    def answers(self) -> bool:
        try:
            return bool(httpx.get(self._url + "unknown", timeout=PATIENCE_S).status_code == 404)
        except httpx.TransportError:
            return False

    def get(self) -> Future[httpx.Response]:
        return self._threads.submit(httpx.get, self._url, timeout=PATIENCE_S)

    def pay(self, key: str, amount: int) -> Future[httpx.Response]:
        payment = {"customer": "ana", "amount": amount}
        headers = {"Idempotency-Key": key}
        return self._threads.submit(
            httpx.post, f"{self._url}payments", json=payment, headers=headers, timeout=PATIENCE_S
        )


UVICORN = ("uvicorn", "--port", "PORT", "--log-level", "warning")


def test_each_question_has_a_short_answer() -> None:
    found = answers()
    assert len(found) == len(QUESTIONS) == 12
    for title, code in found.items():
        lines = [line for line in code.splitlines() if OURS.search(line) and "def " not in line]
        assert 1 <= len(lines) <= 3, title


@both
def test_only_one_instance_of_a_task(opens: Opens, locked: bool) -> None:
    asked = opens("single", locked)
    asked.start("celery", "--app", asked.module, "worker", "--concurrency=2")
    asked.use("rebuild_index.delay(); rebuild_index.delay()")
    asked.until(lambda: len(asked.begun(1)) + len(asked.store.keys("celery-task-meta-*")) == 2, "both were taken up")
    assert len(asked.begun(1)) == (1 if locked else 2)
    assert len(asked.done(1 if locked else 2)) == (1 if locked else 2)


@both
def test_one_at_a_time_for_each_argument(opens: Opens, locked: bool) -> None:
    asked = opens("argument", locked)
    asked.start("dramatiq", asked.module, "--processes=2", "--threads=4")
    asked.use("[pack.send(order, 'lamp') for order in (1, 1, 2)]")
    with holdfast.connect(asked.url) as locks:
        lock = locks.lock("order:1")
        asked.until(lambda: len(asked.begun(2)) + lock.waiters() == 3, "all were taken up")
    assert sorted(asked.begun(2)) == (["1", "2"] if locked else ["1", "1", "2"])
    assert sorted(asked.done(3)) == ["1", "1", "2"]


@both
def test_once_at_each_tick(opens: Opens, locked: bool) -> None:
    asked = opens("tick", locked)
    for _ in range(2):
        asked.start(asked.module)
    asked.until(lambda: asked.store.llen("started") == 2, "both run")

    def runs() -> Counter[str]:
        return Counter(asked.store.lrange("ticks", 0, -1))

    if locked:
        ticks = asked.until(lambda: len(runs()) == 3 and runs(), "three ticks")
        assert {*ticks.values()} == {1}
    else:
        asked.until(lambda: 2 in runs().values(), "one tick is run twice")
    asked.store.set("stop", 1)


@both
def test_start_up_code_once(opens: Opens, locked: bool, threads: ThreadPoolExecutor) -> None:
    asked = opens("startup", locked)
    site = Site(asked, threads, *UVICORN, "--workers", "3", f"{asked.module}:app")
    with holdfast.connect(asked.url) as locks:
        waited_for = locks.rwlock("once:start-up:1.4")
        asked.until(lambda: len(asked.begun(1)) + waited_for.waiters() == 3, "all workers have come so far")
    asked.go()
    asked.until(site.answers, "the site answers")
    assert asked.done(1) == (["warm"] if locked else 3 * ["warm"])


@both
def test_one_leader(opens: Opens, locked: bool, threads: ThreadPoolExecutor) -> None:
    asked = opens("leader", locked)
    Site(asked, threads, *UVICORN, "--workers", "2", f"{asked.module}:app")

    def led_by() -> list[str]:
        pids: list[str] = asked.store.lrange("led by", 0, -1)
        return pids

    if not locked:
        asked.until(lambda: len(led_by()) == 2, "both lead")
        return
    with holdfast.connect(asked.url) as locks:
        asked.until(lambda: [found.waiters for found in locks.list("poller")] == [1], "one leads, one waits")
    (first,) = led_by()
    os.kill(int(first), signal.SIGKILL)
    asked.until(lambda: len(led_by()) == 2, "the other one leads")
    assert led_by()[1] != first


@both
def test_three_for_each_tenant_and_a_bounded_queue(opens: Opens, locked: bool) -> None:
    asked = opens("tenant", locked)
    asked.start("taskiq", "worker", f"{asked.module}:broker", "--workers=2")
    asked.use("""
async def main():
    await broker.startup()
    for _ in range(30):
        await export.kiq("ana")
    await export.kiq("bob")
    await broker.shutdown()
asyncio.run(main())""")
    with holdfast.connect(asked.url) as locks:
        line = locks.semaphore("tenant:ana")

        def counted() -> tuple[int, int, int]:
            return len(asked.begun(4)), line.waiters(), len(asked.store.keys("result:*"))

        asked.until(lambda: sum(counted()) == 31, "all were taken up")
        assert counted() == ((4, 20, 7) if locked else (31, 0, 0))
    assert Counter(asked.done(24 if locked else 31)) == ({"ana": 23, "bob": 1} if locked else {"ana": 30, "bob": 1})


@both
def test_no_cache_stampede(opens: Opens, locked: bool, threads: ThreadPoolExecutor) -> None:
    asked = opens("stampede", locked)
    bind = ("--bind", "127.0.0.1:PORT", "--no-control-socket", "--timeout", "300")
    site = Site(asked, threads, "gunicorn", "--workers=2", "--threads=6", *bind, f"{asked.module}:application")
    asked.until(site.answers, "the site answers")
    missing = [site.get() for _ in range(6)]
    with holdfast.connect(asked.url) as locks:
        waited_for = locks.rwlock("get_or_set:page:home")
        asked.until(lambda: len(asked.begun(1)) + waited_for.waiters() == 6, "all have come so far")
    assert len(asked.begun(1)) == (1 if locked else 6)
    asked.go()
    assert [answer.result().text for answer in missing] == 6 * ["page"]
    if locked:
        asked.store.delete("go")
        asked.store.expire("page:home", 590)  # as after 70 s: it is older than 60
        slow = site.get()
        asked.begun(2)
        assert [site.get().result().text for _ in range(5)] == 5 * ["page"], "the old one, meanwhile"
        assert not slow.done()
        assert len(asked.done(2)) == 2


@both
def test_an_idempotent_endpoint(opens: Opens, locked: bool, threads: ThreadPoolExecutor) -> None:
    asked = opens("idempotent", locked)
    site = Site(asked, threads, *UVICORN, "--workers", "2", f"{asked.module}:app")
    asked.until(site.answers, "the site answers")
    payments = [site.pay("a1", 10) for _ in range(2)]
    with holdfast.connect(asked.url) as locks:
        waited_for = locks.rwlock("once:payment:a1")
        asked.until(lambda: len(asked.begun(1)) + waited_for.waiters() == 2, "both have come so far")
    assert asked.done(1 if locked else 2) == (["ana"] if locked else ["ana", "ana"])
    assert [payment.result().json() for payment in payments] == 2 * [{"charged": 10}]
    assert site.pay("a1", 99).result().status_code == (422 if locked else 200)
    assert site.pay("a2", 99).result().json() == {"charged": 99}


@both
def test_not_queued_twice(opens: Opens, locked: bool) -> None:
    asked = opens("queued", locked)
    asked.use("[reindex_soon('books') for _ in range(3)]")
    assert asked.store.llen("celery") == (1 if locked else 3)
    asked.start("celery", "--app", asked.module, "worker", "--concurrency=3")
    if locked:
        asked.begun(1)
        asked.use("[reindex_soon('books') for _ in range(3)]")
        asked.begun(2)
        asked.until(lambda: asked.store.llen("celery") == 0, "no more are queued")
        assert asked.done(2) == ["books", "books"]
    else:
        assert len(asked.begun(3)) == 3


@both
def test_the_last_call_wins(opens: Opens, locked: bool) -> None:
    asked = opens("debounce", locked)
    asked.start("arq", f"{asked.module}.WorkerSettings")
    asked.programs.run(asked.module)
    assert asked.begun(1) == ["home"]
    asked.programs.run(asked.module)  # while the page is written

    def ended() -> int:
        return len(asked.store.keys("arq:result:*"))

    with holdfast.connect(asked.url) as locks:
        lock = locks.lock("publish:home")
        # Of ten jobs, those that write are missing: two without the lock.
        asked.until(lambda: ended() + lock.waiters() == (9 if locked else 8), "no more is to come")
    assert len(asked.begun(1)) == (1 if locked else 2)
    asked.until(lambda: len(asked.done(1)) == 2 and ended() == 10, "all jobs have run")


@both
def test_a_lock_is_handed_over(opens: Opens, locked: bool) -> None:
    asked = opens("handover", locked)
    again = "try:\n    start_export('ana')\nexcept holdfast.AcquireTimeout:\n    print('taken')"
    asked.use("start_export('ana')")
    assert asked.use(again) == ("taken\n" if locked else ""), "while it is queued"
    asked.start("dramatiq", asked.module, "--processes=1", "--threads=2")
    if locked:
        asked.begun(1)
        assert asked.use(again) == "taken\n", "while it runs"
        asked.done(1)
        with holdfast.connect(asked.url) as locks:
            locks.lock("export:ana").acquire(timeout=PATIENCE_S).release()
        assert asked.use(again) == ""
        assert len(asked.begun(2)) == 2
    else:
        assert len(asked.begun(2)) == 2


MIGRATION = """
from django.db import migrations
from __main__ import store, work

class Migration(migrations.Migration):
    operations = [migrations.RunPython(lambda apps, editor: work(store, "migration"))]
"""


@both
def test_a_migration_runs_alone(opens: Opens, locked: bool) -> None:
    asked = opens("migration", locked)
    folder = asked.programs.folder / "shop" / "migrations"
    folder.mkdir(parents=True)
    for file, text in (("../__init__.py", ""), ("__init__.py", ""), ("0001_initial.py", MIGRATION)):
        (folder / file).write_text(text)
    programs = [asked.start(asked.module) for _ in range(2)]
    with holdfast.connect(asked.url) as locks:
        lock = locks.lock("migrate")
        asked.until(lambda: len(asked.begun(1)) + lock.waiters() == 2, "both have come so far")
    assert len(asked.begun(1)) == (1 if locked else 2)
    asked.go()
    if locked:
        assert [program.wait(PATIENCE_S) for program in programs] == [0, 0]
        assert asked.done(1) == ["migration"]
