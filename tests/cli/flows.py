"""Histories with branches, races and loops for the command line to show, made by the engine on a file log."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from gasoline_es import ActivityContext, Break, Gasoline, Signal, WorkflowContext, activity, workflow


class Round(Signal):
    number: int


class Counted(BaseModel):
    rounds: int = 0


@activity
async def weigh(ctx: ActivityContext, parcel: str) -> int:
    return len(parcel)


@activity(max_attempts=1)
async def ask(ctx: ActivityContext, carrier: str) -> int:
    raise ConnectionError(f"{carrier} is closed")


@workflow
async def label(ctx: WorkflowContext, parcel: str) -> int:
    return await ctx.activity(weigh, parcel)


@workflow
async def branching(ctx: WorkflowContext, parcel: str) -> int:
    """A join of everything, a race that is won, and one that nobody wins."""

    async def doubled(ctx: WorkflowContext) -> int:
        return 2 * await ctx.activity(weigh, parcel)

    async def slow(ctx: WorkflowContext) -> int:
        await ctx.sleep(3_600)
        return 0

    await ctx.join(ctx.closure(doubled), ctx.run(label, parcel), ctx.v(2).activity(weigh, parcel))
    _, won = await ctx.race(ctx.closure(slow), ctx.run(label, parcel))
    try:
        await ctx.race(ctx.activity(ask, "North"), ctx.activity(ask, "South"))
    except ExceptionGroup:
        return won
    return 0


@workflow
async def looping(ctx: WorkflowContext, rounds: int) -> int:
    """A loop of so many rounds, which waits for a signal in each; committed after every four."""

    async def twice(ctx: WorkflowContext) -> Break[None] | None:
        return Break(await ctx.sleep(0))

    async def a_round(ctx: WorkflowContext, counted: Counted) -> Break[int] | None:
        if counted.rounds == rounds:
            await ctx.repeat(twice)
            return Break(counted.rounds)
        await ctx.listen(Round)
        counted.rounds += 1
        return None

    return await ctx.loop(a_round, Counted(), commit_interval=4)


@dataclass(frozen=True)
class Flows:
    """A finished log and the ids of what is in it. ``waiting`` has looped seven times, and waits."""

    directory: Path
    branching: str
    looped: str
    waiting: str


def tell(directory: Path) -> Flows:
    """Make the log."""
    return asyncio.run(_tell(directory))


async def _tell(directory: Path) -> Flows:
    async with (
        Gasoline.open(f"file:{directory}", partitions=2) as gasoline,
        gasoline.worker([branching, looping], evict_after=60),
    ):
        branched = await gasoline.dispatch(branching, "tea")
        await branched.output(timeout=20)
        looped = await gasoline.dispatch(looping, 9)
        for number in range(9):
            await looped.signal(Round(number=number), id=f"round-{number}")
        await looped.output(timeout=20)
    async with Gasoline.open(f"file:{directory}") as gasoline, gasoline.worker([looping], evict_after=0.001):
        waiting = await gasoline.dispatch(looping, 1_000)
        for number in range(7):
            await waiting.signal(Round(number=number), id=f"round-{number}")
            await _suspended(gasoline, waiting.id, number + 1)
    return Flows(directory, branched.id, looped.id, waiting.id)


async def _suspended(gasoline: Gasoline, workflow_id: str, taken: int) -> None:
    """Wait until the workflow took so many signals and left memory behind the last."""
    async with asyncio.timeout(20):
        while True:
            types = [event.type for event in await gasoline.history(workflow_id)]
            if types.count("signal.consumed") == taken and types[-1] == "workflow.suspended":
                return
            await asyncio.sleep(0.002)
