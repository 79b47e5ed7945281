"""Random lives of an engine, from a seed: kills, full disks, lost partitions, evictions, steps of the clock (design §1).

Everything runs in this process on the memory log and the virtual clock, so a seed repeats a run.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest

from gasoline_es import ActivityContext, Backoff, SignalTo, WorkflowContext, activity, workflow
from gasoline_es.errors import LogFailed, NoSpace
from gasoline_es.log.memory import MemoryLog
from tests.engine.harness import PATIENCE_S, Process, World, assert_sound, consumed, soon, successes, types
from tests.engine.workflows import Flaky, Other, Push, Tally

SEEDS = range(25)
SIGNALS = 5
WORKFLOWS = 6


@activity(max_attempts=20, backoff=Backoff(base=1, doublings=2))
async def try_step(ctx: ActivityContext, given: Flaky) -> int:
    ctx.state(Tally).steps.append(str(given.number))
    for _ in range(given.number % 3):
        await asyncio.sleep(0)
    if ctx.attempt <= given.fails:
        raise RuntimeError("not yet")
    return given.number


@workflow
async def wander(ctx: WorkflowContext, seed: int) -> list[int]:
    out: list[int] = []
    for number in range(4):
        out.append(await ctx.activity(try_step, Flaky(number=number, fails=(seed + number) % 3)))
        if (seed + number) % 2:
            await ctx.sleep(3.0 * number)
        out.append((await ctx.listen(Push)).number)
        if (seed + number) % 3 == 0:
            assert await ctx.listen(Other, timeout=7.0) is None
    return [*out, *[push.number for push in await ctx.listen_n(Push, limit=10)]]


class Simulation:
    """One world, driven by one seed."""

    def __init__(self, seed: int) -> None:
        self.moves = random.Random(seed)
        self.world = World()
        self.process: Process | None = None
        self.ids: dict[int, str] = {}
        self.acked: dict[int, list[str]] = {number: [] for number in range(WORKFLOWS)}

    async def run(self) -> None:
        for _ in range(60):
            await self.move()
        await self.finish()
        await self.world.end()

    async def alive(self) -> Process:
        if self.process is None:
            self.process = await self.world.worker(
                wander, evict_after=4.0, max_concurrency=self.moves.choice([1, 3, 100])
            )
        return self.process

    async def kill(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            await process.kill()

    async def move(self) -> None:
        move = self.moves.choice(
            ["dispatch"] * 3
            + ["signal"] * 6
            + ["batch", "advance", "advance", "evict", "jump", "settle", "space"]
            + ["kill", "kill mid-append", "steal", "stop", "fail"]
        )
        process = await self.alive()
        match move:
            case "dispatch":
                await self.dispatch(process, self.moves.randrange(WORKFLOWS))
            case "signal" | "batch":
                await self.signal(process, self.moves.randrange(WORKFLOWS), 3 if move == "batch" else 1)
            case "advance":
                await self.quiet(process)
                self.world.clock.advance(self.moves.uniform(0, 10))
            case "jump":
                self.world.clock.jump_wall(self.moves.uniform(-5, 5))
            case "evict":
                self.world.clock.advance(4.0)
                process.driver.evict_idle()
            case "settle":
                await self.quiet(process)
            case "space":
                next_ones = range(process.log.count + 1, process.log.count + 1 + self.moves.randrange(1, 4))
                process.log.script |= dict.fromkeys(next_ones, NoSpace)
            case "kill mid-append":
                process.log.script[process.log.count + self.moves.randrange(1, 4)] = self.moves.choice(
                    ["lost", "unanswered"]
                )
            case "steal":
                assert isinstance(process.log.inner, MemoryLog)
                process.log.inner.steal(self.moves.randrange(process.log.partition_count))
            case "stop":
                await self.quiet(process)
                if not process.log.reached.is_set() and process.node.failure is None:
                    self.process = None
                    await self.or_death(process, process.stop())
                    await process.kill()
            case "fail":
                process.log.script[process.log.count + self.moves.randrange(1, 4)] = LogFailed
            case _:
                await self.kill()
        if self.process is not None and (self.process.log.reached.is_set() or self.process.node.failure is not None):
            await self.kill()

    async def or_death(self, process: Process, call: Any) -> Any:
        """Await a call, unless the process dies first."""
        calling: asyncio.Future[Any] = asyncio.ensure_future(call)
        dying = asyncio.ensure_future(process.log.reached.wait())
        await soon(asyncio.wait((calling, dying), return_when=asyncio.FIRST_COMPLETED))
        if not calling.done():
            calling.cancel()
        dying.cancel()
        await asyncio.wait((calling, dying))
        if calling.cancelled():
            return asyncio.CancelledError()
        return calling.exception() or calling.result()

    async def quiet(self, process: Process) -> None:
        await self.or_death(process, process.settle())

    async def dispatch(self, process: Process, number: int) -> None:
        handle = await self.or_death(process, process.gasoline.dispatch(wander, number, key=f"wander-{number}"))
        if not isinstance(handle, BaseException):
            assert self.ids.setdefault(number, handle.id) == handle.id
        else:
            assert isinstance(handle, NoSpace | LogFailed | asyncio.CancelledError), handle

    async def signal(self, process: Process, number: int, count: int) -> None:
        """Send the next signals of a workflow, in order: each must be acknowledged before a later one is sent."""
        if number not in self.ids:
            return
        first = len(self.acked[number])
        wanted = [f"push-{n}" for n in range(first, min(first + count, SIGNALS))]
        batch = [SignalTo(Push(number=int(one[5:])), self.ids[number], id=one) for one in wanted]
        sent = await self.or_death(process, process.gasoline.signal_many(batch))
        if not isinstance(sent, BaseException):
            assert sent == wanted
            self.acked[number] += sent
        else:
            assert isinstance(sent, NoSpace | LogFailed | asyncio.CancelledError), sent

    async def finish(self) -> None:
        """A last life without faults: everything completes, with all that was acknowledged."""
        await self.kill()
        process = await self.alive()
        for number in range(WORKFLOWS):
            await self.dispatch(process, number)
            while len(self.acked[number]) < SIGNALS:
                await self.signal(process, number, SIGNALS)
        async with asyncio.timeout(PATIENCE_S):
            while any([info.status != "complete" async for info in process.gasoline.list()]):
                await process.advance(5.0)
        for number in range(WORKFLOWS):
            await self.check(process, number)

    async def check(self, process: Process, number: int) -> None:
        handle = process.gasoline.handle(self.ids[number], wander)
        assert await handle.output() == [0, 0, 1, 1, 2, 2, 3, 3, 4]
        history = await handle.history()
        assert_sound(history)
        assert consumed(history) == [f"push-{n}" for n in range(SIGNALS)]
        assert [done.output for done in successes(history)] == [b"0", b"1", b"2", b"3"]
        assert (await handle.get()).state == {"steps": ["0", "1", "2", "3"]}
        assert types(history).count("workflow.failed") == 0


@pytest.mark.parametrize("seed", SEEDS)
async def test_simulated_life_loses_and_doubles_nothing(seed: int) -> None:
    """design §1, semantics.md §4–§8, over kills, full disks, failed syncs, lost partitions and moved clocks."""
    await Simulation(seed).run()


@pytest.mark.soak
@pytest.mark.timeout(3_000)
async def test_many_simulated_lives_lose_and_double_nothing() -> None:
    """The same for a thousand new seeds (or the one given as SIMULATION_SEED)."""
    given = os.environ.get("SIMULATION_SEED")
    first = random.randrange(1 << 32)
    for seed in [int(given)] if given else range(first, first + 1_000):
        print(f"SIMULATION_SEED={seed}")
        await Simulation(seed).run()
