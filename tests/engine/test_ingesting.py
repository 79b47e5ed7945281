"""Records of other programs' topics start and signal workflows, each once, in order of each key (design §6)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from gasoline_es import Gasoline, Signal, WorkflowContext, workflow
from gasoline_es.core import events as ev
from gasoline_es.core.commands import Dispatch as DispatchCommand
from gasoline_es.core.commands import Request, decode_request, encode_request
from gasoline_es.core.ids import workflow_id_from_key
from gasoline_es.core.letters import Letter
from gasoline_es.errors import DefinitionError, LogError, NoSpace, TopicRefused
from gasoline_es.log.kafka.drivers.port import Feed, NewTopic
from gasoline_es.log.kafka.log import KafkaLog
from gasoline_es.log.port import NewRecord, Section
from gasoline_es.pipelines import Dispatch, Incoming, Send
from tests.engine.harness import PATIENCE_S, Fate, Process, World

TOPIC, LETTERS = "orders", "orders.dead-letter"
PARTITIONS = 3


class Order(BaseModel):
    id: str
    n: int


class Counted(Signal):
    n: int


@workflow
async def takes(ctx: WorkflowContext, order: Order) -> int:
    return order.n


@workflow
async def collects(ctx: WorkflowContext, count: int) -> list[int]:
    return [(await ctx.listen(Counted)).n for _ in range(count)]


def take(order: Incoming[Order]) -> Dispatch[Order]:
    return Dispatch(takes, order.value)


async def make_topics(process: Process, *names: str) -> None:
    """On Kafka a topic has to be made; elsewhere it is there."""
    log = process.log.inner
    if isinstance(log, KafkaLog):
        topics = [NewTopic(name, PARTITIONS, -1, {}) for name in names]
        await asyncio.to_thread(log._driver.admin().create, topics, 10.0)  # pyright: ignore[reportPrivateUsage]


async def write(process: Process, values: Sequence[Any], partition: int = 0, topic: str = TOPIC) -> None:
    """Write records as another program would."""
    records = [
        NewRecord(topic, partition, f"key {number % 2}", json.dumps(value).encode(), 1_000_000 + number, {"h": "1"})
        for number, value in enumerate(values)
    ]
    (outcome,) = await process.log.append([Section(partition, None, records)])
    assert not isinstance(outcome, LogError)


async def letters(process: Process) -> list[dict[str, Any]]:
    """The dead letters that are there."""
    found: list[dict[str, Any]] = []
    for partition in range(await process.log.partitions_of(LETTERS)):
        source = await process.log.source(LETTERS, partition)
        while await source.waiting() and (came := await source.poll(100)):
            found += [json.loads(named.record.value or b"") for named in came]
        await source.close()
    return found


async def until(process: Process, holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something holds, looking after each append of the process."""
    written = asyncio.Event()
    process.log.written.append(written)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            written.clear()
            if await holds():
                return
            await written.wait()


async def outputs(gasoline: Gasoline) -> Counter[Any]:
    """What the completed workflows gave."""
    return Counter(
        [
            str(await gasoline.handle(info.id, takes).output())
            async for info in gasoline.list()
            if info.status == "complete"
        ]
    )


async def reached(process: Process, count: int, *, pipeline: str = TOPIC) -> None:
    """Wait until so many records were dealt with durably in this process."""

    async def holds() -> bool:
        await asyncio.sleep(0)  # the outcome of an append comes to the pipeline after the append
        return process.node.recording.ingested[pipeline] >= count

    async with asyncio.timeout(PATIENCE_S):
        while not await holds():  # the counter has no event
            await asyncio.sleep(0.01)


async def dispatched(process: Process) -> Counter[int]:
    """How often each order was dispatched, by the events themselves."""
    found: Counter[int] = Counter()
    async for info in process.gasoline.list():
        for event in await process.gasoline.history(info.id):
            if isinstance(event.data, ev.WorkflowDispatched):
                found[json.loads(event.data.input)["n"]] += 1
    return found


async def started(process: Process, wanted: Counter[int]) -> None:
    """Wait until as many orders were dispatched as are wanted: other partitions decide what was sent to their inboxes.

    Then each is what was wanted, and no more came of what is decided by now.
    """

    async def all_there() -> bool:
        return (await dispatched(process)).total() >= wanted.total()

    await until(process, all_there)
    await process.settle()
    assert await dispatched(process) == wanted


async def test_every_record_starts_one_workflow_and_a_replay_of_the_topic_none(any_world: World) -> None:
    process = await any_world.worker(takes)
    await make_topics(process, TOPIC, LETTERS)
    wanted = Counter(dict.fromkeys(range(9), 1))
    for partition in range(PARTITIONS):
        await write(process, [{"id": "a", "n": 3 * partition + n} for n in range(3)], partition)
    async with process.gasoline.ingest(TOPIC, take, model=Order):
        await reached(process, 9)
    await started(process, wanted)
    async with process.gasoline.ingest(TOPIC, take, model=Order, name="again"):
        await reached(process, 9, pipeline="again")
    await started(process, wanted)
    assert await letters(process) == []


async def test_what_comes_while_it_runs_is_read_and_what_was_read_is_not(any_world: World) -> None:
    process = await any_world.worker(takes)
    await make_topics(process, TOPIC, LETTERS)
    seen: list[int] = []

    async def noting(order: Incoming[Order]) -> Dispatch[Order]:
        seen.append(order.value.n)
        return Dispatch(takes, order.value, id=order.value.id)

    async with process.gasoline.ingest(TOPIC, noting, model=Order):
        await write(process, [{"id": "a", "n": 0}])
        await reached(process, 1)
        await write(process, [{"id": "b", "n": 1}, {"id": "a", "n": 0}])
        await reached(process, 3)
    async with process.gasoline.ingest(TOPIC, noting, model=Order):
        await write(process, [{"id": "c", "n": 2}])
        await reached(process, 4)
    assert seen == [0, 1, 0, 2]
    await started(process, Counter([0, 1, 2]))  # `id="a"` came twice, and counts once


async def test_signals_reach_their_workflow_in_order_by_id_and_by_tags(any_world: World) -> None:
    process = await any_world.worker(collects)
    await make_topics(process, TOPIC, LETTERS)
    by_id = await process.gasoline.dispatch(collects, 20)

    def both(record: Incoming[bytes | None]) -> list[Send]:
        assert record.value is not None
        number = json.loads(record.value)["n"]
        return [Send(Counted(n=number), to=by_id.id), Send(Counted(n=number), collects, tags={"late": "1"})]

    await write(process, [{"n": n} for n in range(20)])
    async with process.gasoline.ingest(TOPIC, both):
        await reached(process, 20)
        by_tags = await process.gasoline.dispatch(collects, 20, tags={"late": "1"})
        async with asyncio.timeout(PATIENCE_S):
            assert await by_id.output() == list(range(20))
            assert await by_tags.output() == list(range(20))
    assert await letters(process) == []


async def test_what_cannot_be_done_becomes_a_dead_letter_with_its_reason_and_the_rest_goes_on(any_world: World) -> None:
    process = await any_world.worker(takes, collects)
    await make_topics(process, TOPIC, LETTERS)
    nobody = [workflow_id_from_key("default", "collects", str(n)) for n in range(8)]  # of several partitions

    def odd(order: Incoming[Order]) -> Any:
        match order.value.id:
            case "raises":
                raise RuntimeError("no such customer")
            case "nonsense":
                return 5
            case "exits":
                raise SystemExit(3)
            case "nobody":
                return Send(Counted(n=1), to=nobody[order.value.n])
            case "nothing":
                return None
            case _:
                return Dispatch(takes, order.value)

    odd_ones = [{"id": name, "n": 1} for name in ("raises", "nonsense", "exits", "nothing")]
    await write(
        process, [*odd_ones, {"id": 7}, *({"id": "nobody", "n": n} for n in range(8)), {"id": "good", "n": 4}], 1
    )
    async with process.gasoline.ingest(TOPIC, odd, model=Order):
        await reached(process, 14)

        async def all_there() -> bool:
            return len(await letters(process)) == 12

        await until(process, all_there)
    await started(process, Counter([4]))
    found = await letters(process)
    assert Counter(letter["reason"]["type"] for letter in found) == Counter(
        {"RuntimeError": 1, "DefinitionError": 1, "SystemExit": 1, "ValueError": 1, "WorkflowNotFound": 8}
    )
    raised = next(letter for letter in found if letter["reason"]["type"] == "RuntimeError")
    assert raised["reason"]["message"] == "no such customer"
    assert (raised["topic"], raised["partition"], raised["key"], raised["headers"]) == (TOPIC, 1, "key 0", {"h": "1"})
    assert json.loads(raised["value"]) == {"id": "raises", "n": 1}
    assert raised["time"].startswith("1970-01-01T00:00:01")
    assert process.node.recording.dead_letters[TOPIC] == 12


@pytest.mark.parametrize("kind", ["memory", pytest.param("file", marks=pytest.mark.soak)])
@pytest.mark.parametrize("fate", ["lost", "unanswered"])
async def test_a_kill_at_each_append_loses_and_doubles_nothing(
    fate: Fate, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gasoline_es.runtime.ingesting.BATCH_FIRST", 1)
    monkeypatch.setattr("gasoline_es.runtime.ingesting.BATCH_MAX", 1)
    number, died = 0, True
    while died:
        number += 1
        world = World(None if kind == "memory" else f"file:{tmp_path}/{number}")
        writer = await world.process()
        for partition in range(PARTITIONS):
            await write(writer, [{"id": "a", "n": 4 * partition + n} for n in range(4)], partition)
        await writer.stop()
        died = await _ingest_until_killed(world, fate, number)
        process = await world.worker(takes)
        async with process.gasoline.ingest(TOPIC, take, model=Order):

            async def all_done(process: Process = process) -> bool:
                return sum((await outputs(process.gasoline)).values()) == 12

            await until(process, all_done)
        assert await dispatched(process) == Counter(range(12)), f"killed at append {number}"
        assert await letters(process) == []
        await world.end()
    assert number > 4


async def _ingest_until_killed(world: World, fate: Literal["lost", "unanswered"] | Any, number: int) -> bool:
    process = await world.process()
    process.log.script = {number: fate}

    async def life() -> None:
        await process.work(takes)
        async with process.gasoline.ingest(TOPIC, take, model=Order):
            await reached(process, 12)

    died = await process.live(life())
    await process.kill()
    return died


async def test_a_full_disk_is_waited_for_and_nothing_is_done_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gasoline_es.runtime.ingesting.AGAIN_S", 0.01)
    process = await world.worker(takes)
    await write(process, [{"id": "a", "n": n} for n in range(5)])
    process.log.always = NoSpace
    async with process.gasoline.ingest(TOPIC, take, model=Order):
        await process.log.refused.wait()
        process.log.always = None
        await reached(process, 5)
    await started(process, Counter(range(5)))


async def test_a_reader_that_begins_at_the_end_passes_what_was_before_also_after_its_restart(any_world: World) -> None:
    process = await any_world.worker(takes)
    await make_topics(process, TOPIC, LETTERS)
    await write(process, [{"id": "old", "n": 0}])

    async def begun() -> bool:
        key = f"ingest/{TOPIC}/{TOPIC}/0"
        records = [record for p in range(16) for record in process.log.read("default.registry", p)]
        return any(record.key == key for record in records)

    async with process.gasoline.ingest(TOPIC, take, model=Order, start="latest"):
        await until(process, begun)
    await write(process, [{"id": "new", "n": 1}])
    async with process.gasoline.ingest(TOPIC, take, model=Order, start="latest"):
        await reached(process, 1)
    await started(process, Counter([1]))


async def test_the_file_log_names_a_record_alike_however_it_is_read(tmp_path: Path) -> None:
    world = World(f"file:{tmp_path}/log")
    for _ in range(2):
        process = await world.process()
        for n in range(3):
            await write(process, [{"n": n}, {"n": n}])
        await process.stop()
    process = await world.process()
    whole = [named.name for named in await (await process.log.source(TOPIC, 0)).poll(100)]
    source, one_by_one = await process.log.source(TOPIC, 0), list[str]()
    while came := await source.poll(1):
        one_by_one += [named.name for named in came]
        source = await process.log.source(TOPIC, 0, source.position)
    assert len(set(whole)) == 12
    assert one_by_one == whole
    await world.end()


async def test_topics_that_are_not_there_are_said_at_the_start(any_world: World) -> None:
    process = await any_world.worker(takes)
    if isinstance(process.log.inner, KafkaLog):
        with pytest.raises(
            TopicRefused, match=r"no topic 'orders' in the cluster.*kafka-topics.sh --create --topic orders$"
        ):
            await process.gasoline.ingest(TOPIC, take, model=Order).__aenter__()
        await make_topics(process, TOPIC)
        with pytest.raises(TopicRefused, match=r"no topic 'orders\.dead-letter' in the cluster"):
            await process.gasoline.ingest(TOPIC, take, model=Order).__aenter__()
    for options in ({"dead_letters": TOPIC}, {"name": "a/b"}, {"start": "first"}, {"dead_letters": "default.x"}):
        with pytest.raises(DefinitionError):
            process.gasoline.ingest(TOPIC, take, model=Order, **options)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="engine's own"):
        process.gasoline.ingest("default.events", take, model=Order)


@pytest.mark.parametrize("any_world", ["kafka"], indirect=True)
async def test_a_topic_needs_no_more_than_reading_and_its_dead_letters_no_more_than_writing(any_world: World) -> None:
    """A source may take smaller records than are emitted: nothing is written there."""
    process = await any_world.worker(takes)
    cluster = any_world.cluster
    assert cluster is not None
    cluster.make_topic(TOPIC, PARTITIONS, **{"max.message.bytes": "1000"})
    cluster.make_topic(LETTERS, 1)
    await write(process, [{"id": "a", "n": 0}])
    cluster.allow(TOPIC, "READ")
    cluster.allow(LETTERS, "WRITE", "DESCRIBE_CONFIGS")
    async with process.gasoline.ingest(TOPIC, take, model=Order):
        await reached(process, 1)
    cluster.make_topic("closed", PARTITIONS)
    cluster.allow("closed", "WRITE")
    with pytest.raises(TopicRefused, match=r"not let this process read topic 'closed'.*--operation Read"):
        await process.gasoline.ingest("closed", take, model=Order).__aenter__()


@pytest.mark.parametrize("any_world", ["kafka"], indirect=True)
async def test_dead_letters_that_may_no_longer_be_written_keep_only_the_pipeline_waiting(
    any_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gasoline_es.runtime.ingesting.AGAIN_S", 0.01)
    process = await any_world.worker(takes)
    cluster = any_world.cluster
    assert cluster is not None
    await make_topics(process, TOPIC, LETTERS)
    async with process.gasoline.ingest(TOPIC, take, model=Order):
        await write(process, [{"id": "a", "n": 0}])
        await reached(process, 1)
        cluster.allow(LETTERS, "READ")
        await write(process, ["no order"])
        async with asyncio.timeout(PATIENCE_S):
            while "pipeline orders cannot go on in orders[0]" not in caplog.text:  # a log record has no event
                await asyncio.sleep(0.01)
        other = await process.gasoline.dispatch(takes, Order(id="b", n=1))
        async with asyncio.timeout(PATIENCE_S):
            assert await other.output() == 1
        cluster.allow(LETTERS, "READ", "WRITE")
        async with asyncio.timeout(PATIENCE_S):
            while len(await letters(process)) != 1:
                await asyncio.sleep(0.01)


def test_a_letter_goes_along_with_its_command_and_comes_back_alike() -> None:
    command = DispatchCommand(workflow_id_from_key("default", "takes", "k"), "takes", b"1", key="k")
    for value in (b'{"a":1}', None, b"\xff\x00", "ü".encode()):
        letter = Letter("to", 1, "p", "t", 2, "4711", 5, "key", {"h": "v"}, value)
        request = Request("", "", command, letter)
        assert decode_request(encode_request(request)) == request
    long = Letter("to", 1, "p", "t", 2, "4711", 5, "key", {}, b"x" * 900_000).fitting()
    assert (long.value, long.value_omitted) == (None, True)


def test_a_letter_that_cannot_be_read_is_refused() -> None:
    command = DispatchCommand(workflow_id_from_key("default", "takes", "k"), "takes", b"1", key="k")
    raw = json.loads(encode_request(Request("", "", command, Letter("to", 1, "p", "t", 2, "1", 5, "k", {}, b"x"))))
    for name, bad in (("to", 5), ("partition", -1), ("headers", {"h": 1}), ("key", None)):
        broken = raw | {"letter": raw["letter"] | {name: bad}}
        with pytest.raises(ValueError, match="not a request"):
            decode_request(json.dumps(broken).encode())


@pytest.mark.parametrize("any_world", ["kafka"], indirect=True)
async def test_what_retention_has_passed_is_an_error_until_somebody_decides(
    any_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process = await any_world.worker(takes)
    log = process.log.inner
    assert isinstance(log, KafkaLog)
    monkeypatch.setattr("gasoline_es.runtime.ingesting.AGAIN_S", 0.01)
    await make_topics(process, TOPIC, LETTERS)
    await write(process, [{"id": "a", "n": 0}])
    async with process.gasoline.ingest(TOPIC, take, model=Order):
        await reached(process, 1)
    await write(process, [{"id": "b", "n": 1}, {"id": "c", "n": 2}])
    end = (await log.source(TOPIC, 0)).position
    source = await log.source(TOPIC, 0)
    while await source.poll(1):
        end = source.position
    await asyncio.to_thread(log._driver.admin().delete_before, {Feed(TOPIC, 0): end["offset"] - 1}, 10.0)  # pyright: ignore[reportPrivateUsage]
    async with process.gasoline.ingest(TOPIC, take, model=Order):
        async with asyncio.timeout(PATIENCE_S):
            while "offsets before it are gone" not in caplog.text:  # a log record has no event
                await asyncio.sleep(0.01)
    await started(process, Counter([0]))
    async with process.gasoline.ingest(TOPIC, take, model=Order, past_lost=True):
        await write(process, [{"id": "d", "n": 3}])
        async with asyncio.timeout(PATIENCE_S):
            while (await dispatched(process))[3] == 0:
                await asyncio.sleep(0.01)
    assert 0 in await dispatched(process)
