"""The checker on hand-made histories: it fires on each kind of evil, and on nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_lab.history import History
from holdfast_lab.verdicts import KINDS, MARKS, judge, sections, worst

MS = 1_000_000
Line = tuple[int, str, str] | tuple[int, str, str, dict[str, Any]]


def history(*lines: Line, exclusive: bool = True, lock_keys: tuple[str, ...] = ("lock",)) -> History:
    """Lines of (ms, lane, kind, particulars)."""
    made = History("hand-made", "none", exclusive=exclusive, lock_keys=lock_keys)
    made.clients, made.servers = ["A", "B", "C"], ["server"]
    for line in lines:
        made.add(line[0] * MS, line[1], line[2], **(line[3] if len(line) == 4 else {}))
    return made


def kinds(made: History) -> list[str]:
    return [verdict.kind for verdict in judge(made)]


def turn(client: str, start: int, end: int, base: int | None = None) -> list[Line]:
    """A whole turn: ask, enter, count, leave, give back."""
    lines: list[Line] = [
        (start - 2, client, "asks", {"ttl_ms": 1000}),
        (start - 1, client, "acquired"),
        (start, client, "entered"),
    ]
    if base is not None:
        lines.append((start, client, "read", {"value": base}))
        lines.append((end - 1, client, "wrote", {"base": base, "value": base + 1, "accepted": True}))
    return [*lines, (end, client, "left"), (end, client, "releases"), (end + 1, client, "released")]


def key(at: int, by: str, was: str | None, now: str | None, name: str = "lock", **more: Any) -> Line:
    return (at, "server", "key", {"key": name, "by": by, "was": was, "now": now, **more})


# ---- good ----


def test_turns_one_after_the_other_are_safe() -> None:
    good = history(*turn("A", 10, 20, 0), *turn("B", 30, 40, 1), *turn("C", 50, 60, 2))
    (verdict,) = judge(good)
    assert verdict.kind == "safe"
    assert "A 1×, B 1×, C 1×" in verdict.sentence


def test_entering_at_the_very_moment_of_leaving_is_safe() -> None:
    assert kinds(history(*turn("A", 10, 20), *turn("B", 20, 30))) == ["safe"]


def test_where_no_one_does_any_work_nothing_is_safe() -> None:
    assert kinds(history()) == ["failed"]
    sent_away: list[Line] = [(1, "A", "asks", {"ttl_ms": 10}), (2, "A", "entered"), (50, "A", "lost")]
    assert kinds(history(*sent_away)) == ["failed"]
    assert kinds(history(*sent_away, *turn("B", 60, 70))) == ["safe"]


def test_fencing_tokens_have_to_grow() -> None:
    def with_fences(first: int, second: int) -> list[str]:
        lines = [*turn("A", 10, 20), *turn("B", 30, 40)]
        fences = {"A": first, "B": second}
        return kinds(
            history(*((*line[:3], {"fence": fences[line[1]]}) if line[2] == "acquired" else line for line in lines))
        )

    assert with_fences(1, 2) == ["safe"]
    assert with_fences(2, 1) == with_fences(1, 1) == ["failed"]


def test_a_loss_has_a_cause() -> None:
    def told(*causes: Line) -> list[str]:
        asked: list[Line] = [(1, "A", "asks", {"ttl_ms": 1000}), (2, "A", "entered")]
        return kinds(history(*asked, *causes, (9, "A", "lost"), *turn("B", 60, 70)))

    assert told() == told(key(3, "A", None, "a")) == told((3, "B", "asks", {"ttl_ms": 9})) == ["failed"]
    for cause in (key(3, "B", "a", None), key(3, "expiry", "a", None), (3, "server", "killed"), (3, "A", "stopped")):
        assert told(cause) == ["safe"]


def test_a_check_that_fails_is_a_finding_with_its_text() -> None:
    made = history((5, "A", "check failed", {"error": "TypeError: margin"}), *turn("A", 10, 20))
    (verdict,) = judge(made)
    assert verdict.kind == "failed" and "TypeError: margin" in verdict.sentence
    (verdict,) = judge(history((5, "lab", "broken", {"text": "could not acquire"})))
    assert verdict.kind == "failed" and verdict.sentence == "could not acquire"


def test_the_same_client_twice_is_no_overlap() -> None:
    assert kinds(history(*turn("A", 10, 20), *turn("A", 30, 40))) == ["safe"]


# ---- exclusion violated ----


def test_two_inside_at_once() -> None:
    found = judge(history(*turn("A", 10, 30), *turn("B", 20, 40)))
    assert found[0].kind == "exclusion violated"
    assert found[0].who == ("A", "B")
    assert "from 12 ms to 22 ms" in found[0].sentence  # counted from the first event, at 8 ms


def test_order_of_the_lines_does_not_matter_the_stamps_do() -> None:
    lines = [*turn("A", 10, 30), *turn("B", 20, 40)]
    assert kinds(history(*reversed(lines))) == ["exclusion violated"]


def test_one_who_never_left_is_inside_to_the_end() -> None:
    assert kinds(history((1, "A", "entered"), *turn("B", 50, 60))) == ["exclusion violated"]


def test_the_dead_are_not_inside() -> None:
    assert kinds(history((1, "A", "entered"), (5, "A", "killed"), *turn("B", 50, 60))) == ["safe"]


def test_the_stopped_are_inside() -> None:
    bad = history(
        (1, "A", "entered"),
        (5, "A", "stopped"),
        *turn("B", 50, 60),
        (70, "A", "continued"),
        (71, "A", "left"),
    )
    assert kinds(bad) == ["exclusion violated"]


def lost(since: int, noticed: int, *acts: Line) -> History:
    return history(
        (1, "A", "entered"),
        *acts,
        (noticed, "A", "lost", {"since_ns": since * MS}),
        *turn("B", 50, 60),
    )


def test_who_relied_on_its_lease_only_until_before_the_other_came_is_outside() -> None:
    good = lost(40, 70)
    assert kinds(good) == ["safe"]
    assert "A noticed by itself" in judge(good)[0].sentence


def test_but_not_if_it_acted_later_than_it_says() -> None:
    assert kinds(lost(40, 70, (55, "A", "read", {"value": 0}))) == ["exclusion violated"]


def test_nor_if_it_noticed_too_late() -> None:
    assert kinds(lost(55, 70)) == ["exclusion violated"]


def test_a_loss_cannot_be_dated_after_it_was_noticed() -> None:
    assert sections(lost(65, 45))[0].end_ns == 45 * MS


def test_who_learns_of_its_loss_before_it_does_anything_was_not_inside() -> None:
    late: list[Line] = [(50, "A", "entered"), (51, "A", "lost", {"since_ns": 20 * MS})]
    assert kinds(history(*turn("B", 30, 90), *late)) == ["safe"]
    acted: list[Line] = [
        (50, "A", "entered"),
        (51, "A", "read", {"value": 0}),
        (52, "A", "lost", {"since_ns": 20 * MS}),
    ]
    assert kinds(history(*turn("B", 30, 90), *acted)) == ["exclusion violated"]


def test_optimistic_ones_may_be_inside_together() -> None:
    lines = [*turn("A", 10, 30), *turn("B", 20, 40)]
    assert kinds(history(*lines, exclusive=False)) == ["safe"]


# ---- lost update ----


def test_two_writes_from_the_same_value() -> None:
    bad = history(*turn("A", 10, 20, 0), *turn("B", 30, 40, 0))
    (verdict,) = judge(bad)
    assert verdict.kind == "lost update"
    assert verdict.who == ("B", "A")


def test_lost_updates_count_for_optimistic_ones_too() -> None:
    assert kinds(history(*turn("A", 10, 20, 0), *turn("B", 30, 40, 0), exclusive=False)) == ["lost update"]


def test_a_refused_write_loses_nothing() -> None:
    good = history(
        *turn("A", 10, 20, 0),
        *turn("B", 30, 40),
        (35, "B", "wrote", {"base": 0, "value": 1, "accepted": False}),
    )
    (verdict,) = judge(good)
    assert verdict.kind == "safe"
    assert "refused by its fencing token" in verdict.sentence


# ---- foreign release ----


def test_removing_the_lock_of_another() -> None:
    bad = history(
        key(5, "A", None, "a"),
        *turn("A", 10, 20),
        key(24, "expiry", "a", None),
        key(28, "B", None, "b"),
        *turn("B", 30, 60),
        key(40, "A", "b", None),
    )
    (verdict,) = judge(bad)
    assert verdict.kind == "foreign release"
    assert verdict.who == ("A", "B")
    assert verdict.at_ns == 40 * MS


def test_removing_ones_own_lock_is_fine() -> None:
    assert kinds(history(key(5, "A", None, "a"), *turn("A", 10, 20), key(21, "A", "a", None))) == ["safe"]


def test_expiry_is_nobodys_deed_and_neither_is_the_lab_s() -> None:
    for by in ("expiry", "lab"):
        good = history(key(5, "A", None, "a"), *turn("A", 10, 20), key(30, by, "a", None))
        assert kinds(good) == ["safe"]


def test_tidying_up_what_nobody_was_told_to_have_is_fine() -> None:
    assert kinds(history(key(5, "A", None, "a"), key(6, "B", "a", None), *turn("C", 10, 20))) == ["safe"]


def test_after_a_takeover_the_old_holder_removes_a_foreign_lock() -> None:
    bad = history(
        key(5, "A", None, "a"),
        *turn("A", 10, 20),
        key(29, "B", "a", "b"),
        *turn("B", 30, 60),
        key(40, "A", "b", None),
    )
    assert kinds(bad) == ["foreign release"]


def test_writing_over_the_lock_of_another() -> None:
    def wrote(by: str, *before: Line) -> list[str]:
        taken = [key(5, "A", None, "a"), *turn("A", 10, 20), key(21, "A", "a", None), key(28, "B", None, "b")]
        return kinds(history(*taken, *turn("B", 30, 60), *before, key(40, by, "b", "x")))

    assert wrote("A") == ["foreign release"]
    # One that asks may find that its time is over, and take it.
    assert wrote("C", (35, "C", "asks", {"ttl_ms": 9}), (36, "C", "gave up")) == wrote("B") == ["safe"]


def test_the_dead_have_no_lock() -> None:
    assert kinds(
        history(*[key(5, "A", None, "a"), *turn("A", 10, 20)][:4], (11, "A", "killed"), key(15, "B", "a", None))
    ) == ["safe"]


def test_a_handed_over_lock_belongs_to_nobody_until_the_next_one_knows() -> None:
    good = history(key(5, "A", None, "a"), *turn("A", 10, 20), key(20, "A", "a", "b"), key(25, "B", "b", None))
    assert kinds(good) == ["safe"]


def test_a_handed_over_lock_is_somebody_s_once_he_knows() -> None:
    bad = history(
        key(5, "A", None, "a"),
        *turn("A", 10, 20),
        (15, "B", "asks"),
        key(20, "A", "a", "b"),
        (22, "B", "acquired"),
        key(25, "C", "b", None),
    )
    assert kinds(bad) == ["foreign release"]


def test_a_client_may_know_that_it_was_handed_the_lock_before_the_lab_sees_the_key() -> None:
    """A message is on its way while the lab looks; two in a row once looked as if the second release were foreign."""
    asked: list[Line] = [(2, "B", "asks", {"ttl_ms": 1000}), (3, "C", "asks", {"ttl_ms": 1000})]
    first = [key(5, "A", None, "a"), *turn("A", 10, 20), (21, "B", "acquired"), key(22, "A", "a", "b")]
    good = [*first, (30, "B", "releases"), (31, "C", "acquired"), key(32, "B", "b", "c"), (33, "B", "released")]
    assert kinds(history(*asked, *good, (40, "C", "releases"), key(41, "C", "c", None))) == ["safe"]
    assert kinds(history(*asked, *good, key(35, "A", "c", None))) == ["foreign release"]
    assert kinds(history(*asked, *first, key(25, "C", "b", None))) == ["foreign release"]


def test_a_minority_s_keys_are_not_the_winner_s() -> None:
    good = history(
        (1, "A", "asks"),
        (1, "B", "asks"),
        key(2, "B", None, "b"),  # on this server B was faster, A has the others
        (3, "A", "acquired"),
        key(5, "B", "b", None),
    )
    assert kinds(good) == ["safe"]


def test_the_key_of_something_else_is_no_lock() -> None:
    good = history(
        key(5, "A", None, "x", "queue"),
        *turn("A", 10, 20),
        key(15, "B", "x", None, "queue"),
        lock_keys=("lock",),
    )
    assert kinds(good) == ["safe"]


def test_where_the_lock_s_key_is_unknown_every_type_counts() -> None:
    def made(kind: str, *between: Line) -> list[str]:
        lines = [key(5, "A", None, "x", "k", type=kind), *turn("A", 10, 20), *between]
        return kinds(history(*lines, key(15, "B", "x", None, "k", type=kind), lock_keys=()))

    assert made("string") == made("hash") == made("zset") == ["foreign release"]
    # A queue is no one's alone.
    assert made("zset", key(12, "B", "x", "x y", "k", type="zset")) == ["safe"]


def test_what_a_release_makes_wakes_a_waiter_and_is_no_lock() -> None:
    signalled = [(4, "B", "asks"), (5, "A", "releases"), key(6, "A", None, "1", "signal"), (7, "A", "released")]
    got = [(8, "B", "acquired"), (9, "B", "entered"), key(10, "C", "1", None, "signal"), (20, "B", "left")]
    assert kinds(history(*signalled, *got, lock_keys=())) == ["safe"]


# ---- stuck, unavailable ----


def waiting(until: int, ttl_ms: int, *more: Line) -> History:
    return history(
        (1, "A", "asks", {"ttl_ms": 1000}),
        (2, "A", "acquired"),
        (3, "A", "entered"),
        (10, "A", "killed"),
        (20, "B", "asks", {"ttl_ms": 30_000}),
        (until - 1, "B", "refused"),
        (until, "B", "gave up"),
        (until, "server", "left over", {"key": "lock", "value": "1", "ttl_ms": ttl_ms}),
        *more,
    )


def test_nobody_can_ever_acquire_again() -> None:
    (verdict,) = judge(waiting(5000, -1))
    assert verdict.kind == "blocked forever"
    assert "lock = 1" in verdict.sentence
    assert verdict.who == ("B",)


def test_a_key_that_will_go_blocks_for_its_ttl() -> None:
    (verdict,) = judge(waiting(5000, 800))
    assert verdict.kind == "blocked for its ttl"
    assert "0.8 s more" in verdict.sentence


def test_a_key_that_every_attempt_renews_blocks_forever() -> None:
    renewed = (3000, "server", "prolonged", {"key": "lock", "by": "B", "ttl_ms": 30_000})
    (verdict,) = judge(waiting(5000, 800, renewed))
    assert verdict.kind == "blocked forever"
    assert "each attempt renews" in verdict.sentence


def test_the_ttl_of_one_who_was_killed_is_the_price_of_a_lease() -> None:
    assert kinds(waiting(5000, 800, (1005, "B", "acquired"), (1006, "B", "entered"))) == ["safe"]


def free(*more: Line) -> History:
    """A has got an error and does not hold; B asks."""
    return history(
        (1, "A", "asks", {"ttl_ms": 3000}),
        (900, "A", "failed", {"doing": "acquire"}),
        (1000, "B", "asks", {"ttl_ms": 30_000}),
        *more,
    )


def test_who_gets_in_only_when_the_key_of_one_who_does_not_hold_has_expired_was_blocked() -> None:
    (verdict,) = judge(free(key(3001, "expiry", "a", None), (3050, "B", "acquired"), (3051, "B", "entered")))
    assert verdict.kind == "blocked for its ttl"
    assert "2.0 s" in verdict.sentence
    assert verdict.who == ("B",)


def test_the_same_without_a_key_that_expires() -> None:
    assert kinds(free((3050, "B", "acquired"), (3051, "B", "entered"))) == ["blocked for its ttl"]


def test_who_asks_again_and_again_was_not_blocked_while_it_did_not_ask() -> None:
    got_in = (3050, "B", "acquired"), (3051, "B", "entered")
    assert kinds(free((1001, "B", "refused"), (1500, "B", "refused"), *got_in)) == ["blocked for its ttl"]
    early = history(
        (1, "A", "asks", {"ttl_ms": 3000}),
        (2, "A", "acquired"),
        (100, "B", "asks", {"ttl_ms": 30_000}),
        (101, "B", "refused"),
        (1900, "A", "released"),
        *got_in,
    )
    assert kinds(early) == ["safe"]


def test_who_needs_long_for_a_free_lock_is_slow_however_often_it_tried() -> None:
    def got_in(tries: int, at: int) -> History:
        refused = [(1100 + n, "B", "refused") for n in range(tries)]
        return history(
            (1, "A", "asks", {"ttl_ms": 30_000}),
            (900, "A", "failed", {"doing": "acquire"}),
            (1000, "B", "asks", {"ttl_ms": 30_000}),
            *refused,
            (at, "B", "acquired"),
        )

    assert kinds(got_in(9, 3500)) == kinds(got_in(1, 3500)) == kinds(got_in(0, 3500)) == ["slow"]
    assert kinds(got_in(9, 2500)) == ["safe"]


def test_a_ttl_kept_no_one_out_when_its_key_had_been_deleted() -> None:
    asked: list[Line] = [(1, "A", "asks", {"ttl_ms": 3000}), key(2, "A", None, "a"), (900, "A", "failed")]
    got_in: list[Line] = [(1000, "B", "asks", {"ttl_ms": 30_000}), (2600, "B", "acquired")]
    assert kinds(history(*asked, *got_in)) == ["blocked for its ttl"]
    assert kinds(history(*asked, key(899, "A", "a", None), *got_in)) == ["safe"]


def test_who_hangs_in_its_call_is_blocked_forever() -> None:
    hangs = history((1, "A", "asks", {"ttl_ms": 1000}), (5000, "A", "gave up", {"forced": True}))
    (verdict,) = judge(hangs)
    assert verdict.kind == "blocked forever"
    assert "never came back" in verdict.sentence


def test_while_a_server_is_down_or_a_holder_stopped_nobody_is_blocked() -> None:
    down = [(1001, "server", "killed"), (3040, "server", "started")]
    assert kinds(free(*down, (3050, "B", "acquired"))) == ["safe"]
    stopped = [(950, "A", "stopped"), (3040, "A", "continued")]
    assert kinds(free(*stopped, (3050, "B", "acquired"))) == ["safe"]


def test_a_ttl_that_was_over_in_time_but_seen_late_blocked_no_one() -> None:
    seen = (2901, "server", "key", {"key": "lock", "by": "expiry", "was": "a", "now": None, "over_ns": 1050 * MS})
    quick: list[Line] = [
        (1, "A", "asks", {"ttl_ms": 1000}),
        (900, "A", "failed"),
        (1000, "B", "asks", {"ttl_ms": 30_000}),
    ]
    assert kinds(history(*quick, seen, (2950, "B", "acquired"))) == ["safe"]
    unaware = (3001, "server", "key", {"key": "lock", "by": "expiry", "was": "a", "now": None})
    assert kinds(history(*quick, unaware, (3050, "B", "acquired"))) == ["blocked for its ttl"]


def test_who_was_stopped_itself_was_not_blocked() -> None:
    stopped = [(1001, "B", "stopped"), (3040, "B", "continued")]
    assert kinds(free(*stopped, (3050, "B", "acquired"))) == ["safe"]


def test_a_refused_write_is_no_act() -> None:
    late = (60, "A", "wrote", {"base": 0, "value": 1, "accepted": False})
    assert kinds(lost(40, 70, late)) == ["safe"]


def test_nor_one_that_was_not_waited_for() -> None:
    assert kinds(waiting(1500, -1)) == ["safe"]


def test_nor_while_another_may_be_holding() -> None:
    assert kinds(waiting(5000, -1, (15, "C", "asks", {"ttl_ms": 9}), (16, "C", "acquired"))) == ["safe"]


def fault(*more: Line) -> History:
    return history(
        (1, "lab", "fault", {"text": "stopped", "lasting": True}),
        (10, "A", "asks", {"ttl_ms": 1000}),
        (50, "A", "refused"),
        *more,
        (900, "lab", "healed"),
        *turn("B", 1000, 1010),
    )


def test_nobody_acquired_while_the_fault_lasted() -> None:
    (verdict,) = judge(fault())
    assert verdict.kind == "unavailable"
    assert verdict.who == ("A",)


def test_one_acquisition_is_enough() -> None:
    assert kinds(fault((60, "A", "acquired"), (61, "A", "entered"), (70, "A", "left"))) == ["safe"]


def test_waiting_for_a_holder_is_not_unavailability() -> None:
    assert kinds(fault((0, "C", "entered"))) != ["unavailable"]
    assert "unavailable" not in kinds(fault((0, "C", "entered"), (950, "C", "left")))


def test_a_momentary_fault_makes_nothing_unavailable() -> None:
    made = fault()
    made.events[0] = type(made.events[0])(1 * MS, "lab", "fault", {"text": "x", "lasting": False})
    assert kinds(made) == ["safe"]


# ---- the rest ----


def test_the_worst_comes_first() -> None:
    bad = history(*turn("A", 10, 30, 0), *turn("B", 20, 40, 0))
    assert kinds(bad) == ["exclusion violated", "lost update"]
    assert worst(judge(bad)) == "exclusion violated"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_sign_of_its_own(kind: str) -> None:
    assert MARKS[kind]
    assert len(set(MARKS.values())) == len(MARKS)
