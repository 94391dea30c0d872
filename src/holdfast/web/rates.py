"""How many grants a second each lock has, of what looks show.

Theory: the server counts grants of locks that change (`Client.list(grants=True)`); a rate is what its count has grown
by within the last seconds. What a client hands on among its own, or keeps, is counted when that is over: while one has
such a lease, the rate is that up to when it was granted. Before the first count, or for a user who may not have it
counted, there is what the looks themselves show, which is the least that there was.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from holdfast import Listed

#: Over which a rate is taken; and for how long one is, at most, that is kept as it was before a lease began, s.
OVER_S, KEPT_MOST_S = 10.0, 20.0


class Rate(NamedTuple):
    """Grants a second; `at_least`: there may have been more."""

    per_s: float
    at_least: bool


class _Point(NamedTuple):
    at: float
    counted: int | None
    seen: int


class Rates:
    """Those of the locks that are looked at. Times are of the locks' server."""

    def __init__(self) -> None:
        self._points: dict[str, deque[_Point]] = {}

    def saw(self, which: str, found: Listed, seen: int) -> None:
        """Note a look, which shows `seen` grants since the one before."""
        points = self._points.setdefault(which, deque())
        at, before = found.seen_at.timestamp(), points[-1] if points else None
        holder = found.holder
        if holder is not None and holder.kept and holder.since is not None:
            since = holder.since.timestamp()
            at = since if at - since < KEPT_MOST_S else at
        if before is not None:
            seen += before.seen
            if found.grants is not None and before.counted is not None and found.grants < before.counted:
                points.clear()  # it was forgotten meanwhile
            elif at <= before.at:
                points[-1] = before._replace(seen=seen)
                return
        points.append(_Point(at, found.grants, seen))
        while len(points) > 2 and points[1].at <= at - OVER_S:
            points.popleft()

    def of(self, which: str) -> Rate:
        points = list(self._points.get(which, ()))
        counted = [each for each in points if each.counted is not None]
        if len(counted) > 1 and counted[-1] is points[-1]:
            first, last = counted[0], counted[-1]
            assert first.counted is not None and last.counted is not None
            return Rate((last.counted - first.counted) / max(last.at - first.at, 0.001), False)
        if len(points) < 2:
            return Rate(0.0, False)
        seen = points[-1].seen - points[0].seen
        return Rate(seen / max(points[-1].at - points[0].at, 0.001), seen > 0)

    def forget(self, now: float) -> None:
        """Drop what has not been seen for longer than rates are taken over."""
        for which, points in list(self._points.items()):
            if points[-1].at < now - OVER_S - KEPT_MOST_S:
                del self._points[which]
