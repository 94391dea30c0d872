"""Metrics and spans for OpenTelemetry (the extra `opentelemetry`, or `pip install opentelemetry-api`). ::

from holdfast.opentelemetry import OpenTelemetryObserver

locks = holdfast.connect(observer=OpenTelemetryObserver(label=lambda name: name.partition(":")[0]))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry import context, metrics, trace

from holdfast import LeaseInfo, Observer
from holdfast._api.labels import BUCKETS_S, Families, reason_of

__all__ = ["OpenTelemetryObserver"]


class OpenTelemetryObserver(Observer):
    """Record metrics, and two spans per acquisition: "acquire lock" and "hold lock".

    The spans are children of the span in which `acquire` was called, and have the lock's name as an attribute; metrics
    have only its family. `label`: maps the name of a lock to a family, for example "orders:42" to "orders"; None: one
    family, "all". `tracer_provider` and `meter_provider`: None takes the global ones, which without an SDK do nothing.

    One observer may serve any number of clients, of both APIs.
    """

    def __init__(
        self,
        *,
        label: Callable[[str], str] | None = None,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._families = Families(label)
        self._tracer = trace.get_tracer("holdfast", tracer_provider=tracer_provider)
        meter = metrics.get_meter("holdfast", meter_provider=meter_provider)

        def seconds(name: str, description: str) -> Any:
            return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=list(BUCKETS_S))

        self._acquires = seconds("holdfast.acquire.duration", "Time from asking for a lock to having it, or giving up")
        self._holds = seconds("holdfast.lease.duration", "Time for which locks were held")
        self._lags = seconds("holdfast.renewal.lag", "Time from the moment a renewal was due to its answer")
        self._held = meter.create_up_down_counter("holdfast.lease.count", "{lease}", "Leases that are held now")
        self._queued = meter.create_counter("holdfast.acquire.queued", "{acquire}", "Acquires that had to queue")
        self._lost = meter.create_counter("holdfast.lease.lost", "{lease}", "Leases that were lost")
        self._suspects = meter.create_counter(
            "holdfast.renewal.failed", "{renewal}", "Times a renewal failed while the lease was still valid"
        )
        self._troubles = meter.create_counter(
            "holdfast.server.trouble", "{trouble}", "Times a server failed for a while"
        )

    def capture(self) -> Any:
        """The context of the caller, for the parent of the spans."""
        return context.get_current()

    def _attributes(self, lease: LeaseInfo, **more: str) -> dict[str, str]:
        return {"holdfast.kind": lease.kind, "holdfast.family": self._families.of(lease.name), **more}

    def _span(self, lease: LeaseInfo, what: str, start_s: float, lasted_s: float, error: str | None = None) -> None:
        attributes: dict[str, Any] = {"holdfast.kind": lease.kind, "holdfast.name": lease.name}
        if lease.fencing_token:
            attributes["holdfast.fencing_token"] = lease.fencing_token
        if error is not None:
            attributes["error.type"] = error
        name, start_ns = f"{what} {lease.kind}", int(start_s * 1e9)
        span = self._tracer.start_span(name, context=lease.captured, attributes=attributes, start_time=start_ns)
        if error is not None:
            span.set_status(trace.StatusCode.ERROR, error)
        span.end(start_ns + int(lasted_s * 1e9))

    def queued(self, lease: LeaseInfo) -> None:
        self._queued.add(1, self._attributes(lease))

    def acquired(self, lease: LeaseInfo, waited_s: float) -> None:
        attributes = self._attributes(lease)
        self._acquires.record(waited_s, {**attributes, "holdfast.outcome": "acquired"})
        self._held.add(1, attributes)
        self._span(lease, "acquire", lease.asked_at, waited_s)

    def busy(self, lease: LeaseInfo, waited_s: float) -> None:
        outcome = "full" if lease.queue_full else "busy"
        self._acquires.record(waited_s, self._attributes(lease, **{"holdfast.outcome": outcome}))
        self._span(lease, "acquire", lease.asked_at, waited_s, outcome)

    def failed(self, lease: LeaseInfo, waited_s: float, error: str) -> None:
        more = {"holdfast.outcome": "failed", "error.type": error}
        self._acquires.record(waited_s, self._attributes(lease, **more))
        self._span(lease, "acquire", lease.asked_at, waited_s, error)

    def released(self, lease: LeaseInfo, held_s: float) -> None:
        self._end(lease, held_s)

    def lost(self, lease: LeaseInfo, held_s: float | None, reason: str) -> None:
        reason = reason_of(reason)
        self._lost.add(1, self._attributes(lease, **{"holdfast.reason": reason}))
        if held_s is not None:
            self._end(lease, held_s, f"lost: {reason}")

    def _end(self, lease: LeaseInfo, held_s: float, error: str | None = None) -> None:
        attributes = self._attributes(lease)
        self._held.add(-1, attributes)
        self._holds.record(held_s, attributes)
        self._span(lease, "hold", lease.asked_at + lease.waited_s, held_s, error)

    def renewed(self, lease: LeaseInfo, lag_s: float) -> None:
        self._lags.record(lag_s, self._attributes(lease))

    def suspect(self, lease: LeaseInfo) -> None:
        self._suspects.add(1, self._attributes(lease))

    def trouble(self, server: str, error: str, lasts_s: float) -> None:
        address, apart, port = server.rpartition(":")
        attributes: dict[str, str | int] = {"server.address": address if apart else server, "error.type": error}
        if apart and port.isdigit():
            attributes["server.port"] = int(port)
        self._troubles.add(1, attributes)
