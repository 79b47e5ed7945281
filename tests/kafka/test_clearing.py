"""What prunings gave up is taken back key by key, so that the broker's cleaner removes it (design §8, decision 0049)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import confluent_kafka.admin as _admin
import orjson
import pytest

from gasoline_es import Gasoline
from gasoline_es.core import events as ev
from gasoline_es.core.codec import decode
from gasoline_es.core.pruning import taken_back
from gasoline_es.errors import LogError
from gasoline_es.log.copying import copy_log
from gasoline_es.log.kafka.drivers.port import Feed, In
from gasoline_es.log.port import Problem
from gasoline_es.persistence import history_reader
from gasoline_es.runtime import clearing, viewing
from projections.known import unknown
from projections.stores.port import Feed as ProjectionFeed
from projections.stores.port import Meta, position_of
from projections.views import PartitionViews
from tests.engine.conftest import kafka_world
from tests.engine.harness import Fate, Process, World, kills, soon, when
from tests.engine.test_pruning import (
    AGE_S,
    ALL,
    _answers,
    _many,
    invoice,
    ledger,
    ledger_all,
    prune,
    ran,
    told,
    worker,
)
from tests.kafka.raw import read_messages

admin: Any = _admin
PARTITIONS = 16


@pytest.fixture
async def kafka(tmp_path: Path) -> AsyncIterator[World]:
    """The Kafka log over a cluster in memory."""
    with pytest.MonkeyPatch.context() as patch:
        made = kafka_world(patch, tmp_path)
        yield made
        await made.end()


def records(world: World, kind: str = "events") -> list[In]:
    """What the brokers hold of a topic, by partition and offset."""
    assert world.cluster is not None
    with world.cluster.lock:
        return [
            entry.record
            for index in range(PARTITIONS)
            for entry in world.cluster.entries(Feed(f"default.{kind}", index))
            if entry.record is not None and entry.transaction.state == "committed"
        ]


def taken(world: World) -> Counter[str]:
    """How often which keys were taken back."""
    return Counter(one.key.decode() for one in records(world) if one.value is None and one.key is not None)


def given_up(world: World) -> set[str]:
    """The keys that the events which prune give up: all before the newest of a workflow, but for those that it keeps."""
    newest: dict[str, tuple[int, tuple[int, ...]]] = {}
    keys = set[tuple[str, int]]()
    for one in records(world):
        if one.value is not None:
            event = decode(one.value)
            keys.add((event.workflow_id, event.seq))
            if isinstance(event.data, ev.WorkflowPruned):
                newest[event.workflow_id] = max(newest.get(event.workflow_id, (0, ())), (event.seq, event.data.keeps))
    return {
        f"{workflow_id}/{seq}"
        for workflow_id, seq in keys
        if workflow_id in newest and seq < newest[workflow_id][0] and seq not in newest[workflow_id][1]
    }


async def all_taken(world: World) -> None:
    await when(lambda: taken(world).keys() >= given_up(world))


def compact(world: World) -> int:
    """Let the brokers clean all that owners write."""
    cluster = world.cluster
    assert cluster is not None
    kinds = ("events", "index", "registry", "schedules", "parked", "stored")
    return sum(cluster.compact(Feed(f"default.{kind}", index)) for kind in kinds for index in range(PARTITIONS))


def elsewhere(world: World, folder: Path) -> World:
    """The same cluster, seen from another machine, which has read nothing yet."""
    made = World(f"kafka://memory:9092/default?state_dir={folder}")
    made.clock, made.cluster, made.tell_death = world.clock, world.cluster, world.tell_death
    return made


async def test_exactly_what_was_given_up_is_taken_back_once_and_the_event_that_says_so_never(kafka: World) -> None:
    process = await worker(kafka)
    gone = await ran(process, ledger_all, "7a", key="again")
    kept = await ran(process, invoice, "7a")
    whole = await ran(process, ledger, "7a")
    await process.advance(AGE_S + 1)
    assert await prune(process) == 2
    await when(lambda: taken(kafka).total() == 4)
    assert taken(kafka) == {f"{gone.id}/1": 1, f"{gone.id}/2": 1, f"{gone.id}/3": 1, f"{kept.id}/2": 1}
    assert not any(key.startswith(whole.id) for key in taken(kafka))
    again = await ran(process, ledger_all, "7b", key="again")
    assert again.id == gone.id
    await process.advance(AGE_S + 1)
    assert await prune(process) == 1
    await when(lambda: taken(kafka).total() == 8)
    # The mark of the former life goes with the second one, and what was before it is not taken back again.
    assert {key: count for key, count in taken(kafka).items() if key.startswith(gone.id)} == {
        f"{gone.id}/{seq}": 1 for seq in range(1, 8)
    }
    assert taken(kafka).keys() == given_up(kafka)
    assert compact(kafka) > 8
    left = {(one.key or b"").decode(): decode(one.value).type for one in records(kafka) if one.value is not None}
    assert {key.rpartition("/")[2]: type_ for key, type_ in left.items() if key.startswith(gone.id)} == {
        "8": "workflow.pruned"
    }
    assert [type_ for key, type_ in left.items() if key.startswith(kept.id)] == [
        "workflow.dispatched",
        "workflow.completed",
        "workflow.pruned",
    ]


async def test_views_from_a_compacted_topic_are_those_from_before(kafka: World, tmp_path: Path) -> None:
    """Somebody who reads all of it anew, on another machine, comes to where those stand who have read all there ever was."""
    process = await worker(kafka)
    ids = await _many(process)
    await all_taken(kafka)
    before = await _answers(process.gasoline, ids)
    expected = [told(_folded(process, index), ids) for index in range(PARTITIONS)]
    await process.stop()
    assert compact(kafka) > 100
    other = elsewhere(kafka, tmp_path / "elsewhere")
    again = await other.process()
    assert await _answers(again.gasoline, ids) == before
    for index in range(PARTITIONS):
        assert told(_folded(again, index), ids) == expected[index]
    await again.work(*ALL, prune_after=AGE_S)
    assert await _answers(again.gasoline, ids) == before
    assert (await ran(again, ledger_all, "anew", key="k3")).id in ids
    await again.advance(AGE_S + 1)
    assert await prune(again) >= 1
    await all_taken(other)
    await other.end()
    # The machine that had read everything goes on as well.
    last = await worker(kafka)
    assert (await last.gasoline.counts()) == await _counts_elsewhere(kafka, tmp_path / "third")


def _folded(process: Process, index: int) -> PartitionViews:
    """A fold of all that this machine has of a partition."""
    views = PartitionViews()
    views.fold(process.log.read("default.events", index))
    return views


async def _counts_elsewhere(world: World, folder: Path) -> Any:
    other = elsewhere(world, folder)
    process = await other.process()
    counts = await process.gasoline.counts()
    await other.end()
    return counts


@pytest.mark.parametrize("fate", ["lost", "unanswered"])
async def test_killed_at_any_append_the_next_owner_takes_back_the_rest_and_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fate: Fate
) -> None:
    """design §1: how far it has come is in the append of the tombstones, so it is known as far as they are."""
    monkeypatch.setattr(clearing, "CHUNK", 2)

    async def life(process: Process) -> None:
        await process.work(*ALL, prune_after=AGE_S)
        for number in range(2):
            await ran(process, ledger_all, str(number), key=f"k{number}")
            await ran(process, invoice, str(number), key=f"h{number}")
        await process.advance(AGE_S + 1)
        await prune(process)
        await when(lambda: bool(given_up(process.world)))
        await all_taken(process.world)

    number = 0
    async for world, number in kills(fate, life, make=lambda count: kafka_world(monkeypatch, tmp_path / str(count))):
        last = await worker(world)
        await last.advance(AGE_S + 1)
        await prune(last)
        await all_taken(world)
        assert set(taken(world).values()) <= {1}, number
        assert taken(world).keys() == given_up(world), number
    assert number > 12, "also at the appends of tombstones"


async def test_what_could_not_be_recorded_is_tried_again(
    kafka: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clearing, "AGAIN_S", 0.001)
    process = await worker(kafka)
    handle = await ran(process, ledger_all, "7a")
    failed: list[LogError] = []
    follow = clearing.Clearing._append

    async def fails_once(self: clearing.Clearing, *given: Any) -> None:
        if not failed:
            failed.append(LogError("no room"))
            raise failed[0]
        await follow(self, *given)

    monkeypatch.setattr(clearing.Clearing, "_append", fails_once)
    await process.advance(AGE_S + 1)
    assert await prune(process) == 1
    await all_taken(kafka)
    assert taken(kafka) == {f"{handle.id}/{seq}": 1 for seq in (1, 2, 3)}
    assert [one.getMessage() for one in caplog.records if one.name == clearing.__name__] == [
        f"what was pruned in partition {process.node.index_of(handle.id)} is not taken back for now: no room"
    ]


async def test_a_row_of_tombstones_is_passed_by_whoever_folds(
    kafka: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Longer than what is folded at once, and the last there is: views stand behind it, here, beside and later."""
    monkeypatch.setattr(viewing, "FOLD_CHUNK", 2)
    process = await worker(kafka)
    handle = await ran(process, ledger_all, "7a")
    index = process.node.index_of(handle.id)
    reader = await kafka.process()
    assert (await reader.gasoline.get(handle.id)).status == "complete"
    await process.advance(AGE_S + 1)
    assert await prune(process) == 1
    await all_taken(kafka)
    await process.settle()
    end = process.log.end("default.events", index)
    views = process.node.partitions[index].views
    *_, last = process.log.read("default.events", index)
    assert (last.value, last.offset) == (None, views.next_offset - 1)
    assert dict(process.node.viewing.behind())[index] == end - views.next_offset <= 1, (
        "but for the end of the transaction"
    )
    assert [info async for info in reader.gasoline.list()] == []
    other = elsewhere(kafka, tmp_path / "elsewhere")
    fresh = await other.process()
    assert [info async for info in fresh.gasoline.list()] == []
    assert (await ran(process, ledger_all, "7b")).id != handle.id
    assert len([info async for info in fresh.gasoline.list()]) == 1
    await other.end()


async def test_what_is_copied_to_files_is_the_same_there(kafka: World, tmp_path: Path) -> None:
    """Decision 0040: tombstones and gaps go along."""
    process = await worker(kafka)
    ids = await _many(process)
    await all_taken(kafka)
    before = await _answers(process.gasoline, ids)
    await process.stop()
    compact(kafka)
    there = World(f"file:{tmp_path}/log")
    there.clock = kafka.clock
    await copy_log(elsewhere(kafka, tmp_path / "copies").url, there.url, partitions=PARTITIONS, clock=kafka.clock)
    process = await worker(there)
    assert await _answers(process.gasoline, ids) == before
    assert [found for found in process.log.verify() if isinstance(found, Problem)] == []
    reader = history_reader.HistoryReader(process.log)
    for index in range(PARTITIONS):
        told_of = await reader.select(index, 1, None, 10_000, frozenset())
        assert await reader.end(index) == (told_of[-1][0] if told_of else 0)
    await there.end()


async def test_a_position_whose_record_was_removed_is_known_elsewhere(kafka: World, tmp_path: Path) -> None:
    """A projection that was not kept up for a while is gone on with, wherever that is; another record is another past."""
    process = await worker(kafka)
    handle = await ran(process, ledger_all, "7a")
    index = process.node.index_of(handle.id)
    *_, last = process.log.read("default.events", index)
    stood = {ProjectionFeed("default.events", index): position_of(last)}
    meta = Meta("x", 1, process.log.log_id, "default", 1, "live")
    await process.advance(AGE_S + 1)
    assert await prune(process) == 1
    await all_taken(kafka)
    await process.stop()
    compact(kafka)
    other = elsewhere(kafka, tmp_path / "elsewhere")
    log = (await other.process()).log
    assert last.offset not in [record.offset for record in log.read("default.events", index)]
    assert unknown(log, meta, stood) is None
    for wrong in (
        stood[next(iter(stood))]._replace(offset=10_000),
        position_of(next(log.read("default.events", index))),
    ):
        changed = wrong._replace(digest="another")
        assert unknown(log, meta, {ProjectionFeed("default.events", index): changed}) is not None
    await other.end()


async def test_followers_of_histories_are_told_of_no_tombstone(kafka: World, tmp_path: Path) -> None:
    """Decisions 0034, 0045: the last number is that of an event, so whoever waits for it comes there."""
    process = await worker(kafka)
    handle = await ran(process, ledger_all, "7a")
    index = process.node.index_of(handle.id)
    await process.advance(AGE_S + 1)
    assert await prune(process) == 1
    await all_taken(kafka)
    end = process.log.end("default.events", index)
    for machine in ("here", "elsewhere"):
        if machine == "elsewhere":
            compact(kafka)
        other = elsewhere(kafka, tmp_path / machine)
        reader = history_reader.HistoryReader((await other.process()).log)
        none = history_reader.HistoryReader(process.log)
        told_of = await reader.select(index, 1, None, 10, frozenset())
        assert [one[1].seq for one in told_of] == ([1, 2, 3, 4] if machine == "here" else [4])
        assert await reader.end(index) == told_of[-1][0] < end
        assert await none.select(index, told_of[-1][0] + 1, None, 10, frozenset({"workflow.pruned"})) == []
        assert await reader.end((index + 1) % PARTITIONS) == 0
        await other.end()


async def test_where_nothing_is_pruned_it_is_noted_now_and_then_how_far_that_holds(
    kafka: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A take-over looks at what came since, not at a whole log."""
    monkeypatch.setattr(clearing, "NOTED_EVERY", 5)
    process = await worker(kafka)
    handles = [await ran(process, ledger, str(number)) for number in range(40)]
    index = process.node.index_of(handles[0].id)
    key = process.node.topics.cleared_key(index).encode()
    await when(lambda: any(one.key == key for one in records(kafka, "registry")))
    noted = [orjson.loads(one.value or b"") for one in records(kafka, "registry") if one.key == key]
    assert noted[-1]["offset"] <= process.log.end("default.events", index)
    assert taken(kafka) == {}


async def test_a_log_that_cleans_by_what_events_say_has_no_tombstones(any_world_but_kafka: World) -> None:
    process = await worker(any_world_but_kafka)
    handle = await ran(process, ledger_all, "7a")
    await process.advance(AGE_S + 1)
    assert await prune(process) == 1
    index = process.node.index_of(handle.id)
    await process.settle()
    assert all(record.value is not None for record in process.log.read("default.events", index))


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_a_brokers_cleaner_removes_what_was_given_up_and_what_is_read_anew_says_the_same(
    kafka_bootstrap: str, kafka_namespace: str, tmp_path: Path
) -> None:
    """design §8, on a real broker, by its own cleaner, which is told to come soon."""
    url = f"kafka://{kafka_bootstrap}/{kafka_namespace}?state_dir={tmp_path}"
    topic = f"{kafka_namespace}.events"
    async with Gasoline.open(f"{url}/one", partitions=1) as gasoline:
        _clean_soon(kafka_bootstrap, topic)
        async with gasoline.worker(ALL, prune_after=3600) as running:
            definitions = [ledger_all] * 5 + [invoice] * 3 + [ledger] * 2
            handles = [await gasoline.dispatch(one, str(n), key=f"k{n}") for n, one in enumerate(definitions)]
            for handle in handles:
                await soon(handle.output())
            ids = [handle.id for handle in handles]
            assert running.pruner is not None
            running.pruner._age_us, pruned = 1, 0  # once all were asked for their output
            async with asyncio.timeout(60):
                while pruned < 8:
                    pruned += await running.pruner.look()
            gone = {f"{one}/{seq}" for one in ids[:5] for seq in (1, 2, 3)} | {f"{one}/2" for one in ids[5:8]}
            marks = {f"{one}/4" for one in ids[:8]}
            before = [(await _answers(gasoline, ids))[one] for one in ids]
            assert before[:5] == [None] * 5
            async with asyncio.timeout(200):
                while (left := await asyncio.to_thread(_with_values, kafka_bootstrap, topic)) & gone:
                    # A segment that is written to is not cleaned: another one begins with what comes next.
                    await (await gasoline.dispatch(ledger, "filler")).output()
        assert left >= marks, "the events that say so stay"
        assert left >= {f"{one}/{seq}" for one in ids[8:] for seq in (1, 2, 3)}
        assert left >= {f"{one}/{seq}" for one in ids[5:8] for seq in (1, 3)}
        async with Gasoline.open(f"{url}/two", readonly=True) as anew:
            assert [(await _answers(anew, ids))[one] for one in ids] == before
            assert await anew.counts() == await gasoline.counts()


def _clean_soon(bootstrap: str, topic: str) -> None:
    """Have the broker clean a topic within moments, with its tombstones."""
    settings = {"segment.ms": "200", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0"}
    resource = admin.ConfigResource(
        admin.ConfigResource.Type.TOPIC,
        topic,
        incremental_configs=[
            admin.ConfigEntry(name, value, incremental_operation=admin.AlterConfigOpType.SET)
            for name, value in settings.items()
        ],
    )
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    for done in client.incremental_alter_configs([resource]).values():
        done.result(30)


def _with_values(bootstrap: str, topic: str) -> set[str]:
    """Return the keys of all records that a reader gets from the broker, but for tombstones."""
    return {one.key().decode() for part in read_messages(bootstrap, topic) for one in part if one.value() is not None}


@pytest.fixture(params=["memory", "file"])
async def any_world_but_kafka(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    made = World() if request.param == "memory" else World(f"file:{tmp_path}/log")
    yield made
    await made.end()


def test_what_is_taken_back_begins_where_the_former_life_was_given_up() -> None:
    assert list(taken_back(ev.WorkflowPruned("x"), 4)) == [1, 2, 3]
    assert list(taken_back(ev.WorkflowPruned("x"), 4, 2)) == [3]
    assert list(taken_back(ev.WorkflowPruned("x", first=5), 8)) == [4, 5, 6, 7], "the former mark goes, too"
    kept = ev.WorkflowPruned("x", (5, 8), ev.Remains("complete", 1, {}), first=5)
    assert list(taken_back(kept, 9)) == [4, 6, 7]
