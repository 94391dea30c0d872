"""How long a lease may be trusted.

Laws: validity counts from before the request was sent, on a clock that neither jumps nor stops in suspend,
and ends before the server's time for the key can end, whichever of the two clocks runs faster.

Theory: a server grants ttl at some moment between sending and reply; the earliest is the sending. Two
machines' clocks may differ in rate; `DRIFT` is far above what any quartz does (20 to 200 ppm), `MARGIN_S`
covers the millisecond that servers round to and the time between a look at the clock and what follows from it.
"""

from __future__ import annotations

#: Allowed difference of clock rates, as a fraction.
DRIFT = 0.01
#: Constant allowance, s.
MARGIN_S = 0.002


def deadline(sent_at: float, ttl_ms: int) -> float:
    """The local time up to which a grant of `ttl_ms` that was asked for at `sent_at` may be trusted."""
    return sent_at + ttl_ms / 1000 * (1 - DRIFT) - MARGIN_S
