"""The scripts of the shared lock and the semaphore on a real server, against simple models in memory.

Hypothesis makes up who asks for what in which order, who is dead, and whose time is over; after every step the server
holds what the model says, and has told whom the model says.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast._core.keys import lock_keys
from testbed.servers import unique
from tests.support.scripts import (
    CLAIM_MS,
    CLIENTS,
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

pytestmark = pytest.mark.usefixtures("nothing_left")


class SharedLock(RuleBasedStateMachine):
    """Tokens: one reader `r`, one writer `w` and upgrades of it for each client at a time, numbered again each time."""

    scripts: Scripts

    def __init__(self) -> None:
        super().__init__()
        self.keys = lock_keys("holdfast", unique("rw"))
        self.all_keys = self.keys.more("readers", "upgraded")
        self.number = 0
        self.exclusive: str | None = None
        self.readers: list[str] = []
        self.queue: list[str] = []
        self.fence = 0
        self.told: list[str] = []

    # the model

    def fits(self, token: str) -> bool:
        if self.exclusive:
            return False
        others = [reader for reader in self.readers if reader != beneath(token)]
        return is_reader(token) or not others

    def grant(self, token: str) -> None:
        if token in self.queue:
            self.queue.remove(token)
        if is_reader(token):
            self.readers.append(token)
        else:
            self.exclusive = token

    def advance(self, me: str | None = None) -> None:
        while self.queue and not self.exclusive:
            head = self.queue[0]
            if (head != me and head.startswith(DEAD)) or (beneath(head) and beneath(head) not in self.readers):
                self.queue.remove(head)
            elif self.fits(head):
                self.grant(head)
                if head != me:
                    self.told.append(head)
            else:
                return

    def holds(self, token: str) -> bool:
        return token == self.exclusive or (
            token in self.readers and (not self.exclusive or beneath(self.exclusive) == token)
        )

    def tokens(self) -> list[str]:
        return [*self.readers, *self.queue, *([self.exclusive] if self.exclusive else [])]

    # what is done

    def ask(self, token: str, mode: str) -> None:
        reply = self.scripts.call("rw_acquire", self.all_keys, token, TTL_MS, mode, 0, FENCE_MS, CLAIM_MS, INBOXES)
        before = beneath(token)
        upgrading = [each for each in self.queue[:1] if beneath(each) and each != token and not each.startswith(DEAD)]
        new = token not in self.queue
        if self.holds(token):
            expected = 1
            if token in self.readers:
                self.advance()
        elif before and not self.holds(before):
            expected = -2
        elif before and upgrading:
            expected = -3
        elif mode == "try":
            # An upgrade goes before everyone; all others wait for no one or not at all.
            if not ((before or not self.queue) and self.fits(token)):
                self.advance()
            expected = int((before is not None or not self.queue) and self.fits(token))
            if expected:
                self.grant(token)
        elif (before or not self.queue) and self.fits(token):
            self.grant(token)
            expected = 1
        else:
            if token not in self.queue:
                # Upgrades go before everyone, in the order of their tokens (only a dead one can be there already).
                ahead = sum(each < token for each in self.queue if beneath(each))
                self.queue.insert(ahead if before else len(self.queue), token)
            self.advance(token)
            expected = int(self.holds(token))
        assert reply[0] == expected, (token, mode, reply)
        if expected == 1:
            assert reply[1] > self.fence, "fencing tokens grow"
            self.fence = reply[1]
        elif expected == 0 and mode == "wait":
            trim(self.queue, token, new)
            assert reply[3] == self.queue.index(token)
            assert reply[1] > 0

    @rule(client=clients, kind=st.sampled_from("rrw"), mode=st.sampled_from(["try", "wait"]))
    def acquire(self, client: str, kind: str, mode: str) -> None:
        self.number += 1
        self.ask(f"{client}:{kind}.1:{self.number}", mode)

    @precondition(lambda self: self.tokens())
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.tokens()))
        self.ask(token, "wait")

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), mode=st.sampled_from(["try", "wait"]))
    def upgrade(self, data: st.DataObject, mode: str) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        self.number += 1
        self.ask(reader.replace(":r.", f":u{self.number}."), mode)

    @precondition(lambda self: self.tokens())
    @rule(data=st.data(), tombstone=st.booleans())
    def release(self, data: st.DataObject, tombstone: bool) -> None:
        token = data.draw(st.sampled_from(self.tokens()))
        held = self.holds(token)
        reply = self.scripts.call(
            "rw_release", self.all_keys, token, FENCE_MS, CLAIM_MS, INBOXES, TOMBSTONE_MS if tombstone else 0
        )
        before = len(self.told)
        if tombstone and token in self.queue:
            self.queue.remove(token)
        if token in self.readers:
            self.readers.remove(token)
        if self.exclusive == token:
            self.exclusive = None
        if tombstone or held or token not in self.queue or not self.exclusive:
            self.advance()
        assert reply == (0 if not held else 2 if len(self.told) > before else 1)
        if tombstone:
            again = self.scripts.call(
                "rw_acquire", self.all_keys, token, TTL_MS, "wait", 0, FENCE_MS, CLAIM_MS, INBOXES
            )
            assert again == [-1], "a buried token is refused"

    @precondition(lambda self: self.tokens())
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.tokens()))
        reply = self.scripts.call("rw_renew", self.all_keys, token, TTL_MS, FENCE_MS, CLAIM_MS, INBOXES)
        assert reply == int(self.holds(token))

    @precondition(lambda self: self.exclusive and ":w." in self.exclusive)
    @rule()
    def downgrade(self) -> None:
        assert self.exclusive
        self.number += 1
        reader = f"{self.exclusive[:24]}:r.1:{self.number}"
        args = (self.exclusive, reader, TTL_MS, FENCE_MS, CLAIM_MS, INBOXES)
        reply = self.scripts.call("rw_downgrade", self.all_keys, *args)
        assert reply[0] == 1 and reply[1] > self.fence
        self.fence = reply[1]
        self.exclusive = None
        self.readers.append(reader)
        self.advance()
        assert self.scripts.call("rw_downgrade", self.all_keys, *args)[0] == 1, "may be repeated"

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def a_readers_time_is_over(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        self.scripts.server.zadd(f"{self.keys.base}:readers", {reader: 1})
        self.readers.remove(reader)
        if not self.readers and not self.exclusive:
            self.scripts.server.delete(self.keys.lock)

    @precondition(lambda self: self.exclusive)
    @rule()
    def the_exclusive_time_is_over(self) -> None:
        assert self.exclusive
        upgraded = beneath(self.exclusive) is not None
        self.scripts.server.delete(f"{self.keys.base}:upgraded" if upgraded else self.keys.lock)
        if upgraded and not self.readers:
            self.scripts.server.delete(self.keys.lock)
        self.exclusive = None

    # what has to be so after each step

    @invariant()
    def server_and_model_agree(self) -> None:
        upgraded_now, holder, readers, queue, *left_ms = self.scripts.ask(
            ("GET", f"{self.keys.base}:upgraded"),
            ("GET", self.keys.lock),
            ("ZRANGEBYSCORE", f"{self.keys.base}:readers", _a_while_ago_ms(), "+inf"),
            ("ZRANGE", self.keys.queue, 0, -1),
            *[("PTTL", key) for key in self.all_keys],
        )
        upgraded = self.exclusive if self.exclusive and beneath(self.exclusive) else None
        assert upgraded_now == upgraded
        shared = "0" * 24 + ":shared:0" if self.readers or upgraded else None
        assert holder == (shared if upgraded or not self.exclusive else self.exclusive)
        assert sorted(readers) == sorted(self.readers)
        assert queue == self.queue
        assert self.scripts.told_so_far() == self.told
        self.told.clear()
        for key, key_left_ms in zip(self.all_keys, left_ms, strict=True):
            assert key_left_ms != -1, f"{key} is immortal"


def is_reader(token: str) -> bool:
    return ":r." in token


def beneath(token: str) -> str | None:
    """The reader beneath an upgrade."""
    client, middle, number = token.split(":")
    return f"{client}:r.1:{number}" if middle.startswith("u") else None


class Permits(RuleBasedStateMachine):
    """A semaphore of three permits, resized now and then."""

    scripts: Scripts

    def __init__(self) -> None:
        super().__init__()
        self.keys = lock_keys("holdfast", unique("sem")).part("sem")
        self.all_keys = self.keys.more("holders")
        self.number = 0
        self.declared = 3
        self.limit = 0
        self.holders: list[str] = []
        self.queue: list[str] = []
        self.fence = 0
        self.told: list[str] = []

    def used(self) -> int:
        return sum(map(weight, self.holders))

    def advance(self, me: str | None = None) -> None:
        while self.queue:
            head = self.queue[0]
            if (head != me and head.startswith(DEAD)) or weight(head) > self.limit:
                self.queue.remove(head)
            elif self.used() + weight(head) <= self.limit:
                self.queue.remove(head)
                self.holders.append(head)
                if head != me:
                    self.told.append(head)
            else:
                return

    def tokens(self) -> list[str]:
        return [*self.holders, *self.queue]

    def ask(self, token: str, mode: str) -> None:
        args = (token, TTL_MS, mode, 0, FENCE_MS, CLAIM_MS, INBOXES, self.declared)
        reply = self.scripts.call("sem_acquire", self.all_keys, *args)
        new = token not in self.queue
        if token in self.holders:
            expected = 1
            self.advance()
        elif weight(token) > (self.limit or self.declared):
            expected = -3
        else:
            self.limit = self.limit or self.declared
            if mode == "wait" and token not in self.queue:
                self.queue.append(token)
            self.advance(token if mode == "wait" else None)
            if mode == "try" and not self.queue and self.used() + weight(token) <= self.limit:
                self.holders.append(token)
            expected = int(token in self.holders)
        assert reply[0] == expected, (token, mode, reply)
        if expected == 1:
            assert reply[1] > self.fence
            self.fence = reply[1]
        elif expected == 0 and mode == "wait":
            trim(self.queue, token, new)
            assert reply[3] == self.queue.index(token)

    @rule(client=clients, permits=st.integers(1, 4), mode=st.sampled_from(["try", "wait"]))
    def acquire(self, client: str, permits: int, mode: str) -> None:
        self.number += 1
        self.ask(f"{client}:{permits}.1:{self.number}", mode)

    @precondition(lambda self: self.tokens())
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        self.ask(data.draw(st.sampled_from(self.tokens())), "wait")

    @precondition(lambda self: self.tokens())
    @rule(data=st.data(), tombstone=st.booleans())
    def release(self, data: st.DataObject, tombstone: bool) -> None:
        token = data.draw(st.sampled_from(self.tokens()))
        args = (token, FENCE_MS, CLAIM_MS, INBOXES, TOMBSTONE_MS if tombstone else 0)
        reply = self.scripts.call("sem_release", self.all_keys, *args)
        held = token in self.holders
        if held:
            self.holders.remove(token)
        if tombstone and token in self.queue:
            self.queue.remove(token)
        before = len(self.told)
        self.advance()
        assert reply == (0 if not held else 2 if len(self.told) > before else 1)

    @precondition(lambda self: self.tokens())
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.tokens()))
        reply = self.scripts.call("sem_renew", self.all_keys, token, TTL_MS, FENCE_MS)
        assert reply == int(token in self.holders)

    @rule(limit=st.integers(1, 5))
    def resize(self, limit: int) -> None:
        reply = self.scripts.call("sem_resize", self.all_keys, limit, FENCE_MS, CLAIM_MS, INBOXES)
        assert reply == self.limit
        self.declared = self.declared if self.limit else limit
        self.limit = limit
        self.advance()

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def a_holders_time_is_over(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.holders))
        self.scripts.server.zadd(f"{self.keys.base}:holders", {token: 1})
        self.holders.remove(token)

    @rule()
    def another_declaration_is_refused(self) -> None:
        if self.limit:
            wrong = max(self.limit, self.declared) + 1
            args = (f"{CLIENTS[0]}:1.1:0", TTL_MS, "try", 0, FENCE_MS, CLAIM_MS, INBOXES, wrong)
            assert self.scripts.call("sem_acquire", self.all_keys, *args) == [-2, self.limit]

    @invariant()
    def server_and_model_agree(self) -> None:
        holders, queue, *left_ms = self.scripts.ask(
            ("ZRANGEBYSCORE", f"{self.keys.base}:holders", _a_while_ago_ms(), "+inf"),
            ("ZRANGE", self.keys.queue, 0, -1),
            *[("PTTL", key) for key in self.all_keys],
        )
        assert sorted(holders) == sorted(self.holders)
        assert queue == self.queue
        assert self.scripts.told_so_far() == self.told
        self.told.clear()
        for key, key_left_ms in zip(self.all_keys, left_ms, strict=True):
            assert key_left_ms != -1, f"{key} is immortal"


def _a_while_ago_ms() -> int:
    """Behind the time of what is dead, which the test sets to 1, and before that of all others."""
    return int(time.time()) * 1_000


def weight(token: str) -> int:
    return int(token.split(":")[1].partition(".")[0])


@pytest.mark.parametrize("machine", [SharedLock, Permits])
def test_the_scripts_do_what_the_model_does(machine: Any, scripts: Scripts) -> None:
    machine.scripts = scripts
    run_machine(machine)
