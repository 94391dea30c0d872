"""How the sides of a shared lock are acquired, and how one becomes the other. The same for both APIs."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import Any

from holdfast._api.acquirable import AcquirableBase
from holdfast._api.options import Options, options_after
from holdfast._core import rwlock
from holdfast._core.effects import Protocol
from holdfast._core.keys import lock_keys
from holdfast._core.record import LeaseRecord
from holdfast._core.waiting import Busy, Grant


class Side(AcquirableBase):
    """One of the two sides of a shared lock."""

    def __init__(self, session: Any, name: str, options: Options) -> None:
        super().__init__(session, name, options)
        keys = lock_keys(session.namespace, name)
        self._by_turns(keys.lock, partial(rwlock.RWAcquisition, keys))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}: ttl {self.ttl:g} s>"


class _Change(Side):
    """One change from one side to the other, under the options of the lease before; both end when that has to."""

    def __init__(self, session: Any, before: LeaseRecord) -> None:
        super().__init__(session, before.name, options_after(before))
        self._how = copy(self._how)
        self._how.sync, self._how.bare = before.sync, False
        self._until = before.max_until
        self._asks = ()  # not the one request with the token that it is given

    def _record(self, token: str, got: Grant) -> LeaseRecord:
        record = super()._record(token, got)
        if self._until is not None:
            record.end_by(self._until)
        return record


class Upgrading(_Change):
    """An upgrade of the reader with that lease."""

    def __init__(self, session: Any, reader: LeaseRecord, lease: Any) -> None:
        super().__init__(session, reader)
        self._beneath = lease
        self._owned_as = ()  # the reader beneath it says who owns it
        make, beneath = self._how.make, reader.token
        self._how.make = lambda token, *how: make(rwlock.upgrade_token(beneath, int(token.rpartition(":")[2])), *how)

    def _granted(self, *details: Any) -> Any:
        lease = super()._granted(*details)
        lease._beneath = self._beneath
        return lease


class Downgrading(_Change):
    """A downgrade of that writer."""

    def __init__(self, session: Any, writer: LeaseRecord) -> None:
        super().__init__(session, writer)
        self._writer = writer

    def _ask(self, token: str, *_: Any, **__: Any) -> Protocol[Grant | Busy]:
        writer, reader = (self._how.turn(each, self._ttl_ms) for each in (self._writer.token, token))
        writer.stray = self._writer.stray
        return rwlock.downgrade(writer, reader)


class RWLockBase:
    """A shared lock."""

    def __init__(self, session: Any, name: str, options: Options) -> None:
        self._session = session
        self._name = name
        self._options = options
        self._keys = lock_keys(session.namespace, name)

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._name

    def __repr__(self) -> str:
        return f"<RWLock {self._name!r}: ttl {self._options.ttl_ms / 1000:g} s>"
