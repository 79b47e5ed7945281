"""What the engine's tests stand on: processes that can be killed at any append, over a virtual clock.

A :class:`World` is a log and a clock that outlive any process. A :class:`Process` is one life of an engine on them: a
client, and a worker if asked for. ``kill`` ends it as SIGKILL would: nothing is flushed, nothing released. Every log is
behind a :class:`ScriptedLog`, which counts appends and lets a test decide what becomes of any of them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

from gasoline_es import Gasoline, Workflow, WorkflowHandle
from gasoline_es.clock import VirtualClock
from gasoline_es.core import events as ev
from gasoline_es.core.events import Event
from gasoline_es.core.folding import superseded_in
from gasoline_es.core.location import Location
from gasoline_es.errors import GasolineError, LogCorrupt, LogError, LogFailed, ProjectionNotBuilt
from gasoline_es.log.file.log import FileLog
from gasoline_es.log.kafka.log import KafkaLog
from gasoline_es.log.memory import MemoryLog
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import (
    Appended,
    Compaction,
    Log,
    LogInfo,
    Member,
    NewRecord,
    Offset,
    Outcome,
    Owner,
    Ownership,
    Position,
    Problem,
    Record,
    Rules,
    Section,
    SegmentInfo,
    Source,
    Tail,
    Wanted,
)
from gasoline_es.runtime.driver import Driver
from gasoline_es.runtime.node import Node
from gasoline_es.runtime.worker import Worker
from projections.comparing import verify
from projections.keeping import StoreKeeper, keep_in
from projections.memory_keeper import MemoryKeeper
from projections.stores.opening import open_store
from projections.workflows import Workflows
from tests.kafka.cluster_of_memory import Cluster

PATIENCE_S: Final = float(os.environ.get("GASOLINE_TEST_PATIENCE_S", "30"))
"""What should happen, happens within this: real time, only ever used up by a failing test."""

Fate = Literal["lost", "unanswered"] | type[LogError]
"""Of one append. ``lost``: the process dies before it is written. ``unanswered``: it dies when it is durable, before it
knows. An error: nothing is written, and this is the outcome."""

_names = itertools.count()


class ScriptedLog(Log):
    """Hands everything on to a real log; appends are counted from 1, and a script may decide the fate of each."""

    def __init__(self, inner: FileLog | MemoryLog | KafkaLog) -> None:
        self.inner = inner
        self.url = inner.url
        self.log_id = inner.log_id
        self.namespace = inner.namespace
        self.partition_count = inner.partition_count
        self.writable = inner.writable
        self.remote = inner.remote
        self.time_unit_us = inner.time_unit_us
        self.cleared_by_key = inner.cleared_by_key
        self.derived = inner.derived
        self.incarnation = inner.incarnation
        self.script: dict[int, Fate] = {}
        self.always: type[LogError] | None = None
        """While set, every append has this outcome (a disk that stays full)."""
        self.open_gate = asyncio.Event()
        """While cleared, appends wait before they are written."""
        self.open_gate.set()
        self.asked = asyncio.Event()
        """Set whenever an append has come as far as the gate."""
        self.close_at = 0
        """The append that clears the gate as it comes there, by its number; 0: none does."""
        self.closed = asyncio.Event()
        """Set when that append has come there. Who opens the gate before has it closed for good afterwards."""
        self.learns = asyncio.Event()
        """While cleared, appends that are written wait before this process learns it; others can read them."""
        self.learns.set()
        self.unknown = asyncio.Event()
        """Set whenever an append waits so."""
        self.refused = asyncio.Event()
        """Set whenever an append was given an error by the script."""
        self.reached = asyncio.Event()
        """Set when the append was reached at which the process is to die."""
        self.appended: list[list[Section]] = []
        """The sections of the appends that were written."""
        self.written: list[asyncio.Event] = []
        """Set whenever an append was written and answered."""
        self._count = 0
        self._failed = False

    @property
    def damage(self) -> LogCorrupt | None:
        return self.inner.damage

    @property
    def count(self) -> int:
        """How many appends were asked for."""
        return self._count

    async def append(self, sections: Sequence[Section]) -> list[Outcome]:
        self._count += 1
        number = self._count
        if number == self.close_at:
            self.open_gate.clear()
            self.closed.set()
        self.asked.set()
        await self.open_gate.wait()
        if self._failed:
            raise LogFailed("the log failed before")
        fate = self.script.get(number, self.always)
        if fate == "lost":
            await self._die()
        if isinstance(fate, type):
            self._failed = self._failed or issubclass(fate, LogFailed)
            self.refused.set()
            return [fate(f"injected into append {number}") for _ in sections]
        outcomes = await self.inner.append(sections)
        self.appended.append(list(sections))
        if fate == "unanswered":
            await self._die()
        if not self.learns.is_set():
            self.unknown.set()
            await self.learns.wait()
        for event in self.written:
            event.set()  # who waits comes next on the loop, when the engine has seen the outcomes
        return outcomes

    async def _die(self) -> None:
        self.reached.set()
        await asyncio.get_running_loop().create_future()

    async def partitions_of(self, topic: str, *, reading: bool = False) -> int:
        return await self.inner.partitions_of(topic, reading=reading)

    async def acquire(self, partition: int) -> Ownership:
        return await self.inner.acquire(partition)

    async def release(self, partition: int) -> None:
        await self.inner.release(partition)

    def owner(self, partition: int) -> Owner | None:
        return self.inner.owner(partition)

    def announce(self, about: Mapping[str, Any] | None) -> None:
        self.inner.announce(about)

    def others(self) -> list[Member]:
        return self.inner.others()

    async def shown(self) -> None:
        await self.inner.shown()

    def members(self) -> list[Member]:
        return self.inner.members()

    def read(self, topic: str, partition: int, start: int = 0, stop: int | None = None) -> Iterator[Record]:
        return self.inner.read(topic, partition, start, stop)

    def read_at(
        self, topic: str, partition: int, offsets: Sequence[int], places: Sequence[int] | None = None
    ) -> list[Record]:
        return self.inner.read_at(topic, partition, offsets, places)

    def end(self, topic: str, partition: int) -> Offset:
        return self.inner.end(topic, partition)

    def horizon(self, topic: str, partition: int) -> Offset:
        return self.inner.horizon(topic, partition)

    def undecided(self, topic: str, partition: int) -> bool:
        return self.inner.undecided(topic, partition)

    async def refresh(self, *feeds: tuple[str, int]) -> None:
        await self.inner.refresh(*feeds)

    def tail(self, topic: str, partition: int, position: Position | None = None) -> Tail:
        return self.inner.tail(topic, partition, position)

    async def source(
        self, topic: str, partition: int, position: Position | None = None, *, past_lost: bool = False
    ) -> Source:
        return await self.inner.source(topic, partition, position, past_lost=past_lost)

    def newest(self, topic: str, partition: int, since_us: int, wanted: Wanted) -> Record | None:
        return self.inner.newest(topic, partition, since_us, wanted)

    async def changed(self) -> None:
        await self.inner.changed()

    def info(self) -> LogInfo:
        return self.inner.info()

    async def compact(
        self,
        rules: Rules,
        *,
        dry_run: bool = False,
        bytes_per_s: float | None = None,
        gain_min: float = 0.0,
        progress: Callable[[int, int], None] | None = None,
    ) -> Compaction:
        return await self.inner.compact(
            rules, dry_run=dry_run, bytes_per_s=bytes_per_s, gain_min=gain_min, progress=progress
        )

    def verify(self) -> Iterator[Problem | SegmentInfo]:
        return self.inner.verify()

    async def close(self) -> None:
        await self.inner.close()

    async def crash(self) -> None:
        """Let go of the log as the end of the process would."""
        if isinstance(self.inner, FileLog):
            await self.inner.crash()
        else:
            self.inner.crash()


class Process:
    """One life of an engine in this test. Made by :meth:`World.process`."""

    def __init__(self, world: World, log: ScriptedLog) -> None:
        self.world = world
        self.log = log
        self.node = Node(log, world.clock, MemoryKeeper() if isinstance(log.inner, MemoryLog) else kept_views(log))
        self.gasoline = Gasoline(self.node)
        self.worker: Worker | None = None
        self.ended = False
        self.node.start()

    async def work(self, *workflows: Workflow[Any, Any], **settings: Any) -> Worker:
        """Start a worker for these workflows in this process."""
        self.worker = self.gasoline.worker(workflows, **settings)
        await self.worker.__aenter__()
        return self.worker

    @property
    def driver(self) -> Driver:
        assert self.node.driver is not None
        return self.node.driver

    def in_memory(self, workflow_id: str) -> bool:
        """Whether the workflow is in memory, with a body or without."""
        partition = self.node.partition_of(workflow_id)
        return partition is not None and workflow_id in partition.lives

    # --- ends ---------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """End cleanly: the worker, then the log. It may still be killed in the middle of that."""
        if self.worker is not None:
            await self.worker.stop()
        await self.node.close()
        self.ended = True

    async def kill(self) -> None:
        """End as by SIGKILL: nothing more is written, nothing is released, nobody is told."""
        if self.ended:
            return
        self.ended = True
        node, driver = self.node, self.node.driver
        tasks: list[asyncio.Task[Any]] = [*node._tasks, *node._taking.values(), *node._releasing]
        tasks += node._appender.tasks
        if self.worker is not None:
            tasks += self.worker._tasks
        node.viewing.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await node.viewing._keeper.close()
        node._alarms.close()
        if driver is not None:
            driver.stopping = True
            driver.runner.stopping = True
            driver.runner.abandon(lambda workflow_id: False)
            driver.close()
            driver.runner._finished = _nobody_listens
        for partition in node.partitions.values():
            partition.lost = LogError("killed")  # what a late callback decides goes nowhere
            for live in list(partition.lives.values()):
                live.drop_run()
        await self.log.crash()
        if self.world.tell_death is not None:
            self.world.tell_death(self.log.incarnation)

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def live(self, life: Coroutine[Any, Any, object]) -> bool:
        """Let something go on until it ends, or until the append at which the process is to die; return whether it is."""
        living = asyncio.ensure_future(life)
        dying = asyncio.ensure_future(self.log.reached.wait())
        await soon(asyncio.wait((living, dying), return_when=asyncio.FIRST_COMPLETED))
        for task in (living, dying):
            task.cancel()
        await asyncio.gather(living, dying, return_exceptions=True)
        return self.log.reached.is_set()

    async def settle(self) -> None:
        """Return when nothing happens any more without time passing or an activity going on."""
        quiet = 0
        before = -1
        while quiet < 3:
            await self.node.flush()
            # What is due on a remote log, which is asked first.
            due = [one for one in self.node._tasks if one.get_name() == "gasoline-due"]
            if due:
                await asyncio.wait(due)
                quiet = 0
            for _ in range(10):
                await asyncio.sleep(0)
            quiet = quiet + 1 if self.log.count == before else 0
            before = self.log.count

    async def until(self, workflow_id: str, holds: Callable[[list[Event]], bool]) -> list[Event]:
        """Wait until a workflow's durable history, written by this process, fulfils a condition; return it."""
        written = asyncio.Event()
        self.log.written.append(written)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                written.clear()
                history = await self.gasoline.history(workflow_id)
                if holds(history):
                    return history
                await written.wait()

    async def status(self, workflow_id: str, status: str) -> list[Event]:
        """Wait until a workflow has a status."""
        written = asyncio.Event()
        self.log.written.append(written)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                written.clear()
                if (await self.gasoline.get(workflow_id)).status == status:
                    return await self.gasoline.history(workflow_id)
                await written.wait()

    async def advance(self, seconds: float) -> None:
        """Let time pass, then wait until what it brought about is done."""
        await self.settle()
        self.world.clock.advance(seconds)
        await self.settle()

    async def evict(self, after_s: float = 5.0) -> None:
        """Let time pass until everything idle may leave memory, and let it."""
        await self.settle()
        self.world.clock.advance(after_s)
        self.driver.evict_idle()
        await self.settle()


class World:
    """A log and a clock, shared by processes that come and go."""

    def __init__(self, url: str | None = None) -> None:
        self.url = url or f"memory:engine-{next(_names)}"
        self.clock = VirtualClock()
        self.tell_death: Callable[[str], None] | None = None
        """Tells others that a process has died, where they would learn it by its silence."""
        self.cluster: Cluster | None = None
        """Of the Kafka log, the cluster in memory."""
        self._processes: list[Process] = []

    async def process(self, **options: Any) -> Process:
        """Start a process: a client until its ``work`` is called."""
        log = await open_log(self.url, **options)
        assert isinstance(log, FileLog | MemoryLog | KafkaLog)
        process = Process(self, ScriptedLog(log))
        self._processes.append(process)
        return process

    async def worker(self, *workflows: Workflow[Any, Any], **settings: Any) -> Process:
        """Start a process that runs these workflows."""
        process = await self.process()
        await process.work(*workflows, **settings)
        return process

    @asynccontextmanager
    async def reader(self) -> AsyncGenerator[Gasoline]:
        """Open the log for reading, beside whoever writes it."""
        async with Gasoline.open(self.url, readonly=True, clock=self.clock) as gasoline:
            yield gasoline

    async def _compare_views(self) -> None:
        """What the processes have stored is what a fresh fold makes of the log, up to where they stored it."""
        log = await open_log(self.url, readonly=True)
        if log.damage is None:
            with suppress(ProjectionNotBuilt):
                verdict = verify(log, open_store(log), Workflows())
                assert verdict.difference is None, verdict
        await log.close()

    async def end(self) -> None:
        """Kill every process left, then hold every history against what must hold of all, and the stored views too."""
        for process in self._processes:
            try:
                async with asyncio.timeout(20):
                    await process.kill()
            except TimeoutError:
                for task in asyncio.all_tasks():
                    task.print_stack()
                raise
        if self.url.startswith("file:"):
            await self._compare_views()
        async with self.reader() as gasoline:
            async for info in gasoline.list():
                if info.status != "unreadable":
                    assert_sound(await gasoline.history(info.id))


async def kills(
    fate: Fate,
    life: Callable[[Process], Coroutine[Any, Any, object]],
    under: Path | None = None,
    make: Callable[[int], World] | None = None,
    **options: Any,
) -> AsyncGenerator[tuple[World, int]]:
    """Kill a process at each of its appends: yield what it leaves, with the number of the append, counted from 1.

    The last one is of a process that lived. ``under``: where to make each log's directory; in memory if not given.
    ``make``: makes each world instead. ``options``: of the log.
    """
    number, died = 0, True
    while died:
        number += 1
        world = World(None if under is None else f"file:{under}/{number}") if make is None else make(number)
        process = await world.process(**options)
        process.log.script = {number: fate}
        died = await process.live(life(process))
        await process.kill()
        yield world, number
        await world.end()


def kept_views(log: ScriptedLog) -> StoreKeeper | MemoryKeeper:
    """Keep the views where the engine does."""
    try:
        return keep_in(open_store(log.inner), log)
    except (GasolineError, OSError):
        return MemoryKeeper()


def _nobody_listens(attempt: object) -> None:
    """What a killed process does with the outcome of an attempt."""


async def soon(awaitable: Any, patience_s: float = PATIENCE_S) -> Any:
    """Await something that must happen: a hang fails with its place."""
    async with asyncio.timeout(patience_s):
        return await awaitable


class OneByOne:
    """Lets one append through for each time it is opened."""

    def __init__(self, process: Process) -> None:
        self._open = asyncio.Semaphore(0)
        self._log: Any = process.log
        self._before = self._log.open_gate
        self._log.open_gate = self

    async def wait(self) -> None:
        await self._open.acquire()

    async def open(self) -> None:
        """Let one append through, and see what comes of it."""
        self._open.release()
        for _ in range(50):
            await asyncio.sleep(0)

    def end(self) -> None:
        self._log.open_gate = self._before
        for _ in range(10):
            self._open.release()


async def when(holds: Callable[[], bool]) -> None:
    """Wait until something holds that tells nobody."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.001)


async def post(world: World, requests: list[bytes]) -> None:
    """Put requests into the inbox of partition 0, as another process would."""
    log = await open_log(world.url)
    records = [NewRecord("default.inbox", 0, "", request, world.clock.now_us()) for request in requests]
    (outcome,) = await log.append([Section(0, None, records)])
    assert isinstance(outcome, Appended)
    await log.close()


# --- what must hold of every history ----------------------------------------------------------------------------------


_ENDS = (ev.WorkflowCompleted, ev.WorkflowCancelled, ev.WorkflowSilenced)


def assert_sound(history: Sequence[Event]) -> None:
    """Hold a history against what no crash may break: no gap, each step once, each signal once."""
    first = history[0].seq  # 1, unless another of the same id was pruned before
    assert isinstance(history[0].data, ev.WorkflowDispatched)
    if isinstance(pruned := history[-1].data, ev.WorkflowPruned):
        assert [event.seq for event in history] == [*pruned.keeps, history[-1].seq]
        assert isinstance(history[1].data, _ENDS)
        return
    assert [event.seq - first for event in history] == list(range(len(history))), "gap-free (design §4)"
    assert sum(isinstance(event.data, ev.WorkflowDispatched) for event in history) == 1
    superseded = superseded_in(event.fact for event in history)
    history = [event for event in history if event.seq not in superseded]
    ended = [event.seq for event in history if isinstance(event.data, _ENDS)]
    assert ended in ([], [history[-1].seq]), "nothing follows the end"
    _assert_activities(history)
    _assert_interrupted(history)
    _assert_sleeps(history)
    _assert_signals(history)


def _assert_activities(history: Sequence[Event]) -> None:
    attempts: dict[Location, list[tuple[int, bool]]] = {}
    for event in history:
        if isinstance(event.data, ev.ActivityCompleted | ev.ActivityFailed):
            over = isinstance(event.data, ev.ActivityCompleted) or event.data.final
            attempts.setdefault(event.data.location, []).append((event.data.attempt, over))
        elif isinstance(event.data, ev.WorkflowRecovered):
            for location in event.data.locations:
                del attempts[location]  # they start again
    for location, tried in attempts.items():
        assert [number for number, _ in tried] == list(range(1, len(tried) + 1)), f"attempts at {location}: {tried}"
        assert not any(over for _, over in tried[:-1]), f"an attempt after the last at {location}: {tried}"


def _assert_interrupted(history: Sequence[Event]) -> None:
    interrupted: set[Location] = set()
    for event in history:
        if isinstance(event.data, ev.LocatedData):
            assert event.data.location not in interrupted, f"{event.data} where a cancel was thrown"
            if isinstance(event.data, ev.StepInterrupted):
                interrupted.add(event.data.location)


def _assert_sleeps(history: Sequence[Event]) -> None:
    started = [event.data.location for event in history if isinstance(event.data, ev.SleepStarted)]
    finished = [event.data.location for event in history if isinstance(event.data, ev.SleepFinished)]
    assert len(set(started)) == len(started), f"a sleep started twice: {started}"
    assert len(set(finished)) == len(finished), f"a sleep ended twice: {finished}"
    assert set(finished) <= set(started)


def _assert_signals(history: Sequence[Event]) -> None:
    received: list[str] = []
    gone: list[str] = []
    places: list[Location] = []
    for event in history:
        match event.data:
            case ev.SignalReceived():
                received.append(event.data.signal_id)
            case ev.SignalConsumed():
                places.append(event.data.location)
                assert set(event.data.signal_ids) <= set(received), "consumed before it was received"
                gone += event.data.signal_ids
            case ev.SignalDiscarded():
                gone += event.data.signal_ids
            case _:
                pass
    assert len(set(received)) == len(received), f"a signal received twice: {received}"
    assert len(set(gone)) == len(gone), f"a signal consumed twice: {gone}"
    assert len(set(places)) == len(places), f"two listens at one location: {places}"


# --- reading a history ------------------------------------------------------------------------------------------------


def types(history: Iterable[Event]) -> list[str]:
    """The types of the events, in order."""
    return [event.type for event in history]


def consumed(history: Iterable[Event]) -> list[str]:
    """The ids of the signals that listens took, in the order taken."""
    return [one for event in history if isinstance(event.data, ev.SignalConsumed) for one in event.data.signal_ids]


def discarded(history: Iterable[Event]) -> list[str]:
    """The ids of the signals that were forgotten at completion."""
    return [one for event in history if isinstance(event.data, ev.SignalDiscarded) for one in event.data.signal_ids]


def failures(history: Iterable[Event]) -> list[ev.ActivityFailed]:
    """The failed attempts, in order."""
    return [event.data for event in history if isinstance(event.data, ev.ActivityFailed)]


def successes(history: Iterable[Event]) -> list[ev.ActivityCompleted]:
    """The completed activities, in order."""
    return [event.data for event in history if isinstance(event.data, ev.ActivityCompleted)]


def has(kind: str, times: int = 1) -> Callable[[list[Event]], bool]:
    """A condition: the history has at least so many events of a type."""
    return lambda history: types(history).count(kind) >= times


def rehandle(process: Process, handle: WorkflowHandle[Any], workflow: Workflow[Any, Any]) -> WorkflowHandle[Any]:
    """The same workflow through another process."""
    return process.gasoline.handle(handle.id, workflow)
