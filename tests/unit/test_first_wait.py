"""The usual wait by hand does what the protocol does, with the same answers, messages and exceptions.

Each course is random, and is gone through twice: by `first_wait`, and by the protocol alone. Its clock moves only while
a request is under way, or a message is waited for. What happens to the n-th of each depends on the seed and on n.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast._core.effects import (
    AwaitWake,
    Call,
    Command,
    Effect,
    Listen,
    Now,
    Protocol,
    Random,
    Sleep,
    Spawn,
    Unlisten,
    Wake,
)
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.mutex import LockAcquisition
from holdfast._core.noting import Witness
from holdfast._core.settings import DEFAULT
from holdfast._core.waiting import Busy, Grant, request_timeout_for, wait_for
from holdfast._drivers import first_wait as module
from holdfast._drivers.first_wait import first_wait
from holdfast._transport.pack import PreparedRequest
from holdfast.errors import HoldfastError
from tests.support.steps import drive

KEYS = lock_keys("holdfast", "a")
TOKEN = "0" * 24 + ":1:1"
OURS = ("f" * 24 + ":1:1").encode()
TTL_MS = 10_000
SEEDS = 2_000


def acquisition() -> LockAcquisition:
    turn = LockAcquisition(KEYS, TOKEN, TTL_MS)
    turn.check = Witness("holdfast", DEFAULT, lambda token: (), lambda: "here")  # it holds nothing
    turn.renews = True  # else the wait is left to the protocol: see `Lock._prepare`
    return turn


class _Dice:
    def __init__(self, course: Course) -> None:
        self.random = course.chance


class Course:
    """One course of a wait: the driver, its inboxes, its node and its dice in one, and what was done to them."""

    settings = DEFAULT
    name = "node"

    def __init__(self, seed: int) -> None:
        self.seed = seed
        chance = random.Random(f"{seed} course")
        self.timeout_s = chance.choice([None, 0.05, 0.5, 3.0, 20.0])
        self.opened = chance.random() < 0.95
        self.inboxes = self.troubles = self
        self.random = _Dice(self)
        self.now = 100.0
        self.closed = False
        self.queueing: dict[str, Any] = {TOKEN: self}
        self.counts: dict[str, int] = {}
        #: In order: requests with their time and timeout, waits, and what is told of them.
        self.log: list[tuple[Any, ...]] = []
        #: What has to be given back, and the tokens that are listened for.
        self.undone: list[bytes] = []
        self.listening: set[str] = set()
        #: The protocol had no part in it.
        self.alone = True
        self.deaf = False

    def dice(self, of: str) -> random.Random:
        self.counts[of] = self.counts.get(of, 0) + 1
        return random.Random(f"{self.seed} {of} {self.counts[of]}")

    # -- as driver and dice

    def clock(self) -> float:
        return self.now

    def final(self) -> RequestFailed:
        return RequestFailed("closed", "the client is closed", "", maybe_executed=False, transient=False)

    def failed(self, node: Any, failure: RequestFailed) -> RequestFailed:
        self.saw(failure)
        return self.final() if self.closed else failure

    def saw(self, failure: RequestFailed) -> None:
        if failure.node:
            self.log.append(("saw", failure.kind))

    def passed(self, node: str) -> None:
        self.log.append(("passed", node))

    def queued(self) -> None:
        self.log.append(("queued",))

    def chance(self) -> float:
        return random.Random(f"{self.seed} {self.now:.6f}").random()

    def run(self, protocol: Protocol[Any]) -> Any:
        self.alone = False
        return drive(protocol, self.perform)

    # -- as inboxes

    def is_open(self, node: Any) -> bool:
        return self.opened

    def listen(self, token: str, node: Any, request_timeout_s: float) -> None:
        self.listening.add(token)
        dice = self.dice("listen")
        if dice.random() < 0.03:
            self.deaf = True
            raise (
                KeyboardInterrupt
                if dice.random() < 0.5
                else RequestFailed("silent", "no subscription in time", self.name, maybe_executed=False, transient=True)
            )

    def unlisten(self, token: str) -> None:
        self.listening.discard(token)

    def wait(self, token: str, timeout_s: float) -> Wake | None:
        assert token in self.listening
        self.log.append(("waits", round(self.now, 6), round(timeout_s, 6)))
        dice = self.dice("wait")
        what = dice.choice(["grant", "grant", "grant", "grant", "ask", "nothing", "interrupt", "close"])
        self.now += timeout_s if what == "nothing" else timeout_s * dice.choice([0.0, 0.01, 0.3, 0.9])
        if what == "interrupt":
            raise KeyboardInterrupt
        if what == "close":
            self.closed = True
        if what == "grant":
            # One whose subscription failed counts from another moment: such a grant has to be confirmed.
            claim_ms = 0 if self.deaf else dice.choice([0, 300, 2_000, 2_000, 2_000, 30_000])
            return Wake(Wake.GRANT, dice.choice([0, 7, 7, 7]), claim_ms)
        return Wake(Wake.ASK) if what == "ask" else None

    # -- as node

    def call_packed(self, packed: bytes, request_timeout_s: float, script: Any) -> Any:
        self.log.append((script.name, round(self.now, 6), round(request_timeout_s, 6), packed))
        dice = self.dice("call")
        took_s = dice.choice([0.0, 0.0003, 0.0003, 0.001, 0.2, 4.0])
        if took_s > request_timeout_s:
            self.now += request_timeout_s
            raise RequestFailed("silent", "no answer in time", self.name, maybe_executed=True, transient=True)
        self.now += took_s
        what = dice.choice(["queued"] * 12 + ["granted", "granted", "foreign", "unplaced", "again", "buried", "error"])
        if what == "error":
            if dice.random() < 0.3:
                raise KeyboardInterrupt
            kind, maybe, transient = dice.choice(
                [("broken", True, True), ("refused", False, True), ("OOM", False, False), ("LOADING", False, True)]
            )
            raise RequestFailed(kind, kind, self.name, maybe_executed=maybe, transient=transient)
        if dice.random() < 0.05:
            self.closed = True
        queues = b"\r\nwait\r\n" in packed
        left_ms = dice.choice([-1, 0, 40, 500, 9_000])
        return {
            "queued": [0, left_ms, OURS, dice.choice([0, 0, 1, 5]) if queues else -1, 1_000_000],
            "granted": [1, 7],
            "foreign": [0, left_ms, b"another program", 0 if queues else -1, 1_000_000],
            "unplaced": [0, left_ms, OURS, -1, 0],
            "again": [0, 0, b"", 3 if queues else -1, 1_000_000],
            "buried": [-1],
        }[what]

    # -- as what performs the effects of protocols, in the way in which the driver for threads does

    def perform(self, effect: Effect[Any]) -> Any:
        try:
            return self._perform(effect)
        except RequestFailed as failure:
            failure.about(effect)
            self.saw(failure)
            raise (self.final() if self.closed else failure) from None

    def _perform(self, effect: Effect[Any]) -> Any:
        if isinstance(effect, Now):
            return self.now
        if isinstance(effect, Random):
            return self.chance()
        if isinstance(effect, Sleep):
            self.now += effect.seconds
        elif isinstance(effect, Listen):
            if self.closed:
                raise self.final()
            self.listen(effect.token, self, effect.request_timeout_s)
        elif isinstance(effect, Unlisten):
            self.unlisten(effect.token)
        elif isinstance(effect, Spawn):
            drive(effect.protocol, self.give_back)
        elif isinstance(effect, Call):
            request = PreparedRequest(effect)
            reply = self.call_packed(request.packed(str(effect.args[0])), effect.request_timeout_s, request.script)
            self.passed(self.name)
            return reply
        elif isinstance(effect, Command):
            assert effect.args[0] == "GET"  # whether it was broken: there is no such note
        else:
            assert isinstance(effect, AwaitWake)
            if (report := self.queueing.pop(effect.token, None)) is not None:
                report.queued()
            wake = None if self.closed else self.wait(effect.token, effect.timeout_s)
            if self.closed:
                raise self.final()
            return wake
        return None

    def give_back(self, effect: Effect[Any]) -> Any:
        if isinstance(effect, Call):
            request = PreparedRequest(effect)
            self.undone.append(request.packed(str(effect.args[0])))
            return 1
        return self.now


def outcome(act: Any) -> tuple[Any, ...]:
    try:
        got = act()
    except RequestFailed as failure:
        about = failure.request.script if isinstance(failure.request, Call) else type(failure.request).__name__
        return "failed", failure.kind, failure.maybe_executed, about if failure.kind not in ("closed", "silent") else ""
    except KeyboardInterrupt:
        return ("interrupted",)
    except HoldfastError as error:  # what a refusal is made into
        return type(error).__name__, str(error)
    if isinstance(got, Busy):
        return "busy", got.holder, round(got.waited_s, 6)
    assert isinstance(got, Grant)
    until = None if got.until is None else round(got.until, 6)
    return "granted", got.fence, round(got.sent_at, 6), until, got.stray, got.waited


def by_hand(seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Course, tuple[Any, ...]]:
    course = Course(seed)
    driver: Any = course
    monkeypatch.setattr(module, "clock", course.clock)
    first = PreparedRequest(acquisition().ask(False, 0, request_timeout_for(TTL_MS, DEFAULT)))

    def start(token: str, timeout_s: float | None, sent: bool | None) -> Protocol[Grant | Busy]:
        assert token == TOKEN
        return wait_for(acquisition(), timeout_s, listening=sent is None or (not sent and course.opened))

    return course, outcome(lambda: first_wait(driver, driver, first, start, TOKEN, course.timeout_s, TTL_MS))


def by_protocol(seed: int) -> tuple[Course, tuple[Any, ...]]:
    course = Course(seed)
    return course, outcome(lambda: course.run(wait_for(acquisition(), course.timeout_s, listening=course.opened)))


def test_it_ends_as_the_protocol_does_and_asks_and_leaves_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: dict[str, int] = {}
    alone = 0
    for seed in range(SEEDS):
        course, got = by_hand(seed, monkeypatch)
        model, wanted = by_protocol(seed)
        assert got == wanted, f"seed {seed}: {course.log}\n{model.log}"
        assert course.log == model.log, f"seed {seed}"
        assert course.listening == model.listening == set(), f"seed {seed}"
        if not course.deaf:
            assert course.undone == model.undone, f"seed {seed}: {course.log}"
        else:  # whether its request was sent is not known, and to give back what is not there does no harm
            assert set(model.undone) <= set(course.undone), f"seed {seed}: {course.log}"
        ends[got[0]] = ends.get(got[0], 0) + 1
        alone += course.alone and got[3] is not None
    # Each end was seen, and the usual one was not left to the protocol.
    assert min(ends[end] for end in ("granted", "busy", "failed", "interrupted")) > SEEDS / 50, ends
    assert alone > SEEDS / 20
