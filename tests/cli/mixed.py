"""Workflows that take steps of every kind in an order that their input decides: whatever they record must replay."""

from __future__ import annotations

import asyncio
import random

from pydantic import BaseModel

from gasoline_es import ActivityContext, Backoff, Break, Signal, WorkflowContext, activity, workflow


class Go(Signal): ...


class Never(Signal): ...


class State(BaseModel):
    done: int = 0


@activity(max_attempts=2, backoff=Backoff(base=0.001, doublings=0))
async def work(ctx: ActivityContext, number: int) -> int:
    if number % 7 == 3:
        raise ValueError(f"{number} does not work")
    await asyncio.sleep(0.001 * (number % 5))
    return number


@workflow
async def sub(ctx: WorkflowContext, number: int) -> int:
    return await ctx.activity(work, number % 7)


async def side(ctx: WorkflowContext) -> int:
    await ctx.listen(Go, timeout=0.003)
    return await ctx.activity(work, 1)


async def slow(ctx: WorkflowContext) -> int:
    await ctx.activity(work, 4)
    await ctx.sleep(0.001)
    return await ctx.activity(work, 1)


@workflow
async def mixed(ctx: WorkflowContext, number: int) -> int:
    async def iteration(inner: WorkflowContext, state: State) -> Break[int] | None:
        state.done += 1
        await inner.catch(inner.activity(work, state.done))
        return Break(state.done) if state.done > number % 30 else None

    chosen = random.Random(number)
    for _ in range(5):
        match chosen.randrange(8):
            case 0:
                await ctx.join(ctx.listen(Go, timeout=0.004), ctx.activity(work, 4), ctx.closure(side))
            case 1:
                await ctx.race(ctx.closure(slow), ctx.activity(work, 4), ctx.listen(Go, timeout=0.005))
            case 2:
                await ctx.loop(iteration, State(), commit_interval=4)
            case 3:
                await ctx.listen(Go, timeout=0.002)
            case 4:
                await ctx.catch(ctx.run(sub, number))
            case 5:
                other = await ctx.dispatch(sub, number - number % 7)
                await other.output()
            case 6:
                await ctx.listen_n(Go, limit=3, timeout=0.003)
                await ctx.check_version(2)
            case _:
                await ctx.sleep(0.001)
                await ctx.v(2).activity(work, 2)
                await ctx.removed("sleep")
    if number % 3 == 0:
        await ctx.listen(Never)
    return number
