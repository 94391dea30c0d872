"""Metrics for Prometheus (the extra `prometheus`, or `pip install prometheus-client`). ::

from holdfast.prometheus import PrometheusObserver

locks = holdfast.connect(observer=PrometheusObserver(label=lambda name: name.partition(":")[0]))
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from holdfast import LeaseInfo, Observer
from holdfast._api.labels import BUCKETS_S, Families, reason_of

__all__ = ["PrometheusObserver"]

_OF = ("kind", "family")


class PrometheusObserver(Observer):
    """Count the events of locks, in `registry`.

    `label`: maps the name of a lock to a family, for example "orders:42" to "orders". Prometheus keeps every value of a
    label, so do not return names with ids. None: one family, "all". After 200 families, the rest are "other".

    One observer may serve any number of clients, of both APIs; two observers need separate registries. A forked child
    continues from the parent's figures, except for held leases, which are its own from its first event on. If several
    processes are scraped as one, `PROMETHEUS_MULTIPROC_DIR` works as usual.
    """

    def __init__(self, *, label: Callable[[str], str] | None = None, registry: CollectorRegistry = REGISTRY) -> None:
        self._families = Families(label)
        self._process = os.getpid()

        def seconds(name: str, description: str, *more: str) -> Histogram:
            labels = (*_OF, *more)
            return Histogram(f"holdfast_{name}_seconds", description, labels, registry=registry, buckets=BUCKETS_S)

        def counter(name: str, description: str, labels: tuple[str, ...] = _OF) -> Counter:
            return Counter(f"holdfast_{name}", description, labels, registry=registry)

        self._acquires = seconds("acquire", "Time from asking for a lock to having it, or giving up", "outcome")
        self._holds = seconds("hold", "Time for which locks were held")
        self._lags = seconds("renewal_lag", "Time from the moment a renewal was due to its answer")
        self._held = Gauge(
            "holdfast_leases_held", "Leases that are held now", _OF, registry=registry, multiprocess_mode="livesum"
        )
        self._queued = counter("queued", "Acquires that had to queue")
        self._lost = counter("leases_lost", "Leases that were lost", (*_OF, "reason"))
        self._suspects = counter("renewals_failed", "Times a renewal failed while the lease was still valid")
        self._troubles = counter("server_troubles", "Times a server failed for a while", ("server", "error"))
        self._in_trouble = Gauge(
            "holdfast_server_in_trouble",
            "Whether requests to a server are failing now",
            ("server",),
            registry=registry,
            multiprocess_mode="livemax",
        )

    def _labels(self, lease: LeaseInfo) -> tuple[str, str]:
        if self._process != os.getpid():
            self._process = os.getpid()
            self._held.clear()
        return lease.kind, self._families.of(lease.name)

    def queued(self, lease: LeaseInfo) -> None:
        self._queued.labels(*self._labels(lease)).inc()

    def acquired(self, lease: LeaseInfo, waited_s: float) -> None:
        labels = self._labels(lease)
        self._acquires.labels(*labels, "acquired").observe(waited_s)
        self._held.labels(*labels).inc()

    def busy(self, lease: LeaseInfo, waited_s: float) -> None:
        self._acquires.labels(*self._labels(lease), "full" if lease.queue_full else "busy").observe(waited_s)

    def failed(self, lease: LeaseInfo, waited_s: float, error: str) -> None:
        self._acquires.labels(*self._labels(lease), "failed").observe(waited_s)

    def released(self, lease: LeaseInfo, held_s: float) -> None:
        self._end(self._labels(lease), held_s)

    def lost(self, lease: LeaseInfo, held_s: float | None, reason: str) -> None:
        labels = self._labels(lease)
        self._lost.labels(*labels, reason_of(reason)).inc()
        self._end(labels, held_s)

    def _end(self, labels: Any, held_s: float | None) -> None:
        if held_s is not None:
            self._held.labels(*labels).dec()
            self._holds.labels(*labels).observe(held_s)

    def renewed(self, lease: LeaseInfo, lag_s: float) -> None:
        self._lags.labels(*self._labels(lease)).observe(lag_s)

    def suspect(self, lease: LeaseInfo) -> None:
        self._suspects.labels(*self._labels(lease)).inc()

    def trouble(self, server: str, error: str, lasts_s: float) -> None:
        self._troubles.labels(server, error).inc()
        self._in_trouble.labels(server).set(1)

    def trouble_over(self, server: str, lasted_s: float) -> None:
        self._in_trouble.labels(server).set(0)
