"""A process ends within its limits while no broker answers: what waits for one is not durable, and is told so."""

from __future__ import annotations

import asyncio

import pytest

from gasoline_es import WorkflowContext, workflow
from gasoline_es.errors import LogError
from gasoline_es.log.kafka.drivers.port import Feed
from tests.engine.harness import PATIENCE_S, World


@workflow
async def doubles(ctx: WorkflowContext, number: int) -> int:
    return 2 * number


@pytest.mark.soak  # test_ending.py has the shorter half in every run
@pytest.mark.parametrize("any_world", ["kafka"], indirect=True)
async def test_a_worker_ends_though_an_append_waits_for_a_broker(
    any_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gasoline_es.runtime.node.FLUSH_LIMIT_S", 0.1)
    monkeypatch.setattr("gasoline_es.log.kafka.log.CLOSE_LIMIT_S", 0.1)
    process = await any_world.worker(doubles)
    await process.settle()
    cluster = any_world.cluster
    assert cluster is not None
    assert process.worker is not None
    cluster.away = True
    process.log.asked.clear()
    dispatching = asyncio.ensure_future(process.gasoline.dispatch(doubles, 1, key="a"))
    await process.log.asked.wait()
    async with asyncio.timeout(PATIENCE_S):
        await process.worker.stop(0.1)
        await process.stop()
        (outcome,) = await asyncio.gather(dispatching, return_exceptions=True)
    assert isinstance(outcome, LogError)
    cluster.away = False
    cluster.tell_death(Feed("default.workers", 0), process.log.incarnation)
    process = await any_world.worker(doubles)
    async with asyncio.timeout(PATIENCE_S):
        assert await (await process.gasoline.dispatch(doubles, 1, key="a")).output() == 2
