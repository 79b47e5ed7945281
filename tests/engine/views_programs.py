"""Programs of the soak of stored views: ``python -m tests.engine.views_programs worker URL`` or ``client URL SEED SECONDS``."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from gasoline_es import ActivityContext, Backoff, Gasoline, NotRetryable, Signal, WorkflowContext, activity, workflow
from gasoline_es.errors import GasolineError


class Push(Signal):
    n: int


@activity(max_attempts=3, backoff=Backoff(base=0.05, doublings=1))
async def step(ctx: ActivityContext, n: int) -> int:
    """Fail at first, or for good, now and then; change the tags now and then."""
    if n % 31 == 5:
        raise NotRetryable("never", n)
    if n % 7 == 0 and ctx.attempt == 1:
        raise RuntimeError("not yet")
    if n % 4 == 0:
        await ctx.update_tags({**ctx.tags, "stage": n})
    return n


@workflow
async def leaf(ctx: WorkflowContext, n: int) -> int:
    await ctx.sleep(n % 20 / 100)
    if n % 11 == 3:
        raise ValueError(f"leaf {n}")
    return await ctx.activity(step, n)


@workflow
async def mixed(ctx: WorkflowContext, plan: list[tuple[str, int]]) -> int:
    """Do what the plan says, step by step."""
    for what, n in plan:
        match what:
            case "step":
                _ = await ctx.catch(ctx.activity(step, n))
            case "sleep":
                await ctx.sleep(n / 100)
            case "listen":
                _ = await ctx.listen(Push, timeout=n / 50)
            case "wait":
                _ = await ctx.listen(Push)
            case "sub":
                sub = await ctx.dispatch(leaf, n, tags={"sub": n})
                _ = await ctx.catch(sub.output())
            case "unique":
                _ = await ctx.dispatch(leaf, n % 3, tags={"unique": n % 3}, unique=True)
            case _:
                raise KeyError(what)
    return len(plan)


def planned(chosen: random.Random) -> list[tuple[str, int]]:
    kinds = ("step", "step", "sleep", "listen", "sub", "unique")
    plan = [(chosen.choice(kinds), chosen.randrange(1, 60)) for _ in range(chosen.randrange(1, 8))]
    if chosen.random() < 0.3:
        plan.append((chosen.choice(("wait", "fail")), 1))
    return plan


async def worker(url: str) -> None:
    async with Gasoline.open(url) as gasoline:
        await gasoline.run_worker([leaf, mixed], evict_after=0.05, stop_limit=5)


async def client(url: str, seed: str, seconds: str) -> None:
    """Do one thing after the other; print the id of each workflow that was acknowledged."""
    chosen, until = random.Random(int(seed)), time.monotonic() + float(seconds)
    async with Gasoline.open(url) as gasoline:
        ids = [info.id async for info in gasoline.list(limit=100)]
        while time.monotonic() < until:
            try:
                await _something(gasoline, chosen, ids)
            except GasolineError as error:  # a verb that is refused, or has no owner to answer it
                print(f"# {error}", file=sys.stderr)


async def _something(gasoline: Gasoline, chosen: random.Random, ids: list[str]) -> None:
    what = chosen.random()
    if what < 0.4 or not ids:
        tags = {"customer": chosen.randrange(4)}
        handle = await gasoline.dispatch(mixed, planned(chosen), tags=tags, unique=chosen.random() < 0.1)
        print(handle.id, flush=True)
        ids.append(handle.id)
        return
    one = chosen.choice(ids)
    if what < 0.6:
        await gasoline.signal(Push(n=1), to=one, id=f"push-{chosen.randrange(1 << 40)}")
    elif what < 0.66:
        await gasoline.cancel(one, now=chosen.random() < 0.3)
    elif what < 0.7:
        await gasoline.silence(one)
    elif what < 0.74:
        _ = await gasoline.rerun(one, "{1}", fork=chosen.random() < 0.5)
    elif what < 0.78:
        _ = await gasoline.revive(name="leaf", error="", recover=True)
    elif what < 0.9:
        paged, after = list[str](), None
        while page := [info.id async for info in gasoline.list(limit=7, after=after)]:
            paged, after = paged + page, page[-1]
        assert len(set(paged)) == len(paged), "a page repeats what another had"
        assert not set(ids) - set(paged), "pages hide what was there before"
    else:
        history = await gasoline.history(one)
        assert [event.seq for event in history] == list(range(1, len(history) + 1))
        seq = chosen.randrange(1, len(history) + 1)
        assert (await gasoline.get(one, as_of=seq)).events == seq


if __name__ == "__main__":
    programs: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {"worker": worker, "client": client}
    asyncio.run(programs[sys.argv[1]](*sys.argv[2:]))
