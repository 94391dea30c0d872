"""The examples of these pages run as they stand, on a real server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import holdfast
from holdfast import embedded

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
