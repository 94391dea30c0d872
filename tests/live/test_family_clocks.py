"""Time and the family: what ends when, and that nobody's wall clock has a say in it."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast


def test_max_hold_goes_on_through_downgrade_and_upgrade(far: Any, unique_name: str) -> None:
    """Counted from the first lease on: otherwise changing sides would renew for ever."""
    rw = far.rwlock(unique_name, ttl=30, max_hold=3)
    writer = rw.write().acquire()
    reader = writer.downgrade()
    upgraded = reader.upgrade()
    assert upgraded.remaining() <= 3
    for lease in (reader, upgraded):
        assert lease.lost.wait(60)
        assert lease.lost.reason == "max_hold"
        with pytest.raises(holdfast.LeaseLost):
            lease.ensure_held()
