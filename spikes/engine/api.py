"""Puts the spike under the API for threads: for tests and measurements, in a process of their own."""

from __future__ import annotations

import os
import sys
from typing import Any

from holdfast._api import deadlocks, topologies
from holdfast._api.endpoints import Members, Seeds, seeds_of
from holdfast._api.whereabouts import line_of
from holdfast._drivers import closing
from holdfast._drivers.threads import ThreadDriver
from holdfast._sync import lifecycle
from holdfast._transport.plain import Address
from holdfast._transport.quorum import QuorumTopology
from holdfast._transport.single import SingleTopology, describe
from spikes.engine.link import Server
from spikes.engine.loop import engine
from spikes.engine.operation import Operation
from spikes.engine.threads import Front

__all__ = ["install"]

_HERE = os.path.dirname(__file__) + os.sep
_of_drivers = topologies.threads_topology
_of_drivers_later = closing.close_later


def install() -> None:
    """Clients for threads that are made from now on run on the engine. One server, or a quorum; no Cluster."""
    changed: Any = lifecycle
    changed.ThreadDriver = _driver
    changed.threads_topology = _topology
    patched: Any = deadlocks
    patched.where_it_waits = _where_it_waits
    changed.end = lambda drivers, exiting=False: [driver.close() for driver in drivers]
    changed.close_later = _close_later


def _driver(topology: Any, *rest: Any) -> Any:
    return (Front if isinstance(topology.nodes()[0], Server) else ThreadDriver)(topology, *rest)


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
