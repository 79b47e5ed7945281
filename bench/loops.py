"""Measures what a workflow costs after a restart that has looped a million times, beside one that has looped a thousand.

    python bench/loops.py [--json] [--iterations 1000000] [--beside 1000]

Each workflow makes one activity an iteration, and then waits for a signal in the next. Its history is what the core
records when it drives the body (``commit_interval`` 20, as by default), written to a file log in large appends. Then, as
after a restart:

* start_s: folding the partition's events into the views, which reads the whole log until views have checkpoints. It is
  the log's cost and not the loop's: a hundred thousand short workflows with as many events take as long.
* replay_ms: loading the workflow, from reading its events to where its body waits. replay_kb: the most memory it took
  meanwhile.
* index_kb: what the history index keeps of the workflow.

Times are of the processor, because they are short and the machine may have more to do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gasoline_es import ActivityContext, Break, Signal, WorkflowContext, activity, workflow
from gasoline_es.core import events as ev
from gasoline_es.core.codec import Envelope, read_fact
from gasoline_es.core.decide import activity_completed
from gasoline_es.core.replay import Run
from gasoline_es.core.state import WorkflowState
from gasoline_es.core.waits import WaitActivity
from gasoline_es.log import open_log
from gasoline_es.log.port import Appended, Log, NewRecord, Section
from gasoline_es.runtime.histories import fold
from projections.history import HistoryIndex
from projections.views import PartitionViews

TOPIC = "default.events"
WORKFLOW_ID = "01a2299f-b11a-7f0e-b661-000000000001"
BATCH = 5_000
START_US = 1_767_225_600_000_000


class Stop(Signal):
    pass


@activity
async def charge(ctx: ActivityContext, number: int) -> int:
    raise AssertionError("its output is recorded by the benchmark")


@workflow
async def spin(ctx: WorkflowContext, iterations: int) -> int:
    async def iteration(inner: WorkflowContext, done: list[int]) -> Break[int] | None:
        if done[0] == iterations:
            await inner.listen(Stop)
            return Break(done[0])
        done[0] = await inner.activity(charge, done[0])
        return None

    return await ctx.loop(iteration, [0])


def start(state: WorkflowState, record: Any, iterations: int) -> Run:
    run = Run(state, record)
    run.start(lambda strand: spin.fn(WorkflowContext(strand), iterations), START_US)
    return run


def recorded(iterations: int) -> Iterator[NewRecord]:
    """What the engine records of one run, up to where it waits for the signal."""
    state = WorkflowState(WORKFLOW_ID)
    envelope = Envelope(
        namespace="default",
        workflow_id=WORKFLOW_ID,
        workflow="spin",
        ray_id=WORKFLOW_ID,
        partition=0,
        epoch=1,
        worker="w",
    )
    made: list[NewRecord] = []

    def record(data: ev.EventData) -> None:
        seq = state.summary.seq + 1
        time_us = START_US + seq
        state.apply(seq, time_us, data, WORKFLOW_ID, "w")
        made.append(NewRecord(TOPIC, 0, f"{WORKFLOW_ID}/{seq}", envelope.encode(seq, time_us, data), time_us))

    record(ev.WorkflowDispatched("spin", b"%d" % iterations, {}))
    run = start(state, record, iterations)
    while True:
        while made:  # what was recorded is durable, as it were
            yield from made
            made.clear()
            run.advance(START_US)
        wait = next(iter(run.waits.values()))
        if not isinstance(wait, WaitActivity):
            return
        done = int(wait.step.input)
        record(activity_completed(wait, START_US, b"%d" % (done + 1), None))


async def write(url: str, iterations: int) -> int:
    log = await open_log(url, partitions=1)
    epoch = (await log.acquire(0)).epoch
    count = 0
    batch: list[NewRecord] = []
    for made in recorded(iterations):
        count += 1
        batch.append(made)
        if len(batch) == BATCH:
            await append(log, epoch, batch)
            batch = []
    await append(log, epoch, batch)
    await log.close()
    return count


async def append(log: Log, epoch: Any, batch: list[NewRecord]) -> None:
    (outcome,) = await log.append([Section(0, epoch, batch)])
    assert isinstance(outcome, Appended), outcome


def nothing(data: ev.EventData) -> None:
    raise AssertionError(f"replay records nothing: {data}")


def load(log: Log, views: PartitionViews, iterations: int) -> None:
    run = start(fold(WORKFLOW_ID, log, TOPIC, 0, views), nothing, iterations)
    assert len(run.waits) == 1, run.end
    run.close()


def index_bytes(log: Log) -> int:
    def facts() -> Iterator[tuple[int, int, int, int, ev.EventData]]:
        for record in log.read(TOPIC, 0):
            assert record.value is not None
            assert record.offset is not None
            _, seq, time_us, data, _, _ = read_fact(record.key, record.value)
            yield seq, time_us, record.offset, record.place, data

    index = HistoryIndex()
    told = facts()
    index.apply(WORKFLOW_ID, *next(told))
    # What it keeps is allocated anew by each commit and by the events since: the tracer sees it from here on.
    tracemalloc.start()
    before = tracemalloc.take_snapshot().filter_traces(FILTERS)
    for fact in told:
        index.apply(WORKFLOW_ID, *fact)
    after = tracemalloc.take_snapshot().filter_traces(FILTERS)
    tracemalloc.stop()
    return sum(trace.size for trace in after.traces) - sum(trace.size for trace in before.traces)


FILTERS = [tracemalloc.Filter(inclusive=True, filename_pattern="*/projections/*")]


async def measure(folder: Path, iterations: int) -> dict[str, Any]:
    url = f"file:{folder}/{iterations}"
    events = await write(url, iterations)
    log = await open_log(url, readonly=True)
    views = PartitionViews()
    started = time.process_time()
    views.fold(log.read(TOPIC, 0))
    found: dict[str, Any] = {"events": events, "start_s": round(time.process_time() - started, 3)}
    took: list[float] = []
    for _ in range(7):
        started = time.process_time()
        load(log, views, iterations)
        took.append(time.process_time() - started)
        if sum(took) > 60:
            break
    found["replay_ms"] = round(statistics.median(took) * 1e3, 3)
    tracemalloc.start()
    load(log, views, iterations)
    found["replay_kb"] = round(tracemalloc.get_traced_memory()[1] / 1e3, 1)
    tracemalloc.stop()
    found["index_kb"] = round(index_bytes(log) / 1e3, 2)
    await log.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--iterations", type=int, default=1_000_000)
    parser.add_argument("--beside", type=int, default=1_000)
    args = parser.parse_args()
    found: dict[str, Any] = {"python": sys.version.split()[0]}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        few = asyncio.run(measure(Path(folder), args.beside))
        many = asyncio.run(measure(Path(folder), args.iterations))
    for iterations, figures in ((args.beside, few), (args.iterations, many)):
        found |= {f"{name}_after_{iterations}": figure for name, figure in figures.items()}
    for name in ("replay_ms", "replay_kb", "index_kb"):
        found[f"{name}_ratio"] = round(many[name] / few[name], 2)
    if args.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:>32}  {value:,}" if isinstance(value, (int, float)) else f"{name:>32}  {value}")


if __name__ == "__main__":
    main()
