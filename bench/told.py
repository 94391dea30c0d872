"""How long it takes until a holder in another process knows that its lease was broken.

    python -m bench.told [BREAKS]

Prints the median and the 99th percentile, in ms, for leases held for so long that their client listens, and for those
that were broken in the first tenth of a second. Both processes read the same clock.
"""

from __future__ import annotations

import statistics
import sys
import time

import holdfast
from bench.beside import beside
from holdfast import embedded

__all__ = ["main"]

_HOLDER = """
import sys, time
import holdfast
for line in sys.stdin:
    with holdfast.connect(sys.argv[1], ttl=60) as client:
        lease = client.lock("told").acquire()
        if line.startswith("later"):
            time.sleep(0.3)
        print("held", flush=True)
        lease.lost.wait()
        print(time.monotonic(), flush=True)
"""


def main(breaks: int) -> None:
    """Measure, and print."""
    with (
        embedded.server() as server,
        holdfast.connect(server.unix_url) as client,
        beside(_HOLDER, server.unix_url) as holder,
    ):
        for when in ("later", "at once"):
            took_ms = []
            for _ in range(breaks):
                holder.tell(when)
                holder.heard()
                began_at = time.monotonic()
                assert client.break_("told")
                took_ms.append((float(holder.heard()) - began_at) * 1000)
            took_ms.sort()
            p99 = took_ms[min(len(took_ms) - 1, len(took_ms) * 99 // 100)]
            print(f"broken {when}: p50 {statistics.median(took_ms):.1f} ms, p99 {p99:.1f} ms, of {breaks}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
