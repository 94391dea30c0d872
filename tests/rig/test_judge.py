"""The rig's judge can find someone guilty."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rig.checker import judge
from rig.crew import judge_end, that_count
from rig.history import Fault, Grant, History, Log
from rig.resource import Resource, Writer
from rig.trace import Trace
from rig.watch import HUNG

MS = 1_000_000


def grant(
    ident: str, fence: int | None, start_ms: int, end_ms: int, until_ms: int | None = None, lock: str = "a"
) -> Grant:
    return Grant(
        ident,
        ident[0],
        lock,
        fence,
        (start_ms - 5) * MS,
        start_ms * MS,
        None if until_ms is None else until_ms * MS,
        end_ns=end_ms * MS,
        seen_ns=end_ms * MS,
    )


def test_turns_are_fine() -> None:
    verdict = judge(History([grant("a1", 1, 100, 200, 2100), grant("b1", 2, 201, 300, 2201)]))
    assert (verdict.violations, verdict.documented, verdict.bodies, verdict.disorder) == ([], [], 0, [])


def test_two_valid_leases_are_a_violation() -> None:
    verdict = judge(History([grant("a1", 1, 100, 200, 2100), grant("b1", 2, 199, 300, 2200)]))
    assert [(str(each.first.ident), each.second.ident) for each in verdict.violations] == [("a1", "b1")]


def test_other_locks_do_not_matter() -> None:
    verdict = judge(History([grant("a1", 1, 100, 200, 2100), grant("b1", 2, 150, 300, 2200, lock="b")]))
    assert verdict.violations == []


def test_a_lease_that_was_relied_on_beyond_a_long_stay_is_found() -> None:
    stays = [grant("a1", 1, 100, 5000, 5000), *(grant(f"b{n}", n, n * 100, n * 100 + 50, n * 100 + 60) for n in (2, 3))]
    assert len(judge(History(stays)).violations) == 2


def test_a_body_that_goes_on_beyond_its_validity_is_counted_apart() -> None:
    verdict = judge(History([grant("a1", 1, 100, 900, 500), grant("b1", 2, 600, 700, 2600)]))
    assert verdict.violations == []
    assert verdict.bodies == 1


def test_without_a_limit_the_body_is_the_validity() -> None:
    verdict = judge(History([grant("a1", None, 100, 900), grant("b1", None, 600, 700)]))
    assert len(verdict.violations) == 1


def test_what_a_documented_fault_took_away_is_told_apart() -> None:
    stays = [grant("a1", 1, 100, 900, 2100), grant("b1", 2, 600, 700, 2600)]
    lost = Fault("restart empty", 500 * MS, 550 * MS, 46)
    verdict = judge(History(stays, [lost]))
    assert verdict.violations == []
    assert [each.because for each in verdict.documented] == [lost]
    too_early = Fault("restart empty", 50 * MS, 60 * MS, 46)
    too_late = Fault("restart empty", 650 * MS, 660 * MS, 46)
    harmless = Fault("partition", 500 * MS, 550 * MS, None)
    for other in (too_early, too_late, harmless):
        assert len(judge(History(stays, [other])).violations) == 1, other


def test_fencing_tokens_that_do_not_grow_are_found() -> None:
    assert judge(History([grant("a1", 7, 100, 200, 300), grant("b1", 6, 400, 500, 600)])).disorder
    assert judge(History([grant("a1", 7, 100, 200, 300), grant("b1", 7, 400, 500, 600)])).disorder
    crossed = [grant("a1", 8, 100, 200, 300), grant("b1", 7, 102, 500, 600)]  # asked for before the other was told
    assert not judge(History(crossed)).disorder


def test_the_wait_after_a_healing_is_found() -> None:
    stays = [grant("a1", 1, 100, 200, 300), grant("b1", 2, 9000, 9100, 9200), grant("c1", 1, 1000, 1100, 1200, "b")]
    stays[1].asked_ns = 250 * MS
    healing = [Fault("partition", 300 * MS, 500 * MS, None)]
    verdict = judge(History(stays, healing))
    assert verdict.longest_wait_s == 0.005, "at the other lock no one asked before"
    assert verdict.longest_wait_at_a_lock_s == 8.5
    assert verdict.longest_after == "partition"
    stays[1].asked_ns = 8995 * MS
    assert judge(History(stays, healing)).longest_wait_at_a_lock_s == 0.005
    tried = [("a", 2000 * MS, 7000 * MS)]
    assert judge(History(stays, healing, tried)).longest_wait_at_a_lock_s == 7.0, "someone else asked in vain"
    stays[0].end_ns = 8000 * MS
    assert judge(History(stays, healing, tried)).longest_wait_at_a_lock_s <= 1.0, "it was held for most of the time"
    assert judge(History(stays[:1], healing, [("a", 8000 * MS, 9500 * MS)])).longest_wait_at_a_lock_s == 0


def test_a_wait_for_a_lock_of_a_life_of_its_own_is_left_to_its_watch() -> None:
    """It has a long ttl, for which a client that was closed while its server hung leaves it."""
    healing = [Fault("stop the master", 1000 * MS, 2000 * MS, None)]

    def longest_s(lock: str) -> float:
        stays = [grant("a1", 1, 100, 200, 2100, lock), grant("b1", 2, 48_000, 48_010, 50_000, lock)]
        tried = [(lock, 2000 * MS, 47_000 * MS)]
        return judge(History(stays, healing, tried)).longest_wait_at_a_lock_s

    assert longest_s("a") > 40
    assert longest_s("own-L1t-0") == 0


def test_a_process_that_does_not_run_has_more_time() -> None:
    """Stopped, or on a machine that is busy with others: the watch counts what it had."""
    program = (
        "import time\n"
        "from rig.watch import Watch\n"
        "watch, begun = Watch(print), time.monotonic()\n"
        "print('ready', flush=True)\n"
        "input()\n"
        "time.sleep(0.3)\n"
        "print(time.monotonic() - begun - watch.now_s)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.0)
        process.send_signal(signal.SIGCONT)
        said, _ = process.communicate("\n", timeout=30)
    assert float(said) > 0.85, "s that it was stopped for, and are not counted"


def test_a_history_is_read_up_to_the_line_that_was_cut(tmp_path: Path) -> None:
    lines = [
        ["granted", "w.1", "a", 3, 1, 2, 50],
        ["valid", "w.1", 10, 60],
        ["wrote", "w.1", 11, True],
        ["left", "w.1", 20],
        ["failed", "a", 20, 21, "ServerError"],
        ["error", "release", "LeaseLost"],
        ["granted", "w.2", "a", 4, 21, 22, 90],
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines) + '["left","w.2'
    (tmp_path / "w.log").write_text(text)
    history = History.read([tmp_path / "w.log"])
    first, second = history.grants
    assert (first.fence, first.valid_to_ns, first.inside_to_ns) == (3, 20, 20)
    assert second.end_ns is None
    assert second.valid_to_ns == 22, "after its last sign of life nothing is claimed for it"
    assert history.errors == {"acquire: ServerError": 1, "release: LeaseLost": 1}
    assert history.failed == [("a", 20, 21)]


def test_the_resource_refuses_what_is_stale(tmp_path: Path) -> None:
    with Resource(tmp_path / "r") as resource:
        one, two = Writer(str(resource.path)), Writer(str(resource.path))
        assert one.write("a", 5, 100)
        assert two.write("a", 6, 200)
        assert not one.write("a", 5, 100)
        assert one.write("b", 5, 100)
        assert (resource.accepted, resource.refused, resource.stale_accepted) == (3, 1, 0)
        assert one.write("c", None, 100)
        assert two.write("c", None, 200)
        assert one.write("c", None, 100), "nothing to refuse it by"
        assert resource.stale_accepted == 1
        one.close()
        two.close()


def test_readers_may_be_inside_together_and_not_with_a_writer() -> None:
    readers = [grant("a1", 1, 100, 200, 2100), grant("b1", 1, 150, 300, 2200)]
    for reader in readers:
        reader.mode = "shared"
    assert judge(History(readers)).violations == []
    writer = grant("c1", 2, 250, 280, 2300)
    assert len(judge(History([*readers, writer])).violations) == 1


def test_permits_are_counted() -> None:
    stays = [grant(f"{name}1", number, 100 + number, 200, 2100) for number, name in enumerate("abc")]
    for stay in stays:
        stay.mode = (1, 3)
    assert judge(History(stays)).violations == []
    stays[0].mode = (2, 3)
    assert judge(History(stays)).violations, "two and one and one are more than three"
    stays[0].end_ns = 101 * MS
    assert judge(History(stays)).violations == []


def test_what_lives_have_to_say_is_read(tmp_path: Path) -> None:
    lines = [
        ["counts", {"a fork amid busy threads": 2}, {"plain": 5}],
        ["counts", {"a fork amid busy threads": 1}, {"plain": 1, "block": 2}],
        ["granted", "w.1", "s", 3, 1, 2, 50, [2, 3]],
        ["broken", "block hangs"],
        ["memory", 20.0, 21.5],
    ]
    (tmp_path / "L1t.log").write_text("".join(json.dumps(line) + "\n" for line in lines))
    history = History.read([tmp_path / "L1t.log"])
    assert history.played == {"a fork amid busy threads": 3}
    assert history.did == {"plain": 6, "block": 2}
    assert history.grants[0].mode == (2, 3)
    assert history.broken == ["L1t: block hangs"]
    assert history.memory_mb == (20.0, 21.5)


@pytest.mark.parametrize(
    "status, way, text, fine",
    [
        (0, "return", "", True),
        (3, "sys.exit", "", True),
        (0, "sys.exit", "", False),
        (None, "return", "", False),
        (0, "return", "Exception in thread holdfast-watchdog:\nTraceback (most recent call last):\n", False),
        (0, "without close()", "Task was destroyed but it is pending!\n", False),
        (0, "return", "sys:1: RuntimeWarning: coroutine 'x' was never awaited\n", False),
        (
            1,
            "an exception",
            'Traceback (most recent call last):\n  File "a"\nrig.exits._Ended: the end of a life\n',
            True,
        ),
        (1, "an exception", 'Traceback (most recent call last):\n  File "a"\nKeyError: 1\n', False),
        (-2, "SIGINT", 'Traceback (most recent call last):\n  File "a"\nKeyboardInterrupt\n', True),
        (
            -2,
            "SIGINT",
            'Traceback (most recent call last):\n  File "a"\nIndexError: pop from empty list\n\n'
            "During handling of the above exception, another exception occurred:\n\n"
            'Traceback (most recent call last):\n  File "a"\nKeyboardInterrupt\n',
            True,
        ),
        (
            -2,
            "SIGINT",
            'Traceback (most recent call last):\n  File "a"\nIndexError: pop from empty list\n'
            'Traceback (most recent call last):\n  File "a"\nKeyboardInterrupt\n',
            False,
        ),
        (-6, "SIGKILL", "", False),
    ],
)
def test_ends_are_judged(status: int | None, way: str, text: str, fine: bool) -> None:
    assert (list(judge_end(status, way, text)) == []) is fine


def test_a_coroutine_that_an_exception_left_unstarted_is_no_noise() -> None:
    text = (
        "Exception ignored in: <coroutine object release at 0x7f>\nTraceback (most recent call last):\n"
        '  File "warnings.py", line 537, in _warn_unawaited_coroutine\n    warn(msg)\n'
        "RuntimeWarning: coroutine 'release' was never awaited\n"
    )
    assert list(judge_end(0, "return", text, unstarted=True)) == []
    assert list(judge_end(0, "return", text))
    assert list(judge_end(0, "return", text + "KeyError: 1\n", unstarted=True))


@pytest.mark.parametrize("status", [90, None])
def test_an_exit_that_a_finalizer_has_swallowed_is_python_s(status: int | None) -> None:
    ignored = "Exception ignored in: <function Lease.__del__ at 0x7f>\nTraceback (most recent call last):\n  File 1\n"
    text = f"{ignored}SystemExit: 3\n"
    assert list(judge_end(status, "SIGTERM with sys.exit", text)) == []
    assert list(judge_end(status, "return", text))
    assert list(judge_end(status, "SIGTERM with sys.exit", f"{ignored}KeyError: 3\n"))
    assert list(judge_end(status, "SIGTERM with sys.exit", text + "Traceback (most recent call last):\n"))


def test_what_hangs_is_told_with_its_stack(tmp_path: Path) -> None:
    program = (
        "import threading, sys; sys.path.insert(0, '.')\n"
        "from rig.watch import Watch\n"
        "watch = Watch(print)\n"
        "watch.begin(0, 'an operation', 0.3)\n"
        "def waits_for_nothing(): threading.Event().wait(60)\n"
        "waits_for_nothing()\n"
    )
    done = subprocess.run([sys.executable, "-u", "-c", program], capture_output=True, text=True, timeout=50)
    assert done.returncode == HUNG
    assert "an operation hangs" in done.stdout
    assert "waits_for_nothing" in done.stdout


def test_a_lease_that_is_left_is_told_apart_from_what_is_remembered() -> None:
    left = ["holdfast:{own-L1t-0}", "holdfast:{own-L1t-0}:queue"]
    assert that_count(left, "return") == left
    assert that_count(left, "SIGKILL") == left[:1]


def test_an_overlap_is_told_with_what_made_each_trust_its_lease(tmp_path: Path) -> None:
    log = Log(tmp_path / "w.log")
    for line in (
        ("granted", "w.1", "a", 1, 0, 10 * MS, 2_000 * MS),
        ("noted", "w.1", [[1 * MS, 9 * MS, "quorum_acquire", [0, 1, 2], [1, 1, "refused"]]]),
        ("noted", "w.1", [[700 * MS, 720 * MS, "renew", [0, 1, 2], [1, 0, 0]]]),
        ("granted", "w.2", "a", 2, 600 * MS, 900 * MS, 2_900 * MS),
        ("lost", "w.1", 1_500 * MS, "taken"),
        ("left", "w.2", 950 * MS),
    ):
        log.write(*line)
    log.close()
    (overlap,) = judge(History.read([tmp_path / "w.log"])).violations
    told = overlap.told()
    assert "w.1 (fence 1) and w.2 (fence 2) for 50.0 ms" in told
    assert "w.1: granted 10.0 ms, trusted until 2,000.0, taken at 1,500.0" in told
    assert "700.0 to 720.0 ms: renew at [0, 1, 2]: [1, 0, 0]" in told
    assert "w.2: granted 900.0 ms, trusted until 2,900.0, left at 950.0" in told


def test_notes_are_of_one_lease_and_of_its_last_rounds() -> None:
    trace = Trace()
    for number in range(60):
        trace._note(f"c:1~{number}:7", [0, 0, "quorum_acquire", [], number])
    trace._note("c:1:8", [0, 0, "renew", [], None])
    assert [note[-1] for note in trace.take("c:1~59:7")] == list(range(20, 60))
    assert trace.take("c:1:7") == []
    assert len(trace.take("c:1:8")) == 1


def asked(ident: str, fence: int, asked_ms: int, start_ms: int) -> Grant:
    return Grant(ident, ident[0], "a", fence, asked_ms * MS, start_ms * MS, None, end_ns=(start_ms + 9) * MS)


def test_a_waiter_that_two_tenures_overtake_is_told() -> None:
    grants = [
        asked("b0", 0, -1_500, -1_490),  # it has been at work for a while
        asked("a1", 1, 0, 0),
        asked("c1", 2, 300, 310),  # a tenure of two that came later,
        asked("c2", 3, 300, 320),
        asked("d1", 4, 300, 330),  # and one of another client: to each its own
        asked("b1", 5, 10, 340),
    ]
    verdict = judge(History(grants))
    assert (verdict.overtaken, verdict.longest_turn_s, verdict.handed_on) == ([], 0.33, 1)

    verdict = judge(History([*grants[:-1], asked("c3", 5, 300, 340), asked("b1", 6, 10, 350)]))
    assert len(verdict.overtaken) == 1
    assert "b1 waited for 0.34 s, and 2 tenures of c" in verdict.overtaken[0]


def test_two_tenures_of_one_client_in_a_row_are_two() -> None:
    """A fencing token that does not follow the last one is the server's: no other client needs to come between."""
    grants = [asked("b0", 0, -1_500, -1_490), asked("c1", 20, 300, 310), asked("c2", 21, 300, 320)]
    verdict = judge(History([*grants, asked("c3", 22, 300, 330), asked("b1", 50, 10, 340)]))
    assert (verdict.overtaken, verdict.handed_on) == ([], 2)
    verdict = judge(History([*grants, asked("c3", 40, 300, 330), asked("b1", 50, 10, 340)]))
    assert (len(verdict.overtaken), verdict.handed_on) == (1, 1)


def test_a_request_that_came_late_is_known_since_then() -> None:
    grants = [asked("b0", 0, -1_500, -1_490), asked("c1", 20, 300, 310), asked("c2", 40, 300, 320)]
    late = asked("b1", 50, 10, 340)
    late.queued_ns = 150 * MS
    assert len(judge(History([*grants, late])).overtaken) == 1
    late.queued_ns = 250 * MS
    assert judge(History([*grants, late])).overtaken == []
    behind = asked("b2", 51, 20, 350)  # in the line of one whose request came late
    assert judge(History([*grants, late, behind])).overtaken == []


def test_the_order_is_not_judged_while_a_process_opens_its_connections() -> None:
    grants = [asked("a1", 1, 0, 0), asked("c1", 2, 1_100, 1_110), asked("d1", 3, 1_100, 1_120)]
    grants += [asked("c2", 4, 1_100, 1_130), asked("b1", 5, 900, 1_140)]
    assert judge(History(grants)).overtaken == []
    verdict = judge(History([asked("b0", 0, -150, -140), *grants]))
    assert len(verdict.overtaken) == 1


def test_those_that_asked_together_may_come_in_any_order() -> None:
    grants = [asked("a1", 1, 0, 0), asked("c1", 2, 60, 100), asked("d1", 3, 60, 110), asked("c2", 4, 60, 120)]
    assert judge(History([*grants, asked("b1", 5, 10, 130)])).overtaken == []
