"""The checker of histories convicts: each rule by a history that is wrong by one event, beside its right twin."""

from __future__ import annotations

import ast
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.imports import ROOT
from verify.check import Verdict, check

CHECKER = ROOT / "verify" / "check.py"
S = 1_000_000_000
RULES = ("exclusion", "fencing", "register", "told", "order", "clean", "progress")
HEADER: dict[str, Any] = {
    "format": "lock-history",
    "version": 1,
    "overtake": 1,
    "progress_s": 5.0,
    "rows": [55],
    "promises": list(RULES),
    "locks": {"a": {"kind": "lock"}, "r": {"kind": "rwlock"}, "s": {"kind": "semaphore", "permits": 2}},
}
Event = dict[str, Any]


def lease(p: str, op: int, asked: float, got: float, left: float, token: int | None, **more: Any) -> list[Event]:
    """One acquisition, in s; it is trusted for 10 s, and released."""
    own = {"p": p, "op": op, "lock": more.get("lock", "a")}
    return [
        {**own, "t": asked, "e": "ask", "do": "acquire", "mode": more.get("mode", "exclusive")},
        {**own, "t": got, "e": "got", "token": token, "until": more.get("until", got + 10)},
        {**own, "t": left, "e": "ask", "do": "release"},
        {**own, "t": left + 0.1, "e": "released", "ok": True},
    ]


def write(p: str, op: int, t: float, token: int, value: str, **more: Any) -> Event:
    return {"t": t, "p": p, "op": op, "e": "write", "lock": "a", "token": token, "value": value, "ok": True, **more}


END: list[Event] = [{"t": 90, "p": "rig", "e": "left", "keys": []}]
#: Two clients take turns, and write to the resource.
TURNS = [*lease("w1.1", 1, 1, 2, 4, 10), *lease("w2.1", 1, 3, 5, 7, 11), write("w1.1", 1, 3, 10, "x"), *END]
READERS = [
    *lease("w1.1", 1, 1, 2, 6, 10, lock="r", mode="shared"),
    *lease("w2.1", 1, 1, 3, 5, 11, lock="r", mode="shared"),
]
PERMITS = [
    event
    for number in (1, 2, 3)
    for event in lease(f"w{number}.1", 1, 1, number + 1, number + 2.9, None, lock="s", mode={"permits": 1})
]
#: w1 stands in the queue when w3 asks for two more turns. It dies with its lease.
QUEUE = [
    *lease("w1.1", 1, 1, 1.1, 1.2, 10),
    *lease("w3.1", 1, 1, 1.5, 1.6, 11),
    *lease("w2.1", 1, 1, 1.7, 20, 12),
    *lease("w1.1", 2, 10, 20.2, 20.25, 13, until=20.25)[:2],
    {"t": 10.1, "p": "w1.1", "op": 2, "lock": "a", "e": "queued"},
    *lease("w3.1", 2, 11, 20.3, 20.4, 15),
    *lease("w3.1", 3, 20.5, 20.6, 20.7, 20),
]


def changed(events: list[Event], at: int, **how: Any) -> list[Event]:
    """The same with one event that is different."""
    return [{**event, **how} if index == at else event for index, event in enumerate(events)]


def judged(path: Path, events: list[Event], **header: Any) -> Verdict:
    in_ns = [
        {
            key: int(value * S) if key in ("t", "until", "to", "from") and value is not None else value
            for key, value in each.items()
        }
        for each in events
    ]
    path.write_text("\n".join(map(json.dumps, [{**HEADER, **header}, *in_ns])))
    return check(str(path))


#: The first one never says that it leaves, and does not trust its lease when the second one comes.
EXPIRED = changed([TURNS[0], {**TURNS[1], "until": 3}, *TURNS[4:]], 3, t=3.5, until=13.5)
#: The second one comes late, and stays long.
WAITED = [*lease("w1.1", 1, 1, 2, 4, 10), *lease("w2.1", 1, 3, 5, 22, 11)]
#: The second one gives up.
GIVEN_UP = [*TURNS[:5], {"t": 8, "p": "w2.1", "op": 1, "lock": "a", "e": "not", "why": "timeout"}]
UNFENCED = [{**event, "token": None} if "token" in event else event for event in TURNS]
#: By rule: what is right, and the same with one event that is wrong.
PAIRS: dict[str, tuple[list[Event], list[Event]]] = {
    "exclusion": (TURNS, changed(TURNS, 5, t=3.5, until=13.5)),
    "exclusion of a writer": (READERS, changed(READERS, 4, mode="exclusive")),
    "exclusion by permits": (PERMITS, changed(PERMITS, 9, t=3.5)),
    "exclusion until the end": (EXPIRED, changed(EXPIRED, 1, until=12)),
    "fencing": (changed(TURNS, 4, t=1.5), changed(changed(TURNS, 4, t=1.5), 5, token=10)),
    "fencing after a grant": (TURNS, changed(TURNS, 5, token=9)),
    "register": ([*TURNS, write("w2.1", 1, 6, 11, "y")], [*TURNS, write("w2.1", 1, 2.9, 11, "y")]),
    "register refuses": (
        [*TURNS, write("w2.1", 1, 6, 11, "y"), write("w1.1", 1, 8, 10, "z", ok=False)],
        [*TURNS, write("w2.1", 1, 6, 11, "y"), write("w1.1", 1, 8, 10, "z", ok=True)],
    ),
    "register gives back": (
        [*TURNS, write("w2.1", 1, 6, 11, "x", e="read")],
        [*TURNS, write("w2.1", 1, 6, 11, "old", e="read")],
    ),
    "register by grants": (
        [
            *UNFENCED,
            {**write("w2.1", 1, 6, 0, "y"), "token": None},
            {**write("w1.1", 1, 6.5, 0, "z", ok=False), "token": None},
        ],
        [*UNFENCED, {**write("w2.1", 1, 6, 0, "y"), "token": None}, {**write("w1.1", 1, 6.5, 0, "z"), "token": None}],
    ),
    "told": (
        [*TURNS, {"t": 3.9, "p": "w1.1", "op": 1, "lock": "a", "e": "trust", "until": 12}],
        [
            *TURNS,
            {"t": 3.5, "p": "w1.1", "op": 1, "lock": "a", "e": "lost"},
            {"t": 3.9, "p": "w1.1", "op": 1, "lock": "a", "e": "trust", "until": 12},
        ],
    ),
    "told it was released": (
        changed(TURNS, 1, until=3),
        changed(changed(TURNS, 1, until=3), 5, t=3.5, until=13.5),
    ),
    "order": (QUEUE, changed(QUEUE, 13, t=21, until=21.1)),
    "clean": (TURNS, changed(TURNS, len(TURNS) - 1, keys=["holdfast:{a}"])),
    "progress to the end": (GIVEN_UP, changed(GIVEN_UP, 5, t=10)),
    "progress": (WAITED, changed(WAITED, 5, t=11, until=21)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_history_that_is_wrong_by_one_event_is_convicted_by_its_rule(tmp_path: Path, name: str) -> None:
    right, wrong = PAIRS[name]
    rule = name.partition(" ")[0]
    holds = judged(tmp_path / "right.jsonl", right)
    assert holds.violations == []
    convicted = judged(tmp_path / "wrong.jsonl", wrong)
    assert rule in {each for each, _ in convicted.violations}, convicted.violations
    silent = judged(tmp_path / "silent.jsonl", wrong, promises=[each for each in RULES if each != rule])
    assert rule not in {each for each, _ in silent.violations}, "it was not promised"


def test_each_rule_is_tried_by_one_event() -> None:
    assert {name.partition(" ")[0] for name in PAIRS} == set(RULES)
    for right, wrong in PAIRS.values():
        here, there = Counter(map(json.dumps, right)), Counter(map(json.dumps, wrong))
        assert max((here - there).total(), (there - here).total()) == 1


def test_a_violation_names_both(tmp_path: Path) -> None:
    ((_, text),) = [each for each in judged(tmp_path / "h", PAIRS["exclusion"][1]).violations if each[0] == "exclusion"]
    assert "w1.1#1" in text and "w2.1#1" in text


def test_an_overlap_that_an_admitted_fault_explains_is_documented(tmp_path: Path) -> None:
    wrong = PAIRS["exclusion"][1]
    for row, violations, documented in ((55, 0, 1), (None, 1, 0), (1, 1, 0)):
        fault = {"t": 2.5, "to": 2.6, "e": "fault", "kind": "flush", "row": row}
        verdict = judged(tmp_path / "h", [*wrong, fault], promises=["exclusion"])
        assert (len(verdict.violations), verdict.documented) == (violations, documented)


def _permit(p: str, asked: float, got: float) -> list[Event]:
    return lease(p, 1, asked, got, 6, None, lock="s", mode={"permits": 1})


@pytest.mark.parametrize(
    ("since", "violations", "documented"),
    [
        ((2.6, 2.6), 0, 2),  # two that were let in after the fault; the first does not know yet that it has lost
        ((2.6, 2.6, 2.6), 1, 3),  # three after it
        ((1, 2.6, 2.6), 0, 5),  # two that do not know
        ((1, 1), 0, 2),  # two that were asked for before it: one of them, or the first, may have been let in and lost
    ],
)
def test_permits_that_a_fault_took_away_are_not_counted(
    tmp_path: Path, since: tuple[float, ...], violations: int, documented: int
) -> None:
    stale = _permit("w0.1", 1, 2)
    others = [event for at, asked in enumerate(since, 1) for event in _permit(f"w{at}.1", asked, 3 + at / 10)]
    fault = {"t": 2.5, "to": 2.5, "e": "fault", "kind": "flush", "row": 55}
    verdict = judged(tmp_path / "h", [*stale, *others, fault], promises=["exclusion"])
    assert (len(verdict.violations), verdict.documented) == (violations, documented)
    verdict = judged(tmp_path / "h", [*stale, *others, fault | {"row": None}], promises=["exclusion"])
    assert len(verdict.violations) == len(since) - 1


#: One client begins with one grant; another one is let in after a fault; the first client takes its lease again.
AGAIN = [
    *lease("w1.1", 1, 1, 2, 3, 10),
    *lease("w2.1", 1, 4, 5, 7, 50),
    *lease("w1.2", 2, 7.5, 8, 9, 11),
    write("w2.1", 1, 6, 50, "y"),
    write("w1.2", 2, 8.5, 11, "z", ok=False),
    *END,
]


@pytest.mark.parametrize(
    ("at", "changes", "violations"),
    [
        (4.5, {}, []),
        (0.5, {}, ["fencing"]),  # before its grant
        (5.5, {}, ["fencing"]),  # after the other one was let in
        (4.5, {"token": 12}, ["fencing"]),  # of another grant
    ],
)
def test_what_is_taken_again_after_a_loss_of_data_may_be_behind(
    tmp_path: Path, at: float, changes: Event, violations: list[str]
) -> None:
    fault = {"t": at, "to": at, "e": "fault", "kind": "flush all", "row": 55}
    verdict = judged(tmp_path / "h", [*changed(AGAIN, 9, **changes), fault])
    assert [rule for rule, _ in verdict.violations if rule != "register"] == violations
    assert verdict.documented == (not violations)


def test_a_later_grant_of_another_client_may_not_be_behind(tmp_path: Path) -> None:
    fault = {"t": 4.5, "to": 4.5, "e": "fault", "kind": "flush all", "row": 55}
    another = [{**each, "p": "w3.1"} if each.get("p") == "w1.2" else each for each in AGAIN]
    verdict = judged(tmp_path / "h", [*another, fault])
    assert [rule for rule, _ in verdict.violations] == ["fencing"]


def test_what_a_killed_holder_held_is_not_trusted_any_more(tmp_path: Path) -> None:
    killed = [event for event in PAIRS["exclusion"][1] if event["t"] not in (4, 4.1)]
    killed.append({"t": 3.4, "p": "w1", "e": "end"})
    assert judged(tmp_path / "h", killed, promises=["exclusion"]).violations == []


@pytest.mark.parametrize("rule", RULES)
def test_what_was_not_there_was_not_judged(tmp_path: Path, rule: str) -> None:
    only = [{"t": 1, "p": "w1.1", "op": 1, "lock": "a", "e": "ask", "do": "acquire", "mode": "exclusive"}]
    assert judged(tmp_path / "h", only).judged[rule] == 0


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "line"),
        (['{"format": "lock-history", "version": 1, "promises": [], "locks": {}}'], "line"),
        (['{"format": "other", "version": 1}', "{}"], "line"),
        ([json.dumps(HEADER), '{"t": 1, "e": "got", "p": "w1", "op": 1, "until": 2, "token": 1}'], "line 2"),
        ([json.dumps(HEADER), '{"t": 1, "e": "left", "keys": []}', "{cut"], "line 3"),
        ([json.dumps(HEADER), '{"t": 1, "e": "dances", "p": "w1", "op": 1}'], "line 2"),
    ],
)
def test_what_is_no_history_is_refused_with_its_line(tmp_path: Path, lines: list[str], said: str) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match=said):
        check(str(path))


def _random_history(rng: random.Random) -> list[Event]:
    """Clients that take turns, as a right lock lets them."""
    events: list[Event] = []
    now, granted, token = 1.0, 1.0, 100
    for number in range(30):
        asked, got = granted - 0.1, now + 0.01  # while the one before it waits, too
        left = got + rng.random() * 3
        worker, token = f"w{rng.randrange(4)}.{number}", token + rng.randrange(1, 5)
        events += lease(worker, number, asked, got, left, token)
        events.append(write(worker, number, got + (left - got) / 2, token, f"v{number}"))
        now, granted = left + 0.11, got
    return [*events, *END]


@pytest.mark.parametrize("seed", range(20))
def test_right_histories_hold_and_their_corruptions_do_not(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    events = _random_history(rng)
    assert judged(tmp_path / "h", events).violations == []
    grants = [at for at, event in enumerate(events) if event["e"] == "got"][1:]
    at = rng.choice(grants)
    before = events[at - 5]  # the grant before it
    early = changed(events, at, t=before["t"] + 0.001)
    assert "exclusion" in {rule for rule, _ in judged(tmp_path / "h", early).violations}
    twin = changed(events, at, token=before["token"])
    assert "fencing" in {rule for rule, _ in judged(tmp_path / "h", twin).violations}


def test_the_checker_is_short_and_knows_nothing_of_the_project() -> None:
    text = CHECKER.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    names = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


#: The checker with one comparison weakened: what is replaced, and by what.
WEAKENED = [
    ("max(each.trusted_to, each.leaves if each.ok else 0) > second.got", "False"),
    ("min(each.trusted_to, second.trusted_to) > second.got", "each.trusted_to > second.got + 10**9"),
    ('"exclusive" in (each.mode, second.mode)', "each.mode == second.mode == 'exclusive'"),
    ('> kind["permits"]', '> kind["permits"] + 1'),
    ("each.ok and each.leaves > second.got < second.trusted_to", "False"),
    ("other is None or other.token < lease.token", "True"),
    ("twin is lease", "True"),
    ('event["ok"] == (mark >= newest[lock][0])', "True"),
    ('event["value"] == value.get(lock)', "True"),
    ("lease.lost > at", "True"),
    ("len(over) <= most", "len(over) <= most + 1"),
    ('not left["keys"]', "True"),
    ("waited_s <= bound_s", "waited_s <= 2 * bound_s"),
    ("(*granted, *gave_up)", "granted"),
    ("return min(self.until, self.leaves, self.lost, self.ended)", "return min(self.leaves, self.lost, self.ended)"),
]


@pytest.mark.parametrize(("old", "new"), WEAKENED, ids=[new for _, new in WEAKENED])
def test_a_weaker_checker_is_noticed(tmp_path: Path, old: str, new: str) -> None:
    text = CHECKER.read_text(encoding="utf-8")
    assert text.count(old) == 1
    weak: dict[str, Any] = {"__name__": "weak"}
    exec(compile(text.replace(old, new), "weak", "exec"), weak)
    noticed = False
    for name, (right, wrong) in PAIRS.items():
        rule = name.partition(" ")[0]
        judged(tmp_path / "right.jsonl", right)
        judged(tmp_path / "wrong.jsonl", wrong)
        noticed |= weak["check"](str(tmp_path / "right.jsonl")).violations != []
        noticed |= rule not in {each for each, _ in weak["check"](str(tmp_path / "wrong.jsonl")).violations}
    assert noticed
