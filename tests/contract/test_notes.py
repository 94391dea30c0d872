"""Notes: one line for people, beside the holder wherever that is named."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import as_completed
from functools import partial
from typing import Any

import pytest

from holdfast import AcquireTimeout, ConfigurationError, LeaseLost
from testbed.waiting import eventually
from tests.support.apis import Api

NOTE = "deploy 1.4 by Ana → eu 欧洲"
#: What holds under a note, and as what it is listed.
KINDS: dict[str, Any] = {
    "lock": lambda locks, name, **how: locks.lock(name, **how).acquire(),
    "read": lambda locks, name, **how: locks.rwlock(name, **how).read().acquire(),
    "write": lambda locks, name, **how: locks.rwlock(name, **how).write().acquire(),
    "permits": lambda locks, name, **how: locks.semaphore(name, 9, **how).acquire(permits=2),
    "multilock": lambda locks, name, **how: locks.multilock(name, f"{name}-also", **how).acquire(),
    "election": lambda locks, name, **how: locks.election(name, **how).campaign(),
}


def seen(api: Api, locks: Any, name: str) -> dict[str, str | None]:
    """Return the notes of all who hold something of that name, by their tokens."""
    listing = locks.list(name)

    async def collect() -> list[Any]:
        return [each async for each in listing]

    found = list(listing) if api.name == "threads" else api.call(collect)  # type: ignore[attr-defined]
    return {holder.token: holder.note for each in found for holder in each.holders}


def sees(api: Api, locks: Any, name: str, expected: dict[str, str | None]) -> bool:
    return seen(api, locks, name) == expected


def is_gone(raw: Any, key: str) -> bool:
    return not raw.exists(key)


def note_key(lease: Any) -> str:
    return f"holdfast:note:{lease.token}"


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_seen_while_it_is_held(locks: Any, others: Any, api: Api, raw: Any, kind: str, unique_name: str) -> None:
    lease = KINDS[kind](locks, unique_name, note=NOTE)
    eventually(lambda: seen(api, others, unique_name) == {lease.token: NOTE})
    assert 0 < raw.pttl(note_key(lease)) <= 30_000
    lease.extend(90)
    eventually(lambda: raw.pttl(note_key(lease)) > 60_000)
    lease.release()
    eventually(partial(is_gone, raw, note_key(lease)))
    # What comes after it has a note of its own, or none.
    for note in ("another", None):
        after = KINDS[kind](locks, unique_name, note=note)
        eventually(partial(sees, api, others, unique_name, {after.token: note}))
        after.release()
        eventually(partial(is_gone, raw, note_key(after)))


def test_who_looks_at_one_lock_sees_it(locks: Any, others: Any, unique_name: str) -> None:
    lock, rwlock, election = others.lock(unique_name), others.rwlock(unique_name), others.election(unique_name)
    lease = locks.lock(unique_name, note=NOTE).acquire()
    eventually(lambda: lock.holder().note == NOTE)
    assert lock.status().holder.note == rwlock.status().writer.note == NOTE
    assert repr(NOTE) in str(lock.holder())
    lease.release()
    lead = locks.election(unique_name, note=NOTE).campaign()
    eventually(lambda: election.leader().note == NOTE)
    lead.release()


def test_who_is_turned_away_reads_it(locks: Any, others: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, note=NOTE).acquire()
    eventually(lambda: others.lock(unique_name).holder().note == NOTE)
    for timeout in (0.05, 0):  # the second of what is known
        with pytest.raises(AcquireTimeout, match=r"deploy 1\.4 by Ana") as caught:
            others.lock(unique_name).acquire(timeout=timeout)
        assert caught.value.holder.note == NOTE
    waits: list[Any] = []

    def told() -> bool:  # on a busy machine, not before the time is over
        with pytest.raises(AcquireTimeout):
            others.lock(unique_name).acquire(timeout=0.05, on_wait=waits.append)
        return bool(waits)

    eventually(told)
    assert waits[0].holder.note == NOTE and repr(NOTE) in str(waits[0])
    assert others.break_(unique_name).holders[0].note == NOTE
    eventually(lambda: not lease.held)


def test_it_lasts_as_long_as_its_lease(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=2.0, note=NOTE).acquire()
    record = getattr(lease, "_target", lease)._record
    since = record.renew_from
    eventually(lambda: record.renew_from > since + 2.1)  # renewed, more than one ttl later
    assert others.lock(unique_name).holder().note == raw.get(note_key(lease)) == NOTE
    # A holder that dies takes it along.
    lease.handle()
    eventually(lambda: not raw.exists(note_key(lease)))
    assert not locks.lock(unique_name).locked()


def test_who_takes_over_has_none(locks: Any, others: Any, api: Api, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, note=NOTE).acquire()
    eventually(lambda: raw.get(note_key(lease)) == NOTE)
    raw.delete(f"holdfast:{{{unique_name}}}")
    after = others.lock(unique_name).acquire()
    assert raw.exists(note_key(lease)) and seen(api, others, unique_name) == {after.token: None}
    after.release()
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_check_does_not_cut_it(locks: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, renew=False, note=NOTE).acquire()
    eventually(lambda: raw.exists(note_key(lease)))
    raw.pexpire(note_key(lease), 5_000)
    lease.check()
    eventually(lambda: raw.pttl(note_key(lease)) > 15_000)
    lease.release()


def test_a_change_of_sides_keeps_it(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    reader = locks.rwlock(unique_name, note=NOTE).read().acquire()
    writer = reader.upgrade()
    eventually(lambda: others.rwlock(unique_name).status().writer.note == NOTE)
    writer.release()
    eventually(lambda: seen(api, others, unique_name) == {reader.token: NOTE})
    reader.release()
    reader = locks.rwlock(unique_name, note=NOTE).write().acquire().downgrade()
    eventually(lambda: seen(api, others, unique_name) == {reader.token: NOTE})
    reader.release()


def test_a_wait_on_a_condition_keeps_it(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    lock, actor = locks.lock(unique_name, note=NOTE), api.actor()
    before = actor.enter(lock).token
    actor.ask(locks.condition(getattr(lock, "_target", lock)), "wait", timeout=0.05)
    eventually(lambda: others.lock(unique_name).holder().note == NOTE)
    assert others.lock(unique_name).holder().token != before
    actor.leave(lock)


def test_it_goes_on_where_its_lease_is_adopted(locks: Any, others: Any, api: Api, raw: Any, unique_name: str) -> None:
    handle = locks.lock(unique_name, ttl=2.0, note=NOTE).acquire().handle()
    adopted = others.adopt(handle, ttl=2.0, note="of the one that adopts")
    record = getattr(adopted, "_target", adopted)._record
    since = record.renew_from
    eventually(lambda: record.renew_from > since + 2.1)
    assert seen(api, locks, unique_name) == {adopted.token: NOTE}
    adopted.release()
    eventually(lambda: not raw.exists(note_key(adopted)))
    # One that has none gets none.
    plain = others.adopt(locks.lock(unique_name).acquire().handle(), note=NOTE)
    assert (seen(api, locks, unique_name), raw.exists(note_key(plain))) == ({plain.token: None}, 0)
    plain.release()


def test_waiters_of_one_client_have_each_their_own(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    """Not that of the lease before, which its client could have handed on."""
    lease = locks.lock(unique_name, note="0").acquire()
    waiting = [api.start(locks.lock(unique_name, note=str(number)).acquire) for number in range(1, 4)]
    eventually(lambda: others.lock(unique_name).waiters() == 3)  # on the server
    notes = {"0"}
    while waiting:
        lease.release()
        done = next(as_completed(waiting, timeout=60))
        waiting.remove(done)
        lease = done.result()
        eventually(lambda: getattr(others.lock(unique_name).holder(), "note", None) not in (None, *notes))
        notes.add(others.lock(unique_name).holder().note)
    lease.release()
    assert notes == {"0", "1", "2", "3"}


def test_holders_beside_each_other_have_each_their_own(
    locks: Any, others: Any, api: Api, url: str, unique_name: str
) -> None:
    leases = [client.semaphore(unique_name, 3, note=note).acquire() for client, note in ((locks, "a"), (others, "b"))]
    plain = others.semaphore(unique_name, 3).acquire()
    expected = {leases[0].token: "a", leases[1].token: "b", plain.token: None}
    eventually(partial(sees, api, api.connect(url), unique_name, expected))
    for lease in (*leases, plain):
        lease.release()


def test_what_has_a_note_is_in_no_tenure(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    lock = locks.lock(unique_name, note=NOTE)
    lease = lock.acquire()
    waiting = [api.start(lock.acquire) for _ in range(3)]
    eventually(lambda: others.lock(unique_name).waiters() == 3)
    while waiting:
        lease.release()
        done = next(as_completed(waiting, timeout=60))
        waiting.remove(done)
        lease = done.result()
        assert not lease.token.endswith("+")
    lease.release()


def test_what_another_program_writes_there_is_shown_harmlessly(
    locks: Any, others: Any, api: Api, raw: Any, unique_name: str
) -> None:
    lease = locks.lock(unique_name, note=NOTE).acquire()
    eventually(lambda: raw.exists(note_key(lease)))
    raw.set(note_key(lease), b"\x1b[31m\n\xff\xe2\x80\xae" + b"x" * 100_000)
    holder = others.lock(unique_name).holder()
    assert len(holder.note) == 256 and str(holder).isprintable() and len(str(holder)) < 600
    lease.release()


@pytest.mark.parametrize("note", ["", "two\nlines", "\x1b[31mred", "x" * 257, "é" * 129, "\ud800", b"bytes", 7, True])
def test_what_is_no_line_is_refused(locks: Any, api: Api, url: str, note: Any) -> None:
    uses: list[Callable[[], Any]] = [
        lambda: locks.lock("a", note=note),
        lambda: locks.rwlock("a", note=note),
        lambda: locks.semaphore("a", 2, note=note),
        lambda: locks.multilock("a", "b", note=note),
        lambda: api.connect(url, note=note),
    ]
    for use in uses:
        with pytest.raises(ConfigurationError, match=r"^note = ") as refused:
            use()
        assert refused.value.argument == "note"


def test_the_longest_is_no_longer_than_is_shown(locks: Any, others: Any, unique_name: str) -> None:
    note = "é" * 128
    with locks.lock(unique_name, note=note):
        eventually(lambda: others.lock(unique_name).holder().note == note)


def test_what_is_kept_has_none(locks: Any, unique_name: str) -> None:
    with pytest.raises(ConfigurationError, match="cache_for = 1 is not allowed: None with a note"):
        locks.lock(unique_name, cache_for=1, note=NOTE)
