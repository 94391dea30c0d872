"""What users of other libraries look for: a minimum hold, a skip that can be told, and what to write instead."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast._runtime.clock import clock
from testbed.proxy import Proxy
from testbed.waiting import eventually
from tests.support.apis import Api, function_for

ROOT = Path(__file__).resolve().parents[2]


def bare(value: Any) -> Any:
    """Without what makes the asyncio API block."""
    return getattr(value, "_target", value)


# ---- at_least ----


def test_it_stays_held_for_the_time(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=60, at_least=20).acquire()
    lease.release()
    assert lease.state.name == "RELEASED"
    assert 10_000 < raw.pttl(f"holdfast:{{{unique_name}}}") <= 20_000
    assert others.lock(unique_name).try_acquire() is None
    with pytest.raises(holdfast.LeaseReleased):
        lease.release()
    locks.close()
    assert others.lock(unique_name).locked(), "it is the server's now"


def test_it_is_free_when_the_time_is_over(locks: Any, others: Any, unique_name: str) -> None:
    with locks.lock(unique_name, at_least=0.4) as lease:
        pass
    assert others.lock(unique_name).locked()
    eventually(lambda: not others.lock(unique_name).locked())
    later = others.lock(unique_name, at_least=0.05).acquire()
    assert later.fencing_token > lease.fencing_token
    record = bare(later)._record
    record.kept_until = record.held_since  # as if that long had passed
    later.release()
    assert not others.lock(unique_name).locked()


def test_its_time_may_be_longer_than_max_hold(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=60, max_hold=5, at_least=20).acquire()
    lease.release()
    assert 10_000 < raw.pttl(f"holdfast:{{{unique_name}}}") <= 20_000
    lost = locks.lock(f"{unique_name}-2", ttl=60, max_hold=0.05, at_least=0.4).acquire()
    assert lost.lost.wait(20) and lost.lost.reason == "max_hold"
    eventually(lambda: not others.lock(f"{unique_name}-2").locked())


def test_its_time_may_end_before_the_answer_comes(api: Api, wire: Proxy, unique_name: str) -> None:
    locks = api.connect(wire.url)
    lost: list[str] = []
    with locks.lock(unique_name, at_least=30) as lease:
        lease.on_lost(lost.append)
        wire.slow(0.05)
        record = bare(lease)._record
        record.kept_until = clock() + 0.02  # as if nearly all of it had passed
    wire.slow(0.0)
    assert lease.state.name == "RELEASED" and lost == []
    eventually(lambda: not locks.lock(unique_name).locked())


def test_a_block_that_raises_keeps_it_too(locks: Any, others: Any, unique_name: str) -> None:
    with pytest.raises(KeyError):
        with locks.lock(unique_name, at_least=20):
            raise KeyError
    assert others.lock(unique_name).locked()


def test_permits_and_several_locks_stay_held(locks: Any, others: Any, unique_name: str) -> None:
    locks.semaphore(unique_name, 1, at_least=20).acquire().release()
    assert others.semaphore(unique_name, 1).try_acquire() is None
    names = (f"{unique_name}-1", f"{unique_name}-2")
    locks.multilock(*names, at_least=20).acquire().release()
    assert all(others.lock(name).locked() for name in names)
    rw = f"{unique_name}-rw"
    locks.rwlock(rw, at_least=20).read().acquire().release()
    assert others.rwlock(rw).write().try_acquire() is None


def test_what_was_lost_is_not_kept(locks: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, at_least=20).acquire()
    raw.set(f"holdfast:{{{unique_name}}}", "someone", px=60_000)
    with pytest.raises(holdfast.LeaseLost):
        lease.release()
    assert raw.get(f"holdfast:{{{unique_name}}}") == "someone"


def test_the_end_of_the_process_leaves_it(api: Api, locks: Any, url: str, unique_name: str) -> None:
    if api.name == "asyncio":
        pytest.skip("the child is the same")
    child = (
        "import sys, holdfast\n"
        "with holdfast.connect(sys.argv[1]) as locks, locks.lock(sys.argv[2], at_least=30):\n"
        "    pass\n"
    )
    command = [sys.executable, "-c", child, url, unique_name]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    assert locks.lock(unique_name).locked()


# ---- skip_if_held ----


def test_a_skip_can_be_told_from_none(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    def work() -> Any:
        yield from ()

    skipped = object()
    options: dict[str, Any] = {"skip_if_held": True, "otherwise": skipped, "at_least": 30}
    functions = [bare(each).locked(unique_name, **options)(function_for(api, work)) for each in (locks, others)]

    def call(function: Any) -> Any:
        return function() if api.name == "threads" else api.call(function)  # type: ignore[attr-defined]

    assert call(functions[0]) is None
    assert call(functions[1]) is skipped, "once a tick, however short the work is"


# ---- what to write instead ----


@pytest.mark.parametrize(
    "option, out", [("timeout", "acquire"), ("expire", "ttl"), ("blocking", "try_acquire"), ("sleep", "poll")]
)
def test_keywords_of_other_libraries(locks: Any, unique_name: str, option: str, out: str) -> None:
    for make in (locks.lock, locks.rwlock, locks.multilock, locks.election):
        with pytest.raises(TypeError, match=f"{option}.*{out}"):
            make(unique_name, **{option: 3})
    if option != "timeout":
        for thing in (locks.lock(unique_name), locks.semaphore(unique_name, 2), locks.rwlock(unique_name).read()):
            with pytest.raises(TypeError, match=f"acquire.*{option}.*{out}"):
                thing.acquire(**{option: 3})


def test_methods_that_are_the_leases(locks: Any, unique_name: str) -> None:
    for made in (locks.lock(unique_name), locks.semaphore(unique_name, 2), locks.rwlock(unique_name).read()):
        thing = bare(made)
        for name in ("release", "extend", "owned"):
            with pytest.raises(AttributeError, match="returns the lease"):
                getattr(thing, name)
        assert not hasattr(thing, "release") and not hasattr(thing, "nonsense")
        with pytest.raises(AttributeError, match=r"nonsense'$"):
            thing.nonsense  # noqa: B018


def test_a_number_alone_says_nothing_to_a_semaphore(locks: Any, raw: Any, unique_name: str) -> None:
    with pytest.raises(TypeError, match=r"permits=2, or timeout"):
        locks.semaphore(unique_name, 3).acquire(2)
    assert not list(raw.scan_iter(f"*{unique_name}*"))


# ---- what cannot go to another process ----


def test_what_cannot_be_pickled_says_what_can_be_done(locks: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name).acquire()
    made = (locks.lock("a"), locks.semaphore("a", 2), locks.rwlock("a").read(), locks.election("a"))
    for thing in (locks, *made, lease):
        with pytest.raises(TypeError, match=r"holdfast\.connect\(url\) in the other one"):
            pickle.dumps(bare(thing))
    lease.release()
