"""Records of foreign topics are anybody's: whatever they hold, and whatever a mapping does, becomes a dead letter (design §6).

A record that stopped its reader would stop it again after every restart, and with it all that the process works at.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gasoline_es import WorkflowContext, workflow
from gasoline_es.core.ids import workflow_id_from_key
from gasoline_es.errors import LogError
from gasoline_es.log.kafka.drivers.port import Feed, Out
from gasoline_es.log.port import NewRecord, Section
from gasoline_es.pipelines import Dispatch, Incoming, Send
from tests.engine.harness import PATIENCE_S, Process, World
from tests.engine.test_emitting import dies_of
from tests.engine.test_ingesting import (
    LETTERS,
    PARTITIONS,
    TOPIC,
    Counted,
    Order,
    letters,
    make_topics,
    reached,
    started,
    take,
    takes,
    until,
    write,
)
from tests.kafka.cluster_of_memory import MemoryWriter

GOOD = b'{"id":"good","n":4}'
NOBODY = [workflow_id_from_key("default", "collects", str(number)) for number in range(8)]  # of several partitions


async def write_one(process: Process, record: NewRecord) -> None:
    (outcome,) = await process.log.append([Section(0, None, [record])])
    assert not isinstance(outcome, LogError), outcome


async def becomes_a_letter(process: Process, mapping: Any, records: int = 2) -> list[dict[str, Any]]:
    """Ingest what was written and a good record behind it; return the dead letters, when all is dealt with."""
    await write_one(process, NewRecord(TOPIC, 0, "key", GOOD, 1))
    async with process.gasoline.ingest(TOPIC, mapping, model=Order):
        await reached(process, records)

        async def there() -> bool:
            return len(await letters(process)) == records - 1

        await until(process, there)
    await started(process, Counter([4]))
    assert process.node.failure is None
    return await letters(process)


def to_nobody(order: Incoming[Order]) -> Dispatch[Order] | list[Send]:
    """Send to workflows of several partitions, which are not there."""
    if order.value.id == "good":
        return take(order)
    return [Send(Counted(n=1), to=one) for one in NOBODY]


@pytest.mark.parametrize("time_us", [253_402_300_800_000_000, 2**62 * 1000, 2**63 - 1])
async def test_a_record_of_a_time_that_no_calendar_has_becomes_a_dead_letter(any_world: World, time_us: int) -> None:
    process = await any_world.worker(takes)
    if any_world.url.startswith("file") and time_us >= 2**63:
        pytest.skip("the file log cannot hold it")
    await make_topics(process, TOPIC, LETTERS)
    await write_one(process, NewRecord(TOPIC, 0, "key", b'{"id":"late","n":1}', time_us))
    (letter,) = await becomes_a_letter(process, take)
    assert letter["record"]


@pytest.mark.parametrize("what", ["key", "header", "control characters"])
async def test_a_record_whose_key_or_headers_fill_it_becomes_a_dead_letter(any_world: World, what: str) -> None:
    process = await any_world.worker(takes)
    await make_topics(process, TOPIC, LETTERS)
    record = {
        "key": NewRecord(TOPIC, 0, "k" * 900_000, b'"no order"', 1),
        "header": NewRecord(TOPIC, 0, "key", b'"no order"', 1, {"h": "v" * 900_000}),
        "control characters": NewRecord(TOPIC, 0, "\x01" * 150_000, b'"no order"', 1, {"\x1b": "\x01" * 10_000}),
    }[what]
    await write_one(process, record)
    await becomes_a_letter(process, take)


@pytest.mark.parametrize("what", ["key", "header", "value"])
async def test_a_large_record_whose_commands_are_refused_elsewhere_becomes_dead_letters(
    any_world: World, what: str
) -> None:
    process = await any_world.worker(takes)
    await make_topics(process, TOPIC, LETTERS)
    value = b'{"id":"%s","n":1}' % (b"x" * 900_000 if what == "value" else b"")
    key, headers = ("k" * 900_000 if what == "key" else "key"), {"h": "v" * (900_000 if what == "header" else 1)}
    await write_one(process, NewRecord(TOPIC, 0, key, value, 1, headers))
    await write_one(process, NewRecord(TOPIC, 0, "key", GOOD, 1))
    async with process.gasoline.ingest(TOPIC, to_nobody, model=Order):
        await reached(process, 2)

        async def there() -> bool:
            return len(await letters(process)) >= 1

        await until(process, there)
    await started(process, Counter([4]))
    assert process.node.failure is None


@pytest.mark.parametrize("any_world", ["kafka"], indirect=True)
async def test_a_header_without_a_value_is_one(any_world: World) -> None:
    process = await any_world.worker(takes)
    await make_topics(process, TOPIC, LETTERS)
    assert any_world.cluster is not None
    writer = MemoryWriter(any_world.cluster, "somebody")
    writer.fence()
    headers: Any = (("trace", None), ("h", b"1"))
    writer.commit([Out(Feed(TOPIC, 0), b"key", b'"no order"', headers, 1)])
    (letter,) = await becomes_a_letter(process, take)
    assert letter["headers"] == {"trace": "", "h": "1"}


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit])
async def test_whatever_an_async_mapping_raises_is_a_dead_letters_reason(
    any_world: World, error: type[BaseException]
) -> None:
    process = await any_world.worker(takes)
    await make_topics(process, TOPIC, LETTERS)

    async def raising(order: Incoming[Order]) -> Dispatch[Order]:
        if order.value.id == "bad":
            raise error
        return take(order)

    await write(process, [{"id": "bad", "n": 1}])
    (letter,) = await becomes_a_letter(process, raising)
    assert letter["reason"]["type"] == error.__name__


async def test_a_mapping_may_be_anything_that_gives_an_awaitable(any_world: World) -> None:
    process = await any_world.worker(takes)
    await make_topics(process, TOPIC, LETTERS)

    class Taking:
        async def __call__(self, order: Incoming[Order]) -> Dispatch[Order]:
            return take(order)

    assert await becomes_a_letter(process, Taking(), 1) == []


@pytest.mark.parametrize("any_world", ["kafka"], indirect=True)
async def test_a_foreign_topic_that_is_called_as_events_are_keeps_its_headers(any_world: World) -> None:
    process = await any_world.worker(takes)
    topic = "acme.shop.events"
    await make_topics(process, topic, LETTERS)
    seen: list[Mapping[str, str]] = []

    def noting(record: Incoming[bytes | None]) -> None:
        seen.append(record.headers)

    headers = {"content-type": "application/json", "ce_type": "sold", "ce_subject": "A-7"}
    await write_one(process, NewRecord(topic, 0, "key", b"1", 1, headers))
    async with process.gasoline.ingest(topic, noting, dead_letters=LETTERS):
        await reached(process, 1, pipeline=topic)
    assert seen == [headers]


@pytest.mark.parametrize("any_world", ["kafka"], indirect=True)
async def test_a_topic_that_was_made_anew_is_read_from_its_start_once_somebody_says_so(
    any_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gasoline_es.runtime.ingesting.AGAIN_S", 0.01)
    process = await any_world.worker(takes)
    assert any_world.cluster is not None
    await make_topics(process, TOPIC, LETTERS)

    def take_by_id(order: Incoming[Order]) -> Dispatch[Order]:
        return Dispatch(takes, order.value, id=order.value.id)

    await write(process, [{"id": f"old {n}", "n": n} for n in range(5)])
    async with process.gasoline.ingest(TOPIC, take_by_id, model=Order):
        await reached(process, 5)
    any_world.cluster.make_topic(TOPIC, PARTITIONS)
    await write(process, [{"id": "new", "n": 9}])
    async with process.gasoline.ingest(TOPIC, take_by_id, model=Order):
        async with asyncio.timeout(PATIENCE_S):
            while "the topic was made anew" not in caplog.text:  # a log record has no event
                await asyncio.sleep(0.01)
    async with process.gasoline.ingest(TOPIC, take_by_id, model=Order, past_lost=True):
        await reached(process, 6)
    await started(process, Counter([0, 1, 2, 3, 4, 9]))


VALUES = (None, b"", b"null", b"[]", b"5", b"\xff", b"[" * 20_000, b'{"epoch":"1"}', b'{"about":5}', b'{"host":5}')
KEYS = (b"", b"\xff", b"log", b"owner/abc", b"owner/0", b"owner/-1", b"worker/", b"worker/\xff", b"inbox/0", b"x/1")


@pytest.mark.parametrize("any_world", ["kafka"], indirect=True)
@pytest.mark.parametrize("topic", ["inbox", "replies", "messages", "workers"])
async def test_what_is_none_of_ours_in_a_topic_that_many_write_stops_nobody(any_world: World, topic: str) -> None:
    process = await any_world.worker(takes)
    await process.settle()
    cluster, name = any_world.cluster, f"default.{topic}"
    assert cluster is not None
    writer = MemoryWriter(cluster, "somebody")
    writer.fence()
    feeds = [Feed(name, partition) for partition in range(cluster.topics[name].info.partitions)]
    headers: Any = (("h", None),)
    writer.commit([Out(feed, key, value, headers, 2**62) for feed in feeds for key in KEYS for value in VALUES])
    for _ in range(2):  # who is there meanwhile, and who comes
        async with asyncio.timeout(PATIENCE_S):
            handle = await process.gasoline.dispatch(takes, Order(id="a", n=4))
            assert await handle.output() == 4
        assert process.node.failure is None
        await process.stop()
        process = await any_world.worker(takes)


@pytest.mark.parametrize("any_world", ["kafka"], indirect=True)
async def test_a_logs_name_becomes_no_path(any_world: World) -> None:
    process = await any_world.process()
    log_id = process.log.log_id
    await process.stop()
    assert any_world.cluster is not None
    writer = MemoryWriter(any_world.cluster, "somebody")
    writer.fence()
    workers = Feed("default.workers", 0)
    any_world.cluster.topics["default.workers"].feeds[0].clear()  # compacted: the newest is left
    writer.commit([Out(workers, b"log", b'{"log_id": "/../../%s"}' % value, (), 1) for value in (b"x", b"y")])
    process = await any_world.process()
    assert re.fullmatch("[0-9a-f]{32}", process.log.log_id)
    assert process.log.log_id != log_id


@pytest.mark.parametrize("any_world", ["kafka"], indirect=True)
@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_partitions_that_are_added_while_it_runs_are_read_from_their_start(
    any_world: World, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gasoline_es.runtime.ingesting.COUNT_AGAIN_S", 0.01)
    monkeypatch.setattr("gasoline_es.log.kafka.others.KNOWN_S", 0.01)
    process = await any_world.worker(takes)
    assert any_world.cluster is not None
    await make_topics(process, TOPIC, LETTERS)
    async with process.gasoline.ingest(TOPIC, take, model=Order, start=start):
        topic = any_world.cluster.topics[TOPIC]
        topic.info = replace(topic.info, partitions=PARTITIONS + 2)
        writer = MemoryWriter(any_world.cluster, "somebody")
        writer.fence()
        feeds = [Feed(TOPIC, PARTITIONS), Feed(TOPIC, PARTITIONS + 1)]
        writer.commit([Out(feed, b"key", GOOD, (), 1) for feed in feeds])
        await reached(process, 2)
    await started(process, Counter([4, 4]))


@pytest.mark.parametrize("any_world", ["kafka"], indirect=True)
async def test_where_dead_letters_have_no_topic_any_more_the_partition_goes_on_without_the_pipeline(
    any_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gasoline_es.runtime.ingesting.AGAIN_S", 0.01)
    process = await any_world.worker(takes)
    assert any_world.cluster is not None
    await make_topics(process, TOPIC, LETTERS)
    async with process.gasoline.ingest(TOPIC, take, model=Order):
        any_world.cluster.delete_topic(LETTERS)
        await write(process, ["no order", {"id": "good", "n": 4}])
        async with asyncio.timeout(PATIENCE_S):
            while caplog.text.count("no topic 'orders.dead-letter'") < 20:  # a log record has no event
                await asyncio.sleep(0.01)
        assert process.node.recording.lost == 1
        await make_topics(process, LETTERS)
        await reached(process, 2)
    await started(process, Counter([4]))
    assert len(await letters(process)) == 1


@workflow
async def emits(ctx: WorkflowContext, count: int) -> int:
    await ctx.emit("sales", "key", "x" * count)
    return count


@pytest.mark.parametrize("any_world", ["kafka"], indirect=True)
async def test_a_topic_that_takes_less_than_before_ends_the_run_and_not_the_process(any_world: World) -> None:
    process = await any_world.worker(emits, takes)
    assert any_world.cluster is not None
    any_world.cluster.make_topic("sales", 1)
    assert await (await process.gasoline.dispatch(emits, 10)).output() == 10  # it is known how much it takes
    topic = any_world.cluster.topics["sales"]
    topic.info = replace(topic.info, config={"max.message.bytes": "1000"})
    handle = await process.gasoline.dispatch(emits, 2_000)
    await dies_of(process, handle.id, "takes batches of 1000 bytes")
    async with asyncio.timeout(PATIENCE_S):
        assert await (await process.gasoline.dispatch(takes, Order(id="a", n=4))).output() == 4
    assert process.node.failure is None
