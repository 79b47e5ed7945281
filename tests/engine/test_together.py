"""What each of two features keeps of the other: cancels, reruns, rollbacks, suspects, outputs, the check of histories."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from gasoline_es import ActivityContext, Break, Gasoline, Signal, WorkflowContext, activity, workflow
from gasoline_es.core import events as ev
from gasoline_es.core.commands import Cancel
from gasoline_es.errors import GasolineError, NotRetryable, RerunRefused
from gasoline_es.log.port import PAYLOAD_BYTES_MAX
from gasoline_es.registry import Registry
from gasoline_es.runtime import driver, suspects
from gasoline_es.runtime.driver import Driver
from gasoline_es.runtime.rebalancing import Rebalancing
from gasoline_es.testing import Simulation, replay_check
from tests.engine.harness import World, soon, types


class Go(Signal): ...


@activity
async def double(ctx: ActivityContext, number: int) -> int:
    return 2 * number


@activity
async def undo(ctx: ActivityContext, what: str) -> None: ...


@activity
async def undo_more(ctx: ActivityContext, what: str) -> None: ...


@activity
async def mark(ctx: ActivityContext, _: None) -> None:
    await ctx.update_tags({"vip": "yes"})


# --- a dead workflow, and an output that comes for it -----------------------------------------------------------------


@workflow
async def waits_to_go(ctx: WorkflowContext, _: None) -> int:
    await ctx.listen(Go)
    return 1


@workflow
async def dies_beside(ctx: WorkflowContext, workflow_id: str) -> None:
    await ctx.race(ctx.output(waits_to_go, workflow_id), ctx.activity(double, 1))
    raise ValueError("on purpose")


async def test_an_output_that_comes_for_a_dead_workflow_does_not_run_it(any_world: World) -> None:
    """semantics.md §7: nothing wakes a dead one but an operator."""
    process = await any_world.worker(waits_to_go, dies_beside)
    other = await process.gasoline.dispatch(waits_to_go, None)
    handle = await process.gasoline.dispatch(dies_beside, other.id)
    await process.until(other.id, lambda history: "waiter.added" in types(history))
    await process.status(handle.id, "dead")
    await other.signal(Go())
    assert await soon(other.output()) == 1
    await process.settle()
    assert types(await handle.history())[-2:] == ["workflow.failed", "output.received"]
    assert (await handle.get()).status == "dead"
    await process.kill()
    again = await any_world.worker(waits_to_go, dies_beside)
    await again.settle()
    assert types(await again.gasoline.history(handle.id)).count("workflow.failed") == 1


async def test_code_changed_where_an_output_is_waited_for_diverges_with_what_to_write(any_world: World) -> None:
    """semantics.md §3, rule 4: the other workflow knows the place, so the step is recorded before it waits."""

    @workflow(name="changing")
    async def before(ctx: WorkflowContext, workflow_id: str) -> int:
        return await ctx.output(waits_to_go, workflow_id)

    @workflow(name="changing")
    async def after(ctx: WorkflowContext, workflow_id: str) -> int:
        return await ctx.activity(double, 1)

    process = await any_world.worker(waits_to_go, before)
    other = await process.gasoline.dispatch(waits_to_go, None)
    handle = await process.gasoline.dispatch(before, other.id)
    await process.until(other.id, lambda history: "waiter.added" in types(history))
    await process.kill()
    changed = await any_world.worker(waits_to_go, after)
    await changed.status(handle.id, "dead")
    error = (await changed.gasoline.get(handle.id)).error
    assert error is not None
    assert error.message.startswith("history diverged at {1}: recorded is output 'waits_to_go'")
    await changed.gasoline.signal(Go(), to=other.id)
    await changed.settle()
    await changed.kill()
    mended = await any_world.worker(waits_to_go, before)
    await mended.gasoline.wake(handle.id)
    assert await soon(mended.gasoline.handle(handle.id, before).output()) == 1


# --- suspects ---------------------------------------------------------------------------------------------------------


gates: list[asyncio.Event] = []
ran: list[int] = []


@activity(timeout=3600)
async def hold(ctx: ActivityContext, number: int) -> int:
    ran.append(number)
    await gates[0].wait()
    return number


@workflow
async def holding(ctx: WorkflowContext, number: int) -> int:
    return await ctx.activity(hold, number)


async def nothing_but(ctx: WorkflowContext) -> int:
    return await ctx.activity(double, await ctx.activity(double, 1))


@workflow
async def holding_beside(ctx: WorkflowContext, _: None) -> int:
    held, doubled = await ctx.join(ctx.activity(hold, 1), ctx.closure(nothing_but))
    return held + doubled


@pytest.fixture
def one_gate() -> None:
    gates[:] = [asyncio.Event()]
    ran.clear()


@pytest.mark.usefixtures("one_gate")
async def test_a_suspect_is_not_started_once_its_workflow_is_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """design §5, semantics.md §12: ``now=True`` ends it at once, and nothing follows the end."""
    monkeypatch.setattr(suspects, "TOGETHER_MAX", 1)
    first = await world.worker(holding)
    for number in (1, 2):
        await first.gasoline.dispatch(holding, number)
    await first.settle()
    await first.kill()
    ran.clear()
    process = await world.worker(holding)
    await process.settle()
    care = process.driver.suspects
    (held,), (started,) = list(care.held.values()), list(care.under_way)
    held.live.partition.decide(Cancel(held.live.id, "operator", now=True))
    care.ended(started)  # before the end is durable, it is the other one's turn
    await process.settle()
    history = await process.gasoline.history(held.live.id)
    assert types(history) == ["workflow.dispatched", "workflow.cancel_requested", "workflow.cancelled"]
    assert len(ran) == 1
    gates[0].set()


@pytest.mark.usefixtures("one_gate")
async def test_a_rerun_leaves_suspects_beside_the_step_as_suspect_as_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """design §5: whatever may kill the process again has its start on the log first."""
    first = await world.worker(holding_beside)
    handle = await first.gasoline.dispatch(holding_beside, None)
    await first.settle()
    await first.kill()
    ran.clear()
    monkeypatch.setattr(suspects, "TOGETHER_MAX", 0)
    process = await world.worker(holding_beside)
    await process.settle()
    again = process.gasoline.handle(handle.id, holding_beside)
    await again.rerun("{2, 1}")
    await process.settle()
    assert ran == []
    monkeypatch.setattr(suspects, "TOGETHER_MAX", 1)
    gates[0].set()
    process.driver.suspects.ended("nothing")  # looks again
    assert await soon(again.output()) == 1 + 4
    assert [event.location for event in await again.history() if event.type == "activity.started"] == ["{1}"]


# --- rollbacks --------------------------------------------------------------------------------------------------------


class Steps(BaseModel):
    done: int = 0


@activity
async def fails_at(ctx: ActivityContext, number: int) -> int:
    if number == 3:
        raise NotRetryable("it is three")
    return number


async def take_step(ctx: WorkflowContext, steps: Steps) -> Break[int] | None:
    number = await ctx.activity(fails_at, steps.done + 1)
    ctx.on_rollback(undo, f"step {number}")
    steps.done = number
    return None


@workflow
async def steps_undone(ctx: WorkflowContext, _: None) -> int:
    await ctx.activity(double, 1)
    await ctx.checkpoint()
    return await ctx.loop(take_step, Steps(), commit_interval=1)


@pytest.fixture
def sim() -> Iterator[Simulation]:
    with Simulation([steps_undone]) as made:
        yield made


def rolled_back(sim: Simulation) -> str:
    handle = sim.dispatch(steps_undone, None)
    sim.advance(0)
    assert handle.get().status == "dead"
    return handle.id


def test_recover_of_what_was_rolled_back_says_what_helps(sim: Simulation) -> None:
    """semantics.md §12: what was done is undone, so nothing can go on from there."""
    handle = sim.handle(rolled_back(sim), steps_undone)
    with pytest.raises(GasolineError, match=r"was rolled back at \{4\}.*Start it over from its checkpoint"):
        handle.recover()


@pytest.mark.parametrize("place", ["{3, 2}", "{3}", "{4}", "{4, 1}"])
def test_a_rerun_that_would_go_on_with_what_is_undone_is_refused(sim: Simulation, place: str) -> None:
    """semantics.md §4, §12."""
    handle = sim.handle(rolled_back(sim), steps_undone)
    before = len(handle.history())
    with pytest.raises(RerunRefused, match=r"its checkpoint at \{2\} is undone.*Start over from \{2\}"):
        handle.rerun(place)
    assert len(handle.history()) == before


@pytest.mark.parametrize("place", ["{2}", "{1}", "{}"])
def test_a_rerun_from_the_checkpoint_or_before_does_everything_again(sim: Simulation, place: str) -> None:
    """semantics.md §4, §12."""
    handle = sim.handle(rolled_back(sim), steps_undone)
    handle.rerun(place)
    sim.advance(0)
    undone = [event.data for event in handle.history() if isinstance(event.data, ev.ActivityCompleted)]
    assert [data.input for data in undone if data.name == "undo"] == [b'"step 2"', b'"step 1"'] * 2


def test_what_a_loop_gives_is_carried_by_each_commit_once(sim: Simulation) -> None:
    """A commit carries what is new: else the log would grow with the square of the iterations."""
    history = sim.handle(rolled_back(sim), steps_undone).history()
    carried = [len(event.data.handlers) for event in history if isinstance(event.data, ev.LoopCommitted)]
    assert carried == [0, 1, 1]


# --- the check of histories -------------------------------------------------------------------------------------------


async def doubled_for_the_vip(ctx: WorkflowContext) -> int:
    ctx.on_rollback(undo_more, "in the closure")
    return await ctx.activity(double, 1 if ctx.tags.get("vip") == "yes" else 2)


@workflow
async def much_in_one(ctx: WorkflowContext, _: None) -> int:
    await ctx.activity(mark, None)
    await ctx.checkpoint()
    await ctx.activity(double, 7)
    ctx.on_rollback(undo, "before the closure")
    if await ctx.closure(doubled_for_the_vip) != 2:
        return await ctx.activity(double, 100)
    await ctx.loop(take_step, Steps(), commit_interval=1)
    return 0


async def test_replay_check_sees_tags_and_handlers_as_the_engine_does(tmp_path: Path) -> None:
    """semantics.md §3, §12: a history that replays is no divergence to the gate before a deployment."""
    url = f"file:{tmp_path}"
    async with Gasoline.open(url) as gasoline, gasoline.worker([much_in_one]):
        handle = await gasoline.dispatch(much_in_one, None)
        async with asyncio.timeout(20):
            while (await handle.get()).status != "dead":
                await asyncio.sleep(0.01)
        assert types(await handle.history()).count("rollback.started") == 1
    report = replay_check([much_in_one], url)
    assert (report.divergences, report.warnings, report.histories) == ([], [], 1)


# --- a fork of what was cancelled ---------------------------------------------------------------------------------------


@workflow
async def cleans_up(ctx: WorkflowContext, _: None) -> None:
    try:
        await ctx.sleep(3600)
    finally:
        await ctx.activity(double, 1)
        await ctx.activity(undo, "the rest")


@pytest.mark.parametrize("fork", [False, True])
def test_a_cancelled_workflow_that_starts_its_clean_up_over_ends_cancelled(fork: bool) -> None:
    """semantics.md §4, §12: the cancel came before the step, so it holds, in a copy too."""
    with Simulation([cleans_up]) as sim:
        handle = sim.dispatch(cleans_up, None)
        handle.cancel()
        sim.advance(0)
        assert handle.get().status == "cancelled"
        again = handle.rerun("{3}", fork=fork)
        sim.advance(0)
        assert again.get().status == "cancelled"
        done = [event.data.name for event in again.history() if isinstance(event.data, ev.ActivityCompleted)]
        assert done == (["double", "undo"] if fork else ["double", "undo", "undo"])


# --- recover, then a rerun beside it ------------------------------------------------------------------------------------


closed = {"left": True}


@activity(max_attempts=1)
async def left(ctx: ActivityContext, _: None) -> str:
    if closed["left"]:
        raise ConnectionError("closed")
    await asyncio.sleep(20)
    return "left"


@activity(max_attempts=1)
async def right(ctx: ActivityContext, _: None) -> str:
    raise ConnectionError("closed for ever")


@workflow
async def left_or_right(ctx: WorkflowContext, _: None) -> int:
    return (await ctx.race(ctx.activity(left, None), ctx.activity(right, None)))[0]


def test_what_was_recovered_stays_open_beside_a_step_that_starts_over() -> None:
    """semantics.md §4, §7: the other competitors stay, as they are."""
    closed["left"] = True
    with Simulation([left_or_right]) as sim:
        handle = sim.dispatch(left_or_right, None)
        sim.advance(1)
        assert handle.get().status == "dead"
        closed["left"] = False
        handle.recover()
        sim.advance(5)
        handle.rerun("{1, 2, 1}")
        assert handle.output() == 0
        assert len(sim.calls(left)) == 2, "the attempt that was under way is the one that wins"


# --- a worker and a client that comes back ------------------------------------------------------------------------------


async def test_a_worker_asks_again_for_a_partition_that_its_owner_took_back(file_world: World) -> None:
    """design §5: who drives nothing yields to a worker; also the second time."""
    client = await file_world.process()
    handle = await client.gasoline.dispatch(holding, 1)
    index = client.node.index_of(handle.id)
    other = await file_world.process()
    bodies = Driver(Registry([holding]), file_world.clock, 1, 1.0, other.node)
    sharing = Rebalancing(other.node, bodies, version=0, leave_limit_s=1.0)
    for times in (1, 2):
        await sharing._ask_for(index, [])
        await sharing._ask_for(index, [])  # once for each time that it is owned
        async with asyncio.timeout(20):
            while index in client.node.partitions:
                await asyncio.sleep(0.001)
        client.node._yielded.clear()
        if times == 1:
            assert await client.node.own(index) is not None
    bodies.close()


# --- more than a record holds ---------------------------------------------------------------------------------------------


@workflow
async def waits_for_many(ctx: WorkflowContext, ids: list[str]) -> list[int]:
    return await ctx.join_all([ctx.output(waits_to_go, one) for one in ids])


async def test_a_workflow_that_waits_for_very_many_outputs_leaves_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it waits for is named for people, as far as a record has room; each of them wakes it."""
    monkeypatch.setattr(driver, "OUTPUTS_SHOWN_MAX", 3)
    process = await world.worker(waits_to_go, waits_for_many)
    others = [await process.gasoline.dispatch(waits_to_go, None) for _ in range(8)]
    handle = await process.gasoline.dispatch(waits_for_many, [one.id for one in others])
    for one in others:
        await process.until(one.id, lambda history: "waiter.added" in types(history))
    await process.settle()
    await process.evict()
    await process.status(handle.id, "sleeping")
    suspended = [event.data for event in await handle.history() if isinstance(event.data, ev.WorkflowSuspended)]
    assert [len(data.outputs) for data in suspended] == [3]
    for one in others:
        await one.signal(Go())
    assert await soon(handle.output()) == [1] * 8


@workflow
async def much_to_give(ctx: WorkflowContext, size: int) -> str:
    return "x" * size


async def test_an_output_leaves_room_for_who_records_it_as_well(world: World) -> None:
    """What fits at the end of one history must fit into that of a workflow that waits for it."""
    process = await world.worker(much_to_give)
    fits = await process.gasoline.dispatch(much_to_give, PAYLOAD_BYTES_MAX - 2)
    assert len(await soon(fits.output())) == PAYLOAD_BYTES_MAX - 2
    too_much = await process.gasoline.dispatch(much_to_give, PAYLOAD_BYTES_MAX - 1)
    await process.status(too_much.id, "dead")
