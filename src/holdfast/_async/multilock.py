"""Several locks under one lease, all or none."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast._api.options import Options
from holdfast._async.lease import Lease
from holdfast._async.lifecycle import Session
from holdfast._async.lock import Leasable, TurnLeasable
from holdfast._core import multilock
from holdfast._core.effects import Protocol
from holdfast._core.keys import lock_keys
from holdfast._core.record import LeaseRecord
from holdfast._core.waiting import Acquisition, Busy, Grant
from holdfast._engine.pack import PreparedRequest
from holdfast.errors import ConfigurationError

__all__ = ["MultiLock"]


class MultiLock(TurnLeasable[Lease]):
    """Several locks under one lease, all or none. Made by `Client.multilock`.

    They are the locks that `lock` makes: a holder of one of them alone is waited for. `lease.fencing_token` is
    greater than every earlier one of each. One loss ends the lease. As a context manager it acquires without a limit.
    """

    _label = "multilock"
    _kind = "multilock"
    _mark = multilock.MULTI

    def __init__(self, session: Session, names: Sequence[str], options: Options) -> None:
        super().__init__(session, " + ".join(names), options)
        if self._most_waiting:
            raise ConfigurationError("queue_limit", self._most_waiting, "0, or None, for several locks at once")
        self._names = tuple(names)
        self._owned_as = tuple(f"lock:{name}" for name in names)
        self._all_keys = [lock_keys(session.namespace, name) for name in names]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the locks."""
        return self._names

    def _turns(self, token: str) -> list[multilock.MultiAcquisition]:
        session = self._session
        return multilock.turns_for(self._all_keys, not session.moves, token, self._ttl_ms, session.settings, self._sync)

    def _acquisition(self, token: str) -> Acquisition:
        return self._turns(token)[0]

    def _ask(self, token: str, timeout_s: float | None, sent: bool = False) -> Protocol[Grant | Busy]:
        turns = self._turns(token)
        for turn in turns:
            turn.check = self._session.witness if self._checks is None else self._checks()
        return multilock.acquire(turns, timeout_s, listening=not sent and self._session.driver.listening(turns[0].key))

    def _prepare(self) -> tuple[PreparedRequest, PreparedRequest] | tuple[()]:
        # Slot by slot it is not one request.
        return super()._prepare() if len(self._turns("")) == 1 else Leasable._prepare(self)

    def _make_record(self, token: str, grant: Grant) -> LeaseRecord:
        record = multilock.make_record(self._turns(token), self._name, grant)
        record.label = self._label
        return record

    def _give_back(self, token: str) -> Protocol[None]:
        return multilock.give_back(self._turns(token))

    def __repr__(self) -> str:
        return f"<MultiLock {', '.join(map(repr, self._names))}: ttl {self.ttl:g} s>"
