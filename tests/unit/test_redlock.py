"""The quorum's arithmetic: every pattern of what members may do to a request; no server, no clock but the test's.

The members run the scripts that ship, in the simulator's Lua; what the test scripts is each member's fate:

``grant``   it votes, in time                    ``refused``    no one listens there: certainly not carried out
``busy``    someone else holds it there         ``lost``       carried out, and the answer never comes
``error``   the server refuses (out of memory)   ``swallowed``  never carried out, and no answer either
``young``   it does not vote yet                 ``late``       carried out when the asker has given up, and answered
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from holdfast._core import redlock
from holdfast._core.effects import Answer, Call, CallMany, Effect, Protocol, Sleep, Spawn
from holdfast._core.exclusive import OverQuorum
from holdfast._core.failure import RequestFailed, refusal
from holdfast._core.keys import lock_keys
from holdfast._core.redlock import Quorum
from holdfast._core.settings import DEFAULT
from holdfast._core.validity import DRIFT, MARGIN_S
from holdfast._core.waiting import Busy, Grant
from holdfast.errors import ConfigurationError
from sim.server import Refused, Server
from tests.support.steps import drive

KEYS = lock_keys("holdfast", "a")
FIRST, SECOND = (f"{number:024x}:1:1" for number in (1, 2))
FOREIGN = "someone-else"
TTL_MS = 10_000
DELAY_MS = 60_000

#: What an acquisition may meet at a member.
FATES = ("grant", "busy", "error", "young", "refused", "lost", "swallowed", "late")
#: In these the member may hold us without having said so.
UNSURE = {"lost", "swallowed", "late"}
#: Between two answers, s: less than what a proposed fencing token is ahead of the clocks.
STEP_S = 0.0001


class Member:
    """One server, by the scripts that ship."""

    def __init__(self, number: int, driver: Driver, skew_s: float) -> None:
        self.fate = "grant"
        self.driver = driver
        self.skew_s = skew_s
        self.server = Server(self.clock)
        self.server.run_id = b"%040x" % number
        self.server.started_us = self.clock() - 86_400_000_000

    def clock(self) -> int:
        return int((self.driver.now + self.skew_s) * 1_000_000)

    def meets(self, fate: str) -> None:
        """Choose what comes to the member from now on; someone else's lock and a recent start are put there."""
        self.fate = fate
        self.server.started_us = self.clock() - (1_000_000 if fate == "young" else 86_400_000_000)
        if fate == "busy" and self.holder() is None:
            self.server.command("SET", KEYS.lock, FOREIGN, "PX", 3_600_000)

    def holder(self) -> str | None:
        value = self.server.command("GET", KEYS.lock)
        return None if value is None else value.decode()

    def fence(self) -> int:
        return int(self.server.command("GET", KEYS.fence) or 0)

    def carry_out(self, call: Call) -> Answer:
        if self.fate == "error" and call.script in ("quorum_acquire", "multi_renew"):
            return refusal("OOM command not allowed when used memory > 'maxmemory'.", "n")
        try:
            return self.server.script(call.script, call.keys, call.args)
        except Refused as refused:
            return refusal(refused.message, "n")


_made: list[Driver] = []


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    """Close what no test ran to its end."""
    yield
    for driver in _made:
        for protocol in driver.spawned:
            protocol.close()
    _made.clear()


class Driver:
    """Performs effects: answers come in the order of the members, a moment apart. `eager`: it asks `enough` after each
    answer, as a driver does to which they come one by one; else it has all timely answers when it asks."""

    def __init__(self, size: int, *, eager: bool = False, skews: Sequence[float] = (), seed: int = 1) -> None:
        self.now = 1_700_000_000.0
        self.members = [Member(at, self, skews[at] if skews else 0.0) for at in range(size)]
        self.eager = eager
        self.asked: list[tuple[str, int]] = []
        self.sleeps: list[float] = []
        self.spawned: list[Protocol[None]] = []
        #: Requests that are under way still: carried out, and answered, when `settle` comes to them.
        self.under_way: list[Callable[[], object]] = []
        self.random = random.Random(seed)
        _made.append(self)

    def meet(self, fates: Sequence[str]) -> None:
        for member, fate in zip(self.members, fates, strict=True):
            member.meets(fate)

    def run(self, protocol: Protocol[Any]) -> Any:
        return self.drive(protocol, self.perform)

    def drive(self, protocol: Protocol[Any], perform: Callable[[Effect[Any]], Any]) -> Any:
        return drive(protocol, perform, lambda: self.now, self.random.random)

    def perform(self, effect: Effect[Any]) -> Any:
        if isinstance(effect, Sleep):
            self.sleeps.append(effect.seconds)
            self.now += effect.seconds
            return None
        if isinstance(effect, Spawn):
            self.spawned.append(effect.protocol)
            return None
        if isinstance(effect, CallMany):
            return self.ask(effect)
        assert isinstance(effect, Call), effect
        (answer,) = self.ask(CallMany([effect], effect.request_timeout_s))
        if answer is None:
            raise RequestFailed("silent", "no answer", "n", maybe_executed=True, transient=True)
        if isinstance(answer, RequestFailed):
            raise answer
        return answer

    def ask(self, many: CallMany) -> list[Answer]:
        answers: list[Answer] = [None] * len(many.calls)
        over_at = self.now + many.request_timeout_s
        over = False
        for at, call in enumerate(many.calls):
            assert call.node is not None
            self.asked.append((call.script, call.node))
            member = self.members[call.node]
            if member.fate == "refused":
                answers[at] = RequestFailed("refused", "no one listens", "n", maybe_executed=False, transient=True)
            elif member.fate == "lost":
                member.carry_out(call)
            elif member.fate == "late" or (over and member.fate != "swallowed"):
                self.under_way.append(lambda at=at, call=call, member=member: self.late(many, at, member, call))  # type: ignore[misc]
            elif member.fate != "swallowed":
                self.now += STEP_S
                answers[at] = member.carry_out(call)
            if self.eager and not over and many.enough is not None and many.enough(answers):
                over = True
        if not (None not in answers or over or (many.enough is not None and many.enough(answers))):
            self.now = over_at
        return answers

    def late(self, many: CallMany, at: int, member: Member, call: Call) -> None:
        answer = member.carry_out(call)
        if many.late is not None and not isinstance(answer, RequestFailed):
            protocol = many.late(at, answer)
            if protocol is not None:
                self.spawned.append(protocol)

    def settle(self, *, give_backs_first: bool) -> None:
        """All members are well again; what is under way and what is in the background comes to its end."""
        for member in self.members:
            member.fate = "grant"
        while self.under_way or self.spawned:
            if self.spawned and (give_backs_first or not self.under_way):
                self.run(self.spawned.pop(0))
            else:
                self.under_way.pop(0)()

    def free(self) -> None:
        """End what others held."""
        for member in self.members:
            if member.holder() == FOREIGN:
                member.server.command("DEL", KEYS.lock)

    def back_at(self) -> set[int]:
        """Return the members that were asked to give back."""
        return {node for script, node in self.asked if script == "release"}

    def holders(self) -> list[str | None]:
        return [member.holder() for member in self.members]


def knowing(size: int, delay_ms: int | None = DELAY_MS, request_timeout_s: float | None = None) -> Quorum:
    """Return what a client knows that has seen all members before."""
    quorum = Quorum([f"m{at}" for at in range(size)], delay_ms, request_timeout_s)
    quorum.unchecked = False
    quorum.run_ids = [f"{at:040x}" for at in range(size)]
    return quorum


def patterns(size: int) -> Iterable[tuple[str, ...]]:
    """All of them over three members; over five all that differ in more than who is who, in two orders of arrival."""
    if size == 3:
        yield from itertools.product(FATES, repeat=3)
        return
    for fates in itertools.combinations_with_replacement(FATES, size):
        yield fates
        if fates[::-1] != fates:
            yield fates[::-1]


def acquire(quorum: Quorum, token: str, timeout_s: float | None) -> Protocol[Grant | Busy]:
    return OverQuorum(KEYS, DEFAULT, quorum).acquire(token, TTL_MS, timeout_s, False)


def turn(quorum: Quorum, unsure: Iterable[int] = ()) -> redlock.QuorumAcquisition:
    """Return the turn by which the first token is held."""
    held = redlock.QuorumAcquisition(quorum, KEYS, FIRST, TTL_MS)
    held.unsure = set(unsure)
    return held


def attempt(
    driver: Driver, quorum: Quorum, token: str = FIRST, timeout_s: float | None = 0.0
) -> Grant | Busy | RequestFailed:
    try:
        result: Grant | Busy = driver.run(acquire(quorum, token, timeout_s))
    except RequestFailed as failure:
        return failure
    return result


@pytest.mark.parametrize(
    "size, eager, give_backs_first",
    [
        *itertools.product([3], [False, True], [False, True]),
        # Those over five take ten times as long: two of the four have each value once.
        *[(5, False, True), (5, True, False)],
        *(pytest.param(5, both, both, marks=pytest.mark.thorough) for both in (False, True)),
    ],
)
def test_every_pattern(size: int, eager: bool, give_backs_first: bool) -> None:
    """Outcome, who is asked to give back, and that nothing of ours is left anywhere."""
    need = size // 2 + 1
    outcomes: dict[str, int] = {}
    for fates in patterns(size):
        driver, quorum = Driver(size, eager=eager), knowing(size)
        driver.meet(fates)
        for at, member in enumerate(driver.members):
            quorum.saw_clock(at, member.clock(), driver.now)
        began = driver.now
        got = attempt(driver, quorum)
        votes, busy = fates.count("grant"), fates.count("busy")
        if votes >= need:
            assert isinstance(got, Grant), fates
            assert got.sent_at == began, "validity counts from before the first request"
            assert got.more is not None and got.more[0] == FIRST
            assert driver.holders().count(FIRST) >= need, fates
            assert {at for at, fate in enumerate(fates) if fate in UNSURE} <= got.more[1], fates
            assert driver.back_at() == set(), fates
            if votes == size:
                assert len(driver.asked) == size, "one round trip"
            driver.settle(give_backs_first=False)  # late votes of a lease that goes on are not given back
            assert driver.holders().count(FIRST) >= need, fates
            driver.meet(fates)  # as before: those that fail fail again
            try:
                assert driver.run(turn(quorum, got.more[1]).release()), fates
            except RequestFailed as failure:
                raise AssertionError((fates, failure)) from failure
        else:
            unsure = {at for at, fate in enumerate(fates) if fate in UNSURE or fate == "grant"}
            if votes + busy >= need:
                assert isinstance(got, Busy), (fates, got)
                # Who holds it is told where most of the answers that count name one and the same.
                assert got.holder == (FOREIGN if busy else None), fates
            elif fates.count("error") >= need and not (eager and isinstance(got, redlock.QuorumFailed)):
                # What a majority says itself; one by one, it may be hopeless before that many have said it.
                assert isinstance(got, RequestFailed) and got.kind == "OOM", (fates, got)
            else:
                assert isinstance(got, redlock.QuorumFailed), (fates, got)
                assert got.needed == need
                assert got.heard <= votes + busy, fates
                assert eager or got.heard == votes + busy, fates
                assert got.heard + len(got.problems) == size, fates
            driver.run(driver.spawned.pop(0))  # while the members are as they are
            assert unsure <= driver.back_at(), f"{fates}: not asked to give back: {unsure - driver.back_at()}"
            if not eager:
                assert driver.back_at() == unsure, f"{fates}: those that certainly do not hold us are left in peace"
        outcomes[type(got).__name__] = outcomes.get(type(got).__name__, 0) + 1
        driver.settle(give_backs_first=give_backs_first)
        assert FIRST not in driver.holders(), f"{fates}: left behind {driver.holders()}"
        assert [at for at, holder in enumerate(driver.holders()) if holder == FOREIGN] == [
            at for at, fate in enumerate(fates) if fate == "busy"
        ], f"{fates}: what is not ours stays"
        assert not quorum._last_rounds
    assert set(outcomes) == {"Grant", "Busy", "RequestFailed", "QuorumFailed"}, outcomes


def test_validity_is_what_the_slowest_that_counts_has_left() -> None:
    """ttl − elapsed − drift, at the very edge."""
    allowed_s = TTL_MS / 1000 * (1 - DRIFT) - MARGIN_S
    for took_s, granted in ((allowed_s - 0.01, True), (allowed_s + 0.01, False)):
        driver, quorum = Driver(3), knowing(3, request_timeout_s=20.0)
        answer = driver.members[1].carry_out

        def slow(call: Call, driver: Driver = driver, answer: Any = answer, took_s: float = took_s) -> Answer:
            driver.now += took_s if call.script == "quorum_acquire" else 0.0
            return answer(call)

        driver.members[1].carry_out = slow  # type: ignore[method-assign]
        driver.members[2].fate = "refused"
        got = attempt(driver, quorum)
        assert isinstance(got, Grant) is granted, took_s
        if not granted:
            driver.settle(give_backs_first=False)
            assert driver.back_at() == {0, 1}
            assert driver.holders() == [None, None, None]


@pytest.mark.parametrize("skews", [(0.0, 0.0, 0.0), (0.0, 5.0, -5.0), (-0.0004, 0.0, 0.0004)], ids=str)
def test_two_acquisitions_with_any_two_partial_failures(skews: tuple[float, ...]) -> None:
    """Never two at once; and whichever majorities they had, the later fencing token is the greater one."""
    fates = ("grant", "refused", "lost", "late")
    grown = both = 0
    all_fates = list(itertools.product(fates, repeat=3))
    majorities = [each for each in all_fates if each.count("grant") >= 2]
    for first_fates, second_fates in itertools.product(majorities, all_fates):
        driver = Driver(3, skews=skews, eager=len(set(first_fates)) > 1)
        quorums = [knowing(3), knowing(3)]
        driver.meet(first_fates)
        first = attempt(driver, quorums[0])
        assert isinstance(first, Grant), first_fates
        remembered = [member.fence() for member in driver.members if member.holder() == FIRST]
        assert sum(fence >= first.fence for fence in remembered) >= 2, "a majority that holds us remembers it"
        driver.meet(second_fates)
        both += isinstance(attempt(driver, quorums[1], SECOND), Grant)
        driver.meet(first_fates)
        assert first.more is not None
        driver.run(turn(quorums[0], first.more[1]).release())
        driver.settle(give_backs_first=True)
        driver.meet(second_fates)
        second = attempt(driver, quorums[1], f"{2:024x}:1:2")
        if isinstance(second, Grant):
            grown += 1
            assert second.fence > first.fence, (first_fates, second_fates)
        driver.settle(give_backs_first=False)
    assert both == 0
    assert grown == len(majorities) ** 2, "all with two majorities"


def test_write_backs_go_to_those_that_hold_us_and_to_nobody_else() -> None:
    for size in (3, 5):
        for fates in itertools.product(("grant", "busy", "late", "refused"), repeat=size):
            if fates.count("grant") <= size // 2:
                continue
            driver, quorum = Driver(size), knowing(size)
            driver.meet(fates)
            # Each remembers another one: no two votes agree.
            for at, member in enumerate(driver.members):
                member.server.command("SET", KEYS.fence, int(driver.now * 1e6) + 10**9 * (at + 1), "PX", 10**6)
            got = attempt(driver, quorum)
            holding = {at for at, fate in enumerate(fates) if fate == "grant"}
            assert isinstance(got, Grant)
            assert {node for script, node in driver.asked if script == "multi_renew"} == holding
            assert got.fence == max(driver.members[at].fence() for at in holding)
            assert sum(driver.members[at].fence() >= got.fence for at in holding) > size // 2


@pytest.mark.parametrize("failing", ["refused", "lost", "swallowed", "error"])
def test_a_token_that_no_majority_remembers_is_not_handed_out(failing: str) -> None:
    """Two of three voted, with different tokens, and one of them fails when the greater is written back to it."""
    driver, quorum = Driver(3), knowing(3)
    driver.meet(("grant", "grant", "refused"))
    for at, member in enumerate(driver.members):
        member.server.command("SET", KEYS.fence, int(driver.now * 1e6) + 10**9 * (at + 1), "PX", 10**6)
    ask = driver.ask

    def then_fails(many: CallMany) -> list[Answer]:
        if many.calls[0].script == "multi_renew":
            driver.members[0].fate = failing
        return ask(many)

    driver.ask = then_fails  # type: ignore[method-assign]
    assert not isinstance(attempt(driver, quorum), Grant)
    driver.settle(give_backs_first=False)
    assert driver.holders() == [None, None, None]


def test_a_vote_that_comes_too_late_is_given_back_at_that_member() -> None:
    driver, quorum = Driver(5), knowing(5)
    driver.meet(("grant", "grant", "late", "late", "busy"))
    assert isinstance(attempt(driver, quorum), Busy)
    driver.spawned.pop(0).close()  # the give-back of the round never came about
    driver.under_way.pop(0)()
    driver.run(driver.spawned.pop(0))
    driver.settle(give_backs_first=False)
    assert driver.holders() == [FIRST, FIRST, None, None, FOREIGN]


class Broken(Driver):
    """All connections break at the first request: it is sent again, and what was sent before comes later."""

    def ask(self, many: CallMany) -> list[Answer]:
        if not self.asked:
            for at, call in enumerate(many.calls):
                many.repeated[at] = True
                assert call.node is not None
                self.under_way.append(partial(self.members[call.node].carry_out, call))
        return super().ask(many)


@pytest.mark.parametrize("fates", [("grant",) * 3, ("busy", "busy", "grant"), ("grant", "late", "grant")])
def test_a_vote_that_was_asked_for_twice_leaves_nothing(fates: tuple[str, ...]) -> None:
    """The first request is carried out after the release, or after the end of the lease that was in the way."""
    driver, quorum = Broken(3, eager=True), knowing(3)
    driver.meet(fates)
    got = attempt(driver, quorum)
    if isinstance(got, Grant):
        record = OverQuorum(KEYS, DEFAULT, quorum).make_record(FIRST, got, TTL_MS)
        assert driver.run(record.release())
    while driver.spawned:
        driver.run(driver.spawned.pop(0))
    driver.free()
    driver.settle(give_backs_first=True)
    assert driver.holders() == [None] * 3


class Hasty(Driver):
    """What comes late comes before the protocol goes on: in the same turn of the event loop, or read by the agent."""

    def ask(self, many: CallMany) -> list[Answer]:
        answers = super().ask(many)
        while self.under_way:
            self.under_way.pop(0)()
        return answers


@pytest.mark.parametrize("fates", [("busy", "busy", "busy", "late", "late"), ("grant", "busy", "busy", "busy", "late")])
def test_a_vote_that_comes_right_after_the_decision_is_given_back(fates: tuple[str, ...]) -> None:
    driver, quorum = Hasty(5, eager=True), knowing(5)
    driver.meet(fates)
    assert isinstance(attempt(driver, quorum), Busy)
    driver.settle(give_backs_first=True)
    assert driver.holders() == [FOREIGN if fate == "busy" else None for fate in fates]


@pytest.mark.parametrize(
    "fates", [("grant", "busy", "busy"), ("grant", "lost", "swallowed"), ("grant", "grant", "grant")]
)
def test_an_interruption_at_any_effect_leaves_nothing(fates: tuple[str, ...]) -> None:
    """Ctrl-C, a cancellation: what the interrupted round and those before it may have left is given back."""
    interrupted = 0
    for at in itertools.count():
        driver, quorum = Driver(3, eager=True), knowing(3)
        driver.meet(fates)
        effects = itertools.count()

        def perform(effect: Effect[Any], driver: Driver = driver, effects: Any = effects, at: int = at) -> Any:
            if not isinstance(effect, Spawn) and next(effects) == at:
                raise KeyboardInterrupt
            return driver.perform(effect)

        try:
            driver.drive(acquire(quorum, FIRST, 0.1), perform)
        except KeyboardInterrupt:
            interrupted += 1
        except RequestFailed:
            break
        else:
            break
        driver.settle(give_backs_first=False)
        ours = FIRST.partition(":")[0]
        assert not any((holder or "").startswith(ours) for holder in driver.holders()), f"interrupted at effect {at}"
    assert interrupted >= 2


def in_the_second_round(driver: Driver, quorum: redlock.Quorum) -> Grant:
    """A grant, when the first round was in vain."""
    driver.meet(("busy", "busy", "grant"))
    seen = itertools.count()

    def perform(effect: Effect[Any]) -> Any:
        if isinstance(effect, Sleep) and next(seen) == 0:
            driver.settle(give_backs_first=False)
            driver.free()
        return driver.perform(effect)

    got = driver.drive(acquire(quorum, FIRST, 5.0), perform)
    assert isinstance(got, Grant) and got.more is not None and got.more[0] != FIRST
    return got


def test_an_interruption_between_the_grant_and_its_caller_leaves_nothing() -> None:
    """The lease's record was made, and no one has got it: the caller gives back by the token that he began with."""
    driver, quorum = Driver(3, eager=True), knowing(3)
    got = in_the_second_round(driver, quorum)
    exclusive = OverQuorum(KEYS, DEFAULT, quorum)
    exclusive.make_record(FIRST, got, TTL_MS)
    driver.run(exclusive.give_back(FIRST, TTL_MS))
    driver.settle(give_backs_first=False)
    assert driver.holders() == [None] * 3


def test_a_second_interruption_at_the_give_back_leaves_nothing() -> None:
    driver, quorum = Driver(3, eager=True), knowing(3)
    driver.meet(("busy", "busy", "grant"))
    rounds = itertools.count()
    interrupted = False

    def perform(effect: Effect[Any]) -> Any:
        nonlocal interrupted
        if interrupted:
            if isinstance(effect, Spawn):
                effect.protocol.close()
            raise KeyboardInterrupt
        if isinstance(effect, Sleep):
            driver.settle(give_backs_first=False)
            driver.free()
        result = driver.perform(effect)
        if isinstance(effect, CallMany) and effect.calls[0].script == "quorum_acquire" and next(rounds) == 1:
            interrupted = True
            raise KeyboardInterrupt
        return result

    with pytest.raises(KeyboardInterrupt):
        driver.drive(acquire(quorum, FIRST, 5.0), perform)
    assert any(driver.holders())
    driver.run(redlock.give_back(quorum, KEYS, FIRST, TTL_MS))
    driver.settle(give_backs_first=False)
    assert driver.holders() == [None] * 3


def test_last_rounds_are_forgotten() -> None:
    """By the release; where no one releases, when the ttl has ended what there is to give back."""
    driver, quorum = Driver(3, eager=True), knowing(3)
    got = in_the_second_round(driver, quorum)
    hold = OverQuorum(KEYS, DEFAULT, quorum).make_record(FIRST, got, TTL_MS)
    assert driver.run(hold.release())
    assert not quorum._last_rounds
    for second in range(20_000):
        quorum.begins_round(f"a:1:{second}", f"a:1~2:{second}", float(second), second + 60.0)
    assert len(quorum._last_rounds) <= 2_000


def test_releases_that_are_answered_right_after_the_majority_are_not_owed() -> None:
    driver, quorum = Hasty(5, eager=True), knowing(5)
    grant = attempt(driver, quorum)
    assert isinstance(grant, Grant) and grant.more is not None
    driver.asked.clear()
    driver.meet(("grant", "grant", "grant", "late", "late"))
    assert driver.run(turn(quorum, grant.more[1]).release())
    driver.settle(give_backs_first=True)
    assert [node for script, node in driver.asked if script == "release"] == [0, 1, 2, 3, 4]


def test_releases_that_are_answered_soon_are_not_repeated() -> None:
    driver, quorum = Driver(5, eager=True), knowing(5)
    grant = attempt(driver, quorum)
    assert isinstance(grant, Grant) and grant.more is not None
    driver.settle(give_backs_first=False)
    driver.asked.clear()
    driver.meet(("grant", "grant", "grant", "late", "late"))
    assert driver.run(turn(quorum, grant.more[1]).release())
    driver.settle(give_backs_first=False)  # the payer looks again after the replies have come
    assert [node for script, node in driver.asked if script == "release"] == [0, 1, 2, 3, 4]
    assert driver.holders() == [None] * 5


def test_the_first_round_waits_for_all_and_looks_who_they_are() -> None:
    for wrong, said in (("twice", "one and the same"), ("replica", "slave")):
        driver = Driver(3)
        quorum = Quorum(["m0", "m1", "m2"], DELAY_MS)
        if wrong == "twice":
            driver.members[2].server.run_id = driver.members[0].server.run_id
        else:
            driver.members[2].carry_out = lambda call: [-3, b"slave"]  # type: ignore[method-assign]
        with pytest.raises(ConfigurationError, match=said):
            attempt(driver, quorum)
        driver.settle(give_backs_first=False)
        assert driver.holders() == [None, None, None]
    driver, quorum = Driver(3, eager=True), Quorum(["m0", "m1", "m2"], DELAY_MS)
    assert isinstance(attempt(driver, quorum), Grant)
    assert quorum.run_ids == [f"{at:040x}" for at in range(3)]


# ---------------------------------------------------------------- waiting


def pauses(fates_of: Callable[[int, str], str | None], rounds: int, seed: int, timeout_s: float = 5.0) -> list[float]:
    """Return the sleeps of a client that asks three members; `fates_of(member, …)` puts another's token there."""
    driver, quorum = Driver(3, seed=seed), knowing(3)
    for at, member in enumerate(driver.members):
        holder = fates_of(at, FOREIGN)
        if holder is not None:
            member.server.command("SET", KEYS.lock, holder, "PX", 3_600_000)
    assert isinstance(attempt(driver, quorum, timeout_s=timeout_s), Busy)
    driver.settle(give_backs_first=False)
    assert FIRST not in driver.holders()
    return driver.sleeps[:rounds]


def test_contenders_that_split_the_vote_pause_for_random_times_that_grow() -> None:
    split = [pauses(lambda at, _: (None, "b", "c")[at], 10, seed) for seed in range(40)]
    assert len({tuple(sleeps) for sleeps in split}) == 40, "no two of them meet again and again"
    for number in range(10):
        bound_s = min(DEFAULT.split_pause_max_s, DEFAULT.split_pause_s * 2**number)
        of_all = [sleeps[number] for sleeps in split]
        assert max(of_all) <= bound_s
        assert max(of_all) > bound_s / 2 > min(of_all), "from nothing to the bound"


def test_who_waits_for_a_holder_asks_from_time_to_time_and_when_its_time_is_over() -> None:
    held = pauses(lambda at, foreign: foreign, 10, 1, timeout_s=10.0)
    assert all(0 < sleep <= DEFAULT.foreign_poll_max_s * 1.5 for sleep in held)
    assert held[-1] > held[0]
    driver, quorum = Driver(3), knowing(3)
    for member in driver.members:
        member.server.command("SET", KEYS.lock, FOREIGN, "PX", 300)
    began = driver.now
    got = attempt(driver, quorum, timeout_s=None)
    assert isinstance(got, Grant)
    assert 0.3 <= got.sent_at - began < 1.0


def test_every_round_has_a_token_of_its_own() -> None:
    """A token that is left of an earlier round can be buried without refusing the next one."""
    driver, quorum = Driver(3), knowing(3)
    driver.meet(("grant", "swallowed", "late"))
    original = driver.perform

    def later_well(effect: Effect[Any]) -> Any:
        if isinstance(effect, Sleep):
            driver.meet(("grant", "grant", "grant"))
        return original(effect)

    driver.perform = later_well  # type: ignore[method-assign]
    got = attempt(driver, quorum, timeout_s=None)
    assert isinstance(got, Grant) and got.more is not None
    assert got.more[0] != FIRST and got.more[0].split(":")[1] == "1~2"
    driver.settle(give_backs_first=False)
    assert driver.holders().count(got.more[0]) >= 2
    assert FIRST not in driver.holders()


# ---------------------------------------------------------------- renewing and releasing


LATER = ("held", "gone", "refused", "lost", "swallowed")


@pytest.mark.parametrize("verb", ["renew", "release"])
@pytest.mark.parametrize("size", [3, 5])
def test_every_pattern_of_a_renewal_and_of_a_release(size: int, verb: str) -> None:
    need = size // 2 + 1
    all_patterns: Iterable[tuple[str, ...]] = itertools.product(LATER, repeat=3)
    if size == 5:
        all_patterns = itertools.combinations_with_replacement(LATER, 5)
    seen: dict[str, int] = {}
    for fates in all_patterns:
        driver, quorum = Driver(size), knowing(size)
        assert isinstance(attempt(driver, quorum), Grant)
        driver.asked.clear()
        for member, fate in zip(driver.members, fates, strict=True):
            if fate == "gone":
                member.server.command("SET", KEYS.lock, FOREIGN, "PX", 3_600_000)
            member.fate = "grant" if fate in ("held", "gone") else fate
        driver.now += 1.0
        protocol: Protocol[int] | Protocol[bool] = (
            turn(quorum).renew(TTL_MS) if verb == "renew" else turn(quorum).release()
        )
        held, gone = fates.count("held"), fates.count("gone")
        expected: object = True if held >= need else False if gone >= need else None
        result: object = None
        if expected is None:
            with pytest.raises(redlock.QuorumFailed) as caught:
                driver.run(protocol)
            failure = caught.value
            assert (failure.needed, failure.heard, failure.transient) == (need, held + gone, True), fates
            assert len(failure.problems) == size - held - gone
        else:
            result = bool(driver.run(protocol))
        assert result is expected, fates
        seen[str(result)] = seen.get(str(result), 0) + 1
        if verb == "renew" and result is True:
            extended = [at for at, fate in enumerate(fates) if fate in ("held", "lost")]
            for at in extended:
                assert driver.members[at].server.command("PTTL", KEYS.lock) > TTL_MS - 100
        else:
            driver.settle(give_backs_first=False)
            if verb == "renew" and result is False:
                # Its holder may rely on what it was told: until then, what is left keeps others out.
                left = [FIRST if fate != "gone" else FOREIGN for fate in fates]
                driver.now += (TTL_MS / 1000 - 1.0) * (1 - DRIFT) - MARGIN_S
                assert driver.holders() == left, fates
                driver.now += TTL_MS / 1000
                assert FIRST not in driver.holders(), fates
            elif verb == "release":
                # What did not answer is owed.
                assert FIRST not in driver.holders(), fates
        assert [member.holder() for member, fate in zip(driver.members, fates, strict=True) if fate == "gone"] == (
            [FOREIGN] * gone
        ), "what is not ours stays"
    assert set(seen) == {"True", "False", "None"}


@pytest.mark.parametrize("size", [3, 4, 5])
def test_the_last_fencing_token_seen_is_not_below_one_that_was_handed_out(size: int) -> None:
    """Whichever members are heard; and where all are, one that was never handed out does not count."""
    need = size // 2 + 1
    for remember in itertools.combinations(range(size), need):
        driver = Driver(size)
        for at, member in enumerate(driver.members):
            member.server.command("SET", KEYS.fence, 700 if at in remember else 600, "PX", 1_000_000)
        for count in range(need, size + 1):
            for heard in itertools.combinations(range(size), count):
                driver.meet(["grant" if at in heard else "swallowed" for at in range(size)])
                assert driver.run(redlock.inspect(knowing(size), KEYS))[2] == 700, (remember, heard)
        driver.members[remember[0]].server.command("SET", KEYS.fence, 900)
        driver.meet(["grant"] * size)
        assert driver.run(redlock.inspect(knowing(size), KEYS))[2] == 700


def test_a_forked_child_gives_back_what_it_owes_and_not_what_its_parent_does() -> None:
    """The protocol that gives back is not in the child, where the same quorum goes on."""
    driver, quorum = Driver(3), knowing(3)
    for token in (FIRST, SECOND):
        driver.run(quorum.owe(0, token, KEYS, driver.now + 20.0, driver.now))
    of_parent, of_child = driver.spawned
    assert len(quorum._debts) == 2
    driver.run(of_child)
    assert [[*debts] for debts in quorum._debts.values()] == [[FIRST]]
    assert driver.asked == [("release", 0)]
    of_parent.close()
