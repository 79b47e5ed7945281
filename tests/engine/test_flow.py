"""Joins, races and loops in the engine: side by side, through kills, with their state refused (semantics.md §4, B07)."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from pydantic import BaseModel

from gasoline_es import ActivityContext, Break, Gasoline, WorkflowContext, activity, workflow
from gasoline_es.core import events as ev
from gasoline_es.core.location import format_location
from tests.engine import workflows as w
from tests.engine.harness import World, soon
from tests.engine.subprocesses import errors, line, program


async def test_join_of_twenty_killed_after_any_number_of_them_goes_on_under_another_hash_seed(
    tmp_log_url: str, tmp_path: Path
) -> None:
    """required.md B07: locations follow the arguments; what is finished is not run again; values in argument order."""
    runs = tmp_path / "runs"
    settings = {"GASOLINE_TEST_RUNS": str(runs)}
    async with program("join-twenty", tmp_log_url, **settings, PYTHONHASHSEED="1", GASOLINE_TEST_HANGS="1") as first:
        assert await line(first) == "finished", await errors(first)
        first.kill()
        await soon(first.wait())
    finished = await completed(tmp_log_url)
    assert {k: len(numbers) for k, numbers in finished.items()} == {k: k for k in range(1, w.JOINED)}
    async with program("join-twenty", tmp_log_url, **settings, PYTHONHASHSEED="2") as second:
        assert await line(second) == "finished", await errors(second)
        assert await line(second) == "complete", await errors(second)
    times = Counter(tuple(map(int, ran.split())) for ran in runs.read_text().splitlines())
    for k, numbers in finished.items():
        assert [times[k, number] for number in range(w.JOINED)] == [
            1 if number in numbers else 2 for number in range(w.JOINED)
        ]
    assert all(numbers == list(range(w.JOINED)) for numbers in (await completed(tmp_log_url)).values())


async def completed(url: str) -> dict[int, list[int]]:
    """The numbers of the activities that are recorded as completed, by workflow. Each must be at its argument's place."""
    found: dict[int, list[int]] = {}
    async with Gasoline.open(url, readonly=True) as gasoline:
        async for info in gasoline.list(name="join_twenty"):
            history = await gasoline.history(info.id)
            places = [
                format_location(event.data.location) for event in history if isinstance(event.data, ev.StepPlaced)
            ]
            assert places == [f"{{{n}}}" for n in range(1, w.JOINED + 1)]
            numbers: list[int] = []
            for event in history:
                if isinstance(event.data, ev.ActivityCompleted):
                    numbers.append(int(event.data.output))
                    assert event.location == f"{{{numbers[-1] + 1}}}"
            dispatched = history[0].data
            assert isinstance(dispatched, ev.WorkflowDispatched)
            found[int(dispatched.input)] = sorted(numbers)
    return found


# --- the state --------------------------------------------------------------------------------------------------------


class Tally(BaseModel):
    count: int = 0


tried: list[str] = []


@activity
async def tally(ctx: ActivityContext, name: str) -> int:
    tried.append(name)
    state = ctx.state(Tally)
    state.count += 1
    return state.count


@workflow
async def tallies_one_by_one(ctx: WorkflowContext, name: str) -> str:
    async def below(inner: WorkflowContext) -> int:
        return await inner.activity(tally, name)

    async def again(inner: WorkflowContext) -> Break[int] | None:
        return Break(await inner.activity(tally, name))

    # A join that lost before it was started must not count as under way.
    lost = await ctx.race(ctx.maybe(None), ctx.join(ctx.sleep(1), ctx.sleep(2)), ctx.race(ctx.sleep(1), ctx.sleep(2)))
    return f"{lost} {await ctx.closure(below)} {await ctx.repeat(again)} {await ctx.activity(tally, name)}"


async def test_state_is_refused_side_by_side_for_good_and_at_once(world: World) -> None:
    """semantics.md §4: inside a join or race an activity may not touch the state; the error is not retried."""

    @workflow
    async def joined(ctx: WorkflowContext, name: str) -> str:
        outcome = await ctx.catch(ctx.join(ctx.activity(tally, name), ctx.sleep(0)))
        return repr(outcome)

    process = await world.worker(joined)
    handle = await process.gasoline.dispatch(joined, "joined")
    said = await soon(handle.output())
    assert "DefinitionError" in said
    assert "inside a join or a race" in said
    assert "after the join" in said
    assert tried.count("joined") == 1


async def test_state_is_there_for_what_goes_on_alone_in_closures_and_loops(world: World) -> None:
    process = await world.worker(tallies_one_by_one)
    handle = await process.gasoline.dispatch(tallies_one_by_one, "alone")
    assert await soon(handle.output()) == "(0, None) 1 2 3"


# --- losers -----------------------------------------------------------------------------------------------------------

going_on: list[str] = []
let_go: list[str] = []


@activity(timeout=3600)
async def lingers(ctx: ActivityContext, name: str) -> None:
    going_on.append(name)
    try:
        await asyncio.Event().wait()
    finally:
        let_go.append(name)


@activity
async def at_once(ctx: ActivityContext, name: str) -> str:
    while name not in going_on:
        await asyncio.sleep(0)
    return name


@workflow
async def races(ctx: WorkflowContext, name: str) -> str:
    match await ctx.race(ctx.activity(lingers, name), ctx.activity(at_once, name)):
        case (1, winner):
            return winner
        case _:
            raise AssertionError


@workflow
async def races_and_sleeps(ctx: WorkflowContext, name: str) -> str:
    won, _ = await ctx.race(ctx.activity(lingers, name), ctx.activity(at_once, name))
    await ctx.sleep(10)
    return f"won by {won}"


@pytest.mark.parametrize("name", ["races", "races_and_sleeps"])
async def test_loser_of_a_race_is_cancelled_whether_the_workflow_ends_with_it_or_goes_on(
    world: World, name: str
) -> None:
    """semantics.md §4: losers are cancelled."""
    process = await world.worker(races, races_and_sleeps)
    handle = await process.gasoline.dispatch({"races": races, "races_and_sleeps": races_and_sleeps}[name], name)
    while name not in let_go:
        await asyncio.sleep(0)
    await process.advance(20)
    assert await soon(handle.output()) in ("races", "won by 1")
    assert process.driver.runner.running == 0
    assert not process.driver.runner._attempts


@workflow
async def forgets_beside_one(ctx: WorkflowContext, name: str) -> None:
    async def forgetful(inner: WorkflowContext) -> None:
        await inner.activity(at_once, name)
        inner.sleep(1)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]

    await ctx.join(ctx.activity(lingers, name), ctx.closure(forgetful))


async def test_activities_beside_a_step_that_ends_the_run_are_cancelled(world: World) -> None:
    process = await world.worker(forgets_beside_one)
    handle = await process.gasoline.dispatch(forgets_beside_one, "forgets")
    await process.status(handle.id, "dead")
    await process.settle()
    assert "forgets" in let_go
    assert not process.driver.runner._attempts


attempts: list[int] = []


@activity
async def fails_at_first(ctx: ActivityContext, _: None) -> None:
    attempts.append(ctx.attempt)
    raise ConnectionError("refused")


@workflow
async def races_a_retry(ctx: WorkflowContext, _: None) -> str:
    won, _ = await ctx.race(ctx.activity(fails_at_first, None), ctx.sleep(1))
    await ctx.sleep(100)
    return f"won by {won}"


@pytest.mark.parametrize("killed", [False, True])
async def test_loser_that_was_to_be_tried_again_is_not(world: World, killed: bool) -> None:
    """semantics.md §4: a loser is cancelled at its next step, and so is its next attempt."""
    attempts.clear()
    process = await world.worker(races_a_retry)
    handle = await process.gasoline.dispatch(races_a_retry, None)
    await process.settle()
    assert attempts == [1]
    if killed:
        # The next process learns of the attempt to come and of the race's end in one turn.
        await process.kill()
        world.clock.advance(1.5)
        process = await world.worker(races_a_retry)
    await process.advance(1.5)
    tried_before = len(attempts)
    await process.advance(50)
    assert len(attempts) == tried_before
    await process.advance(60)
    assert await soon(process.gasoline.handle(handle.id, races_a_retry).output()) == "won by 1"


async def test_join_whose_steps_all_wait_leaves_memory_and_comes_back_for_each(world: World) -> None:
    """semantics.md §4: whatever it waits for wakes it."""

    @workflow
    async def waits(ctx: WorkflowContext, _: None) -> str:
        note, _, other = await ctx.join(ctx.listen(w.Note), ctx.sleep(100), ctx.listen(w.Other, timeout=50))
        return f"{note.text} {other}"

    process = await world.worker(waits)
    handle = await process.gasoline.dispatch(waits, None)
    await process.evict()
    assert not process.in_memory(handle.id)
    await process.gasoline.signal(w.Note(text="here"), to=handle.id)
    await process.evict()
    assert not process.in_memory(handle.id)
    await process.advance(60)
    await process.evict()
    assert not process.in_memory(handle.id)
    await process.advance(60)
    assert await soon(handle.output()) == "here None"
