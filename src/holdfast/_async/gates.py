"""Latches, events and barriers: what is waited for, and not held."""

from __future__ import annotations

from holdfast._api.options import COUNT_MAX, PARTIES_MAX, Duration, check_count, check_name, timeout_of, ttl_ms_of
from holdfast._async.kernel import wait_turn
from holdfast._async.lifecycle import Session
from holdfast._core.keys import lock_keys
from holdfast._core.kinds import BARRIER, EVENT, LATCH, Kind
from holdfast._core.openings import BarrierAcquisition, GateAcquisition, move, move_barrier
from holdfast._core.waiting import Grant
from holdfast.errors import BrokenBarrierError


class _Named:
    """`declared`: a number that all clients give; `retain`: how long the server keeps it after the last use."""

    _kind: Kind
    #: What the number is called, and the greatest that is allowed.
    _counts = "count", COUNT_MAX

    def __init__(self, session: Session, name: str, declared: int, retain: Duration) -> None:
        self._session = session
        self._name = check_name(name)
        argument, most = self._counts
        self._declared = check_count(argument, declared, 1, most)
        self._retain_ms = ttl_ms_of(retain, "retain")
        self._keys = lock_keys(session.namespace, name).of(self._kind)

    @property
    def name(self) -> str:
        """The name, as given."""
        return self._name


class _Gate(_Named):
    # sync: def wait(self, timeout: Duration | None = None, cancel: Cancel | None = None) -> bool:
    async def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until it is open, `timeout` seconds at most; returns whether it is."""
        timeout_s, session = timeout_of(timeout), self._session
        token, declared = session.new_token(), (self._declared, self._retain_ms)
        acquisition = GateAcquisition(self._kind, self._keys, token, *declared, session.settings)
        listening = session.driver.client.listening(acquisition.key)
        # sync: got = wait_turn(session, self._kind.name, acquisition, timeout_s, listening, cancel)
        got = await wait_turn(session, self._kind.name, acquisition, timeout_s, listening)
        return isinstance(got, Grant)

    async def _move(self, what: str | int) -> int:
        session = self._session
        token, settings, retain_ms = session.new_token(), session.settings, self._retain_ms
        return await session.run(move(self._kind, self._keys, token, what, self._declared, retain_ms, settings))


class CountDownLatch(_Gate):
    """Opens for all who wait when it was counted down to zero. Made by `Client.latch`.

    It opens once and for good: another round is another name. Every count-down counts once, also when it had to be sent
    again.
    """

    _kind = LATCH

    async def count_down(self, n: int = 1) -> int:
        """Count down by `n`; returns what is left. Below zero it stays zero."""
        return await self._move(check_count("n", n, 1, COUNT_MAX))

    async def remaining(self) -> int:
        """Return how much is left to count. Only good for reporting."""
        return await self._move("look")

    def __repr__(self) -> str:
        return f"<CountDownLatch {self._name!r}: count {self._declared}>"


class Event(_Gate):
    """Set or not, for processes anywhere; as `asyncio.Event`. Made by `Client.event`."""

    _kind = EVENT

    def __init__(self, session: Session, name: str, retain: Duration) -> None:
        super().__init__(session, name, 1, retain)

    async def set(self) -> None:
        """Set it: all who wait go on, also if it is cleared before they notice."""
        await self._move("open")

    async def clear(self) -> None:
        """Clear it: later waiters wait until it is set again."""
        await self._move("shut")

    async def is_set(self) -> bool:
        """True if the event is set at this moment."""
        return await self._move("look") == 0

    def __repr__(self) -> str:
        return f"<Event {self._name!r}>"


class Barrier(_Named):
    """A number of parties that wait for each other, again and again; as `asyncio.Barrier`. Made by `Client.barrier`.

    A party whose process dies while it waits does not count as arrived. One whose time is over breaks the barrier for
    all; one that is cancelled only leaves.
    """

    _kind = BARRIER
    _counts = "parties", PARTIES_MAX

    @property
    def parties(self) -> int:
        """The number of parties that have to arrive."""
        return self._declared

    # sync: def wait(self, timeout: Duration | None = None, cancel: Cancel | None = None) -> int:
    async def wait(self, timeout: Duration | None = None) -> int:
        """Arrive, and wait for the others, `timeout` seconds at most; returns which one in the order of arrival this
        was.

        Raises `BrokenBarrierError` when the time of any party was over, or it was broken or reset while waiting.
        """
        timeout_s, session = timeout_of(timeout), self._session
        token, declared = session.new_token(), (self._declared, self._retain_ms)
        acquisition = BarrierAcquisition(self._keys, token, *declared, session.settings)
        # sync: got = wait_turn(session, self._kind.name, acquisition, timeout_s, True, cancel)
        got = await wait_turn(session, self._kind.name, acquisition, timeout_s, True)
        if not isinstance(got, Grant):
            raise BrokenBarrierError(self._name)
        return got.fence

    async def abort(self) -> None:
        """Break it: all who wait, and who come, get `BrokenBarrierError` until it is reset."""
        await self._move("abort")

    async def reset(self) -> None:
        """Make it usable again; waiters get `BrokenBarrierError`."""
        await self._move("reset")

    async def n_waiting(self) -> int:
        """Return the number of parties that wait at this moment."""
        return (await self._move("look"))[1]

    async def broken(self) -> bool:
        """True if the barrier is broken at this moment."""
        return (await self._move("look"))[2]

    async def generation(self) -> int:
        """Return how often the barrier has let all go on, or was reset."""
        return (await self._move("look"))[0]

    async def _move(self, what: str) -> tuple[int, int, bool]:
        session = self._session
        return await session.run(move_barrier(self._keys, what, self._declared, self._retain_ms, session.settings))

    def __repr__(self) -> str:
        return f"<Barrier {self._name!r}: {self._declared} parties>"
