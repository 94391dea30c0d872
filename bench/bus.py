"""How many messages a handoff sends over the bus of a Cluster.

    python -m bench.bus [HANDOFFS]

Two clients hand a lock to each other, on Clusters of 6 and 12 masters and on one of 6 with a replica each; the nodes
count what they send. Beside it what one PUBLISH sends: a handoff sent one before channels were sharded.
"""

from __future__ import annotations

import sys
import threading
from functools import partial

import holdfast
from testbed.topologies import Cluster
from testbed.waiting import eventually

__all__ = ["main"]


def main(handoffs: int) -> None:
    """Measure, and print."""
    for masters, replicas in ((6, False), (12, False), (6, True)):
        with Cluster(replicas=replicas, masters=masters) as cluster:
            before, shards = cluster.messages(), cluster.messages("publishshard")
            _hand_on(cluster.url, handoffs)
            sent, to_replicas = cluster.messages() - before, cluster.messages("publishshard") - shards
            cluster.clients[0].publish("any", "message")
            eventually(partial(_has_sent, cluster, before + sent), "it was sent")
            each = cluster.messages() - before - sent
            print(
                f"{len(cluster.clients)} nodes, {masters} masters: {handoffs} handoffs sent {sent} messages to all "
                f"nodes and {to_replicas} to replicas of the shard; one PUBLISH sends {each}",
                flush=True,
            )


def _has_sent(cluster: Cluster, more_than: int) -> bool:
    return cluster.messages() > more_than


def _hand_on(url: str, handoffs: int) -> None:
    with holdfast.connect(url) as one, holdfast.connect(url) as other:
        lease = one.lock("bus").acquire()
        for number in range(handoffs):
            got: list[holdfast.Lease] = []
            lock = (one if number % 2 else other).lock("bus")
            waiting = threading.Thread(target=lambda lock=lock, got=got: got.append(lock.acquire(timeout=30)))
            waiting.start()
            eventually(lambda: one.lock("bus").waiters() == 1, "it waits")
            lease.release()
            waiting.join()
            (lease,) = got
        lease.release()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
