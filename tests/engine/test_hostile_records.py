"""Records of foreign topics are anybody's: whatever they hold, and whatever a mapping does, becomes a dead letter (design §6).

A record that stopped its reader would stop it again after every restart, and with it all that the process works at.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from gasoline_es.core.ids import workflow_id_from_key
from gasoline_es.errors import LogError
from gasoline_es.log.kafka.drivers.port import Feed, Out
from gasoline_es.log.port import NewRecord, Section
from gasoline_es.pipelines import Dispatch, Incoming, Send
from tests.engine.harness import Process, World
from tests.engine.test_ingesting import (
    LETTERS,
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
