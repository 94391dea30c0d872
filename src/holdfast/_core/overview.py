"""Looks at a server, for people: which locks there are, and what else lies under a name.

Laws: nothing is changed; no command holds up the server, however many keys it has (SCAN, and a script that looks at
few names); a name is given once for each kind.

Theory: a lock, semaphore or election is there while its main key is, or its queue. SCAN gives keys in no order, some
of them twice, and what comes or goes meanwhile may be missed. The names behind a page of keys are looked at by one
call; in a Cluster, where each may have a slot of its own, by one call each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, NamedTuple

from holdfast._core.condition import condition_key
from holdfast._core.effects import Call, Command, Listen, Reply
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import LockKeys, lock_keys, name_within
from holdfast._core.kinds import ALONE, BARRIER, CONDITION, KINDS, LEASED, LISTED
from holdfast._core.replies import SCANNED, text_of
from holdfast._core.settings import Settings
from holdfast._core.tokens import seen_fence
from holdfast._core.waiting import once_more

#: Keys that one SCAN goes over, at most; names that one call looks at, and holders that it names, and as many waiters:
#: 0.1, 0.2 and 0.6 ms of the server's CPU.
SCAN_COUNT, NAMES_MAX, NAMED_MAX = 100, 10, 512
#: For how long grants are counted that no one asks for any more, ms.
COUNTED_MS = 60_000

#: By the part of its keys' names, what is listed.
_KIND_OF = {kind.part: name for name, kind in LISTED.items()}
_KEY = re.compile(rf"(?s:(.*))\}}(?::({'|'.join(filter(None, _KIND_OF))}))?(?:|:queue|:holders|:readers)")
_SPECIAL = re.compile(r"[\\*?\[\]]")
_QUOTED = r"\\\g<0>"
#: A score as we write it: a moment, far from where floats are exact no more.
_WHOLE = re.compile(rb"\d{1,17}")
#: Of a gate: what is missing, and what was declared, before the count of openings; and a number of a barrier.
_STATE, _NUMBER = re.compile(rb"(\d{1,15}) (\d{1,15}) \d{1,17} \d{1,17}"), re.compile(rb"\d{1,15}")


class Entry(NamedTuple):
    """One of a listing. `holders`: (token, ms that are left, or -1: no ttl), `waiters`: (token, s it has waited).

    `odd`: a key of it that holds what holdfast does not write. `gone`: its holder's client has gone (`crash_release`).
    """

    at_us: int
    kind: str
    name: str
    held: int
    queued: int
    fence: int
    permits: int
    holders: tuple[tuple[str, int], ...]
    waiters: tuple[tuple[str, float], ...]
    odd: str = ""
    gone: bool = False


class Walk:
    """One listing under way: until `over`. `together`: names of one call need not share a slot. `masters`: the number
    of servers. `most`: how many to name of each. `waited`: only what has a queue.
    """

    def __init__(
        self,
        namespace: str,
        pattern: str,
        most: int,
        together: bool,
        masters: Callable[[], int],
        settings: Settings,
        waited: bool = False,
    ) -> None:
        self._namespace = namespace
        self._most = most
        self._names_max = max(1, min(NAMES_MAX, NAMED_MAX // most)) if together else 1
        self._masters = masters
        self._settings = settings
        self._pattern = pattern
        #: What SCAN leaves out already; a name that begins with "}" has a "%" more in its key.
        quoted = pattern.replace("\\", "\\\\").replace("[!", "[^")
        more = "*" if pattern[:1] in ("%", "}", "?", "[") else ""
        self._match = f"{_SPECIAL.sub(_QUOTED, namespace)}:{{{more}{quoted}}}*{':queue' if waited else ''}"
        self._known: set[tuple[str, str]] = set()
        self._node = 0
        self._cursor = b"0"
        self.over = False

    async def page(self) -> list[Entry]:
        """The next ones, maybe none. Raises `RequestFailed`."""
        command = ("SCAN", self._cursor, "MATCH", self._match, "COUNT", SCAN_COUNT)
        scan = Command(command, self._settings.request_timeout_s, node=self._node, fits=SCANNED)
        self._cursor, found = await once_more(scan)
        new = [each for each in map(self._named, found) if each is not None]
        new = [each for each in dict.fromkeys(new) if each not in self._known]
        self._known.update(new)
        seen: list[Entry] = []
        for at in range(0, len(new), self._names_max):
            names = new[at : at + self._names_max]
            looked = await look_at(self._namespace, names, self._most, self._settings)
            seen += [each for each in looked if each.held or each.queued or each.odd]  # else it went
        if self._cursor == b"0":
            self._node += 1
            self.over = self._node >= self._masters()
        return seen

    def _named(self, key: bytes) -> tuple[str, str] | None:
        """(kind, name) of what a key is a part of."""
        found = _KEY.fullmatch(key.decode("utf-8", "replace")[len(self._namespace) + 2 :])
        if found is None:
            return None
        name = name_within(found[1])
        return (_KIND_OF[found[2] or ""], name) if fnmatchcase(name, self._pattern) else None


async def look_at(
    namespace: str | None, names: Sequence[tuple[str, str]], most: int, settings: Settings
) -> list[Entry]:
    """Look at each of these (kind, name) by one call: a few, and in a Cluster of one slot."""
    keys = [keys_of(kind, lock_keys(namespace, name).of(LEASED[kind])) for kind, name in names]
    args: tuple[str | int, ...] = (most, *(kind for kind, _ in names))
    call = Call("overview", [*chain.from_iterable(keys)], args, settings.request_timeout_s)
    reply: Reply = await once_more(call)
    rows = zip(names, keys, reply[1:], strict=True)
    return [_seen(kind, its, name, row, reply[0]) for (kind, name), its, row in rows]


async def counts_of(namespace: str, names: Sequence[tuple[str, str]], settings: Settings) -> list[int]:
    """Return how often each was granted since that is counted, and have it counted on for a while; as `look_at`."""
    keys = [lock_keys(namespace, name).of(LEASED[kind]).fence for kind, name in names]
    counts: list[int] = await once_more(Call("counts", keys, (COUNTED_MS,), settings.request_timeout_s))
    return counts


def keys_of(kind: str, keys: LockKeys) -> tuple[str, str, str, str, str]:
    """Return the keys for scripts that look at any kind: its own, and the two of many holders."""
    many, upgraded = keys.more(LEASED[kind].many, "upgraded")[-2:]
    return (keys.lock, keys.fence, keys.queue, many, upgraded)


def _seen(kind: str, keys: Sequence[str], name: str, row: Reply, now_us: int) -> Entry:
    shared, remaining_ms, permits, held, queued, fence, holders, waiters, odd = row
    odd = text_of(odd)
    if holders and kind in ALONE:
        fence = seen_fence(fence, text_of(holders[0]))
    alone = kind in ALONE and not shared
    holds: list[tuple[str, int]] = []
    for token, score in _pairs(holders):
        until_ms = _whole(score)
        if until_ms is None:
            odd = keys[3]
        left_ms = -1 if until_ms is None else until_ms - now_us // 1000
        holds.append((token, remaining_ms if alone else left_ms))
    waits: list[tuple[str, float]] = []
    for token, score in _pairs(waiters):
        if _whole(score) is None:
            odd = keys[2]
        waits.append((token, waited_s(now_us, score)))
    gone = alone and holders[1:2] == [1]
    kind = "rwlock" if shared else kind
    return Entry(now_us, kind, name, held, queued, fence, permits, tuple(holds), tuple(waits), odd, gone)


def waited_s(now_us: int, score: bytes | int) -> float:
    """For how long one has waited that stands in a queue with this score."""
    return max(0.0, (now_us - (_whole(score) or now_us)) / 1e6)


def _whole(score: bytes | int) -> int | None:
    """The score as we write it; None for another one, which may be infinite."""
    if isinstance(score, int):
        return score
    return int(score) if _WHOLE.fullmatch(score) else None


def _pairs(flat: Sequence[bytes | int]) -> Iterator[tuple[str, bytes | int]]:
    for at in range(0, len(flat), 2):
        yield text_of(flat[at]), flat[at + 1]


async def look_at_signals(namespace: str | None, name: str, request_timeout_s: float) -> dict[str, dict[str, Any]]:
    """Return what is under a name beside locks, by its kind: latches, events, barriers, conditions, what was done once.

    What this user may not see is left out. Raises `RequestFailed`.
    """

    async def ask(*args: str | int) -> Reply:
        try:
            return await once_more(Command(args, request_timeout_s, key=str(args[1])))
        except RequestFailed as failure:
            if failure.kind in ("NOPERM", "WRONGTYPE"):
                return None
            raise

    keys = lock_keys(namespace, name)
    found: dict[str, dict[str, Any]] = {}
    for kind in (each for each in KINDS if each.says):
        its = keys.of(kind)
        state = _STATE.fullmatch(await ask("GETRANGE", its.lock, 0, 63) or b"")
        waiters = await ask("ZCARD", its.queue) or 0
        if state is not None or waiters:
            missing, declared = (int(state[1]), int(state[2])) if state is not None else (None, None)
            facts = {"count": declared, "missing": missing, "set": missing == 0}
            found[kind.name] = {**{fact: facts[fact] for fact in kind.says}, "waiters": waiters}
    barrier = keys.of(BARRIER)
    state = await ask("HMGET", barrier.lock, "generation", "parties", "broken")
    numbers = [int(each) if each is not None and _NUMBER.fullmatch(each) else 0 for each in state or (None,) * 3]
    if numbers[1]:
        waiting = await ask("ZCARD", f"{barrier.base}:arrived") or 0
        facts = {"parties": numbers[1], "waiting": waiting, "generation": numbers[0], "broken": bool(numbers[2])}
        found[BARRIER.name] = facts
    waiters = await ask("ZCARD", condition_key(keys, "default")) or 0
    if waiters:
        found[CONDITION.name] = {"waiters": waiters}
    own = name if name.startswith("once:") else f"once:{name}"
    if await ask("EXISTS", f"{lock_keys(namespace, own).base}:done"):
        found["once"] = {"done": True}
    return found


# ---- what `holdfast doctor` asks that is not about a lock ----


async def say(words: tuple[str, ...], node: int | None, request_timeout_s: float) -> Reply:
    """Send a plain command to that server of several, or any; returns the reply with its bytes as text."""
    return _text(await Command(words, request_timeout_s, node=node))


def _text(reply: Reply) -> Reply:
    if isinstance(reply, bytes):
        return reply.decode(errors="replace")
    if isinstance(reply, list):
        return [_text(each) for each in reply]
    return {_text(key): _text(value) for key, value in reply.items()} if isinstance(reply, dict) else reply


async def hears(key: str, request_timeout_s: float) -> tuple[bool | None, bool]:
    """Find out whether a script can tell us something there (None: no answer), and whether asking has hung up."""
    try:
        # Twice at most: the first time may have found out that no message can come.
        return not await once_more(Listen(f"{key} hears", key, request_timeout_s)), False
    except RequestFailed as failure:
        return None, failure.kind == "broken"
