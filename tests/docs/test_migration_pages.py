"""The pages for those who come from other libraries name what there is, and are right about exclusion."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
import redis
from pottery import Redlock

import holdfast
from holdfast import embedded

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted((DOCS / "migration").glob("*.md"))
OWNERS = {"locks": holdfast.Client, "lock": holdfast.Lock, "lease": holdfast.Lease, "holdfast": holdfast}


def words(page: Path) -> list[str]:
    """Return the names in the right column of the table."""
    rows = re.findall(r"^\|[^|]*\|([^|]*)\|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [span for row in rows for span in re.findall(r"`([^`]+)`", row)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_our_words_exist(page: Path) -> None:
    found = [
        (owner, name)
        for span in words(page)
        for owner, name in re.findall(r"\b(locks|lock|lease|holdfast)\.(?!asyncio)(\w+)", span)
    ]
    assert len(found) >= 8
    assert [f"{owner}.{name}" for owner, name in found if not hasattr(OWNERS[owner], name)] == []
    errors = {span for span in words(page) if re.fullmatch(r"(?!None)[A-Z]\w+", span)}
    assert len(errors) >= 3
    assert [name for name in errors if not hasattr(holdfast, name)] == []


def test_a_quorum_and_pottery_exclude_each_other(unique_name: str) -> None:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(embedded.server(port=0)) for _ in range(3)]
        masters = {stack.enter_context(redis.Redis.from_url(server.url)) for server in servers}
        # They are new, so they would not vote for a ttl.
        locks = stack.enter_context(
            holdfast.Client.quorum([server.url for server in servers], namespace=None, restart_delay=0)
        )
        ours = locks.lock(f"redlock:{unique_name}", ttl=60)
        theirs = Redlock(key=unique_name, masters=masters, auto_release_time=60)
        with ours:
            assert not theirs.acquire(blocking=False)
        assert theirs.acquire(blocking=False)
        assert ours.try_acquire() is None
        theirs.release()
        with ours.acquire(timeout=60) as lease:
            assert lease.held
