"""Archive before delete: no history is pruned that is not durable in an archive (docs/design/0046)."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import WorkflowHandle
from gasoline_es.core import events as ev
from gasoline_es.core.codec import decode
from gasoline_es.errors import LogError
from gasoline_es.log.archive import Archive, history_of
from gasoline_es.log.file.disk import Disk
from gasoline_es.runtime import pruner
from gasoline_es.runtime.archiving import archive_all
from tests.engine.harness import Fate, Process, World, kills, soon, types
from tests.engine.test_pruning import AGE_S, ALL, Note, echo, invoice, ledger_all, prune, ran, rounds


def archived_of(workflow_id: str, directory: Path) -> list[ev.Event]:
    return [decode(one.value or b"") for one in history_of(workflow_id, str(directory))]


async def worker(world: World, directory: Path) -> Process:
    return await world.worker(*ALL, prune_after=AGE_S, archive=str(directory))


async def pruned(handle: WorkflowHandle[Any]) -> bool:
    try:
        return types(await handle.history())[-1] == "workflow.pruned"
    except LookupError:
        return True


async def test_what_is_pruned_by_rule_is_in_the_archive(any_world: World, tmp_path: Path) -> None:
    """semantics.md §10: all of it, forgotten iterations too, as the log had it."""
    process = await worker(any_world, tmp_path / "archive")
    looped = await process.gasoline.dispatch(rounds, 5)
    for number in range(5):
        await looped.signal(Note(text=str(number)))
    assert await soon(looped.output()) == 5
    handles = [looped, await ran(process, invoice, "7a"), await ran(process, ledger_all, "7b")]
    before = {one.id: await one.history() for one in handles}
    await process.advance(AGE_S + 1)
    assert await prune(process) == 3
    for handle in handles:
        assert archived_of(handle.id, tmp_path / "archive") == before[handle.id]
    assert {type(one.data) for one in before[looped.id]} >= {ev.LoopCommitted, ev.SignalConsumed}
    assert await prune(process) == 0
    assert len(list((tmp_path / "archive").iterdir())) == 1


async def test_next_workflow_of_a_key_is_archived_behind_the_first(world: World, tmp_path: Path) -> None:
    process = await worker(world, tmp_path)
    both: list[ev.Event] = []
    for seat in ("7a", "8b"):
        handle = await ran(process, ledger_all, seat, key="k")
        both += await handle.history()
        await process.advance(AGE_S + 1)
        assert await prune(process) == 1
    assert archived_of(both[0].workflow_id, tmp_path) == both


@pytest.mark.parametrize("fate", ["lost", "unanswered"])
async def test_kill_at_every_append_leaves_nothing_pruned_that_is_not_archived(fate: Fate, tmp_path: Path) -> None:
    """A crash between leaves it archived and not pruned; the next run archives it once more, and readers take one."""
    lives = 0

    async def life(process: Process) -> None:
        nonlocal lives
        lives += 1
        await process.work(*ALL, prune_after=AGE_S, archive=str(tmp_path / str(lives)))
        await (await process.gasoline.dispatch(ledger_all, "7a", key="k")).output()
        process.world.clock.advance(AGE_S + 1)
        assert process.worker is not None
        assert process.worker.pruner is not None
        await process.worker.pruner.look()

    files: list[int] = []
    async for world, number in kills(fate, life):
        process = await worker(world, tmp_path / str(number))
        handle = await process.gasoline.dispatch(ledger_all, "7a", key="k")
        await soon(handle.output())
        await process.advance(AGE_S + 1)
        assert await prune(process) == 1
        events = archived_of(handle.id, tmp_path / str(number))
        ends = [one.seq for one in events if isinstance(one.data, ev.WorkflowCompleted)]
        assert [one.seq for one in events[: ends[0]]] == list(range(1, ends[0] + 1)), "all of the first life"
        assert len(events) == len({one.seq for one in events}), "each once"
        files.append(len(list((tmp_path / str(number)).iterdir())))
    assert {1, 2} == set(files), "some were killed before they had archived, and some between that and the pruning"


class FullDisk(Disk):
    """Full while ``full``."""

    full = False

    def sync(self, fd: int) -> None:
        if FullDisk.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().sync(fd)


async def test_full_disk_prunes_nothing_and_says_why(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await worker(world, tmp_path)
    assert process.worker is not None
    assert process.worker.pruner is not None
    monkeypatch.setattr(process.worker.pruner, "_archive", Archive(str(tmp_path), "me", FullDisk()))
    monkeypatch.setattr(FullDisk, "full", True)
    handle = await ran(process, invoice, "7a")
    await process.advance(AGE_S + 1)
    for _ in range(2):
        assert await prune(process) == 0
    assert not await pruned(handle)
    assert "nothing more was pruned in partition" in caplog.text
    assert "cannot be written: No space left on device" in caplog.text
    monkeypatch.setattr(FullDisk, "full", False)
    assert await prune(process) == 1, "what failed is looked at again"
    assert len(archived_of(handle.id, tmp_path)) == 3


async def test_what_goes_on_while_it_is_archived_is_not_pruned(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is pruned is what was archived: a rerun in between makes it another history."""
    process = await worker(world, tmp_path)
    handle = await ran(process, invoice, "7a")
    await process.advance(AGE_S + 1)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def held(*args: Any) -> dict[str, int]:
        last = await archive_all(*args)
        begun.set()
        await go_on.wait()
        return last

    monkeypatch.setattr(pruner, "archive_all", held)
    assert process.worker is not None
    assert process.worker.pruner is not None
    looking = asyncio.ensure_future(process.worker.pruner.look())
    await soon(begun.wait())
    process.world.clock.jump_wall(-2 * AGE_S)  # by its age alone it might go
    await process.gasoline.rerun(handle.id, "{1}")
    await soon(handle.output())
    go_on.set()
    assert await soon(looking) == 0
    assert not await pruned(handle)


async def test_partition_lost_while_it_is_archived_prunes_nothing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await worker(world, tmp_path)
    handle = await ran(process, invoice, "7a")
    await process.advance(AGE_S + 1)
    sync = Archive.sync

    def lose(archive: Archive, now_us: int) -> None:
        sync(archive, now_us)
        process.node.partitions.clear()

    monkeypatch.setattr(Archive, "sync", lose)
    owned = dict(process.node.partitions)
    assert process.worker is not None
    assert process.worker.pruner is not None
    assert await process.worker.pruner.look() == 0
    process.node.partitions.update(owned)
    assert not await pruned(handle)


async def test_by_hand_is_archived_before_it_is_pruned(any_world: World, tmp_path: Path) -> None:
    process = await any_world.worker(*ALL)
    handle, young = await ran(process, invoice, "7a"), await ran(process, ledger_all, "7b")
    await process.advance(1)
    before = await handle.history()
    directory = tmp_path / "archive"
    gasoline = process.gasoline
    would = await gasoline.prune_history(name="invoice", age=0, archive=str(directory), dry_run=True)
    assert (would.workflows, directory.exists()) == (1, False)
    did = await gasoline.prune_history(name="invoice", age=0, archive=str(directory))
    assert (did.workflows, did.events) == (would.workflows, would.events)
    assert archived_of(handle.id, directory) == before
    assert archived_of(young.id, directory) == []
    assert (await gasoline.prune_history(name="invoice", age=0, archive=str(directory))).workflows == 0


async def test_by_hand_a_directory_that_cannot_be_written_prunes_nothing(world: World, tmp_path: Path) -> None:
    process = await world.worker(*ALL)
    handle = await ran(process, invoice, "7a")
    await process.advance(1)
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="cannot be written"):
        await process.gasoline.prune_history(age=0, archive=str(tmp_path / "file"))
    assert not await pruned(handle)


async def test_archive_without_pruning_is_refused(world: World, tmp_path: Path) -> None:
    process = await world.process()
    with pytest.raises(ValueError, match="give prune_after="):
        process.gasoline.worker([echo], archive=str(tmp_path))
