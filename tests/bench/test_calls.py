"""The tool that counts calls counts what it says, and plays each course."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from tools.calls import COURSES, Counted, Counter, profiled


def outer() -> int:
    return sum(numbers()) + sum([inner() for _ in range(2)])


def inner() -> int:
    return 1


def numbers() -> Iterator[int]:
    yield 1
    yield 2


def test_calls_are_counted_by_who_calls() -> None:
    counter = Counter(os.path.dirname(__file__))
    counter.program.add(threading.get_ident())
    with profiled(counter), ThreadPoolExecutor(1) as mine, ThreadPoolExecutor(1) as other:

        def play() -> int:
            outer()
            other.submit(inner).result()
            return threading.get_ident()

        number = other.submit(threading.get_ident).result()
        assert counter.noting(lambda: mine.submit(play)) == Counted(6, 1, 2, 4, 1), "outer, numbers, inner, play"
        counter.program.add(number)
        assert counter.noting(lambda: mine.submit(play)) == Counted(5, 0, 2, 4, 1)


def test_each_course_is_counted() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.calls", "--json"], capture_output=True, text=True, timeout=120, check=True
    )
    found = {name: Counted(**each) for name, each in json.loads(done.stdout).items()}
    assert [*found] == [*COURSES]
    for name, each in found.items():
        assert 0 < each.files <= each.functions <= each.called + each.resumed, name
        assert 0 <= each.elsewhere < each.called < 500, name
    acquire, release, block, wait, line = (each.called for each in found.values())
    assert acquire + release < block and acquire < wait < line
