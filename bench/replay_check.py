"""Measures how fast recorded histories are checked against code: histories/s on a file log.

    python bench/replay_check.py [--json] [--histories 100000] [--steps 10] [--jobs 2]

The histories are written straight to the log, as the engine would have recorded them; every one is complete. Beside it
stand the same work in one process, and reading the events alone. A rate per second of processor time tells what a core does
that has nothing else to do: on a busy machine the clock on the wall tells of the neighbours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from gasoline_es import ActivityContext, WorkflowContext, activity, workflow
from gasoline_es.checking.check import check_here, check_in_processes
from gasoline_es.checking.code import Code
from gasoline_es.checking.histories import LogSource
from gasoline_es.core import events as ev
from gasoline_es.core.codec import Envelope
from gasoline_es.core.ids import partition_of
from gasoline_es.log import open_log
from gasoline_es.log.port import Appended, NewRecord, Section

T = TypeVar("T")

PARTITIONS = 16
START_US = 1_767_225_600_000_000


class Order(BaseModel):
    item: str
    amount: int


class Receipt(BaseModel):
    number: int
    paid: bool


class Plan(BaseModel):
    steps: int


@activity
async def charge(ctx: ActivityContext, order: Order) -> Receipt:
    raise AssertionError("a check runs no activity")


@workflow
async def fulfil(ctx: WorkflowContext, plan: Plan) -> int:
    total = 0
    for number in range(plan.steps):
        receipt = await ctx.activity(charge, Order(item="book", amount=number))
        total += receipt.number
    return total


def events(steps: int) -> list[ev.EventData]:
    """What the engine records of one run."""
    recorded: list[ev.EventData] = [ev.WorkflowDispatched("fulfil", b'{"steps":%d}' % steps, {})]
    for number in range(steps):
        given = b'{"item":"book","amount":%d}' % number
        made = b'{"number":%d,"paid":true}' % (number + 1)
        recorded.append(ev.ActivityCompleted(((number + 1,),), 1, "charge", 1, START_US, given, made))
    return [*recorded, ev.WorkflowCompleted(b"%d" % sum(range(1, steps + 1)), b"null")]


async def write(url: str, histories: int, steps: int) -> None:
    log = await open_log(url, partitions=PARTITIONS)
    epochs = [(await log.acquire(partition)).epoch for partition in range(PARTITIONS)]
    told = events(steps)
    for first in range(0, histories, 1_000):
        batch: list[list[NewRecord]] = [[] for _ in range(PARTITIONS)]
        envelopes: list[tuple[str, int, Envelope]] = []
        for _ in range(min(1_000, histories - first)):
            workflow_id = str(uuid.uuid4())
            partition = partition_of(workflow_id, PARTITIONS)
            envelope = Envelope(
                namespace="default",
                workflow_id=workflow_id,
                workflow="fulfil",
                ray_id=workflow_id,
                partition=partition,
                epoch=1,
                worker="bench",
            )
            envelopes.append((workflow_id, partition, envelope))
        # Step by step, so that workflows stand among each other as they do in a worker.
        for seq, data in enumerate(told, start=1):
            for workflow_id, partition, envelope in envelopes:
                value = envelope.encode(seq, START_US + seq, data)
                batch[partition].append(
                    NewRecord("default.events", partition, f"{workflow_id}/{seq}", value, START_US + seq)
                )
        sections = [Section(p, epochs[p], records) for p, records in enumerate(batch) if records]
        assert all(isinstance(outcome, Appended) for outcome in await log.append(sections))
    await log.close()


@dataclass(frozen=True)
class Used:
    """``processor_s``: of this process and of those it has waited for."""

    wall_s: float
    processor_s: float


def timed(work: Callable[[], T]) -> tuple[T, Used]:
    wall, processor = time.perf_counter(), processor_s()
    made = work()
    return made, Used(time.perf_counter() - wall, processor_s() - processor)


def processor_s() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def measure(folder: Path, histories: int, steps: int, jobs: int) -> dict[str, Any]:
    url = f"file:{folder}/log"
    asyncio.run(write(url, histories, steps))
    source = LogSource(url, "default")
    rates: dict[str, Any] = {"histories": histories, "steps": steps, "jobs": jobs}

    report, used = timed(lambda: check_in_processes(Code(__file__), source, jobs))
    rates["histories_per_s"] = round(histories / used.wall_s)
    rates["histories_per_processor_s"] = round(histories / used.processor_s)
    assert report.replayed == histories, str(report)

    report, used = timed(lambda: check_here({"fulfil": fulfil}, source))
    rates["histories_per_processor_s_in_one_process"] = round(histories / used.processor_s)
    assert report.replayed == histories, str(report)

    def read() -> int:
        with source.open() as reader:
            return sum(1 for share in reader.shares(1) for _ in reader.lines(share, lambda _: None))

    _, used = timed(read)
    rates["histories_read_per_processor_s"] = round(histories / used.processor_s)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--histories", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rates = measure(Path(folder), given.histories, given.steps, given.jobs)
    rates = {"python": sys.version.split()[0], "cores": os.cpu_count(), **rates}
    if given.json:
        print(json.dumps(rates))
        return
    for name, value in rates.items():
        print(f"{name:>42}  {value:,}" if isinstance(value, int) else f"{name:>42}  {value}")


if __name__ == "__main__":
    main()
