"""Limits and words that threads and asyncio share."""

from __future__ import annotations

from holdfast._runtime.clock import clock

__all__ = ["GONE", "INBOX_QUIET_S", "INBOX_TIMEOUT_S", "MISPLACED", "REDIRECTS_MAX", "redirect_timeout_s"]

#: How often MOVED and ASK are followed for one request: a slot can move meanwhile, but not forever.
REDIRECTS_MAX = 5
#: A redirected request has at least this time, s.
_REDIRECT_LEAST_S = 0.05
#: An inbox that has been quiet for this long is sent a PING while it is relied on, s.
INBOX_QUIET_S = 10.0
#: How long a subscription, and the answer to that PING, may take, s.
INBOX_TIMEOUT_S = 5.0
#: Errors of a server that has changed its role: its connections lead to the wrong place.
MISPLACED = frozenset({"READONLY", "MASTERDOWN"})
#: Failures after which another server may be in charge.
GONE = MISPLACED | {"silent", "broken", "refused"}


def redirect_timeout_s(until: float) -> float:
    """The time for another request, of that for all of them."""
    return max(_REDIRECT_LEAST_S, until - clock())
