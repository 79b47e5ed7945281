"""Python's cyclic garbage collector is held for a moment, never longer than its user wants (design §10)."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from gasoline_es import ActivityContext, Gasoline, WorkflowContext, activity, workflow
from gasoline_es.runtime.appender import CollectionHeld


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


@activity
async def look(ctx: ActivityContext, given: None) -> list[bool]:
    at_first = gc.isenabled()
    await asyncio.sleep(0)
    return [at_first, gc.isenabled()]


@workflow
async def look_twice(ctx: WorkflowContext, given: None) -> list[list[bool]]:
    return [await ctx.activity(look, None), await ctx.activity(look, None)]


async def looked() -> list[list[bool]]:
    async with Gasoline.open("memory:") as gasoline, gasoline.worker([look_twice]):
        handle = await gasoline.dispatch(look_twice, None)
        return await handle.output()


def test_collector_goes_on_once_what_a_group_started_had_a_turn() -> None:
    assert asyncio.run(looked()) == [[False, True], [False, True]]
    assert gc.isenabled()


def test_collector_that_its_user_has_stopped_stays_stopped() -> None:
    gc.disable()
    assert asyncio.run(looked()) == [[False, False], [False, False]]
    assert not gc.isenabled()


def test_loop_that_is_closed_too_soon_lets_the_collector_go_on() -> None:
    loop = asyncio.new_event_loop()

    def hold() -> None:
        with CollectionHeld():
            loop.stop()

    loop.call_soon(hold)
    loop.run_forever()
    assert not gc.isenabled()
    loop.close()
    assert gc.isenabled()
