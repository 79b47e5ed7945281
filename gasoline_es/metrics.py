"""Metrics for Prometheus, read from what a process counts anyway (design 0025). Needs ``pip install "gasoline_es[metrics]"``.

A worker serves them itself: ``gasoline.worker([…], metrics_port=9464)``. An application that has a registry of its own adds
them there: ``registry.register(collector(gasoline))``. Every name, with what it means, is in docs/operations.md.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from gasoline_es.client import Client
from gasoline_es.errors import ExtraMissing, GasolineError
from gasoline_es.runtime.node import Node
from gasoline_es.runtime.recording import Histogram
from gasoline_es.runtime.snapshot import Snapshot, snapshot_from
from gasoline_es.sync import SyncGasoline

try:
    from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector
except ImportError as missing:
    raise ExtraMissing(
        'metrics need the package prometheus-client. Install it with: pip install "gasoline_es[metrics]"'
    ) from missing

if TYPE_CHECKING:
    from socketserver import BaseServer

    from prometheus_client import Metric

Value = int | float | Histogram
Values = (
    Value
    | Mapping[str, int]
    | Mapping[str, float]
    | Mapping[tuple[str, str], int]
    | Mapping[tuple[str, str], Histogram]
)
"""A value, or one for each label, or for each pair of labels."""

ANSWER_LIMIT_S: Final = 5.0
"""A scrape waits so long for the event loop; then it gives what the last one had. Prometheus itself waits 10 s."""
HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Described:
    """A metric: its full name, as queries have it, what it is and says, its labels, and how a snapshot has it."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...]
    read: Callable[[Snapshot], Values]


def _counter(name: str, help: str, read: Callable[[Snapshot], Values], *labels: str) -> Described:
    return Described(f"gasoline_{name}_total", "counter", help, labels, read)


def _gauge(name: str, help: str, read: Callable[[Snapshot], Values], *labels: str) -> Described:
    return Described(f"gasoline_{name}", "gauge", help, labels, read)


def _histogram(name: str, help: str, read: Callable[[Snapshot], Values], *labels: str) -> Described:
    return Described(f"gasoline_{name}", "histogram", help, labels, read)


ANSWERS: Final = _gauge(
    "event_loop_answers",
    "0: the event loop did not come to this scrape within 5 s, and everything else is of the last one.",
    lambda _: 1,
)
METRICS: Final = (
    ANSWERS,
    _gauge(
        "event_loop_late_seconds",
        "By how much the event loop of the worker last came too late, looked at twice a second.",
        lambda of: of.late_s,
    ),
    _gauge(
        "log_failed",
        "1: the log failed, or was closed; this process takes no further part in it.",
        lambda of: int(of.failed),
    ),
    _counter("workflows_dispatched", "Workflows dispatched.", lambda of: of.dispatched, "workflow"),
    _counter("workflows_completed", "Workflows completed.", lambda of: of.completed, "workflow"),
    _counter(
        "workflows_died", "Workflows that died, by the type of the error.", lambda of: of.died, "workflow", "error"
    ),
    _counter("workflows_cancelled", "Workflows cancelled.", lambda of: of.cancelled, "workflow"),
    _counter("workflows_silenced", "Workflows silenced.", lambda of: of.silenced, "workflow"),
    _counter("workflows_pruned", "Workflows pruned, by what of them: all, history.", lambda of: of.pruned, "variant"),
    _gauge(
        "workflows",
        "Workflows that are not over: running, sleeping, dead or unreadable.",
        lambda of: of.standing,
        "workflow",
        "status",
    ),
    _gauge(
        "workflow_running_longest_seconds",
        "For how long the longest running workflow runs without a pause.",
        lambda of: of.running_s,
        "workflow",
    ),
    _gauge(
        "workflows_waiting_for_code",
        "Running workflows of a name that this process does not run.",
        lambda of: of.waits_for_code,
        "workflow",
    ),
    _gauge(
        "waiting_for_code_longest_seconds", "For how long the first of those waits.", lambda of: of.waits_for_code_s
    ),
    _gauge("workflows_in_memory", "Workflows in memory, with a body or without.", lambda of: of.in_memory),
    _counter("signals_received", "Signals put into the queues of workflows.", lambda of: of.received, "signal"),
    _gauge("signals_queued", "Signals that no workflow has taken yet.", lambda of: of.queued, "signal"),
    _gauge("signal_queued_longest_seconds", "For how long the oldest of those is queued.", lambda of: of.queued_s),
    _counter("steps_recorded", "Events that stand at a place of a workflow's history.", lambda of: of.steps),
    _counter("events_recorded", "Durable events, by type.", lambda of: of.events, "type"),
    _histogram(
        "activity_duration_seconds",
        "What attempts took from their turn on, by outcome: completed, failed, timed_out, given_up.",
        lambda of: of.attempts,
        "activity",
        "outcome",
    ),
    _gauge("attempts_running", "Attempts of activities that run.", lambda of: of.attempts_running),
    _gauge("attempts_limit", "So many attempts may run at a time (max_concurrency).", lambda of: of.attempts_limit),
    _gauge("attempts_waiting", "Attempts that wait for their turn.", lambda of: of.attempts_waiting),
    _gauge(
        "attempt_waiting_longest_seconds", "For how long the first of those waits.", lambda of: of.attempts_waiting_s
    ),
    _histogram(
        "append_duration_seconds", "What appends took until they were durable, or had failed.", lambda of: of.append_s
    ),
    _histogram("append_records", "Records in an append.", lambda of: of.append_records),
    _histogram(
        "append_sections", "Sections in an append: partitions that share its sync.", lambda of: of.append_sections
    ),
    _counter("append_bytes", "Bytes of the values of the records appended.", lambda of: of.append_bytes),
    _counter(
        "sections_failed",
        "Sections that were not recorded, by error: Fenced, NoSpace, LogFailed, AppendUnknown.",
        lambda of: of.sections_failed,
        "error",
    ),
    _counter("log_cleaned_bytes", "Bytes that the log got shorter by cleaning.", lambda of: of.cleaned_bytes),
    _gauge(
        "log_cleaned_timestamp_seconds",
        "When this process last began to clean the log and did; 0: it has not.",
        lambda of: of.cleaned_s,
    ),
    _gauge(
        "inbox_waiting_records",
        "Commands sent to a partition that its owner has not consumed.",
        lambda of: of.sent,
        "partition",
    ),
    _gauge(
        "events_unfolded",
        "Durable events of a partition that the views have not folded.",
        lambda of: of.unfolded,
        "partition",
    ),
    _gauge(
        "projection_behind_records",
        "Durable records of this process's partitions that are not in a projection's tables.",
        lambda of: of.projections_behind,
        "projection",
    ),
    _counter("ingested_records", "Records of foreign topics that were dealt with.", lambda of: of.ingested, "pipeline"),
    _counter(
        "dead_letters", "Records of foreign topics that were dead letters.", lambda of: of.dead_letters, "pipeline"
    ),
    _gauge(
        "ingest_lag_records",
        "Records of a foreign topic's partition that are yet to be read.",
        lambda of: of.ingest_lag,
        "pipeline",
        "partition",
    ),
    _gauge("partitions", "Partitions of the log.", lambda of: of.partitions),
    _gauge("partitions_owned", "Partitions that this process owns.", lambda of: of.owned),
    _gauge("partitions_awaited", "Partitions of this worker's share that others own still.", lambda of: of.waits_for),
    _counter(
        "partitions_taken",
        "Partitions taken, by what became of their last owner: none, released, dead.",
        lambda of: of.taken,
        "former",
    ),
    _counter(
        "partitions_given_up",
        "Partitions given up to other workers, by why: share, version, pressure.",
        lambda of: of.given_up,
        "reason",
    ),
    _counter("partitions_lost", "Partitions found to be somebody else's, or gone with the log.", lambda of: of.lost),
    _gauge(
        "worker_weight",
        "How much this worker counts in the sharing: below 1 it is under pressure.",
        lambda of: of.weight,
    ),
    _counter("messages_lost", "Messages that were sent and not published.", lambda of: of.messages_lost),
    _counter("messages_dropped", "Messages dropped for subscribers that are too slow.", lambda of: of.messages_dropped),
)


def collector(gasoline: Client | SyncGasoline) -> Collector:
    """Make a collector of the metrics of one opened log, to be registered once: ``registry.register(collector(gasoline))``.

    It may be collected from any thread, also that of the event loop; the counts are read on the event loop, which a scrape
    waits for. After the log was closed the counts stay, and the gauges are of no partitions, with ``gasoline_log_failed`` 1;
    once the event loop has ended too, it gives what it had last. In a process that was forked since, nothing.
    """
    client: Client = gasoline._asynchronous if isinstance(gasoline, SyncGasoline) else gasoline  # pyright: ignore[reportPrivateUsage]
    return NodeCollector(client._node)  # pyright: ignore[reportPrivateUsage]


class NodeCollector(Collector):
    """Reads a snapshot at each scrape. ``limit_s``: so long it waits for the event loop."""

    def __init__(self, node: Node, limit_s: float = ANSWER_LIMIT_S) -> None:
        self._node = node
        self._limit_s = limit_s
        self._last: Snapshot | None = None
        self._pid = os.getpid()

    def describe(self) -> Iterable[Metric]:
        """Return every metric without values: to register it asks nobody."""
        return [_family(one, {}) for one in METRICS]

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, as of now or, if the event loop does not answer, as of the last time."""
        # What a forked child has of the engine is a picture of the parent's, on whose event loop nobody would answer.
        forked = os.getpid() != self._pid
        snapshot = None if forked else snapshot_from(self._node, self._limit_s)
        yield _family(ANSWERS, int(snapshot is not None))
        if snapshot is None and not forked:
            snapshot = self._last
        self._last = snapshot
        for one in METRICS:
            if one is not ANSWERS:
                yield _family(one, {} if snapshot is None else one.read(snapshot))


def _family(one: Described, values: Values) -> Metric:
    made: Mapping[Any, Value] = values if isinstance(values, Mapping) else {(): values}
    labelled = [((key,) if isinstance(key, str) else key, value) for key, value in made.items()]
    if one.kind == "histogram":
        histogram = HistogramMetricFamily(one.name, one.help, labels=one.labels)
        for labels, value in labelled:
            assert isinstance(value, Histogram)
            histogram.add_metric(labels, _cumulated(value), value.total)
        return histogram
    family = (CounterMetricFamily if one.kind == "counter" else GaugeMetricFamily)(
        one.name, one.help, labels=one.labels
    )
    for labels, value in labelled:
        assert not isinstance(value, Histogram)
        family.add_metric(labels, value)
    return family


def _cumulated(of: Histogram) -> list[tuple[str, float]]:
    """Count for each bound what is not above it, as Prometheus has it."""
    buckets: list[tuple[str, float]] = []
    count = 0
    for bound, more in zip((*of.bounds, float("inf")), of.counts, strict=True):
        count += more
        buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), count))
    return buckets


class MetricsServer:
    """Serves ``/metrics`` over HTTP from a thread of its own, with those of the process (``process_…``) beside ours.

    ``port`` 0: any that is free; :attr:`port` tells which, once it is started. There is no authentication: whoever reaches
    the address may read.
    """

    def __init__(self, node: Node, port: int, host: str = HOST) -> None:
        self.host: Final = host
        self.port = port
        self._asked: Final = port
        self._node = node
        self._server: BaseServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen; on return it answers. Raises: GasolineError: the address cannot be had."""
        registry = CollectorRegistry()
        registry.register(NodeCollector(self._node))
        ProcessCollector(registry=registry)
        try:
            server, self._thread = start_http_server(self._asked, self.host, registry)
        except OSError as error:
            raise GasolineError(
                f"metrics cannot be served at {self.host}:{self._asked}: {error.strerror or error}. Give another port (0: any "
                f"that is free; `metrics_port=`, `--metrics-port`) or another address, or end what listens there",
                host=self.host,
                port=self._asked,
            ) from error
        self._server = server
        self.port = int(server.server_port)

    def stop(self) -> None:
        """Stop listening; may take half a second. Again: nothing."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            assert self._thread is not None
            self._thread.join()


__all__ = ["collector"]
