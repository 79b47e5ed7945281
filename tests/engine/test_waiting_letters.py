"""A dead letter of a command that is refused elsewhere waits in the registry until its topic can be written (0038)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from gasoline_es.core.error_info import error_info
from gasoline_es.core.ids import partition_of_slot
from gasoline_es.core.letters import WAITING, Letter, Waiting, waiting_key, waits_for
from gasoline_es.pipelines import Dispatch, Incoming, Send
from tests.engine.conftest import kafka_world
from tests.engine.harness import PATIENCE_S, Fate, Process, World, kills, soon
from tests.engine.test_hostile_records import NOBODY
from tests.engine.test_ingesting import LETTERS, TOPIC, Counted, Order, letters, make_topics, reached, takes, write

LETTER = Letter("orders.dead-letter", 1, "orders", "orders", 2, "4711", 5, "key", {"h": "v"}, b'{"a":"\xc3\xbc"}')
READER = 0
"""The partition of the topic that has the records here."""


class Elsewhere:
    """A mapping that sends a bad record to workflows that are not there, all in other partitions than the one that reads."""

    def __init__(self, process: Process) -> None:
        node = process.node
        reads = partition_of_slot(node.topics.source_slot("orders", TOPIC, READER), process.log.partition_count)
        self.ids = [one for one in NOBODY if node.index_of(one) != reads]

    def __call__(self, order: Incoming[Order]) -> Dispatch[Order] | list[Send]:
        if order.value.id == "good":
            return Dispatch(takes, order.value)
        return [Send(Counted(n=1), to=one) for one in self.ids]


def waiting(process: Process) -> int:
    return sum(len(partition.views.registry.letters) for partition in process.node.partitions.values())


async def all_there(process: Process, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(await letters(process)) < count or waiting(process):  # which append it is, is no matter
            await asyncio.sleep(0.01)


async def deals_with(process: Process) -> None:
    """Work, and ingest what is there until all of it has come to what it comes to."""
    await process.work(takes)
    await make_topics(process, TOPIC, LETTERS)
    if not await (await process.log.source(TOPIC, READER)).waiting():
        await write(process, [{"id": "bad", "n": 1}], READER)
    to_nobody = Elsewhere(process)
    async with process.gasoline.ingest(TOPIC, to_nobody, model=Order):
        await all_there(process, len(to_nobody.ids))


@pytest.mark.parametrize("any_world", ["kafka"], indirect=True)
async def test_without_their_topic_letters_wait_and_nothing_else_does(
    any_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gasoline_es.runtime.waiting_letters.AGAIN_S", 0.01)
    monkeypatch.setattr("gasoline_es.runtime.waiting_letters.REST_MAX_S", 0.02)
    process = await any_world.worker(takes)
    cluster = any_world.cluster
    assert cluster is not None
    await make_topics(process, TOPIC, LETTERS)
    to_nobody = Elsewhere(process)
    count = len(to_nobody.ids)
    assert count > 0
    async with process.gasoline.ingest(TOPIC, to_nobody, model=Order):
        await write(process, [{"id": "good", "n": 7}], READER)
        await reached(process, 1)
        cluster.delete_topic(LETTERS)
        await write(process, [{"id": "bad", "n": 1}], READER)
        async with asyncio.timeout(PATIENCE_S):
            while waiting(process) < count or "letters wait in partition" not in caplog.text:
                await asyncio.sleep(0.01)
        for number in range(20):  # in every partition
            handle = await soon(process.gasoline.dispatch(takes, Order(id=str(number), n=number)))
            assert await soon(handle.output()) == number
        assert f"for {LETTERS}, which cannot be written: there is no topic" in caplog.text
        await make_topics(process, LETTERS)
        await all_there(process, count)
    found = await letters(process)
    assert Counter(one["reason"]["type"] for one in found) == {"WorkflowNotFound": len(found)}
    assert waiting(process) == 0


@pytest.mark.parametrize("kind", ["memory", "file", "kafka"])
@pytest.mark.parametrize("fate", ["lost", "unanswered"])
async def test_whoever_is_killed_each_letter_is_there_once(fate: Fate, kind: str, tmp_path: Path) -> None:
    deaths, counts = 0, set[int]()
    with pytest.MonkeyPatch.context() as patch:

        def of_kafka(number: int) -> World:
            return kafka_world(patch, tmp_path / str(number))

        make = of_kafka if kind == "kafka" else None
        async for world, _ in kills(fate, deals_with, tmp_path if kind == "file" else None, make):
            deaths += 1
            if world.tell_death is not None:
                for process in world._processes:
                    world.tell_death(process.log.incarnation)
            process = await world.process()
            await soon(deals_with(process))
            found = [json.dumps(one, sort_keys=True) for one in await letters(process)]
            counts.add(len(found))
            assert waiting(process) == 0
    assert len(counts) == 1, f"letters were lost or doubled: {counts}"
    assert deaths >= 5  # the record, what it leads to, the letters that wait, and those that went


async def test_letters_wait_across_a_restart_that_begins_from_stored_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gasoline_es.runtime.viewing.SAVE_AFTER_S", 0.0)
    with pytest.MonkeyPatch.context() as patch:
        world = kafka_world(patch, tmp_path)
        cluster = world.cluster
        assert cluster is not None
        first = await world.worker(takes)
        await make_topics(first, TOPIC, LETTERS)
        to_nobody = Elsewhere(first)
        count = len(to_nobody.ids)
        async with first.gasoline.ingest(TOPIC, to_nobody, model=Order):
            await write(first, [{"id": "good", "n": 7}], READER)
            await reached(first, 1)
            cluster.delete_topic(LETTERS)
            await write(first, [{"id": "bad", "n": 1}], READER)
            async with asyncio.timeout(PATIENCE_S):
                while waiting(first) < count:
                    await asyncio.sleep(0.01)
        await first.stop()
        second = await world.process()
        await make_topics(second, LETTERS)
        await second.work(takes)
        await all_there(second, count)
        stood = {index: p.views.registry.letters for index, p in second.node.partitions.items()}
        assert not any(stood.values())
        await world.end()


@pytest.mark.parametrize("any_world", ["kafka"], indirect=True)
async def test_a_topic_that_refuses_what_it_is_given_is_tried_less_and_less(
    any_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try costs the partition: it is lost, and taken again."""
    monkeypatch.setattr("gasoline_es.runtime.waiting_letters.AGAIN_S", 0.01)
    monkeypatch.setattr("gasoline_es.log.kafka.others.REFUSED_S", 0.0)
    process = await any_world.worker(takes)
    cluster = any_world.cluster
    assert cluster is not None
    await make_topics(process, TOPIC, LETTERS)
    to_nobody = Elsewhere(process)
    count = len(to_nobody.ids)
    cluster.refusing.add(LETTERS)
    async with process.gasoline.ingest(TOPIC, to_nobody, model=Order):
        await write(process, [{"id": "bad", "n": 1}], READER)
        rests = process.node._letters._rests
        async with asyncio.timeout(PATIENCE_S):
            while rests.get(LETTERS, (0.0, 0.0))[1] < 0.3:
                await asyncio.sleep(0.01)
        assert process.node.recording.lost <= 16 + 2 * count
        cluster.refusing.clear()
        await all_there(process, count)
    assert process.node.failure is None


def test_what_waits_is_read_as_it_was_written() -> None:
    value = LETTER.because(error_info(ValueError("no")))
    waits = Waiting(LETTER.to, 1, "orders", "key", value)
    assert Waiting.read(waits.json()) == waits
    key = waiting_key(LETTER, "a")
    assert key.startswith(WAITING)
    assert waits_for(key) == "orders.dead-letter"
    assert key != waiting_key(LETTER, "b")
    for bad in (b"", b"[]", b"{}", b'{"to":1}', b"\xff"):
        with pytest.raises(ValueError, match=r"not a letter that waits|line 1"):
            Waiting.read(bad)


async def test_what_waits_and_is_no_letter_is_told_and_stays(world: World, caplog: pytest.LogCaptureFixture) -> None:
    process = await world.worker(takes)
    partition = process.node.partitions[0]
    key = f"{WAITING}{LETTERS}/strange"
    told: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    partition.note(key, b"nothing that reads", told.set_result)
    partition.hurry()
    await soon(told)
    async with asyncio.timeout(PATIENCE_S):
        while f"what waits under the key {key} in partition 0" not in caplog.text:
            await asyncio.sleep(0.01)
    assert list(partition.views.registry.letters) == [key]
    assert process.node.failure is None
