"""The renewers: a thread for each server, which renews there in pipelines and may hang with it."""

from __future__ import annotations

import typing
from typing import Any, TypeAlias

from holdfast._core.effects import Effect, Protocol
from holdfast._core.record import LeaseRecord
from holdfast._drivers.teller import report
from holdfast._drivers.worker import Worker
from holdfast._transport.threads import Node
from holdfast._transport.waits import Mailbox

__all__ = ["Renewal", "Renewer"]

#: What to renew, for how many ms, by which protocol, which waits for that effect.
Renewal: TypeAlias = "tuple[LeaseRecord, int, Protocol[int], Effect[Any]]"


class Renews(typing.Protocol):
    """What does it: the driver."""

    def renew_batch(self, node: Node, jobs: list[Renewal]) -> None: ...
    def renewals_failed(self, jobs: list[Renewal]) -> None: ...


class Renewer(Worker):
    """Renews at one node; a server that hangs holds up nobody else."""

    name = "holdfast-renewer"

    def __init__(self, driver: Renews, node: Node) -> None:
        super().__init__()
        self.driver = driver
        self._node = node
        self._jobs: Mailbox[list[Renewal] | None] = Mailbox()

    def add(self, jobs: list[Renewal]) -> None:
        """Renew these soon."""
        self.start()
        self._jobs.put(jobs)
        self.start()  # it may have ended between

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self._jobs.put(None)

    def main(self) -> None:
        while not self._stopping:
            jobs = self._jobs.get()
            if jobs is None:
                continue
            try:
                self.driver.renew_batch(self._node, jobs)
            except Exception:
                self.driver.renewals_failed(jobs)
                report()
