"""What another process can have read of an owner's append counts for the owner, too, before it has learnt of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from gasoline_es import Signal, WorkflowContext, workflow
from gasoline_es.client import Client
from tests.engine.harness import World, soon

TAGS = {"order": "7"}
AHEAD = datetime(2100, 1, 1, tzinfo=UTC)


class Go(Signal):
    pass


@workflow
async def waits(ctx: WorkflowContext, _: None) -> None:
    await ctx.listen(Go)


async def got(client: Client, id: str) -> object:
    return (await client.get(id)).status == "silenced"


async def found(client: Client, id: str) -> object:
    return await client.find(waits, tags=TAGS) is None


async def listed(client: Client, id: str) -> object:
    return [info.id async for info in client.list(status="silenced")] == [id]


async def listed_as_of(client: Client, id: str) -> object:
    return [info.id async for info in client.list(status="silenced", as_of=AHEAD)] == [id]


async def counted(client: Client, id: str) -> object:
    return await client.counts() == {"waits": {"silenced": 1}}


async def in_history(client: Client, id: str) -> object:
    return (await client.history(id))[-1].type == "workflow.silenced"


async def silence(client: Client, id: str) -> None:
    await client.handle(id, waits).silence()


async def schedule(client: Client, _: str) -> None:
    await client.schedule(timedelta(hours=1), waits, None, name="hourly")


async def scheduled(client: Client, _: str) -> object:
    return [one.name async for one in client.schedules()] == ["hourly"]


async def turns(task: asyncio.Task[object]) -> None:
    """Let a question come as far as it can."""
    for _ in range(50):
        if task.done():
            return
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("told", "asked"),
    [*((silence, one) for one in (got, found, listed, listed_as_of, counted, in_history)), (schedule, scheduled)],
)
async def test_owner_answers_with_what_another_process_has_already_read(
    world: World,
    told: Callable[[Client, str], Awaitable[None]],
    asked: Callable[[Client, str], Awaitable[object]],
) -> None:
    owner, other = await world.worker(waits), await world.process()
    handle = await soon(other.gasoline.dispatch(waits, None, tags=TAGS))
    assert not await soon(asked(owner.gasoline, handle.id))
    owner.log.learns.clear()

    await soon(told(other.gasoline, handle.id))
    await soon(owner.log.unknown.wait())
    assert await soon(asked(other.gasoline, handle.id))
    question = asyncio.ensure_future(asked(owner.gasoline, handle.id))
    await turns(question)
    owner.log.learns.set()

    assert await soon(question)
    await world.end()


async def dispatched_unique(client: Client, id: str) -> object:
    return (await client.dispatch(waits, None, tags=TAGS, unique=True)).id == id


async def signalled(client: Client, id: str) -> object:
    await client.signal(Go(), waits, tags=TAGS)
    return await client.handle(id, waits).output() is None


@pytest.mark.parametrize("decided", [dispatched_unique, signalled])
async def test_owner_decides_by_what_another_process_has_already_read(
    world: World, decided: Callable[[Client, str], Awaitable[object]]
) -> None:
    """semantics.md §5, §6: of the workflows that are there the oldest, whichever partition they are in."""
    owner, other = await world.worker(waits), await world.process()
    owner.log.learns.clear()
    there = await soon(other.gasoline.dispatch(waits, None, tags={**TAGS, "nr": "1"}))
    await soon(owner.log.unknown.wait())

    deciding = asyncio.ensure_future(decided(owner.gasoline, there.id))
    await turns(deciding)
    owner.log.learns.set()

    assert await soon(deciding)
    await world.end()


async def test_unique_dispatches_do_not_wait_for_what_has_nothing_to_do_with_them(world: World) -> None:
    """Who looks before it decides does so in turn: it would decide one in each append."""
    process = await world.worker(waits)
    await soon(process.gasoline.dispatch(waits, None))
    before = process.log.count
    await soon(
        asyncio.gather(
            *(process.gasoline.dispatch(waits, None, tags={"order": str(n)}, unique=True) for n in range(200))
        )
    )
    assert process.log.count - before < 20
    await world.end()
