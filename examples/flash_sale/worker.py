"""One seller: a process of its own that says what it does, one JSON object a line.

``python -m examples.flash_sale.worker '{"path": …, "worker": 3, "url": …, "ttl": 2, "wait_at": 400}'``; without a
``url`` it sells without a lock. It begins when a line arrives on its standard input. The first time that it is inside
with ``wait_at`` units or fewer left, it says so and waits for a second line: that is where it is killed or stopped.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import holdfast
from examples.flash_sale.shop import LOCK_NAME, Shop, Stale
from holdfast.errors import LeaseLost

__all__ = ["main"]

_THINK_S = 0.002
"""Between reading the stock and writing it back: asking the customer's bank, say."""


def main(order: dict[str, Any]) -> None:
    """Sell until nothing is left."""
    shop = Shop(Path(order["path"]))
    if order.get("url") is None:
        _say("ready")
        sys.stdin.readline()
        while _sell_unguarded(shop, order["worker"]):
            pass
    else:
        with holdfast.connect(order["url"]) as locks:
            lock = locks.lock(LOCK_NAME, ttl=order["ttl"])
            _say("ready")
            sys.stdin.readline()
            seller = _Seller(shop, order["worker"], order.get("wait_at"))
            more = True
            while more:
                try:
                    with lock as lease:
                        more = seller.sell(lease)
                except LeaseLost as error:
                    _say("lost", reason=error.reason)
    shop.close()
    _say("done")


def _sell_unguarded(shop: Shop, worker: int) -> bool:
    entered = time.monotonic_ns()
    units = shop.units()
    if units <= 0:
        return False
    time.sleep(_THINK_S)
    shop.sell(units - 1, worker)
    _say("sold", unit=units, entered=entered, left=time.monotonic_ns())
    return True


class _Seller:
    def __init__(self, shop: Shop, worker: int, wait_at: int | None) -> None:
        self._shop = shop
        self._worker = worker
        self._wait_at = wait_at

    def sell(self, lease: holdfast.Lease) -> bool:
        """Sell one unit under the lease; False when the stock is empty."""
        entered = time.monotonic_ns()
        valid_ns = int(lease.remaining() * 1e9)
        fence = lease.fencing_token
        try:
            units = self._shop.units(fence)
            if units <= 0:
                return False
            time.sleep(_THINK_S)
            if self._wait_at is not None and units <= self._wait_at:
                self._wait_at = None
                _say("inside", fence=fence, entered=entered, valid_ns=valid_ns)
                sys.stdin.readline()
            # A careful program would call lease.ensure_held() here. This one shows what happens without.
            self._shop.sell(units - 1, self._worker, fence)
        except Stale as error:
            _say("refused", fence=error.mine, seen=error.seen)
            return True
        left = time.monotonic_ns()
        # `valid` is read after `left`: so the lease was certainly valid when we left.
        _say("sold", unit=units, fence=fence, entered=entered, left=left, valid=lease.remaining() > 0)
        return True


def _say(event: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def _die_with_parent() -> None:
    """A worker that was stopped would otherwise outlive a demo that was killed. Linux only; elsewhere it may."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


if __name__ == "__main__":
    _die_with_parent()
    main(json.loads(sys.argv[1]))
