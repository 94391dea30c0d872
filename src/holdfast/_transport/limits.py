"""Limits and words that threads and asyncio share."""

from __future__ import annotations

__all__ = ["GONE", "INBOX_QUIET_S", "INBOX_TIMEOUT_S", "MISPLACED", "REDIRECTS_MAX"]

#: How often MOVED and ASK are followed for one request: a slot can move meanwhile, but not forever.
REDIRECTS_MAX = 5
#: An inbox that has been quiet for this long is sent a PING while it is relied on, s.
INBOX_QUIET_S = 10.0
#: How long a subscription, and the answer to that PING, may take, s.
INBOX_TIMEOUT_S = 5.0
#: Errors of a server that has changed its role: its connections lead to the wrong place.
MISPLACED = frozenset({"READONLY", "MASTERDOWN"})
#: Failures after which another server may be in charge.
GONE = MISPLACED | {"silent", "broken", "refused"}
