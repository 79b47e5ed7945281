"""Measures what it costs to build a projection, and what one costs the steps of the worker that keeps it up.

    python bench/folding.py [--json] [--events 100000]

The log is a file log of four partitions. Rates are also given for each second of processor time, because the machine may have
more to do.

* build_nothing, build_selective, build_counter, build_rows: events/s into SQLite of a projection that does nothing, that wants
  none of these events (`only=`), that changes one row for each event, and that adds one.
* postgres_nothing, postgres_counter, postgres_rows: the same into PostgreSQL, where its programs are installed: a server of the
  tests, which syncs nothing.
* steps_without, steps_with: durable steps/s of a hundred workflows of twenty activities at a time, without a projection and
  with one that adds a row for each event.
* alone_ms_without, alone_ms_with, alone_ms_building: one workflow of twenty steps at a time, median; the last while the
  worker also builds a projection of all that went before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gasoline_es import ActivityContext, Event, Gasoline, WorkflowContext, activity, workflow
from gasoline_es.core.codec import Envelope
from gasoline_es.core.events import WorkflowCompleted, WorkflowDispatched
from gasoline_es.log import open_log
from gasoline_es.log.port import NewRecord, Section
from projections import projection
from projections.building import rebuild
from projections.stores.opening import open_store

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.postgres_server import programs, server  # the server that tests use

BATCH = 5_000


def no_tables(db: sqlite3.Connection) -> None: ...


def counter_table(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE counted(partition INTEGER PRIMARY KEY, events INTEGER NOT NULL)")


def rows_table(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE seen(workflow TEXT, seq INTEGER, kind TEXT, PRIMARY KEY (workflow, seq))")


@projection("nothing", setup=no_tables)
def nothing(event: Event, db: sqlite3.Connection) -> None: ...


@projection("selective", setup=no_tables, only=(WorkflowCompleted,))
def selective(event: Event, db: sqlite3.Connection) -> None: ...


@projection("counter", setup=counter_table)
def counter(event: Event, db: sqlite3.Connection) -> None:
    db.execute(
        "INSERT INTO counted VALUES (?, 1) ON CONFLICT (partition) DO UPDATE SET events = events + 1",
        (event.partition,),
    )


@projection("rows", setup=rows_table)
def rows(event: Event, db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO seen VALUES (?, ?, ?)", (event.workflow_id, event.seq, type(event.data).__name__))


@projection("counter", setup=counter_table)
def postgres_counter(event: Event, db: Any) -> None:
    db.execute(
        "INSERT INTO counted VALUES (%s, 1) ON CONFLICT (partition) DO UPDATE SET events = counted.events + 1",
        (event.partition,),
    )


@projection("rows", setup=rows_table)
def postgres_rows(event: Event, db: Any) -> None:
    db.execute("INSERT INTO seen VALUES (%s, %s, %s)", (event.workflow_id, event.seq, type(event.data).__name__))


@activity
async def add_one(ctx: ActivityContext, number: int) -> int:
    return number + 1


@workflow
async def twenty(ctx: WorkflowContext, number: int) -> int:
    for _ in range(20):
        number = await ctx.activity(add_one, number)
    return number


async def build_rates(events: int) -> dict[str, float]:
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        log = await open_log(f"file:{directory}/log", partitions=4)
        for first in range(0, events, BATCH):
            partition = first // BATCH % 4
            owned = await log.acquire(partition)
            records = [_dispatched(number, partition) for number in range(first, first + BATCH)]
            await log.append([Section(partition, owned.epoch, records)])
        store = open_store(log)
        for one in (nothing, selective, counter, rows):
            wall, cpu = time.perf_counter(), time.process_time()
            rebuild(log, store, one)
            found[f"build_{one.name}"] = events / (time.perf_counter() - wall)
            found[f"build_{one.name}_cpu"] = events / (time.process_time() - cpu)
        if (installed := programs()) is not None:
            with server(installed) as url:
                store = open_store(log, url)
                for name, one in (("nothing", nothing), ("counter", postgres_counter), ("rows", postgres_rows)):
                    wall = time.perf_counter()
                    rebuild(log, store, one)
                    found[f"postgres_{name}"] = events / (time.perf_counter() - wall)
                store.close()
        await log.close()
    return found


def _dispatched(number: int, partition: int) -> NewRecord:
    one = f"00000000-0000-7000-8000-{number:012d}"
    envelope = Envelope(
        namespace="default", workflow_id=one, workflow="order", ray_id=one, partition=partition, epoch=1, worker="w"
    )
    data = WorkflowDispatched("order", b"500", {})
    value = envelope.encode(1, 1_767_225_600_000_000, data)
    return NewRecord("default.events", partition, f"{one}/1", value, 1)


async def step_costs() -> dict[str, float]:
    found: dict[str, float] = {}
    for name, given in (("without", ()), ("with", (rows,))):
        with tempfile.TemporaryDirectory() as directory:
            async with Gasoline.open(f"file:{directory}/log") as gasoline:
                async with gasoline.worker([twenty], projections=given):
                    wall, cpu = time.perf_counter(), time.process_time()
                    for _ in range(4):
                        await asyncio.gather(*(_one(gasoline) for _ in range(100)))
                    found[f"steps_{name}"] = 8_000 / (time.perf_counter() - wall)
                    found[f"steps_{name}_cpu"] = 8_000 / (time.process_time() - cpu)
                    found[f"alone_ms_{name}"] = await _alone(gasoline)
                if not given:
                    async with gasoline.worker([twenty]):
                        for _ in range(15):
                            await asyncio.gather(*(_one(gasoline) for _ in range(200)))
                    async with gasoline.worker([twenty], projections=[rows]):
                        found["alone_ms_building"] = await _alone(gasoline)
    return found


async def _one(gasoline: Gasoline) -> None:
    await (await gasoline.dispatch(twenty, 0)).output()


async def _alone(gasoline: Gasoline) -> float:
    took: list[float] = []
    for _ in range(30):
        begun = time.perf_counter()
        await _one(gasoline)
        took.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--events", type=int, default=100_000, help="of the log that is built of")
    given = parser.parse_args()
    found = asyncio.run(build_rates(given.events)) | asyncio.run(step_costs())
    if given.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:24} {value:12,.1f}")


if __name__ == "__main__":
    main()
