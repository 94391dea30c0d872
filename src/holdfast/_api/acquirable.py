"""What can be acquired, as the acquire kernels see it: what a kind of lock has to say. The same for both APIs."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

from holdfast._api.client_info import lease_note_key
from holdfast._api.options import Options
from holdfast._core.describe import annotate
from holdfast._core.effects import Protocol
from holdfast._core.record import LeaseRecord
from holdfast._core.tenure import LocalWaiter, Note, TenureLease, as_owner, wait_in_line
from holdfast._core.tokens import NOTED, client_of, has_note, is_kept
from holdfast._core.waiting import Busy, Grant
from holdfast._engine.pack import PreparedRequest

__all__ = ["AcquirableBase", "Elsewhere"]


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


class AcquirableBase:
    """What a lease is acquired of."""

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
        #: As `Acquisition.most_waiting`.
        self._most_waiting = options.queue_limit
        self._ttl_ms = options.ttl_ms
        #: What the owner in its tokens has in front, behind the mark.
        self._noted = "" if options.note_text is None else NOTED
        self._owned_as: tuple[str, ...] = (f"{self._kind}:{name}",)
        #: The first requests of acquire and release, ready but for the token; () where there are none.
        self._asks: tuple[PreparedRequest, PreparedRequest] | tuple[()] | None = None

        #: By which the client keeps it after its release; None: it does not.
        self._kept_as: str | None = None
        #: Whose acquires wait for each other inside of the client; None: all ask the server.
        self._line_key: Note | None = None

    # What a kind of lock has to say.

    def _ask(self, token: str, timeout_s: float | None, sent: bool = False) -> Protocol[Grant | Busy]:
        """The protocol that acquires; `sent`: its first request was sent already; None: one that takes a place, too."""
        raise NotImplementedError

    def _ask_for(self, turn: LocalWaiter, timeout_s: float | None, sent: bool = False) -> Protocol[Grant | Busy]:
        """Return the same where acquires wait for each other inside of the client."""
        raise NotImplementedError

    def _ask_as_owner(
        self, turn: LocalWaiter, token: str, timeout_s: float | None, sent: bool
    ) -> Protocol[Grant | Busy]:
        """The same for a turn that found no other one."""
        return as_owner(turn, partial(self._ask_for, turn, sent=sent), self._give_back, timeout_s)

    def _wait_in_line(self, turn: LocalWaiter, timeout_s: float | None) -> Protocol[TenureLease | Grant | Busy]:
        """The same for one that found others."""
        return wait_in_line(turn, partial(self._ask_for, turn), self._give_back, timeout_s, self._ttl_ms)

    def _make_record(self, token: str, grant: Grant) -> LeaseRecord:
        raise NotImplementedError

    def _record(self, token: str, got: TenureLease | Grant) -> LeaseRecord:
        """Make the record of what was got, under the options of the acquire: all that act on it do so here."""
        options = self._options
        record: LeaseRecord
        if isinstance(got, Grant):
            if options.kept_ms and got.kept is None and is_kept(token):
                got.kept = self._session.driver.lease_cache, options.kept_ms / 1000
            record = self._make_record(token, got)
        else:
            record = got
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

    def _give_back(self, token: str) -> Protocol[None]:
        """Undo what an interrupted acquire may have done."""
        raise NotImplementedError

    def _prepare(self) -> tuple[PreparedRequest, PreparedRequest] | tuple[()]:
        self._asks = ()
        return ()
