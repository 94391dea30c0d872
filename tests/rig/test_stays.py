"""What a life writes down of a lease whose client is closed under it."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rig.actions import Actions
from rig.history import History, Log, now_ns
from rig.state import driven
from verify.check import check

HEADER = {
    "format": "lock-history",
    "version": 1,
    "locks": {"a": {"kind": "lock"}},
    "promises": ["exclusion", "told"],
}


class ClosedUnder:
    """A lease that is still held at the first look after its client's close() began, and lost at the next."""

    def __init__(self, log: Log, rival_after: int, held_looks: int = 2) -> None:
        self.log = log
        self.fencing_token = 5
        self._session = self
        self.state = SimpleNamespace(name="HELD")
        self.lost = SimpleNamespace(reason=None)
        self.looks = 0
        self.rival_after = rival_after
        self.held_looks = held_looks
        self.closed_ns = now_ns()

    def remaining(self) -> float:
        self.looks += 1
        if self.looks == self.rival_after:
            self.log.event("ask", "L2t.0", op="1", lock="a", do="acquire", mode="exclusive")
            self.log.event("got", "L2t.0", op="1", lock="a", token=6, until=now_ns() + 10**9)
            time.sleep(0.001)
        if self.looks <= self.held_looks:
            return 1.0
        self.state, self.lost = SimpleNamespace(name="LOST"), SimpleNamespace(reason="closed")
        return 0.0


@pytest.mark.parametrize(
    ("rival_after", "held_looks", "violations"),
    [(3, 2, []), (1, 2, ["exclusion"]), (1, 1, []), (1, 0, [])],
    ids=["after the last look", "before the last look", "after the only look", "never seen to be held"],
)
def test_a_lease_of_a_closed_client_is_trusted_until_it_was_seen_last(
    tmp_path: Path, rival_after: int, held_looks: int, violations: list[str]
) -> None:
    log = Log(tmp_path / "L1t.log")
    lease = ClosedUnder(log, rival_after, held_looks)
    life: Any = SimpleNamespace(
        log=log, blocking=True, seed="1", name="L1t", resource="", closed_ns={lease: lease.closed_ns}
    )
    actions = Actions.__new__(Actions)
    actions._life, actions._log, actions._blocking, actions._number = life, log, True, 1
    actions._action, actions._counts = "plain", itertools.count(1)
    actions._random = SimpleNamespace(randint=lambda low, high: high, expovariate=lambda rate: 0.0)  # type: ignore[assignment]
    driven(actions._stay(lease, "a", now_ns()))
    log.close()
    History.read([tmp_path / "L1t.log"]).save(tmp_path / "all.jsonl", HEADER)
    assert [rule for rule, _ in check(str(tmp_path / "all.jsonl")).violations] == violations
