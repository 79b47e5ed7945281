"""A workflow that loops for ever: a worker that runs it must not grow (semantics.md §4, loops)."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest

from gasoline_es import ActivityContext, Break, Gasoline, WorkflowContext, activity, workflow
from gasoline_es.core.location import format_location, next_location, parse_location


@activity
async def step(ctx: ActivityContext, number: int) -> int:
    if number in Marks.at:
        for cache in (format_location, parse_location, next_location):
            cache.cache_clear()  # of a fixed size, but larger than a short test fills it
        gc.collect()
        Marks.bytes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.take_snapshot().dump(str(Marks.folder / f"{len(Marks.bytes)}.snapshot"))
    return number + 1


class Marks:
    """At which iterations the memory is measured, and what it was; what it was made of goes to a file each."""

    at: frozenset[int] = frozenset()
    folder = Path()
    bytes: list[int] = []  # noqa: RUF012


async def quick(ctx: WorkflowContext) -> int:
    return await ctx.check_version(1)


async def iteration(ctx: WorkflowContext, done: list[int]) -> Break[int] | None:
    await ctx.race(ctx.closure(quick), ctx.sleep(1_000_000))
    ctx.random()
    done[0] = await ctx.activity(step, done[0])
    return Break(done[0]) if done[0] > max(Marks.at) else None


@workflow
async def spin(ctx: WorkflowContext, _: None) -> int:
    return await ctx.loop(iteration, [0])


async def grown_bytes(tmp_path: Path, iterations: int) -> int:
    """Return by how much a worker's memory grows over the last half of so many iterations."""
    Marks.at, Marks.bytes, Marks.folder = frozenset({iterations // 2, iterations}), [], tmp_path
    async with Gasoline.open(f"file:{tmp_path}/log") as gasoline, gasoline.worker([spin]):
        tracemalloc.start()
        try:
            handle = await gasoline.dispatch(spin, None)
            await handle.output()
        finally:
            tracemalloc.stop()
    before, after = (tracemalloc.Snapshot.load(str(tmp_path / f"{number}.snapshot")) for number in (1, 2))
    for where in after.compare_to(before, "lineno")[:25]:
        print(where)  # seen where it has grown too much
    first, second = Marks.bytes
    return second - first


async def test_memory_of_a_worker_does_not_grow_with_the_iterations_of_a_loop(tmp_path: Path) -> None:
    """About 9 events an iteration: one of them kept would be seen."""
    assert await grown_bytes(tmp_path, 400) < 30_000


@pytest.mark.soak
async def test_memory_of_a_worker_does_not_grow_over_two_hundred_thousand_iterations(tmp_path: Path) -> None:
    assert await grown_bytes(tmp_path, 200_000) < 2_000_000
