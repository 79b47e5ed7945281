"""Measures the engine beside its bare parts, in one run, because the machine is noisy: ratios count, not times.

    python bench/engine.py [--json] [--only steps|alone|ephemeral|replay|signals] [--workflows 1000] [--steps 10]

* steps: durable steps/s of 1,000 workflows of 10 activities, beside the bare loop: the same bodies driven by the core, the
  same activity functions called, the same events folded and rendered as JSON, one write and one fdatasync a round.
* alone: the time from dispatch to output of a workflow of one step, alone, beside one fdatasync of the same size.
* ephemeral: what a step of a lone workflow takes, ephemeral ones beside durable ones: workflows of 20 of each, in turn.
* replay: recorded steps/s of a body replayed from its history as read from the log, JSON decoding included: of steps with
  pydantic models in and out, and of steps with plain ints.
* signals: signals/s sent into one workflow that takes and counts them all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from gasoline_es import ActivityContext, Gasoline, Signal, SignalTo, Workflow, WorkflowContext, activity, workflow
from gasoline_es.core import events as ev
from gasoline_es.core.codec import Envelope, read_fact
from gasoline_es.core.decide import activity_completed
from gasoline_es.core.replay import Returned, Run
from gasoline_es.core.state import WorkflowState
from gasoline_es.core.waits import WaitActivity

Given = TypeVar("Given")


class Order(BaseModel):
    item: str
    amount: int


class Receipt(BaseModel):
    number: int
    paid: bool


@activity
async def charge(ctx: ActivityContext, order: Order) -> Receipt:
    return Receipt(number=order.amount + 1, paid=True)


class Plan(BaseModel):
    steps: int


@workflow
async def fulfil(ctx: WorkflowContext, plan: Plan) -> int:
    total = 0
    for number in range(plan.steps):
        receipt = await ctx.activity(charge, Order(item="book", amount=number))
        total += receipt.number
    return total


@workflow
async def look_up(ctx: WorkflowContext, plan: Plan) -> int:
    """The same with ephemeral steps."""
    total = 0
    for number in range(plan.steps):
        receipt = await ctx.activity(charge, Order(item="book", amount=number), ephemeral=True)
        total += receipt.number
    return total


@activity
async def double(ctx: ActivityContext, number: int) -> int:
    return 2 * number


@workflow
async def sum_up(ctx: WorkflowContext, steps: int) -> int:
    """The same with steps whose values are plain ones."""
    total = 0
    for number in range(steps):
        total += await ctx.activity(double, number)
    return total


class Added(Signal):
    amount: int


@workflow
async def count(ctx: WorkflowContext, until: int) -> int:
    seen = 0
    while seen < until:
        seen += len(await ctx.listen_n(Added, limit=1_000))
    return seen


# --- the bare loop ----------------------------------------------------------------------------------------------------


CONTEXT = ActivityContext()


class _Bare:
    """One workflow of the bare loop: the real body, driven by the core's ``Run`` over the core's fold."""

    def __init__(self, number: int, steps: int) -> None:
        workflow_id = f"01a2299f-b11a-7f0e-b661-{number:012x}"
        self.state = WorkflowState(workflow_id)
        self.envelope = Envelope(
            namespace="default",
            workflow_id=workflow_id,
            workflow="fulfil",
            ray_id=workflow_id,
            partition=3,
            epoch=1,
            worker="1a2299fb112-2c0b-a129cedc524f",
        )
        self.decide(ev.WorkflowDispatched("fulfil", b'{"steps":%d}' % steps, {}), 0)
        self.run = Run(self.state, _nothing)
        self.run.start(lambda strand: fulfil.fn(WorkflowContext(strand), Plan(steps=steps)), 0)

    def decide(self, data: ev.EventData, now_us: int) -> bytes:
        seq = self.state.summary.seq + 1
        self.state.apply(seq, now_us, data, self.state.summary.id, "w")
        return self.envelope.encode(seq, now_us, data)

    def step(self, now_us: int) -> bytes:
        wait = next(iter(self.run.waits.values()))
        assert isinstance(wait, WaitActivity)
        try:
            charge.fn(CONTEXT, charge.input_codec.decode(wait.step.input)).send(None)
        except StopIteration as returned:
            output = charge.output_codec.encode(returned.value, "output")
        else:
            raise AssertionError("the activity waits for something")
        return self.decide(activity_completed(wait, now_us, output, None), now_us)


def bare_steps_per_s(folder: Path, workflows: int, steps: int) -> float:
    """Drive the bodies, call the activities, fold and render the real events, write, sync: what any engine must do here.

    And nothing else: no tasks, no timeouts, no log, no partitions, no projections, no callers.
    """
    file = os.open(folder / "bare", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    started = time.perf_counter()
    bodies = [_Bare(number, steps) for number in range(workflows)]
    for _ in range(steps):
        now_us = time.time_ns() // 1000
        os.write(file, b"\n".join([body.step(now_us) for body in bodies]))
        os.fdatasync(file)
        for body in bodies:
            body.run.advance(now_us)
    assert all(isinstance(body.run.end, Returned) for body in bodies)
    seconds = time.perf_counter() - started
    os.close(file)
    return workflows * steps / seconds


# --- the engine -------------------------------------------------------------------------------------------------------


async def engine_steps_per_s(folder: Path, workflows: int, steps: int) -> float:
    async with (
        Gasoline.open(f"file:{folder / 'steps'}") as gasoline,
        gasoline.worker([fulfil], max_concurrency=workflows),
    ):
        plan = Plan(steps=steps)
        started = time.perf_counter()
        handles = await asyncio.gather(*(gasoline.dispatch(fulfil, plan) for _ in range(workflows)))
        await asyncio.gather(*(handle.output() for handle in handles))
        seconds = time.perf_counter() - started
    return workflows * steps / seconds


async def alone_ms(folder: Path, times: int) -> tuple[float, float]:
    """Return the median time of a one-step workflow alone, and of one fdatasync after a write of that size."""
    took: list[float] = []
    async with Gasoline.open(f"file:{folder / 'alone'}") as gasoline, gasoline.worker([fulfil]):
        for _ in range(times):
            started = time.perf_counter()
            handle = await gasoline.dispatch(fulfil, Plan(steps=1))
            await handle.output()
            took.append(time.perf_counter() - started)
    syncs: list[float] = []
    file = os.open(folder / "sync", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for _ in range(times):
        os.write(file, b"x" * 1_000)
        started = time.perf_counter()
        os.fdatasync(file)
        syncs.append(time.perf_counter() - started)
    os.close(file)
    return statistics.median(took) * 1e3, statistics.median(syncs) * 1e3


async def ephemeral_us(folder: Path, times: int, steps: int = 20) -> tuple[float, float]:
    """Return what a step takes, the median of workflows that run alone: durable, ephemeral."""
    took: dict[Any, list[float]] = {fulfil: [], look_up: []}
    async with Gasoline.open(f"file:{folder / 'ephemeral'}") as gasoline, gasoline.worker([fulfil, look_up]):
        for _ in range(times):
            for definition in took:
                whole: list[float] = []
                for count in (0, steps):  # without steps: what dispatch and end take
                    started = time.perf_counter()
                    handle = await gasoline.dispatch(definition, Plan(steps=count))
                    await handle.output()
                    whole.append(time.perf_counter() - started)
                took[definition].append((whole[1] - whole[0]) / steps)
    return statistics.median(took[fulfil]) * 1e6, statistics.median(took[look_up]) * 1e6


async def replay_steps_per_s(folder: Path, definition: Workflow[Given, int], given: Given, steps: int) -> float:
    async with Gasoline.open(f"file:{folder / definition.name}") as gasoline:
        async with gasoline.worker([definition]):
            handle = await gasoline.dispatch(definition, given)
            await handle.output()
        index = next(i for i in range(16) if gasoline.log.end("default.events", i) > 0)
        lines = [(r.key, r.value) for r in gasoline.log.read("default.events", index) if r.value is not None]
    rates: list[float] = []
    for _ in range(5):
        started = time.perf_counter()
        state = WorkflowState(handle.id)
        for key, line in lines:
            _, seq, time_us, data, ray_id, worker = read_fact(key, line)
            if isinstance(data, ev.WorkflowCompleted):
                break
            state.apply(seq, time_us, data, ray_id, worker)
        run = Run(state, _nothing)
        run.start(lambda strand: definition.fn(WorkflowContext(strand), given), 0)
        rates.append(steps / (time.perf_counter() - started))
        assert isinstance(run.end, Returned), run.end
    return max(rates)


def _nothing(data: ev.EventData) -> None:
    raise AssertionError(f"replay records nothing: {data}")


async def signals_per_s(folder: Path, signals: int) -> float:
    async with Gasoline.open(f"file:{folder / 'signals'}") as gasoline, gasoline.worker([count]):
        handle = await gasoline.dispatch(count, signals)
        started = time.perf_counter()
        for first in range(0, signals, 500):
            batch = [SignalTo(Added(amount=n), handle.id) for n in range(first, min(first + 500, signals))]
            await gasoline.signal_many(batch)
        await handle.output()
        return signals / (time.perf_counter() - started)


async def signals_gathered_per_s(folder: Path, signals: int) -> float:
    async with Gasoline.open(f"file:{folder / 'gathered'}") as gasoline, gasoline.worker([count]):
        handle = await gasoline.dispatch(count, signals)
        started = time.perf_counter()
        for first in range(0, signals, 100):
            await asyncio.gather(*(handle.signal(Added(amount=n)) for n in range(first, first + 100)))
        await handle.output()
        return signals / (time.perf_counter() - started)


def loop_ns() -> float:
    """How long one turn of an empty loop takes: by this the speed of a shared machine is told, which may halve meanwhile."""
    turns = 1_000_000
    started = time.perf_counter()
    for _ in range(turns):
        pass
    return (time.perf_counter() - started) / turns * 1e9


def measure(folder: Path, only: str | None, workflows: int, steps: int) -> dict[str, Any]:
    found: dict[str, Any] = {"python": sys.version.split()[0], "cores": os.cpu_count(), "loop_ns": round(loop_ns(), 1)}
    if only in (None, "steps"):
        ratios: list[float] = []
        for number in range(3):
            (here := folder / str(number)).mkdir()
            bare = bare_steps_per_s(here, workflows, steps)
            engine = asyncio.run(engine_steps_per_s(here, workflows, steps))
            ratios.append(engine / bare)
            found |= {"bare_steps_per_s": round(bare), "engine_steps_per_s": round(engine)}
        found["engine_to_bare"] = round(statistics.median(ratios), 3)
    if only in (None, "alone"):
        found["loop_ns"] = round(loop_ns(), 1)
        alone, sync = asyncio.run(alone_ms(folder, 300))
        found |= {"step_alone_ms": round(alone, 3), "fdatasync_ms": round(sync, 3)}
        found["step_alone_budget_ms"] = round(3 * sync + 0.5, 3)
    if only in (None, "ephemeral"):
        durable, ephemeral = asyncio.run(ephemeral_us(folder, 100))
        found |= {"durable_step_us": round(durable), "ephemeral_step_us": round(ephemeral)}
        found["ephemeral_to_durable"] = round(ephemeral / durable, 3)
    if only in (None, "replay"):
        models = replay_steps_per_s(folder, fulfil, Plan(steps=5_000), 5_000)
        found["replay_steps_per_s"] = round(asyncio.run(models))
        found["replay_plain_steps_per_s"] = round(asyncio.run(replay_steps_per_s(folder, sum_up, 5_000, 5_000)))
        found["loop_ns"] = round(loop_ns(), 1)
    if only in (None, "signals"):
        found["signals_per_s_many"] = round(asyncio.run(signals_per_s(folder, 20_000)))
        found["signals_per_s_gathered"] = round(asyncio.run(signals_gathered_per_s(folder, 20_000)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=("steps", "alone", "ephemeral", "replay", "signals"))
    parser.add_argument("--workflows", type=int, default=1_000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--dir", type=Path, help="where to write (default: a temporary directory here)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=args.dir or Path.cwd()) as folder:
        found = measure(Path(folder), args.only, args.workflows, args.steps)
    if args.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:>28}  {value:,}" if isinstance(value, (int, float)) else f"{name:>28}  {value}")


if __name__ == "__main__":
    main()
