"""What is logged and observed, in both APIs: what, when, with which fields, and that it harms no lock."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import embedded
from holdfast._reports.log import _RECORDS
from holdfast._reports.observing import Reports
from testbed.proxy import Proxy
from testbed.waiting import eventually
from tests.support.apis import Api

LOGGER = logging.getLogger("holdfast")
#: What a LogRecord has of its own, on any supported Python.
OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Kept(logging.Handler):
    """Keeps records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def of(self, name: str) -> list[str]:
        """Return the events of a lock, in order."""
        return [each.holdfast_event for each in self.records if getattr(each, "holdfast_name", None) == name]  # type: ignore[attr-defined]

    def one(self, name: str, event: str) -> Any:
        """The record of that, once it has come."""

        def found() -> Any:
            return [
                each
                for each in self.records
                if getattr(each, "holdfast_name", None) == name and each.holdfast_event == event  # type: ignore[attr-defined]
            ]

        (only,) = eventually(found, f"{event} of {name} in {self.of(name)}")
        return only


@pytest.fixture
def kept() -> Iterator[Kept]:
    """All records, from DEBUG on."""
    handler, level = Kept(), LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG)
    yield handler
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)


class Noted(holdfast.Observer):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.threads: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        if name in METHODS:

            def note(*details: Any) -> None:
                self.events.append((name, *details))
                self.threads.add(threading.current_thread().name)

            return note
        return super().__getattribute__(name)

    def names(self) -> list[str]:
        return [event[0] for event in self.events]


METHODS = frozenset(name for name in vars(holdfast.Observer) if not name.startswith("_")) - {"capture"}


def test_the_life_of_a_lease(near: Any, far: Any, api: Api, kept: Kept, unique_name: str) -> None:
    lease = near.lock(unique_name, ttl=0.6).acquire()
    waiting = api.start(far.lock(unique_name).acquire)
    kept.one(unique_name, "queued")
    eventually(lambda: "renewed" in kept.of(unique_name))
    lease.release()
    waiting.result(60).release()
    eventually(lambda: kept.of(unique_name).count("released") == 2)
    events = [event for event in kept.of(unique_name) if event not in ("renewed", "suspect")]
    assert sorted(events) == sorted(["acquired", "queued", "released", "acquired", "released"])
    records = [each for each in kept.records if getattr(each, "holdfast_name", None) == unique_name]
    for record in records:
        assert record.levelno == logging.DEBUG
        assert record.holdfast_kind == "lock"  # type: ignore[attr-defined]
        assert repr(unique_name) in record.getMessage()
    second = [each for each in records if each.holdfast_event == "acquired"][1]  # type: ignore[attr-defined]
    assert second.holdfast_waited_s > 0  # type: ignore[attr-defined]
    assert second.holdfast_fencing_token > lease.fencing_token  # type: ignore[attr-defined]
    assert abs(second.created - time.time()) < 60
    assert second.threadName != "holdfast-log", "the thread in which it happened"


def test_fields_do_not_clash_with_those_of_records(kept: Kept, near: Any, unique_name: str) -> None:
    near.lock(unique_name).acquire().release()
    record = kept.one(unique_name, "released")
    ours = set(vars(record)) - OWN
    assert ours == {f"holdfast_{field}" for field in ("event", "kind", "name", "fencing_token", "held_s")}


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_an_acquire_while_another_thread_imports_a_library_of_tasks(
    valkey_server: embedded.Server, kept: Kept, unique_name: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module has none of its names yet at that moment."""
    partly = types.ModuleType(library)
    partly.lowlevel = types.ModuleType("trio.lowlevel")  # type: ignore[attr-defined]
    with holdfast.connect(valkey_server.url) as locks:
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, library, partly)
            locks.lock(unique_name).acquire().release()
    assert kept.one(unique_name, "acquired").taskName is None


def test_a_loss_is_a_warning(near: Any, kept: Kept, look: Any, unique_name: str) -> None:
    LOGGER.setLevel(logging.WARNING)
    lease = near.lock(unique_name, ttl=0.5).acquire()
    look.delete(f"holdfast:{{{unique_name}}}")
    record = kept.one(unique_name, "lost")
    assert (record.levelno, record.holdfast_reason) == (logging.WARNING, "taken")
    assert record.holdfast_fencing_token == lease.fencing_token
    assert kept.of(unique_name) == ["lost"]


def test_a_loss_that_a_release_finds(near: Any, kept: Kept, look: Any, unique_name: str) -> None:
    lease = near.lock(unique_name).acquire()
    look.delete(f"holdfast:{{{unique_name}}}")
    with pytest.raises(holdfast.LeaseLost):
        lease.release()
    assert kept.one(unique_name, "lost").holdfast_reason == "taken"
    assert "released" not in kept.of(unique_name)


def test_a_body_that_raises_while_its_lease_is_lost(
    near: Any, kept: Kept, look: Any, unique_name: str, api: Api
) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        with near.lock(unique_name):
            look.delete(f"holdfast:{{{unique_name}}}")
            raise ZeroDivisionError
    (note,) = caught.value.__notes__
    assert "was lost (taken)" in note
    assert unique_name in note
    record = kept.one(unique_name, "raised")
    assert (record.levelno, record.holdfast_error) == (logging.WARNING, "ZeroDivisionError")


def test_a_body_that_raises_under_its_lease_gets_no_note(near: Any, kept: Kept, unique_name: str) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        with near.lock(unique_name):
            raise ZeroDivisionError
    assert not hasattr(caught.value, "__notes__")
    kept.one(unique_name, "released")
    assert "raised" not in kept.of(unique_name)


def test_to_lead_is_news(near: Any, kept: Kept, unique_name: str) -> None:
    LOGGER.setLevel(logging.INFO)
    with near.election(unique_name):
        record = kept.one(unique_name, "acquired")
    assert (record.levelno, record.holdfast_kind) == (logging.INFO, "election")
    assert "elected" in record.getMessage()


def test_a_lease_that_is_taken_over(near: Any, far: Any, kept: Kept, unique_name: str) -> None:
    LOGGER.setLevel(logging.INFO)
    lease = far.adopt(near.lock(unique_name).acquire().handle())
    assert kept.one(unique_name, "adopted").levelno == logging.INFO
    lease.release()


def test_trouble_is_told_once_and_its_end_once(api: Api, wire: Proxy, kept: Kept, unique_name: str, far: Any) -> None:
    server = f"127.0.0.1:{wire.port}"

    def told() -> list[str]:
        return [
            each.holdfast_event  # type: ignore[attr-defined]
            for each in kept.records
            if getattr(each, "holdfast_server", None) == server and each.levelno >= logging.INFO
        ]

    noted = Noted()
    near = api.connect(wire.url, observer=noted)
    near.lock(unique_name).acquire().release()
    wire.refuse()
    waiting = api.start(near.lock(unique_name).acquire)
    eventually(told)
    time.sleep(1.0)  # many more tries
    assert told() == ["trouble"]
    wire.heal()
    waiting.result(60).release()
    eventually(lambda: len(told()) > 1)
    assert told() == ["trouble", "trouble_over"]
    retried = [each for each in kept.records if each.holdfast_event == "retried"]  # type: ignore[attr-defined]
    assert len(retried) > 2
    assert {each.levelno for each in retried} == {logging.DEBUG}
    eventually(lambda: "trouble_over" in noted.names())
    assert noted.names().count("trouble") == 1


def test_no_password_is_logged(api: Api, private_server: Callable[..., embedded.Server], kept: Kept) -> None:
    server = private_server(password="s3cretPW")
    locks = api.connect(f"redis://:wr0ng-s3cretPW@{server.host}:{server.port}")
    with pytest.raises(holdfast.ServerError):
        locks.lock("a").acquire(timeout=1)
    eventually(lambda: "failed" in kept.of("a"))
    assert kept.records
    formatter = logging.Formatter("%(message)s")
    for record in kept.records:
        assert "s3cretPW" not in formatter.format(record) + repr(vars(record))


# ---------------------------------------------------------------- observers


def test_an_observer_is_told(near: Any, wire: Proxy, far: Any, api: Api, unique_name: str) -> None:
    noted = Noted()
    locks = api.connect(wire.url, observer=noted)
    held = far.lock(unique_name).acquire()
    with pytest.raises(holdfast.AcquireTimeout):
        locks.lock(unique_name).acquire(timeout=0.2)
    assert locks.lock(unique_name).try_acquire() is None
    eventually(lambda: far.lock(unique_name).status().waiters == 0, "who has given up is out of the queue")
    held.release()
    lease = locks.lock(unique_name, ttl=0.5).acquire()
    eventually(lambda: "renewed" in noted.names())
    lease.release()
    eventually(lambda: "released" in noted.names())
    names = [name for name in noted.names() if name != "renewed"]
    assert names == ["queued", "busy", "busy", "acquired", "released"]
    acquired = next(event for event in noted.events if event[0] == "acquired")
    released = next(event for event in noted.events if event[0] == "released")
    assert acquired[1] is released[1]
    assert (acquired[1].kind, acquired[1].name) == ("lock", unique_name)
    assert acquired[1].fencing_token == lease.fencing_token
    assert 0 < released[2] < 60
    assert noted.threads == {"holdfast-observer"}


def test_who_is_in_the_way_is_told_and_logged(wire: Proxy, far: Any, api: Api, kept: Kept, unique_name: str) -> None:
    noted = Noted()
    locks = api.connect(wire.url, observer=noted)
    held = far.lock(unique_name).acquire()
    with pytest.raises(holdfast.AcquireTimeout) as caught:
        locks.lock(unique_name).acquire(timeout=0.2)
    eventually(lambda: "busy" in noted.names())
    _, info, waited_s = noted.events[noted.names().index("busy")]
    assert (info.holder, waited_s) == (caught.value.holder, caught.value.waited_s)
    assert (info.holder.token, info.holder.pid) == (held.token, os.getpid()) and waited_s >= 0.2
    record = kept.one(unique_name, "busy")
    assert (record.holdfast_holder, record.holdfast_waited_s) == (info.holder.who, waited_s)
    assert f"; held by {info.holder.who}" in record.getMessage() and f"pid {os.getpid()}" in record.getMessage()
    held.release()


def test_a_renewal_that_fails_and_how_late_the_next_one_is(api: Api, wire: Proxy, kept: Kept, unique_name: str) -> None:
    noted = Noted()
    lease = api.connect(wire.url, observer=noted).lock(unique_name, ttl=15).acquire()
    wire.refuse()
    eventually(lambda: "suspect" in noted.names())
    assert lease.state is holdfast.LeaseState.SUSPECT and lease.held
    since = time.monotonic()
    eventually(lambda: time.monotonic() > since + 0.5)  # so long it is late at least
    wire.heal()
    eventually(lambda: "renewed" in noted.names())
    (lag_s,) = (event[2] for event in noted.events if event[0] == "renewed")
    assert 0.5 < lag_s < 15
    record = kept.one(unique_name, "renewed")
    assert (record.levelno, record.holdfast_lag_s) == (logging.DEBUG, lag_s)
    assert all(each.levelno == logging.DEBUG for each in kept.records if each.holdfast_event == "suspect")  # type: ignore[attr-defined]
    assert "suspect" in kept.of(unique_name)
    lease.release()


@pytest.mark.parametrize("kind", ["lock", "read lock", "write lock", "semaphore", "multilock", "election", "reentrant"])
def test_each_kind_ends_what_it_begins(api: Api, wire: Proxy, kind: str, unique_name: str) -> None:
    noted = Noted()
    locks = api.connect(wire.url, observer=noted)
    made: dict[str, Callable[[], Any]] = {
        "lock": lambda: locks.lock(unique_name),
        "read lock": lambda: locks.rwlock(unique_name).read(),
        "write lock": lambda: locks.rwlock(unique_name).write(),
        "semaphore": lambda: locks.semaphore(unique_name, 2),
        "multilock": lambda: locks.multilock(unique_name, f"{unique_name}-2"),
        "election": lambda: locks.election(unique_name),
        "reentrant": lambda: locks.lock(unique_name, reentrant=True),
    }
    with made[kind]():
        pass
    eventually(lambda: "released" in noted.names())
    assert noted.names() == ["acquired", "released"]
    assert noted.events[0][1].kind == ("lock" if kind == "reentrant" else kind)


def test_a_condition_and_a_change_of_sides_end_what_they_began(api: Api, wire: Proxy, unique_name: str) -> None:
    noted = Noted()
    locks = api.connect(wire.url, observer=noted)
    writer = locks.rwlock(unique_name).write().acquire()
    writer.downgrade().release()
    eventually(lambda: noted.names().count("released") == 2)
    assert noted.names() == ["acquired", "released", "acquired", "released"]


def test_what_is_lost_is_told_once(api: Api, wire: Proxy, look: Any, unique_name: str) -> None:
    noted = Noted()
    locks = api.connect(wire.url, observer=noted)
    lease = locks.lock(unique_name, ttl=0.5).acquire()
    look.delete(f"holdfast:{{{unique_name}}}")
    assert lease.lost.wait(30)
    eventually(lambda: "lost" in noted.names())
    with pytest.raises(holdfast.LeaseLost):
        lease.release()
    locks.close()
    eventually(lambda: locks is not None and noted.names()[-1] == "lost")
    assert [name for name in noted.names() if name != "renewed"] == ["acquired", "lost"]
    assert noted.events[-1][3] == "taken"
    assert noted.events[-1][2] > 0


def test_an_observer_that_hangs_delays_no_renewal(api: Api, wire: Proxy, unique_name: str) -> None:
    over = threading.Event()

    class Hangs(holdfast.Observer):
        def acquired(self, lease: holdfast.LeaseInfo, waited_s: float) -> None:
            over.wait(60)

    locks = api.connect(wire.url, observer=Hangs())
    try:
        lease = locks.lock(unique_name, ttl=1.5).acquire()
        time.sleep(2.5)  # longer than it lasts unless it is renewed
        lease.release()
        locks.lock(unique_name).acquire(timeout=10).release()
    finally:
        over.set()


def test_a_log_handler_that_hangs_delays_no_renewal(api: Api, wire: Proxy, unique_name: str) -> None:
    over = threading.Event()

    class Hangs(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            over.wait(60)

    handler, level = Hangs(), LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG)
    try:
        locks = api.connect(wire.url)
        lease = locks.lock(unique_name, ttl=1.5).acquire()
        time.sleep(2.5)  # longer than it lasts unless it is renewed
        lease.release()
    finally:
        over.set()
        LOGGER.setLevel(level)
        LOGGER.removeHandler(handler)


def test_an_observer_that_raises_is_logged_once(api: Api, wire: Proxy, kept: Kept, unique_name: str) -> None:
    class Raises(holdfast.Observer):
        seen = 0

        def capture(self) -> Any:
            raise RuntimeError("captured")

        def acquired(self, lease: holdfast.LeaseInfo, waited_s: float) -> None:
            raise RuntimeError("told")

        def released(self, lease: holdfast.LeaseInfo, held_s: float) -> None:
            self.seen += 1

    raises = Raises()
    locks = api.connect(wire.url, observer=raises)
    for _ in range(3):
        locks.lock(unique_name).acquire().release()
    eventually(lambda: raises.seen == 3)
    eventually(lambda: kept.of(unique_name).count("released") == 3)
    failed = [each for each in kept.records if each.holdfast_event == "observer_failed"]  # type: ignore[attr-defined]
    (record,) = failed
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "captured"


def test_what_an_observer_was_not_told_is_logged(kept: Kept) -> None:
    noted = Noted()
    Reports(noted)._sink(time.time(), "dropped", (7,))

    def found() -> list[logging.LogRecord]:
        return [each for each in kept.records if each.holdfast_event == "dropped"]  # type: ignore[attr-defined]

    (record,) = eventually(found)
    assert (record.levelno, record.holdfast_count, noted.events) == (logging.WARNING, 7, [])
    assert "7 events were not told" in record.getMessage()


def test_what_no_observer_can_be_is_refused(api: Api) -> None:
    with pytest.raises(holdfast.ConfigurationError, match="observer"):
        api.connect("redis://127.0.0.1:9", observer=object())
    with pytest.raises(holdfast.ConfigurationError, match="observer"):
        api.connect("redis://127.0.0.1:9", observer=holdfast.Observer)


@pytest.mark.parametrize("page", ["operations.md", "operations.zh-CN.md"])
def test_the_documentation_has_every_record(page: str) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / page).read_text(encoding="utf-8")
    for event, (level, _, names) in _RECORDS.items():
        (first, *_) = re.findall(rf"^\| `{event}` \| ([A-Z]+) \|.*\| `(.*)` \|$", text, re.MULTILINE)[::-1]
        assert first[0] == logging.getLevelName(level), event
        assert set(names) <= {name.strip() for name in first[1].split(",")}, event


def test_who_breaks_is_logged_where_that_is_done(locks: Any, others: Any, kept: Kept, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=600).acquire()
    eventually(lambda: bool(others.ask(unique_name)))  # it listens
    assert others.break_(unique_name, reason="stuck", grace=60)
    record = kept.one(unique_name, "broke")
    assert record.levelno == logging.INFO
    assert record.holdfast_fencing_token == lease.fencing_token
    assert (record.holdfast_reason, record.holdfast_forced) == ("stuck", False)
    assert f", pid {os.getpid()} (" in record.holdfast_holder
    assert lease.lost.wait(60)
