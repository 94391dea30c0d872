"""Lives under process faults: their ends are judged, and what hangs in them is told."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rig.crew import judge_end, that_count
from rig.watch import HUNG


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


@pytest.mark.parametrize(
    "status, way, text, fine",
    [
        (0, "return", "", True),
        (3, "sys.exit", "", True),
        (0, "sys.exit", "", False),
        (None, "return", "", False),
        (0, "return", "Exception in thread holdfast:\nTraceback (most recent call last):\n", False),
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
