"""A worker's life in a simulation, which can be ended at any append as by SIGKILL, and logs that take part in that."""

# A kill lets go of what nothing but the end of a process lets go of, so it has to look inside the engine.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from gasoline_es.clock import Clock
from gasoline_es.core.codec import read_fact
from gasoline_es.core.location import format_location
from gasoline_es.core.topics import Topics
from gasoline_es.definitions import Activity, Workflow
from gasoline_es.engine import node_on
from gasoline_es.errors import LogError, PartitionOwned
from gasoline_es.log.memory import MemoryLog, MemoryStore
from gasoline_es.log.port import Outcome, Ownership, Section
from gasoline_es.runtime.driver import Driver
from gasoline_es.runtime.node import Node
from gasoline_es.runtime.rebalancing import Rebalancing
from gasoline_es.runtime.worker import MAX_CONCURRENCY, Worker

URL: Final = "memory:simulation"
NAMESPACE: Final = "default"
_EVENTS: Final = Topics(NAMESPACE).events


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """``before`` the append with this number (from 1): it never happened. ``after``: it counts, and nobody learned of it."""

    append: int
    when: Literal["before", "after"]


class WorkerLog(MemoryLog):
    """Counts appends; the process dies at one of them. ``reached`` is called there, with what the append holds."""

    def __init__(self, store: MemoryStore, crash: CrashPoint | None, reached: Callable[[str], None]) -> None:
        super().__init__(store, URL, NAMESPACE, readonly=False)
        self._crash_point = crash
        self._reached = reached
        self._appends = 0

    async def append(self, sections: Sequence[Section]) -> list[Outcome]:
        """Append, or die before or after it."""
        self._appends += 1
        crash = self._crash_point
        dies = crash is not None and crash.append == self._appends
        if dies and crash is not None and crash.when == "before":
            await self._die(sections)
        outcomes = await super().append(sections)
        if dies:
            await self._die(sections)
        return outcomes

    async def _die(self, sections: Sequence[Section]) -> None:
        self._reached(_told(sections))
        await asyncio.get_running_loop().create_future()


class ClientLog(MemoryLog):
    """A client's handle. It leaves the partitions to the worker, also between two lives of that."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, URL, NAMESPACE, readonly=False)

    async def acquire(self, partition: int) -> Ownership:
        """Refuse. Raises: PartitionOwned."""
        raise PartitionOwned(f"partition {partition} is the worker's", partition=partition)


def _told(sections: Sequence[Section]) -> str:
    """Name the events of an append."""
    told: list[str] = []
    for section in sections:
        for record in section.records:
            if record.topic == _EVENTS and record.value is not None:
                data = read_fact(record.key, record.value)[3]
                name, location = getattr(data, "name", None), getattr(data, "location", None)
                parts = [data.TYPE, name, None if location is None else format_location(location)]
                told.append(" ".join(part for part in parts if part))
    return ", ".join(told) or "no events"


class _SimulatedWorker(Worker):
    """Does at the simulation's times what a worker does now and then: see ``Simulation.idle``."""

    def __init__(self, node: Node, workflows: Iterable[Workflow[Any, Any]], evict_after_s: float) -> None:
        super().__init__(node, workflows, evict_after_s=evict_after_s, max_concurrency=MAX_CONCURRENCY)
        self.stand_in: Callable[[Activity[Any, Any]], Activity[Any, Any]] | None = None

    def _make_driver(self) -> Driver:
        driver = super()._make_driver()
        driver.runner.stand_in = self.stand_in
        driver.jitter = lambda: 0.0
        return driver

    def _start_watch(self, driver: Driver, sharing: Rebalancing) -> None:
        return None

    def _start_chores(self) -> list[asyncio.Task[None]]:
        return []


class WorkerProcess:
    """One life of a worker."""

    def __init__(
        self,
        log: WorkerLog,
        clock: Clock,
        seed: str,
        workflows: Sequence[Workflow[Any, Any]],
        evict_after_s: float,
        stand_in: Callable[[Activity[Any, Any]], Activity[Any, Any]],
    ) -> None:
        self._log = log
        self.node = node_on(log, clock, random.Random(seed).randbytes)
        self._worker = _SimulatedWorker(self.node, workflows, evict_after_s)
        self._worker.stand_in = stand_in
        self.registered = tuple(self._worker.registry)

    async def start(self) -> None:
        """Take all partitions, and go on where the last life ended."""
        self.node.start()
        await self._worker.__aenter__()

    @property
    def driver(self) -> Driver | None:
        return self.node.driver

    async def stop(self) -> None:
        """End as by SIGTERM: what runs may end, what was decided is written, the partitions are released."""
        await self._worker.stop()
        await self.node.close()

    async def kill(self) -> None:
        """End as by SIGKILL: nothing more is written, nothing is released, nobody is told.

        What runs in a thread cannot be ended; it is waited for, so that it does not run beside its own repetition.
        """
        node, driver = self.node, self.node.driver
        if driver is not None:
            threads = [attempt.task for attempt in driver.runner.in_threads if attempt.task is not None]
            if threads:
                await asyncio.wait(threads)
        tasks: list[asyncio.Task[Any]] = [*node._tasks, *self._worker._tasks, *node._taking.values(), *node._releasing]
        tasks += node._appender.tasks
        if driver is not None:
            tasks += driver.sends._tasks
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        node._alarms.close()
        if driver is not None:
            driver.stopping = True
            driver.runner.stopping = True
            running = [attempt.task for attempt in driver.runner._attempts.values() if attempt.task is not None]
            driver.runner.abandon(lambda workflow_id: False)
            driver.close()
            driver.runner._finished = _nobody_listens
            if running:
                await asyncio.wait(running, timeout=0)  # a turn to end in; what resists is nobody's concern any more
        for partition in node.partitions.values():
            partition.lost = LogError("killed")  # what a late callback decides goes nowhere
            for live in list(partition.lives.values()):
                live.drop_run()
        self._log.crash()


def _nobody_listens(attempt: object) -> None:
    """What a killed process does with the outcome of an attempt."""
