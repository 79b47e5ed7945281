"""A worker: takes partitions, drives the bodies of the workflows it was given, and stops cleanly (semantics.md §8)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterable, Sequence
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from gasoline_es.definitions import Workflow
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import DefinitionError, LogReadOnly
from gasoline_es.registry import Registry
from gasoline_es.runtime.activities import Attempt
from gasoline_es.runtime.announcing import Announcement
from gasoline_es.runtime.cleaning import Cleaning
from gasoline_es.runtime.driver import Driver
from gasoline_es.runtime.loop_watch import LoopWatch, end_at_once
from gasoline_es.runtime.node import Node
from gasoline_es.runtime.pruner import Pruner
from gasoline_es.runtime.rebalancing import Rebalancing

if TYPE_CHECKING:
    from gasoline_es.log.archive import Archive

_log = EngineLog(__name__)

MAX_CONCURRENCY: Final = 1_000
EVICT_AFTER_S: Final = 5.0
STOP_LIMIT_S: Final = 30.0
ANNOUNCE_AGAIN_S: Final = 1.0
"""How often it is looked whether what a worker runs stands in the registry."""


class Exposition(Protocol):
    """Shows how a worker does while it lives."""

    port: int

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Beside(Protocol):
    """Something that a worker does while it runs, besides driving workflows."""

    async def begin(self) -> None: ...

    async def end(self) -> None: ...


class Worker:
    """Runs workflows while the ``async with`` block lasts. Made by ``gasoline.worker([…])``."""

    def __init__(
        self,
        node: Node,
        workflows: Iterable[Workflow[Any, Any]],
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
        if type(version) is not int or version < 0:
            raise ValueError(f"a worker's version is a whole number from 0 up (a build time, say), not {version!r}")
        self.registry = Registry(workflows)
        self._node = node
        self._max_concurrency = max_concurrency
        self._evict_after_s = evict_after_s
        self._stop_limit_s = stop_limit_s
        self._driver: Driver | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._hurry = asyncio.Event()
        self._version = version
        self._rebalancing: Rebalancing | None = None
        self._watch: LoopWatch | None = None
        self._announcement = Announcement(node, self.registry)
        self._exposition = exposition
        self._beside = beside
        self.pruner: Final = None if prune_after_us is None else Pruner(node, prune_after_us, archive)
        """Prunes what is old enough; None: nobody does here."""
        self.cleaning: Final = None if compact_every_us is None else Cleaning(node, compact_every_us)
        """Cleans the log now and then; None: nobody does here."""
        self.started: Final = asyncio.Event()
        """Set once it has its partitions and drives what is in them."""

    async def __aenter__(self) -> Self:
        node = self._node
        if not node.log.writable:
            raise LogReadOnly(f"a worker needs a log opened for writing: {node.log.url}")
        if node.driver is not None:
            raise DefinitionError("this process already runs a worker on this log: give it all the workflows")
        node.check()
        node.recording.workflows.admit(self.registry)
        node.recording.activities.admit(self.registry.activities)
        self._show()
        self._driver = node.driver = self._make_driver()
        sharing = self._rebalancing = Rebalancing(node, self._driver, self._version, self._stop_limit_s)
        self._watch = self._start_watch(self._driver, sharing)  # from before the first body runs
        try:
            for one in self._beside:
                await one.begin()
            for partition in list(node.partitions.values()):
                node.drive(partition)
            sharing.announce()
            await sharing.look()
            self._announcement.make()
        except BaseException:
            await self._end_beside()
            sharing.leave()
            self._let_go(self._driver)
            await self._hide()
            raise
        self._tasks = self._start_chores()
        self.started.set()
        _log.info(
            "worker runs %s in %d of %d partitions",
            ", ".join(self.registry) or "nothing",
            len(node.partitions),
            node.log.partition_count,
            extra={
                "workflows": list(self.registry),
                "owned": len(node.partitions),
                "partitions": node.log.partition_count,
                "version": self._version,
            },
        )
        return self

    def _make_driver(self) -> Driver:
        return Driver(self.registry, self._node.clock, self._max_concurrency, self._evict_after_s, self._node)

    def _start_watch(self, driver: Driver, sharing: Rebalancing) -> LoopWatch | None:
        """Watch the event loop; None: that of a simulation, whose time is not the clock's."""
        watch = LoopWatch(driver, sharing.held_up)
        watch.start()
        return watch

    def _start_chores(self) -> list[asyncio.Task[None]]:
        """Start what is done now and then for as long as the worker runs. A simulation does it at times of its own."""
        spawn = self._node.spawn
        assert self._rebalancing is not None
        return [
            spawn(self._rebalancing.go_on(), "gasoline-share"),
            spawn(self._rebalancing.watch_pressure(), "gasoline-pressure"),
            spawn(self._see_to_announcement(), "gasoline-announce"),
            spawn(self._evict(), "gasoline-evict"),
            *([] if self.pruner is None else [spawn(self._prune(self.pruner), "gasoline-prune")]),
            *([] if self.cleaning is None else [spawn(self.cleaning.go_on(), "gasoline-clean")]),
        ]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def metrics_port(self) -> int | None:
        """Where its metrics are served, once it runs; None: nowhere."""
        return None if self._exposition is None else self._exposition.port

    @property
    def running(self) -> int:
        """How many attempts of activities run right now."""
        return self._driver.runner.running if self._driver is not None else 0

    @property
    def under_way(self) -> list[Attempt]:
        """The attempts of activities that run right now."""
        return self._driver.runner.under_way if self._driver is not None else []

    async def stop(self, limit_s: float | None = None) -> None:
        """Stop at the next step: bodies go no further, running activities get until the limit, then are given up.

        What they returned in time is durable when this returns; what was given up runs again elsewhere. Cancelled: everything
        is given up at once. In any case this process is no worker any more, and others can have its partitions.
        """
        driver, self._driver = self._driver, None
        if driver is None:
            return
        sharing, self._rebalancing = self._rebalancing, None
        limit = self._stop_limit_s if limit_s is None else limit_s
        answered = False
        try:
            try:
                answered = await self._wind_down(driver, limit)
            finally:
                self._let_go(driver)
                if self.pruner is not None:
                    self.pruner.close()
                if sharing is not None:
                    sharing.leave()
            if answered and sharing is not None and self._node.failure is None and sharing.others:
                with contextlib.suppress(TimeoutError):  # a full disk must not keep the process from ending
                    async with asyncio.timeout(max(limit, 1.0)):
                        await self._node.release_all()
        finally:
            await self._hide()
        _log.info("worker stopped")

    async def _wind_down(self, driver: Driver, limit_s: float) -> bool:
        """Let what runs end, within the limit and while nobody hurries; see that what it returned is durable.

        Returns False if it may not be: the log's servers do not answer.
        """
        runner = driver.runner
        try:
            await self._end_beside()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            driver.stopping = True
            if runner.running:
                _log.info("waiting for running activities", extra={"running": runner.running, "limit_s": limit_s})
            runner.start_no_more()
            waits = {asyncio.ensure_future(runner.until_idle()), asyncio.ensure_future(self._hurry.wait())}
            try:
                await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        finally:
            given_up = runner.give_up_all()
        if given_up:
            _log.warning("activities were still running at the limit and were given up", extra={"activities": given_up})
        self._announcement.take_back()
        return await self._node.flushed()

    async def _end_beside(self) -> None:
        await asyncio.gather(*(one.end() for one in self._beside))

    def _show(self) -> None:
        shown = self._exposition
        if shown is not None:
            shown.start()
            _log.info("metrics are served at port %d", shown.port, extra={"port": shown.port})

    async def _hide(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        if self._exposition is not None:
            await asyncio.to_thread(self._exposition.stop)  # which waits for a thread

    def _let_go(self, driver: Driver) -> None:
        """Close every body and let go of what the driver holds; nothing is waited for."""
        self._driver = None
        driver.stopping = True
        for partition in self._node.partitions.values():
            for live in list(partition.lives.values()):
                live.drop_run()
                if live.settled:
                    partition.drop(live)
        driver.close()
        self._node.driver = None

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT, then stop cleanly; a second one gives running activities up at once.

        Where the event loop is held up, so that not even stopping can begin, a second one ends the process as a crash would,
        and so does the passing of the limit for running activities after the first. To be called in the main thread.

        Raises: LogFailed: the log failed; everything acknowledged is safe, the process must start anew.
        """
        loop, process = asyncio.get_running_loop(), os.getpid()
        stop = asyncio.Event()
        asked: list[int] = []

        def ask(number: int, frame: FrameType | None) -> None:
            # Runs between two bytecodes of whatever the main thread is at, so also of what holds the loop up.
            if os.getpid() != process:  # a child that an activity has forked has no worker to stop
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
                return
            asked.append(number)
            watch, again = self._watch, len(asked) > 1
            if watch is not None and not again:
                watch.end_after(self._stop_limit_s, 128 + number)
            if watch is not None and again and watch.held_up:
                end_at_once(128 + number)
            loop.call_soon_threadsafe(self._hurry.set if again else stop.set)

        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            async with self:
                waiting = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(self._node.failed.wait())]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in waiting:
                    task.cancel()
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._node.check()

    # ------------------------------------------------------------------------------------------------------------------

    async def _see_to_announcement(self) -> None:
        while True:
            await asyncio.sleep(ANNOUNCE_AGAIN_S)
            self._announcement.see_to()

    async def _prune(self, pruner: Pruner) -> None:
        while True:
            await asyncio.sleep(pruner.every_s)
            await pruner.look()

    async def _evict(self) -> None:
        assert self._driver is not None
        while True:
            await asyncio.sleep(min(1.0, max(self._evict_after_s / 2, 0.01)))
            self._driver.evict_idle()
