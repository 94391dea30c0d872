"""Looks at the locks, again and again, for all browsers together.

Laws: one look at a time, however many browsers there are; the pause between two looks is at least as long as a look
took, so that no server is kept busy; what is remembered is bounded; a browser that reads too slowly gets the whole
picture again instead of a growing backlog.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

from holdfast import Change, Listed
from holdfast._api.changes import changes, grants
from holdfast.errors import HoldfastError
from holdfast.web import view
from holdfast.web.rates import Rates

__all__ = ["Poller"]

#: Rows of the table, at most: more are not looked for.
ROWS_MAX = 20_000
#: Locks whose changes are remembered, changes of each, and for how long, s.
HISTORIES_MAX, HISTORY_MAX, HISTORY_S = 5_000, 200, 600.0
#: The pause while no browser looks on, s: the history goes on.
IDLE_S = 2.0
#: How often it looks for deadlocks, s, while anything is waited for.
DEADLOCKS_S = 2.0
#: How a lease ends as two looks show it, and of how many it is looked up after each whether they were broken.
ENDS, EXPLAINED_MAX = ("released", "expired"), 50
#: A look that takes longer has failed, s.
LOOK_MAX_S = 20.0
#: Messages that a browser may be behind.
BACKLOG_MAX = 4
#: A lease whose end has moved by less is not told again, ms: that is how exactly it is known.
SAME_MS = 250


class Poller:
    """Return what is known of the locks that fit `pattern`. `client`: of the asyncio API.

    `trouble`: says what a look that failed has raised; called with it once, until a look succeeds.
    """

    def __init__(
        self, client: Any, pattern: str, interval_s: float, trouble: Callable[[Exception], object] = lambda error: None
    ) -> None:
        self._client = client
        self._pattern = pattern
        self._interval_s = interval_s
        self._trouble = trouble
        self.seen: dict[str, Listed] = {}
        self.error: str | None = None
        self.truncated = False
        self.deadlocks: list[list[dict[str, Any]]] = []
        self._deadlocks_at = 0.0
        self.looks = self.grants = 0
        self.took_s = 0.0
        self._at_ms = 0
        self._rows: dict[str, dict[str, Any]] = {}
        self._histories: OrderedDict[str, deque[dict[str, Any]]] = OrderedDict()
        self._rates = Rates()
        self._streams = 0
        #: How many messages the browsers were told, the latest of them, and what is set by the next one.
        self._told = 0
        self._latest: deque[bytes] = deque(maxlen=BACKLOG_MAX)
        self._news = asyncio.Event()
        self._stopped = False
        self._wanted = asyncio.Event()
        self._whole: bytes | None = None

    async def run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(LOOK_MAX_S):
                    await self._look()
                self.error = None
            except Exception as error:  # a mistake of ours, too: the page shows it, and the next look may succeed
                wrong = TimeoutError(f"no answer within {LOOK_MAX_S:g} s") if isinstance(error, TimeoutError) else error
                if self.error is None:
                    self._trouble(wrong)
                known = isinstance(wrong, (HoldfastError, TimeoutError))
                self.error = str(wrong) if known else f"{type(wrong).__name__}: {wrong}"
                self._tell({})
            self.took_s = time.monotonic() - began
            self.looks += 1
            pause_s = max(self.took_s, (self._interval_s if self._streams else IDLE_S) - self.took_s)
            self._wanted.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wanted.wait()

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield what a browser is told: everything, then what changes, as JSON; until `stop`."""
        if not self._streams:
            self._wanted.set()
        self._streams += 1
        told = -1
        try:
            while not self._stopped:
                missed, told = self._told - told, self._told
                for message in [*self._latest][-missed:] if missed <= len(self._latest) else [self._snapshot()]:
                    yield message
                if told == self._told:
                    await self._news.wait()
        finally:
            self._streams -= 1

    def stop(self) -> None:
        """End all streams."""
        self._stopped = True
        self._news.set()

    def detail(self, name: str) -> list[dict[str, Any]]:
        """All that is known of what has this name: a lock, a semaphore, an election."""
        found = []
        for kind in ("lock", "semaphore", "election"):
            which = view.id_by(kind, name)
            history = self._histories.get(which, ())
            if which in self.seen:
                found.append(view.detail_of(self.seen[which], self._rates.of(which), history))
            elif history:
                gone = {"id": which, "kind": kind, "name": name, "held": 0, "waiters": 0}
                found.append({**gone, "history": list(history)})
        return found

    async def take_away(self, kind: str, name: str, token: str, confirm: str, reason: str) -> tuple[int, str]:
        """Break the lease of that token, if `confirm` names its holder; a status of HTTP, and what to say."""
        which = view.id_by(kind, name)
        seen = self.seen.get(which)
        holder = next((each for each in seen.holders if each.token == token), None) if seen is not None else None
        if seen is None or holder is None:
            return 409, "it is not held by that one any more"
        if confirm.strip() != view.label(holder):
            return 409, f"to confirm, name the holder: {view.label(holder)}"
        broken = await self._client.break_(name, kind=seen.kind, holder=token, reason=reason)
        self._wanted.set()
        if not broken:
            return 409, "it is not held by that one any more"
        return 200, "released on its behalf: it did not answer" if broken.forced else "its holder has let go"

    def table(self) -> dict[str, Any]:
        """All rows, and how it stands with the server."""
        return {**self._state(), "rows": list(self._rows.values())}

    def metrics(self) -> str:
        return view.metrics(self.seen.values(), self.error is None, self.took_s, self.looks, self.grants)

    def _state(self) -> dict[str, Any]:
        facts = {"at": self._at_ms, "error": self.error, "truncated": self.truncated, "looks": self.looks}
        return {**facts, "deadlocks": self.deadlocks}

    def _snapshot(self) -> bytes:
        if self._whole is None:
            self._whole = _json({**self.table(), "all": True})
        return self._whole

    async def _look(self) -> None:
        found: dict[str, Listed] = {}
        truncated = False
        async with contextlib.aclosing(self._client.list(self._pattern, grants=True)) as listing:
            async for each in listing:
                found[view.id_of(each)] = each
                if len(found) >= ROWS_MAX:
                    truncated = True
                    break
        first, self.truncated = not self._at_ms, truncated
        latest = max((each.seen_at for each in found.values()), default=None)
        self._at_ms = round(time.time() * 1000) if latest is None else view.ms(latest)
        happened = {which: list(changes(self.seen.get(which), after)) for which, after in found.items()}
        for which, before in self.seen.items():
            if which not in found and not truncated:
                gone = replace(before, holders=(), held=0, queue=(), waiters=0, seen_at=latest or before.seen_at)
                happened[which] = list(changes(before, gone))
        await self._explain(happened)
        for which, some in happened.items():
            self._remember(which, some)
            granted = 0 if first else grants(some)
            self.grants += granted
            if which in found:
                self._rates.saw(which, found[which], granted)
        self.seen = found
        now = time.monotonic()
        if now >= self._deadlocks_at:
            self._deadlocks_at = now + DEADLOCKS_S
            waited = any(each.waiters for each in found.values())
            told = [view.deadlock_of(each) for each in await self._client.deadlocks()] if waited else []
            self.deadlocks = [
                each for each in told if any(view.id_by(one["kind"], one["name"]) in found for one in each)
            ]
        self._forget()
        self._tell({which: view.row_of(each, self._rates.of(which)) for which, each in found.items()})

    async def _explain(self, told: dict[str, list[Change]]) -> None:
        """Find out which leases that ended were broken, before any browser can ask."""
        ended = [(some, place) for some in told.values() for place, each in enumerate(some) if each.what in ENDS]
        asked = ended[-EXPLAINED_MAX:]
        explained = await asyncio.gather(*(self._client.explain(some[place]) for some, place in asked))
        for (some, place), change in zip(asked, explained, strict=True):
            some[place] = change

    def _remember(self, which: str, told: list[Change]) -> None:
        if told:
            self._histories.setdefault(which, deque(maxlen=HISTORY_MAX)).extend(map(view.change_of, told))
            self._histories.move_to_end(which)

    def _forget(self) -> None:
        while len(self._histories) > HISTORIES_MAX:
            self._histories.popitem(last=False)
        while self._histories:
            which, history = next(iter(self._histories.items()))
            if which in self.seen or history[-1]["at"] > self._at_ms - HISTORY_S * 1000:
                break
            del self._histories[which]
        self._rates.forget(self._at_ms / 1000)

    def _tell(self, rows: dict[str, dict[str, Any]]) -> None:
        """Tell the browsers what has changed; without rows, only how it stands with the server."""
        changed, gone = [], []
        if self.error is None:
            changed = [row for which, row in rows.items() if not _same(self._rows.get(which), row)]
            gone = [which for which in self._rows if which not in rows]
            for which in gone:
                del self._rows[which]
            self._rows.update((row["id"], row) for row in changed)
        self._whole = None
        self._latest.append(_json({**self._state(), "rows": changed, "gone": gone}))
        self._told += 1
        self._news.set()
        self._news = asyncio.Event()


def _same(before: dict[str, Any] | None, after: dict[str, Any]) -> bool:
    if before is None or any(before[key] != after[key] for key in after if key not in ("until", "oldest")):
        return False
    pairs = ((before[key], after[key]) for key in ("until", "oldest"))
    return all(one == other or (one and other and abs(one - other) < SAME_MS) for one, other in pairs)


def _json(data: dict[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()
