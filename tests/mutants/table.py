"""The mutants: what is wrong, in which file of the package, and which text is replaced by which."""

# ruff: noqa: E501  (texts as they stand)
from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

__all__ = ["API", "CRASH", "ENGINE", "FAMILY", "MUTANTS", "PACKAGE", "QUORUM", "Mutant"]

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "holdfast"


@dataclass(frozen=True)
class Mutant:
    """One bug. `old` stands exactly once in the file. `primitive`: in whose worlds it is looked for."""

    what: str
    file: str
    old: str
    new: str
    primitive: str = "mutex"

    def fits(self) -> bool:
        """Return True if the text is there once and what takes its place leaves a program: else any test finds it."""
        text = (PACKAGE / self.file).read_text(encoding="utf-8")
        if text.count(self.old) == 1 and self.file.endswith(".py"):
            ast.parse(text.replace(self.old, self.new))
        return text.count(self.old) == 1


ACQUIRE, RELEASE, RENEW = "_lua/acquire.lua", "_lua/release.lua", "_lua/renew.lua"
FENCE, UNBLOCK, QUEUE = "_lua/fence.lua", "_lua/unblock.lua", "_lua/queue.lua"
TOMBSTONE, ORDER = "_lua/tombstone.lua", "_lua/order.lua"
CLIENTS, SEND, GONE_OF, WANTED = "_lua/inboxes.lua", "_lua/send.lua", "_lua/gone_of.lua", "_lua/wanted.lua"
ENQUEUE, NOT_YET = "_lua/enqueue.lua", "_lua/not_yet.lua"
TENURE = "_core/tenure.py"
#: The lock, where workers of a process hand it on.
IN_LINES = "mutex in lines"
#: The lock, where clients listen in the slots of a Cluster.
IN_SLOTS = "mutex in slots"
#: The lock, where processes keep it after its release.
KEPT, KEEPING = "mutex kept", "_core/lease_cache.py"
#: The lock, where leases are taken away.
BROKEN, NOTICES, BREAKING, TELLS = "mutex broken", "_core/holder_notices.py", "_core/breaking.py", "_lua/tell.lua"
FAST_PATH, RETRY, EXCLUSIVE = "_core/fast_path.py", "_core/retry.py", "_core/exclusive.py"
RENEW_MANY, BATCH = "_lua/renew_many.lua", "_core/agent/renewals.py"
ACQUIRE_EACH, RELEASE_EACH = "_lua/acquire_each.lua", "_lua/release_each.lua"
WAITING, HOLD, VALIDITY = "_core/waiting.py", "_core/record.py", "_core/validity.py"
SCHEDULE, STANDING = "_core/schedule.py", "_core/standing.py"
RUNNER, INBOXES, RENEWALS = "_core/agent/runner.py", "_core/agent/inboxes.py", "_core/agent/renewals.py"
UNCONFIRMED, CLOSING, AGENT = "_core/agent/unconfirmed.py", "_core/agent/closing.py", "_core/agent/agent.py"
#: What the simulator does not run: looked for by tests of the engine alone.
ENGINE = "engine"
LINK, MATCHING, REQUESTS = "_engine/link.py", "_engine/matching.py", "_engine/requests.py"
OPERATION, LOOP = "_engine/operation.py", "_engine/loop.py"
#: The lock, where it is released soon after its client has gone: looked for by tests/simulation/test_crash.py.
CRASH, CRASH_LUA = "crash", "_lua/crash.lua"

_ENGINE: tuple[Mutant, ...] = tuple(
    Mutant(what, file, old, new, ENGINE)
    for what, file, old, new in (
        (
            "a reply is for the last that asked",
            MATCHING,
            "ends.append((pending[0], reply, None))",
            "ends.append((pending[-1], reply, None))",
        ),
        (
            "a reply that comes too late is for the next that asked",
            LINK,
            "        for request in expired:\n            request.end(",
            "        for request in expired:\n            self._pending.clear()\n            request.end(",
        ),
        (
            "a request is answered twice",
            REQUESTS,
            "if self.outcome is None:\n            self.outcome = reply, failure\n            self.answer(reply",
            "if True:\n            self.outcome = reply, failure\n            self.answer(reply",
        ),
        (
            "a connection that is silent is used on",
            LINK,
            "(self._midway or silent_s >= SILENCE_S)",
            "False",
        ),
        (
            "a connection that is not used any more is closed with replies to come",
            LINK,
            "busy = self._pending or self._queue",
            "busy = self._queue",
        ),
        (
            "a server that has become a replica is used on",
            MATCHING,
            "            if failure.kind in MISPLACED:",
            "            if False:",
        ),
        (
            "a script that is not known is an error",
            LINK,
            'if failure is not None and failure.kind == "NOSCRIPT" and request.script is not None:',
            "if False:",
        ),
        (
            "a script that is never known is sent again and again",
            REQUESTS,
            "self.packed, self.script = spelled_out(self.packed, self.script), None",
            "self.packed = spelled_out(self.packed, self.script)",
        ),
        (
            "a caller's script that is never known is sent again and again",
            REQUESTS,
            "spelled_out(prepared.before, self.script), None\n",
            "spelled_out(prepared.before, self.script), prepared.script\n",
        ),
        (
            "who stands where another one reads goes on at once",
            LINK,
            "        elif standing is not None:\n            self._stand(",
            "        elif False:\n            self._stand(",
        ),
        (
            "who has just asked reads for those that stand",
            LINK,
            "                ring(snapshot(standers)[0].bell)",
            "                pass",
        ),
        (
            "nothing is read where the first that stands is held up",
            LINK,
            "            if self._subscribes and not self._armed:\n                self.rescue()",
            "            pass",
        ),
        (
            "a reply of another form is taken",
            MATCHING,
            "elif request.fits is not None and not request.fits(reply):",
            "elif False:",
        ),
        (
            "a reply too many is passed over",
            MATCHING,
            "        if not pending:\n            return self._too_much()",
            "        if not pending:\n            return None",
        ),
        (
            "half a reply too many is passed over",
            MATCHING,
            "if midway and not pending and not (was_midway or self._may_begin(data)):",
            "if False:",
        ),
        (
            "what was under way when the connection ended counts as not executed",
            LINK,
            "request.end(None, self._failure.again(maybe_executed=True))",
            "request.end(None, self._failure.again(maybe_executed=False))",
        ),
        (
            "what the socket has not taken is not sent",
            LINK,
            "            self._out = memoryview(data)[sent:] if",
            '            self._out = b"" if',
        ),
        (
            "what is behind a thread that is held up is not sent by another connection",
            LINK,
            "        self.server.take_over(waiting)",
            "        pass",
        ),
        (
            "who leads does not look whether its request was sent",
            LINK,
            "                    if self._queue:\n                        self._engine.call(self.rescue)",
            "                    if False:\n                        self._engine.call(self.rescue)",
        ),
        (
            "a server that is slow counts as a thread that is held up",
            LINK,
            "                    self._reads += 1\n                    if self._queue:",
            "                    if self._queue:",
        ),
        (
            "replies that are not waited for are not read until another one is",
            LINK,
            "DEADLINE, waiting)))\n            self.rescue()",
            "DEADLINE, waiting)))",
        ),
        (
            "what is not waited for may lie where messages come",
            LINK,
            "later.may_lie = not self._subscribes",
            "later.may_lie = True",
        ),
        (
            "who has read for itself does not have the engine read messages again",
            LINK,
            "ask.outcome is None) and (self._pending or self._subscribes):\n",
            "ask.outcome is None) and self._pending:\n",
        ),
        (
            "the engine does not look whether who reads has just left",
            LINK,
            "            if not self._reading:\n                self._watch(True)  # but it left before that\n",
            "",
        ),
        (
            "a reader of messages that a handler holds up is not passed by",
            LINK,
            "if reader is not None and reader is last:",
            "if reader is not None and reader is self:",
        ),
        (
            "no one is told that no messages come any more",
            LINK,
            "            self._engine.soon(on_deaf, self.is_torn)",
            "            pass",
        ),
        (
            "acquires go before the releases that come with them",
            LINK,
            "key=lambda members: members[0].prepared.grants",
            "key=lambda members: not members[0].prepared.grants",
        ),
        (
            "what was not done with others is not asked alone",
            REQUESTS,
            "                    self._alone(member)\n                elif",
            "                    pass\n                elif",
        ),
        (
            "a task is not told again where its thread was interrupted between the reply and that",
            REQUESTS,
            "            for home, asks in groupby(answered, _HOME):",
            "            again, self.outcome = self.outcome, (reply, None)\n"
            "            for home, asks in groupby(() if again else answered, _HOME):",
        ),
        (
            "what the server refuses as a whole is not asked alone",
            REQUESTS,
            "each hears by itself why\n                self._alone(member)",
            "each hears by itself why\n                pass",
        ),
        ("an answer for too few is taken", REQUESTS, "len(reply) == len(self._members)", "True"),
        (
            "those that ask together share one failure",
            REQUESTS,
            "                member.end(None, failure.again(maybe_executed=failure.maybe_executed))",
            "                member.end(None, failure)",
        ),
        (
            "engine and caller both claim an outcome",
            OPERATION,
            "        except IndexError:\n            return False",
            "        except IndexError:\n            return True",
        ),
        (
            "what was granted to a caller that had left is kept",
            OPERATION,
            "        elif error is None:\n            self._undo()",
            "        elif False:\n            self._undo()",
        ),
        (
            "what was delivered and arrived nowhere is kept",
            OPERATION,
            "        elif self.error is None:",
            "        elif False:",
        ),
        (
            "a protocol goes on whose caller has left",
            OPERATION,
            "            self._runner.interrupt(task, Abandoned())",
            "            pass",
        ),
        (
            "what was abandoned before it began is begun",
            OPERATION,
            "        if not self._claims:",
            "        if False:",
        ),
        (
            "a sleeping loop is not woken",
            LOOP,
            "                try:\n                    bell.ring()",
            "                try:\n                    pass",
        ),
        (
            "a timer that was forgotten is called",
            LOOP,
            "        timer[2:] = None, ()\n        if len",
            "        if len",
        ),
        ("forgotten timers are kept", LOOP, "        if len(self._timers) > self._full:", "        if False:"),
        ("a flood of acts is done in one turn", LOOP, "min(len(acts), _ACTS_MAX)", "len(acts)"),
        (
            "the loop sleeps once more without clients",
            LOOP,
            "wait_s if self._clients and not (acts or soon) else 0",
            "wait_s if not (acts or soon) else 0",
        ),
        (
            "a handler runs amid the work of a thread that stands in",
            LOOP,
            "without_handlers(partial(self._stand_in, wait_s))",
            "self._stand_in(wait_s)",
        ),
        (
            "what is submitted while the loop ends is not done",
            LOOP,
            'if self._acts and self._running.setdefault("", me) is me:',
            "if False:",
        ),
        (
            "what is to be written when the loop ends is kept",
            LOOP,
            "if self._acts or self._soon or self.flushes:\n            return False",
            "if self._acts or self._soon:\n            return False",
        ),
    )
)

_AGENT: tuple[Mutant, ...] = (
    Mutant(
        "an answer whose asker has gone on is taken",
        RUNNER,
        "        if task.ticket == ticket:",
        "        if not task.done:",
    ),
    Mutant(
        "a message that comes before its waiter waits is dropped",
        INBOXES,
        "            listener.came.append(wake)",
        "            pass",
    ),
    Mutant(
        "waiters do not look when their inbox breaks",
        INBOXES,
        "                self.wake(token, Wake(Wake.ASK))\n        if broken",
        "                pass\n        if broken",
    ),
    Mutant(
        "who stands in the queue does not look when its inbox breaks",
        INBOXES,
        "        if broken:\n            self.standing.wake_all()\n",
        "",
    ),
    Mutant(
        "what has come for one that stands there is lost to its protocol",
        INBOXES,
        "                listener.came = standing.came\n",
        "                pass\n",
    ),
    Mutant(
        "the reply of one that stands where an inbox broke is lost",
        INBOXES,
        "(stands or place in self._open) and",
        "place in self._open and",
    ),
    Mutant(
        "a turn keeps the tenure that its request has passed on",
        "_core/exclusive.py",
        "        turn.passed()\n        line = turn.line",
        "        line = turn.line",
    ),
    Mutant(
        "who stands takes a grant that came though it was not told to wait",
        STANDING,
        "if not self.waits or len(self.came) != 1:",
        "if len(self.came) != 1:",
    ),
    Mutant(
        "who stands waits on when its message has come",
        STANDING,
        "if self.waits and not self.came else 0.0",
        "if self.waits else 0.0",
    ),
    Mutant(
        "one that has gone on meanwhile is taken to have seen its message",
        STANDING,
        "return self.get(token) is standing",
        "return True",
    ),
    Mutant(
        "one stands where a look is due before",
        STANDING,
        " and remaining_ms > SOON_MS",
        "",
    ),
    Mutant(
        "one stands behind a holder that sends no message",
        STANDING,
        " and is_ours(holder)",
        "",
    ),
    Mutant(
        "a grant is taken whatever else has come",
        STANDING,
        "if not self.waits or len(self.came) != 1:",
        "if not (self.waits and self.came):",
    ),
    Mutant(
        "a caller takes messages that are for holders",
        "_core/agent/agent.py",
        "found[1].kind == Wake.GRANT and",
        "True and",
    ),
    Mutant(
        "an inbox is not looked for where its slot has moved",
        INBOXES,
        'failure.kind == "MOVED" and',
        "False and",
    ),
    Mutant(
        "an inbox is closed that a holder hears by",
        INBOXES,
        "if place not in held and",
        "if",
    ),
    Mutant(
        "an inbox is closed that is waited at",
        INBOXES,
        " and place not in used]",
        "]",
    ),
    Mutant(
        "nothing waits until the inbox is open",
        INBOXES,
        "return since is not None",
        "return True",
    ),
    Mutant(
        "an inbox that broke counts as open",
        INBOXES,
        "self._open.pop(place) > _LASTED_S",
        "self._open[place] > _LASTED_S",
    ),
    Mutant(
        "a waiter for an inbox is not told that it opens",
        INBOXES,
        "        for task, ticket, effect in waiting:",
        "        for task, ticket, effect in ():",
    ),
    Mutant(
        "a renewal counts from its answer",
        RENEWALS,
        "renewal.ttl_ms, renewal.sent_at, now, jitter",
        "renewal.ttl_ms, now, now, jitter",
    ),
    Mutant(
        "a renewal that failed is not repeated",
        RENEWALS,
        "        self._schedule.failed(renewal.record, self._runner.now(), self._runner.random(), renewal.sent_at)",
        "        pass",
    ),
    Mutant(
        "what an answer that came too late has extended is left",
        RENEWALS,
        "if held and not good and record.is_left_over:",
        "if False:",
    ),
    Mutant(
        "each lease of a batch gets the answer of another one",
        RENEWALS,
        "zip(members, batch.answers(reply), strict=True)",
        "zip(members, batch.answers(reply)[::-1], strict=True)",
    ),
    Mutant(
        "the agent sleeps after its first round",
        AGENT,
        "        finally:\n            self.rearm()",
        "        finally:\n            pass",
    ),
    Mutant(
        "an acquire does not wait for the release before it",
        AGENT,
        "if behind is not None and reply[0] != 1:",
        "if False:",
    ),
    Mutant(
        "an extension that came too late is left", AGENT, "if at is None and held and record.is_left_over:", "if False:"
    ),
    Mutant(
        "a reply that comes too late for its quorum is not looked at",
        AGENT,
        "late(index, reply) if late is not None and failure is None else None",
        "None",
    ),
    Mutant(
        "those that wait go on when their client is closed",
        CLOSING,
        "            self._stop(lambda task: type(task.effect) in WAITS)",
        "            self._stop(lambda task: False)",
    ),
    Mutant(
        "a client that is closed releases nothing",
        CLOSING,
        'self.spawn(quietly(record), f"release {record.name}")',
        "pass",
    ),
    Mutant("a client that is closed tells no holder", CLOSING, '                record.lose("closed")\n', ""),
    Mutant(
        "what is held is released before its holders have done what they do then",
        CLOSING,
        "            await self._until(lambda: all(map(self.has_told, records)), TOLD_S)\n",
        "",
    ),
    Mutant(
        "who stands in the queue is not told that its client is closed",
        CLOSING,
        "            self.standing.wake_all()\n",
        "",
    ),
    Mutant(
        "what callers release by themselves is not waited for at the end",
        CLOSING,
        "            self.repeat_unconfirmed()  # what callers have sent is known by now\n",
        "",
    ),
    Mutant(
        "a client says that it has settled while it gives back",
        CLOSING,
        "while left := len(self.tasks) + len(records) - 1:",
        "while left := len(records):",
    ),
)

_EXCLUSIVE: tuple[Mutant, ...] = (
    Mutant("a repeated acquire is not recognized", ACQUIRE, "if holder == token then", "if false then"),
    Mutant("a token with a tombstone is granted", ACQUIRE, "redis.call('ZRANK', gone, token)", "false"),
    Mutant(
        "a newcomer takes a free lock ahead of the queue",
        ACQUIRE,
        "redis.call('EXISTS', lock, queue, gone)",
        "redis.call('EXISTS', lock)",
    ),
    Mutant("a waiter gets a new arrival time with each request", ENQUEUE, "if arrival <= 0 then", "if true then"),
    Mutant("a late repeat costs a waiter its place", ENQUEUE, "queue, 'LT',", "queue, 'NX',"),
    Mutant(
        "the arrival time reported is not the one in the queue",
        ENQUEUE,
        "if not new and tonumber(ARGV[4]) <= 0 then",
        "if false then",
    ),
    Mutant(
        "the holder's remaining ttl is reported wrong",
        ACQUIRE,
        "holder and redis.call('PTTL', lock) or 0",
        "60000",
    ),
    Mutant(
        "the queue has no ttl",
        NOT_YET,
        "redis.call('PEXPIRE', queue, string",
        "local _ = (string",
    ),
    Mutant(
        "a granted lock has no ttl",
        ACQUIRE,
        "    redis.call('SET', lock, token, 'PX', ttl_ms)\n    return {1, fence, string",
        "    redis.call('SET', lock, token)\n    return {1, fence, string",
    ),
    Mutant("a release does not compare the token", RELEASE, "local mine = holder == token", "local mine = true"),
    Mutant("a release hands over to no waiter", QUEUE, "local following = next_waiter(queue)", "local following = nil"),
    Mutant("a waiter that gives up stays in the queue", RELEASE, "redis.call('ZREM', queue, token)", "local _ = 0"),
    Mutant(
        "giving back leaves no tombstone",
        "_lua/gave_back.lua",
        "  leave_tombstones(gone, {token}, tombstone_ms)\n",
        "",
    ),
    Mutant("tombstones have no ttl", TOMBSTONE, "redis.call('PEXPIRE', gone, keep_ms)", "local _ = 0"),
    Mutant("a release frees nothing", RELEASE, "redis.call('DEL', lock)\n  return 1", "return 1"),
    Mutant("a release does not look at the queue", RELEASE, "and redis.call('EXISTS', queue) == 0 then", "then"),
    Mutant("a renewal does not compare the token", RENEW, "redis.call('GET', KEYS[1]) ~= ARGV[1]", "false"),
    Mutant("a renewal adds to what is left", ORDER, "math.max(left_ms, ttl_ms)", "left_ms + ttl_ms"),
    Mutant("a renewal shortens", ORDER, "math.max(left_ms, ttl_ms)", "ttl_ms"),
    Mutant("an extension adds to what is left", ORDER, "  return ttl_ms\nend", "  return left_ms + ttl_ms\nend"),
    Mutant("an extension only lengthens", ORDER, "  return ttl_ms\nend", "  return math.max(left_ms, ttl_ms)\nend"),
    Mutant("an extension that is outdated sets the ttl", ORDER, "> tonumber(number or 0) then", "> 1e9 then"),
    Mutant("an extension leaves no number", ORDER, "redis.call('SET', key, number, 'PX', mark_ms)", "local _ = 0"),
    Mutant("the number of an extension has no ttl", ORDER, "'SET', key, number, 'PX', mark_ms)", "'SET', key, number)"),
    Mutant(
        "a repeat of acquire shortens",
        ACQUIRE,
        "'PEXPIRE', lock, math.max(redis.call('PTTL', lock), tonumber(ttl_ms))",
        "'PEXPIRE', lock, ttl_ms",
    ),
    Mutant(
        "a renewal re-creates a lost lease",
        RENEW,
        "then\n  return 0",
        "then\n  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])\n  return 1",
    ),
    Mutant("fencing tokens count from one", FENCE, "local fence, more = least_us,", "local fence, more = 1,"),
    Mutant(
        "fencing tokens are not stored", FENCE, "redis.call('SET', key, fence + more, 'PX', fence_ms, 'GET')", "nil"
    ),
    Mutant(
        "fencing tokens have no ttl",
        FENCE,
        "redis.call('SET', key, fence + more, 'PX', fence_ms, 'GET')",
        "redis.call('SET', key, fence + more, 'GET')",
    ),
    Mutant("a dead waiter is not skipped", GONE_OF, "or 0) == 0 and", "or 0) < 0 and"),
    Mutant("the queue is last in, first out", QUEUE, "'ZPOPMIN'", "'ZPOPMAX'"),
    Mutant("a handoff wakes no waiter", QUEUE, "send(token, string", "local _ = (string"),
    Mutant(
        "a handoff leaves the old fencing token",
        QUEUE,
        "local fence = not written.err and next_fence(fence_key, fence_ms, now_us, token)",
        "local fence = tonumber(redis.call('GET', fence_key) or next_fence(fence_key, fence_ms, now_us))",
    ),
    Mutant("a claim has no end", QUEUE, "'SET', lock, token, 'PX', claim_ms", "'SET', lock, token"),
    Mutant("no allowance for drift", VALIDITY, "* (1 - DRIFT) - MARGIN_S", "+ 0 * DRIFT"),
    Mutant(
        "validity counts from the reply",
        WAITING,
        "deadline(asked_at, ttl_ms)):\n        return None\n    return Grant(reply[1], asked_at,",
        "deadline(now, ttl_ms)):\n        return None\n    return Grant(reply[1], now,",
    ),
    Mutant(
        "a release leaves no tombstone for what may be in transit",
        WAITING,
        "tombstone_ms = settings.tombstone_ms if self.stray else 0",
        "tombstone_ms = 0",
    ),
    Mutant(
        "waiters do not check on the one that was handed the lock",
        WAITING,
        "wait_s = min(wait_s, settings.claim_ms / 1000",
        "wait_s = min(wait_s, 1e9 + settings.claim_ms / 1000",
    ),
    Mutant(
        "a reply that comes after its validity is accepted",
        WAITING,
        "or now >= (until := deadline(",
        "or 0 > (until := deadline(",
    ),
    Mutant(
        "the fast path takes a refusal for a grant",
        WAITING,
        "if reply[0] != 1 or now >= (until",
        "if now >= (until",
    ),
    Mutant(
        "the fast path takes a release that stopped early for done",
        WAITING,
        "{0: False, 1: True, 2: True}.get",
        "{-1: False, 0: False, 1: True, 2: True, 3: True}.get",
    ),
    Mutant(
        "the fast path gives nothing back after a doubtful answer",
        FAST_PATH,
        "effect = protocol.send(reply) if error is None else protocol.throw(error)",
        "if error is not None:\n                raise error\n            effect = protocol.send(reply)",
    ),
    Mutant(
        "the fast path tells its protocol that a doubtful request was never sent",
        FAST_PATH,
        "                error.about(effect)\n",
        "                error.maybe_executed = False\n",
    ),
    Mutant(
        "the fast path's protocol counts from the answer, not from the request",
        FAST_PATH,
        "        return self.asked_at\n",
        "        return self.asked_at + 1e6\n",
    ),
    Mutant(
        "a contended lock is never tried by the fast path again",
        FAST_PATH,
        "            self.pop(key, None)\n",
        "            pass\n",
    ),
    Mutant(
        "the memory of contention has no bound",
        FAST_PATH,
        "if len(self) >= CONTENDED_MAX:",
        "if False:",
    ),
    Mutant(
        "a pushed grant counts for the ttl",
        WAITING,
        "return Grant(wake.fence, now, until=until, short_s=left_s)",
        "return Grant(wake.fence, now)",
    ),
    Mutant(
        "a lease that was pushed counts for the ttl",
        WAITING,
        "asks, until = (self.renew, self.release), grant.until",
        "asks, until = (self.renew, self.release), None",
    ),
    Mutant(
        "a pushed grant counts from when it was heard",
        WAITING,
        "until = deadline(queued_at, claim_ms)",
        "until = deadline(now, claim_ms)",
    ),
    Mutant(
        "a pushed grant counts from the last request",
        WAITING,
        "pushed(wake, self.queued_at, took_s,",
        "pushed(wake, self.asked_at, took_s,",
    ),
    Mutant(
        "a pushed grant counts for a window of our own",
        WAITING,
        "claim_ms = min(wake.claim_ms, ttl_ms)",
        "claim_ms = 2_000",
    ),
    Mutant(
        "a pushed grant lasts longer than was wanted",
        WAITING,
        "claim_ms = min(wake.claim_ms, ttl_ms)",
        "claim_ms = wake.claim_ms",
    ),
    Mutant(
        "a pushed grant is taken while a request is unanswered",
        WAITING,
        "if self.stray or self.queued_at is None or",
        "if self.queued_at is None or",
    ),
    Mutant(
        "a pushed grant is taken where replicas have to acknowledge",
        WAITING,
        "self.queued_at is None or acquisition.sync is not None:",
        "self.queued_at is None:",
    ),
    Mutant(
        "a pushed grant is taken where nothing renews it",
        WAITING,
        "if not (acquisition.renews and",
        "if not (",
    ),
    Mutant(
        "a pushed grant is taken with little left of its window",
        WAITING,
        "left_s < _LEAST_LEFT * claim_ms / 1000 or",
        "left_s < 0 or",
    ),
    Mutant(
        "a pushed grant is taken where answers take long",
        WAITING,
        " or left_s < _LEAST_TURNS * took_s",
        "",
    ),
    Mutant(
        "a pushed grant of one lock is taken for all",
        "_core/multilock.py",
        "pushed_whole = False",
        "pushed_whole = True",
        "multilock",
    ),
    Mutant(
        "a reader takes a pushed grant of the lock's own key",
        "_core/rwlock.py",
        "return not _READER_TOKEN.fullmatch(self.token)",
        "return True",
        "rwlock",
    ),
    Mutant(
        "what begins with less is not renewed sooner",
        SCHEDULE,
        "        if record.short_s:\n            wait_s",
        "        if False:\n            wait_s",
    ),
    Mutant(
        "what begins with less is not planned sooner",
        SCHEDULE,
        "if record.short_s or record.crash_ms:",
        "if False:",
    ),
    Mutant(
        "what began with less is renewed as often until its end",
        HOLD,
        "        self.short_s = 0.0\n        until",
        "        until",
    ),
    Mutant(
        "what begins with less is not tried again in time",
        SCHEDULE,
        "(record.short_s or _pace_ms(record) / 1000) * self",
        "_pace_ms(record) / 1000 * self",
    ),
    Mutant(
        "what begins with less waits for an answer as long as others",
        WAITING,
        "self.short_ms // 2 or ttl_ms",
        "ttl_ms",
    ),
    Mutant(
        "a caller that leaves gives nothing back",
        WAITING,
        "return self.doubtful or self.queued or self.stray",
        "return False",
    ),
    Mutant(
        "only a queued caller gives back",
        WAITING,
        "return self.doubtful or self.queued or self.stray",
        "return self.queued",
    ),
    Mutant(
        "a waiter does not check by itself",
        WAITING,
        "return wait_s if self.give_up_at is None else",
        "return 1e9 if self.give_up_at is None else",
    ),
    Mutant(
        "a broken inbox is not repaired",
        WAITING,
        "self.listening = False  # the inbox may be broken",
        "pass  # the inbox may be broken",
    ),
    Mutant("too few replicas are enough", "_core/replicas.py", "if acked < needed:", "if acked < 0:"),
    Mutant(
        "a waiter forgets its arrival time",
        WAITING,
        "self.holder, self.arrival = holder or None, arrival",
        "self.holder = holder or None",
    ),
    Mutant("a failed request is not repeated", RETRY, "if now + pause_s >= over_at:", "if True:"),
    Mutant(
        "a late renewal revives a lease",
        HOLD,
        "        if self.check_expired(now):\n            return False\n        if order.sets",
        "        if order.sets",
    ),
    Mutant(
        "a renewal counts from its reply",
        HOLD,
        "deadline_of(sent_at, min(ttl_ms, self.ttl_ms))",
        "deadline_of(now, min(ttl_ms, self.ttl_ms))",
    ),
    Mutant("the end of a lease is not reported", HOLD, 'self.lose("max_hold" if at_most else "expired")', "pass"),
    Mutant(
        "a deadline waits for the renewal", SCHEDULE, "record.next_at = min(at, record.deadline)", "record.next_at = at"
    ),
    Mutant(
        "a lease that was taken stays held",
        SCHEDULE,
        '            record.lose("taken")\n        self.remove(record)\n        return False',
        "            pass\n        self.remove(record)\n        return False",
    ),
    Mutant("a late reply reverts an extension", HOLD, "if until > self.deadline:\n", "if True:\n"),
    Mutant(
        "a late reply is trusted for more than was requested since",
        HOLD,
        "deadline_of(sent_at, min(ttl_ms, self.ttl_ms))",
        "deadline_of(sent_at, ttl_ms)",
    ),
    Mutant("the reply to any extension determines the ttl", HOLD, " and order.number == self.extensions:", ":"),
    Mutant("a shorter end counts only from its reply", HOLD, "self.deadline = min(self.deadline, until)", "pass"),
    Mutant("an extension outdates nothing", HOLD, "outdates = shortens or ttl_ms", "outdates = False and ttl_ms"),
    Mutant(
        "a failed renewal is not repeated",
        SCHEDULE,
        "self._asked.pop(id(record), None)\n        if id(record) not in self._live:\n            return\n",
        "if id(record) not in self._live:\n            return\n",
    ),
    Mutant("a lease is planned only behind others", SCHEDULE, "if at < plan_at[0]:", "if at > plan_at[0]:"),
    Mutant(
        "a young one is looked at no more",
        SCHEDULE,
        "for record in young:\n            new[id(record)] = record\n",
        "for record in young[1:]:\n            new[id(record)] = record\n",
    ),
    Mutant(
        "what is due goes with what is not any more",
        SCHEDULE,
        "is not None and each[0] == its.next_at]",
        "is not None and each[0] > its.next_at]",
    ),
    Mutant(
        "an extension forgets a lease that is new",
        SCHEDULE,
        "is not None:\n            self._live[id(record)] = record\n        return self._plan(record, self._renew_at",
        "is not None:\n            pass\n        return self._plan(record, self._renew_at",
    ),
    Mutant(
        "a renewal that is not answered never ends",
        SCHEDULE,
        "            self._plan(record, record.deadline)\n            # (Of one",
        "            # (Of one",
    ),
    Mutant(
        "a late renewal counts from its last try",
        SCHEDULE,
        "if record.state is _HELD:\n                    record.due_at",
        "if True:\n                    record.due_at",
    ),
    Mutant("a renewal that has found nothing is taken from its answer", RENEWALS, "is int and answer > 0:", "is int:"),
    Mutant(
        "the usual renewal is sent behind an extension",
        EXCLUSIVE,
        "self.overlong or self.extensions or",
        "self.overlong or",
    ),
    Mutant(
        "the usual renewal is sent where the clock was set back",
        EXCLUSIVE,
        "if self.overlong or self.ext",
        "if self.ext",
    ),
    Mutant("all leases of a request are looked for under the keys of the first", RENEW_MANY, "key = key + width", ""),
    Mutant("all leases of a request are renewed with the first token", RENEW_MANY, "    at = at + 1\n", ""),
    Mutant("a lease that cannot be renewed with others counts as renewed", RENEW_MANY, "answer or -1", "answer or 1"),
    Mutant(
        "one lease that cannot be renewed spoils the others",
        RENEW_MANY,
        "local done, answer = pcall(script, {unpack(KEYS, key, key + width - 1)}, args)",
        "local done, answer = true, script({unpack(KEYS, key, key + width - 1)}, args)",
    ),
    Mutant(
        "what has to be asked for alone is not held any more",
        BATCH,
        "return [None if answer < 0 else answer",
        "return [max(answer, 0)",
    ),
    Mutant(
        "answers go to leases in the order in which they were due",
        BATCH,
        "members = [position for _, positions in groups for position in positions]",
        "members = sorted(position for _, positions in groups for position in positions)",
    ),
    Mutant("what the server refuses as a whole fails for each", BATCH, "if not reply.kind.islower():", "if False:"),
    Mutant("renewals of several slots leave in one request", BATCH, "moves and slot_of(keys[0])", "False"),
    Mutant(
        "a release that is not waited for is not repeated",
        FAST_PATH,
        "held = await replay(record.release(), 0.0, reply, error)",
        "held = error is not None or reply > 0",
    ),
    Mutant("a loss that a late answer shows is not known", FAST_PATH, "record.lose_late()", "pass"),
    Mutant(
        "a loss that a late answer shows is not told",
        HOLD,
        'for listener in self.on_loss:\n            listener("taken")',
        "pass",
    ),
    Mutant(
        "a release whose first answer got lost is taken for a loss",
        WAITING,
        "found = found or (sure and failure.maybe_executed)\n                    retry = retry",
        "retry = retry",
    ),
    Mutant(
        "leases are renewed early without any that is due", SCHEDULE, "not (to_renew and at <= now", "not (at <= now"
    ),
    Mutant(
        "with others, a lock is taken from its holder",
        ACQUIRE_EACH,
        "token, 'NX', 'PX', ttl_ms)",
        "token, 'PX', ttl_ms)",
    ),
    Mutant(
        "with others, a lock is taken ahead of its queue",
        ACQUIRE_EACH,
        "redis.call('EXISTS', KEYS[at], KEYS[at + 2], KEYS[at + 3]) > 0",
        "redis.call('EXISTS', KEYS[at]) > 0",
    ),
    Mutant(
        "with others, a token with a tombstone is granted",
        ACQUIRE_EACH,
        "redis.call('EXISTS', KEYS[at], KEYS[at + 2], KEYS[at + 3]) > 0",
        "redis.call('EXISTS', KEYS[at], KEYS[at + 2]) > 0",
    ),
    Mutant(
        "one lock of several that is taken leaves all alone",
        ACQUIRE_EACH,
        "not all_free and redis.call('EXISTS', KEYS[at]",
        "not all_free or redis.call('EXISTS', KEYS[at]",
    ),
    Mutant("with others, a lock is granted without a ttl", ACQUIRE_EACH, "token, 'NX', 'PX', ttl_ms)", "token, 'NX')"),
    Mutant(
        "each of several locks has the first one's fencing token",
        ACQUIRE_EACH,
        "next_fence(KEYS[at + 1],",
        "next_fence(KEYS[2],",
    ),
    Mutant(
        "one of several locks that fails spoils the others",
        ACQUIRE_EACH,
        "local done, fence = pcall(take, at, ARGV[2 + number])",
        "local done, fence = true, take(at, ARGV[2 + number])",
    ),
    Mutant(
        "a release with others does not compare the token",
        RELEASE_EACH,
        "redis.call('GET', lock) == token and",
        "true and",
    ),
    Mutant(
        "a release with others does not look at the queue",
        RELEASE_EACH,
        "redis.call('EXISTS', queues[number]) == 0",
        "true",
    ),
    Mutant("a release with others frees nothing", RELEASE_EACH, "redis.call('DEL', unpack(free))", "local _ = 0"),
)

RW_ACQUIRE, RW_RELEASE, READERS = "_lua/rw_acquire.lua", "_lua/rw_release.lua", "_lua/readers.lua"
RW_DOWNGRADE = "_lua/rw_downgrade.lua"
SEM_ACQUIRE, SEM_RELEASE = "_lua/sem_acquire.lua", "_lua/sem_release.lua"
LET_IN = "_lua/let_in.lua"
MULTI_ACQUIRE, MULTI_RELEASE, MULTI_RENEW = "_lua/multi_acquire.lua", "_lua/multi_release.lua", "_lua/multi_renew.lua"
MULTILOCK, CONDITION = "_core/multilock.py", "_core/condition.py"
COND_WAIT, COND_NOTIFY, COND_LEAVE = "_lua/cond_wait.lua", "_lua/cond_notify.lua", "_lua/cond_leave.lua"
GATE_WAIT, GATE_MOVE = "_lua/gate_wait.lua", "_lua/gate_move.lua"
BARRIER_WAIT, BARRIER_MOVE = "_lua/barrier_wait.lua", "_lua/barrier_move.lua"
INSPECT, OPTIMISTIC, FENCED_SET, SET_IF = (
    "_lua/inspect.lua",
    "_core/optimistic.py",
    "_lua/fenced_set.lua",
    "_lua/set_if.lua",
)
LETS_NOBODY_IN = "local _, others, more = (function() return nil, 0 end)("
TELL = "send(other, ARGV[6], 'ask ' .. other)"

FAMILY: tuple[Mutant, ...] = (
    *(
        Mutant(what, file, old, new, "rwlock")
        for what, file, old, new in (
            (
                "a writer is granted while there are readers",
                "_lua/let_readers_in.lua",
                "return is_reader(head) or living_readers() <= (beneath and 1 or 0)",
                "return true",
            ),
            (
                "a reader that leaves stays",
                RW_RELEASE,
                "redis.call('ZREM', readers, token)\nif tombstone_ms",
                "if tombstone_ms",
            ),
            ("the lock's key forgets the readers", READERS, "SHARED, 'PX', left_ms + 1)", "SHARED, 'PX', 1000)"),
            (
                "a release of a readers-writer lock lets no waiter in",
                RW_RELEASE,
                "local _, others, more = let_in(nil, 0, tonumber(ARGV[3])",
                LETS_NOBODY_IN + "nil, 0, tonumber(ARGV[3])",
            ),
            ("a repeat of a reader shortens", RW_ACQUIRE, "'ZADD', readers, 'GT',", "'ZADD', readers,"),
            ("a repeated downgrade shortens", RW_DOWNGRADE, "'ZADD', readers, 'GT',", "'ZADD', readers,"),
            (
                "a repeat of a writer shortens",
                RW_ACQUIRE,
                "'PEXPIRE', lock, math.max(redis.call('PTTL', lock), ttl_ms)",
                "'PEXPIRE', lock, ttl_ms",
            ),
            (
                "a repeated upgrade shortens",
                RW_ACQUIRE,
                "'PEXPIRE', upgraded, math.max(redis.call('PTTL', upgraded), ttl_ms)",
                "'PEXPIRE', upgraded, ttl_ms",
            ),
            (
                "a downgrade leaves no tombstone for the writer",
                RW_DOWNGRADE,
                "leave_tombstones(gone, {writer}, ARGV[7])",
                "local _ = 0",
            ),
        )
    ),
    *(
        Mutant(what, file, old, new, "semaphore")
        for what, file, old, new in (
            (
                "one permit too many for the queue",
                LET_IN,
                "return taken + weight <= most",
                "return taken <= most",
            ),
            (
                "one permit too many for a newcomer",
                SEM_ACQUIRE,
                "or used() + weight > limit then",
                "or used() > limit then",
            ),
            (
                "a release of permits lets no waiter in",
                SEM_RELEASE,
                "local _, others, more = let_in(limit, nil, 0,",
                LETS_NOBODY_IN + "limit, nil, 0,",
            ),
            (
                "a waiter that leaves a semaphore stays in the queue",
                SEM_RELEASE,
                "  redis.call('ZREM', queue, token)\n",
                "",
            ),
            ("a repeated request for permits shortens", SEM_ACQUIRE, "'ZADD', holders, 'GT',", "'ZADD', holders,"),
        )
    ),
    *(
        Mutant(what, file, old, new, "multilock")
        for what, file, old, new in (
            (
                "one lock of several is taken from its holder",
                MULTI_ACQUIRE,
                "  if holder == token then\n    return nil",
                "  if true then\n    return nil",
            ),
            (
                "try_acquire takes only some of several locks",
                MULTI_ACQUIRE,
                "if blocked_at and not waits then",
                "if false then",
            ),
            (
                "only the first lock of several stores the fencing token",
                MULTI_ACQUIRE,
                "for at = 2, #KEYS, 4 do\n    local its",
                "for at = 2, 2, 4 do\n    local its",
            ),
            (
                "a repeated request for several is told a later arrival time",
                MULTI_ACQUIRE,
                "if ARGV[4] == '0' then",
                "if ARGV[4] == '9' then",
            ),
            (
                "only the first lock of several is released",
                MULTI_RELEASE,
                "for at = 1, #KEYS, 4 do\n  local lock, queue",
                "for at = 1, 4, 4 do\n  local lock, queue",
            ),
            (
                "a release of several does not compare the token",
                MULTI_RELEASE,
                "if holder == token or not holder then",
                "if true then",
            ),
            (
                "a renewal of several does not compare the token",
                MULTI_RENEW,
                "redis.call('GET', KEYS[at]) ~= ARGV[1]",
                "false",
            ),
            (
                "slots are locked in the caller's order",
                MULTILOCK,
                "sorted(all_keys, key=lambda keys: (slot_of(keys.lock), tag_of(keys.lock), keys.lock))",
                "all_keys",
            ),
            (
                "several slots are not extended together at the end",
                MULTILOCK,
                "if not await _all_extended(held, ttl_ms, fence) or driver.get().now()",
                "if driver.get().now()",
            ),
            (
                "some locks of several are kept when the rest fails",
                MULTILOCK,
                "            if not complete:\n                for turn in held:",
                "            if not complete:\n                for turn in held[:0]:",
            ),
            (
                "a repeated request for several shortens",
                MULTI_ACQUIRE,
                "math.max(redis.call('PTTL', KEYS[at]), ttl_ms)",
                "ttl_ms",
            ),
        )
    ),
    *(
        Mutant(what, file, old, new, "condition")
        for what, file, old, new in (
            (
                "a client that is not the holder may notify",
                COND_NOTIFY,
                "redis.call('GET', lock) ~= ARGV[1]",
                "false",
            ),
            ("the last waiter is notified first", COND_NOTIFY, "'ZPOPMIN'", "'ZPOPMAX'"),
            (
                "a repeated notification wakes another waiter",
                COND_NOTIFY,
                "if before and string",
                "if false and string",
            ),
            (
                "a notified waiter is forgotten",
                COND_NOTIFY,
                "redis.call('ZADD', queue, 'NX', string.format('%.0f', now_us + moved), token)",
                "local _ = 0",
            ),
            (
                "a wait does not release the lock",
                COND_WAIT,
                "holder and 0 or pass_on(lock, fence_key, queue, ARGV[6], fence_ms)",
                "0",
            ),
            (
                "a notified waiter that misses its claim goes to the end",
                COND_WAIT,
                "if notified == 0 or redis.call('ZSCORE', queue, token) then\n  ARGV[4]",
                "if true then\n  ARGV[4]",
            ),
            (
                "a wait does not add the waiter",
                COND_WAIT,
                "    redis.call('ZADD', waiters, string.format('%.0f', since), token)\n",
                "",
            ),
            (
                "a notified waiter that leaves does not pass it on",
                COND_LEAVE,
                "ARGV[6] == '1' and next_waiter(waiters)",
                "nil",
            ),
            (
                "a waiter that leaves stays among the waiters",
                COND_LEAVE,
                "local result = redis.call('ZREM', waiters, token)",
                "local result = 0",
            ),
            (
                "a waiter checks every 5 s, however short the ttl",
                CONDITION,
                "min(settings.signal_recheck_ms, self.ttl_ms)",
                "settings.signal_recheck_ms",
            ),
            (
                "a repeated acquire after a wait shortens",
                ACQUIRE,
                "math.max(redis.call('PTTL', lock), tonumber(ttl_ms))",
                "ttl_ms",
            ),
            (
                "a wait leaves no tombstone for what may be in transit",
                COND_WAIT,
                "leave_tombstones(gone, {ARGV[8]}, ARGV[10])",
                "local _ = 0",
            ),
        )
    ),
    *(
        Mutant(what, file, old, new, "gates")
        for what, file, old, new in (
            (
                "an opening gate wakes no waiter",
                GATE_MOVE,
                "send(some[at], 'ask ' .. some[at]) > 0",
                "true",
            ),
            (
                "a waiter passes a closed gate",
                GATE_WAIT,
                "if missing == '0' or has_opened then",
                "if missing == '0' or missing == '1' or has_opened then",
            ),
            ("a repeated request counts twice", GATE_MOVE, "redis.call('ZRANK', gone, ARGV[1])", "false"),
            (
                "a waiter that leaves a gate stays registered",
                GATE_WAIT,
                "if ARGV[2] == 'leave' then\n  redis.call('ZREM', waiters, token)\n",
                "if ARGV[2] == 'leave' then\n",
            ),
            ("a late request re-registers a waiter that left", GATE_WAIT, "redis.call('ZRANK', gone, token)", "false"),
            ("a gate has no ttl", GATE_MOVE, "openings, first), 'PX', ARGV[3])", "openings, first))"),
            ("an event that is cleared forgets who waited", GATE_WAIT, "or has_opened then", "then"),
            ("an opening is not counted", GATE_MOVE, "(opens and 1 or 0)", "0"),
            ("a waiter passes by an opening before it came", GATE_WAIT, "came < tonumber", "came <= tonumber"),
            ("a waiter passes by an opening of lost data", GATE_WAIT, "tonumber(first) <= came and", "came > 0 and"),
        )
    ),
    *(
        Mutant(what, file, old, new, "barrier")
        for what, file, old, new in (
            ("a dead party counts", "_lua/bury.lua", "    dead[#dead + 1] = tokens[at]\n", ""),
            (
                "a party of one generation is released with the next",
                BARRIER_WAIT,
                "tonumber(ARGV[3]) ~= generation + 1",
                "false",
            ),
            (
                "the last arrival wakes no party",
                BARRIER_WAIT,
                "elseif place <= TOLD_MAX then",
                "elseif place < 1 then",
            ),
            (
                "a barrier opens one party too early",
                BARRIER_WAIT,
                "if #waiting < parties then",
                "if #waiting < parties - 1 then",
            ),
            ("a party that times out does not break the barrier", BARRIER_WAIT, "'broken', '1')", "'broken', '0')"),
            ("a late request brings back a party that left", BARRIER_WAIT, "redis.call('ZRANK', gone, token)", "false"),
            (
                "a reset keeps the parties that had arrived",
                BARRIER_MOVE,
                "tell_some(arrived, gone, ARGV[5])\n  broken = (ARGV[1] == 'abort' or redis.call('ZCARD', arrived) > 0)",
                "broken = ARGV[1] == 'abort'",
            ),
        )
    ),
    *(
        Mutant(what, file, old, new, "election")
        for what, file, old, new in (
            (
                "an election object has only one lead",
                "_api/lease_stack.py",
                "        self._leases[owner] = lease\n",
                "        self._leases = dict.fromkeys(self._leases, lease)\n        self._leases[owner] = lease\n",
            ),
            ("the leader is not reported", INSPECT, "seen[1], seen[2] = holder,", "_, seen[2] = holder,"),
            ("the remaining time of a lead is reported wrong", INSPECT, "redis.call('PTTL', key)", "1000"),
            ("the leader's fencing token is not reported", INSPECT, "{'', -2, fence,", "{'', -2, 0,"),
            ("candidates are not counted", INSPECT, "redis.call('ZCARD', KEYS[3])", "0"),
            (
                "a second candidate leads as well",
                ACQUIRE,
                "if not holder then\n-- #include fence\n-- #include queue",
                "if holder then\n-- #include fence\n-- #include queue",
            ),
        )
    ),
    *(
        Mutant(what, file, old, new, "optimistic")
        for what, file, old, new in (
            ("an older token writes", FENCED_SET, "tonumber(seen) > tonumber(ARGV[1])", "false"),
            (
                "a writer's token is not remembered",
                FENCED_SET,
                "redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[4])",
                "local _ = 0",
            ),
            ("a writer's token has no ttl", FENCED_SET, "ARGV[1], 'PX', ARGV[4])", "ARGV[1])"),
            ("a deletion under a token stays", FENCED_SET, "redis.call('DEL', KEYS[1])", "local _ = 0"),
            ("a compare-and-set does not compare", SET_IF, "redis.call('GET', KEYS[1]) ~= ARGV[1]", "false"),
            ("a native compare-and-set does not compare", OPTIMISTIC, '"IFEQ", expected, *options', "*options"),
            ("a set of a missing key does not check", OPTIMISTIC, 'new, "NX", *options', "new, *options"),
            ("nothing is watched", OPTIMISTIC, '("WATCH", *keys)', '("UNWATCH",)'),
            (
                "an attempt without writes stays in WATCH",
                OPTIMISTIC,
                '        await Command(("UNWATCH",), request_timeout_s, key, session=session, fits=DONE)\n        return []',
                "        return []",
            ),
            (
                "an attempt that fails stays in WATCH",
                OPTIMISTIC,
                'await _quietly(Command(("UNWATCH",), request_timeout_s, key, session=session))',
                "pass",
            ),
        )
    ),
)

REDLOCK, QUORUM_ACQUIRE = "_core/redlock.py", "_lua/quorum_acquire.lua"

QUORUM: tuple[Mutant, ...] = tuple(
    Mutant(what, file, old, new, "quorum")
    for what, file, old, new in (
        ("a member that was restarted votes at once", QUORUM_ACQUIRE, "if delay_ms > 0 then", "if false then"),
        ("a vote is given twice", QUORUM_ACQUIRE, "if holder and holder ~= token then", "if false then"),
        (
            "what is left of a lost majority is given back at once",
            REDLOCK,
            "        if gone > size - need:\n",
            "        if gone > size - need:\n            await Spawn(give_back(quorum, keys, self.token, ttl_ms))\n",
        ),
        ("a minority renews", REDLOCK, "        if held >= need:\n", "        if held:\n"),
        (
            "a minority remembers a fencing token",
            REDLOCK,
            "_counted(answers)[0] >= quorum.need\n",
            "_counted(answers)[0] >= 1\n",
        ),
        (
            "a vote that comes too late is kept",
            REDLOCK,
            "            if self.over:\n                return self.back(index)\n",
            "",
        ),
    )
)

#: What is wrong where a client hands a lock on among its own.
LINES: tuple[Mutant, ...] = tuple(
    Mutant(what, file, old, new, IN_LINES)
    for what, file, old, new in (
        ("an acquire leaves no note", TENURE, "    note.last = _ASKING\n", ""),
        (
            "a note is not compared with the lease",
            TENURE,
            "return state is not _HELD and",
            "return note.last is _NONE and",
        ),
        ("a line is not looked for", TENURE, " and note not in lines", ""),
        ("who is not alone waits in no line", TENURE, "return state is not _HELD and note not in lines", "return True"),
        ("a tenure does not end", TENURE, "now < tenure.ends_at and", "True and"),
        ("an undisturbed tenure is not told", TENURE, "        self.ends_at = self.fair_until\n", "        pass\n"),
        ("an undisturbed tenure needs no inbox", TENURE, " or not self.hears(key)", ""),
        (
            "a tenure forgets what was told early",
            "_core/schedule.py",
            "        if self.take(token, Wake.YIELD) is not None:\n",
            "        if False:\n",
        ),
        ("every tenure is undisturbed", EXCLUSIVE, "self.keys.lock if grant.more else None", "self.keys.lock"),
        ("the first waiter is not announced", WANTED, "count > 0 and count <= (came or 1)", "false"),
        ("a tenure is handed on beyond its block", TENURE, "tenure.fence >= tenure.last_fence", "False"),
        ("a tenure is handed on without validity", TENURE, " and record.deadline - now >= tenure.least_s", ""),
        ("an extended lease is handed on", TENURE, " or record.extensions or", " or"),
        ("a handed-on lease has its predecessor's token", TENURE, "        tenure.fence += 1\n", ""),
        (
            "a handed-on lease has a deadline of its own",
            EXCLUSIVE,
            "self.ttl_ms, now, until, self.short_s)",
            "self.ttl_ms, now, now + self.ttl_ms / 1000, self.short_s)",
        ),
        (
            "a handed-on lease ends by the max_hold of the one before",
            EXCLUSIVE,
            "self.granted_until > until",
            "False",
        ),
        (
            "a turn that leaves takes its lease along",
            TENURE,
            "record is not None and record.turn is self:\n            # It",
            "False:\n            # It",
        ),
        (
            "a handed-on lease is renewed from when it was handed on",
            EXCLUSIVE,
            "made.renew_from = self.renew_from",
            "made.renew_from = now",
        ),
        ("a handed-on lease is stretched later", EXCLUSIVE, "now, until, self.short_s)", "now, until, 0.0)"),
        (
            "a lease that was handed on is found behind it",
            TENURE,
            "line.record = record = record.followed",
            "record = record.followed",
        ),
        (
            "a turn that leaves keeps the right",
            TENURE,
            "return tenure if line.settle(self, tenure) else None",
            "return tenure",
        ),
        (
            "the last turn that leaves gives nothing back",
            TENURE,
            "return tenure if line.settle(self, tenure) else None",
            "line.settle(self, tenure)\n        return None",
        ),
        (
            "a successor that has left keeps the right",
            TENURE,
            "not (owner.over and line.settle(self, handed))",
            "True",
        ),
        (
            "the last of a line does not release",
            TENURE,
            "                line.die()\n                return False",
            "                line.die()\n                return True",
        ),
        (
            "a repeated release hands on again",
            TENURE,
            "        if line.owner is self:\n            record = line.record\n            if line.dead",
            "        if True:\n            record = line.record\n            if line.dead",
        ),
        (
            "a line goes on after a loss",
            TENURE,
            "        if line is not None and line.owner is self:\n            line.die()",
            "        pass",
        ),
        ("a pass releases another token", TENURE, "return (line.tenure.token, *", "return ('none', *"),
        ("a pass arrives when it is sent", TENURE, "int((now - self.arrived_at) * 1_000_000)", "0"),
        (
            "a pass arrives before it has come",
            TENURE,
            "int((now - self.arrived_at) * 1_000_000)",
            "int((now - self.arrived_at) * 3_000_000)",
        ),
        (
            "what came to no lease is handed on and given back",
            TENURE,
            "            line.tenure = None\n\n    def hand_on(",
            "            pass\n\n    def hand_on(",
        ),
        (
            "what was handed to one that gets no lease is forgotten",
            TENURE,
            " and line.tenure.token == self.token:\n            line.tenure = None\n\n    def hand_on(",
            ":\n            line.tenure = None\n\n    def hand_on(",
        ),
        ("a pass does not release", ACQUIRE, "token) then\n    redis.call('DEL', lock)\n", "token) then\n"),
        ("a pass releases what others hold", ACQUIRE, "redis.call('GET', lock) == ARGV[8] and", "true and"),
        ("a block is one fencing token", FENCE, "FENCE_BLOCK = 1024", "FENCE_BLOCK = 1"),
        ("a repeat is told the end of its block", ACQUIRE, "{1, last + 1 - fences_of(token)}", "{1, last}"),
        ("a block that is given back may be another's", UNBLOCK, "if stored == last and", "if stored and"),
    )
)

#: What is wrong where a client keeps a lock.
KEEPS: tuple[Mutant, ...] = tuple(
    Mutant(what, file, old, new, KEPT)
    for what, file, old, new in (
        ("a kept lease is taken by two", KEEPING, "return idle[0] is token", "return True"),
        ("an idle lease is not let go", KEEPING, "        self.wanted = True\n        self.let_go()", "        pass"),
        ("a kept lease is taken after its time", KEEPING, "or now >= self.idle_until or", "or"),
        ("a kept lease has the fencing token of before", EXCLUSIVE, "kept.fence += 1", "pass"),
        (
            "a kept lease has a deadline of its own",
            EXCLUSIVE,
            "min(self.deadline, deadline(now",
            "max(0.0, deadline(now",
        ),
        (
            "a kept lease trusts more than its ttl",
            EXCLUSIVE,
            "min(self.deadline, deadline(now, ttl_ms))",
            "self.deadline",
        ),
        ("a lease that was cut is trusted as before", EXCLUSIVE, "self.deadline = deadline(asked_at, ttl_ms)", "pass"),
        ("an extended lease is kept", KEEPING, "            or record.is_chosen  # a late extension may shorten\n", ""),
        ("a repeat of what cut a lease cuts the next one", EXCLUSIVE, "if self.is_cut else", "if False else"),
        ("a lease that others wait behind is kept", "_core/exclusive.py", "kept.wanted = grant.waited", "pass"),
        ("keepers are not told", WANTED, "if not count or count > 0", "if count and count > 0"),
        (
            "an early word is forgotten",
            "_core/schedule.py",
            "if self.take(token, Wake.YIELD) is not None:",
            "if False:",
        ),
    )
)

#: What is wrong where leases are taken away.
BREAKS: tuple[Mutant, ...] = tuple(
    Mutant(what, file, old, new, BROKEN)
    for what, file, old, new in (
        (
            "a break ends whatever the client holds",
            NOTICES,
            "if record.token == token and record.alive",
            "if record.alive",
        ),
        ("who holds nothing is told that it is broken", TELLS, "if not holds then", "if false then"),
        (
            "a holder is not told of its break",
            TELLS,
            "send(token, ARGV[3] .. ' ' .. token .. ' ' .. ARGV[4])",
            "1",
        ),
        ("a holder lets go before it knows", NOTICES, "        record.lose(broken_by(by))\n", ""),
        ("a break does not wait for the holder", BREAKING, " and driver.get().now() < until:", " and False:"),
        ("a break of a holder that does not answer leaves no tombstone", BREAKING, "turn.stray = True", "pass"),
        ("a break ends nothing that does not answer", BREAKING, "FORCED if await turn.release() else LET_GO", "LET_GO"),
        ("a holder does not listen", NOTICES, "elif outlived:", "elif False:"),
        (
            "a break that comes before its lease is dropped",
            SCHEDULE,
            "if record.token in self.early or record.held_since < self.hears_since:",
            "if False:",
        ),
        (
            "an early break is not cleared",
            "_core/schedule.py",
            ".pop(kind, None)",
            ".get(kind)",
        ),
        (
            "an early message of another token is taken",
            NOTICES,
            "self._driver.schedule.early.take(record.token, kind)",
            "next((text for said in self._driver.schedule.early.values() for text in said.values()), None)",
        ),
        (
            "early messages are never forgotten",
            "_core/schedule.py",
            "while len(self) > EARLY_MAX:",
            "while False:",
        ),
        ("an acquire that was broken is not told by whom", WAITING, "if by is None else broken_by(by)", ""),
        ("who broke an acquire is not asked again", WAITING, ", or_raise=True", ""),
        (
            "a renewal re-creates what was broken",
            RENEW,
            "then\n  return 0",
            "then\n  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])\n  return 1",
        ),
    )
)

DEADLOCKS, DETECTING, NOTING = "_core/deadlocks.py", "_core/detecting.py", "_core/describe.py"

#: What is wrong in who is told of a deadlock.
CIRCLES: tuple[Mutant, ...] = tuple(
    Mutant(what, file, old, new, "deadlocks")
    for what, file, old, new in (
        (
            "a circle is told after one reading",
            DETECTING,
            "circle = circle_of(token, await detector.again(first))",
            "circle = circle_of(token, first)",
        ),
        ("all of a client are one party", DEADLOCKS, "client_of(token), owner_of(token)", 'client_of(token), ""'),
        ("one free permit is as none", DEADLOCKS, "holders if left < max(", "holders if left <= max("),
        ("each party has a claim of its own", DETECTING, 'namespace, "deadlock").part(', "namespace, token).part("),
        (
            "who is told of a deadlock has not left its queue",
            DETECTING,
            "await acquisition.undo(settings.tombstone_ms, settings.request_timeout_s)",
            "pass",
        ),
        (
            "the claim is given back before its waiter has left",
            DETECTING,
            "            decided = True\n",
            "            await claim.undo(0, acquisition.settings.request_timeout_s)\n            decided = True\n",
        ),
        (
            "the claim is given back where it is not known whether its waiter has left",
            DETECTING,
            "if not (free or decided):",
            "if not free:",
        ),
        (
            "a waiter does not say what it holds",
            DETECTING,
            "self.every_s, self.witness.held(token))",
            "self.every_s, ())",
        ),
        ("one that does not look says nothing", NOTING, "if held := self.held(acquisition.token):", "if held := ():"),
        ("a note is gone at once", NOTING, "int(every_s * 3000) + 10_000", "1"),
        ("a note is of another waiter", NOTING, "note_key(self.namespace, token)", 'note_key(self.namespace, "")'),
        ("one that waits is stuck", DEADLOCKS, "if len(edges) == len(those):", "if True:"),
        (
            "one holder of a semaphore is all",
            DEADLOCKS,
            "for edge in holders)\n        return holders if",
            "for edge in holders) * 9\n        return holders if",
        ),
    )
)

SLOTS: tuple[Mutant, ...] = tuple(
    Mutant(what, file, old, new, IN_SLOTS)
    for what, file, old, new in (
        ("a sharded message is not sent", SEND, "redis.pcall('SPUBLISH', sharded, message)", "1"),
        (
            "who listens to a sharded channel is not seen",
            GONE_OF,
            "near and redis.pcall('PUBSUB', 'SHARDNUMSUB', unpack(channels)) or {}",
            "{}",
        ),
        ("messages are sharded by another key", CLIENTS, "string.match(marks, '{[^}]*}')", "'{' .. marks .. '}'"),
    )
)

CRASHES: tuple[Mutant, ...] = tuple(
    Mutant(what, file, old, new, CRASH)
    for what, file, old, new in (
        (
            "a renewal proves from its answer on",
            EXCLUSIVE,
            "max(self.proved_until, deadline(sent_at, ",
            "max(self.proved_until, deadline(now, ",
        ),
        ("no proof is needed", EXCLUSIVE, "deadline(grant.sent_at, self.crash_ms)", 'float("inf")'),
        ("a renewal that was not heard proves", EXCLUSIVE, "if not self._unheard:", "if True:"),
        ("a renewal that was not heard says nothing of it", "_lua/crash_renew.lua", "return -2", "return lasting_ms"),
        (
            "a pushed grant is trusted for its claim",
            EXCLUSIVE,
            "= deadline(grant.sent_at, self.crash_ms)",
            "= grant.until or deadline(grant.sent_at, self.crash_ms)",
        ),
        (
            "a release without an answer counts though others may have it",
            WAITING,
            "found = found or (sure and failure.maybe_executed)",
            "found = found or failure.maybe_executed",
        ),
        (
            "a pushed grant is taken though a note of its token may be there",
            WAITING,
            "if self.stray or self.queued_at is None or",
            "if (self.stray and not self.acquisition.listens) or self.queued_at is None or",
        ),
        (
            "a renewal leaves the mark",
            CRASH_LUA,
            "  if run then\n    redis.call('SET'",
            "  if run and string.sub(redis.call('GET', key) or '', 1, 4) ~= 'gone' then\n    redis.call('SET'",
        ),
        ("others get in at the first look", CRASH_LUA, "return since + math.ceil", "return since - 100000 + math.ceil"),
        ("clocks are taken to be alike", CRASH_LUA, "local RATES_APART = 1.01", "local RATES_APART = 1"),
        (
            "a note of another run counts",
            CRASH_LUA,
            "if known ~= token or run ~= run_id() then",
            "if known ~= token then",
        ),
        (
            "a run is the server's process",
            CRASH_LUA,
            "redis.pcall('INFO', 'replication')\n  return type(said) == 'string' and string.match(said, 'master_replid",
            "redis.pcall('INFO', 'server')\n  return type(said) == 'string' and string.match(said, 'run_id",
        ),
        ("who is there may be marked", CRASH_LUA, "if listens(token) ~= false then", "if false then"),
        (
            "a client that is not there is noted",
            CRASH_LUA,
            "local run = listens(token) and run_id()",
            "local run = run_id()",
        ),
        (
            "a client that does not listen is granted it",
            "_lua/crash_acquire.lua",
            "if not (there and run_id()) then",
            "if false then",
        ),
    )
)

#: What is looked for by contract tests of the asyncio API, on a real server: by what they are called there.
API = ("queue limits", "values", "checks", "notes")
KERNEL, ONCE, SESSION, DESCRIBE = "_async/kernel.py", "_async/once.py", "_api/session.py", "_core/describe.py"
ACQUIRABLE, OUTCOME = "_api/acquirable.py", "_api/outcome.py"

_API: tuple[Mutant, ...] = tuple(
    Mutant(what, file, old, new, kind)
    for kind, mutants in zip(
        API,
        (
            (
                ("one more may wait", NOT_YET, "most and place >= most then", "most and place > most then"),
                (
                    "dead waiters count",
                    NOT_YET,
                    "local left = trim(queue, place, LOOKS_MAX)",
                    "local left = place",
                ),
                (
                    "one that was turned away stays in the queue",
                    NOT_YET,
                    "      redis.call('ZREM', queue, token)\n",
                    "",
                ),
                (
                    "only the first request has the limit",
                    WAITING,
                    "what = self.most_waiting\n",
                    "what, self.most_waiting = self.most_waiting, None\n",
                ),
                (
                    "no queue has a limit",
                    "_core/by_turns.py",
                    "self.renews, self.most_waiting\n",
                    "self.renews, None\n",
                ),
                (
                    "a waiter inside of its client is not counted",
                    SESSION,
                    "(options.deadlock_check_s, options.queue_limit,",
                    "(options.deadlock_check_s, None,",
                ),
                ("one that is turned away waits", WAITING, "        if place == FULL:\n", "        if False:\n"),
                (
                    "a full queue is told as a timeout",
                    KERNEL,
                    "if limit is not None and (got.is_full or not limit):",
                    "if False:",
                ),
                (
                    "a timeout is told as a full queue",
                    KERNEL,
                    "if limit is not None and (got.is_full or not limit):",
                    "if limit is not None:",
                ),
            ),
            (
                ("an old value is never made again", OUTCOME, "0 <= left_ms <= self.stale_ms", "False"),
                (
                    "an old value is given after its time",
                    OUTCOME,
                    "None if ttl_ms is None else ttl_ms + stale_ms",
                    "None if ttl_ms is None else ttl_ms + 2 * stale_ms",
                ),
                (
                    "one that finds an old value waits for the new one",
                    ONCE,
                    "        if found is not None:\n            return False, found  # another",
                    "        if False:\n            return False, found  # another",
                ),
                ("a failure is not left", ONCE, "await session.run(value.tell(lease.token, error))", "pass"),
                ("a failure is not shared", ONCE, "await session.run(value.fail_with(maker))", "pass"),
                ("the failure of another maker is shared", OUTCOME, "if token and by == token:", "if by:"),
                ("a fingerprint is not compared", ONCE, "if mark and made_for != mark:", "if False:"),
                (
                    "what was made for no request is that of any",
                    ONCE,
                    "if mark and made_for != mark:",
                    "if mark and made_for and made_for != mark:",
                ),
            ),
            (
                ("a check does not ask", AGENT, "held = await record.renew(ttl_ms)\n", "held = 1\n"),
                (
                    "a check counts from its answer",
                    AGENT,
                    "elif not record.extended(ttl_ms, asked_at, self.now())",
                    "elif not record.extended(ttl_ms, self.now(), self.now())",
                ),
                (
                    "a check makes longer what is not renewed",
                    AGENT,
                    "if record.renews else None) or part_ms or 1",
                    "if record.renews else None) or record.ttl_ms",
                ),
                (
                    "what others hold is held here",
                    SESSION,
                    "in snapshot(self.owners.items()) if owner == me]",
                    "in snapshot(self.owners.items())]",
                ),
                ("what is lost is held", SESSION, "if lease is not None and lease.held}", "if lease is not None}"),
            ),
            (
                ("all notes stand in one place", "_api/client_info.py", ":note:{token}", ":note"),
                ("a note outlives its release", HOLD, "await Spawn(keep(0))", "pass"),
                ("a note is not renewed", HOLD, "await Spawn(keep(self.most_ms))", "pass"),
                ("a check cuts a note", HOLD, "await Spawn(keep(self.most_ms))", "await Spawn(keep(ttl_ms))"),
                (
                    "the usual renewal is sent where there is a note",
                    EXCLUSIVE,
                    "self.short_s or self._asks or",
                    "self.short_s or",
                ),
                (
                    "the usual release is sent where there is a note",
                    ACQUIRABLE,
                    "got.stray or self._noted or",
                    "got.stray or",
                ),
                (
                    "a note is handed on",
                    SESSION,
                    "options.sync_replicas, options.note_text)",
                    "options.sync_replicas, None)",
                ),
                (
                    "a client that adopts a lease replaces its note",
                    ACQUIRABLE,
                    "if client_of(record.token) == self._session.driver.client_id:",
                    "if self._options.note_text:",
                ),
                ("a note can write to a terminal", "_api/holder.py", "{self.note!r}", "{self.note}"),
                ("a note of any length is shown", "_api/holder.py", "[:_NOTE_MAX]", ""),
                ("a change of sides loses the note", "_api/options.py", "note_text=record.says", ""),
                ("a wait on a condition loses the note", "_async/condition.py", "{lock._noted}", ""),
            ),
        ),
        strict=True,
    )
    for what, file, old, new in mutants
)

MUTANTS = _ENGINE + _AGENT + _EXCLUSIVE + SLOTS + FAMILY + QUORUM + LINES + KEEPS + BREAKS + CIRCLES + CRASHES + _API
