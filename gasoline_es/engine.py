"""Puts it together: opens a log, and wires client, worker and projections to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from gasoline_es.client import Client
from gasoline_es.clock import Clock, SystemClock
from gasoline_es.core.durations import duration_us
from gasoline_es.core.guard import check_outside_body
from gasoline_es.core.ids import check_operator
from gasoline_es.core.ports import ViewKeeper
from gasoline_es.definitions import Workflow
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import DefinitionError, ExtraMissing, GasolineError
from gasoline_es.ingesting import Ingestion
from gasoline_es.log.moved import check_not_moved
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Log
from gasoline_es.pipelines import Incoming, Mapped, Pipeline
from gasoline_es.projecting import AnyProjection, ProjectingWorker
from gasoline_es.runtime.loop_thread import LoopThread
from gasoline_es.runtime.node import Node
from gasoline_es.runtime.worker import EVICT_AFTER_S, MAX_CONCURRENCY, STOP_LIMIT_S, Exposition, Worker
from gasoline_es.sync import SyncGasoline
from projections.definition import check_projection
from projections.memory_keeper import MemoryKeeper
from projections.reading import ProjectionView
from projections.stores.opening import open_store

_log = EngineLog(__name__)
T = TypeVar("T")

if TYPE_CHECKING:
    from gasoline_es.log.archive import Archive
    from gasoline_es.runtime.tracing import TracerProvider, Tracing


class Gasoline(Client):
    """A log opened for one namespace: ``async with Gasoline.open("file:./data") as gasoline``."""

    @staticmethod
    def open(
        url: str,
        *,
        namespace: str = "default",
        partitions: int | None = None,
        readonly: bool = False,
        clock: Clock | None = None,
        tracing: bool | TracerProvider = False,
        operator: str = "",
    ) -> AbstractAsyncContextManager[Gasoline]:
        """Open a log: ``file:<directory>``, ``memory:`` (private) or ``memory:<name>`` (shared in this process).

        ``partitions``: fixed when the log is made (16 by default). ``readonly``: only ask, leave no trace. ``tracing``: make
        OpenTelemetry spans of what is done here, with this tracer provider; True is the global one. It needs the extra
        ``gasoline_es[otel]``. ``operator``: who decides here, and why if you like, up to 200 characters; it stands in the
        events of what an operator does, before this process's incarnation.

        Raises: ExtraMissing: that extra is not installed. TypeError: ``tracing`` is something else. ValueError: ``operator`` is
            too long, or has control characters.

        Raises on entering: LogCorrupt: the log is damaged and takes no writes (``readonly=True`` still opens it).
            LogError: it cannot be opened, or has another number of partitions.
        """
        traced, who = _tracing(tracing, namespace), check_operator(operator)
        return _Opening(url, namespace, partitions, readonly, clock or SystemClock(), traced, who)

    @staticmethod
    def open_sync(
        url: str,
        *,
        namespace: str = "default",
        partitions: int | None = None,
        readonly: bool = False,
        clock: Clock | None = None,
        tracing: bool | TracerProvider = False,
        operator: str = "",
    ) -> SyncGasoline:
        """Open a log for code that is not async: the same verbs, blocking, on an event-loop thread of its own.

        On return it is open: ``with Gasoline.open_sync("file:./data") as gasoline``, or ``gasoline.close()`` at the end.
        Runs no worker: that is a process of its own. Arguments and errors as of ``open``; GasolineError: called in the thread
        of a running event loop.
        """
        opening = Gasoline.open(
            url,
            namespace=namespace,
            partitions=partitions,
            readonly=readonly,
            clock=clock,
            tracing=tracing,
            operator=operator,
        )
        return SyncGasoline(LoopThread(url, opening))

    _worker: ProjectingWorker | None = None
    """Of this process, whether or not it runs."""

    @property
    def log(self) -> Log:
        """The log underneath, for tools that look at records."""
        return self._node.log

    def worker(
        self,
        workflows: Iterable[Workflow[Any, Any]],
        *,
        max_concurrency: int = MAX_CONCURRENCY,
        evict_after: float = EVICT_AFTER_S,
        stop_limit: float = STOP_LIMIT_S,
        version: int = 0,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        projections: Sequence[AnyProjection] = (),
        store: str | None = None,
        pipelines: Sequence[Pipeline[Any]] = (),
        prune_after: float | timedelta | None = None,
        compact_every: float | timedelta | None = None,
        archive: str | None = None,
    ) -> Worker:
        """Run these workflows in this process while ``async with gasoline.worker([…])`` lasts.

        ``max_concurrency``: so many attempts of activities at a time. ``evict_after``: seconds a workflow waits in memory
        before it leaves it. ``stop_limit``: seconds that running activities get when the block ends, or when their partition
        is given up to another worker. ``version``: of the code, a build time for instance; workers of the newest version share
        the partitions, older ones take no new work (semantics.md §8). ``metrics_port``: serve Prometheus metrics there while it
        runs, at ``metrics_host``, at ``/metrics``; 0 for any that is free, which ``worker.metrics_port`` tells. Anybody who
        reaches the address may read them. ``projections``: fold these too, in a thread, in the partitions that this worker
        owns. ``store``: where their tables are, ``sqlite:DIRECTORY`` or ``postgresql://…``; with the log unless given.
        ``pipelines``: ingest these topics while it runs (:meth:`ingest`).
        ``prune_after``: seconds after its end, prune a workflow as its definition's ``prune=`` says (semantics.md §10), in the
        partitions that this worker owns. Nobody prunes anything unless this is given.
        ``archive``: a directory; what is pruned is durable in files there before it is let go of (docs/guides/pruning.md).
        ``compact_every``: so often, in seconds, clean the log (``Log.compact``), slowly and in a thread; while another process
        cleans, a turn is passed. On Kafka the brokers do that, and this does nothing but say so.

        Raises: DefinitionError: two definitions share a name, or this process already runs a worker. ValueError: a length of
            time is none, or there is an archive and nothing is pruned. ExtraMissing: metrics need
            ``pip install "gasoline_es[metrics]"``, an archive ``[archive]``. On entering, GasolineError: the
            port cannot be had; TopicRefused: the topic of a pipeline, or of its dead letters, is not there.
        """
        if archive is not None and prune_after is None:
            raise ValueError(
                f"archive={archive!r} says where histories go that are pruned, and nothing is: give prune_after="
            )
        if projections:
            open_store(self._node.log, store).close()  # whether the URL is of a store shows now
        worker = ProjectingWorker(
            self._node,
            workflows,
            projections,
            store,
            max_concurrency=max_concurrency,
            evict_after_s=evict_after,
            stop_limit_s=stop_limit,
            version=version,
            exposition=None if metrics_port is None else _metrics(self._node, metrics_port, metrics_host),
            beside=[self.ingest(one) for one in pipelines],
            prune_after_us=None if prune_after is None else duration_us(prune_after, "prune_after"),
            compact_every_us=None if compact_every is None else duration_us(compact_every, "compact_every"),
            archive=None if archive is None else _archive(self._node, archive),
        )
        self._worker = worker
        return worker

    async def run_worker(
        self,
        workflows: Iterable[Workflow[Any, Any]],
        *,
        max_concurrency: int = MAX_CONCURRENCY,
        evict_after: float = EVICT_AFTER_S,
        stop_limit: float = STOP_LIMIT_S,
        version: int = 0,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        projections: Sequence[AnyProjection] = (),
        store: str | None = None,
        pipelines: Sequence[Pipeline[Any]] = (),
        prune_after: float | timedelta | None = None,
        compact_every: float | timedelta | None = None,
        archive: str | None = None,
    ) -> None:
        """Run these workflows until SIGTERM or SIGINT; a second one gives up the running activities at once.

        Raises: LogFailed: the log failed in this process.
        """
        worker = self.worker(
            workflows,
            max_concurrency=max_concurrency,
            evict_after=evict_after,
            stop_limit=stop_limit,
            version=version,
            metrics_port=metrics_port,
            metrics_host=metrics_host,
            projections=projections,
            store=store,
            pipelines=pipelines,
            prune_after=prune_after,
            compact_every=compact_every,
            archive=archive,
        )
        await worker.run()

    @overload
    def ingest(self, topic: Pipeline[T], /, *, past_lost: bool = False) -> Ingestion[T]: ...
    @overload
    def ingest(
        self,
        topic: str,
        mapping: Callable[[Incoming[T]], Mapped | Awaitable[Mapped]],
        *,
        model: type[T] | None = None,
        name: str | None = None,
        dead_letters: str | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        past_lost: bool = False,
    ) -> Ingestion[T]: ...
    def ingest(
        self,
        topic: str | Pipeline[T],
        mapping: Callable[[Incoming[T]], Mapped | Awaitable[Mapped]] | None = None,
        *,
        model: type[T] | None = None,
        name: str | None = None,
        dead_letters: str | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        past_lost: bool = False,
    ) -> Ingestion[T]:
        """Let the records of a topic start workflows and signal them, each once, while ``async with gasoline.ingest(…)`` lasts.

        ``mapping``: gets each record, as ``model`` if one is given, and returns ``Dispatch(…)``, ``Send(…)``, a list of them or
        None. A ``def`` runs in a thread, an ``async def`` on the event loop. It may be called again for a record, whose
        outcome still counts once: how far the topic is read is recorded in the append of what its records led to. What raises,
        or cannot be done, becomes a record of ``dead_letters`` (``<topic>.dead-letter``), with the reason. Records of a key
        are dealt with in their order.

        ``name``: of the reader (the topic's); one of another name reads from the start, and what was done is not done again.
        ``start``: where a reader of this name begins that has not read yet. ``past_lost``: go on where the topic's retention
        has removed what was not read; else that is an error of the log, tried again until somebody decides.

        Instead of all that: what ``@pipeline(topic, …)`` of :mod:`gasoline_es.pipelines` made of the mapping.

        A partition of the topic is read by the process that owns one of the namespace: let every worker ingest
        (``gasoline.worker([…], pipelines=[…])``).

        Raises: DefinitionError: an argument cannot be. LogReadOnly. On entering, TopicRefused: a topic is not there.
            DefinitionError: this process ingests by this name already.
        """
        self._writable("ingest")
        if isinstance(topic, Pipeline):
            if (mapping, model, name, dead_letters, start) != (None, None, None, None, "earliest"):
                raise DefinitionError(
                    f"what @pipeline made, of topic {topic.topic!r}, has its mapping and options already"
                )
            pipeline = replace(topic, past_lost=past_lost or topic.past_lost)
        elif mapping is None:
            raise DefinitionError(f"ingest of topic {topic!r} needs a mapping, or what @pipeline(topic, …) made of one")
        else:
            pipeline = Pipeline(topic, mapping, model, name, dead_letters, start, past_lost)
        return Ingestion(self._node, pipeline, self._by)

    def projection(self, projection: AnyProjection, *, store: str | None = None) -> ProjectionView:
        """Return the tables of a projection, to read. ``store``: where they are, as of ``worker``.

            await view.wait_for(handle)
            with view.read() as db:
                ...

        Raises: DefinitionError: it is no projection. ProjectionError: the URL is of no store. ExtraMissing.
        """
        opened = open_store(self._node.log, store)
        return ProjectionView(self._node.log, opened, check_projection(projection), self._wake_projections)

    def _wake_projections(self, name: str) -> None:
        if self._worker is not None:
            self._worker.wake_projections()


def node_on(
    log: Log, clock: Clock, entropy: Callable[[int], bytes] = os.urandom, keeper: ViewKeeper[Any] | None = None
) -> Node:
    """Put an engine on an open log. It does nothing before its ``start``. ``keeper`` None: views stay in memory."""
    return Node(log, clock, keeper or MemoryKeeper(), entropy)


async def _keeper(log: Log) -> ViewKeeper[Any]:
    """Return what keeps the views of a log: a store that lies with it, if it is one on disk; else memory."""
    if log.derived is None:
        return MemoryKeeper()
    from projections.keeping import keep_in, read_from  # SQLite is loaded where there is something to keep
    from projections.stores.port import Forked

    store = open_store(log)
    if not log.writable:
        return read_from(store, log) or MemoryKeeper()
    try:
        return await asyncio.to_thread(keep_in, store, log)
    except Forked:
        _log.info("the views stay in this process's memory: it was forked from one that had the log open")
        return MemoryKeeper()
    except (GasolineError, OSError) as error:
        _log.warning(
            "the views cannot be stored: they are folded from the log's start, and stay in memory until this process ends (%s)",
            error,
            extra={"error": str(error)},
        )
        return MemoryKeeper()


def _tracing(asked: bool | TracerProvider, namespace: str) -> Tracing | None:
    if asked is False:
        return None
    try:
        from gasoline_es.runtime.tracing import Tracing
    except ModuleNotFoundError as error:
        raise ExtraMissing(
            f"`tracing=` needs the package of OpenTelemetry's API, which is not installed ({error}): "
            f"`pip install gasoline_es[otel]`"
        ) from error
    if asked is not True and not callable(getattr(asked, "get_tracer", None)):
        raise TypeError(
            f"tracing={asked!r} is no tracer provider: write `tracing=True` for the global one, or give one that has "
            f"`get_tracer`, as `opentelemetry.sdk.trace.TracerProvider()`"
        )
    return Tracing(None if asked is True else asked, namespace)


def _archive(node: Node, directory: str) -> Archive:
    from gasoline_es.log.archive import Archive  # zstandard is loaded where it is asked for

    return Archive(directory, node.log.incarnation)


def _metrics(node: Node, port: int, host: str) -> Exposition:
    if type(port) is not int or not 0 <= port <= 65_535:
        raise DefinitionError(f"metrics_port is a port, 0 (any that is free) to 65535, not {port!r}")
    from gasoline_es.metrics import MetricsServer  # prometheus_client is loaded where it is asked for

    return MetricsServer(node, port, host)


class _Opening:
    """What ``Gasoline.open`` returns: opens on entering, closes on leaving."""

    def __init__(
        self,
        url: str,
        namespace: str,
        partitions: int | None,
        readonly: bool,
        clock: Clock,
        tracing: Tracing | None,
        operator: str,
    ) -> None:
        self._url = url
        self._namespace = namespace
        self._partitions = partitions
        self._readonly = readonly
        self._clock = clock
        self._tracing = tracing
        self._operator = operator
        self._node: Node | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or not hasattr(Gasoline, name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise GasolineError(
                f"the log is not open yet, so there is no `{name}`: write `async with Gasoline.open({self._url!r}) as "
                f"gasoline:` and use `gasoline.{name}` in that block"
            )

    async def __aenter__(self) -> Gasoline:
        check_outside_body("open the log outside and call its verbs in an activity, `await ctx.activity(…)`")
        log = await open_log(self._url, namespace=self._namespace, partitions=self._partitions, readonly=self._readonly)
        try:
            if not self._readonly:
                await check_not_moved(log)
            keeper = await _keeper(log)
        except BaseException:
            await log.close()
            raise
        self._node = node_on(log, self._clock, keeper=keeper)
        self._node.tracing = self._tracing
        self._node.start()
        return Gasoline(self._node, self._operator)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        node, self._node = self._node, None
        if node is not None:
            await node.close()


__all__ = ["Gasoline"]
