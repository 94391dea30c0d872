"""A history as rows to look at: one column per client and server, time running down.

Shared by the terminal and the page. Repetition is folded: a client that is refused forty times in the same way
is told once, with a count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast_lab.history import LAB, Event, History
from holdfast_lab.verdicts import SAFE, Verdict

__all__ = ["OF_CLIENT", "Row", "Story", "tell"]


#: Random values: their beginning tells them apart.
_LONG_HEX = re.compile(r"\b(?=\d*[a-f])([0-9a-f]{6})[0-9a-f]{5,}(?::\S*)?(?:…\S*)?")


#: By the kind of an event of a client: how it stands from then on (None: as before), and what is said of it.
OF_CLIENT: dict[str, tuple[str | None, str]] = {
    "asks": ("waiting", "asks (ttl {ttl_ms} ms)"),
    "entered": ("inside", "ENTERS"),
    "left": ("out", "leaves"),
    "lost": ("out", "knows: LOST"),
    "killed": ("dead", "KILLED"),
    "ended": ("dead", "ENDS"),
    "gave up": ("out", "gives up"),
    "skipped": ("out", "ends its loop, skips the body"),
    "stopped": ("stopped", "STOPPED"),
    "continued": ("out", "goes on"),
    "continued inside": ("inside", "goes on"),
    "read": (None, "reads {value}"),
    "wrote": (None, "writes {value}"),
    "wrote with a fence": (None, "writes {value} (fence {fence})"),
    "refused to write": (None, "write {value} REFUSED (fence {fence})"),
    "failed": (None, "release fails: {error}"),
    "failed to acquire": ("out", "acquire fails: {error}"),
    "others": (None, "holds {held} locks of other names"),
    "check failed": (None, "check fails: {error}"),
    "clock": (None, "clock {offset_s:+g} s"),
    "looked": (None, "looks: holds"),
    "conflict": (None, "EXEC said nil: again"),
    "interrupted": (None, "IS INTERRUPTED"),
    "hangs": (None, "still waits for a connection"),
    "releases": (None, "gives back"),
}


@dataclass(slots=True)
class Row:
    """One line: when (ms from the start), what each lane says, and how each client stands from here on.

    ``states``: out, waiting, inside, stopped (with ``inside`` remembered in ``inside``), dead, lost.
    ``note``: a sentence across all lanes, of kind "fault", "healed" or a verdict's kind.
    """

    at_ms: float
    cells: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    note: tuple[str, str] | None = None


@dataclass(slots=True)
class Story:
    """All rows of a run, and its lanes from left to right."""

    clients: list[str]
    servers: list[str]
    rows: list[Row]

    @property
    def lanes(self) -> list[str]:
        return [*self.clients, *self.servers]


def tell(history: History, verdicts: Sequence[Verdict] = ()) -> Story:
    """Put a judged history into rows."""
    return _Teller(history, verdicts).story()


class _Teller:
    def __init__(self, history: History, verdicts: Sequence[Verdict]) -> None:
        self._history = history
        self._verdicts = sorted((v for v in verdicts if v.kind != SAFE), key=lambda verdict: verdict.at_ns)
        self._rows: list[Row] = []
        self._states = dict.fromkeys(history.clients, "out")
        self._inside: set[str] = set()

    def story(self) -> Story:
        self._history.sort()
        shown = [event for event in self._history.events if self._is_worth_telling(event)]
        due = list(self._verdicts)
        for event, repeats in _folded(shown, self._history.clients):
            while due and due[0].at_ns < event.at_ns:
                self._judge(due.pop(0))
            self._tell(event, repeats)
        for verdict in due:
            self._judge(verdict)
        used = {lane for row in self._rows for lane in row.cells}
        clients = [c for c in self._history.clients if c in used]
        return Story(clients, list(self._history.servers), self._rows)

    def _is_worth_telling(self, event: Event) -> bool:
        if event.kind in ("acquired", "released", "broken", "others gone"):
            return False
        if event.kind == "command" and event.get("phase") == "holding" and self._history.lock_keys:
            # What goes on beside the lock, as introducing oneself, is of no interest here.
            return "KEY" in self._short(event.get("text"))
        if event.kind == "clock" and event.lane in self._history.clients:
            return True
        keys = self._history.lock_keys
        if event.kind in ("key", "left over", "prolonged"):
            if event.kind == "left over" and event.get("ttl_ms") != -1:
                return False
            return not keys or event.get("key") in keys
        return True

    def _judge(self, verdict: Verdict) -> None:
        self._rows.append(Row(self._ms(verdict.at_ns), {}, dict(self._states), (verdict.kind, verdict.sentence)))

    def _ms(self, at_ns: int) -> float:
        return (at_ns - self._history.start_ns) / 1e6

    def _tell(self, event: Event, repeats: int) -> None:
        row = Row(self._ms(event.at_ns))
        if event.lane == LAB:
            row.note = ("fault" if event.kind == "fault" else "healed", event.get("text", ""))
        elif event.kind == "command":
            client = event.get("client")
            many = f"{repeats + 1}× " if repeats else ""
            row.cells[client] = f"{many}{self._short(event.get('text'))} →"
            row.cells[event.lane] = self._short(_answer(event))
        elif event.lane in self._states:
            row.cells[event.lane] = self._of_client(event)
        else:
            row.cells[event.lane] = self._short(_of_server(event))
        row.states = dict(self._states)
        self._rows.append(row)

    def _of_client(self, event: Event) -> str:
        lane, kind = event.lane, event.kind
        if kind == "continued" and lane in self._inside:
            kind = "continued inside"
        elif kind == "killed" and self._history.threads:
            kind = "ended"
        elif kind == "wrote" and event.get("fence") is not None:
            kind = "wrote with a fence" if event.get("accepted", True) else "refused to write"
        elif kind == "failed" and event.get("doing") == "acquire":
            kind = "failed to acquire"
        state, text = OF_CLIENT.get(kind, (None, kind))
        if state is not None:
            self._states[lane] = state
        if state == "inside":
            self._inside.add(lane)
        elif state in ("out", "dead"):
            self._inside.discard(lane)
        return text.format_map({**event.data, "fence": _tail(event.get("fence"))})

    def _short(self, text: str) -> str:
        """With the lock's own key, which is everywhere, as KEY."""
        for key in self._history.lock_keys:
            text = text.replace(key, "KEY").replace(_middle(key), "KEY")
        return _LONG_HEX.sub(r"\1…", text)


def _middle(key: str) -> str:
    """The key as the record shows it when it is long."""
    return key if len(key) <= 28 else key[:12] + "…" + key[-6:]


def _tail(fence: object) -> str:
    text = str(fence)
    return text if len(text) <= 6 else "…" + text[-6:]


def _answer(event: Event) -> str:
    fate = event.get("fate")
    reply = event.get("reply")
    if reply is None:
        return f"✗ {fate or 'no answer'}"
    return f"← {reply}" if not fate else f"← {reply} ✗ {fate}"


def _of_server(event: Event) -> str:
    kind = event.kind
    if kind == "key":
        name = event.get("key")
        if event.get("now") is not None:
            ttl = event.get("ttl_ms", -1)
            lasts = f"{ttl} ms" if ttl is not None and ttl >= 0 else "no ttl"
            return f"{name} = {_cut(event.get('now'))} ({lasts})"
        if event.get("by") == "expiry":
            return f"{name} EXPIRED"
        who = event.get("by")
        return f"{name} gone" if who in ("lab", "unseen") else f"{name} removed by {who}"
    if kind == "prolonged":
        return f"{event.get('key')} again for {event.get('ttl_ms')} ms"
    if kind == "started":
        return "starts, empty" if event.get("empty", True) else "starts, with its data"
    if kind == "left over":
        return f"left forever: {event.get('key')} = {_cut(event.get('value'))}"
    if kind == "clock":
        return f"CLOCK {event.get('offset_s'):+g} s"
    return {
        "killed": "KILLED",
        "stopped": "STOPPED",
        "continued": "goes on",
        "promoted": "PROMOTED",
    }.get(kind, kind)


def _cut(value: object, most: int = 40) -> str:
    text = str(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def _folded(events: Sequence[Event], clients: Sequence[str]) -> list[tuple[Event, int]]:
    """Events with how often they were repeated.

    An attempt is what a client sends, and what that changes, until it is refused. What it repeats within an attempt,
    and a whole attempt with the same commands as the one before it, is not told again, but counted.
    """
    dropped: set[int] = set()
    repeats: dict[int, int] = {}
    for of_client in _attempts(events, clients).values():
        told: dict[tuple[object, ...], int] = {}
        for attempt in of_client:
            first: dict[tuple[object, ...], int] = {}
            for n in attempt:
                if _signature(events[n]) in first:
                    dropped.add(n)
                    repeats[first[_signature(events[n])]] = repeats.get(first[_signature(events[n])], 0) + 1
                else:
                    first[_signature(events[n])] = n
            if told and _commands(told) == _commands(first):
                dropped.update(attempt)
                for like, n in told.items():
                    repeats[n] = repeats.get(n, 0) + 1 + repeats.get(first.get(like, -1), 0)
            else:
                told = first
    told_events = [(event, repeats.get(n, 0)) for n, event in enumerate(events) if n not in dropped]
    return [(event, times) for event, times in told_events if event.kind != "refused"]


def _commands(signatures: dict[tuple[object, ...], int]) -> set[tuple[object, ...]]:
    return {like for like in signatures if like[0] == "command"}


def _signature(event: Event) -> tuple[object, ...]:
    """Two events of an attempt that have the same one are the same to a reader."""
    if event.kind == "command":
        return "command", event.lane, str(event.get("text")).split(" ", 2)[:2][-1], event.get("fate")
    if event.kind == "prolonged":
        return "prolonged", event.lane, event.get("key")
    if event.kind == "key":
        return "key", event.lane, event.get("key"), event.get("now") is None
    return event.kind, str(event.get("error"))[:20]


def _attempts(events: Sequence[Event], clients: Sequence[str]) -> dict[str, list[list[int]]]:
    """Of each client, the positions of the events of each attempt that came to nothing."""
    found: dict[str, list[list[int]]] = {client: [] for client in clients}
    current: dict[str, list[int]] = {}
    for n, event in enumerate(events):
        client = {"command": event.get("client"), "key": event.get("by"), "prolonged": event.get("by")}.get(
            event.kind, event.lane
        )
        if client not in found:
            continue
        if event.kind == "asks":
            current[client] = []
        elif event.kind == "entered":
            current.pop(client, None)
        elif client in current:
            if event.kind in ("refused", "failed"):
                if current[client]:
                    found[client].append(current[client] + ([n] if event.kind == "failed" else []))
                current[client] = []
            elif event.kind in ("command", "key", "prolonged"):
                current[client].append(n)
    for client, unfinished in current.items():
        found[client].append(unfinished)
    return found
