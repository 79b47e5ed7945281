"""Workflows that several tests run, and the processes started by tests: no pytest here, so that those start fast."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gasoline_es import ActivityContext, Backoff, Signal, Workflow, WorkflowContext, activity, workflow

# --- counting signals (required.md B09) -------------------------------------------------------------------------------


class Add(Signal):
    pass


class Counted(BaseModel):
    count: int = 0


@activity
async def add_one(ctx: ActivityContext, _: None) -> int:
    state = ctx.state(Counted)
    state.count += 1
    return state.count


@workflow
async def count_to_three(ctx: WorkflowContext, _: None) -> int:
    while True:
        await ctx.listen(Add)
        if await ctx.activity(add_one, None) == 3:
            return 3


# --- waiting ----------------------------------------------------------------------------------------------------------


class Note(Signal):
    text: str = ""


class Other(Signal):
    text: str = ""


@workflow
async def nap(ctx: WorkflowContext, seconds: float) -> str:
    await ctx.sleep(seconds)
    return "awake"


@workflow
async def one_note(ctx: WorkflowContext, _: None) -> str:
    return (await ctx.listen(Note)).text


@workflow
async def notes(ctx: WorkflowContext, count: int) -> list[str]:
    return [(await ctx.listen(Note)).text for _ in range(count)]


@workflow
async def timed_note(ctx: WorkflowContext, seconds: float) -> str:
    note = await ctx.listen(Note, timeout=seconds)
    return "timeout" if note is None else note.text


@workflow
async def echo(ctx: WorkflowContext, text: str) -> str:
    return text


# --- a thread that blocks (required.md B16) ---------------------------------------------------------------------------


class Marked(BaseModel):
    by: int = 0


release_threads = threading.Event()
"""Never set in a process that a test stops by SIGTERM."""


@activity(max_attempts=2, timeout=1, backoff=Backoff(base=60, doublings=0))
def block(ctx: ActivityContext, _: None) -> str:
    if ctx.attempt == 1:
        print("blocked", flush=True)
        release_threads.wait()
    ctx.state(Marked).by = ctx.attempt
    return f"attempt {ctx.attempt}"


@workflow
async def blocked(ctx: WorkflowContext, _: None) -> str:
    return await ctx.activity(block, None)


@activity(timeout=600)
def block_long(ctx: ActivityContext, _: None) -> str:
    print("blocked", flush=True)
    release_threads.wait()
    return "released"


@workflow
async def blocked_long(ctx: WorkflowContext, _: None) -> str:
    return await ctx.activity(block_long, None)


@activity(timeout=600)
async def linger(ctx: ActivityContext, _: None) -> str:
    print("lingering", flush=True)
    await asyncio.sleep(0.5)
    return "done"


@workflow
async def lingering(ctx: WorkflowContext, _: None) -> str:
    return await ctx.activity(linger, None)


# --- a bit of everything (the chaos test) -----------------------------------------------------------------------------


class Tally(BaseModel):
    steps: list[str] = []


class Push(Signal):
    number: int


class Flaky(BaseModel):
    number: int
    fails: int = 0


@activity(max_attempts=10, backoff=Backoff(base=0.02, doublings=1))
async def step(ctx: ActivityContext, given: Flaky) -> int:
    state = ctx.state(Tally)
    state.steps.append(f"{given.number}")
    await asyncio.sleep(0.005)
    if ctx.attempt <= given.fails:
        raise RuntimeError("not yet")
    return given.number * 10


@activity
def thread_step(ctx: ActivityContext, number: int) -> int:
    return number + 1


@workflow
async def mixture(ctx: WorkflowContext, seed: int) -> list[int]:
    """Steps, retries, sleeps, listens with and without a timeout: every kind of wait there is so far."""
    out: list[int] = []
    for number in range(3):
        out.append(await ctx.activity(step, Flaky(number=number, fails=(seed + number) % 3)))
        await ctx.sleep(0.01 * ((seed + number) % 4))
        out.append((await ctx.listen(Push)).number)
        out.append(await ctx.activity(thread_step, number))
        late = await ctx.listen(Other, timeout=0.02)
        assert late is None
    out += [push.number for push in await ctx.listen_n(Push, limit=10)]
    return out


PUSHES = 4


def mixture_output(seed: int) -> list[int]:
    return [0, 0, 1, 10, 1, 2, 20, 2, 3, 3]


# --- joins (required.md B07) ------------------------------------------------------------------------------------------


class Numbered(BaseModel):
    """``finishing``: how many of the workflow's activities come to their end in a process that hangs."""

    finishing: int
    number: int


def ended_before(given: Numbered) -> int:
    """How many of its activities end before this one: another order for each workflow."""
    order = list(range(JOINED))
    random.Random(given.finishing).shuffle(order)
    return order.index(given.number)


@activity(timeout=3600)
async def join_step(ctx: ActivityContext, given: Numbered) -> int:
    """Write down that it ran; then, in a process that hangs, come to an end only in its turn."""
    with Path(os.environ["GASOLINE_TEST_RUNS"]).open("a") as runs:
        runs.write(f"{given.finishing} {given.number}\n")
    if os.environ.get("GASOLINE_TEST_HANGS") and ended_before(given) >= given.finishing:
        await asyncio.Event().wait()
    await asyncio.sleep(0.003 * ended_before(given))
    return given.number


@workflow
async def join_twenty(ctx: WorkflowContext, finishing: int) -> list[int]:
    return await ctx.join_all(
        [ctx.activity(join_step, Numbered(finishing=finishing, number=number)) for number in range(JOINED)]
    )


JOINED = 20


@activity
async def undo(ctx: ActivityContext, step: int) -> int:
    await asyncio.sleep(0.1)
    return step


@workflow
async def cancellable(ctx: WorkflowContext, steps: int) -> None:
    """Sleeps until it is cancelled; its clean-up has so many steps."""
    try:
        await ctx.sleep(3600)
    finally:
        for step in range(steps):
            await ctx.activity(undo, step)


ALL: list[Workflow[Any, Any]] = [
    count_to_three,
    cancellable,
    nap,
    one_note,
    notes,
    timed_note,
    echo,
    blocked,
    blocked_long,
    lingering,
    mixture,
]
