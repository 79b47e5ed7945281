"""Steps that reach other workflows: each counts once, whatever append the process dies at (semantics.md §4, §5)."""

from __future__ import annotations

from typing import Any

import pytest

from gasoline_es import ActivityContext, Gasoline, Signal, WorkflowContext, WorkflowNotFound, activity, workflow
from gasoline_es.core import events as ev
from gasoline_es.core.ids import partition_of
from tests.engine.harness import Fate, Process, World, consumed, has, kills, soon, types


class Pay(Signal):
    amount: int


@activity
async def double(ctx: ActivityContext, n: int) -> int:
    return 2 * n


@workflow
async def child(ctx: WorkflowContext, n: int) -> int:
    return await ctx.activity(double, n)


@workflow
async def till(ctx: WorkflowContext, payments: int) -> int:
    total = 0
    for _ in range(payments):
        total += (await ctx.listen(Pay)).amount
    return total


@workflow
async def family(ctx: WorkflowContext, children: int) -> list[int]:
    subs = [await ctx.dispatch(child, n) for n in range(children)]
    outputs = await ctx.join_all([sub.output() for sub in subs])
    counter = await ctx.dispatch(till, 3, tags={"of": ctx.workflow_id})
    await ctx.signal(Pay(amount=1), to=counter.id)
    await ctx.signal(Pay(amount=10), till, tags={"of": ctx.workflow_id})
    await ctx.signal(Pay(amount=100), to=counter.id)
    return [*outputs, await counter.output()]


WORKFLOWS = (family, child, till)


async def everything(gasoline: Gasoline) -> list[Any]:
    return [info async for info in gasoline.list(payloads=True)]


async def test_family_of_workflows_ends_with_everybodys_outputs(any_world: World) -> None:
    """semantics.md §4: dispatch, signal and output, across partitions."""
    process = await any_world.worker(*WORKFLOWS)
    handle = await process.gasoline.dispatch(family, 3)
    assert await soon(handle.output()) == [0, 2, 4, 111]
    history = await handle.history()
    kinds = types(history)
    assert [kinds.count(k) for k in ("workflow.spawned", "signal.sent", "output.received")] == [4, 3, 4]
    spawned = [event.data for event in history if isinstance(event.data, ev.WorkflowSpawned)]
    for one in spawned:
        first = (await process.gasoline.history(one.workflow_id))[0]
        assert isinstance(first.data, ev.WorkflowDispatched)
        assert (first.data.parent, first.ray_id) == (handle.id, handle.id)
    sent = [event.data.signal_id for event in history if isinstance(event.data, ev.SignalSent)]
    assert consumed(await process.gasoline.history(spawned[-1].workflow_id)) == sent, "in the order of the calls"


@pytest.mark.parametrize("fate", ["lost", "unanswered"])
async def test_kill_at_every_append_of_a_family_neither_loses_nor_doubles_anything(fate: Fate) -> None:
    """design §1: nothing leaves a process before what it rests on is durable; what is sent again is known again."""
    number = 0
    async for world, number in kills(fate, run_family):
        again = await world.worker(*WORKFLOWS)
        handle = await again.gasoline.dispatch(family, 2, key="family")
        assert await soon(handle.output()) == [0, 2, 111], f"killed at append {number}"
        infos = await everything(again.gasoline)
        assert sorted(info.name for info in infos) == ["child", "child", "family", "till"]
        assert {info.status for info in infos} == {"complete"}
        (counter,) = [info for info in infos if info.name == "till"]
        taken = await again.gasoline.history(counter.id)
        assert types(taken).count("signal.received") == 3
    assert number >= 10


async def run_family(process: Process) -> None:
    await process.work(*WORKFLOWS)
    await (await process.gasoline.dispatch(family, 2, key="family")).output()


@workflow
async def waits_for(ctx: WorkflowContext, workflow_id: str) -> int | str:
    try:
        return await ctx.output(till, workflow_id)
    except WorkflowNotFound:
        return "nobody"


async def test_waiting_workflow_leaves_memory_and_wakes_when_the_other_completes(any_world: World) -> None:
    """B17: nobody sleeps on a workflow that is complete."""
    process = await any_world.worker(till, waits_for)
    counter = await process.gasoline.dispatch(till, 1)
    waiting = await process.gasoline.dispatch(waits_for, counter.id)
    await process.until(counter.id, has("waiter.added"))
    await process.settle()
    await process.evict()
    await process.status(waiting.id, "sleeping")
    assert not process.in_memory(waiting.id)
    info = await waiting.get()
    assert info.waiting_for == f"output of {counter.id}"
    await process.kill()
    process = await any_world.worker(till, waits_for)
    await process.gasoline.signal(Pay(amount=5), to=counter.id)
    assert await soon(process.gasoline.handle(waiting.id, waits_for).output()) == 5


async def test_output_of_what_is_complete_already_and_of_nobody(any_world: World) -> None:
    """B17: a child that finished before its parent looked; semantics.md §4: waiting for an unknown id."""
    process = await any_world.worker(till, waits_for)
    done = await process.gasoline.dispatch(till, 0)
    assert await soon(done.output()) == 0
    assert await soon((await process.gasoline.dispatch(waits_for, done.id)).output()) == 0
    nobody = "00000000-0000-7000-8000-000000000000"
    handle = await process.gasoline.dispatch(waits_for, nobody)
    assert await soon(handle.output()) == "nobody"
    assert types(await process.gasoline.history(done.id)).count("waiter.added") == 0


@workflow
async def parent_of_eight(ctx: WorkflowContext, _: None) -> list[int]:
    subs = [await ctx.dispatch(child, n) for n in range(8)]
    return await ctx.join_all([sub.output() for sub in subs])


@pytest.mark.parametrize("rounds", [10, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
async def test_children_that_finish_together_wake_every_parent(any_world: World, rounds: int) -> None:
    """B17: 3 parents, each waiting for 8 workflows that finish at the same moment, round after round."""
    process = await any_world.worker(parent_of_eight, child)
    for _ in range(rounds):
        parents = [await process.gasoline.dispatch(parent_of_eight, None) for _ in range(3)]
        for parent in parents:
            assert await soon(parent.output()) == [2 * n for n in range(8)]
    asleep = [info for info in await everything(process.gasoline) if info.status != "complete"]
    assert asleep == []


@workflow
async def dispatches_unique(ctx: WorkflowContext, _: None) -> list[str]:
    first = await ctx.dispatch(till, 1, tags={"shop": "one"}, unique=True)
    second = await ctx.dispatch(till, 1, tags={"shop": "one"}, unique=True)
    await ctx.signal(Pay(amount=1), to=first.id)
    await second.output()
    third = await ctx.dispatch(till, 0, tags={"shop": "one"}, unique=True)
    return [first.id, second.id, third.id]


async def test_unique_dispatch_finds_the_incomplete_one(any_world: World) -> None:
    """semantics.md §6."""
    process = await any_world.worker(dispatches_unique, till)
    handle = await process.gasoline.dispatch(dispatches_unique, None)
    first, second, third = await soon(handle.output())
    assert first == second != third
    spawned = [event.data for event in await handle.history() if isinstance(event.data, ev.WorkflowSpawned)]
    assert [one.created for one in spawned] == [True, False, True]
    count = process.gasoline.log.partition_count
    assert partition_of(first, count) == partition_of(third, count), "equal unique dispatches meet in one partition"


@workflow
async def sends_to_nobody(ctx: WorkflowContext, target: str) -> list[str]:
    said: list[str] = []
    for graceful in (False, True):
        try:
            answer = await ctx.signal(Pay(amount=1), to=target, graceful_not_found=graceful)
            said.append(f"{answer}")
        except WorkflowNotFound as error:
            said.append(f"not found: {error.fields['workflow_id'] == target}")
        try:
            answer = await ctx.signal(Pay(amount=1), till, tags={"shop": "none"}, graceful_not_found=graceful)
            said.append(f"{answer}")
        except WorkflowNotFound:
            said.append("not found")
    return said


async def test_signal_to_nobody_is_an_error_that_replays_or_nothing(any_world: World) -> None:
    """semantics.md §5: no such workflow, or none that is incomplete."""
    process = await any_world.worker(sends_to_nobody, till)
    complete = await process.gasoline.dispatch(till, 0)
    await soon(complete.output())
    handle = await process.gasoline.dispatch(sends_to_nobody, complete.id)
    assert await soon(handle.output()) == ["not found: True", "not found", "None", "None"]
    assert types(await handle.history()).count("signal.sent") == 4


@workflow
async def pays_itself(ctx: WorkflowContext, _: None) -> int:
    await ctx.signal(Pay(amount=4), to=ctx.workflow_id)
    return (await ctx.listen(Pay)).amount


async def test_workflow_may_signal_itself(any_world: World) -> None:
    process = await any_world.worker(pays_itself)
    handle = await process.gasoline.dispatch(pays_itself, None)
    assert await soon(handle.output()) == 4
