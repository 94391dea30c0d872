"""The rows: what is measured, by name, in the order in which it is shown."""

from __future__ import annotations

from collections.abc import Callable

from bench.rows import (
    client,
    commands,
    contended,
    family,
    handoff,
    keep,
    leases,
    network,
    observers,
    startup,
    topologies,
    uncontended,
)
from bench.run import Run
from bench.tables import Table

__all__ = ["ROWS"]

ROWS: dict[str, Callable[[Run], Table]] = {
    "network": network.pairs,
    "network-handoff": network.handoff,
    "threads": uncontended.threads,
    "asyncio": uncontended.tasks,
    "client": client.client,
    "server": commands.server,
    "commands": commands.commands,
    "handoff-threads": handoff.threads,
    "handoff-tasks": handoff.tasks,
    "handoff-processes": handoff.processes,
    "contended": contended.contended,
    "inside-threads": contended.inside_threads,
    "inside-tasks": contended.inside_tasks,
    "keep": keep.keep,
    "leases": leases.leases,
    "observers": observers.observers,
    "startup": startup.startup,
    "family": family.family,
    "family-tasks": family.tasks,
    "family-handoff": family.handoff,
    "family-fairness": family.fairness,
    "sync": topologies.sync,
    "quorum": topologies.quorum,
    "cluster": topologies.cluster,
}
