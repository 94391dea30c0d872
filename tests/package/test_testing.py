"""The pytest plugin, used as its page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
#: The plugin by its module, since the entry point may not be installed yet; the others would only cost time.
LEAN = ("-p", "no:holdfast", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest", "-W", "error")


def run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(*LEAN, "-p", "holdfast.testing", *args, timeout=100)


NOTHING = """
import os
import sys


def test_nothing():
    assert "holdfast.embedded" not in sys.modules
    assert "redis" not in sys.modules
    assert "HOLDFAST_URL" not in os.environ
"""

MORE = """
import asyncio
import threading

import holdfast
import pytest


def test_all_names(holdfast_client, holdfast_trouble):
    with pytest.raises(holdfast.LeaseLost):
        with holdfast_client.rwlock("a").read(), holdfast_client.semaphore("b", permits=2):
            assert holdfast_trouble.lose(reason="expired") == 2
    holdfast_trouble.acquire_times_out()
    for lock in (holdfast_client.rwlock("a").write(), holdfast_client.semaphore("b", permits=2)):
        with pytest.raises(holdfast.AcquireTimeout, match="injected"):
            lock.acquire(timeout=1)


def test_trouble_has_ended(holdfast_client):
    holdfast_client.lock("a").acquire().release()


def test_at_once(holdfast_client, holdfast_trouble):
    holdfast_trouble.lose_next("a")
    lease = holdfast_client.lock("a").acquire()
    told = threading.Event()
    lease.on_lost(lambda error: told.set())
    assert told.wait(30)
    with pytest.raises(holdfast.LeaseLost, match="taken"):
        lease.ensure_held()


def test_asyncio_from_another_thread(holdfast_async_client, holdfast_trouble):
    async def main():
        lease = await holdfast_async_client.lock("a").acquire()
        await asyncio.to_thread(holdfast_trouble.lose, "a")
        async with asyncio.timeout(30):
            await lease.lost.wait()
        with pytest.raises(holdfast.LeaseLost):
            await lease.release()
        holdfast_trouble.acquire_times_out("a")
        assert await holdfast_async_client.lock("a").try_acquire() is None

    asyncio.run(main())


def test_a_server_left_dead(holdfast_server, holdfast_client):
    holdfast_server.kill()


def test_a_server_is_there_again(holdfast_client):
    assert not holdfast_client.lock("a").locked()
"""


def test_the_examples_of_the_page_and_more(pytester: pytest.Pytester) -> None:
    files = {f"test_block_{number}": block for number, block in enumerate(BLOCKS)}
    # The first one finds that nothing was started before a test asked for it.
    pytester.makepyfile(test_a_first=NOTHING, test_more=MORE, **files)
    examples = sum(block.count("\ndef test_") for block in BLOCKS)
    assert examples >= 8
    run(pytester).assert_outcomes(passed=examples + 1 + MORE.count("\ndef test_"))


MISUSE = """
import holdfast
import pytest


@pytest.mark.parametrize("misuse", [
    lambda trouble: trouble.lose_next(5),
    lambda trouble: trouble.lose(5),
    lambda trouble: trouble.acquire_times_out(b"a"),
    lambda trouble: trouble.lose(""),
    lambda trouble: trouble.lose_next("a", after=-1),
    lambda trouble: trouble.lose_next("a", after="soon"),
    lambda trouble: trouble.lose_next("a", after=None),
    lambda trouble: trouble.lose("a", reason=1),
])
def test_wrong_arguments(holdfast_trouble, misuse):
    with pytest.raises(holdfast.ConfigurationError):
        misuse(holdfast_trouble)


def test_a_misspelt_name(holdfast_client, holdfast_trouble):
    with holdfast_client.lock("orders:42"):
        with pytest.raises(holdfast.ConfigurationError, match="'order:42' .* acquired: 'orders:42'"):
            holdfast_trouble.lose("order:42")
    assert holdfast_trouble.lose("orders:42") == 0


@pytest.mark.parametrize("action", ["lose_next", "acquire_times_out"])
def test_in_vain(holdfast_client, holdfast_trouble, action):
    getattr(holdfast_trouble, action)("order:42")
    with holdfast_client.lock("orders:42"):
        pass
    with pytest.raises(holdfast.ConfigurationError, match="'order:42' .* acquired: 'orders:42'"):
        holdfast_trouble.end()


@pytest.mark.parametrize("action", ["lose_next", "acquire_times_out"])
def test_in_vain_at_the_end(holdfast_client, holdfast_trouble, action):
    getattr(holdfast_trouble, action)("order:42")
"""


def test_misuse_is_told(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(MISUSE)
    result = run(pytester)
    result.assert_outcomes(passed=8 + 1 + 2 + 2, errors=2)
    result.stdout.fnmatch_lines(["*ConfigurationError: name = 'order:42' is not allowed*acquired: none*"])


def test_it_can_be_left_out(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(holdfast_client): pass")
    result = pytester.runpytest_subprocess(*LEAN, timeout=100)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'holdfast_client' not found*"])


def test_pytest_is_told_of_it() -> None:
    import tomllib

    project = tomllib.loads((PAGE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"holdfast": "holdfast.testing"}
