"""Each partition's transactions go on by themselves: none waits for another partition's broker (design 0036)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gasoline_es import Gasoline, Signal, SignalTo, WorkflowContext, workflow
from gasoline_es.core.ids import partition_of
from gasoline_es.errors import LogError, LogFailed
from gasoline_es.log.kafka.log import KafkaLog
from gasoline_es.log.kafka.opening import open_cluster
from gasoline_es.log.kafka.settings import Address
from gasoline_es.log.port import Appended, Outcome, Section
from gasoline_es.runtime.appender import AppendersApart
from gasoline_es.runtime.batch import Batch
from gasoline_es.runtime.recording import Recording
from gasoline_es.testing.log_contract import event, put
from tests.kafka.cluster_of_memory import Cluster, MemoryDriver, cluster_for_all

WAIT_S = 20


class Held:
    """Keeps the commits of one transactional id waiting."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self.met = threading.Event()
        self.go = threading.Event()
        self._id = transactional_id
        cluster.before_commit = self._before

    def _before(self, transactional_id: str) -> None:
        if transactional_id == self._id:
            self.met.set()
            assert self.go.wait(WAIT_S)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
async def log(cluster: Cluster, tmp_path: Path) -> AsyncIterator[KafkaLog]:
    address = Address(("memory:9092",), "default", state_dir=f"{tmp_path}/state")
    log = await open_cluster(MemoryDriver(cluster), address, "default", partitions=4, readonly=False)
    yield log
    await log.close()


async def test_an_append_goes_on_while_another_partitions_waits(cluster: Cluster, log: KafkaLog) -> None:
    first, second = await log.acquire(0), await log.acquire(1)
    held = Held(cluster, "default.0")
    waiting = asyncio.ensure_future(put(log, first.epoch, event(1)))
    assert await asyncio.to_thread(held.met.wait, WAIT_S)
    outcome = await log.append([Section(1, second.epoch, [event(2, partition=1)])])
    assert isinstance(outcome[0], Appended)
    assert not waiting.done()
    held.go.set()
    assert isinstance(await waiting, Appended)


async def test_what_is_appended_for_one_partition_keeps_its_order(cluster: Cluster, log: KafkaLog) -> None:
    owned = await log.acquire(0)
    held = Held(cluster, "default.0")
    sending = [asyncio.ensure_future(put(log, owned.epoch, event(number))) for number in range(5)]
    assert await asyncio.to_thread(held.met.wait, WAIT_S)
    held.go.set()
    outcomes = await asyncio.gather(*sending)
    offsets = [one.offsets["default.events"] for one in outcomes if isinstance(one, Appended)]
    assert offsets == sorted(offsets)
    assert len(offsets) == 5


async def test_a_partition_is_given_up_behind_what_is_being_appended(cluster: Cluster, log: KafkaLog) -> None:
    owned = await log.acquire(0)
    held = Held(cluster, "default.0")
    sending = asyncio.ensure_future(put(log, owned.epoch, event(1)))
    assert await asyncio.to_thread(held.met.wait, WAIT_S)
    releasing = asyncio.ensure_future(log.release(0))
    closing = asyncio.ensure_future(log.close())
    await asyncio.sleep(0)
    assert not releasing.done()
    assert not closing.done()
    held.go.set()
    assert isinstance(await sending, Appended)
    await releasing
    await closing


# --- the engine ---------------------------------------------------------------------------------------------------------


class Go(Signal):
    pass


@workflow
async def wait_for_go(ctx: WorkflowContext, given: int) -> int:
    await ctx.listen(Go)
    return given


async def test_workflows_end_while_another_partition_waits_for_its_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_for_all(monkeypatch)
    async with Gasoline.open("kafka://memory:9092/app", partitions=2) as gasoline, gasoline.worker([wait_for_go]):
        handles = [await gasoline.dispatch(wait_for_go, number) for number in range(30)]
        stuck = [one for one in handles if partition_of(one.id, 2) == 0]
        free = [one for one in handles if partition_of(one.id, 2) == 1]
        assert stuck
        assert free
        held = Held(cluster, "app.0")
        telling = asyncio.ensure_future(gasoline.signal_many([SignalTo(Go(), one.id) for one in handles]))
        async with asyncio.timeout(WAIT_S):
            assert len(await asyncio.gather(*(one.output() for one in free))) == len(free)
            assert held.met.is_set()
            held.go.set()
            assert len(await asyncio.gather(*(one.output() for one in stuck))) == len(stuck)
            await telling


# --- the appenders ------------------------------------------------------------------------------------------------------


class Slow:
    """A log of which each append ends when the test says so."""

    appends_apart = True

    def __init__(self) -> None:
        self.under_way: dict[int, asyncio.Future[Outcome]] = {}

    async def append(self, sections: list[Section]) -> list[Outcome]:
        (section,) = sections
        assert section.partition not in self.under_way, "one at a time for each"
        future = self.under_way[section.partition] = asyncio.get_running_loop().create_future()
        try:
            return [await future]
        finally:
            del self.under_way[section.partition]

    async def reached(self, *partitions: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.under_way.keys() != set(partitions):  # of the loop itself
                await asyncio.sleep(0)


class Source:
    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.wanted = 0
        self.ended: list[Outcome] = []

    def take(self) -> tuple[Section, Batch] | None:
        if not self.wanted:
            return None
        records = [event(number, partition=self.partition) for number in range(self.wanted)]
        self.wanted = 0
        return Section(self.partition, None, records), Batch()

    def settled(self, batch: Batch, outcome: Outcome) -> None:
        self.ended.append(outcome)


class Appenders:
    def __init__(self) -> None:
        self.log = Slow()
        self.failed: list[LogError] = []
        self.all = AppendersApart(self.log, self.failed.append, Recording())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    def ask(self, source: Source) -> None:
        source.wanted += 1
        self.all.ask(source)

    async def end(self, partition: int, outcome: Outcome | None = None) -> None:
        self.log.under_way[partition].set_result(outcome or Appended({}))
        await asyncio.sleep(0)


async def test_flush_waits_for_what_was_asked_and_not_for_what_comes_later() -> None:
    made, one, other = Appenders(), Source(0), Source(1)
    made.ask(one)
    made.ask(other)
    await made.log.reached(0, 1)
    made.ask(one)  # for its next append
    flushing = asyncio.ensure_future(made.all.flush())
    await asyncio.sleep(0)
    await made.end(1)
    await made.log.reached(0)
    made.ask(other)  # behind the flush
    await made.log.reached(0, 1)
    await made.end(0)
    await made.log.reached(0, 1)
    assert not flushing.done(), "what was asked before it is under way"
    await made.end(0)
    await asyncio.wait_for(flushing, WAIT_S)
    assert (len(one.ended), len(other.ended)) == (2, 1)
    closing = asyncio.ensure_future(made.all.close())
    await made.end(1)
    await asyncio.wait_for(closing, WAIT_S)
    assert len(other.ended) == 2


async def test_a_source_that_leaves_is_told_of_what_it_had_asked_for() -> None:
    made, one = Appenders(), Source(0)
    made.ask(one)
    await made.log.reached(0)
    made.ask(one)
    made.all.leave(one)
    await made.end(0)
    await made.log.reached(0)
    flushing = asyncio.ensure_future(made.all.flush())
    await asyncio.sleep(0)
    assert not flushing.done()
    await made.end(0)
    await asyncio.wait_for(flushing, WAIT_S)
    assert len(one.ended) == 2
    await asyncio.wait_for(made.all.close(), WAIT_S)


async def test_a_source_that_leaves_leaves_no_task() -> None:
    made, before = Appenders(), asyncio.all_tasks()
    for partition in range(3):
        made.ask(source := Source(partition))
        await made.log.reached(partition)
        await made.end(partition)
        await made.all.flush()
        made.all.leave(source)
    for _ in range(3):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_a_log_that_fails_for_one_says_so_once_and_the_others_are_told_by_the_log() -> None:
    made, one, other = Appenders(), Source(0), Source(1)
    made.ask(one)
    made.ask(other)
    await made.log.reached(0, 1)
    await made.end(0, LogFailed("no space"))
    await made.end(1)
    await made.all.flush()
    assert [str(one) for one in made.failed] == ["no space"]
    assert isinstance(one.ended[0], LogFailed)
    assert isinstance(other.ended[0], Appended)
    await made.all.close()
