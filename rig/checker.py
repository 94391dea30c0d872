"""Judges a history.

Laws checked: no two stays at one lock overlap while both rely on their leases (readers may, and as many as a
semaphore has permits for); fencing tokens of exclusive locks grow in the order of grants; after every healing someone
gets in, at every lock, within a bound. Who waits is overtaken by one tenure of each other client at most: where nothing
is lost on the way, which the caller knows.

An overlap of validities is *documented* when something that takes leases away for certain (a restart without data, a
server clock that jumps, a failover without full replication …) fell between the two grants; every other one is a
violation. Overlaps of the mere bodies, one of them beyond its validity (a stopped process goes on), are counted too:
they are what fencing tokens are for.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from rig.history import Fault, Grant, History
from rig.trace import as_lines

__all__ = ["Overlap", "Verdict", "judge"]

#: Who asked less than this after another one may have reached the server before it: threads are scheduled, requests
#: travel.
_TOGETHER_NS = 100_000_000
#: A process that begins opens connections: what it asks for then may reach the server long after it was asked for.
_STARTS_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two stays at one lock, at the same time."""

    first: Grant
    second: Grant
    #: The fault that accounts for it, or None.
    because: Fault | None

    def __str__(self) -> str:
        first, second = self.first, self.second
        length_ms = (min(first.valid_to_ns, second.valid_to_ns) - second.start_ns) / 1e6
        return (
            f"{first.lock}: {first.ident} (fence {first.fence}) and {second.ident} (fence {second.fence}) "
            f"for {length_ms:.1f} ms"
        )

    def told(self) -> str:
        """The same with what each of them stood on, in ms since the first was asked for."""
        zero_ns = self.first.asked_ns
        lines = [str(self)]
        for grant in (self.first, self.second):
            ends = {"trusted until": grant.until_ns, f"{grant.lost or 'left'} at": grant.end_ns}
            said = ", ".join(f"{what} {(at_ns - zero_ns) / 1e6:,.1f}" for what, at_ns in ends.items() if at_ns)
            lines.append(f"    {grant.ident}: granted {(grant.start_ns - zero_ns) / 1e6:,.1f} ms, {said}")
            lines += [f"      {line}" for line in as_lines(grant.notes, zero_ns)]
        return "\n".join(lines)


@dataclass(slots=True)
class Verdict:
    """What a run has shown."""

    violations: list[Overlap] = field(default_factory=list)
    documented: list[Overlap] = field(default_factory=list)
    bodies: int = 0
    disorder: list[str] = field(default_factory=list)
    #: Leases that a client has handed on by itself.
    handed_on: int = 0
    #: Waiters that were overtaken by two tenures or more of another client, and the longest wait of any that got in, s.
    overtaken: list[str] = field(default_factory=list)
    longest_turn_s: float = 0.0
    #: From a healing to the next grant, anywhere and at the slowest lock, s.
    longest_wait_s: float = 0.0
    longest_wait_at_a_lock_s: float = 0.0
    #: After what.
    longest_after: str = ""


def judge(history: History) -> Verdict:
    """All findings."""
    verdict = Verdict()
    by_lock: dict[str, list[Grant]] = defaultdict(list)
    for grant in sorted(history.grants, key=lambda grant: grant.start_ns):
        by_lock[grant.lock].append(grant)
    losses = [fault for fault in history.faults if fault.row is not None]
    for grants in by_lock.values():
        _overlaps(grants, losses, verdict)
        _order(grants, verdict)
        _overtaking(grants, verdict)
    _waits(history, by_lock, verdict)
    return verdict


def _overlaps(grants: Sequence[Grant], losses: Sequence[Fault], verdict: Verdict) -> None:
    inside: list[Grant] = []
    for second in grants:
        inside = [first for first in inside if max(first.inside_to_ns, first.valid_to_ns) > second.start_ns]
        for first in _in_the_way(inside, second):
            if first.valid_to_ns > second.start_ns and second.valid_to_ns > second.start_ns:
                because = _because(first, second, losses)
                overlap = Overlap(first, second, because)
                (verdict.violations if because is None else verdict.documented).append(overlap)
            elif first.inside_to_ns > second.start_ns:
                verdict.bodies += 1
        inside.append(second)


def _in_the_way(inside: Sequence[Grant], second: Grant) -> list[Grant]:
    """Those inside that keep `second` out: not reader and reader, nor those who leave permits enough."""
    if isinstance(second.mode, str):
        return [first for first in inside if first.mode == "exclusive" or second.mode == "exclusive"]
    taken, limit = second.mode
    valid = [first for first in inside if isinstance(first.mode, tuple) and first.valid_to_ns > second.start_ns]
    return valid if taken + sum(first.mode[0] for first in valid if isinstance(first.mode, tuple)) > limit else []


def _because(first: Grant, second: Grant, losses: Sequence[Fault]) -> Fault | None:
    """A fault that took one of the leases away: it came after that was asked for, and before the other was granted."""
    for fault in losses:
        for held, other in ((first, second), (second, first)):
            if held.asked_ns <= fault.end_ns and fault.begin_ns <= other.start_ns and held.asked_ns <= other.start_ns:
                return fault
    return None


def _order(grants: Sequence[Grant], verdict: Verdict) -> None:
    """A grant that was asked for after another one had been told must have the greater fencing token."""
    fenced = [grant for grant in grants if grant.fence is not None and grant.mode == "exclusive"]
    by_start = sorted(fenced, key=lambda grant: grant.start_ns)
    starts = [grant.start_ns for grant in by_start]
    highest: list[Grant] = []
    for grant in by_start:
        last = highest[-1] if highest else grant
        highest.append(grant if (grant.fence or 0) >= (last.fence or 0) else last)
    for grant in fenced:
        before = bisect.bisect_right(starts, grant.asked_ns)
        if before and (highest[before - 1].fence or 0) >= (grant.fence or 0) and highest[before - 1] is not grant:
            earlier = highest[before - 1]
            verdict.disorder.append(
                f"{grant.lock}: {grant.ident} was asked for after {earlier.ident} had been granted, and its fencing "
                f"token {grant.fence} is not greater than {earlier.fence}"
            )
    seen: dict[int, Grant] = {}
    for grant in fenced:
        twin = seen.setdefault(grant.fence or 0, grant)
        if twin is not grant:
            verdict.disorder.append(f"{grant.lock}: {grant.ident} and {twin.ident} have fencing token {grant.fence}")


def _overtaking(grants: Sequence[Grant], verdict: Verdict) -> None:
    """Waiters that saw several tenures of one other client, each with a lease that was asked for after theirs.

    A tenure is a run of grants of one client by fencing tokens that follow each other: those of one block. Who waits is
    known from when the request that led to its tenure stood in the queue.
    """
    began: dict[str, int] = {}
    for grant in grants:
        began[grant.worker] = min(grant.asked_ns, began.get(grant.worker, grant.asked_ns))
    turns = [grant for grant in grants if grant.mode == "exclusive"]
    starts = [grant.start_ns for grant in turns]
    begins = [not _handed_on(a, b) for a, b in itertools.pairwise(turns)]
    verdict.handed_on += begins.count(False)
    tenure_of = list(itertools.accumulate(begins, initial=0))
    queued = {tenure: grant.queued_ns or 0 for tenure, grant in reversed([*zip(tenure_of, turns, strict=False)])}
    for at, waiter in enumerate(turns):
        verdict.longest_turn_s = max(verdict.longest_turn_s, (waiter.start_ns - waiter.asked_ns) / 1e9)
        if waiter.asked_ns - began[waiter.worker] < _STARTS_NS:
            continue
        known_ns = max(waiter.asked_ns, queued[tenure_of[at]])
        tenures: dict[str, set[int]] = defaultdict(set)
        for other in range(bisect.bisect_right(starts, waiter.asked_ns), at):
            overtaker = turns[other]
            if overtaker.worker != waiter.worker and overtaker.asked_ns > known_ns + _TOGETHER_NS:
                tenures[overtaker.worker].add(tenure_of[other])
        most = max(tenures.items(), key=lambda found: len(found[1]), default=None)
        if most is not None and len(most[1]) > 1:
            waited_s = (waiter.start_ns - waiter.asked_ns) / 1e9
            verdict.overtaken.append(
                f"{waiter.lock}: {waiter.ident} waited for {waited_s:.2f} s, and {len(most[1])} tenures of {most[0]} "
                "overtook it"
            )


def _handed_on(first: Grant, then: Grant) -> bool:
    """By the first one's client itself: the server's next fencing token is its time in µs."""
    return first.worker == then.worker and first.fence is not None and then.fence == first.fence + 1


def _waits(history: History, by_lock: dict[str, list[Grant]], verdict: Verdict) -> None:
    """From a healing to the next grant at each lock, as far as it was free and someone asked for it.

    Not at locks of a life's own: a client that is closed while its server hangs leaves them for their long ttl, and the
    life's watch has a bound for those who wait there.
    """
    by_lock = {lock: grants for lock, grants in by_lock.items() if not lock.startswith("own-")}
    faults = sorted(history.faults, key=lambda fault: fault.begin_ns)
    end_ns = max((grant.inside_to_ns for grant in history.grants), default=0)
    attempts: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for lock, asked_ns, at_ns in history.failed:
        attempts[lock].append((asked_ns, at_ns))
    for lock, grants in by_lock.items():
        attempts[lock] += [(grant.asked_ns, grant.start_ns) for grant in grants]
    for index, fault in enumerate(faults):
        # The next fault must not be blamed on this healing.
        until_ns = faults[index + 1].begin_ns if index + 1 < len(faults) else end_ns
        waits = [_wait_s(grants, attempts[lock], fault.end_ns, until_ns) for lock, grants in by_lock.items()]
        if waits and min(waits) > verdict.longest_wait_s:
            verdict.longest_wait_s = min(waits)
        if waits and max(waits) > verdict.longest_wait_at_a_lock_s:
            verdict.longest_wait_at_a_lock_s, verdict.longest_after = max(waits), fault.kind


def _wait_s(grants: Sequence[Grant], attempts: Sequence[tuple[int, int]], healed_ns: int, until_ns: int) -> float:
    after = next((grant for grant in grants if grant.start_ns >= healed_ns), None)
    until_ns = until_ns if after is None else min(after.start_ns, until_ns)
    free_ns = max([healed_ns, *(grant.inside_to_ns for grant in grants if grant.start_ns < healed_ns)])
    asked_ns = min((begin for begin, end in attempts if end > free_ns), default=until_ns)
    return max(0, until_ns - max(free_ns, asked_ns)) / 1e9
