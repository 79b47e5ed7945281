"""Records that bodies emit: each is there once, with its step or not at all, whatever dies when (design §6)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from gasoline_es import ActivityContext, WorkflowContext, activity, workflow
from gasoline_es.core import events as ev
from gasoline_es.core.emitted import partition_by_key
from gasoline_es.core.topics import ANYONES_TOPICS, OWNERS_TOPICS
from gasoline_es.errors import NotSerializable, RecordTooLarge, TopicRefused
from gasoline_es.log.port import PAYLOAD_BYTES_MAX, Log, Record
from tests.engine.conftest import kafka_world
from tests.engine.harness import Fate, Process, World, kills, rehandle, soon, types
from tests.kafka.cluster_of_memory import Cluster

ORDERS = "shop-orders"
PARTITIONS = 3


class Order(BaseModel):
    id: str
    cents: int


@activity
async def step(ctx: ActivityContext, n: int) -> int:
    return n


@workflow
async def sell(ctx: WorkflowContext, count: int) -> str:
    for n in range(count):
        await ctx.emit(ORDERS, f"order {n}", Order(id=str(n), cents=n))
        await ctx.activity(step, n)
    return "sold"


@workflow
async def burst(ctx: WorkflowContext, count: int) -> int:
    await ctx.join_all([ctx.emit(ORDERS, f"key {n % 3}", n) for n in range(count)])
    return count


@workflow
async def to_topic(ctx: WorkflowContext, topic: str) -> str:
    await ctx.activity(step, 1)
    await ctx.emit(topic, "k", 1)
    return "emitted"


@pytest.fixture
async def emitting(any_world: World) -> World:
    """A world in which the topic is there to be emitted to."""
    if any_world.cluster is not None:
        any_world.cluster.make_topic(ORDERS, PARTITIONS)
    return any_world


async def records_of(log: Log, topic: str = ORDERS) -> list[Record]:
    """Every record of a topic, partition by partition."""
    partitions = range(await log.partitions_of(topic))
    tails = [log.tail(topic, partition) for partition in partitions]
    await log.refresh(*((topic, partition) for partition in partitions))
    return [record for tail in tails for record in tail.poll()]


async def dies_of(process: Process, id: str, *told: str) -> None:
    await soon(process.status(id, "dead"))
    info = await process.gasoline.get(id)
    assert info.error is not None
    assert info.error.type == "TopicRefused"
    for one in told:
        assert one in info.error.message


async def test_emitted_record_is_plain_json_with_the_headers_of_a_cloud_event(emitting: World) -> None:
    process = await emitting.worker(sell)
    handle = await process.gasoline.dispatch(sell, 1)
    assert await soon(handle.output()) == "sold"
    (record,) = await records_of(process.log)
    (event,) = [event for event in await handle.history() if isinstance(event.data, ev.RecordEmitted)]
    assert (record.topic, record.key, record.value) == (ORDERS, "order 0", b'{"id":"0","cents":0}')
    assert record.partition == partition_by_key("order 0", await process.log.partitions_of(ORDERS))
    assert record.offset is None, "anyone may write there"
    assert isinstance(event.data, ev.RecordEmitted)
    assert (event.data.topic, event.data.key, event.data.partition) == (ORDERS, "order 0", record.partition)
    assert event.data.value == record.value
    assert record.headers == {
        "ce_specversion": "1.0",
        "ce_id": event.id,
        "ce_source": "/gasoline/default/sell",
        "ce_type": "gasoline.emitted.v1",
        "ce_subject": handle.id,
        "ce_time": event.time.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "content-type": "application/json",
    }


async def test_none_is_a_tombstone_and_any_text_is_a_key(emitting: World) -> None:
    keys = ["", "a\x00\x1b[2J\r\n", "k" * 5_000, "../x.y", "😀", '"\\']

    @workflow
    async def clear(ctx: WorkflowContext, keys: list[str]) -> None:
        for key in keys:
            await ctx.emit(ORDERS, key, None)

    process = await emitting.worker(clear)
    handle = await process.gasoline.dispatch(clear, keys)
    await soon(handle.output())
    records = await records_of(process.log)
    assert sorted(record.key for record in records) == sorted(keys)
    assert {record.value for record in records} == {None}
    assert not any("content-type" in (record.headers or {}) for record in records)
    emitted = [event.data for event in await handle.history() if isinstance(event.data, ev.RecordEmitted)]
    assert [(data.key, data.value) for data in emitted] == [(key, None) for key in keys]


async def test_joined_emits_keep_the_order_of_the_calls_for_each_key(emitting: World) -> None:
    process = await emitting.worker(burst)
    handle = await process.gasoline.dispatch(burst, 30)
    assert await soon(handle.output()) == 30
    by_key: dict[str, list[int]] = {}
    for record in await records_of(process.log):
        by_key.setdefault(record.key, []).append(int(record.value or b""))
    assert by_key == {f"key {n}": list(range(n, 30, 3)) for n in range(3)}


async def test_record_is_in_the_very_section_of_its_event(emitting: World) -> None:
    """design §6: in the same transaction as the step."""
    process = await emitting.worker(sell)
    handle = await process.gasoline.dispatch(sell, 2)
    await soon(handle.output())
    counts: list[int] = []
    for sections in process.log.appended:
        for section in sections:
            events = [record.value or b"" for record in section.records if record.topic.endswith(".events")]
            counts.append(sum(record.topic == ORDERS for record in section.records))
            assert counts[-1] == sum(b"gasoline.record.emitted" in value for value in events)
    assert sum(counts) == 2


async def test_replay_after_eviction_emits_nothing(emitting: World) -> None:
    @workflow
    async def twice(ctx: WorkflowContext, n: int) -> None:
        await ctx.emit(ORDERS, "a", n)
        await ctx.sleep(3600)
        await ctx.emit(ORDERS, "b", n + 1)

    process = await emitting.worker(twice)
    handle = await process.gasoline.dispatch(twice, 1)
    await process.evict()
    assert not process.in_memory(handle.id)
    await process.advance(3600)
    await soon(handle.output())
    assert sorted(record.value or b"" for record in await records_of(process.log)) == [b"1", b"2"]


@pytest.mark.parametrize(
    ("kind", "fate", "count"),
    [
        ("memory", "lost", 3),
        ("memory", "unanswered", 3),
        ("file", "unanswered", 1),
        ("kafka", "unanswered", 1),
        pytest.param("file", "lost", 3, marks=pytest.mark.soak),
        pytest.param("kafka", "lost", 3, marks=pytest.mark.soak),
    ],
)
async def test_kill_at_every_append_leaves_each_steps_record_exactly_once(
    kind: str, fate: Fate, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_kafka(number: int) -> World:
        world = kafka_world(monkeypatch, tmp_path / str(number))
        assert world.cluster is not None
        world.cluster.make_topic(ORDERS, PARTITIONS)
        return world

    under, make = (tmp_path if kind == "file" else None), (on_kafka if kind == "kafka" else None)
    deaths = 0
    async for world, number in kills(fate, partial(_sells, count), under, make):
        deaths = number
        process = await world.worker(sell)
        handle = await process.gasoline.dispatch(sell, count, key="one")
        assert await soon(handle.output()) == "sold"
        sent = [event for event in await handle.history() if isinstance(event.data, ev.RecordEmitted)]
        records = sorted(await records_of(process.log), key=lambda record: record.value or b"")
        ids = [(record.headers or {})["ce_id"] for record in records]
        assert ids == [event.id for event in sent], f"killed at append {number}"
        assert [record.key for record in records] == [f"order {n}" for n in range(count)], f"killed at append {number}"
    assert deaths > 3


async def _sells(count: int, process: Process) -> None:
    await process.work(sell)
    handle = await process.gasoline.dispatch(sell, count, key="one")
    await handle.output()


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "topic",
    [
        "",
        ".",
        "..",
        "a b",
        "a/b",
        "../x",
        "a\x00",
        "a\n",
        "ä",
        "x" * 250,
        *(f"default.{kind}" for kind in (*OWNERS_TOPICS, *ANYONES_TOPICS, "workers", "orders")),
        "other.events",
    ],
)
async def test_topic_that_is_none_or_is_gasolines_own_is_refused_before_anything_is_recorded(
    world: World, topic: str
) -> None:
    process = await world.worker(to_topic, sell)
    handle = await process.gasoline.dispatch(to_topic, topic)
    await dies_of(process, handle.id, repr(topic[:200])[1:-1])
    assert "record.emitted" not in types(await handle.history())
    other = await process.gasoline.dispatch(sell, 1)
    assert await soon(other.output()) == "sold", "the worker lives"


async def test_topic_that_is_not_there_ends_the_run_and_a_wake_goes_on_once_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = kafka_world(monkeypatch, tmp_path)
    assert world.cluster is not None
    process = await world.worker(to_topic)
    handle = await process.gasoline.dispatch(to_topic, ORDERS)
    await dies_of(process, handle.id, f"Make it: kafka-topics.sh --create --topic {ORDERS}; then wake the workflow")
    world.cluster.make_topic(ORDERS, 1, **{"max.message.bytes": "1000"})
    await handle.wake()
    await soon(process.until(handle.id, lambda events: types(events).count("workflow.failed") == 2))
    await dies_of(process, handle.id, ORDERS, "max.message.bytes", "; then wake the workflow")
    world.cluster.make_topic(ORDERS, 1)
    await handle.wake()
    assert await soon(handle.output()) == "emitted"
    assert len(await records_of(process.log)) == 1
    assert types(await handle.history()).count("activity.completed") == 1
    await world.end()


def with_orders(patch: pytest.MonkeyPatch, state_dir: Path) -> tuple[World, Cluster]:
    """A world on the Kafka log, with its cluster, in which there is a topic for orders."""
    world = kafka_world(patch, state_dir)
    assert world.cluster is not None
    world.cluster.make_topic(ORDERS, PARTITIONS)
    return world, world.cluster


async def test_topic_that_is_deleted_between_check_and_append_keeps_nothing_else_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, cluster = with_orders(monkeypatch, tmp_path)
    process = await world.worker(to_topic, sell)
    await process.log.partitions_of(ORDERS)  # it is known from now on
    cluster.delete_topic(ORDERS)
    handle = await process.gasoline.dispatch(to_topic, ORDERS)
    await dies_of(process, handle.id, f"Make it: kafka-topics.sh --create --topic {ORDERS}; then wake the workflow")
    assert "record.emitted" not in types(await handle.history())
    cluster.make_topic(ORDERS, PARTITIONS)
    await handle.wake()
    assert await soon(handle.output()) == "emitted"
    assert len(await records_of(process.log)) == 1
    await world.end()


@pytest.mark.parametrize("closed", ["before", "before it was seen", "between look and append"])
async def test_topic_that_may_not_be_written_ends_the_run_and_keeps_nothing_else_waiting(
    closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decision 0037: permissions are as good as the topic being there. What is allowed later, a wake goes on with."""
    world, cluster = with_orders(monkeypatch, tmp_path)
    process = await world.worker(to_topic, sell)
    if closed == "between look and append":
        await process.log.partitions_of(ORDERS)  # it is known from now on
    cluster.allow(ORDERS, "READ", "DESCRIBE_CONFIGS")
    if closed == "before it was seen":
        cluster.hidden.add(ORDERS)
    handle = await process.gasoline.dispatch(to_topic, ORDERS)
    await dies_of(process, handle.id, repr(ORDERS), "--operation Write --operation DescribeConfigs")
    assert "record.emitted" not in types(await handle.history())
    cluster.hidden.clear()
    cluster.allow(ORDERS, "WRITE", "DESCRIBE_CONFIGS")
    await handle.wake()
    assert await soon(handle.output()) == "emitted"
    assert len(await records_of(process.log)) == 1
    await world.end()


async def test_topic_that_refuses_a_record_for_good_ends_the_run_and_keeps_nothing_else_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decision 0037: that a topic takes no record of this time, say, is learned by writing one, and known for a while."""
    world, cluster = with_orders(monkeypatch, tmp_path)
    cluster.refusing.add(ORDERS)
    process = await world.worker(to_topic, sell)
    handle = await process.gasoline.dispatch(to_topic, ORDERS)
    await dies_of(
        process, handle.id, repr(ORDERS), "INVALID_TIMESTAMP", "clock of this host", "; then wake the workflow"
    )
    assert "record.emitted" not in types(await handle.history())
    lost = process.node.recording.lost
    assert lost == 1, "its partition was taken again"
    other = await process.gasoline.dispatch(to_topic, ORDERS)
    await dies_of(process, other.id, "INVALID_TIMESTAMP")
    assert process.node.recording.lost == lost, "the next ones are told before anything of them is on its way"
    assert await soon((await process.gasoline.dispatch(sell, 0)).output()) == "sold"
    cluster.refusing.clear()
    await process.stop()
    process = await world.worker(to_topic)  # which has not been refused
    for stopped in (handle, other):
        again = rehandle(process, stopped, to_topic)
        await again.wake()
        assert await soon(again.output()) == "emitted"
    assert len(await records_of(process.log)) == 2
    await world.end()


async def test_what_cannot_be_recorded_is_refused_at_the_call_and_can_be_caught(world: World) -> None:
    found: list[str] = []

    def refused(call: Callable[[], Any], error: type[Exception]) -> None:
        with pytest.raises(error) as caught:
            call()
        found.append(str(caught.value))

    @workflow
    async def mistaken(ctx: WorkflowContext, n: int) -> int:
        refused(lambda: ctx.emit(ORDERS, "k", object()), NotSerializable)
        refused(lambda: ctx.emit(ORDERS, "k", float("nan")), NotSerializable)
        refused(lambda: ctx.emit(ORDERS, "k", "x" * PAYLOAD_BYTES_MAX), RecordTooLarge)
        refused(lambda: ctx.emit(ORDERS, "\x00" * (PAYLOAD_BYTES_MAX // 6), 1), RecordTooLarge)
        refused(lambda: ctx.emit(ORDERS, "\ud800", 1), ValueError)
        refused(lambda: ctx.emit(ORDERS, 7, 1), TypeError)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        refused(lambda: ctx.emit("default.events", "k", 1), TopicRefused)
        await ctx.emit(ORDERS, "k", "x" * (PAYLOAD_BYTES_MAX - 100))
        return n

    process = await world.worker(mistaken)
    handle = await process.gasoline.dispatch(mistaken, 1)
    assert await soon(handle.output()) == 1
    assert len(found) == 7
    assert types(await handle.history()).count("record.emitted") == 1
    assert len(await records_of(process.log)) == 1


# --- flow and changed code --------------------------------------------------------------------------------------------


async def test_emit_counts_as_other_steps_in_races_closures_and_loops(world: World) -> None:
    @workflow
    async def flowing(ctx: WorkflowContext, n: int) -> int:
        async def inner(ctx: WorkflowContext) -> None:
            await ctx.emit(ORDERS, "closure", 1)

        await ctx.closure(inner)
        winner, _ = await ctx.race(ctx.emit(ORDERS, "race", 2), ctx.sleep(3600))
        await ctx.catch(ctx.emit(ORDERS, "catch", 3))
        await ctx.v(2).emit(ORDERS, "v", 4)
        return winner

    process = await world.worker(flowing)
    handle = await process.gasoline.dispatch(flowing, 1)
    assert await soon(handle.output()) == 0
    assert sorted(record.key for record in await records_of(process.log)) == ["catch", "closure", "race", "v"]


async def test_emit_that_was_removed_or_goes_elsewhere_now_is_met_as_semantics_3_says(world: World) -> None:
    before = "before"

    @workflow(name="changed")
    async def first(ctx: WorkflowContext, n: int) -> str:
        await ctx.emit(ORDERS, "k", n)
        await ctx.sleep(3600)
        return before

    @workflow(name="changed")
    async def without(ctx: WorkflowContext, n: int) -> str:
        await ctx.removed("emit", ORDERS)
        await ctx.sleep(3600)
        return "removed"

    @workflow(name="changed")
    async def elsewhere(ctx: WorkflowContext, n: int) -> str:
        await ctx.emit("elsewhere", "k", n)
        await ctx.sleep(3600)
        return "elsewhere"

    process = await world.worker(first)
    handle = await process.gasoline.dispatch(first, 1)
    await soon(process.until(handle.id, lambda events: "sleep.started" in types(events)))
    await process.stop()
    process = await world.worker(elsewhere)
    await process.advance(3600)
    await soon(process.status(handle.id, "dead"))
    info = await process.gasoline.get(handle.id)
    assert info.error is not None
    assert info.error.type == "HistoryDiverged"
    assert ORDERS in info.error.message
    assert await records_of(process.log, "elsewhere") == []
    await process.stop()
    process = await world.worker(without)
    handle = process.gasoline.handle(handle.id, without)
    await handle.wake()
    assert await soon(handle.output()) == "removed"
    assert len(await records_of(process.log)) == 1


async def test_starting_over_emits_again_and_a_fork_emits_nothing_of_what_it_copies(world: World) -> None:
    process = await world.worker(sell)
    handle = await process.gasoline.dispatch(sell, 2)
    await soon(handle.output())
    forked = await handle.rerun("{4}", fork=True)  # its last activity
    await soon(forked.output())
    assert len(await records_of(process.log)) == 2
    await handle.rerun("{3}")
    await soon(handle.output())
    records = await records_of(process.log)
    assert sorted(record.key for record in records) == ["order 0", "order 1", "order 1"]
    assert len({(record.headers or {})["ce_id"] for record in records}) == 3, "each is a record of its own"
