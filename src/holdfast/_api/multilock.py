"""How several locks are acquired under one lease. The same for both APIs."""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast._api.acquirable import AcquirableBase
from holdfast._api.options import Options, check_names
from holdfast._core import multilock
from holdfast._core.keys import lock_keys
from holdfast.errors import ConfigurationError


class MultiLockBase(AcquirableBase):
    """Several locks under one lease."""

    _label = "multilock"
    _kind = "multilock"
    _mark = multilock.MULTI

    def __init__(self, session: Any, names: tuple[str, ...], options: Options) -> None:
        self._names = check_names(names)
        super().__init__(session, " + ".join(names), options)
        self._owned_as = tuple(f"lock:{name}" for name in names)
        all_keys, together = [lock_keys(session.namespace, name) for name in names], not session.moves
        first = multilock.group(all_keys, together)[0][0]
        self._by_turns(first.lock, partial(multilock.turn_for, all_keys, together), names)
        if most := self._how.most_waiting:
            raise ConfigurationError("queue_limit", most, "0, or None, for several locks at once")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the locks."""
        return self._names

    def __repr__(self) -> str:
        return f"<MultiLock {', '.join(map(repr, self._names))}: ttl {self.ttl:g} s>"
