"""Puts the spike under the API for threads: for tests and measurements, in a process of their own."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
from asyncio import _get_running_loop
from collections.abc import Callable, Sequence
from typing import Any

import redis.connection

from holdfast._api import deadlocks, topologies
from holdfast._api.endpoints import Members, Seeds, seeds_of
from holdfast._api.whereabouts import line_of
from holdfast._async import lifecycle as aio_lifecycle
from holdfast._async import loss
from holdfast._drivers import closing, ending
from holdfast._drivers.aio import AioDriver
from holdfast._drivers.threads import ThreadDriver
from holdfast._sync import lifecycle
from holdfast._transport.plain import Address
from holdfast._transport.quorum import QuorumTopology
from holdfast._transport.single import SingleTopology, describe
from spikes.engine.aio import AioFront
from spikes.engine.link import Server
from spikes.engine.loop import engine
from spikes.engine.operation import Operation
from spikes.engine.threads import Front

__all__ = ["install"]

_HERE = os.path.dirname(__file__) + os.sep
_of_drivers = topologies.threads_topology
_of_aio_drivers = topologies.asyncio_topology
_of_drivers_end = ending.end
_of_drivers_later = closing.close_later


def install() -> None:
    """Clients that are made from now on run on the engine: of one server, for threads also of a quorum; no Cluster."""
    changed: Any = lifecycle
    changed.ThreadDriver = _driver
    changed.threads_topology = _topology
    patched: Any = deadlocks
    patched.where_it_waits = _where_it_waits
    changed.end = _end
    changed.close_later = _close_later
    for_loops: Any = aio_lifecycle
    for_loops.AioDriver = _aio_driver
    for_loops.asyncio_topology = _asyncio_topology
    for_loops.Session.driver = property(_driver_of_loop)
    told: Any = loss
    told.Loss._fire, told.Body.cancel = _in_loop(loss.Loss._fire), _in_loop(loss.Body.cancel)


def _driver(topology: Any, *rest: Any) -> Any:
    return (Front if isinstance(topology.nodes()[0], Server) else ThreadDriver)(topology, *rest)


def _aio_driver(topology: Any, *rest: Any) -> Any:
    return (AioFront if isinstance(topology.nodes()[0], Server) else AioDriver)(topology, *rest)


def _driver_of_loop(session: Any) -> Any:
    """As `Session.driver`; for what the engine runs, that of the loop in which it was used last."""
    here = session.here
    if here is not None and threading.get_ident() == engine().ident:
        return here
    return here if here is not None and not here.closed and here.loop is _get_running_loop() else session._begin()


def _in_loop(method: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
    """Run in the loop of its driver, whichever thread calls."""

    def tell(self: Any, reason: str) -> None:
        loop = self._driver.loop
        if _get_running_loop() is loop:
            method(self, reason)
        else:
            with contextlib.suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(method, self, reason)

    return tell


def _asyncio_topology(place: Any) -> Callable[[], Any]:
    made = _of_aio_drivers(place)  # which checks it
    if isinstance(place, (Members, Seeds)) or seeds_of(place) is not None:
        return made
    pool = place.connection_pool
    through = topologies._through_sentinel(place)
    if through:
        return made
    kind = getattr(redis.connection, pool.connection_class.__name__, None)
    if kind is None:
        return made  # a class of the user's, for asyncio
    known = {**inspect.signature(redis.connection.AbstractConnection.__init__).parameters}
    known = {**known, **inspect.signature(kind.__init__).parameters}
    kwargs = {key: value for key, value in pool.connection_kwargs.items() if key in known and key != "retry"}
    return lambda: SingleTopology(Server(engine(), describe(pool), lambda: kind(**kwargs)))


def _end(drivers: Sequence[Any], exiting: bool = False) -> None:
    for driver in drivers:
        driver.exiting = driver.exiting or exiting
    fronts = [driver for driver in drivers if isinstance(driver, Front)]
    waits = [front.begin_close() for front in fronts]  # side by side
    for wait in waits:
        wait()
    _of_drivers_end([driver for driver in drivers if driver not in fronts], exiting)


def _close_later(driver: Any) -> None:
    if isinstance(driver, Front):
        driver.engine.call(driver.client.close, lambda _: driver.client.end())
    else:
        _of_drivers_later(driver)


def _where_it_waits() -> str:
    """The line of code outside of this library that has called what the engine runs."""
    operation = getattr(engine().client.running.on_end, "__self__", None)
    frame = sys._current_frames().get(operation.thread) if isinstance(operation, Operation) else None
    while frame is not None and (line_of(frame) is None or frame.f_code.co_filename.startswith(_HERE)):
        frame = frame.f_back
    return "" if frame is None else str(line_of(frame))[:400]


def _topology(place: Any) -> Any:
    if isinstance(place, Address):
        return SingleTopology(Server(engine(), place.name, place.connection))
    if isinstance(place, Members):
        for client in place.clients:
            topologies._check_threads(client)
        return QuorumTopology([_server(client) for client in place.clients])
    topologies._refuse_part(place, topologies._THREADS)
    if isinstance(place, Seeds) or seeds_of(place) is not None:
        return _of_drivers(place)  # a Cluster has the drivers still
    topologies._check_threads(place)
    return SingleTopology(_server(place), topologies._through_sentinel(place))


def _server(client: Any) -> Server:
    pool = client.connection_pool
    return Server(engine(), describe(pool), lambda: pool.connection_class(**pool.connection_kwargs))
