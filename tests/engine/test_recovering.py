"""Recovering: the failure that a workflow died of is cleared, and it goes on (semantics.md §7)."""

from __future__ import annotations

import contextlib

import pytest

from gasoline_es import ActivityContext, ActivityFailed, Backoff, WorkflowContext, activity, workflow
from gasoline_es.core import events as ev
from gasoline_es.errors import GasolineError, WorkflowFailed
from tests.engine.harness import World, failures, rehandle, soon, types
from tests.engine.workflows import nap

AT_ONCE = Backoff(base=0.0001, doublings=0)
down = {"bank": True, "post": True}
calls: list[str] = []


@activity(max_attempts=2, backoff=AT_ONCE)
async def charge(ctx: ActivityContext, order: int) -> str:
    calls.append(f"charge {ctx.attempt}")
    if down["bank"]:
        raise ConnectionError("the bank is closed")
    return f"charged {order}"


@activity(max_attempts=1)
async def write(ctx: ActivityContext, order: int) -> str:
    calls.append("write")
    if down["post"]:
        raise ConnectionError("the post is on strike")
    return "written"


@workflow
async def fulfil(ctx: WorkflowContext, order: int) -> str:
    with contextlib.suppress(ActivityFailed):
        await ctx.activity(write, order)
    return await ctx.activity(charge, order)


@workflow
async def whoever_is_open(ctx: WorkflowContext, order: int) -> list[object]:
    return list(await ctx.race(ctx.activity(charge, order), ctx.activity(write, order)))


@pytest.fixture(autouse=True)
def everything_is_down() -> None:
    down.update(bank=True, post=True)
    calls.clear()


async def test_recover_runs_the_activity_again_from_its_first_attempt(any_world: World) -> None:
    """semantics.md §7: attempts start again at 1; what failed and was caught is not tried again."""
    process = await any_world.worker(fulfil)
    handle = await process.gasoline.dispatch(fulfil, 7)
    while (await handle.get()).status != "dead":
        await process.advance(1)
    assert calls == ["write", "charge 1", "charge 2"]
    down.update(bank=False, post=False)
    await handle.wake()
    with pytest.raises(WorkflowFailed, match="the bank is closed"):
        await soon(handle.output())
    assert calls == ["write", "charge 1", "charge 2"], "a wake replays the failure"
    await handle.recover()
    assert await soon(handle.output()) == "charged 7"
    assert calls == ["write", "charge 1", "charge 2", "charge 1"]
    assert [failure.attempt for failure in failures(await handle.history())] == [1, 1, 2], "they stay in the history"
    (recovered,) = [event.data for event in await handle.history() if isinstance(event.data, ev.WorkflowRecovered)]
    assert recovered.locations == (((2,),),)


async def test_recover_opens_a_race_that_nobody_won(any_world: World) -> None:
    """semantics.md §7, §12: each of the failures that left the body is cleared."""
    process = await any_world.worker(whoever_is_open)
    handle = await process.gasoline.dispatch(whoever_is_open, 7)
    while (await handle.get()).status != "dead":
        await process.advance(1)
    down["post"] = False
    await handle.recover()
    assert await soon(handle.output()) == [1, "written"]
    assert types(await handle.history()).count("race.decided") == 2


async def test_recover_without_a_worker_is_carried_out_when_one_comes(any_world: World) -> None:
    """semantics.md §7: the request is durable, and replays in the next process."""
    first = await any_world.worker(fulfil)
    handle = await first.gasoline.dispatch(fulfil, 7)
    while (await handle.get()).status != "dead":
        await first.advance(1)
    await first.stop()
    client = await any_world.process()
    await client.gasoline.recover(handle.id)
    with pytest.raises(GasolineError, match=r"is running\. Only a dead workflow can be recovered"):
        await client.gasoline.recover(handle.id)
    await client.stop()
    down["bank"] = False
    second = await any_world.worker(fulfil)
    assert await soon(rehandle(second, handle, fulfil).output()) == "charged 7"


async def test_recover_of_another_death_is_refused_with_what_to_do(any_world: World) -> None:
    """semantics.md §7: a mistake in the code is mended there."""
    process = await any_world.worker(nap)
    handle = await process.gasoline.dispatch(nap, 1e300)
    await process.status(handle.id, "dead")
    with pytest.raises(GasolineError, match=r"did not die of an activity's failure.*Mend the code, then wake"):
        await handle.recover()
    assert (await handle.get()).status == "dead"


@workflow
async def broken(ctx: WorkflowContext, order: int) -> str:
    raise ConnectionError(f"the bank has no order {order}")


async def test_revive_recovers_those_that_died_of_an_activity_and_leaves_the_others(any_world: World) -> None:
    """semantics.md §7: many at once, with a dry run that says the same; what was woken dies of the same again."""
    process = await any_world.worker(fulfil, broken)
    client = process.gasoline
    down.update(post=False)
    paying = [await client.dispatch(fulfil, 1)]
    any_world.clock.advance(0.001)  # the order of creation is told
    paying.append(await client.dispatch(fulfil, 2))
    mistaken = await client.dispatch(broken, 3)
    for handle in (*paying, mistaken):
        while (await handle.get()).status != "dead":
            await process.advance(1)
    would = await client.revive(error="bank", dry_run=True)
    assert (len(would.ids), would.final, would.left) == (3, 2, 0)
    woken = await client.revive(error="the bank is closed")
    assert (woken.ids, woken.final) == (tuple(handle.id for handle in paying), 2)
    for handle in paying:
        await process.status(handle.id, "dead")
    down.update(bank=False)
    async with any_world.reader() as reader:
        would = await reader.revive(error="bank", recover=True, dry_run=True)
    done = await client.revive(error="bank", recover=True)
    for info in (would, done):
        assert (info.ids, info.names, info.final, info.left, info.passed) == (woken.ids, {"fulfil": 2}, 2, 1, 0)
    for number, handle in enumerate(paying, start=1):
        assert await soon(handle.output()) == f"charged {number}"
    assert (await mistaken.get()).status == "dead"
    again = await client.revive(error="bank", recover=True)
    assert (again.ids, again.left) == ((), 1)
