"""Ephemeral activities: no wait of their own, and nothing acts on what they gave before that is durable (semantics.md §4)."""

from __future__ import annotations

import asyncio

import pytest

from gasoline_es import ActivityContext, Signal, WorkflowContext, activity, workflow
from gasoline_es.core import events as ev
from gasoline_es.core.events import Event
from gasoline_es.errors import ActivityFailed, NoSpace, NotRetryable
from gasoline_es.testing import Simulation, crash_everywhere
from tests.engine.harness import World, has, soon, types
from tests.engine.workflows import Note, one_note


class Found(Signal):
    number: int


ran: list[str] = []
"""What the activities of these tests did, in order."""


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@activity
async def look_up(ctx: ActivityContext, number: int) -> int:
    ran.append(f"look_up {number}")
    return number * 10


@activity
async def pay(ctx: ActivityContext, number: int) -> int:
    ran.append(f"pay {number}")
    return number + 1


@workflow
async def chain(ctx: WorkflowContext, length: int) -> int:
    total = 0
    for number in range(length):
        total += await ctx.activity(look_up, number, ephemeral=True)
    return await ctx.activity(pay, total)


@workflow
async def durable_chain(ctx: WorkflowContext, length: int) -> int:
    total = 0
    for number in range(length):
        total += await ctx.activity(look_up, number)
    return await ctx.activity(pay, total)


@pytest.mark.parametrize(("flow", "appends"), [(chain, 4), (durable_chain, 8)])
async def test_ephemeral_activities_ride_in_the_append_of_what_follows(
    world: World, flow: object, appends: int
) -> None:
    """design §1.1: dispatch, five look-ups together, the payment, the end; a sync each. Durable look-ups take one each."""
    assert flow in (chain, durable_chain)
    process = await world.worker(chain, durable_chain)
    handle = await process.gasoline.dispatch(chain if flow is chain else durable_chain, 5)
    assert await soon(handle.output()) == 101
    assert process.log.count == appends
    assert len(process.log.appended) == appends
    assert types(await handle.history()) == [
        "workflow.dispatched",
        *["activity.completed"] * 6,
        "workflow.completed",
    ]


async def test_what_follows_an_ephemeral_activity_waits_until_it_is_durable(any_world: World) -> None:
    """design §1.1: the next ephemeral one starts at once, the payment only when all of them are on the log."""
    process = await any_world.worker(chain)
    handle = await process.gasoline.dispatch(chain, 3)
    process.log.open_gate.clear()
    process.log.asked.clear()
    await soon(process.log.asked.wait())
    for _ in range(20):
        await asyncio.sleep(0)
    assert ran == ["look_up 0", "look_up 1", "look_up 2"]
    async with any_world.reader() as others:  # a look of the owner's waits for what is under way
        assert types(await others.history(handle.id)) == ["workflow.dispatched"]
    process.log.open_gate.set()
    assert await soon(handle.output()) == 31
    assert ran[3:] == ["pay 30"]


@workflow
async def tell(ctx: WorkflowContext, target: str) -> None:
    found = await ctx.activity(look_up, 1, ephemeral=True)
    await ctx.signal(Note(text=str(found)), to=target)


@workflow
async def start(ctx: WorkflowContext, _: str) -> None:
    found = await ctx.activity(look_up, 1, ephemeral=True)
    await ctx.dispatch(chain, found)


@workflow
async def ask(ctx: WorkflowContext, target: str) -> None:
    await ctx.activity(look_up, 1, ephemeral=True)
    await ctx.output(one_note, target)


@pytest.mark.parametrize("flow", [tell, start, ask])
async def test_nothing_reaches_another_workflow_before_what_it_rests_on_is_durable(world: World, flow: object) -> None:
    """design §1.1: no signal, no dispatch, no question for an output."""
    definition = next(one for one in (tell, start, ask) if one is flow)
    process = await world.worker(tell, start, ask)
    target = await process.gasoline.dispatch(one_note, None)
    handle = await process.gasoline.dispatch(definition, target.id)
    process.log.open_gate.clear()
    process.log.asked.clear()
    await soon(process.log.asked.wait())
    for _ in range(20):
        await asyncio.sleep(0)
    process.log.script = {process.log.count: "lost"}
    process.log.open_gate.set()
    await soon(process.log.reached.wait())
    await process.kill()
    async with world.reader() as gasoline:
        assert types(await gasoline.history(handle.id)) == ["workflow.dispatched"]
        assert types(await gasoline.history(target.id)) == ["workflow.dispatched"]
        assert len([info async for info in gasoline.list()]) == 2


async def test_no_space_costs_no_second_execution(any_world: World) -> None:
    """required.md B04: the answers that found no space are used again, in a new life of the body."""
    process = await any_world.worker(chain)
    handle = await process.gasoline.dispatch(chain, 3)
    process.log.script = {process.log.count + 1: NoSpace, process.log.count + 2: NoSpace}
    assert await soon(handle.output()) == 31
    assert process.log.refused.is_set()
    assert ran == ["look_up 0", "look_up 1", "look_up 2", "pay 30"]


async def test_no_space_in_a_long_chain_is_gone_through_again_without_a_deep_stack(world: World) -> None:
    """required.md B04: a thousand answers kept, and given again one after the other."""
    process = await world.worker(chain)
    handle = await process.gasoline.dispatch(chain, 1_500)
    process.log.script = {process.log.count + 1: NoSpace}
    assert await soon(handle.output()) == 10 * sum(range(1_500)) + 1
    assert process.log.refused.is_set()
    assert len(ran) == 1_501


async def test_crash_before_the_append_runs_ephemeral_activities_again_and_nothing_else(any_world: World) -> None:
    """semantics.md §4: may run again after a crash; what is not ephemeral never acted on what was lost."""
    process = await any_world.worker(chain)
    handle = await process.gasoline.dispatch(chain, 2)
    process.log.script = {process.log.count + 1: "lost"}
    await soon(process.log.reached.wait())
    await process.kill()
    assert ran == ["look_up 0", "look_up 1"]
    process = await any_world.worker(chain)
    assert await soon(process.gasoline.handle(handle.id, chain).output()) == 11
    assert ran == ["look_up 0", "look_up 1", "look_up 0", "look_up 1", "pay 10"]


async def test_clean_stop_keeps_what_ephemeral_activities_gave(any_world: World) -> None:
    """semantics.md §8: what running activities returned in time is durable when the worker has stopped."""
    entered, go = asyncio.Event(), asyncio.Event()

    @activity
    async def slow(ctx: ActivityContext, number: int) -> int:
        ran.append(f"slow {number}")
        entered.set()
        await go.wait()
        return number

    @workflow
    async def slow_flow(ctx: WorkflowContext, _: None) -> int:
        one = await ctx.activity(look_up, 1, ephemeral=True)
        return one + await ctx.activity(slow, 2, ephemeral=True)

    process = await any_world.worker(slow_flow)
    handle = await process.gasoline.dispatch(slow_flow, None)
    await soon(entered.wait())
    assert types(await handle.history()) == ["workflow.dispatched"]
    assert process.worker is not None
    stopping = asyncio.ensure_future(process.worker.stop())
    while not process.driver.stopping:  # no time passes
        await asyncio.sleep(0)
    go.set()
    await soon(stopping)
    assert types(await handle.history()) == ["workflow.dispatched", "activity.completed", "activity.completed"]
    await process.stop()
    process = await any_world.worker(slow_flow)
    assert await soon(process.gasoline.handle(handle.id, slow_flow).output()) == 12
    assert ran == ["look_up 1", "slow 2"]


async def test_event_of_an_ephemeral_activity_goes_out_with_another_workflows(world: World) -> None:
    """semantics.md §4: it rides in the next append of its partition, whoever asked for that."""
    entered, go = asyncio.Event(), asyncio.Event()

    @activity
    async def slow(ctx: ActivityContext, _: None) -> None:
        entered.set()
        await go.wait()

    @workflow
    async def slow_flow(ctx: WorkflowContext, _: None) -> None:
        await ctx.activity(look_up, 1, ephemeral=True)
        await ctx.activity(slow, None, ephemeral=True)

    process = await world.worker(slow_flow)
    handle = await process.gasoline.dispatch(slow_flow, None)
    await soon(entered.wait())
    assert types(await handle.history()) == ["workflow.dispatched"]
    await handle.signal(Found(number=1))
    assert types(await handle.history()) == ["workflow.dispatched", "activity.completed", "signal.received"]
    go.set()
    await soon(handle.output())


@workflow
async def waits(ctx: WorkflowContext, _: None) -> int:
    found = await ctx.activity(look_up, 1, ephemeral=True)
    return found + (await ctx.listen(Found)).number


async def test_body_that_goes_on_to_listen_has_its_answer_recorded(world: World) -> None:
    """semantics.md §4: nothing else would ask for the append."""
    process = await world.worker(waits)
    handle = await process.gasoline.dispatch(waits, None)
    await process.until(handle.id, has("activity.completed"))
    await handle.signal(Found(number=2))
    assert await soon(handle.output()) == 12


async def test_payments_beside_an_endless_chain_of_look_ups_get_their_turn(world: World) -> None:
    """semantics.md §4: in a join, what waits to be durable is not kept waiting by ephemeral steps beside it."""
    paid = asyncio.Event()

    @activity
    async def pay_and_say(ctx: ActivityContext, number: int) -> None:
        ran.append(f"pay {number}")
        if number == 3:
            paid.set()

    @activity
    async def poll(ctx: ActivityContext, number: int) -> bool:
        await asyncio.sleep(0)
        return paid.is_set()

    @workflow
    async def polled(ctx: WorkflowContext, _: None) -> None:
        async def polling(ctx: WorkflowContext) -> None:
            number = 0
            while not await ctx.activity(poll, number, ephemeral=True):
                number += 1

        async def paying(ctx: WorkflowContext) -> None:
            for number in range(4):
                await ctx.activity(pay_and_say, number)

        await ctx.join(ctx.closure(polling), ctx.closure(paying))

    process = await world.worker(polled)
    await soon((await process.gasoline.dispatch(polled, None)).output())
    assert ran == [f"pay {number}" for number in range(4)]


async def test_race_between_an_ephemeral_activity_and_a_slow_one_cancels_the_loser(any_world: World) -> None:
    """semantics.md "Race": the loser is cancelled once the decision is durable."""
    cancelled = asyncio.Event()

    @activity
    async def endless(ctx: ActivityContext, _: None) -> int:
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.set()
        return 0

    @workflow
    async def racing(ctx: WorkflowContext, _: None) -> int:
        won = await ctx.race(ctx.activity(look_up, 1, ephemeral=True), ctx.activity(endless, None))
        assert won[0] == 0
        return won[1] + await ctx.activity(look_up, 2, ephemeral=True)

    process = await any_world.worker(racing)
    handle = await process.gasoline.dispatch(racing, None)
    assert await soon(handle.output()) == 30
    await soon(cancelled.wait())


async def test_state_and_tags_of_ephemeral_activities_are_kept(any_world: World) -> None:
    """semantics.md §4: committed with the result, whenever that is."""

    @activity
    async def note(ctx: ActivityContext, number: int) -> None:
        await ctx.update_tags({"last": number})

    @workflow
    async def noting(ctx: WorkflowContext, _: None) -> list[str]:
        seen: list[str] = []
        for number in range(3):
            await ctx.activity(note, number, ephemeral=True)
            seen.append(ctx.tags["last"])
        return seen

    process = await any_world.worker(noting)
    handle = await process.gasoline.dispatch(noting, None)
    assert await soon(handle.output()) == ["0", "1", "2"]
    assert process.log.count == 2


@pytest.mark.parametrize("times", [1, 2])
async def test_failures_of_an_ephemeral_activity_are_recorded(world: World, times: int) -> None:
    """semantics.md §4: each attempt; the last failure is raised into the body without waiting, and recorded with the end."""

    @activity(max_attempts=times)
    async def failing(ctx: ActivityContext, _: None) -> None:
        ran.append(f"attempt {ctx.attempt}")
        raise NotRetryable("no") if ctx.attempt == 2 else ConnectionError("no line")

    @workflow
    async def failing_flow(ctx: WorkflowContext, _: None) -> str:
        try:
            await ctx.activity(failing, None, ephemeral=True)
        except ActivityFailed as failed:
            return f"{failed.attempts} {failed.error.type}"
        raise AssertionError

    process = await world.worker(failing_flow)
    handle = await process.gasoline.dispatch(failing_flow, None)
    if times > 1:
        await process.until(handle.id, has("activity.failed"))
        await process.advance(1)
    assert await soon(handle.output()) == ("1 ConnectionError" if times == 1 else "2 NotRetryable")
    assert ran == [f"attempt {number + 1}" for number in range(times)]
    assert types(await handle.history()).count("activity.failed") == times


def _mixed(sim: Simulation) -> tuple[object, ...]:
    """A workflow with all kinds of steps beside and behind ephemeral ones; each durable one must count once."""
    handle = sim.dispatch(mixed, None)
    sim.signal_at(3600, Found(number=7), to=handle)
    return (handle.output(), *_side_effects(handle.history()))


def _side_effects(history: list[Event]) -> list[str]:
    return [f"{data.name} {data.location}" for event in history if isinstance(data := event.data, ev.ActivityCompleted)]


@workflow
async def mixed(ctx: WorkflowContext, _: None) -> int:
    total = 0

    async def looking(ctx: WorkflowContext) -> int:
        return sum([await ctx.activity(look_up, number, ephemeral=True) for number in range(3)])

    async def paying(ctx: WorkflowContext) -> int:
        return await ctx.activity(pay, 1) + await ctx.activity(look_up, 5, ephemeral=True)

    total += sum(await ctx.join(ctx.closure(looking), ctx.closure(paying)))
    total += sum(await ctx.join_all([ctx.activity(look_up, number, ephemeral=True) for number in range(3)]))
    total += (await ctx.listen(Found)).number
    total += await ctx.activity(look_up, total, ephemeral=True)
    return await ctx.activity(pay, total)


def test_mixed_steps_survive_a_crash_at_every_append() -> None:
    """semantics.md §4: whatever was lost is done again, and comes to the same."""
    value = crash_everywhere(_mixed, [mixed])
    assert value[0] == (30 + 52 + 30 + 7) * 11 + 1


@pytest.mark.parametrize("appends", range(1, 9))
async def test_no_space_at_any_append_runs_nothing_twice(world: World, appends: int) -> None:
    """required.md B04 over all kinds of steps."""
    process = await world.worker(mixed)
    handle = await process.gasoline.dispatch(mixed, None, key="k")
    process.log.script = {appends + 1: NoSpace}
    await process.settle()
    while True:
        try:
            await handle.signal(Found(number=7), id="found")
            break
        except NoSpace:
            continue
    assert await soon(handle.output()) == (30 + 52 + 30 + 7) * 11 + 1
    looked = [f"look_up {number}" for number in (0, 1, 2)]
    assert sorted(ran) == sorted(["pay 1", "pay 1309", *looked, *looked, "look_up 5", "look_up 119"])
