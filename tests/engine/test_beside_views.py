"""What stands beside workflows is stored with their rows: a start folds what came since (design §7, required case B20)."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gasoline_es.core.announced import WORKER
from gasoline_es.core.stored_events import DecisionStored, EventStored, TrackingStored, embed
from gasoline_es.core.storing import Condition, Query, Store
from gasoline_es.errors import GasolineError, LogError, LogFailed, ScheduleNotFound, StoreConflict
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Record
from gasoline_es.persistence.journal import Journal, Selection, StoreIds
from gasoline_es.runtime import viewing
from projections.building import rebuild
from projections.comparing import verify
from projections.keeping import StoreKeeper
from projections.parked import ParkedView
from projections.registry import RegistryView
from projections.schedules import ScheduleView
from projections.stored import StoredView
from projections.stores.opening import open_store
from projections.views import PartitionViews
from projections.workflows import NAME, VERSION, Workflows
from tests.engine.harness import Process, World, soon, when
from tests.engine.workflows import Note, one_note

TAGS = {"order": "A17"}
FEEDS = (ScheduleView, ParkedView, StoredView, RegistryView)

new_store_id = StoreIds()


@pytest.fixture
def folded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The records that were read from the log to be folded, without those that no view is about."""
    keys: list[str] = []

    def watch(kind: Any) -> None:
        fold = kind.fold

        def counted(self: Any, records: Iterable[Record]) -> None:
            def passing() -> Iterator[Record]:
                for record in records:
                    if not record.topic.endswith(".registry") or record.key.startswith(WORKER):
                        keys.append(f"{record.topic}: {record.key}")
                    yield record

            fold(self, passing())

        monkeypatch.setattr(kind, "fold", counted)

    for kind in FEEDS:
        watch(kind)
    return keys


@pytest.fixture
async def one_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A file log, whose views are compared with a fresh fold at the end, with what was patched."""
    made = World(f"file:{tmp_path}/log")
    yield made
    await made.end()


def stored(process: Process) -> bool:
    """Whether all that this process has folded is stored."""
    views = [process.node.viewing._views[index] for index in process.node.partitions]
    feeds = [feed for one in views if isinstance(one, PartitionViews) for feed in one.feeds().values()]
    return all(feed.stored_to == feed.storable_to for feed in feeds)


async def store(process: Process, number: int) -> None:
    """Store an event, a decision, and how far somebody else was read."""
    journal = Journal(process.node)
    state, about = embed(b'{"cents":1}'), f"order:{number % 3}"
    await journal.store(
        Store(
            new_store_id(),
            "events",
            [EventStored(f"order-{number}", False, version, "paid", state) for version in (1, 2)],
            tracking=TrackingStored("shop", number + 1),
        )
    )
    await journal.store(Store(new_store_id(), "decisions", [DecisionStored("moved", (about,), state)]))


async def add(process: Process, number: int) -> None:
    gasoline = process.gasoline
    handle = await gasoline.schedule(60, one_note, None, name=f"nightly_{number}", tags={"n": str(number)})
    if number % 2:
        await handle.pause()
    await gasoline.signal(Note(text=f"{number}"), one_note, tags=TAGS | {"n": str(number)}, park=3600, id=f"s{number}")
    await store(process, number)


async def told(process: Process) -> dict[str, Any]:
    """Return all that can be asked about what stands beside workflows."""
    gasoline, journal = process.gasoline, Journal(process.node)
    schedules = [(one.name, one.status, one.next, dict(one.tags)) async for one in gasoline.schedules()]
    parked: list[tuple[str, bytes]] = []
    for index in range(process.node.log.partition_count):
        parked += [(one.id, one.signal.body) for one in (await process.node.viewing.parked(index)).live()]
    found = (
        await journal.select(lambda view: Selection("events", view.of_kinds("events", [], 1, None, 10_000)))
    ).events
    asked = Query(((("moved",), ("order:1",)),))
    return {
        "schedules": schedules,
        "parked": parked,
        "events": found,
        "decisions": await journal.look(lambda view: view.matching("decisions", asked, 0, None)),
        "tracked": await journal.look(lambda view: view.tracked("shop")),
    }


async def begun(world: World) -> Process:
    """Start a process in a namespace of one partition, as sequences need it."""
    process = await world.process(partitions=1)
    await process.work(one_note)
    return process


async def test_a_start_folds_nothing_beside_workflows_that_was_stored(one_world: World, folded: list[str]) -> None:
    process = await begun(one_world)
    for number in range(4):
        await add(process, number)
    before = await told(process)
    assert [len(before[kind]) for kind in ("schedules", "parked", "events", "decisions")] == [4, 4, 8, 1]
    await process.stop()
    folded.clear()
    again = await begun(one_world)
    assert await told(again) == before
    assert folded == []
    with pytest.raises(StoreConflict):
        await Journal(again.node).store(
            Store(new_store_id(), "events", [EventStored("order-2", False, 2, "paid", embed(b"1"))])
        )
    asked = Condition(Query(((("moved",), ("order:1",)),)), 1)
    with pytest.raises(StoreConflict):
        await Journal(again.node).store(
            Store(new_store_id(), "decisions", [DecisionStored("moved", (), embed(b"1"))], condition=asked)
        )
    await add(again, 4)
    handle = await again.gasoline.dispatch(one_note, None, tags=TAGS | {"n": "2"})
    assert await soon(handle.output()) == "2"


async def test_of_a_long_sequence_only_what_is_not_stored_is_in_memory(one_world: World) -> None:
    process = await begun(one_world)
    for number in range(20):
        await store(process, number)
    await when(lambda: stored(process))
    (views,) = process.node.viewing._views.values()
    assert isinstance(views, PartitionViews)
    assert (views.stored.unsaved, views.stored._sequences, views.stored._unsaved) == (0, {}, [])
    assert (await told(process))["events"][-1].seq == 40


async def test_a_schedule_that_was_removed_leaves_memory_and_goes_on_under_its_name(one_world: World) -> None:
    process = await begun(one_world)
    for number in range(3):
        handle = await process.gasoline.schedule(60, one_note, None, name=f"nightly_{number}")
        await handle.trigger()
        await handle.remove()
    await when(lambda: stored(process))
    (views,) = process.node.viewing._views.values()
    assert isinstance(views, PartitionViews)
    assert list(views.schedules) == []
    await _make_anew(process)
    await process.kill()
    await _make_anew(await begun(one_world))


async def _make_anew(process: Process) -> None:
    handle = process.gasoline.schedule_handle("nightly_1", one_note)
    with pytest.raises(ScheduleNotFound):
        await handle.get()
    with pytest.raises(ScheduleNotFound):
        await handle.pause()
    before = [event.type for event in await handle.history()]
    made = await process.gasoline.schedule(60, one_note, None, name="nightly_1")
    assert (await made.get()).status == "active"
    await made.remove()
    assert [event.type for event in await made.history()] == [*before, "schedule.set", "schedule.removed"]
    await when(lambda: stored(process))


@pytest.mark.parametrize("point", ["begun", "moved", "stored"])
async def test_a_process_that_dies_while_it_stores_leaves_rows_that_are_behind_or_right(
    one_world: World, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading and storing, and after: what was acknowledged is there once, whatever of it is in the store."""
    monkeypatch.setattr(viewing, "SAVE_AFTER_S", 0.01)
    monkeypatch.setattr(viewing, "SAVE_AGAIN_S", 0.01)
    process = await one_world.process(partitions=1)
    reached: list[str] = []

    class Died(BaseException):
        pass

    def reach(at: str) -> None:
        reached.append(at)
        if at == point and len(reached) > 6:
            raise Died

    to_write = StoreKeeper._to_write

    def watched(keeper: StoreKeeper) -> Any:
        generation = to_write(keeper)
        generation._reach = reach  # type: ignore[attr-defined]
        return generation

    acknowledged = 0
    with monkeypatch.context() as patch:
        patch.setattr(StoreKeeper, "_to_write", watched)
        await process.work(one_note)
        with suppress(LogFailed):
            for number in range(200):
                await add(process, number)
                acknowledged = number + 1
        await process.kill()
    assert acknowledged < 200
    again = await begun(one_world)
    found = await told(again)
    assert len({name for name, *_ in found["schedules"]}) == len(found["schedules"]) >= acknowledged
    assert len(found["parked"]) >= acknowledged
    assert [event.seq for event in found["events"]] == list(range(1, len(found["events"]) + 1))
    versions = [(event.data.originator, event.data.version) for event in found["events"]]
    assert len(set(versions)) == len(versions) >= 2 * acknowledged
    assert found["tracked"] >= acknowledged
    assert found == await _folded_anew(one_world)
    await add(again, 1_000)


def _nothing(*_: object) -> None:
    """As where there are no stored views."""


async def _folded_anew(world: World) -> dict[str, Any]:
    """Return the same as a process sees it that has no store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("projections.keeping.read_from", _nothing)
        async with world.reader() as gasoline:
            process = Process.__new__(Process)
            process.gasoline, process.node = gasoline, gasoline._node
            return await told(process)


async def test_a_reader_sees_what_the_owner_stores_and_lets_go_of_it(
    one_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewing, "UNSAVED_MAX", 5)
    owner = await begun(one_world)
    reader = await one_world.process(partitions=1)
    for number in range(12):
        await add(owner, number)
        assert (await told(reader)) == (await told(owner))
        if number % 4 == 3:
            await when(lambda: stored(owner))
    (views,) = reader.node.viewing._views.values()
    assert isinstance(views, PartitionViews)
    await told(reader)
    assert views.stored.unsaved < 12
    await owner.kill()
    await add(reader, 12)  # it takes over what it has read
    await when(lambda: stored(reader))


@pytest.mark.parametrize("damage", ["cut", "filled", "removed", "another log's", "another version's"])
async def test_a_store_that_is_of_no_use_costs_a_fold_and_nothing_else(
    one_world: World, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await begun(one_world)
    for number in range(3):
        await add(process, number)
    before = await told(process)
    await process.stop()
    link = tmp_path / "log" / "projections" / "default" / f"{NAME}.sqlite"
    path = link.parent / os.readlink(link)
    match damage:
        case "cut":
            os.truncate(path, 1_000)
        case "filled":
            path.write_bytes(b"\xff" * 8_192)
        case "removed":
            path.unlink()
        case "another version's":
            monkeypatch.setattr("projections.keeping.VERSION", VERSION + 1)
            monkeypatch.setattr(Workflows, "version", VERSION + 1)
        case _:
            other = World(f"file:{tmp_path}/other")
            stranger = await begun(other)
            await add(stranger, 7)
            await stranger.stop()
            await other.end()
            shutil.rmtree(link.parent)
            shutil.copytree(tmp_path / "other" / "projections" / "default", link.parent, symlinks=True)
    again = await begun(one_world)
    assert await told(again) == before
    await add(again, 9)


async def test_a_backup_that_was_put_back_is_folded_anew(one_world: World, tmp_path: Path) -> None:
    """The position of one topic alone tells that the log has another past."""
    process = await begun(one_world)
    await store(process, 0)
    await process.stop()
    shutil.copytree(tmp_path / "log", tmp_path / "copy", symlinks=True)
    later = await begun(one_world)
    await store(later, 1)
    await later.stop()
    for part in ("segments", "epochs", "workers", "messages"):  # all but the views
        shutil.rmtree(tmp_path / "log" / part, ignore_errors=True)
        if (tmp_path / "copy" / part).exists():
            shutil.copytree(tmp_path / "copy" / part, tmp_path / "log" / part)
    back = await begun(one_world)
    assert len((await told(back))["events"]) == 2
    await store(back, 2)
    assert [event.data.originator for event in (await told(back))["events"]] == ["order-0"] * 2 + ["order-2"] * 2


async def test_a_rebuild_beside_the_owner_and_a_store_that_fails_lose_nothing(
    one_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await begun(one_world)
    await add(process, 0)
    await when(lambda: stored(process))
    log = await open_log(one_world.url, readonly=True)
    kept = open_store(log)

    def full(*_: Any) -> None:
        raise OSError(28, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(StoreKeeper, "_write", full)
        await add(process, 1)
        assert len((await told(process))["events"]) == 4
        with suppress(GasolineError, LogError):
            await process.node.viewing._keeper.save(process.node.viewing._views)
    rebuild(log, kept, Workflows())
    await add(process, 2)
    assert len((await told(process))["events"]) == 6
    process.node.viewing._keeper._again = 0.0  # type: ignore[attr-defined]
    await when(lambda: stored(process))
    assert verify(log, kept, Workflows()).difference is None
    with kept.snapshot(NAME) as snapshot:
        assert snapshot.db.execute("SELECT name, status FROM schedules ORDER BY name").fetchall() == [
            ("nightly_0", "active"),
            ("nightly_1", "paused"),
            ("nightly_2", "active"),
        ]
        assert snapshot.db.execute("SELECT id, workflow, status FROM parked_signals ORDER BY id").fetchall() == [
            (f"s{number}", "one_note", "parked") for number in range(3)
        ]
        assert snapshot.db.execute("SELECT kind, name FROM definitions").fetchall() == [("workflow", "one_note")]
    await log.close()
