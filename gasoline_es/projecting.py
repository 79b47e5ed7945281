"""Projections beside a worker: a thread folds them, in the partitions that the worker owns (design §7).

The thread has a log handle of its own, so that what it reads holds nobody up who appends, and what it folds runs while the
event loop does. A log in memory has one handle for both.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, assert_never

import gasoline_es.shadowing  # noqa: F401  # pyright: ignore[reportUnusedImport]  # before `projections`
from gasoline_es.definitions import Workflow
from gasoline_es.engine_log import EngineLog
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Log
from gasoline_es.runtime.node import Node
from gasoline_es.runtime.worker import EVICT_AFTER_S, MAX_CONCURRENCY, STOP_LIMIT_S, Beside, Exposition, Worker
from projections.definition import Projection, check_projections
from projections.running import KeptUp, Notice, Runner
from projections.stores.opening import open_store

if TYPE_CHECKING:
    from gasoline_es.log.archive import Archive

_log = EngineLog("gasoline_es.projections")

AnyProjection = Projection | type[Projection]
"""What may be given as a projection: an instance, or a class that can be made without arguments."""


class ProjectingThread:
    """Keeps projections up in a thread, from :meth:`start` to :meth:`stop`."""

    def __init__(
        self,
        log: Log,
        store_url: str | None,
        projections: Sequence[Projection],
        partitions: Callable[[], Collection[int]],
    ) -> None:
        self._shared_log: Final = log
        self._store_url: Final = store_url
        self._projections: Final = projections
        self._partitions: Final = partitions
        self._runner: Runner | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gasoline-projections", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Say that somebody waits for what is durable now."""
        if self._runner is not None:
            self._runner.wake()

    @property
    def kept(self) -> list[KeptUp]:
        """The projections, and how each does."""
        return [] if self._runner is None else self._runner.kept

    def stop(self, limit_s: float) -> None:
        """Stop after the chunk it is at, or leave it alone at the limit: what is not committed then never counts."""
        self._stopping.set()
        if self._runner is not None:
            self._runner.stop()
        self._thread.join(limit_s)
        if self._thread.is_alive():
            _log.warning(
                "a projection was still at an event at the limit, and is left alone", extra={"limit_s": limit_s}
            )

    def _run(self) -> None:
        try:
            asyncio.run(self._keep_up())
        except BaseException as error:  # an exit that a projection asks for is one of its thread, and nobody's
            _log.error("projections are not kept up any more: %r", error, exc_info=True, extra={"error": repr(error)})

    async def _keep_up(self) -> None:
        shared, log = self._shared_log, None
        if shared.url.startswith("file:"):
            log = await open_log(shared.url, namespace=shared.namespace, readonly=True, final=True)
        try:
            used = shared if log is None else log
            store = open_store(used, self._store_url)
            self._runner = Runner(used, store, self._projections, partitions=self._partitions, tell=tell)
            if not self._stopping.is_set():
                self._runner.run()
            store.close()
        finally:
            if log is not None:
                await log.close()


def tell(notice: Notice) -> None:
    """Say it as a log record."""
    match notice.kind:
        case "built":
            if notice.extra.get("stopped"):
                _log.warning("a projection was built with holes: %s", notice.why, extra=notice.extra)
            else:
                _log.info("a projection was built: %s", notice.why, extra=notice.extra)
        case "recovered":
            _log.info("a projection is kept up again: %s", notice.why, extra=notice.extra)
        case "outdated":
            _log.warning("a projection is left to newer code: %s", notice.why, extra=notice.extra)
        case "discarded":
            _log.warning(
                "a projection is built anew, for what there was is of no use: %s", notice.why, extra=notice.extra
            )
        case "stopped":
            _log.error(
                "a projection could not apply an event: %s", notice.why, extra=notice.extra, exc_info=notice.error
            )
        case "failing":
            _log.error(
                "a projection cannot be kept up, and is tried again: %s",
                notice.why,
                extra=notice.extra,
                exc_info=notice.error,
            )
        case _:
            assert_never(notice.kind)


class ProjectingWorker(Worker):
    """A worker that also keeps projections up."""

    def __init__(
        self,
        node: Node,
        workflows: Iterable[Workflow[Any, Any]],
        projections: Sequence[object],
        store_url: str | None,
        *,
        max_concurrency: int = MAX_CONCURRENCY,
        evict_after_s: float = EVICT_AFTER_S,
        stop_limit_s: float = STOP_LIMIT_S,
        version: int = 0,
        exposition: Exposition | None = None,
        beside: Sequence[Beside] = (),
        prune_after_us: int | None = None,
        compact_every_us: int | None = None,
        archive: Archive | None = None,
    ) -> None:
        super().__init__(
            node,
            workflows,
            max_concurrency=max_concurrency,
            evict_after_s=evict_after_s,
            stop_limit_s=stop_limit_s,
            version=version,
            exposition=exposition,
            beside=beside,
            prune_after_us=prune_after_us,
            compact_every_us=compact_every_us,
            archive=archive,
        )
        self._given: Final = check_projections(projections)
        self._store_url: Final = store_url
        self._projecting: ProjectingThread | None = None

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        if self._given:
            # The partitions are asked for from the thread: copying a dict's keys is one step of the interpreter.
            partitions = self._node.partitions
            self._projecting = ProjectingThread(self._node.log, self._store_url, self._given, lambda: tuple(partitions))
            self._projecting.start()
            self._node.projected = self._reached
        return self

    def _reached(self) -> Mapping[str, Mapping[tuple[str, int], int]]:
        """Return how far each projection is: nothing of one that others keep up, or that is not open yet."""
        kept = [] if self._projecting is None else self._projecting.kept
        return {
            one.projection.name: {(feed.topic, feed.partition): offset for feed, offset in one.folded_to.items()}
            for one in kept
            if one.folded_to
        }

    def wake_projections(self) -> None:
        """Say that somebody waits for what is durable now."""
        if self._projecting is not None:
            self._projecting.wake()

    async def stop(self, limit_s: float | None = None) -> None:
        """Stop the projections, then as any worker."""
        projecting, self._projecting = self._projecting, None
        try:
            if projecting is not None:
                await asyncio.to_thread(projecting.stop, self._stop_limit_s if limit_s is None else limit_s)
        finally:
            await super().stop(limit_s)
