"""Judge histories of locks: `python verify/check.py FILE …`. FORMAT.md says what a history is and what the rules mean.

A lease is *trusted* from when its holder was told of it until the time that it lasts, its asking for the release, its
being told of the loss, or the end of its process. Where times allow two readings, the one that holds counts.
"""

import bisect
import gzip
import json
import lzma
import sys
from collections import Counter, defaultdict
from itertools import accumulate, pairwise
from typing import Any

NEVER, TOGETHER_NS, STARTS_NS = float("inf"), 10**8, 10**9  # requests of one moment overtake; processes connect first


class Lease:
    """One acquisition, from its question to its end."""

    def __init__(self, event: dict[str, Any]) -> None:
        self.name, self.lock, self.asked = f"{event['p']}#{event['op']}", event["lock"], event["t"]
        self.client, self.mode, self.since = event["p"].rpartition(".")[0] or event["p"], event["mode"], event["t"]
        self.got = self.queued = self.until = self.leaves = self.released = self.lost = self.ended = NEVER
        self.token, self.ok = (None, None)  # type: Any, Any

    @property
    def trusted_to(self) -> float:
        return min(self.until, self.leaves, self.lost, self.ended)

    def __repr__(self) -> str:
        return f"{self.name} (token {self.token}, granted at {self.got})"


class Verdict:
    """`violations` as (rule, text), how many overlaps a fault explains, and how much of each rule was judged."""

    def __init__(self, header: dict[str, Any]) -> None:
        self.header, self.documented = header, 0
        self.violations, self.judged = list[tuple[str, str]](), Counter[str]()

    def judge(self, rule: str, holds: bool, text: str) -> None:
        if rule in self.header["promises"]:
            self.judged[rule] += 1
            if not holds:
                self.violations.append((rule, text))


def check(path: str) -> Verdict:
    """Judge one file. Raises ValueError where it is no history, with the line."""
    opened: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path[-3:], open)
    number, events, known = 0, list[Any](), dict[Any, Lease]()
    leases, others = defaultdict[str, list[Lease]](list), defaultdict[str, list[Any]](list)
    try:
        with opened(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                events.append((json.loads(line), number))
        (header, number), *rest = events
        if (header["format"], header["version"]) != ("lock-history", 1) or not rest:
            raise ValueError("no header of version 1 with events behind it")
        verdict = Verdict(header)
        for each in sorted(rest, key=lambda each: each[0]["t"]):
            event, number = each
            take(event, known, leases, others, verdict)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}, line {number}: {error!r}") from error
    admitted = [fault for fault in others["fault"] if fault.get("row") in header.get("rows", ())]
    for lock, asked in leases.items():
        kind, granted = header["locks"][lock], sorted((a for a in asked if a.got < NEVER), key=lambda each: each.got)
        alone = [lease for lease in granted if lease.mode == "exclusive"]
        handed = {(lease.client, lease.token + 1): lease for lease in alone if lease.token is not None}
        for lease in alone:  # what a client hands on, or takes again, goes back to the question that it had asked
            lease.since = handed.get((lease.client, lease.token), lease).since
        exclusion(granted, kind, admitted, verdict)
        fencing([lease for lease in alone if lease.token is not None], admitted, verdict)
        order(alone, header.get("overtake", 1), verdict)
        if (bound_s := kind.get("progress_s", header.get("progress_s"))) is not None:
            progress(granted, sorted(asked, key=lambda each: each.asked), others["fault"], bound_s, verdict)
    register(others["resource"], known, verdict)
    for left in others["left"]:
        verdict.judge("clean", not left["keys"], f"left on the server at the end: {left['keys'][:5]}")
    return verdict


def take(event: Any, known: dict[Any, Lease], leases: Any, others: Any, verdict: Verdict) -> None:
    """Take in one event."""
    kind, at, of = event["e"], event["t"], (event.get("p"), event.get("op"))
    if kind in ("fault", "left", "write", "read"):
        others["resource" if kind in ("write", "read") else kind].append(event)
    elif kind == "end":  # of a process: of all that run in it
        for each in (lease for lease in known.values() if f"{lease.name}.".startswith((f"{of[0]}.", f"{of[0]}#"))):
            each.ended = min(each.ended, at)
    elif kind == "ask" and event["do"] in ("acquire", "try"):
        if known.setdefault(of, lease := Lease(event)) is not lease:
            raise ValueError(f"asked for twice: {of}")
        leases[lease.lock].append(lease)
    elif kind in ("got", "trust"):
        lease = known[of]
        verdict.judge("told", lease.lost > at, f"{lease} is held at {at}, and was told of its loss at {lease.lost}")
        lease.until = NEVER if event["until"] is None else event["until"]
        if kind == "got":
            lease.got, lease.token = at, event["token"]
    elif kind == "released":
        known[of].released, known[of].ok = at, event["ok"]
    elif kind != "ask" or event["do"] != "extend":
        name = {"queued": "queued", "lost": "lost", "not": "ended", "ask": "leaves"}[kind]
        setattr(known[of], name, min(getattr(known[of], name), at))


def explained(x: Lease, y: Lease, faults: list[Any]) -> bool:
    """True if an admitted fault may have taken one of the leases away before the other was granted."""
    return any(a.since <= f["to"] and max(f["t"], a.since) <= b.got for f in faults for a, b in ((x, y), (y, x)))


def exclusion(granted: list[Lease], kind: Any, faults: list[Any], verdict: Verdict) -> None:
    """Judge that no two are trusted together; a client that was told "released" held it until it asked."""
    inside: list[Lease] = []
    for second in granted:
        inside = [each for each in inside if max(each.trusted_to, each.leaves if each.ok else 0) > second.got]
        trusted = [each for each in inside if min(each.trusted_to, second.trusted_to) > second.got]
        rivals = [each for each in inside if "exclusive" in (each.mode, second.mode)]
        late = [each for each in rivals if each.ok and each.leaves > second.got < second.trusted_to]
        still = [each for each in late if not explained(each, second, faults)]
        met = trusted if isinstance(second.mode, dict) else [each for each in rivals if each in trusted]
        bad = [each for each in met if not explained(each, second, faults)]
        if isinstance(second.mode, dict):  # too many with what a fault took away may be just enough without
            met, bad = (a if sum(x.mode["permits"] for x in (*a, second)) > kind["permits"] else [] for a in (met, bad))
        verdict.documented += len(met) - len(bad)
        verdict.judge("exclusion", not bad, f"{second.lock}: {str(bad)[1:-1]} and {second} trust it together")
        verdict.judge("told", not still, f"{second.lock}: {still[:1]} was told that it released what {second} had got")
        inside.append(second)


def fencing(granted: list[Lease], faults: list[Any], verdict: Verdict) -> None:
    """Judge that a later question gets a greater token; what an admitted fault took away may go on behind."""
    highest, seen = [*accumulate((lease.token for lease in granted), max)], dict[Any, Lease]()
    for lease in granted:
        before = bisect.bisect_left(granted, lease.asked, key=lambda each: each.got)
        other, twin = seen[highest[before - 1]] if before else None, seen.setdefault(lease.token, lease)
        lost = other and any(lease.since <= f["to"] and max(f["t"], lease.since) <= other.got for f in faults)
        verdict.documented += bool(lost and other and other.token >= lease.token)
        text = f"{lease.lock}: {lease} was asked for after {other} had been granted, with no greater token"
        verdict.judge("fencing", bool(lost) or other is None or other.token < lease.token, text)
        verdict.judge("fencing", twin is lease, f"{lease.lock}: {twin} and {lease} have the same token")


def register(events: list[Any], known: dict[Any, Lease], verdict: Verdict) -> None:
    """The resource takes nothing older than it has taken, refuses nothing else, and gives back what it took last."""
    newest, value = defaultdict[str, Any](lambda: (-NEVER, None)), dict[str, Any]()
    for event in events:
        lock, at, lease = event["lock"], event["t"], known.get((event["p"], event["op"]))
        mark = event["token"] if event["token"] is not None else lease.got if lease else NEVER
        right = event["ok"] == (mark >= newest[lock][0]) and event.get("from", at) <= at <= event.get("to", at)
        verdict.judge("register", right, f"{lock}: {event} after {newest[lock][1]}")
        if event["e"] == "write" and event["ok"]:
            newest[lock], value[lock] = max(newest[lock], (mark, at)), event["value"]
        elif event["ok"]:
            verdict.judge("register", event["value"] == value.get(lock), f"{lock}: {event}, not {value.get(lock)!r}")


def order(granted: list[Lease], most: int, verdict: Verdict) -> None:
    """Judge that a queued waiter is overtaken by `most` turns of each client: a turn has tokens that follow."""
    turn, began = [0] * len(granted), dict[str, float]()
    for at, (last, lease) in enumerate(pairwise([*granted[-1:], *granted])):
        began[lease.client] = min(lease.asked, began.get(lease.client, NEVER))
        turn[at] = turn[at - 1] + ((last.client, last.since) != (lease.client, lease.since))
    queued = {turn[at]: granted[at].queued for at in reversed(range(len(granted)))}
    for at, waiter in enumerate(granted):
        known = max(waiter.asked, queued[turn[at]])
        if known < waiter.got and waiter.asked - began[waiter.client] >= STARTS_NS:
            turns = defaultdict[str, set[int]](set)
            for other in range(bisect.bisect(granted, waiter.asked, key=lambda each: each.got), at):
                if granted[other].client != waiter.client and granted[other].asked > known + TOGETHER_NS:
                    turns[granted[other].client].add(turn[other])
            client, over = max(turns.items(), key=lambda each: len(each[1]), default=("", set[int]()))
            verdict.judge("order", len(over) <= most, f"{waiter.lock}: {len(over)} turns of {client} overtook {waiter}")


def progress(granted: list[Lease], asked: list[Lease], faults: list[Any], bound_s: float, verdict: Verdict) -> None:
    """Judge that a free lock is granted in time to a waiter, or until the last gives up; faults have to be over."""
    free_at, first = 0.0, 0
    gave_up = sorted((each for each in asked if each.got == NEVER > each.ended), key=lambda each: each.ended)[-1:]
    for lease in (*granted, *gave_up):
        at = min(lease.got, lease.ended)
        while first < len(asked) and min(asked[first].got, asked[first].ended) <= free_at:
            first += 1
        healed = [fault["to"] for fault in faults if fault["t"] <= at]
        waited_s = (at - max(free_at, *healed, asked[first].asked if first < len(asked) else NEVER)) / 1e9
        verdict.judge("progress", waited_s <= bound_s, f"{lease.lock}: free for {waited_s:.1f} s until {at}: {lease}")
        free_at = max(free_at, next(at for at in (lease.released, lease.until, lease.ended, free_at) if at < NEVER))


if __name__ == "__main__":
    found = [check(path) for path in sys.argv[1:]]
    for path, verdict in zip(sys.argv[1:], found, strict=True):
        counts = ", ".join(f"{rule} {verdict.judged[rule] or 'not judged'}" for rule in verdict.header["promises"])
        print(f"{path}: {'VIOLATED' if verdict.violations else 'holds'} ({counts}; {verdict.documented} documented)")
        print("".join(f"  {rule}: {text}\n" for rule, text in verdict.violations[:10]), end="")
    sys.exit(any(verdict.violations for verdict in found) or not found)
