"""Looks at the locks, again and again, for all browsers together.

Laws: one look at a time, however many browsers there are; the pause between two looks is at least as long as a look
took, so that no server is kept busy; what is remembered is bounded; no message is kept for a browser that reads slowly:
the next one tells it all that has changed meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

from holdfast import Change, Listed
from holdfast._api.changes import changes, grants
from holdfast.errors import HoldfastError
from holdfast.web import view
from holdfast.web.rates import Rates

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
        self._seen: dict[str, Listed] = {}
        self._error: str | None = None
        self._deadlocks: list[list[dict[str, Any]]] = []
        self._deadlocks_at = 0.0
        self._looks = self._grants = self._at_ms = 0
        self._took_s = 0.0
        #: A dict of its own for each look; in it, the row of the look before where that says the same.
        self._rows: dict[str, dict[str, Any]] = {}
        #: The one that changed last is at the end.
        self._histories: dict[str, deque[dict[str, Any]]] = {}
        self._rates = Rates()
        self._streams = 0
        #: By the `id` of the rows that a browser knows: what it is told. And what is set when there is more to tell.
        self._messages: dict[int, bytes] = {}
        self._news = asyncio.Event()
        self._stopped = False
        self._wanted = asyncio.Event()

    async def run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(LOOK_MAX_S):
                    await self._look()
                self._error = None
            except Exception as error:  # a mistake of ours, too: the page shows it, and the next look may succeed
                wrong = TimeoutError(f"no answer within {LOOK_MAX_S:g} s") if isinstance(error, TimeoutError) else error
                if self._error is None:
                    self._trouble(wrong)
                known = isinstance(wrong, (HoldfastError, TimeoutError))
                self._error = str(wrong) if known else f"{type(wrong).__name__}: {wrong}"
            self._took_s = time.monotonic() - began
            self._looks += 1
            self._tell()
            pause_s = max(self._took_s, (self._interval_s if self._streams else IDLE_S) - self._took_s)
            self._wanted.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wanted.wait()

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield what a browser is told: everything, then what changes, as JSON; until `stop`."""
        if not self._streams:
            self._wanted.set()
        self._streams += 1
        known: dict[str, dict[str, Any]] | None = None
        try:
            while not self._stopped:
                news, message, known = self._news, self._message(known), self._rows
                yield message
                await news.wait()
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
            if which in self._seen:
                found.append(view.detail_of(self._seen[which], self._rates.of(which), history))
            elif history:
                gone = {"id": which, "kind": kind, "name": name, "held": 0, "waiters": 0}
                found.append({**gone, "history": list(history)})
        return found

    async def take_away(self, kind: str, name: str, token: str, confirm: str, reason: str) -> tuple[int, str]:
        """Break the lease of that token, if `confirm` names its holder; a status of HTTP, and what to say."""
        seen = self._seen.get(view.id_by(kind, name))
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
        return {
            "at": self._at_ms,
            "error": self._error,
            "truncated": len(self._seen) >= ROWS_MAX,
            "looks": self._looks,
            "deadlocks": self._deadlocks,
            "rows": list(self._rows.values()),
        }

    def metrics(self) -> str:
        return view.metrics(self._seen.values(), self._error is None, self._took_s, self._looks, self._grants)

    async def _look(self) -> None:
        found: dict[str, Listed] = {}
        async with contextlib.aclosing(self._client.list(self._pattern, grants=True)) as listing:
            async for each in listing:
                found[view.id_of(each)] = each
                if len(found) >= ROWS_MAX:
                    break
        latest = max((each.seen_at for each in found.values()), default=None)
        after = dict(found)
        for which, before in self._seen.items() if len(found) < ROWS_MAX else ():
            gone = replace(before, holders=(), held=0, queue=(), waiters=0, seen_at=latest or before.seen_at)
            after.setdefault(which, gone)
        happened = {which: list(changes(self._seen.get(which), each)) for which, each in after.items()}
        await self._explain(happened)
        is_first, self._at_ms = not self._at_ms, round(time.time() * 1000) if latest is None else view.ms(latest)
        for which, some in happened.items():
            if some:
                history = self._histories.pop(which, None) or deque(maxlen=HISTORY_MAX)
                history.extend(map(view.change_of, some))
                self._histories[which] = history
            granted = 0 if is_first else grants(some)
            self._grants += granted
            if which in found:
                self._rates.saw(which, found[which], granted)
        self._seen = found
        self._forget()
        await self._look_for_deadlocks()
        rows = {which: view.row_of(each, self._rates.of(which)) for which, each in found.items()}
        self._rows = {which: _kept(self._rows.get(which), row) for which, row in rows.items()}

    async def _explain(self, told: dict[str, list[Change]]) -> None:
        """Find out which leases that ended were broken, before any browser can ask."""
        ended = [(some, place) for some in told.values() for place, each in enumerate(some) if each.what in ENDS]
        asked = ended[-EXPLAINED_MAX:]
        explained = await asyncio.gather(*(self._client.explain(some[place]) for some, place in asked))
        for (some, place), change in zip(asked, explained, strict=True):
            some[place] = change

    async def _look_for_deadlocks(self) -> None:
        now = time.monotonic()
        if now >= self._deadlocks_at:
            self._deadlocks_at = now + DEADLOCKS_S
            waited = any(each.waiters for each in self._seen.values())
            told = [view.deadlock_of(each) for each in await self._client.deadlocks()] if waited else []
            self._deadlocks = [
                each for each in told if any(view.id_by(one["kind"], one["name"]) in self._seen for one in each)
            ]

    def _forget(self) -> None:
        since = self._at_ms - HISTORY_S * 1000
        kept = [
            (which, each) for which, each in self._histories.items() if which in self._seen or each[-1]["at"] > since
        ]
        self._histories = dict(kept[-HISTORIES_MAX:])
        self._rates.forget(self._at_ms / 1000)

    def _tell(self) -> None:
        self._messages.clear()
        self._news.set()
        self._news = asyncio.Event()

    def _message(self, known: dict[str, dict[str, Any]] | None) -> bytes:
        """Return what a browser is told that knows these rows."""
        message = self._messages.get(id(known))
        if message is None:
            told = self.table()
            if known is None:
                told["all"] = True
            else:
                told["rows"] = [row for which, row in self._rows.items() if known.get(which) is not row]
                told["gone"] = [which for which in known if which not in self._rows]
            message = self._messages[id(known)] = json.dumps(told, separators=(",", ":")).encode()
        return message


def _kept(before: dict[str, Any] | None, after: dict[str, Any]) -> dict[str, Any]:
    """Return the row of the look before, if this one says nothing else."""
    if before is None or any(before[key] != after[key] for key in after if key not in ("until", "oldest")):
        return after
    pairs = ((before[key], after[key]) for key in ("until", "oldest"))
    same = all(one == other or (one and other and abs(one - other) < SAME_MS) for one, other in pairs)
    return before if same else after
