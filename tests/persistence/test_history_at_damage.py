"""What `WorkflowHistory` says of a workflow whose events are damaged: all of them, or an error, as `handle.history()` does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from eventsourcing.persistence import OperationalError

from gasoline_es import Gasoline
from gasoline_es.errors import LogCorrupt
from gasoline_es.persistence import workflow_history
from tests.engine import programs as program
from tests.engine.harness import soon


async def damaged(url: str, folder: Path) -> str:
    """Record a workflow, change a byte of its last event, and return its id."""
    async with Gasoline.open(url, partitions=1) as gasoline, gasoline.worker([program.ten_steps]):
        handle = await gasoline.dispatch(program.ten_steps, 0)
        await soon(handle.output())
        last = (await handle.history())[-1].seq
    (segment,) = folder.glob("segments/*.jsonl")
    at = segment.read_bytes().index(f'"key":"{handle.id}/{last}"'.encode()) + 60
    with segment.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 1]), at)
    async with Gasoline.open(url, readonly=True) as gasoline:
        with pytest.raises(LogCorrupt):
            await gasoline.history(handle.id)
    return handle.id


async def test_a_workflows_events_are_all_read_or_an_error_is_raised(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/log"
    workflow_id = await damaged(url, tmp_path / "log")
    with workflow_history("default", 0)({"GASOLINE_LOG": url}) as history, pytest.raises(OperationalError):
        history.recorder.select_events(workflow_id, desc=True, limit=1)
