"""What a history proves. Nothing here knows which scheme ought to pass which fault.

Law: every verdict follows from events and their real-time order alone, and names who and when.

Law: safe means that exclusion held *and* that everyone got in who should have, in a stated time, and did its work. That
no client got in is a finding of its own, and so is a lock whose own code fails.

Theory: a client is inside its critical section from ``entered`` to ``left``; a killed one until it was
killed (a dead process does nothing); one that was only stopped still believes that it is inside. A client
that noticed its loss by itself was inside for as long as it relied on its lease (``since_ns``), or acted,
whichever ended later: it did nothing after that. A write that the resource refused is no act. Two sections of
different clients that share a moment exclude badly.

A lock is free for a client while no other holds it, no server is down, and no lasting fault is on. It counts as held
from "acquired" until it was given back, was known to be lost, or giving it back failed; also while its holder is
stopped, and for one ttl after its holder was killed: that is the price of a lease. A client that waits longer for a
free lock than `STATED_S`, or until a ttl ran out, was blocked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from holdfast_lab.history import Event, History

__all__ = ["KINDS", "MARKS", "SAFE", "STATED_S", "Section", "Verdict", "judge", "sections", "worst"]

SAFE = "safe"
#: From the worst to the best.
KINDS = (
    "exclusion violated",
    "lost update",
    "foreign release",
    "blocked forever",
    "unavailable",
    "failed",
    "blocked for its ttl",
    "slow",
    SAFE,
)
#: A sign for each, so that nothing hangs on colour.
MARKS = {
    "exclusion violated": "✗✗",
    "lost update": "≠",
    "foreign release": "✂",
    "blocked forever": "∞",
    "unavailable": "…",
    "failed": "!",
    "blocked for its ttl": "◔",
    "slow": "~",
    SAFE: "✓",
    "depends on timing": "?",
    "not run": "–",
}
#: A client that asks for a free lock gets it within this time, s, however often it asks. (A play in which the machine
#: was slow is repeated.)
STATED_S = 2.0
#: Times in whole seconds may be over that much sooner.
_SECOND_NS = 1_050_000_000
#: A ttl that was over so soon after the lock was free did not keep anyone waiting.
_SEEN_NS = 200_000_000
#: Shorter waits are not explained by a ttl, s.
_SHORT_S = 0.5


@dataclass(frozen=True, slots=True)
class Verdict:
    """One finding: its kind, a sentence that says who and when (also in Chinese), the moment it became true."""

    kind: str
    sentence: str
    at_ns: int
    who: tuple[str, ...] = ()
    zh: str = ""

    def as_json(self, start_ns: int = 0) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "sentence": self.sentence,
            "zh": self.zh,
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
            elif event.kind in ("read", "wrote") and event.get("accepted", True):
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
    found += [*_unavailable(history), *_failed(history), *_in_vain(history), *_fences(history)]
    for wait in _waits(history):
        found += _blocked(history, wait)
    if not found:
        found += _idle(history)
    found.sort(key=lambda verdict: (KINDS.index(verdict.kind), verdict.at_ns))
    return found or [_why_safe(history)]


def worst(verdicts: Iterable[Verdict]) -> str:
    """The kind of the worst finding."""
    return min((verdict.kind for verdict in verdicts), key=KINDS.index, default=SAFE)


def _ms(history: History, at_ns: int) -> str:
    return f"{(at_ns - history.start_ns) / 1e6:.0f} ms"


def _excluded_badly(history: History) -> list[Verdict]:
    found = []
    # Who found out before it did anything was not inside.
    stays = [section for section in sections(history) if section.end_ns > section.start_ns]
    for index, first in enumerate(stays):
        for second in stays[index + 1 :]:
            if second.client != first.client and second.start_ns < first.end_ns:
                since, until = (_ms(history, at) for at in (second.start_ns, min(first.end_ns, second.end_ns)))
                one, other = who = first.client, second.client
                text = f"{one} and {other} were both inside from {since} to {until}"
                zh = f"从 {since} 到 {until}，{one} 和 {other} 同时在临界区内"
                found.append(Verdict("exclusion violated", text, second.start_ns, who, zh))
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
            one, other = who = event.lane, earlier.lane
            value, at = event.get("value"), _ms(history, earlier.at_ns)
            text = f"{one} and {other} both made {value} out of {base}: the write of {other} at {at} is lost"
            zh = f"{one} 和 {other} 都从 {base} 算出 {value}：{other} 在 {at} 的写入丢失"
            found.append(Verdict("lost update", text, event.at_ns, who, zh))
    return found


@dataclass(slots=True)
class _Tenancy:
    """Whose lock a key stands for: `tenant`, once a client was told so; `writer` and `written_ns` of its value.

    ``common``: another client has written into the same list or set, so that it is no one's alone.
    """

    writer: str
    written_ns: int
    tenant: str | None = None
    common: bool = False


def _foreign_release(history: History, event: Any, tenant: str | None, did: str, did_chinese: str) -> Verdict:
    """One client removed the key of another one's lock, or wrote over it."""
    by, key, at = event.get("by"), event.get("key"), _ms(history, event.at_ns)
    return Verdict(
        "foreign release",
        f"{by} {did.format(key)} {event.lane} at {at}, when it was the lock of {tenant}",
        event.at_ns,
        (by, str(tenant)),
        f"{at} 时 {by} 在 {event.lane} 上{did_chinese} {key}，当时它是 {tenant} 的锁",
    )


def _foreign_releases(history: History) -> list[Verdict]:
    """A command of one client removed the lock's key, or wrote over it without asking for it, while it was another's.

    A key becomes the lock of the client that wrote it when that client is told "acquired". One that another client
    wrote meanwhile with its release, handing the lock on, becomes the lock of the client told next, or told already: a
    message may reach it before the change is seen. Keys that were there before one asked are not one's own.
    """
    found = []
    keys: dict[tuple[str, str], _Tenancy] = {}
    asked_ns: dict[str, int] = {}
    releasing: dict[str, int] = {}  # since when, ns
    holding: dict[str, int] = {}
    asking: set[str] = set()
    for event in history.events:
        client = event.lane
        if event.kind == "asks":
            asked_ns[client] = event.at_ns
            releasing.pop(client, None)
            asking.add(client)
        elif event.kind == "releases":
            releasing[client] = event.at_ns
            holding.pop(client, None)
        elif event.kind == "killed":
            holding.pop(client, None)
            for key in keys.values():
                key.tenant = None if key.tenant == client else key.tenant
        elif event.kind == "acquired":
            asking.discard(client)
            holding[client] = event.at_ns
            for key in keys.values():
                meanwhile = key.tenant is None and key.written_ns >= asked_ns.get(client, 0)
                if key.writer == client or (meanwhile and key.writer in releasing):
                    key.tenant = client
        if event.kind != "key" or not history.is_lock_key(event.get("key")):
            continue
        where, by = (event.lane, event.get("key")), event.get("by")
        key_now = keys.get(where)
        if event.get("now") is None:
            keys.pop(where, None)
            tenant = key_now.tenant if key_now is not None else None
            common = key_now is not None and key_now.common and event.get("type", "string") not in ("string", "hash")
            if tenant is not None and by in history.clients and by != tenant and not common:
                found.append(_foreign_release(history, event, tenant, "removed {} from", "删除了"))
        elif key_now is None or event.get("was") is None:
            keys[where] = _Tenancy(by, event.at_ns)
        else:
            tenant, common = key_now.tenant, event.get("type", "string") not in ("string", "hash")
            wrote_over = by in history.clients and by not in asking and tenant not in (None, by)
            if wrote_over and event.get("was") != event.get("now") and not common:
                found.append(_foreign_release(history, event, tenant, "wrote over {} on", "改写了"))
            key_now.common = key_now.common or by != key_now.writer
            key_now.writer, key_now.written_ns = by, event.at_ns
            if by == key_now.tenant and by in releasing:  # handed on
                told = [other for other, since_ns in holding.items() if since_ns > releasing[by]]
                key_now.tenant = told[-1] if told else None
    return found


@dataclass(frozen=True, slots=True)
class _Wait:
    """A client asked; it got in, or gave up, at `ended_ns`; the lock was free for it from `free_ns` until then."""

    client: str
    free_ns: int
    ended_ns: int
    got_in: bool
    #: It had to be killed: it never came back from its call.
    hung: bool

    @property
    def seconds(self) -> float:
        return (self.ended_ns - self.free_ns) / 1e9


_ENDS_HOLDING = ("released", "failed", "lost", "killed")


def _held(history: History, client: str) -> list[tuple[int, int]]:
    """When the lock counts as held by that client."""
    spans = _stops(history, client)
    ttl_ns, since_ns, busy = 0, None, False
    for event in history.events:
        if event.lane != client:
            continue
        if event.kind == "asks":
            ttl_ns, busy = event.get("ttl_ms", 0) * 1_000_000, True
        elif event.kind == "acquired":
            since_ns = event.at_ns
        died = event.kind == "killed" or (event.kind == "gave up" and event.get("forced"))
        if event.kind in _ENDS_HOLDING or event.kind == "gave up":
            if died and busy:
                spans.append((event.at_ns, event.at_ns + ttl_ns))
            if since_ns is not None:
                spans.append((since_ns, event.at_ns))
            since_ns, busy = None, False
    if since_ns is not None:
        spans.append((since_ns, history.end_ns + 1))
    return spans


def _stops(history: History, client: str) -> list[tuple[int, int]]:
    """While that client was stopped."""
    ends = [event.at_ns for event in history.of("continued", lane=client)]
    stops = history.of("stopped", lane=client)
    return [(event.at_ns, next((at for at in ends if at > event.at_ns), history.end_ns)) for event in stops]


def _down(history: History) -> list[tuple[int, int]]:
    """While a server was dead, and while a lasting fault was on."""
    spans = []
    for begin, ends in (("killed", ("started", "promoted")), ("fault", ("healed",))):
        for event in history.of(begin):
            if event.lane in history.clients or (begin == "fault" and not event.get("lasting")):
                continue
            until = next((e.at_ns for e in history.of(*ends) if e.at_ns > event.at_ns), history.end_ns)
            spans.append((event.at_ns, until))
    return spans


def _waits(history: History) -> list[_Wait]:
    """Of each client that asked until it got in or gave up. Who tried once only expected to be refused."""
    found = []
    down = _down(history)
    for asked in history.of("asks"):
        client = asked.lane
        ends = history.of("acquired", "gave up", "skipped", "killed", "asks", lane=client)
        end = next((event for event in ends if event.at_ns > asked.at_ns), None)
        if end is None or end.kind in ("skipped", "killed", "asks"):
            continue
        others = [span for other in history.clients if other != client for span in _held(history, other)]
        taken = [(start, until) for start, until in [*others, *down, *_stops(history, client)] if start < end.at_ns]
        free_ns = max([asked.at_ns, *(min(until, end.at_ns) for _, until in taken)])
        found.append(_Wait(client, free_ns, end.at_ns, end.kind == "acquired", bool(end.get("forced", False))))
    return found


def _blocked(history: History, wait: _Wait) -> list[Verdict]:
    """Nothing was in its way, and yet it did not get in, or only when a ttl had run out, or slowly.

    In one piece: the cases exclude each other, and their order decides.
    """
    if wait.seconds < _SHORT_S:
        return []
    who, waited = wait.client, f"{wait.seconds:.1f} s"
    refused = [event.at_ns for event in history.of("refused", lane=who) if event.at_ns <= wait.ended_ns]
    tries = sum(at_ns > wait.free_ns for at_ns in refused)

    def verdict(kind: str, en: str, zh: str) -> list[Verdict]:
        return [Verdict(kind, f"{who} {en}", wait.free_ns, (who,), f"{who} {zh}")]

    if wait.got_in:
        # One that asks again and again, but did not ask then, was not kept out by what lay there.
        if (tries or not refused) and _ran_out(history, wait):
            return verdict(
                "blocked for its ttl",
                f"waited {waited} although no client held the lock, until the ttl of what lay there was over",
                f"等待了 {waited}，其间没有人持有锁；直到残留的键过期才进入",
            )
        if wait.seconds > STATED_S:
            return verdict(
                "slow",
                f"needed {waited} to get in although no client held the lock",
                f"用了 {waited} 才进入，其间没有人持有锁",
            )
        return []
    keys = [e for e in history.of("left over") if history.is_lock_key(e.get("key"))]
    names = ", ".join(f"{event.get('key')} = {event.get('value')}" for event in keys)
    kept = [
        event
        for event in history.of("prolonged")
        if event.at_ns > wait.free_ns and event.get("by") in history.clients and history.is_lock_key(event.get("key"))
    ]
    if kept and keys:
        return verdict(
            "blocked forever",
            f"waited {waited} and no client held the lock: each attempt renews the ttl of {kept[0].get('key')}, "
            f"{len(kept)} times so far, so that it never ends while anyone asks",
            f"等待了 {waited}，没有人持有锁：每次尝试都重新设置 {kept[0].get('key')} 的 ttl（已 {len(kept)} 次），"
            "只要还有人在请求，它就永不过期",
        )
    if any(event.get("ttl_ms") == -1 for event in keys):
        return verdict(
            "blocked forever",
            f"waited {waited} and no client held the lock; left forever: {names}",
            f"等待了 {waited}，没有人持有锁；永远留下了：{names}",
        )
    if keys:
        left_s = max(event.get("ttl_ms") for event in keys) / 1000
        return verdict(
            "blocked for its ttl",
            f"waited {waited} in vain although no client held the lock; {names} is there for {left_s:.1f} s more",
            f"白白等待了 {waited}，没有人持有锁；{names} 还要 {left_s:.1f} s 才过期",
        )
    if wait.hung:
        return verdict(
            "blocked forever",
            f"never came back from its call, and had to be killed after {waited}",
            f"的调用再也没有返回，{waited} 后只能被杀死",
        )
    return verdict(
        "slow", f"did not get in within {waited} although no client held", f"在 {waited} 内没有进入，其间没有人持有锁"
    )


def _failed(history: History) -> list[Verdict]:
    """Findings about the lock's own code: it could not be played, or its check failed."""
    found = []
    for event in history.of("broken"):
        text = event.get("text")
        found.append(Verdict("failed", text, event.at_ns, (), text))
    for event in history.of("others"):
        held, wanted = event.get("held"), event.get("wanted")
        if held < wanted:
            text = f"{event.lane} could hold {held} of {wanted} locks of different names at once{event.get('why')}"
            zh = f"{event.lane} 只能同时持有 {wanted} 个不同名字的锁中的 {held} 个{event.get('why')}"
            found.append(Verdict("failed", text, event.at_ns, (event.lane,), zh))
    for event in history.of("others gone"):
        text = f"another client's turn removed {', '.join(event.get('keys'))}, of locks of other names that are held"
        zh = f"别的客户端的一轮删除了 {', '.join(event.get('keys'))}，它们属于其他名字的、被持有的锁"
        found.append(Verdict("foreign release", text, event.at_ns, ("A",), zh))
    for event in history.of("check failed"):
        who, said = event.lane, event.get("error")
        text = f"ensure_held() of {who}, called without arguments, failed, which says neither yes nor no: {said}"
        zh = f"{who} 的 ensure_held()（不带参数调用）失败，既不是“是”也不是“否”：{said}"
        found.append(Verdict("failed", text, event.at_ns, (who,), zh))
    return found


def _in_vain(history: History) -> list[Verdict]:
    """Calls that came back without their work done and without a word, and those that did not come back."""
    found = []
    for event in history.of("skipped"):
        who, at = event.lane, _ms(history, event.at_ns)
        text = f"the call of {who} ended at {at} without the lock and without an error: its body was skipped"
        zh = f"{at} 时 {who} 的调用结束，没有得到锁，也没有报错：它的代码被跳过了"
        found.append(Verdict("failed", text, event.at_ns, (who,), zh))
    for event in history.of("interrupted"):
        who, at = event.lane, _ms(history, event.at_ns)
        ends = (e for e in history.of("acquired", "gave up", lane=who) if e.at_ns > event.at_ns)
        if (end := next(ends, None)) is not None and end.kind == "acquired":
            text = f"{who} was interrupted at {at}, and its call came back as if it had not been"
            zh = f"{who} 在 {at} 被中断，它的调用却照常返回，好像没有中断过"
            found.append(Verdict("failed", text, event.at_ns, (who,), zh))
    for event in history.of("hangs"):
        who, pool = event.lane, event.get("pool")
        text = f"{who} cannot give back: all {pool} connections of the pool are with clients that wait for its lock"
        zh = f"{who} 无法释放：连接池的 {pool} 个连接都在等待这把锁的客户端手里"
        found.append(Verdict("blocked forever", text, event.at_ns, (who,), zh))
    return found


def _fences(history: History) -> list[Verdict]:
    """Each fencing token has to be higher than that of every client that had the lock before this one asked."""
    got = [event for event in history.of("acquired") if event.get("fence") is not None]
    for later in got:
        asked_ns = max((e.at_ns for e in history.of("asks", lane=later.lane) if e.at_ns <= later.at_ns), default=0)
        for earlier in got:
            if earlier.at_ns < asked_ns and earlier.get("fence") >= later.get("fence"):
                who, other, tokens = later.lane, earlier.lane, (later.get("fence"), earlier.get("fence"))
                text = f"{who} got the fencing token {tokens[0]} after {other} had {tokens[1]}: it has to grow"
                zh = f"{other} 的防护令牌是 {tokens[1]}，之后 {who} 得到 {tokens[0]}：它必须递增"
                return [Verdict("failed", text, later.at_ns, (who, other), zh)]
    return []


def _idle(history: History) -> list[Verdict]:
    """Where nothing went wrong, someone has to have done its work, and no one may have been sent away for nothing."""
    for lost in history.of("lost"):
        who = lost.lane
        asked = [event for event in history.of("asks", lane=who) if event.at_ns < lost.at_ns]
        got = [event for event in history.of("entered", lane=who) if event.at_ns < lost.at_ns]
        if not asked or not got or lost.at_ns > asked[-1].at_ns + asked[-1].get("ttl_ms", 0) * 1_000_000:
            continue
        since = [event for event in history.events if asked[-1].at_ns <= event.at_ns <= lost.at_ns]
        harm = ("killed", "started", "stopped", "clock", "promoted")
        if any(e.lane != who and (e.kind in harm or (e.kind == "key" and e.get("by") != who)) for e in since):
            continue
        if any(event.kind == "stopped" for event in since):
            continue
        after = f"{(lost.at_ns - got[-1].at_ns) / 1e6:.0f} ms"
        text = (
            f"{who} was told that its lock was lost, {after} after it had got it, although nothing had happened to it"
        )
        zh = f"{who} 取得锁 {after} 后就被告知锁已丢失，而什么也没有发生：它的工作没有做"
        return [Verdict("failed", f"{text}: its work was not done", lost.at_ns, (who,), zh)]
    stays = sections(history)
    worked = any(section.ended != "lost" for section in stays) or any(e.get("accepted") for e in history.of("wrote"))
    if worked or (not stays and any(history.of("acquired"))):
        return []
    return [Verdict("failed", "no client got in and did its work", history.end_ns, (), "没有一个客户端进入并完成工作")]


def _ran_out(history: History, wait: _Wait) -> bool:
    """True if it got in because a ttl was over: a key expired, or the time that another had asked for was over."""
    for event in history.of("key"):
        over_ns = event.get("over_ns", event.at_ns)
        expired = event.get("by") == "expiry" and wait.free_ns + _SEEN_NS < over_ns <= wait.ended_ns
        if expired and history.is_lock_key(event.get("key")):
            return True
    return any(
        asked.lane != wait.client
        and wait.ended_ns >= asked.at_ns + asked.get("ttl_ms", 0) * 1_000_000 - _SECOND_NS > wait.free_ns
        and _lay_there(history, wait.free_ns, wait.ended_ns)
        for asked in history.of("asks")
    )


def _lay_there(history: History, free_ns: int, ended_ns: int) -> bool:
    """True if something that may be the lock lay on a server from the one moment to the other, as far as was seen."""
    there: dict[tuple[str, str], int] = {}
    seen = False
    for event in history.events:
        if event.kind != "key" or not history.is_lock_key(event.get("key")):
            continue
        seen = True
        where = event.lane, event.get("key")
        if event.get("now") is not None:
            there.setdefault(where, event.at_ns)
        elif event.at_ns < ended_ns - _SEEN_NS:
            there.pop(where, None)
    return not seen or any(since_ns <= free_ns + _SEEN_NS for since_ns in there.values())


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
            who, at_ns = asked[0].lane, asked[0].at_ns
            lasted = f"{(until - at_ns) / 1e9:.1f} s"
            text = f"no client acquired in the {lasted} that {who} asked while the fault lasted"
            zh = f"故障期间没有人获得锁：{who} 请求了 {lasted}（{tries} 次尝试落空）"
            found.append(Verdict("unavailable", f"{text} ({tries} attempts came back without)", at_ns, (who,), zh))
    return found


def _why_safe(history: History) -> Verdict:
    by_client: dict[str, int] = defaultdict(int)
    for section in sections(history):
        by_client[section.client] += 1
    inside = ", ".join(f"{client} {count}×" for client, count in by_client.items()) or "none"
    together = ("never two inside", "没有人同时在内") if history.exclusive else ("no update lost", "没有更新丢失")
    en, zh = f"inside: {inside}; {together[0]}", f"进入：{inside}；{together[1]}"
    longest = max(_waits(history), key=lambda wait: wait.seconds, default=None)
    if longest is not None and history.exclusive:
        en += f"; longest wait for a free lock: {longest.seconds:.2f} s"
        zh += f"；等待空闲锁最长 {longest.seconds:.2f} s"
    for killed in history.of("killed"):
        got = next((e for e in history.of("acquired") if e.at_ns > killed.at_ns), None)
        if killed.lane in history.clients and got is not None:
            passed = f"{(got.at_ns - killed.at_ns) / 1e9:.1f} s"
            died = ("ended", "结束") if history.threads else ("was killed", "被杀死")
            en += f"; {got.lane} got in {passed} after {killed.lane} {died[0]}"
            zh += f"；{killed.lane} {died[1]} {passed} 后 {got.lane} 进入"
    for event in history.of("lost"):
        en += f"; {event.lane} noticed by itself that its lease was over ({_ms(history, event.at_ns)})"
        zh += f"；{event.lane} 自己发现租约已失（{_ms(history, event.at_ns)}）"
    if refused := sum(not event.get("accepted", True) for event in history.of("wrote")):
        en += f"; {refused} late write refused by its fencing token"
        zh += f"；{refused} 次迟到的写入被防护令牌拒绝"
    return Verdict(SAFE, en, history.end_ns, zh=zh)
