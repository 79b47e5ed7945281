"""A damaged log seen from the engine: what can be read is given, and then it is said that this is not all (B02)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gasoline_es import Gasoline, WorkflowInfo
from gasoline_es.core.ids import partition_of
from gasoline_es.errors import GasolineError, LogCorrupt
from tests.engine.workflows import echo

PARTITIONS = 4


async def make(directory: Path) -> dict[str, WorkflowInfo]:
    """Three lives of a log, with completed workflows in every partition."""
    done: dict[str, WorkflowInfo] = {}
    for life in range(3):
        async with Gasoline.open(f"file:{directory}", partitions=PARTITIONS) as gasoline, gasoline.worker([echo]):
            for number in range(8):
                handle = await gasoline.dispatch(echo, f"{life}-{number}", key=f"{life}-{number}")
                assert await handle.output(timeout=20) == f"{life}-{number}"
                done[handle.id] = await handle.get()
    return done


async def collect(gasoline: Gasoline, into: list[WorkflowInfo]) -> None:
    """List one by one, so that what came before an error is kept."""
    async for info in gasoline.list(payloads=True):
        into.append(info)  # noqa: PERF401


def segment(directory: Path, number: int) -> Path:
    return directory / "segments" / f"{number:010d}.jsonl"


def cut(directory: Path) -> None:
    """The newest segment loses its end: completions, and nobody's records follow them."""
    path = segment(directory, 3)
    os.truncate(path, path.stat().st_size * 2 // 3)


def header(directory: Path) -> None:
    path = segment(directory, 3)
    path.write_bytes(path.read_bytes().replace(b'"writer"', b'"wriver"', 1))


def middle(directory: Path) -> None:
    segment(directory, 2).unlink()


def newest(directory: Path) -> None:
    segment(directory, 3).unlink()


def epoch(directory: Path) -> None:
    """The newest epoch of a partition that has workflows of the last life."""
    (directory / "epochs" / "default" / "1" / f"{3:010d}").unlink()


@pytest.mark.parametrize("damage", [cut, header, middle, newest, epoch])
async def test_a_reader_of_a_damaged_log_is_told_what_is_there_and_never_that_it_is_all(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    done = await make(tmp_path)
    damage(tmp_path)
    with pytest.raises(LogCorrupt) as caught:
        async with Gasoline.open(f"file:{tmp_path}"):
            pass
    listed: list[WorkflowInfo] = []
    async with Gasoline.open(f"file:{tmp_path}", readonly=True) as gasoline:
        for _ in range(2):  # the second time, too
            listed.clear()
            with pytest.raises(LogCorrupt) as told:
                await collect(gasoline, listed)
            assert told.value.segment == caught.value.segment
        assert {info.id for info in listed} <= done.keys()
        assert len(listed) < len(done) or damage in (cut, epoch)
        with pytest.raises(LogCorrupt):
            await gasoline.find(echo)
        told_of = 0
        for workflow_id, info in done.items():
            try:
                assert await gasoline.get(workflow_id) == info
                assert len(await gasoline.history(workflow_id)) == info.events
                assert await gasoline.handle(workflow_id, echo).output(timeout=5)
            except LogCorrupt:
                told_of += 1
                with pytest.raises(LogCorrupt):
                    await gasoline.get(workflow_id)
                with pytest.raises(LogCorrupt):
                    await gasoline.history(workflow_id)
                with pytest.raises(LogCorrupt):
                    await gasoline.handle(workflow_id, echo).output(timeout=5)
        expected = [i for i in done if damage is not epoch or partition_of(i, PARTITIONS) == 1]
        assert told_of == len(expected)


async def test_a_worker_does_not_serve_a_partition_of_a_log_that_is_found_damaged(tmp_path: Path) -> None:
    done = await make(tmp_path)
    async with Gasoline.open(f"file:{tmp_path}") as gasoline:
        for partition in range(PARTITIONS):
            path = tmp_path / "epochs" / "default" / str(partition) / f"{4:010d}"
            path.write_bytes(b"x")
        with pytest.raises(LogCorrupt) as caught:
            async with gasoline.worker([echo]):
                pass
        assert "0000000004" in str(caught.value)
        with pytest.raises(GasolineError):
            await gasoline.get(next(iter(done)))
