"""The mutants: what is wrong, in which file of the package, and which text is replaced by which."""

# ruff: noqa: E501  (texts as they stand)
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["MUTANTS", "PACKAGE", "Mutant"]

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "holdfast"


@dataclass(frozen=True)
class Mutant:
    """One bug. `old` stands exactly once in the file."""

    what: str
    file: str
    old: str
    new: str

    def fits(self) -> bool:
        return (PACKAGE / self.file).read_text(encoding="utf-8").count(self.old) == 1


ACQUIRE, RELEASE, RENEW = "_lua/acquire.lua", "_lua/release.lua", "_lua/renew.lua"
FENCE, QUEUE = "_lua/fence.lua", "_lua/queue.lua"
WAITING, MUTEX, HOLD, VALIDITY = "_core/waiting.py", "_core/mutex.py", "_core/hold.py", "_core/validity.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant("a repeated acquire is not known again", ACQUIRE, "if holder == token then", "if false then"),
    Mutant("a buried token is let in", ACQUIRE, "redis.call('SISMEMBER', gone, token) == 1", "false"),
    Mutant(
        "whoever asks takes a free lock before the queue",
        ACQUIRE,
        "redis.call('EXISTS', lock, queue, gone) == 0",
        "redis.call('EXISTS', lock) == 0",
    ),
    Mutant("a waiter gets a new arrival each time", ACQUIRE, "if arrival == 0 then", "if true then"),
    Mutant("a late repeat costs a waiter its place", ACQUIRE, "queue, 'LT',", "queue, 'NX',"),
    Mutant("an arrival is told that the queue does not hold", ACQUIRE, "== 0 and ARGV[4] == '0' then", "== 2 then"),
    Mutant("the holder's remaining time is told wrong", ACQUIRE, "redis.call('PTTL', lock)", "60000"),
    Mutant(
        "the queue has no ttl",
        ACQUIRE,
        "redis.call('PEXPIRE', queue, math.max(remaining_ms, 0) + 60000)",
        "local _ = 0",
    ),
    Mutant(
        "a granted lock has no ttl",
        ACQUIRE,
        "\n  redis.call('SET', lock, token, 'PX', ttl_ms)\n  return",
        "\n  redis.call('SET', lock, token)\n  return",
    ),
    Mutant("a release does not compare the token", RELEASE, "redis.call('GET', lock) == token", "true"),
    Mutant("a release hands over to nobody", RELEASE, "next_waiter(queue, ARGV[4])", "nil"),
    Mutant("who gives back stays in the queue", RELEASE, "redis.call('ZREM', queue, token)", "local _ = 0"),
    Mutant("who gives back is not buried", RELEASE, "if bury_ms > 0 and type", "if false and type"),
    Mutant("the buried have no ttl", RELEASE, "redis.call('PEXPIRE', gone, bury_ms)", "local _ = 0"),
    Mutant("a release frees nothing", RELEASE, "redis.call('DEL', lock)\n  return 1", "return 1"),
    Mutant("a release does not look at the queue", RELEASE, "and redis.call('EXISTS', queue) == 0 then", "then"),
    Mutant("a renewal does not compare the token", RENEW, "redis.call('GET', KEYS[1]) ~= ARGV[1]", "false"),
    Mutant(
        "a renewal adds to what is left", RENEW, "KEYS[1], ARGV[2])", "KEYS[1], ARGV[2] + redis.call('PTTL', KEYS[1]))"
    ),
    Mutant(
        "a renewal writes a lost lease anew",
        RENEW,
        "then\n  return 0",
        "then\n  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])\n  return 1",
    ),
    Mutant("fencing tokens count from one", FENCE, "fence = now[1] * 1000000 + now[2]", "fence = 1"),
    Mutant("fencing tokens are not stored", FENCE, "redis.call('SET', key, fence, 'PX', fence_ms, 'GET')", "nil"),
    Mutant(
        "fencing tokens have no ttl",
        FENCE,
        "redis.call('SET', key, fence, 'PX', fence_ms, 'GET')",
        "redis.call('SET', key, fence, 'GET')",
    ),
    Mutant("a dead waiter is not skipped", QUEUE, "[2]) > 0 then", "[2]) >= 0 then"),
    Mutant("the last comes first", QUEUE, "'ZPOPMIN'", "'ZPOPMAX'"),
    Mutant("nobody is told of a handoff", QUEUE, "redis.call('PUBLISH', inbox, string", "local _ = (string"),
    Mutant(
        "a handoff leaves the old fencing token",
        QUEUE,
        "local fence = next_fence(fence_key, fence_ms)",
        "local fence = tonumber(redis.call('GET', fence_key) or next_fence(fence_key, fence_ms))",
    ),
    Mutant("a claim has no end", QUEUE, "'SET', lock, token, 'PX', claim_ms", "'SET', lock, token"),
    Mutant("no allowance for drift", VALIDITY, "* (1 - DRIFT) - MARGIN_S", "+ 0 * DRIFT"),
    Mutant(
        "validity counts from the reply", WAITING, "grant = Grant(reply[1], asked_at,", "grant = Grant(reply[1], now,"
    ),
    Mutant(
        "a release does not bury what may still be under way",
        WAITING,
        "bury_ms = settings.bury_ms if turn.stray else 0",
        "bury_ms = 0",
    ),
    Mutant(
        "waiters do not look after whom the lock was handed to",
        WAITING,
        "            if queued:\n                # Whom",
        "            if False:\n                # Whom",
    ),
    Mutant(
        "an answer that comes after its validity is taken", WAITING, "if now < deadline(asked_at, ttl_ms):", "if True:"
    ),
    Mutant(
        "a pushed grant is not confirmed",
        WAITING,
        "                doubtful = True\n            elif wake is not None:",
        "                doubtful = queued = stray = False\n                return Grant(wake.fence, now)\n            elif wake is not None:",
    ),
    Mutant("who leaves gives nothing back", WAITING, "if doubtful or queued or stray:", "if False:"),
    Mutant("only who is queued gives back", WAITING, "if doubtful or queued or stray:", "if queued:"),
    Mutant(
        "a waiter does not look for itself",
        WAITING,
        "await AwaitWake(token, wait_s)",
        "await AwaitWake(token, 1e9 if give_up_at is None else wait_s)",
    ),
    Mutant(
        "a broken inbox is not looked after",
        WAITING,
        "heard = False  # the inbox may be broken",
        "pass  # the inbox may be broken",
    ),
    Mutant("too few replicas are enough", "_core/replicas.py", "if acked < needed:", "if acked < 0:"),
    Mutant(
        "a waiter forgets its arrival",
        WAITING,
        "holder_token, place, arrival = reply[1:5]",
        "holder_token, place, _ = reply[1:5]",
    ),
    Mutant("trouble is not outlasted", WAITING, "if now + pause_s >= allowed_until:", "if True:"),
    Mutant(
        "a late renewal revives a lease",
        HOLD,
        "        if self.over(now):\n            return False\n        self.deadline",
        "        self.deadline",
    ),
    Mutant(
        "a renewal counts from its answer",
        HOLD,
        "deadline_of(sent_at, min(ttl_ms, self.ttl_ms))",
        "deadline_of(now, min(ttl_ms, self.ttl_ms))",
    ),
    Mutant("nobody is told that a lease is over", HOLD, 'self.lose("max_hold" if at_most else "expired")', "pass"),
    Mutant("a deadline waits for the renewal", HOLD, "hold.next_at = min(at, hold.deadline)", "hold.next_at = at"),
    Mutant("a lease that was taken stays held", HOLD, 'hold.lose("taken")', "pass"),
    Mutant(
        "a failed renewal is not repeated",
        HOLD,
        "hold.asked = False\n        if id(hold) not in self._live:\n            return\n",
        "if id(hold) not in self._live:\n            return\n",
    ),
)
