"""What the stored views hold whatever becomes of their store, and of whoever else has it open (design §7, 0031, 0032)."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from portalocker.constants import LockFlags
from portalocker.portalocker import FlockLocker

from gasoline_es import ActivityContext, Gasoline, WorkflowContext, activity, workflow
from gasoline_es.errors import LogCorrupt, LogFailed
from gasoline_es.log.file.log import FileLog
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Log
from projections.building import rebuild
from projections.comparing import verify
from projections.keeping import StoreKeeper, keep_in
from projections.stores import sqlite, sqlite_connection
from projections.stores.opening import open_store
from projections.stores.sqlite_connection import StoreConnection
from projections.workflow_table import WorkflowTable
from projections.workflows import NAME, Workflows
from tests.engine.harness import Process, World, soon, when
from tests.engine.programs import ten_steps
from tests.engine.test_stored_views import EVENTS, run_some, stored
from tests.engine.workflows import Note


class _Code:
    """What the code of today does."""

    failing = False


@activity
async def echo(ctx: ActivityContext, number: int) -> int:
    return number


@workflow
async def one_step(ctx: WorkflowContext, number: int) -> int:
    done = await ctx.activity(echo, number)
    if _Code.failing:
        raise ValueError("the code of today fails")
    return done


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A file log and a virtual clock. Nothing is compared at the end: what is stored is wrong in these tests."""
    made = World(f"file:{tmp_path}/log")
    yield made
    for process in made._processes:
        await process.kill()


async def _listed(process: Process) -> int:
    return len([one async for one in process.gasoline.list()])


async def _difference(world: World) -> object:
    log = await open_log(world.url, readonly=True)
    try:
        return verify(log, open_store(log), Workflows()).difference
    finally:
        await log.close()


async def _begin_anew(world: World) -> Process:
    """What any process does that finds the stored views unusable as it opens the log."""
    log = await open_log(world.url, readonly=True)
    open_store(log).discard(NAME)
    await log.close()
    return await world.process()


async def test_no_workflow_is_lost_where_another_process_begins_the_views_anew_beside_a_worker(world: World) -> None:
    """0031: "The store may lag behind, never lie"."""
    worker = await world.worker(ten_steps)
    await run_some(worker, 40)
    await when(lambda: stored(worker))
    await _begin_anew(world)
    await run_some(worker, 40)
    await when(lambda: stored(worker))
    assert await _difference(world) is None
    assert await _listed(worker) == 80
    assert await _listed(await world.process()) == 80


async def test_a_key_is_not_dispatched_twice_where_another_process_begins_the_views_anew(world: World) -> None:
    """design §5: the same key gives the existing workflow, complete or not. Money is charged twice here."""
    worker = await world.worker(ten_steps)
    first = await worker.gasoline.dispatch(ten_steps, 1, key="order 1")
    assert await soon(first.output()) == 11
    await when(lambda: stored(worker))
    await _begin_anew(world)
    await run_some(worker, 40)  # in each partition something is stored
    await when(lambda: stored(worker))
    again = await worker.gasoline.dispatch(ten_steps, 1, key="order 1")
    assert await soon(again.output()) == 11
    log = await open_log(world.url, readonly=True)
    keys = [record.key for record in log.read(EVENTS, worker.node.index_of(first.id)) if first.id in record.key]
    await log.close()
    assert max(Counter(keys).values()) == 1, "events were recorded twice"


async def test_an_opening_beside_a_take_over_leaves_the_views_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0033: "While a partition is being taken over its end is not known; then it is waited for"."""
    worker = await world.worker(ten_steps)
    await run_some(worker, 20)
    await when(lambda: stored(worker))
    log = await open_log(world.url)
    asked: list[int] = []

    def undecided(self: Log, topic: str, partition: int) -> bool:
        asked.append(partition)
        return asked.count(partition) > 1  # a taker has its epoch since the first look, and no begin yet

    def end(self: Log, topic: str, partition: int) -> int:
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(FileLog, "undecided", undecided)
        patch.setattr(FileLog, "end", end)
        keeper = keep_in(open_store(log), log)
    generation = keeper._reading.meta.generation
    await keeper.close()
    await log.close()
    assert generation == 1, "views that are sound were thrown away beside a running worker"


@pytest.mark.parametrize("error", ["unable to open database file", "database is locked", "database or disk is full"])
async def test_a_process_that_cannot_open_the_views_leaves_them_to_others(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """No file descriptor left, another user's file, a frozen process that holds the lock: nothing of it says that they lie."""
    worker = await world.worker(ten_steps)
    await run_some(worker, 20)
    await when(lambda: stored(worker))
    connect = sqlite_connection.connect
    failed: list[str] = []

    def failing(path: str, *, mode: str) -> StoreConnection:
        if not failed:
            failed.append(path)
            raise sqlite3.OperationalError(error)
        return connect(path, mode=mode)

    link = tmp_path / "log" / "projections" / "default" / f"{NAME}.sqlite"
    monkeypatch.setattr(sqlite, "connect", failing)
    await world.process()
    assert os.readlink(link) == f"{NAME}.1.sqlite"


async def test_counts_hold_after_a_take_over_of_what_had_started_over(world: World) -> None:
    """0031: "Its counts do not hold then; it loads the views anew before it counts, or decides"."""
    first = await world.worker(one_step)
    handle = await first.gasoline.dispatch(one_step, 1)
    assert await soon(handle.output()) == 1
    await when(lambda: stored(first))
    second = await world.process()
    assert await second.gasoline.counts() == {"one_step": {"complete": 1}}
    _Code.failing = True
    try:
        await first.gasoline.rerun(handle.id, "1")
        await first.status(handle.id, "dead")
        await first.settle()
    finally:
        _Code.failing = False
    await when(lambda: stored(first))
    await first.kill()
    await second.work(one_step)
    await run_some_of(second, 40)
    await when(lambda: stored(second))
    assert await _difference(world) is None
    assert await second.gasoline.counts() == {"one_step": {"complete": 40, "dead": 1}}


async def run_some_of(process: Process, count: int) -> None:
    handles = [await process.gasoline.dispatch(one_step, number) for number in range(count)]
    assert [await soon(handle.output()) for handle in handles] == list(range(count))


async def test_views_that_cannot_be_read_do_not_end_a_workers_part_in_the_log(
    file_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0031: "A failing store costs memory and time, nothing else"."""
    worker = await file_world.worker(ten_steps)
    (over,) = await run_some(worker, 1)
    await when(lambda: stored(worker))
    client = await file_world.process()

    def malformed(*_: Any) -> None:
        raise sqlite3.DatabaseError("database disk image is malformed")

    with monkeypatch.context() as patch:
        patch.setattr(WorkflowTable, "get", malformed)
        with suppress(Exception):
            await soon(client.gasoline.dispatch(ten_steps, 1, key="order 1"), 3.0)
        with suppress(Exception):
            await soon(client.gasoline.signal(Note(text="late"), to=over), 3.0)
        assert worker.node.failure is None
    await run_some(worker, 1)


async def test_a_partition_can_be_taken_over_while_the_store_is_damaged(world: World, tmp_path: Path) -> None:
    """0031: the same. The log is sound, and nobody drives its workflows."""
    first = await world.worker(ten_steps)
    await run_some(first, 20)
    await when(lambda: stored(first))
    second = await world.process()
    assert await _listed(second) == 20
    await first.kill()
    link = tmp_path / "log" / "projections" / "default" / f"{NAME}.sqlite"
    link.unlink()
    link.write_bytes(b"")
    await second.work(ten_steps)
    await run_some(second, 1)


async def test_a_log_opens_although_its_projections_cannot_be_kept(tmp_path: Path) -> None:
    """The same at an opening: a full, read-only or missing disk below projections/."""
    async with Gasoline.open(f"file:{tmp_path}/log"):
        pass
    shutil.rmtree(tmp_path / "log" / "projections")
    (tmp_path / "log" / "projections").write_bytes(b"")
    async with Gasoline.open(f"file:{tmp_path}/log") as gasoline:
        assert [one async for one in gasoline.list()] == []


async def test_whoever_stops_releases_its_partitions_before_it_waits_for_the_store(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process that is frozen with the store's lock, or an operator's long transaction."""
    first = await world.worker(ten_steps)
    await run_some(first, 40)
    await when(lambda: stored(first))
    second = await world.process()
    keeper = first.node.viewing._keeper
    assert isinstance(keeper, StoreKeeper)
    go_on, waits = threading.Event(), threading.Event()
    write = keeper._write

    def locked(*given: Any) -> Any:
        waits.set()
        assert go_on.wait(20)
        return write(*given)

    monkeypatch.setattr(keeper, "_write", locked)
    owned = list(first.node.partitions)
    await first.gasoline.dispatch(ten_steps, 1)
    first.node.viewing._save_soon()
    await asyncio.to_thread(waits.wait, 10)
    assert first.worker is not None
    stopping = asyncio.ensure_future(first.node.close())
    try:
        async with asyncio.timeout(3.0):
            await when(
                lambda: all((owner := second.log.owner(index)) is not None and owner.released for index in owned)
            )
    finally:
        go_on.set()
        await stopping
        first.ended = True


_CLOSED_UNDER_A_WRITE = """
import asyncio, sys, threading
from gasoline_es.log.opening import open_log
from projections.building import rebuild
from projections.stores.opening import open_store
from projections.workflows import Workflows
from tests.engine.harness import World, when
from tests.engine.programs import ten_steps
from tests.engine.test_stored_views import run_some, stored

async def main():
    world = World(sys.argv[1])
    worker = await world.worker(ten_steps)
    await run_some(worker, 20)
    await when(lambda: stored(worker))
    log = await open_log(world.url, readonly=True)
    swapped, marked = threading.Event(), threading.Event()
    def reach(point):
        if point == "swapped":
            swapped.set()
            marked.wait(20)
    rebuilding = asyncio.create_task(asyncio.to_thread(rebuild, log, open_store(log, reach=reach), Workflows()))
    await asyncio.to_thread(swapped.wait)
    await run_some(worker, 3)
    keeper = worker.node.viewing._keeper
    began = threading.Event()
    write = keeper._write
    def writing(*given):
        began.set()
        return write(*given)
    keeper._write = writing
    saving = asyncio.create_task(worker.node.viewing._save())
    await asyncio.to_thread(began.wait)
    await asyncio.to_thread(threading.Event().wait, 0.2)  # now it waits for the lock that the swap holds
    await keeper.stands(0)  # as each take-over asks
    marked.set()
    await rebuilding
    await saving
    await worker.kill()

asyncio.run(main())
"""


async def test_a_take_over_beside_a_rebuild_does_not_take_the_process_down(tmp_path: Path) -> None:
    """0033: a swap under a running worker."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", _CLOSED_UNDER_A_WRITE, f"file:{tmp_path}/log"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-500:])


async def test_an_opening_does_not_hold_its_event_loop_up_while_others_build(tmp_path: Path) -> None:
    """A web application opens the log while `gasoline projections rebuild` of another version runs, for an hour."""
    url = f"file:{tmp_path}/log"
    async with Gasoline.open(url):
        pass
    directory = tmp_path / "log" / "projections" / "default"
    (directory / f"{NAME}.sqlite").unlink()
    fd = os.open(directory / f"{NAME}.lock", os.O_RDWR)
    FlockLocker().lock(fd, LockFlags.EXCLUSIVE)
    ticked = threading.Event()
    alive: list[bool] = []

    def build() -> None:
        alive.append(ticked.wait(1.0))
        os.close(fd)

    building = threading.Thread(target=build)
    building.start()
    asyncio.get_running_loop().call_later(0.2, ticked.set)
    async with Gasoline.open(url):
        pass
    building.join()
    assert alive == [True]


async def test_rebuilds_under_a_worker_leave_nothing_open(world: World, tmp_path: Path) -> None:
    """0033: a generation costs nothing to throw away."""
    worker = await world.worker(ten_steps)
    log = await open_log(world.url, readonly=True)
    for _ in range(6):
        rebuild(log, open_store(log), Workflows())
        await run_some(worker, 20)
        await when(lambda: stored(worker))
    targets = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{fd}")
    ]
    gone = [one for one in targets if one.startswith(str(tmp_path)) and one.endswith(".sqlite (deleted)")]
    await log.close()
    assert len(gone) <= 1, gone


async def test_a_backup_that_is_copied_back_over_a_log_is_verified(tmp_path: Path) -> None:
    """0032: "a backup that was put back is verified once: those are other bytes, which nobody has read"."""
    url = f"file:{tmp_path}/log"
    for number in range(3):
        async with Gasoline.open(url) as gasoline, gasoline.worker([one_step]):
            assert await soon((await gasoline.dispatch(one_step, number)).output()) == number
    segment = tmp_path / "log" / "segments" / "0000000001.jsonl"
    times = segment.stat()
    backup = tmp_path / "backup.jsonl"
    shutil.copy2(segment, backup)
    data = bytearray(backup.read_bytes())
    at = data.index(b'"input":') + len(b'"input":')
    data[at] ^= 1  # the disk of the backup forgot a bit
    backup.write_bytes(data)
    os.utime(backup, ns=(times.st_atime_ns, times.st_mtime_ns))
    shutil.copy2(backup, segment)  # cp -a backup/. log/
    with pytest.raises(LogCorrupt):
        async with Gasoline.open(url):
            pass


_FORKED = """
import os, sys
import gasoline_es
from tests.engine.programs import ten_steps

url = sys.argv[1]
with gasoline_es.Gasoline.open_sync(url) as parent:
    first = parent.dispatch(ten_steps, 1)
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()
    child = os.fork()
    if child == 0:
        with gasoline_es.Gasoline.open_sync(url) as mine:
            mine.counts()
            os.write(to_parent, b"x")
            os.read(from_parent, 1)  # the parent has closed, and SQLite has removed what it lays beside
            second = mine.dispatch(ten_steps, 2)
            found = sorted(one.id for one in mine.list())
        os._exit(0 if found == sorted([first.id, second.id]) else 1)
    os.read(from_child, 1)
os.write(to_child, b"x")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


async def test_a_child_of_a_process_with_an_open_log_keeps_out_of_the_store(tmp_path: Path) -> None:
    """SQLite's locks of a process are none of its children's, which do not know that: what it wrote could be lost."""
    url = f"file:{tmp_path}/log"
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-W", "ignore", "-c", _FORKED, url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stderr == ""
    async with Gasoline.open(url) as gasoline:
        assert len([one async for one in gasoline.list()]) == 2


async def test_a_rebuild_beside_a_deploy_loses_no_workflow(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`gasoline projections rebuild` of the new version, while its workers catch up with the rows of the old one."""
    old = await world.worker(ten_steps)
    await run_some(old, 20)
    await when(lambda: stored(old))
    version = Workflows.version + 1
    monkeypatch.setattr("projections.keeping.VERSION", version)
    monkeypatch.setattr(Workflows, "version", version)
    new = await world.process()
    await old.kill()
    await new.work(ten_steps)
    log = await open_log(world.url, readonly=True)
    locked, go_on = threading.Event(), threading.Event()

    def reach(point: str) -> None:
        if point == "swap locked":
            locked.set()
            go_on.wait(20)

    def not_yet(generation: object) -> bool:
        return False  # another old worker is ahead, in partitions of its own

    keeper = new.node.viewing._keeper
    assert isinstance(keeper, StoreKeeper)
    monkeypatch.setattr(keeper, "_take_place", not_yet)
    rebuilding = asyncio.create_task(asyncio.to_thread(rebuild, log, open_store(log, reach=reach), Workflows()))
    await asyncio.to_thread(locked.wait)
    ids = await run_some(new, 40)
    await when(lambda: stored(new))
    go_on.set()
    await rebuilding
    monkeypatch.undo()
    monkeypatch.setattr("projections.keeping.VERSION", version)
    monkeypatch.setattr(Workflows, "version", version)
    await log.close()
    if await keeper.stands(0):  # as each take-over asks: the rebuilt generation is read from here on
        await run_some(new, 40)
    await when(lambda: stored(new))
    listed = {one.id async for one in new.gasoline.list()}
    assert listed >= set(ids)
    assert await _difference(world) is None


async def test_two_rebuilds_in_a_row_do_not_end_a_workers_part_in_the_log(world: World) -> None:
    """0031: "A failing store costs memory and time, nothing else"."""
    worker = await world.worker(ten_steps)
    await run_some(worker, 5)
    await when(lambda: stored(worker))
    log = await open_log(world.url, readonly=True)
    store = open_store(log)
    rebuild(log, store, Workflows())
    keeper = worker.node.viewing._keeper
    assert isinstance(keeper, StoreKeeper)
    again = keeper._store.again

    def replaced_meanwhile(generation: Any) -> Any:
        keeper._store.again = again  # type: ignore[method-assign]
        rebuild(log, store, Workflows())
        return again(generation)

    keeper._store.again = replaced_meanwhile  # type: ignore[method-assign]
    with suppress(LogFailed):
        await run_some(worker, 5)
        await when(lambda: keeper._store.again == again)
        await worker.settle()
    await log.close()
    assert worker.node.failure is None
    await run_some(worker, 5)
