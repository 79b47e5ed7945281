"""Who was taken for dead and replaced is not told of it; what it is asked for is as of now all the same (0041)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gasoline_es import Signal, WorkflowContext, workflow
from gasoline_es.client import Client
from tests.engine.conftest import kafka_world
from tests.engine.harness import soon

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


@pytest.mark.parametrize("asked", [got, found, listed, listed_as_of, counted, in_history])
async def test_owner_that_was_replaced_answers_with_what_its_successor_has_decided(
    asked: Callable[[Client, str], Awaitable[object]], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        world = kafka_world(patch, tmp_path)
        former, successor = await world.process(), await world.process()
        handle = await former.gasoline.dispatch(waits, None, tags=TAGS)
        assert not await asked(former.gasoline, handle.id)
        index = former.node.index_of(handle.id)
        owned = former.node.partitions[index]
        assert world.tell_death is not None
        world.tell_death(former.log.incarnation)
        while await soon(successor.node.own(index)) is None:
            await successor.log.refresh()
        await soon(successor.gasoline.handle(handle.id, waits).silence())
        assert former.node.partitions.get(index) is owned, "nobody has told it"

        assert await soon(asked(former.gasoline, handle.id))

        assert former.node.partitions.get(index) is None
        await world.end()
