"""A process ends also while no broker answers: what waits for one does not keep it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from gasoline_es import WorkflowContext, workflow
from gasoline_es.errors import LogError
from tests.engine.conftest import kafka_world
from tests.engine.harness import soon


@workflow
async def ends(ctx: WorkflowContext, _: None) -> str:
    return "ended"


@pytest.mark.parametrize("under_way", [False, True])
async def test_worker_ends_in_an_outage_and_leaves_nothing_behind(
    under_way: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """design §6: an outage is waited out, but not by whoever is told to end."""
    monkeypatch.setattr("gasoline_es.runtime.node.FLUSH_LIMIT_S", 0.3)
    monkeypatch.setattr("gasoline_es.log.kafka.log.CLOSE_LIMIT_S", 0.3)
    monkeypatch.setattr("gasoline_es.log.kafka.evidence.WAIT_S", 0.3)
    world = kafka_world(monkeypatch, tmp_path)
    assert world.cluster is not None
    process = await world.worker(ends)
    assert await soon((await process.gasoline.dispatch(ends, None)).output()) == "ended"
    world.cluster.away = True
    dispatching = asyncio.create_task(process.gasoline.dispatch(ends, None)) if under_way else None
    await asyncio.sleep(0)

    async with asyncio.timeout(40):
        await process.stop()

    if dispatching is not None:
        with pytest.raises(LogError):
            await dispatching
    for thread in [thread for thread in threading.enumerate() if thread.name.startswith("gasoline-kafka_")]:
        await asyncio.to_thread(thread.join, 20)
        assert not thread.is_alive(), "it would keep the process from ending"
    world.cluster.away = False
    await world.end()
