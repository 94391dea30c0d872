"""The examples of these pages run as they stand, on a real server."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import embedded
from tests.support.pages import mistakes

DOCS = Path(__file__).resolve().parents[2] / "docs"


EACH = ("rwlock", "semaphore", "multilock", "condition", "latch", "event", "barrier", "election", "optimistic", "once")

#: How many examples each page has, at the least.
PAGES = {
    "concepts": 3,
    "migration/redis-py": 3,
    "migration/python-redis-lock": 3,
    "migration/pottery": 3,
    "migration/redisson": 2,
    "deadlocks": 2,
    "fencing": 1,
    "leases": 3,
    "primitives/README": 1,
    "primitives/lock": 5,
    **dict.fromkeys((f"primitives/{each}" for each in EACH), 1),
}
DEFAULT_URL = "redis://localhost:6379"


@pytest.mark.parametrize("name", PAGES)
def test_the_examples_run(name: str, valkey_server: embedded.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS / f"{name}.md"
    monkeypatch.setenv("HOLDFAST_URL", valkey_server.url)
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= PAGES[name]
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block.replace(DEFAULT_URL, valkey_server.url), str(page), "exec"), names)
    locks = names["locks"]
    assert isinstance(locks, holdfast.Client)
    locks.close()


@pytest.mark.parametrize("name", ["recipes.md", "recipes.zh-CN.md"])
def test_each_recipe_runs_by_itself(
    name: str, private_server: Callable[[], embedded.Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / name).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    monkeypatch.setenv("HOLDFAST_URL", private_server().url)
    for block in blocks:
        assert mistakes(block) == ""
        names: dict[str, object] = {}
        exec(compile(block, name, "exec"), names)
        locks = names["locks"]
        assert isinstance(locks, holdfast.Client)
        locks.close()
