"""The ready-made observers against the real libraries, and what dashboards and alerts say of their metrics."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import opentelemetry.trace
import promql_parser
import pytest
import yaml
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Histogram, InMemoryMetricReader, Sum
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.semconv.attributes.server_attributes import SERVER_ADDRESS, SERVER_PORT
from prometheus_client import CollectorRegistry, generate_latest

import holdfast
from holdfast._api.labels import FAMILIES_MAX, Families, reason_of
from holdfast.opentelemetry import OpenTelemetryObserver
from holdfast.prometheus import PrometheusObserver
from testbed.waiting import eventually
from tests.support.apis import Api

OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations"


def family(name: str) -> str:
    return name.partition(":")[0]


# ---------------------------------------------------------------- Prometheus


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def value(registry: CollectorRegistry, sample: str, **labels: str) -> float:
    return registry.get_sample_value(sample, labels) or 0.0


def test_prometheus_counts_what_happens(
    api: Api, valkey_server: Any, registry: CollectorRegistry, unique_name: str, look: Any
) -> None:
    locks = api.connect(valkey_server.url, observer=PrometheusObserver(label=family, registry=registry))
    other = api.connect(valkey_server.url)
    name = f"orders:{unique_name}"
    of = {"kind": "lock", "family": "orders"}
    with locks.lock(name, ttl=3):  # a busy machine may stand still for half a second
        eventually(lambda: value(registry, "holdfast_renewal_lag_seconds_count", **of))
        assert value(registry, "holdfast_leases_held", **of) == 1
    eventually(lambda: value(registry, "holdfast_hold_seconds_count", **of) == 1)
    assert value(registry, "holdfast_leases_held", **of) == 0
    held = other.lock(name).acquire()
    with pytest.raises(holdfast.AcquireTimeout):
        locks.lock(name).acquire(timeout=0.2)
    held.release()
    eventually(lambda: value(registry, "holdfast_acquire_seconds_count", **of, outcome="busy") == 1)
    assert value(registry, "holdfast_queued_total", **of) == 1
    lease = locks.lock(name, ttl=0.4).acquire()
    look.delete(f"holdfast:{{{name}}}")
    assert lease.lost.wait(30)
    eventually(lambda: value(registry, "holdfast_leases_lost_total", **of, reason="taken") == 1)
    eventually(lambda: value(registry, "holdfast_leases_held", **of) == 0)
    assert value(registry, "holdfast_acquire_seconds_count", **of, outcome="acquired") == 2
    assert name.encode() not in generate_latest(registry), "names have too many values"


def test_a_full_queue_is_an_outcome_of_its_own_that_the_page_names(
    valkey_server: Any, registry: CollectorRegistry, unique_name: str
) -> None:
    with holdfast.connect(valkey_server.url, observer=PrometheusObserver(registry=registry)) as locks:
        with holdfast.connect(valkey_server.url) as other, other.lock(unique_name), pytest.raises(holdfast.QueueFull):
            locks.lock(unique_name, queue_limit=0).acquire()
    of = {"kind": "lock", "family": "all", "outcome": "full"}
    eventually(lambda: value(registry, "holdfast_acquire_seconds_count", **of) == 1)
    for page in ("operations.md", "operations.zh-CN.md"):
        text = (OPERATIONS.parent / page).read_text("utf-8")
        (row,) = (line for line in text.splitlines() if "`holdfast_acquire_seconds`" in line)
        assert all(outcome in row for outcome in ("acquired", "busy", "full", "failed"))


def test_prometheus_without_a_label_has_one_family(
    valkey_server: Any, registry: CollectorRegistry, unique_name: str
) -> None:
    with holdfast.connect(valkey_server.url, observer=PrometheusObserver(registry=registry)) as locks:
        with locks.semaphore(unique_name, 2):
            pass
    eventually(lambda: value(registry, "holdfast_hold_seconds_count", kind="semaphore", family="all") == 1)


def test_one_observer_of_several_clients(valkey_server: Any, registry: CollectorRegistry, unique_name: str) -> None:
    observer = PrometheusObserver(registry=registry)
    with (
        holdfast.connect(valkey_server.url, observer=observer) as one,
        holdfast.connect(valkey_server.url, observer=observer) as two,
    ):
        workers = [
            threading.Thread(
                target=lambda locks=locks: [locks.lock(unique_name).acquire().release() for _ in range(50)]
            )
            for locks in (one, two)
            for _ in range(2)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    eventually(lambda: value(registry, "holdfast_hold_seconds_count", kind="lock", family="all") == 200)
    assert value(registry, "holdfast_leases_held", kind="lock", family="all") == 0


def test_a_forked_child_has_its_own_leases(valkey_server: Any, registry: CollectorRegistry, unique_name: str) -> None:
    of = {"kind": "lock", "family": "all"}
    with holdfast.connect(valkey_server.url, observer=PrometheusObserver(registry=registry)) as locks:
        with locks.lock(unique_name):
            eventually(lambda: value(registry, "holdfast_leases_held", **of) == 1)
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                lease = locks.lock(f"{unique_name}-child").acquire()
                until = time.monotonic() + 20
                while (
                    time.monotonic() < until
                    and value(registry, "holdfast_acquire_seconds_count", **of, outcome="acquired") < 2
                ):
                    time.sleep(0.01)
                held = value(registry, "holdfast_leases_held", **of)
                lease.release()
                os._exit(0 if held == 1 else 9)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert value(registry, "holdfast_leases_held", **of) == 1


def test_families_are_bounded() -> None:
    families = Families(str)
    assert [families.of(str(number)) for number in range(FAMILIES_MAX)][-1] == str(FAMILIES_MAX - 1)
    assert families.of("one more") == "other"
    assert families.of("0") == "0"


@pytest.mark.parametrize(
    "reason, label", [("taken", "taken"), ("broken by ann on db1, pid 7: stuck", "broken"), ("what else", "other")]
)
def test_reasons_are_bounded(reason: str, label: str) -> None:
    assert reason_of(reason) == label


# ---------------------------------------------------------------- OpenTelemetry


class Telemetry:
    """The SDK, in memory."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.spans = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        self.observer = OpenTelemetryObserver(label=family, tracer_provider=self.tracers, meter_provider=self.meters)

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans.get_finished_spans() if span.name == name]


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    made = Telemetry()
    yield made
    made.meters.shutdown()
    made.tracers.shutdown()


def test_opentelemetry_metrics(telemetry: Telemetry, valkey_server: Any, api: Api, unique_name: str) -> None:
    locks = api.connect(valkey_server.url, observer=telemetry.observer)
    other = api.connect(valkey_server.url)
    name = f"jobs:{unique_name}"
    with locks.lock(name, ttl=0.5):
        eventually(lambda: telemetry.points("holdfast.renewal.lag"))
        (held,) = telemetry.points("holdfast.lease.count")
        assert (held.value, dict(held.attributes)) == (1, {"holdfast.kind": "lock", "holdfast.family": "jobs"})
    eventually(lambda: telemetry.points("holdfast.lease.duration"))
    assert telemetry.points("holdfast.lease.count")[0].value == 0
    kept = other.lock(name).acquire()
    assert locks.lock(name).try_acquire() is None
    kept.release()
    eventually(lambda: len(telemetry.points("holdfast.acquire.duration")) == 2)
    outcomes = {
        point.attributes["holdfast.outcome"]: point.count for point in telemetry.points("holdfast.acquire.duration")
    }
    assert outcomes == {"acquired": 1, "busy": 1}


def test_spans_are_children_of_the_callers(telemetry: Telemetry, valkey_server: Any, unique_name: str) -> None:
    tracer = telemetry.tracers.get_tracer("test")
    with holdfast.connect(valkey_server.url, observer=telemetry.observer) as locks:
        with tracer.start_as_current_span("request") as request:
            began_ns = time.time_ns()
            with locks.lock(unique_name) as lease:
                time.sleep(0.05)
            ended_ns = time.time_ns()
    (waiting,) = eventually(lambda: telemetry.named("acquire lock"))
    (holding,) = eventually(lambda: telemetry.named("hold lock"))
    for span in (waiting, holding):
        assert span.parent.span_id == request.get_span_context().span_id
        assert span.attributes["holdfast.name"] == unique_name
        assert span.attributes["holdfast.fencing_token"] == lease.fencing_token
        assert began_ns - 10**7 <= span.start_time <= span.end_time <= ended_ns + 10**7
    assert abs(waiting.end_time - holding.start_time) < 10**6
    assert holding.end_time - holding.start_time >= 0.05 * 10**9


async def _two(locks: Any, tracer: Any, name: str) -> list[int]:
    import asyncio

    async def one(number: int) -> int:
        with tracer.start_as_current_span(f"request {number}") as request:
            async with locks.lock(name):
                await asyncio.sleep(0.01)
            return int(request.get_span_context().span_id)

    return list(await asyncio.gather(one(1), one(2)))


def test_spans_of_tasks(telemetry: Telemetry, valkey_server: Any, unique_name: str) -> None:
    import asyncio

    import holdfast.asyncio

    async def main() -> list[int]:
        async with holdfast.asyncio.connect(valkey_server.url, observer=telemetry.observer) as locks:
            return await _two(locks, telemetry.tracers.get_tracer("test"), unique_name)

    parents = asyncio.run(main())
    eventually(lambda: len(telemetry.named("hold lock")) == 2)
    assert sorted(span.parent.span_id for span in telemetry.named("hold lock")) == sorted(parents)


def test_a_loss_is_an_error_of_its_span(telemetry: Telemetry, valkey_server: Any, look: Any, unique_name: str) -> None:
    with holdfast.connect(valkey_server.url, observer=telemetry.observer) as locks:
        lease = locks.lock(unique_name, ttl=0.4).acquire()
        look.delete(f"holdfast:{{{unique_name}}}")
        assert lease.lost.wait(30)
    (span,) = eventually(lambda: telemetry.named("hold lock"))
    assert span.status.status_code is opentelemetry.trace.StatusCode.ERROR
    assert span.attributes["error.type"] == "lost: taken"
    (lost,) = telemetry.points("holdfast.lease.lost")
    assert (lost.value, lost.attributes["holdfast.reason"]) == (1, "taken")


def test_metrics_and_attributes_follow_the_conventions(telemetry: Telemetry) -> None:
    """Durations in seconds, things that are counted in braces, and no attribute outside of our namespace and theirs."""
    tell_everything(telemetry.observer)
    data = telemetry.reader.get_metrics_data()
    assert data is not None
    metrics = [each for part in data.resource_metrics for scope in part.scope_metrics for each in scope.metrics]
    assert len(metrics) == 8
    attributes: set[str] = set()
    for metric in metrics:
        assert metric.name.startswith("holdfast.") and metric.description
        if isinstance(metric.data, Histogram):
            assert metric.unit == "s" and metric.name.endswith((".duration", ".lag"))
        else:
            assert isinstance(metric.data, Sum)
            assert re.fullmatch(r"\{[a-z]+\}", metric.unit or "") and not metric.name.endswith("total")
            assert metric.data.is_monotonic is (metric.name != "holdfast.lease.count")
        for point in metric.data.data_points:
            attributes |= set(point.attributes or ())
    for span in telemetry.spans.get_finished_spans():
        attributes |= set(span.attributes or ())
    known = {ERROR_TYPE, SERVER_ADDRESS, SERVER_PORT}
    assert known < attributes and all(each.startswith("holdfast.") for each in attributes - known)
    (trouble,) = telemetry.points("holdfast.server.trouble")
    assert dict(trouble.attributes) == {SERVER_ADDRESS: "a", SERVER_PORT: 1, ERROR_TYPE: "refused"}


# ---------------------------------------------------------------- dashboard and alerts


def tell_everything(observer: holdfast.Observer) -> None:
    lease = holdfast.LeaseInfo("lock", "a")
    observer.queued(lease)
    observer.acquired(lease, 1.0)
    observer.busy(lease, 1.0)
    observer.failed(lease, 1.0, "ServerUnreachable")
    observer.released(lease, 1.0)
    observer.lost(lease, None, "taken")
    observer.renewed(lease, 1.0)
    observer.suspect(lease)
    observer.trouble("a:1", "refused", 1.0)


def exported() -> dict[str, set[str]]:
    """Names of samples that the exporter really has, with their labels."""
    registry = CollectorRegistry()
    tell_everything(PrometheusObserver(registry=registry))
    return {sample.name: set(sample.labels) for metric in registry.collect() for sample in metric.samples}


def used(expression: Any) -> Iterator[tuple[str, set[str], set[str]]]:
    """(Metric, labels that select, labels that group) of an expression."""

    def walk(node: Any, grouped: frozenset[str]) -> Iterator[tuple[str, set[str], set[str]]]:
        if isinstance(node, promql_parser.VectorSelector):
            yield node.name or "", {matcher.name for matcher in node.matchers.matchers}, set(grouped)
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            grouped = grouped | frozenset(node.modifier.labels)
        for child in ("expr", "lhs", "rhs", "param"):
            inner = getattr(node, child, None)
            if inner is not None:
                yield from walk(inner, grouped)
        if isinstance(node, promql_parser.MatrixSelector):
            yield from walk(node.vector_selector, grouped)
        for argument in getattr(node, "args", None) or ():
            yield from walk(argument, grouped)

    yield from walk(expression, frozenset())


def check_query(text: str) -> int:
    for variable, stands_for in (("$__rate_interval", "5m"), ("$__range", "1h"), ("$kind", ".*"), ("$family", ".*")):
        text = text.replace(variable, stands_for)
    known = exported()
    number = 0
    for metric, selected, grouped in used(promql_parser.parse(text)):
        number += 1
        assert metric in known, f"{metric} is not exported: {text}"
        assert selected | grouped <= known[metric], f"{metric} has {sorted(known[metric])}: {text}"
    assert number, f"no metric in {text}"
    return number


@pytest.mark.parametrize(
    "text", ["sum(holdfast_nothing)", "sum by (host) (holdfast_leases_held)", 'holdfast_leases_held{host="a"}', "1"]
)
def test_a_wrong_query_is_found(text: str) -> None:
    with pytest.raises(AssertionError):
        check_query(text)


BOARD = json.loads((OPERATIONS / "grafana.json").read_text(encoding="utf-8"))


def test_the_dashboard_is_one_that_grafana_loads() -> None:
    assert BOARD["schemaVersion"] >= 36, "the first without panels of AngularJS"
    assert BOARD["title"]
    assert len(BOARD["uid"]) <= 40
    assert "id" not in BOARD, "that of another Grafana"
    assert {"from", "to"} <= set(BOARD["time"])
    variables = {each["name"]: each for each in BOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids) >= 10
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        assert panel["type"] in ("stat", "timeseries")
        assert panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        at = panel["gridPos"]
        assert 0 <= at["x"] < at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, f"{panel['title']} lies over another panel"
        taken |= cells
        assert isinstance(panel["fieldConfig"]["defaults"], dict)
        assert panel["fieldConfig"]["overrides"] == []
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) >= 1


def lost_of(given: Any, kept: Any, path: str = "") -> set[str]:
    """Return the paths at which `kept` lacks what is given."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return {
            found
            for key, each in given.items()
            for found in (lost_of(each, kept[key], f"{path}/{key}") if key in kept else {f"{path}/{key}"})
        }
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        return {found for one, other in zip(given, kept, strict=True) for found in lost_of(one, other, f"{path}/*")}
    return set() if given == kept else {path}


def as_grafana_reads(board: Any) -> Any:
    """By the types that Grafana Labs makes of Grafana's own schema: written again, with what they have no place for."""
    # Imported here: it takes as long as all of our own package, and each test process imports each file.
    import grafana_foundation_sdk.cog.plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    grafana_foundation_sdk.cog.plugins.register_default_plugins()
    return json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))


def test_the_schema_of_grafana_knows_all_of_the_dashboard() -> None:
    # The text that a list of variables shows: in what Grafana exports, not in its schema.
    assert lost_of(BOARD, as_grafana_reads(BOARD)) == {"/templating/list/*/definition"}


def test_what_the_schema_of_grafana_does_not_know_is_found() -> None:
    board = copy.deepcopy(BOARD)
    board["panels"][0]["gridPos"]["width"] = 3
    board["panels"][1]["targets"][0]["expression"] = "up"
    found = lost_of(board, as_grafana_reads(board))
    assert {"/panels/*/gridPos/width", "/panels/*/targets/*/expression"} <= found


@pytest.mark.parametrize("panel", BOARD["panels"], ids=lambda panel: str(panel["title"]))
def test_a_panel_asks_for_metrics_that_there_are(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        check_query(target["expr"])
        for label in target["legendFormat"].split("{{")[1:]:
            assert label.partition("}}")[0] in target["expr"].partition(" by (")[2].partition(")")[0]


def test_variables_ask_for_labels_that_there_are() -> None:
    asked = [each["query"]["query"] for each in BOARD["templating"]["list"] if each["type"] == "query"]
    assert len(asked) == 2
    for text in asked:
        metric, label = text.removeprefix("label_values(").removesuffix(")").split(", ")
        assert label in exported()[metric]


RULES = [
    rule
    for group in yaml.safe_load((OPERATIONS / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_is_one_that_prometheus_loads(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning")
    check_query(rule["expr"])
    grouped = rule["expr"].partition(" by (")[2].partition(")")[0]
    for text in rule["annotations"].values():
        for label in text.split("$labels.")[1:]:
            assert label.partition(" ")[0] in grouped
    if "for" in rule:
        promql_parser.parse(f"up[{rule['for']}]")
