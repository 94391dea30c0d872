"""Where it runs: replicas that acknowledge, a quorum, a Cluster, each beside the single server."""

from __future__ import annotations

from bench.run import Run
from bench.tables import Table

__all__ = ["cluster", "quorum", "sync"]

_HEAD = ("", "µs a pair", "× one server")


def sync(run: Run) -> Table:
    """A master and two replicas, with WAIT."""
    table = Table("sync", "Replicas that must acknowledge", "A master and two replicas.", _HEAD)
    table.missing = "not in this version."
    return table


def quorum(run: Run) -> Table:
    """Five servers; none, one, two of them stopped."""
    table = Table("quorum", "Redlock over five servers", "Healthy, and with one and two of them stopped.", _HEAD)
    table.missing = "not in this version."
    return table


def cluster(run: Run) -> Table:
    """Three masters."""
    table = Table("cluster", "Cluster", "Three masters.", _HEAD)
    table.missing = "not in this version."
    return table
