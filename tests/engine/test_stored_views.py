"""Views are stored: a start folds what came since, whoever was killed where (design §7, required case B20)."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gasoline_es import Gasoline
from gasoline_es.core.filters import Filters
from gasoline_es.errors import LogCorrupt, LogFailed
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Log, Record
from gasoline_es.runtime import viewing
from gasoline_es.runtime.batch import Batch
from projections.building import rebuild
from projections.comparing import verify
from projections.keeping import StoreKeeper, read_from
from projections.stores.opening import open_store
from projections.stores.port import Meta
from projections.stores.sqlite import SqliteStore
from projections.views import PartitionViews
from projections.workflow_table import WorkflowTable
from projections.workflows import NAME, VERSION, Workflows
from tests.engine.harness import Process, ScriptedLog, World, kept_views, soon, when
from tests.engine.programs import ten_steps
from tests.engine.workflows import Note, notes

EVENTS = "default.events"
NEWER = VERSION + 1
MESSAGE = "the views could not be stored; trying again: OperationalError('database or disk is full')"


@pytest.fixture
def folded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets of the events that were read from the log to be folded."""
    offsets: list[int] = []
    fold = PartitionViews.fold

    def counted(self: PartitionViews, records: Iterator[Record]) -> None:
        def passing() -> Iterator[Record]:
            for record in records:
                assert record.offset is not None
                offsets.append(record.offset)
                yield record

        fold(self, passing())

    monkeypatch.setattr(PartitionViews, "fold", counted)
    return offsets


async def run_some(process: Process, count: int) -> list[str]:
    handles = [await process.gasoline.dispatch(ten_steps, number) for number in range(count)]
    assert [await soon(handle.output()) for handle in handles] == [number + 10 for number in range(count)]
    return [handle.id for handle in handles]


def stored(process: Process) -> bool:
    """Whether all that this process has folded is stored."""
    views = [process.node.viewing._views[index] for index in process.node.partitions]
    return all(one.stored_to == one.next_offset for one in views if isinstance(one, PartitionViews))


async def test_a_start_folds_nothing_that_was_stored(file_world: World, folded: list[int]) -> None:
    process = await file_world.worker(ten_steps, notes)
    ids = await run_some(process, 20)
    waiting = await process.gasoline.dispatch(notes, 2)
    await process.evict()
    await process.stop()
    folded.clear()
    again = await file_world.worker(ten_steps, notes)
    assert {one.id async for one in again.gasoline.list()} == {*ids, waiting.id}
    for number, workflow_id in enumerate(ids):
        handle = again.gasoline.handle(workflow_id, ten_steps)
        assert await handle.output() == number + 10
        assert len(await handle.history()) == 12
    for _ in range(2):
        await again.gasoline.signal(Note(text="on"), to=waiting.id)
    assert await soon(again.gasoline.handle(waiting.id, notes).output()) == ["on", "on"]
    assert folded == []


async def test_what_is_over_is_not_in_memory(file_world: World) -> None:
    """design §7: memory does not grow with the age of the log."""
    process = await file_world.worker(ten_steps, notes)
    waiting = await process.gasoline.dispatch(notes, 1)
    await run_some(process, 30)
    await when(lambda: stored(process))
    views = [one for one in process.node.viewing._views.values() if isinstance(one, PartitionViews)]
    assert [one.id for some in views for one in some.in_memory()] == [waiting.id]
    assert len([one async for one in process.gasoline.list(name="ten_steps", status="complete")]) == 30


async def test_a_key_that_was_used_long_ago_is_known(file_world: World) -> None:
    """design §5: the same key gives the existing workflow, complete or not; another input is an error."""
    process = await file_world.worker(ten_steps)
    handle = await process.gasoline.dispatch(ten_steps, 1, key="order 1")
    assert await soon(handle.output()) == 11
    await when(lambda: stored(process))
    again = await process.gasoline.dispatch(ten_steps, 1, key="order 1")
    assert again.id == handle.id
    with pytest.raises(Exception, match="another input"):
        await process.gasoline.dispatch(ten_steps, 2, key="order 1")


@pytest.mark.parametrize("point", ["begun", "moved", "stored"])
async def test_a_process_that_dies_while_it_stores_leaves_views_that_are_behind_or_right(
    file_world: World, point: str, monkeypatch: pytest.MonkeyPatch, folded: list[int]
) -> None:
    """Between reading and storing: the next start folds on from where the store stands, and counts nothing twice."""
    process = await file_world.process()
    reached: list[str] = []

    class Died(BaseException):
        pass

    def reach(at: str) -> None:
        reached.append(at)
        if at == point and len(reached) > 3:
            raise Died

    to_write = StoreKeeper._to_write

    def watched(keeper: StoreKeeper) -> Any:
        generation = to_write(keeper)
        generation._reach = reach  # type: ignore[attr-defined]
        return generation

    with monkeypatch.context() as patch:
        patch.setattr(StoreKeeper, "_to_write", watched)
        await process.work(ten_steps)
        with suppress(LogFailed):
            for number in range(100):
                await process.gasoline.dispatch(ten_steps, number)
        await process.kill()
    assert len(reached) > 3
    again = await file_world.worker(ten_steps)
    outputs = [await soon(again.gasoline.handle(one.id, ten_steps).output()) async for one in again.gasoline.list()]
    assert sorted(outputs) == [number + 10 for number in range(len(outputs))]
    tally = [again.node.viewing._views[index].tally() for index in again.node.partitions]
    assert sum(one.standing.get(("ten_steps", "complete"), 0) for one in tally) == len(outputs)
    assert sum(count for one in tally for count in one.standing.values()) == len(outputs)


async def test_a_rebuild_under_a_running_worker_counts_each_event_once(file_world: World) -> None:
    """required.md B20: a swap refuses the writes of the older generation; the worker goes on in the new one."""
    process = await file_world.worker(ten_steps, notes)
    keeper = process.node.viewing._keeper
    assert isinstance(keeper, StoreKeeper)
    waiting = await process.gasoline.dispatch(notes, 1)
    await run_some(process, 5)
    log = await open_log(file_world.url, readonly=True)
    store = open_store(log)
    for round_number in range(3):
        rebuild(log, store, Workflows())  # the worker has a turn in the middle of none of it, but holds its own views
        await run_some(process, 5)
        await when(lambda: stored(process))
        assert verify(log, store, Workflows()).difference is None
        assert keeper._reading.meta.generation == round_number + 2
    assert len([one async for one in process.gasoline.list()]) == 21
    with store.snapshot(NAME) as snapshot:
        counts = dict(snapshot.db.execute("SELECT name || ' ' || status, count FROM counts").fetchall())
    assert counts == {"ten_steps complete": 20, "notes sleeping": 1} or counts == {
        "ten_steps complete": 20,
        "notes running": 1,
    }
    await waiting.signal(Note(text="end"))
    assert await soon(waiting.output()) == ["end"]
    await log.close()


async def test_views_of_a_log_that_was_put_back_from_a_copy_are_folded_anew(tmp_path: Path) -> None:
    """design §7: a position that the log does not know."""
    world = World(f"file:{tmp_path}/log")
    process = await world.worker(ten_steps)
    await run_some(process, 3)
    await process.stop()
    shutil.copytree(tmp_path / "log", tmp_path / "copy", symlinks=True)
    later = await world.worker(ten_steps)
    await run_some(later, 3)
    await later.stop()
    for part in ("segments", "epochs", "workers", "messages"):  # all but the views
        shutil.rmtree(tmp_path / "log" / part, ignore_errors=True)
        if (tmp_path / "copy" / part).exists():
            shutil.copytree(tmp_path / "copy" / part, tmp_path / "log" / part)
    back = await world.worker(ten_steps)
    assert len([one async for one in back.gasoline.list()]) == 3
    await run_some(back, 2)
    assert len([one async for one in back.gasoline.list()]) == 5
    await world.end()


@pytest.mark.parametrize("damage", ["cut", "filled", "removed", "replaced"])
async def test_a_damaged_file_of_views_costs_a_fold_and_nothing_else(tmp_path: Path, damage: str) -> None:
    world = World(f"file:{tmp_path}/log")
    process = await world.worker(ten_steps)
    ids = await run_some(process, 3)
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
        case _:
            link.unlink()
            link.write_bytes(b"")
    again = await world.worker(ten_steps)
    assert {one.id async for one in again.gasoline.list()} == set(ids)
    await run_some(again, 1)
    await world.end()


async def test_a_store_that_fails_costs_no_workflow_anything(
    file_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk, say: what is over stays in memory; once there is space, it is stored."""
    process = await file_world.worker(ten_steps)

    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(WorkflowTable, "write", full)
        await run_some(process, 5)
        await when(lambda: "could not be stored" in caplog.text)
        assert not stored(process)
        assert [record.message for record in caplog.records].count(MESSAGE) == 1
    await run_some(process, 1)
    await when(lambda: stored(process))
    assert len([one async for one in process.gasoline.list()]) == 6


async def test_a_partition_that_another_process_has_worked_on_is_loaded_and_not_folded(
    file_world: World, folded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewing, "LOAD_RATHER_THAN_FOLD", 0)
    first = await file_world.worker(ten_steps)
    other = await file_world.process()
    assert [one async for one in other.gasoline.list()] == []
    await run_some(first, 30)
    await first.stop()
    folded.clear()
    await other.work(ten_steps)
    await run_some(other, 16)
    assert folded == []
    assert len([one async for one in other.gasoline.list()]) == 46


async def test_a_reader_lets_go_of_what_the_owner_has_stored(
    file_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewing, "UNSAVED_MAX", 10)
    monkeypatch.setattr(viewing, "LET_GO_AGAIN_S", 0.0)
    worker = await file_world.worker(ten_steps)
    reader = await file_world.process()
    for _ in range(6):
        await run_some(worker, 20)
        await when(lambda: stored(worker))
        assert len([one async for one in reader.gasoline.list()]) % 20 == 0
    views = [one for one in reader.node.viewing._views.values() if isinstance(one, PartitionViews)]
    assert sum(one.unsaved for one in views) < 10, "in all partitions together"
    assert len([one async for one in reader.gasoline.list()]) == 120


async def test_another_version_of_the_rows_builds_its_own_and_the_old_ones_are_read_meanwhile(
    file_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """During a deploy: the process of the older version keeps what ends in memory, and loses nothing."""
    old = await file_world.worker(ten_steps)
    await run_some(old, 20)
    await when(lambda: stored(old))
    monkeypatch.setattr("projections.keeping.VERSION", NEWER)
    log = ScriptedLog(await open_log(file_world.url))  # type: ignore[arg-type]
    keeper = kept_views(log)
    assert isinstance(keeper, StoreKeeper)
    assert keeper._reading.meta.version == NEWER
    with open_store(log.inner).snapshot(NAME) as snapshot:
        assert snapshot.meta.version == VERSION, "until the new rows have caught up"
    views = {index: keeper.views(index, None) for index in range(16)}
    for index, one in views.items():
        one.fold(log.read(EVENTS, index))
    await keeper.save(views)
    with open_store(log.inner).snapshot(NAME) as snapshot:
        assert snapshot.meta.version == NEWER
    monkeypatch.setattr("projections.keeping.VERSION", VERSION)
    await run_some(old, 20)
    await when(lambda: "another version of this program" in caplog.text)
    assert len([one async for one in old.gasoline.list()]) == 40
    await run_some(old, 20)
    assert len([one async for one in old.gasoline.list()]) == 60
    await keeper.close()
    await log.close()
    await old.kill()
    open_store(log.inner).discard(NAME)  # of a version that there is not


async def test_what_takes_long_to_store_is_stored_seldom(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large row that changes all the time, of a workflow that loops over its signals: a tenth of the time is for storing."""
    process = await world.process()

    class Clocked:
        """What the node asks of its event loop here."""

        now_s = takes_s = 0.0
        delays: ClassVar[list[float]] = []

        def time(self) -> float:
            return self.now_s

        def call_later(self, delay_s: float, _: Callable[[], None]) -> None:
            self.delays.append(delay_s)

    clocked = Clocked()

    async def save(_: object) -> None:
        clocked.now_s += clocked.takes_s

    monkeypatch.setattr(viewing, "SAVE_AFTER_S", 1.0)
    monkeypatch.setattr(process.node, "loop", clocked)
    monkeypatch.setattr(process.node.viewing._keeper, "save", save)
    monkeypatch.setattr(process.node.viewing._keeper, "keeps", True)
    for clocked.takes_s in (0.0, 0.05, 0.3, 60.0, 0.0):
        await process.node.viewing._save()
        process.node.changed(Batch())
    assert clocked.delays == pytest.approx([1.0, 1.0, 3.0, viewing.SAVE_REST_MAX_S, 1.0])


async def test_nothing_of_the_store_is_opened_where_the_event_loop_runs(
    file_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that is locked holds a thread up then, and nobody else: loading, looking for another generation, giving up."""
    monkeypatch.setattr(viewing, "UNSAVED_MAX", 1)
    monkeypatch.setattr(viewing, "LET_GO_AGAIN_S", 0.0)
    worker = await file_world.worker(ten_steps)
    reader, taker = await file_world.process(), await file_world.process()
    opened: dict[str, set[bool]] = {}

    def watch(verb: str) -> None:
        deed = getattr(SqliteStore, verb)

        def watched(store: SqliteStore, *given: Any, **named: Any) -> Any:
            opened.setdefault(verb, set()).add(threading.current_thread() is threading.main_thread())
            return deed(store, *given, **named)

        monkeypatch.setattr(SqliteStore, verb, watched)

    for verb in ("current", "again", "create", "discard", "building", "swap"):
        watch(verb)
    for process in (reader, taker):
        assert [one async for one in process.gasoline.list()] == []
    await run_some(worker, 20)
    await when(lambda: stored(worker))
    assert len([one async for one in reader.gasoline.list()]) == 20
    assert len([one async for one in reader.gasoline.list()]) == 20
    await worker.stop()
    await taker.work(ten_steps)
    await run_some(taker, 16)
    keeper = taker.node.viewing._keeper
    assert isinstance(keeper, StoreKeeper)
    monkeypatch.setattr("projections.keeping.is_damage", bool)
    assert "cannot be read" in str(keeper._unreadable(sqlite3.DatabaseError("injected")))
    await when(lambda: "discard" in opened)
    assert set().union(*opened.values()) == {False}, opened
    assert opened.keys() >= {"current", "again", "discard"}


async def test_others_have_turns_while_many_rows_are_loaded(file_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many workflows sleep in a partition, a take-over of it does not hold the event loop up."""
    first = await file_world.worker(ten_steps)
    await run_some(first, 20)
    await first.stop()
    process = await file_world.process()
    began, go_on = threading.Event(), threading.Event()
    going_on = WorkflowTable.going_on

    def slowly(table: WorkflowTable, partition: int) -> Any:
        began.set()
        assert go_on.wait(5), "the event loop stands still"
        return going_on(table, partition)

    monkeypatch.setattr(WorkflowTable, "going_on", slowly)
    taking = [asyncio.ensure_future(process.node.own(index)) for index in range(2)]
    listing = asyncio.ensure_future(process.gasoline.counts())
    await when(began.is_set)
    assert not any(one.done() for one in (*taking, listing))
    go_on.set()
    assert all([await soon(one) for one in taking])
    assert await soon(listing) == {"ten_steps": {"complete": 20}}


async def test_rows_that_are_loaded_while_another_generation_takes_their_place_are_loaded_again(
    file_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await file_world.worker(ten_steps)
    await run_some(first, 20)
    await first.stop()
    process = await file_world.process()
    keeper = process.node.viewing._keeper
    assert isinstance(keeper, StoreKeeper)
    log = await open_log(file_world.url, readonly=True)
    load, loads = keeper._load_again, list[int]()

    def swapped(meta: Meta, index: int, before: PartitionViews | None) -> PartitionViews:
        loads.append(meta.generation)
        views = load(meta, index, before)
        if len(loads) == 1:
            rebuild(log, open_store(log), Workflows())
            asyncio.run_coroutine_threadsafe(keeper.stands(0), process.node.loop).result(20)
        return views

    monkeypatch.setattr(keeper, "_load_again", swapped)
    assert await soon(process.gasoline.counts()) == {"ten_steps": {"complete": 20}}
    assert loads[:2] == [1, 2]
    assert len(loads) == 17
    await log.close()


def current_version(log: Log) -> int:
    with open_store(log).snapshot(NAME) as snapshot:
        return snapshot.meta.version


async def test_a_process_of_an_older_version_that_starts_late_leaves_the_newer_rows_alone(
    file_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """decision 0033: what newer code has built stays; the older process has its views in memory, and loses nothing."""
    monkeypatch.setattr("projections.keeping.VERSION", NEWER)
    new = await file_world.worker(ten_steps)
    await run_some(new, 20)
    await when(lambda: stored(new))
    monkeypatch.setattr("projections.keeping.VERSION", VERSION)
    async with Gasoline.open(file_world.url) as old:
        assert "a newer version of this program keeps them" in caplog.text
        assert not old._node.viewing._keeper.keeps
        assert len([one async for one in old.list()]) == 20
    assert [info.meta.version for info in open_store(new.log.inner).generations(NAME)] == [NEWER], "nothing is built"
    monkeypatch.setattr("projections.keeping.VERSION", NEWER)
    await run_some(new, 20)
    await when(lambda: stored(new))
    assert new.node.viewing._keeper.keeps
    assert current_version(new.log.inner) == NEWER
    await new.kill()
    open_store(new.log.inner).discard(NAME)  # of a version that there is not


async def test_rows_that_catch_up_after_newer_ones_do_not_take_their_place(
    file_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process = await file_world.worker(ten_steps)
    await run_some(process, 20)
    await when(lambda: stored(process))
    keepers: dict[int, tuple[ScriptedLog, StoreKeeper]] = {}
    for version in (NEWER + 1, NEWER):
        monkeypatch.setattr("projections.keeping.VERSION", version)
        log = ScriptedLog(await open_log(file_world.url))  # type: ignore[arg-type]
        keeper = kept_views(log)
        assert isinstance(keeper, StoreKeeper)
        keepers[version] = log, keeper
    for version in (NEWER + 1, NEWER):
        monkeypatch.setattr("projections.keeping.VERSION", version)
        log, keeper = keepers[version]
        views = {index: keeper.views(index, None) for index in range(16)}
        for index, one in views.items():
            one.fold(log.read(EVENTS, index))
        await keeper.save(views)
        assert current_version(log.inner) == NEWER + 1
        assert keeper.keeps is (version > NEWER)
        assert sum(len(list(one.matching(Filters()))) for one in views.values()) == 20
    assert "another version of this program" in caplog.text
    for log, keeper in keepers.values():
        await keeper.close()
        await log.close()
    await process.kill()
    open_store(process.log.inner).discard(NAME)


async def test_what_a_reader_cannot_check_is_not_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file:{tmp_path}/log"
    async with Gasoline.open(url) as gasoline, gasoline.worker([ten_steps]):
        assert await soon((await gasoline.dispatch(ten_steps, 1)).output()) == 11

    def damaged(*_: Any) -> str | None:
        raise LogCorrupt("injected")

    def open_files() -> int:
        return sum(
            "projections" in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)
        )

    monkeypatch.setattr("projections.keeping.unknown_so_far", damaged)
    log = await open_log(url, readonly=True)
    before = open_files()
    store = open_store(log)
    assert read_from(store, log) is None
    assert open_files() == before
    store.close()
    await log.close()


def _is_open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


async def test_the_store_of_another_log_is_not_relied_on(tmp_path: Path) -> None:
    async with Gasoline.open(f"file:{tmp_path}/one") as gasoline, gasoline.worker([ten_steps]):
        assert await soon((await gasoline.dispatch(ten_steps, 1)).output()) == 11
    async with Gasoline.open(f"file:{tmp_path}/two") as gasoline:
        pass
    shutil.rmtree(tmp_path / "two" / "projections")
    shutil.copytree(tmp_path / "one" / "projections", tmp_path / "two" / "projections", symlinks=True)
    async with Gasoline.open(f"file:{tmp_path}/two") as gasoline:
        assert [one async for one in gasoline.list()] == []
