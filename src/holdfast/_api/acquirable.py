"""What can be acquired, as the acquire kernels see it. The same for both APIs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from copy import copy
from functools import partial
from types import CodeType
from typing import Any, NoReturn, Self

from holdfast._api import hook
from holdfast._api.client_info import lease_note_key
from holdfast._api.lease_stack import LeaseStack
from holdfast._api.leaving import line_of
from holdfast._api.options import Duration, Options, check_name, lock_options_of, options_of, unexpected
from holdfast._core.agent.agent import Outcome, Sent
from holdfast._core.by_turns import ByTurns
from holdfast._core.describe import annotate
from holdfast._core.effects import Protocol
from holdfast._core.lease_cache import CachedLease
from holdfast._core.plain import PLAIN
from holdfast._core.record import LeaseRecord, Report
from holdfast._core.standing import Standing
from holdfast._core.tenure import SOON_S, LocalWaiter, Note, Tenure, as_owner, is_alone, left, wait_in_line
from holdfast._core.tokens import MARK, NOTED, client_of, has_note, is_kept
from holdfast._core.waiting import Busy, Grant, within
from holdfast._engine.pack import PreparedRequest
from holdfast._runtime.clock import clock
from holdfast.errors import AlreadyHeld, ConfigurationError, LeaseLost

_LEASE = "; a lock is not held itself: acquire() returns the lease, which has {} (or use `with`, which releases)"
#: What other libraries' locks have, and here the lease.
_ON_THE_LEASE = {
    **dict.fromkeys(("release", "unlock"), _LEASE.format("release()")),
    **dict.fromkeys(("extend", "reacquire", "renew"), _LEASE.format("extend()")),
    **dict.fromkeys(("owned", "is_held", "held", "acquired"), _LEASE.format("held")),
    "token": _LEASE.format("token"),
    "reset": "; a lock ends with its lease, or its ttl",
}
#: Names of which a client remembers one lock; beyond, all are forgotten, and made again.
_KNOWN_MAX = 1_000


class Elsewhere:
    """An attribute that locks of other libraries have here: there is none, and the error says what to use.

    In place of a `__getattr__`, with which Python looks up all attributes of an object several times slower.
    """

    def __init__(self, name: str, out: str) -> None:
        self._name = name
        self._out = out

    def __get__(self, owner: object, kind: type) -> NoReturn:
        who = f"type object {kind.__name__!r}" if owner is None else f"{kind.__name__!r} object"
        raise AttributeError(f"{who} has no attribute {self._name!r}{self._out}", name=self._name, obj=owner or kind)


class Asked:
    """An acquire that is under way: by which token, for whom, from where in the code; and what it has so far.

    Filled by the one that makes it: an `__init__` would take longer than all the rest.
    """

    lock: AcquirableBase
    token: str
    timeout_s: float | None
    cancel: Any
    #: The client of the engine: another one in the child of a fork.
    client: Any
    #: Where losses are told, and the number of the thread or task that asks.
    home: Any
    me: int
    code: CodeType
    offset: int
    report: Report
    #: When its first request is sent by the caller, until when that waits, and behind which release; and whether the
    #: engine has all that there is of it.
    asked_at: float
    until: float
    behind: Any
    runs = False
    turn: LocalWaiter | None = None
    #: What it may have taken of what the client keeps.
    kept: CachedLease | None = None
    record: LeaseRecord | None = None
    #: How it waits by itself in the server's queue.
    standing: Standing | None = None

    @property
    def where(self) -> str:
        """The line of code that has called it."""
        return f"{line_of(self.code, self.offset)} in {self.code.co_name}"[:400]

    @property
    def is_ours(self) -> bool:
        """Whether this process has asked: the child of a fork leaves it to its parent, which goes on."""
        return self.client is self.lock._session.driver.client

    def undo(self, is_undone: bool = False) -> None:
        """Give back what does not reach the caller. In any thread; idempotent.

        `is_undone`: it was cancelled while it waited for an answer: the protocol has seen to what the server did.
        """
        if not self.is_ours:
            return
        lock, kept, turn, record = self.lock, self.kept, self.turn, self.record
        driver = lock._session.driver
        if record is not None and driver.take_back(record):
            for kind in lock._owned_as:
                lock._session.owners.pop((kind, self.me), None)
        if kept is not None and kept.was_taken(self.token):
            driver.spawn(kept.give_up)
            return
        if turn is not None:
            if record is None:
                turn.disclaim()
            driver.spawn(partial(left, turn, lock._give_back))
        if not is_undone and (record is None or record.turn is None):
            driver.spawn(partial(lock._give_back, self.token))


def _introduced(introduce: Callable[[], None], start: Callable[..., Protocol[Any]], *how: Any) -> Protocol[Any]:
    """Introduce the client before it stands in a queue, so that others can find out who it is."""
    introduce()
    return start(*how)


class AcquirableBase:
    """What a lease is acquired of."""

    #: How it is acquired: `ByTurns`; and the key that says where the inbox has to listen.
    _how: Any
    _key: str

    #: Makes one like it that tells a function what it waits for.
    _telling: Callable[..., Self]
    _lease_class: Any
    _kind = "lock"
    #: What messages call it.
    _label = "lock"
    #: What the owner in its tokens begins with.
    _mark = ""
    #: What they end with.
    _ending = ""
    _reentrant = False
    #: The level at which its success is logged: DEBUG.
    _report_level = 10

    def __init__(self, session: Any, name: str, options: Options) -> None:
        self._session = session
        self._name = name
        self._options = options
        self._ttl_ms = options.ttl_ms
        #: What the owner in its tokens has in front, behind the mark.
        self._noted = "" if options.note_text is None else NOTED
        #: Who is inside of blocks that no `with` statement knows, by which lease.
        self._entered: LeaseStack[int, Any] = LeaseStack()
        self._owned_as: tuple[str, ...] = (f"{self._kind}:{name}",)
        #: The first requests of acquire and release, ready but for the token; () where there are none. A third one,
        #: where there is one, queues.
        self._asks: tuple[PreparedRequest, ...] = ()
        #: By which the client keeps it after its release; None: it does not.
        self._kept_as: str | None = None
        #: Whose acquires wait for each other inside of the client; None: all ask the server.
        self._line_key: Note | None = None

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._name

    @property
    def ttl(self) -> float:
        """Lease duration, s."""
        return self._ttl_ms / 1000

    def _by_turns(self, key: str, make: Callable[..., Any], *what: object) -> None:
        """Have it acquired by the turn that `make` makes, the same for all of its name that have `what` in common."""
        session, replicas = self._session, self._options.sync_replicas
        self._key = key
        self._share(lambda: ByTurns(self._name, session.settings, session.replicas_for(replicas), make), *what)

    def _share(self, make: Callable[[], ByTurns], *what: object) -> None:
        session, options = self._session, self._options
        self._how = how = session.shared((self._label, self._name, options, *what), make)
        if how.asks is None:
            how.renews, how.most_waiting, how.witness = options.renew, options.queue_limit, session.witness
            how.checks = session.checks(self._label, self._name, options)
            how.bare = self._label == "lock" and options == Options(options.ttl_ms)
            how.asks = self._prepared()
        self._asks = how.asks

    def _to_wait(self, deadlock_check: Duration | None, on_wait: Any, elsewhere: dict[str, Any]) -> Self:
        """The same with what `acquire` was given beside the timeout."""
        if elsewhere:
            raise TypeError(f"acquire() got an {unexpected(next(iter(elsewhere)))}")
        lock = self
        if deadlock_check is not None:
            asked_for = options_of({"deadlock_check": deadlock_check})
            lock = lock._but("checks", self._session.checks(self._label, self._name, asked_for))
        return lock if on_wait is None else lock._telling(on_wait)

    def _but(self, option: str, value: Any) -> Self:
        """The same with that way to wait; in the queue on the server, by the protocol."""
        made = copy(self)
        made._line_key, made._asks = None, self._asks[:2]
        made._how = copy(self._how)
        setattr(made._how, option, value)
        return made

    def _ask(
        self,
        token: str,
        timeout_s: float | None,
        sent: bool = False,
        turn: LocalWaiter | None = None,
        queued: bool = False,
    ) -> Protocol[Grant | Busy]:
        """The protocol that acquires. `sent`: its first request was sent already, and to queue if `queued`; `turn`: as
        of `ByTurns.acquire`.
        """
        how = self._how
        listening = queued or (not sent and how.listens and self._session.driver.client.listening(self._key))
        return how.acquire(token, self._ttl_ms, timeout_s, listening, turn)  # type: ignore[no-any-return]

    def _ask_as_owner(
        self, turn: LocalWaiter, token: str, timeout_s: float | None, sent: bool, queued: bool = False
    ) -> Protocol[Grant | Busy]:
        """The same where acquires wait for each other inside of the client, for a turn that has the right to."""
        ask = partial(self._ask, turn.token, sent=sent, turn=turn, queued=queued)
        return as_owner(turn, ask, self._give_back, timeout_s)

    def _wait_in_line(self, turn: LocalWaiter, timeout_s: float | None) -> Protocol[LeaseRecord | Grant | Busy]:
        """The same for one that found others."""
        ask = partial(self._ask, turn.token, turn=turn)
        return wait_in_line(turn, ask, self._give_back, timeout_s, self._ttl_ms)

    # Its steps.

    def _stay(self, asked: Asked) -> None:
        """Raise in the child of a fork, whose parent goes on with this acquire."""
        if not asked.is_ours:
            raise LeaseLost(self._name, "forked", self._label)

    def _held_by(self, me: int) -> Any:
        """The lease that this one holds already, where that may be acquired again; None if there is none."""
        for kind in self._owned_as:
            held = self._session.owners.get((kind, me))
            lease = None if held is None else held()
            # (One that another thread is just about to end has no `unended`.)
            if lease is not None and hasattr(lease._record, "unended") and not lease._record.check_expired(clock()):
                if not self._reentrant or lease._record.label == "read lock":  # others read, too
                    raise AlreadyHeld(lease.name, lease._record.label, self._label)
                if lease._entries is None:
                    lease._entries = []  # it was acquired through an object that is not reentrant
                return lease
        return None

    def _start(self, asked: Asked) -> PreparedRequest | None:
        """Stand in line, where there is one; returns the first request, where the caller sends that by itself."""
        session, driver = self._session, self._session.driver
        # A signal handler does not wait for others in a thread that has a turn: it has interrupted one of them.
        alone = self._line_key is None or is_alone(self._line_key, driver.lines)
        if not alone and asked.timeout_s != 0 and asked.me not in driver.turning:
            turn = asked.turn = LocalWaiter(asked.token, clock())
            driver.turning.add(asked.me)
            turn.join(driver.lines, self._line_key)
            asked.token = turn.token
            if asked.report.detailed and not turn.first:
                asked.report.queued()
        session.asking[asked.token] = asked
        if driver.closed:  # it looks who asks once it is, and gives back what those get
            raise driver.closed_error()
        if asked.turn is not None and not asked.turn.first:
            return None  # it waits for its turn
        if self._how.most_waiting == 0:
            asked.timeout_s = 0.0
        if not self._asks or asked.cancel is not None:
            return None
        first = self._asks[0]
        asked.asked_at, asked.behind = clock(), driver.releasing.latest.get(first.key)
        if first.key in driver.contention:
            if not self._may_stand(asked, asked.timeout_s):
                return None
            driver.contention.expects(first.key)
            first = self._asks[2]
        patience_s = first.request_timeout_s
        if asked.timeout_s is not None:
            patience_s = within(patience_s, asked.timeout_s or session.settings.try_limit_s)
        asked.until = asked.asked_at + patience_s
        return first

    def _may_stand(self, asked: Asked, left_s: float | None) -> bool:
        """True if its first request is to queue, and its caller stands there."""
        driver, key = self._session.driver, self._key
        if len(self._asks) < 3 or asked.report.detailed or driver.introduce_at < 0.0:
            return False
        if asked.behind is not None or not (left_s is None or left_s > SOON_S):
            return False
        asked.standing = driver.standing[asked.token] = driver.stands(key, asked.asked_at)
        # Behind that: who closes the client, or notes that its inbox is not open, wakes those that stand there.
        if not driver.closed and driver.client.listening(key):
            return True
        driver.standing.pop(asked.token, None)
        asked.standing = None
        return False

    def _passing(self, asked: Asked) -> PreparedRequest | None:
        """Return the request of a turn that has to ask, where its caller may stand there; None: a protocol asks."""
        turn, now = asked.turn, clock()
        if turn is None or turn.first:  # which `_start` has seen to
            return None
        left_s = None if asked.timeout_s is None else turn.arrived_at + asked.timeout_s - now
        asked.asked_at, asked.behind = now, None
        if asked.cancel is not None or not turn.has_the_right() or not self._may_stand(asked, left_s):
            return None
        asks = self._how.turn(asked.token, self._ttl_ms, turn)
        asks.most_waiting = self._how.most_waiting
        first = PreparedRequest(asks.ask(True, -turn.waited_us(now), asks.request_timeout_s(left_s)))
        asked.until = now + first.request_timeout_s
        return first

    def _go_on(self, asked: Asked, outcome: Outcome | None) -> Any:
        """Have the engine do the rest, or all, of it; or wait in line. `outcome`: what came of the first request.

        Returns what came of that, or for tasks, what waits for it.
        """
        driver, report, turn = self._session.driver, asked.report, asked.turn
        self._stay(asked)
        # A first request that may have been granted, or has queued, is in doubt until the engine has begun with that.
        asked.runs = outcome is None or (asked.standing is None and outcome[1] is None and outcome[0][0] != 1)
        if outcome is None and turn is not None and not turn.first:
            return driver.wait_in_line(asked)
        start: Any = self._ask if turn is None else partial(self._ask_as_owner, turn)
        if outcome is not None and turn is not None and asked.timeout_s is not None:
            asked.timeout_s -= asked.asked_at - turn.arrived_at  # which it has waited in its line
        if asked.standing is not None and outcome is not None:  # else nothing was sent
            start = partial(start, queued=True)
        if report.detailed:
            driver.queueing[asked.token] = report
        if driver.introduce_at < 0.0 and asked.timeout_s != 0:
            start = partial(_introduced, partial(self._session.introduce, clock()), start)
        sent = None if outcome is None else Sent(asked.asked_at, asked.behind, outcome)
        return driver.acquire(asked, self._asks[0] if self._asks else None, start, sent)

    def _asks_no_more(self, asked: Asked) -> None:
        """Forget what was noted of it. Idempotent."""
        session, driver = self._session, self._session.driver
        session.asking.pop(asked.token, None)
        if driver.standing or driver.queueing:
            driver.standing.pop(asked.token, None)
            driver.queueing.pop(asked.token, None)
        if asked.turn is not None:
            driver.turning.discard(asked.me)

    def _take_kept(self, asked: Asked) -> LeaseRecord | None:
        """Take what this client has kept; None where there is nothing, or it was taken just now."""
        session = self._session
        kept = session.driver.lease_cache.get(self._kept_as)
        if kept is None:
            return None
        asked.kept = kept
        session.asking[asked.token] = asked
        if session.driver.closed:  # it looks who asks once it is, and gives back what those get
            raise session.driver.closed_error()
        if not kept.take(asked.token, clock()):
            asked.kept = None
            session.asking.pop(asked.token, None)  # it may get another token yet
            return None
        return kept.record.again(self._ttl_ms, clock())  # type: ignore[no-any-return]

    def _granted(self, asked: Asked, got: LeaseRecord | Grant | None) -> Any:
        """The lease. No variable of a caller has it until it is returned: a kept traceback would keep it."""
        session, how = self._session, self._how
        driver, record, release_ask = session.driver, asked.record, None
        if got is not None:
            if isinstance(got, Grant):
                turn = asked.turn
                if turn is not None and not turn.over:
                    got.turn, turn.got_at = turn, clock()
                if self._asks and not (got.stray or self._noted or got.more == PLAIN or asked.token[-1] == MARK):
                    release_ask = self._asks[1]
                record = how.make_record(asked.token, got, self._ttl_ms) if how.bare else self._record(asked.token, got)
                asked.record = record
                if turn is not None and record.turn is None and not turn.over:
                    driver.spawn(left(turn, self._give_back))  # it holds nothing that can be handed on
            else:
                asked.record = record = got if how.bare else self._under_options(got)
            record.report = asked.report
            if self._line_key is not None and asked.kept is None:
                self._line_key.last = record
            if record.held_since >= driver.introduce_at:
                session.introduce(record.held_since)
        assert record is not None
        lease: Any = self._lease_class(asked, record, release_ask)
        if self._reentrant:
            lease._entries = []
        record.lease = known = weakref.ref(lease)
        if asked.me:
            for kind in self._owned_as:
                session.owners[kind, asked.me] = known
        if not how.bare and self._options.on_wanted is not None:
            lease.on_wanted(self._options.on_wanted)
        if record.report.detailed:
            record.report.acquired(record)  # before anything can tell of its end
        driver.watch(record)
        if asked.client is not driver.client:  # no call for what hardly ever is; behind that, a fork finds the record
            record.lose("forked")
            self._stay(asked)
        if hook.observer is not None:
            hook.observer.granted(record)
        return lease

    def _record(self, token: str, got: Grant) -> LeaseRecord:
        """Make the record of what was granted."""
        if self._kept_as is not None and got.kept is None and is_kept(token):
            got.kept = self._session.driver.lease_cache, self._options.kept_ms / 1000
        record: LeaseRecord = self._how.make_record(token, got, self._ttl_ms)
        if self._label != "lock":
            record.label = self._label
        return self._under_options(record)

    def _under_options(self, record: LeaseRecord) -> LeaseRecord:
        """Have the options of the acquire act on it: all that do stand here, but `on_wanted`."""
        options = self._options
        if not options.renew:
            record.stop_renewing()
        if options.max_hold_ms is not None:
            record.end_by(record.held_since + options.max_hold_ms / 1000)
        if options.at_least_ms:
            record.kept_until = record.held_since + options.at_least_ms / 1000
        if self._noted:
            self._annotate(record)
        return record

    def _annotate(self, record: LeaseRecord) -> None:
        """Have the note stand of a lease that has one. A lease that was adopted keeps the text that it has."""
        if not has_note(record.token):
            return
        if client_of(record.token) == self._session.driver.client_id:
            record.says = self._options.note_text
        self._session.driver.spawn(annotate(record, lease_note_key(self._session.namespace, record.token)))

    def _give_back(self, token: str, tenure: Tenure | None = None) -> Protocol[None]:
        """Undo what an interrupted acquire may have done. `tenure`: which the token is of, if that is known."""
        return self._how.give_back(token, self._ttl_ms, tenure)  # type: ignore[no-any-return]

    def _prepared(self) -> tuple[PreparedRequest, ...]:
        """Make the first requests, where they can be ready."""
        calls = None if self._session.driver.client.only is None else self._how.first_calls(self._ttl_ms)
        if calls is None:
            return ()
        prepared = tuple(map(PreparedRequest, calls, (*self._how.each(self._ttl_ms), None)))
        prepared[1].confirm = self._options.confirm_release
        return prepared

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _ON_THE_LEASE]


class ExclusiveBase(AcquirableBase):
    """The part of an exclusive lock that acquires. All objects of its name with the same options share how."""

    def __init__(self, session: Any, name: str, options: Options, reentrant: bool = False) -> None:
        super().__init__(session, name, options)
        self._share(partial(session.exclusive, self._kind, name, options))
        exclusive = self._how
        self._keys = exclusive.keys
        self._key = exclusive.keys.lock
        if exclusive.crash_ms:
            self._ending = f"!{exclusive.crash_ms}"
        self._reentrant = reentrant
        self._line_key = exclusive if exclusive.in_line and not reentrant else None
        if options.kept_ms and self._kind == "lock":
            if session.quorum is not None:
                raise ConfigurationError("cache_for", options.kept_ms / 1000, "None: not supported over a quorum")
            self._kept_as = self._key

    @classmethod
    def _usual(cls, known: dict[str, dict[str, Any]], session: Any, name: str, options: Options) -> Self:
        """Make one like that which is `known`, since a block under `locks.lock(name)` asks for one each time."""
        one = known.get(name)
        if one is None:
            if len(known) >= _KNOWN_MAX:
                known.clear()
            one = known[name] = {**vars(cls(session, check_name(name), lock_options_of({}, options)))}
        made = object.__new__(cls)
        made.__dict__ = one.copy()  # not `update`: Python finds in what it has then four times as slow
        made._entered = LeaseStack()
        return made

    def _record_of(self, token: str, fence: int, extensions: int) -> LeaseRecord:
        """Make the record of a token's lease, maybe of another process, after that many extensions. Not watched."""
        record = self._record(token, Grant(fence, clock()))
        if extensions:
            # Its next extension outdates all of them.
            record.extensions, record.least_ms = extensions, 0
        return record


for _name, _out in _ON_THE_LEASE.items():
    setattr(AcquirableBase, _name, Elsewhere(_name, _out))
