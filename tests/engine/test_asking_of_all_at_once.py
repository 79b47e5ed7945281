"""Questions about all partitions are put at once where a network lies between: its way is gone once (design §6)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gasoline_es import Signal, WorkflowContext, workflow
from gasoline_es.client import Client
from tests.engine.conftest import kafka_world
from tests.engine.harness import Process, World, soon

TAGS = {"order": "7"}
AHEAD = datetime(2100, 1, 1, tzinfo=UTC)


class Go(Signal):
    pass


@workflow
async def waits(ctx: WorkflowContext, _: None) -> None:
    while True:
        await ctx.listen(Go)


async def lists(client: Client) -> object:
    return [info.name async for info in client.list()] == ["waits"]


async def lists_as_of(client: Client) -> object:
    return [info.name async for info in client.list(as_of=AHEAD)] == ["waits"]


async def finds(client: Client) -> object:
    return await client.find(waits, tags=TAGS) is not None


async def counts(client: Client) -> object:
    return list(await client.counts()) == ["waits"]


async def schedules(client: Client) -> object:
    return [one async for one in client.schedules()] == []


async def revives(client: Client) -> object:
    return (await client.revive(error="", dry_run=True)).ids == ()


async def dispatches(client: Client) -> object:
    return (await client.dispatch(waits, None, tags=TAGS, unique=True)).id


async def signals(client: Client) -> object:
    return await client.signal(Go(), waits, tags=TAGS)


QUESTIONS = [lists, lists_as_of, finds, counts, schedules, revives, dispatches, signals]


@pytest.fixture
async def owned(tmp_path: Path) -> AsyncIterator[tuple[World, Process]]:
    """A worker that owns all partitions, with one workflow."""
    with pytest.MonkeyPatch.context() as patch:
        world = kafka_world(patch, tmp_path)
        owner = await world.worker(waits)
        await soon(owner.gasoline.dispatch(waits, None, tags=TAGS))
        await soon(_owns_all(owner))
        yield world, owner
        await world.end()


async def _owns_all(owner: Process) -> None:
    for index in range(owner.log.partition_count):
        await owner.node.own(index)


@pytest.mark.parametrize("question", QUESTIONS)
async def test_who_owns_nothing_asks_once_for_the_events_of_all_partitions(
    question: Callable[[Client], Awaitable[object]], owned: tuple[World, Process]
) -> None:
    world, _ = owned
    asking = await world.process()
    asked: list[tuple[tuple[str, int], ...]] = []
    refresh = asking.log.refresh

    async def counted(*feeds: tuple[str, int]) -> None:
        if any(topic == "default.events" for topic, _ in feeds):
            asked.append(feeds)
        await refresh(*feeds)

    asking.log.refresh = counted  # type: ignore[method-assign]
    assert await soon(question(asking.gasoline))
    assert len(asked) == 1
    assert {partition for topic, partition in asked[0] if topic == "default.events"} == set(range(16))


@pytest.mark.parametrize("question", [one for one in QUESTIONS if one is not signals])
async def test_an_owner_asks_once_whether_all_partitions_are_its_own(
    question: Callable[[Client], Awaitable[object]], owned: tuple[World, Process]
) -> None:
    _, owner = owned
    asked: list[tuple[tuple[str, int], ...]] = []
    refresh = owner.log.refresh

    async def counted(*feeds: tuple[str, int]) -> None:
        asked.append(feeds)
        await refresh(*feeds)

    owner.log.refresh = counted  # type: ignore[method-assign]
    assert await soon(question(owner.gasoline))
    assert asked == [()]
