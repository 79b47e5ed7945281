"""A mistake in a body ends its run, also where the body catches the error (guides/mistakes.md)."""

from __future__ import annotations

import asyncio
import contextlib
import warnings

import pytest

from gasoline_es import WorkflowContext, workflow
from gasoline_es.errors import WorkflowFailed
from tests.engine.harness import World, has, soon
from tests.engine.workflows import add_one

USES = ["gather", "create_task", "sleep", "call_soon", "get_event_loop"]


def use(what: str) -> object:
    match what:
        case "gather":
            return asyncio.gather(asyncio.sleep(0))
        case "create_task":
            return asyncio.create_task(asyncio.sleep(0))
        case "sleep":
            return asyncio.sleep(1).send(None)
        case "call_soon":
            return asyncio.get_running_loop().call_soon(print)
        case _:
            return asyncio.get_event_loop().create_future()


@workflow
async def insisting(ctx: WorkflowContext, what: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a coroutine that asyncio refused was never awaited
        with contextlib.suppress(BaseException):  # that is the mistake this is about
            use(what)
    await ctx.activity(add_one, None)
    return "went on"


@pytest.mark.parametrize("what", USES)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_use_of_asyncio_that_the_body_caught_ends_the_run_all_the_same(world: World, what: str) -> None:
    """semantics.md §4, design §3: no further step is recorded, and the workflow is dead of the mistake."""
    process = await world.worker(insisting)
    handle = await process.gasoline.dispatch(insisting, what)
    with pytest.raises(WorkflowFailed, match="asyncio"):
        await soon(handle.output())
    assert not has("activity.completed")(await handle.history())
    assert process.node.failure is None
