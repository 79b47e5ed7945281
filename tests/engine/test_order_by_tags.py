"""Sends are ordered by the calls, also under gather, also when some go by id and some by tags (design §5)."""

from __future__ import annotations

import asyncio

from gasoline_es import Signal, WorkflowContext, workflow
from tests.engine.harness import World, consumed, soon


class Numbered(Signal):
    n: int


@workflow
async def gathers_numbers(ctx: WorkflowContext, count: int) -> list[int]:
    return [(await ctx.listen(Numbered)).n for _ in range(count)]


async def test_sends_by_tags_and_by_id_keep_the_order_of_the_calls(any_world: World) -> None:
    """design §5: the look-up of tags takes its turn too, also while the partitions are still to be taken."""
    first = await any_world.process()
    handle = await first.gasoline.dispatch(gathers_numbers, 12, tags={"box": "1"})
    await first.stop()

    client = await any_world.process()  # owns nothing yet: every look-up reads the log first
    sends = [
        client.gasoline.signal(Numbered(n=n), gathers_numbers, tags={"box": "1"}, id=f"s{n}")
        if n % 2 == 0
        else client.gasoline.signal(Numbered(n=n), to=handle.id, id=f"s{n}")
        for n in range(12)
    ]
    await asyncio.gather(*sends)
    await client.stop()

    process = await any_world.worker(gathers_numbers)
    again = process.gasoline.handle(handle.id, gathers_numbers)
    assert await soon(again.output()) == list(range(12))
    assert consumed(await again.history()) == [f"s{n}" for n in range(12)]
