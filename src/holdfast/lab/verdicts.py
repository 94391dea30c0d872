"""What a history proves. Nothing here knows which scheme ought to pass which fault.

Law: every verdict follows from events and their real-time order alone, and names who and when.

Theory: a client is inside its critical section from ``entered`` to ``left``; a killed one until it was
killed (a dead process does nothing); one that was only stopped still believes that it is inside. A client
that noticed its loss by itself was inside for as long as it relied on its lease (``since_ns``), or acted,
whichever ended later: it did nothing after that. Two sections of different clients that share a moment
exclude badly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from holdfast.lab.history import Event, History

__all__ = ["KINDS", "MARKS", "SAFE", "Section", "Verdict", "judge", "sections", "worst"]

SAFE = "safe"
#: From the worst to the best.
KINDS = ("exclusion violated", "lost update", "foreign release", "stuck", "unavailable", SAFE)
#: A sign for each, so that nothing hangs on colour.
MARKS = {
    "exclusion violated": "✗✗",
    "lost update": "≠",
    "foreign release": "✂",
    "stuck": "∞",
    "unavailable": "…",
    SAFE: "✓",
    "not run": "–",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One finding: its kind, a sentence that says who and when, and the moment it became true."""

    kind: str
    sentence: str
    at_ns: int
    who: tuple[str, ...] = ()

    def as_json(self, start_ns: int = 0) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "sentence": self.sentence,
            "at_ms": round((self.at_ns - start_ns) / 1e6, 1),
            "who": list(self.who),
        }


@dataclass(frozen=True, slots=True)
class Section:
    """A stay inside the critical section; `end_ns` is exclusive."""

    client: str
    start_ns: int
    end_ns: int
    ended: str


def sections(history: History) -> list[Section]:
    """Every stay of every client, in order of entering."""
    found = []
    for client in history.clients:
        inside: Event | None = None
        last_act_ns = 0
        for event in history.events:
            if event.lane != client:
                continue
            if event.kind == "entered":
                inside, last_act_ns = event, event.at_ns
            elif inside is None:
                continue
            elif event.kind in ("read", "wrote"):
                last_act_ns = event.at_ns
            elif event.kind in ("left", "killed", "lost"):
                end_ns = event.at_ns
                if event.kind == "lost":
                    end_ns = min(end_ns, max(event.get("since_ns", end_ns), last_act_ns))
                found.append(Section(client, inside.at_ns, end_ns, event.kind))
                inside = None
        if inside is not None:
            found.append(Section(client, inside.at_ns, history.end_ns + 1, "still inside"))
    return sorted(found, key=lambda section: section.start_ns)


def judge(history: History) -> list[Verdict]:
    """All findings, the worst first; a single ``safe`` where there is none."""
    history.sort()
    found = [
        *(_excluded_badly(history) if history.exclusive else ()),
        *_lost_updates(history),
        *(_foreign_releases(history) if history.exclusive else ()),
    ]
    stuck = _stuck(history)
    found += stuck or _unavailable(history)
    found.sort(key=lambda verdict: (KINDS.index(verdict.kind), verdict.at_ns))
    return found or [Verdict(SAFE, _why_safe(history), history.end_ns)]


def worst(verdicts: Iterable[Verdict]) -> str:
    """The kind of the worst finding."""
    return min((verdict.kind for verdict in verdicts), key=KINDS.index, default=SAFE)


def _ms(history: History, at_ns: int) -> str:
    return f"{(at_ns - history.start_ns) / 1e6:.0f} ms"


def _excluded_badly(history: History) -> list[Verdict]:
    found = []
    stays = sections(history)
    for index, first in enumerate(stays):
        for second in stays[index + 1 :]:
            if second.client != first.client and second.start_ns < first.end_ns:
                until = min(first.end_ns, second.end_ns)
                found.append(
                    Verdict(
                        "exclusion violated",
                        f"{first.client} and {second.client} were both inside "
                        f"from {_ms(history, second.start_ns)} to {_ms(history, until)}",
                        second.start_ns,
                        (first.client, second.client),
                    )
                )
    return found


def _lost_updates(history: History) -> list[Verdict]:
    """Two accepted writes that start from the same value: the later one wiped out the earlier."""
    found = []
    from_base: dict[int, Event] = {}
    for event in history.of("wrote"):
        if not event.get("accepted", True):
            continue
        base = event.get("base")
        earlier = from_base.setdefault(base, event)
        if earlier is not event:
            found.append(
                Verdict(
                    "lost update",
                    f"{event.lane} and {earlier.lane} both made {event.get('value')} out of {base}: "
                    f"the write of {earlier.lane} at {_ms(history, earlier.at_ns)} is lost",
                    event.at_ns,
                    (event.lane, earlier.lane),
                )
            )
    return found


@dataclass(slots=True)
class _Tenancy:
    """Whose lock a key stands for: `tenant`, once a client was told so; `writer` and `written_ns` of its value."""

    writer: str
    written_ns: int
    tenant: str | None = None


def _foreign_releases(history: History) -> list[Verdict]:
    """A command of one client removed the lock's key while it stood for the lock of another.

    A key becomes the lock of the client that wrote it when that client is told "acquired". One that another client
    else wrote meanwhile with its release, handing the lock on, becomes the lock of the client told next. Keys that
    were there before one asked are not one's own.
    """
    found = []
    keys: dict[tuple[str, str], _Tenancy] = {}
    asked_ns: dict[str, int] = {}
    releasing: set[str] = set()
    for event in history.events:
        client = event.lane
        if event.kind == "asks":
            asked_ns[client] = event.at_ns
            releasing.discard(client)
        elif event.kind == "releases":
            releasing.add(client)
        elif event.kind == "acquired":
            for key in keys.values():
                meanwhile = key.tenant is None and key.written_ns >= asked_ns.get(client, 0)
                if key.writer == client or (meanwhile and key.writer in releasing):
                    key.tenant = client
        if event.kind != "key" or not _is_lock_key(history, event.get("key"), event.get("type", "string")):
            continue
        where, by = (event.lane, event.get("key")), event.get("by")
        key_now = keys.get(where)
        if event.get("now") is None:
            keys.pop(where, None)
            tenant = key_now.tenant if key_now is not None else None
            if tenant is not None and by in history.clients and by != tenant:
                found.append(
                    Verdict(
                        "foreign release",
                        f"{by} removed {event.get('key')} from {event.lane} at {_ms(history, event.at_ns)}, "
                        f"when it was the lock of {tenant}",
                        event.at_ns,
                        (by, tenant),
                    )
                )
        elif key_now is None or event.get("was") is None:
            keys[where] = _Tenancy(by, event.at_ns)
        else:
            key_now.writer, key_now.written_ns = by, event.at_ns
            if by == key_now.tenant and by in releasing:
                key_now.tenant = None  # handed on
    return found


def _is_idle(history: History, client: str, at_ns: int) -> bool:
    """Whether that client neither holds nor is about to give back: nothing more will come from it."""
    state = "idle"
    for event in history.of(
        "acquired", "released", "failed", "lost", "killed", "gave up", "asks", "refused", lane=client
    ):
        if event.at_ns > at_ns:
            break
        state = event.kind
    return state != "acquired"


def _stuck(history: History) -> list[Verdict]:
    """The last to ask waited far longer than any lease of others, there is no holder, and a key stays forever.

    What was waited counts from the moment when the last of the others was through.
    """
    asked = [event for event in history.of("asks") if not _got_it(history, event)]
    left = [
        event
        for event in history.of("left over")
        if event.get("ttl_ms") == -1 and _is_lock_key(history, event.get("key"))
    ]
    if not asked or not left:
        return []
    last = asked[-1]
    others = [client for client in history.clients if client != last.lane]
    if not all(_is_idle(history, client, history.end_ns) for client in others):
        return []
    ends = [event.at_ns for event in history.of("released", "failed", "lost", "killed", "left") if event.lane in others]
    since_ns = max([last.at_ns, *ends])
    ended = next((e.at_ns for e in history.of("gave up", lane=last.lane)), history.end_ns)
    ttl_ms = max((event.get("ttl_ms", 0) for event in history.of("asks") if event.lane in others), default=0)
    if (ended - since_ns) / 1e6 < 2 * ttl_ms:
        return []
    keys = ", ".join(f"{event.get('key')} = {event.get('value')}" for event in left)
    return [
        Verdict(
            "stuck",
            f"{last.lane} waited {(ended - since_ns) / 1e9:.1f} s and no client held the lock; "
            f"left forever on {left[0].lane}: {keys}",
            since_ns,
            (last.lane,),
        )
    ]


def _is_lock_key(history: History, key: str, kind: str = "string") -> bool:
    """Whether that key is the lock; where that is not known, any string may be."""
    return key in history.lock_keys if history.lock_keys else kind == "string"


def _got_it(history: History, asked: Event) -> bool:
    return any(event.at_ns >= asked.at_ns for event in history.of("acquired", lane=asked.lane))


def _unavailable(history: History) -> list[Verdict]:
    """While a lasting fault was on, some asked, none held, and none acquired."""
    found = []
    for fault in history.of("fault"):
        if not fault.get("lasting"):
            continue
        until = next((event.at_ns for event in history.of("healed") if event.at_ns > fault.at_ns), history.end_ns)
        during = [e for e in history.events if fault.at_ns <= e.at_ns <= until]
        asked = [e for e in during if e.kind == "asks"]
        held = any(s.start_ns <= until and s.end_ns > fault.at_ns for s in sections(history))
        if asked and not held and not any(e.kind == "acquired" for e in during):
            tries = sum(e.kind in ("refused", "failed") for e in during)
            found.append(
                Verdict(
                    "unavailable",
                    f"no client acquired in the {(until - asked[0].at_ns) / 1e9:.1f} s that "
                    f"{asked[0].lane} asked while the fault lasted ({tries} attempts came back without)",
                    asked[0].at_ns,
                    (asked[0].lane,),
                )
            )
    return found


def _why_safe(history: History) -> str:
    by_client: dict[str, int] = defaultdict(int)
    for section in sections(history):
        by_client[section.client] += 1
    inside = ", ".join(f"{client} {count}×" for client, count in by_client.items()) or "none"
    said = "".join(
        f"; {event.lane} noticed by itself that its lease was over ({_ms(history, event.at_ns)})"
        for event in history.of("lost")
    )
    refused = sum(not event.get("accepted", True) for event in history.of("wrote"))
    fenced = f"; {refused} late write refused by its fencing token" if refused else ""
    together = "never two inside" if history.exclusive else "no update lost"
    return f"inside: {inside}; {together}{said}{fenced}"
