"""A pytest plugin for programs that use holdfast: a private real server, and lock failures on demand.

pytest loads the plugin automatically (`-p no:holdfast` disables it). Nothing is started until a test uses one of the
fixtures:

    def test_an_order_is_shipped_once(holdfast_url):             # HOLDFAST_URL is set: holdfast.connect() finds it
        ship("orders:42")

    def test_a_lost_lease_rolls_back(holdfast_url, holdfast_trouble):
        holdfast_trouble.lose_next("orders:42", after=0.1)
        with pytest.raises(holdfast.LeaseLost):
            ship("orders:42")

Fixtures: `holdfast_server`, `holdfast_url`, `holdfast_client`, `holdfast_async_client`, `holdfast_trouble`. The server
is that of `holdfast.embedded` (extra `embedded`). Clocks are real: use short ttls.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pytest

from holdfast._api import hook
from holdfast._api.options import Duration, check_name, timeout_of
from holdfast.errors import AcquireTimeout, ConfigurationError

if TYPE_CHECKING:
    import holdfast.asyncio
    from holdfast import Client
    from holdfast._core.record import LeaseRecord
    from holdfast.embedded import Server

__all__ = [
    "Trouble",
    "holdfast_async_client",
    "holdfast_client",
    "holdfast_server",
    "holdfast_trouble",
    "holdfast_url",
]


@pytest.fixture(scope="session")
def holdfast_server() -> Iterator[Server]:
    """Private real server of this test session (`holdfast.embedded.Server`)."""
    from holdfast import embedded

    with embedded.server() as server:
        yield server


@pytest.fixture
def holdfast_url(holdfast_server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of the server, which is emptied before the test; HOLDFAST_URL is set to it for the test."""
    _empty(holdfast_server)
    monkeypatch.setenv("HOLDFAST_URL", holdfast_server.url)
    return holdfast_server.url


@pytest.fixture
def holdfast_client(holdfast_url: str) -> Iterator[Client]:
    """Client of the server (`holdfast.Client`), closed after the test."""
    import holdfast

    with holdfast.connect(holdfast_url) as client:
        yield client


@pytest.fixture
def holdfast_async_client(holdfast_url: str) -> Iterator[holdfast.asyncio.Client]:
    """Client of the server (`holdfast.asyncio.Client`), for any event loop that the test runs."""
    from holdfast.asyncio import connect

    client = connect(holdfast_url)
    yield client
    asyncio.run(client.close())


@pytest.fixture
def holdfast_trouble(holdfast_server: Server) -> Iterator[Trouble]:
    """Lock failures on demand (`Trouble`), which end with the test."""
    trouble = Trouble(holdfast_server)
    try:
        yield trouble
    finally:
        trouble.end()


def _empty(server: Server) -> None:
    """FLUSHALL on a server that may have been hurt by the test before."""
    from redis import Redis  # not at the start: pytest loads this for every program

    if not server.running:
        server.start()
    with Redis.from_url(server.unix_url, socket_timeout=30) as client:
        client.flushall()


class _Plan(NamedTuple):
    """What will happen to the next lease of a name."""

    name: str | None
    after_s: float
    reason: str


class Trouble:
    """Lock failures for the code under test, on demand: the fixture `holdfast_trouble`.

    Acts on every client of this process, of both APIs, by the names of locks, so the code under test need not change.
    `name=None` means every lock.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._guard = threading.Lock()
        self._held: list[LeaseRecord] = []
        self._plans: list[_Plan] = []
        self._timeouts: list[str | None] = []
        #: Names that were tried to acquire; and what was asked for and never came, to be told at the end.
        self._tried: set[str] = set()
        self._unused: list[str | None] = []
        hook.observer = self

    # ---- what a test does ----

    def lose(self, name: str | None = None, reason: str = "taken") -> int:
        """Lose all current leases of that lock immediately, and return their number.

        Clients behave as if a renewal had found another holder: `lost` is set, callbacks run, `ensure_held()` and
        `release()` raise `LeaseLost` with this `reason`, an asyncio body is cancelled. On the server, the lock stays
        taken until its ttl ends.

        Raises `ConfigurationError` for a name that was never acquired in this test: it is probably misspelt.
        """
        _check(name, reason)
        with self._guard:
            if name is not None and name not in self._tried:
                raise self._unknown(name)
            chosen = [each for each in self._held if each.alive and name in (None, each.name)]
        for hold in chosen:
            hold.lose(reason)
        return len(chosen)

    def lose_next(self, name: str | None = None, after: Duration = 0.0, reason: str = "taken") -> None:
        """Lose the next lease of that lock `after` seconds after it is acquired.

        If there was none, `ConfigurationError` is raised at the end of the test.
        """
        _check(name, reason)
        after_s = timeout_of(after, "after")
        if after_s is None:
            raise ConfigurationError("after", after, "seconds (int or float) or a timedelta, 0 or more")
        with self._guard:
            self._plans.append(_Plan(name, after_s, reason))

    def acquire_times_out(self, name: str | None = None) -> None:
        """Make that lock unavailable from now on: `acquire` raises `AcquireTimeout` at once, whatever its timeout.

        `try_acquire` returns None. Ends with the test, or with `end()`, which raises `ConfigurationError` if no client
        has tried to acquire it.
        """
        _check(name, "")
        with self._guard:
            self._timeouts.append(name)
            self._unused.append(name)

    @contextlib.contextmanager
    def server_gone(self) -> Iterator[None]:
        """Kill the server for the block: connections are refused. Afterwards it is back, without its data."""
        self._server.kill()
        try:
            yield
        finally:
            self._server.start()

    @contextlib.contextmanager
    def server_hangs(self) -> Iterator[None]:
        """Freeze the server for the block: connections stay open, and nothing is answered."""
        self._server.pause()
        try:
            yield
        finally:
            self._server.resume()

    def end(self) -> None:
        """End all failures. Raises `ConfigurationError` for names that were never acquired."""
        if hook.observer is self:
            hook.observer = None
        if not self._server.running:
            self._server.start()
        with self._guard:
            unused = [*(plan.name for plan in self._plans), *self._unused]
            self._plans.clear()
            self._unused.clear()
        for name in unused:
            raise self._unknown(name)

    # ---- inside ----

    def acquiring(self, name: str, label: str, timeout_s: float | None) -> None:
        """See `holdfast._api.hook`."""
        with self._guard:
            self._tried.add(name)
            self._unused = [each for each in self._unused if each not in (None, name)]
            times_out = None in self._timeouts or name in self._timeouts
        if times_out:
            raise AcquireTimeout(name, timeout_s or 0.0, because="injected by holdfast_trouble", kind=label)

    def _unknown(self, name: str | None) -> ConfigurationError:
        tried = ", ".join(map(repr, sorted(self._tried))) or "none"
        return ConfigurationError("name", name, f"a lock that the code under test acquires; it acquired: {tried}")

    def granted(self, hold: LeaseRecord) -> None:
        """See `holdfast._api.hook`."""
        with self._guard:
            self._tried.add(hold.name)
            self._held = [each for each in self._held if each.alive]
            self._held.append(hold)
            plan = next((plan for plan in self._plans if plan.name in (None, hold.name)), None)
            if plan is None:
                return
            self._plans.remove(plan)
        if plan.after_s > 0:
            timer = threading.Timer(plan.after_s, hold.lose, (plan.reason,))
            timer.daemon = True
            timer.start()
        else:
            hold.lose(plan.reason)


def _check(name: object, reason: object) -> None:
    if name is not None:
        check_name(name)
    if not isinstance(reason, str):
        raise ConfigurationError("reason", reason, "a str")
