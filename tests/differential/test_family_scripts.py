"""The scripts of elections, several locks, conditions, gates and barriers on a real server, against simple models.

As in test_shared_scripts.py: hypothesis makes up who asks for what in which order, who is dead, and whose time is over;
after every step the server holds what the model says, and has told whom the model says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast._core.keys import lock_keys
from testbed.servers import unique
from tests.support.scripts import (
    CLAIM_MS,
    DEAD,
    FENCE_MS,
    INBOXES,
    TOMBSTONE_MS,
    TTL_MS,
    Scripts,
    clients,
    run_machine,
    trim,
)

RECHECK_MS = 300_000


def is_dead(token: str) -> bool:
    return token.startswith(DEAD)


class Machine(RuleBasedStateMachine):
    """What all have: numbered tokens, and who was told what."""

    scripts: Scripts

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.heard: list[tuple[str, str]] = []

    def token(self, client: str) -> str:
        self.number += 1
        return f"{client}:1:{self.number}"

    def tell(self, kind: str, token: str) -> None:
        """Note a message, unless it is for a dead waiter: no client hears that."""
        if not is_dead(token):
            self.heard.append((kind, token))

    def check(self, keys: Sequence[str], *facts: tuple[str, str, Any]) -> None:
        """`facts`: (command, key, what it has to give); none of `keys` may live forever."""
        asked = [(command, key, *((0, -1) if command == "ZRANGE" else ())) for command, key, _ in facts]
        found = self.scripts.ask(*asked, *[("PTTL", key) for key in keys])
        for (command, key, expected), value in zip(facts, found, strict=False):
            assert value == expected, (command, key)
        for key, left_ms in zip(keys, found[len(facts) :], strict=True):
            assert left_ms != -1, f"{key} is immortal"
        assert self.scripts.heard_so_far() == self.heard
        self.heard.clear()


class Queue:
    """A lock as the model sees it: one holder, and who waits, in their order."""

    def __init__(self) -> None:
        self.holder: str | None = None
        self.waiting: list[str] = []

    def head(self, me: str | None = None) -> str | None:
        """The first who is there, taken out."""
        while self.waiting:
            token = self.waiting.pop(0)
            if token == me or not is_dead(token):
                return token
        return None


class Leader(Machine):
    """An election: the lock's own scripts, on keys beside those of the lock of that name."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = lock_keys("holdfast", unique("election")).part("leader")
        self.queue = Queue()
        self.fence = 0

    def hand_over(self) -> None:
        self.queue.holder = self.queue.head()
        if self.queue.holder:
            self.tell("grant", self.queue.holder)

    def ask(self, token: str, mode: str) -> None:
        queue = self.queue
        reply = self.scripts.call("acquire", self.keys.all, token, TTL_MS, mode, 0, FENCE_MS, CLAIM_MS, INBOXES)
        if queue.holder == token:
            assert reply[0] == 1 and reply[1] >= self.fence
            self.fence = reply[1]
            return
        new = token not in queue.waiting
        if mode == "wait" and new:
            queue.waiting.append(token)
        if not queue.holder:
            queue.holder = queue.head(token) or token
            if queue.holder == token:
                assert reply[0] == 1 and reply[1] > self.fence, "tokens of leaders grow"
                self.fence = reply[1]
                return
            self.tell("grant", queue.holder)
        assert reply[0] == 0 and reply[2] == queue.holder, "one leads, and it is said who"
        if mode == "wait":
            trim(queue.waiting, token, new)
        assert reply[3] == (queue.waiting.index(token) if token in queue.waiting and mode == "wait" else -1)

    def tokens(self) -> list[str]:
        return [*self.queue.waiting, *([self.queue.holder] if self.queue.holder else [])]

    @rule(client=clients, mode=st.sampled_from(["try", "wait"]))
    def campaign(self, client: str, mode: str) -> None:
        self.ask(self.token(client), mode)

    @precondition(lambda self: self.tokens())
    @rule(data=st.data())
    def campaign_again(self, data: st.DataObject) -> None:
        self.ask(data.draw(st.sampled_from(self.tokens())), "wait")

    @precondition(lambda self: self.tokens())
    @rule(data=st.data(), tombstone=st.booleans())
    def resign(self, data: st.DataObject, tombstone: bool) -> None:
        token = data.draw(st.sampled_from(self.tokens()))
        args = (token, FENCE_MS, CLAIM_MS, INBOXES, TOMBSTONE_MS if tombstone else 0)
        reply = self.scripts.call("release", self.keys.all, *args)
        leads = self.queue.holder == token
        if tombstone and token in self.queue.waiting:
            self.queue.waiting.remove(token)
        if leads or not self.queue.holder:
            self.hand_over()
        assert reply == (0 if not leads else 2 if self.queue.holder else 1)
        if tombstone:
            late = (token, TTL_MS, "wait", 0, FENCE_MS, CLAIM_MS, INBOXES)
            assert self.scripts.call("acquire", self.keys.all, *late) == [-1]

    @precondition(lambda self: self.tokens())
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.tokens()))
        reply = self.scripts.call("renew", (self.keys.lock,), token, TTL_MS)
        assert reply == int(token == self.queue.holder), "only who leads goes on leading"

    @precondition(lambda self: self.queue.holder)
    @rule()
    def the_leaders_time_is_over(self) -> None:
        self.scripts.server.delete(self.keys.lock)
        self.queue.holder = None

    @invariant()
    def server_and_model_agree(self) -> None:
        self.check(
            self.keys.all,
            ("GET", self.keys.lock, self.queue.holder),
            ("ZRANGE", self.keys.queue, self.queue.waiting),
        )


NAMES = "abc"


class Several(Machine):
    """Three locks, and requests for any of them together."""

    def __init__(self) -> None:
        super().__init__()
        name = unique("multi")
        self.keys = {each: lock_keys("holdfast", f"{name}-{each}") for each in NAMES}
        self.locks = {each: Queue() for each in NAMES}
        self.came: dict[str, dict[str, int]] = {each: {} for each in NAMES}
        self.asked: dict[str, str] = {}  # token: the names that it wants, in the order of taking

    def all_keys(self, names: str) -> tuple[str, ...]:
        return tuple(key for each in names for key in self.keys[each].all)

    def fence(self, name: str) -> int:
        return int(self.scripts.server.get(self.keys[name].fence) or 0)

    def busy(self, name: str, token: str) -> str | None:
        """Return the token that stands in the way; the dead do not."""
        lock = self.locks[name]
        if lock.holder == token:
            return None
        if lock.holder:
            return lock.holder
        while lock.waiting and is_dead(lock.waiting[0]) and lock.waiting[0] != token:
            lock.waiting.pop(0)
        return lock.waiting[0] if lock.waiting else None

    def take(self, name: str, token: str) -> None:
        self.locks[name].holder = token
        if token in self.locks[name].waiting:
            self.locks[name].waiting.remove(token)

    def ask(self, token: str, mode: str) -> None:
        names = self.asked[token]
        fences = [self.fence(each) for each in names]
        args = (token, TTL_MS, mode, 0, FENCE_MS, CLAIM_MS, INBOXES)
        reply = self.scripts.call("multi_acquire", self.all_keys(names), *args)
        if mode == "try":
            granted = not any(self.busy(each, token) for each in names)  # as the script: no further than the first
            if granted:
                for each in names:
                    self.take(each, token)
        else:
            granted = self.go_on(token, names)
        assert reply[0] == int(granted), (token, names, mode, reply)
        if granted:
            assert reply[1] > max(fences), "greater than every earlier one of each"
            assert {self.fence(each) for each in names} == {reply[1]}, "and known to all"

    def go_on(self, token: str, names: str) -> bool:
        """Take up to the first that is busy, and queue there; on from there when it was only forgotten."""
        # Queued anywhere of these already, it keeps that arrival.
        self.number += 1
        queued = [self.came[each][token] for each in names if token in self.locks[each].waiting]
        arrival = min([*queued, self.number])
        for each in names:
            if not self.busy(each, token):
                self.take(each, token)
                continue
            lock = self.locks[each]
            new = token not in lock.waiting
            came = self.came[each]
            came[token] = min(arrival, came[token]) if not new else arrival
            lock.waiting = sorted({*lock.waiting, token}, key=came.__getitem__)
            if not lock.holder:
                lock.holder = lock.head(token)
                if lock.holder != token and lock.holder:
                    self.tell("grant", lock.holder)
            if lock.holder and lock.holder != token:
                trim(lock.waiting, token, new)
                return False
            self.take(each, token)
        return True

    @rule(client=clients, names=st.sampled_from(["ab", "bc", "ac", "abc", "b"]), mode=st.sampled_from(["try", "wait"]))
    def acquire(self, client: str, names: str, mode: str) -> None:
        token = self.token(client)
        self.asked[token] = names
        before = {each: self.locks[each].holder for each in NAMES}
        self.ask(token, mode)
        if mode == "try" and token not in before.values() and not self.holds(token):
            assert {each: self.locks[each].holder for each in NAMES} == before, "all or none"
            del self.asked[token]

    def holds(self, token: str) -> bool:
        return all(self.locks[each].holder == token for each in self.asked[token])

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), mode=st.sampled_from(["wait", "try"]))
    def ask_again(self, data: st.DataObject, mode: str) -> None:
        self.ask(data.draw(st.sampled_from(sorted(self.asked))), mode)

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), tombstone=st.booleans())
    def release(self, data: st.DataObject, tombstone: bool) -> None:
        token = data.draw(st.sampled_from(sorted(self.asked)))
        names, held = self.asked[token], self.holds(token)
        args = (token, FENCE_MS, CLAIM_MS, INBOXES, TOMBSTONE_MS if tombstone else 0)
        reply = self.scripts.call("multi_release", self.all_keys(names), *args)
        for each in names:
            lock = self.locks[each]
            if tombstone and token in lock.waiting:
                lock.waiting.remove(token)
            if lock.holder in (token, None):
                lock.holder = lock.head()
                if lock.holder:
                    self.tell("grant", lock.holder)
        assert reply == int(held)
        if tombstone:
            late = (token, TTL_MS, "wait", 0, FENCE_MS, CLAIM_MS, INBOXES)
            assert self.scripts.call("multi_acquire", self.all_keys(names), *late) == [-1]
        if not any(token in lock.waiting for lock in self.locks.values()):
            del self.asked[token]

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), fence=st.booleans())
    def renew(self, data: st.DataObject, fence: bool) -> None:
        token = data.draw(st.sampled_from(sorted(self.asked)))
        names = self.asked[token]
        known = max(self.fence(each) for each in names) if fence else 0
        args = (token, TTL_MS, known, FENCE_MS)
        assert self.scripts.call("multi_renew", self.all_keys(names), *args) == int(self.holds(token))
        if fence and self.holds(token):
            assert min(self.fence(each) for each in names) >= known

    @precondition(lambda self: self.number % 5 == 4)
    @rule(name=st.sampled_from(NAMES))
    def its_last_fencing_token_is_ahead_of_the_clock(self, name: str) -> None:
        ahead = max(self.fence(each) for each in NAMES) + 3_600_000_000
        self.scripts.server.set(self.keys[name].fence, ahead, px=FENCE_MS)

    @precondition(lambda self: any(lock.holder for lock in self.locks.values()))
    @rule(data=st.data())
    def the_time_of_one_is_over(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([each for each in NAMES if self.locks[each].holder]))
        self.scripts.server.delete(self.keys[name].lock)
        self.locks[name].holder = None

    @invariant()
    def server_and_model_agree(self) -> None:
        holders = [("GET", self.keys[each].lock, self.locks[each].holder) for each in NAMES]
        queues = [("ZRANGE", self.keys[each].queue, self.locks[each].waiting) for each in NAMES]
        self.check(self.all_keys(NAMES), *holders, *queues)


class Waits(Machine):
    """A lock and its condition: who holds, who waits for a notification, who is queued for the lock."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = lock_keys("holdfast", unique("cond"))
        self.cond = f"{self.keys.base}:cond:default"
        self.lock = Queue()
        self.waiters: list[str] = []
        self.fence = 0

    def hand_over(self) -> None:
        self.lock.holder = self.lock.head()
        if self.lock.holder:
            self.tell("grant", self.lock.holder)

    def wait_args(self, token: str, mode: str, arrival: int, holder: str) -> tuple[Any, ...]:
        return (token, TTL_MS, mode, arrival, FENCE_MS, CLAIM_MS, INBOXES, holder, RECHECK_MS)

    def granted(self, reply: Any, new: bool = True) -> None:
        assert reply[0] == 1 and (reply[1] > self.fence if new else reply[1] >= self.fence)
        self.fence = reply[1]

    @rule(client=clients)
    def acquire(self, client: str) -> None:
        token = self.token(client)
        args = (token, TTL_MS, "wait", 0, FENCE_MS, CLAIM_MS, INBOXES)
        reply = self.scripts.call("acquire", self.keys.all, *args)
        lock = self.lock
        lock.waiting.append(token)
        if not lock.holder:
            lock.holder = lock.head(token)
            if lock.holder == token:
                self.granted(reply)
                return
            self.tell("grant", str(lock.holder))
        assert reply[0] == 0
        trim(lock.waiting, token, new=True)

    @precondition(lambda self: self.lock.holder)
    @rule(client=clients)
    def wait(self, client: str) -> None:
        """The holder lets go and waits, in one step."""
        holder, token = str(self.lock.holder), self.token(client)
        args = self.wait_args(token, "wait", 0, holder)
        assert self.scripts.call("cond_wait", (*self.keys.all, self.cond), *args)[:2] == [0, RECHECK_MS]
        self.waiters.append(token)
        trim(self.waiters, token, new=True)
        self.hand_over()

    @initialize(who=st.lists(clients, max_size=4))
    def some_wait_already(self, who: list[str]) -> None:
        for client in who:
            self.acquire(client)
            self.wait(client)

    @rule(client=clients)
    def only_the_holder_may_wait(self, client: str) -> None:
        outsider = self.token(client)
        args = self.wait_args(self.token(client), "wait", 0, outsider)
        assert self.scripts.call("cond_wait", (*self.keys.all, self.cond), *args) == [-2]
        keys = (self.keys.lock, self.keys.queue, self.cond, self.keys.gone, f"{self.cond}:last")
        assert self.scripts.call("cond_notify", keys, outsider, 1, INBOXES, 1) == -1

    @precondition(lambda self: self.lock.holder)
    @rule(count=st.integers(1, 2))
    def notify(self, count: int) -> None:
        keys = (self.keys.lock, self.keys.queue, self.cond, self.keys.gone, f"{self.cond}:last")
        holder = str(self.lock.holder)
        self.number += 1
        moved = 0
        while self.waiters and moved < count:
            token = self.waiters.pop(0)
            if not is_dead(token):
                self.lock.waiting.append(token)
                moved += 1
        for _ in range(2):  # the second time it is a repeat, and counts once
            assert self.scripts.call("cond_notify", keys, holder, count, INBOXES, self.number) == moved

    def tokens(self) -> list[str]:
        return [*self.waiters, *self.lock.waiting, *([self.lock.holder] if self.lock.holder else [])]

    @precondition(lambda self: self.tokens())
    @rule(data=st.data(), mode=st.sampled_from(["wait", "leave"]))
    def ask_again(self, data: st.DataObject, mode: str) -> None:
        """A waiter looks where it is, or its time is over; wherever that is, it is the next step towards the lock."""
        token = data.draw(st.sampled_from(self.tokens()))
        args = self.wait_args(token, mode, 1, "no one")
        reply = self.scripts.call("cond_wait", (*self.keys.all, self.cond), *args)
        lock = self.lock
        if lock.holder == token:
            self.granted(reply, new=False)
            return
        notified = 1
        if token in self.waiters:
            if mode == "wait":
                assert reply[:2] == [0, RECHECK_MS]
                if not lock.holder:
                    self.hand_over()
                return
            self.waiters.remove(token)
            notified = 0
        if token not in lock.waiting:
            lock.waiting.append(token)
        if not lock.holder:
            lock.holder = lock.head(token)
            if lock.holder == token:
                self.granted(reply)
                assert reply[2] == notified
                return
            self.tell("grant", str(lock.holder))
        assert (reply[0], reply[2], reply[5]) == (0, lock.holder, notified)
        assert reply[3] == lock.waiting.index(token)

    @precondition(lambda self: self.tokens())
    @rule(data=st.data(), tombstone=st.booleans(), pass_on=st.booleans())
    def leave(self, data: st.DataObject, tombstone: bool, pass_on: bool) -> None:
        """Cancelled, or the release of what is held: a notification that had come goes to the next one."""
        token = data.draw(st.sampled_from(self.tokens()))
        args = (token, FENCE_MS, CLAIM_MS, INBOXES, TOMBSTONE_MS if tombstone else 0, int(pass_on))
        reply = self.scripts.call("cond_leave", (*self.keys.all, self.cond), *args)
        lock = self.lock
        result = 0
        if token in self.waiters:
            self.waiters.remove(token)
            result = 1
        holds = lock.holder == token
        if tombstone and (holds or token in lock.waiting):
            if token in lock.waiting:
                lock.waiting.remove(token)
            result = 1
            successor = None
            while pass_on and self.waiters and successor is None:
                first = self.waiters.pop(0)
                successor = None if is_dead(first) else first
            if successor:
                lock.waiting.append(successor)
                if not holds and not lock.holder:
                    self.tell("ask", successor)
        if holds:
            result = 2
        if holds or not lock.holder:
            self.hand_over()
        assert reply == result

    @precondition(lambda self: self.lock.holder)
    @rule()
    def the_holders_time_is_over(self) -> None:
        self.scripts.server.delete(self.keys.lock)
        self.lock.holder = None

    @invariant()
    def server_and_model_agree(self) -> None:
        """In particular none is forgotten: one that left the waiters is in the queue, or holds, or left by itself."""
        self.check(
            [*self.keys.all, self.cond, f"{self.cond}:last"],
            ("GET", self.keys.lock, self.lock.holder),
            ("ZRANGE", self.keys.queue, self.lock.waiting),
            ("ZRANGE", self.cond, self.waiters),
        )


class Gate(Machine):
    """An event (one thing is missing) or a latch of three."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = lock_keys("holdfast", unique("gate")).part("gate")
        self.gate_keys = (self.keys.lock, self.keys.queue, self.keys.gone)
        self.openings = 0
        #: How often it had opened when they came, and by which number the server knows that.
        self.came: dict[str, tuple[int, int]] = {}
        #: Who is to be told; and who was told by the last opening and has not asked since. In the order of the server.
        self.waiting: list[str] = []
        self.told: list[str] = []
        self.done: dict[str, str] = {}

    @initialize(declared=st.sampled_from([1, 3]))
    def declare(self, declared: int) -> None:
        self.declared = self.missing = declared

    def ask(self, token: str, what: str, came: int = 0) -> Any:
        args = (token, what, came, self.declared, TTL_MS, INBOXES, RECHECK_MS, TOMBSTONE_MS)
        return self.scripts.call("gate_wait", self.gate_keys, *args)

    def move(self, token: str, what: str) -> None:
        args = (token, what, TTL_MS, self.declared, INBOXES, TOMBSTONE_MS)
        assert self.scripts.call("gate_move", self.gate_keys, *args) == [1, self.missing]

    @rule(client=clients, what=st.sampled_from(["wait", "wait", "try"]))
    def wait(self, client: str, what: str) -> None:
        token = self.token(client)
        reply = self.ask(token, what)
        assert reply[0] == int(self.missing == 0)
        if what == "wait" and self.missing:
            self.came[token] = self.openings, reply[4]
            self.waiting = sorted([*self.waiting, token])
            queue = self.told + self.waiting
            trim(queue, token, new=True)
            self.told, self.waiting = ([each for each in part if each in queue] for part in (self.told, self.waiting))

    @precondition(lambda self: self.came)
    @rule(data=st.data(), knows=st.booleans())
    def ask_again(self, data: st.DataObject, knows: bool) -> None:
        """Ask again: a waiter goes on if the gate has opened since it came, by its own word or by the server's."""
        token = data.draw(st.sampled_from(sorted(self.came)))
        came, number = self.came[token]
        if token not in self.told + self.waiting and (not knows or came == self.openings):
            return  # it would be as one that comes now
        through = self.missing == 0 or came < self.openings
        assert self.ask(token, "wait", number if knows else 0)[0] == int(through)
        if through:
            self.forget(token)

    def forget(self, token: str) -> None:
        del self.came[token]
        self.told, self.waiting = ([each for each in part if each != token] for part in (self.told, self.waiting))

    @precondition(lambda self: self.came)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(sorted(self.came)))
        self.ask(token, "leave")
        self.forget(token)
        if self.missing == 0:
            return  # it is open for all
        assert self.ask(token, "wait") == [-1], "a request that is late does not queue it again"

    @rule(client=clients, what=st.sampled_from(["1", "2", "1", "1", "open", "shut"]))
    def action(self, client: str, what: str) -> None:
        token = self.token(client)
        before = self.missing
        self.missing = {"open": 0, "shut": self.declared}.get(what, max(before - int(what), 0) if what.isdigit() else 0)
        if before and not self.missing:
            self.openings += 1
            for each in self.waiting:
                self.tell("ask", each)
            self.told, self.waiting = [each for each in self.waiting if not is_dead(each)], []
        self.move(token, what)
        if self.missing != before:
            self.done[token] = what

    @precondition(lambda self: self.done)
    @rule(data=st.data())
    def the_same_deed_again(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(sorted(self.done)))
        self.move(token, self.done[token])

    @rule()
    def declared_otherwise(self) -> None:
        if self.scripts.server.exists(self.keys.lock):
            args = ("x:1:1", "look", TTL_MS, self.declared + 1, INBOXES, TOMBSTONE_MS)
            assert self.scripts.call("gate_move", self.gate_keys, *args) == [-2, self.declared]

    @invariant()
    def server_and_model_agree(self) -> None:
        stored = self.scripts.server.get(self.keys.lock)
        missing, declared, openings, first = (stored or f"{self.missing} {self.declared} 0 0").split()
        assert (missing, declared) == (str(self.missing), str(self.declared))
        assert int(openings) - int(first) == self.openings
        assert stored or self.missing == self.declared
        self.check(self.gate_keys, ("ZRANGE", self.keys.queue, self.told + self.waiting))


PARTIES = 3


class Meeting(Machine):
    """A barrier of three."""

    def __init__(self) -> None:
        super().__init__()
        base = lock_keys("holdfast", unique("barrier")).part("barrier")
        self.keys = (base.lock, f"{base.base}:arrived", f"{base.base}:released", base.gone)
        self.generation = 0
        self.broken = False
        self.arrived: list[str] = []
        self.came_at: dict[str, int] = {}
        self.went_on: dict[str, int] = {}
        self.buried: set[str] = set()

    def ask(self, token: str, what: str, generation: int) -> Any:
        args = (token, what, generation, PARTIES, TTL_MS, INBOXES, RECHECK_MS, TOMBSTONE_MS)
        return self.scripts.call("barrier_wait", self.keys, *args)

    def arrive(self, token: str, generation: int) -> None:
        reply = self.ask(token, "wait", generation)
        if token in self.went_on:
            assert reply[:2] == [1, self.went_on[token]], "asked again, it is told the same"
            return
        if token in self.buried:
            assert reply == [-1], "a party that was told of the end does not come back"
            return
        if self.broken or (generation and generation != self.generation + 1):
            assert reply == [-2]
            self.buried.add(token)
            return
        if token not in self.arrived:
            self.arrived.append(token)
            self.came_at[token] = self.generation + 1
        if len(self.arrived) >= PARTIES:
            self.arrived = [each for each in self.arrived if each == token or not is_dead(each)]
        if len(self.arrived) < PARTIES:
            assert (reply[0], reply[3], reply[4]) == (0, self.arrived.index(token), self.generation + 1)
            return
        self.generation += 1
        for index, each in enumerate(self.arrived):
            self.went_on[each] = index
            if each != token:
                self.tell("ask", each)
        assert reply == [1, self.arrived.index(token), self.generation]
        self.arrived.clear()

    def over_for_all(self, asked: str = "") -> None:
        for each in self.arrived:
            if each != asked:
                self.tell("ask", each)
        self.buried.update(self.arrived)
        self.arrived.clear()

    @rule(client=clients)
    def come(self, client: str) -> None:
        self.arrive(self.token(client), 0)

    @precondition(lambda self: self.came_at)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(sorted(self.came_at)))
        self.arrive(token, self.came_at[token])

    @precondition(lambda self: self.arrived)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.arrived))
        self.ask(token, "leave", 0)
        self.arrived.remove(token)
        del self.came_at[token]
        assert self.ask(token, "wait", 0) == [-1], "a late repeat of its arrival does not count"

    @precondition(lambda self: self.arrived)
    @rule(data=st.data())
    def the_time_of_one_is_over(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.arrived))
        assert self.ask(token, "break", self.came_at[token]) == [-2]
        self.over_for_all(token)
        self.broken = True

    def move_by_script(self, what: str, parties: int) -> Any:
        state, arrived, _, gone = self.keys
        return self.scripts.call("barrier_move", (state, arrived, gone), what, parties, TTL_MS, INBOXES, TOMBSTONE_MS)

    @rule(what=st.sampled_from(["abort", "reset", "reset", "look"]))
    def move(self, what: str) -> None:
        if what != "look":
            self.over_for_all()
            self.broken = what == "abort"
            self.generation += what == "reset"
        reply = self.move_by_script(what, PARTIES)
        assert reply == [1, self.generation, len(self.arrived), int(self.broken)]

    @rule()
    def declared_otherwise(self) -> None:
        if self.scripts.server.exists(self.keys[0]):
            assert self.move_by_script("look", PARTIES + 1) == [-3, PARTIES]

    @invariant()
    def server_and_model_agree(self) -> None:
        self.check(self.keys, ("ZRANGE", self.keys[1], self.arrived), ("ZCARD", self.keys[2], len(self.went_on)))


@pytest.mark.parametrize("machine", [Leader, Several, Waits, Gate, Meeting])
def test_the_scripts_do_what_the_model_does(machine: Any, scripts: Scripts) -> None:
    machine.scripts = scripts
    run_machine(machine, 30, 50)
