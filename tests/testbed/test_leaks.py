"""The look for leaks can find some."""

from __future__ import annotations

import socket
import threading

import pytest

import holdfast
from testbed import leaks


def test_a_thread_a_descriptor_and_an_object_are_found() -> None:
    before = leaks.take()
    while (now := leaks.take()) != before:  # what other tests have left is still on its way out
        before = now
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="holdfast-left")
    thread.start()
    with socket.socket():
        client = holdfast.connect("redis://localhost:1")
        found = leaks.left_over(before, settle_s=0)
        assert "threads: holdfast-left" in found
        assert any(each.startswith("descriptors: socket") for each in found)
        assert any("ThreadDriver" in each for each in found)
        with pytest.raises(AssertionError, match="holdfast-left"):
            leaks.check(before, settle_s=0)
        client.close()
    del client
    stop.set()
    thread.join()
    leaks.check(before)


def test_what_keeps_growing_is_told_from_noise() -> None:
    assert leaks.steady_growth([20, 25, 26, 26, 25, 26, 26, 25, 26]) == 0
    assert leaks.steady_growth([20, 21, 22, 23, 24, 25, 26, 27, 28]) == 3
    assert leaks.steady_growth([1, 2]) == 0
    samples = iter(range(9))
    growth = leaks.Growth(lambda: next(samples))
    for _ in range(9):
        growth.sample()
    assert growth.steady() == 3


def test_memory_is_read() -> None:
    assert leaks.rss_mb() > 1
