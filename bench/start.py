"""Measures the start of a worker on an old log: from what is stored of its views, and without it; and a rebuild.

    python bench/start.py [--json] [--events 1000000] [--sleeping 1000] [--directory DIR]

The log has sixteen partitions, complete workflows of ten activities (twelve events each), and so many that sleep with a tag
of their own. It is written straight to the log, as the engine would have recorded it. Then, each in a process of its own:

* rebuild_events_per_s: the views built anew into SQLite, by as many processes as there are cores; and for each second of
  processor time.
* start_s: from nothing of ours loaded but the imports until a worker has opened the log, taken all partitions, and run a
  workflow of one step; of that open_s until the log is open. rss_mb: resident memory by then, of which imports_mb before.
* page_ms: the first page of fifty of ``list``, by name; get_ms: one workflow that is over, with its history.
* verified and stored are what a start has; ``first``: without stored views, which are folded from the log's start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gasoline_es import ActivityContext, Gasoline, WorkflowContext, activity, workflow
from gasoline_es.core import events as ev
from gasoline_es.core.codec import Envelope
from gasoline_es.core.ids import new_workflow_id, partition_of
from gasoline_es.log import open_log
from gasoline_es.log.port import Appended, NewRecord, Owner, Section

PARTITIONS = 16
START_US = 1_767_225_600_000_000
AT_ONCE = 500
STEPS = 10


@activity
async def charge(ctx: ActivityContext, amount: int) -> int:
    return amount


@workflow
async def fulfil(ctx: WorkflowContext, amount: int) -> int:
    return await ctx.activity(charge, amount)


def complete() -> list[ev.EventData]:
    given, made = b'{"item":"book","amount":12}', b'{"number":1204,"paid":true,"by":"card"}'
    steps = [ev.ActivityCompleted(((n,),), 1, "charge", 1, START_US, given, made) for n in range(1, STEPS + 1)]
    return [ev.WorkflowDispatched("fulfil", given, {"customer": "c42"}), *steps, ev.WorkflowCompleted(made, b"null")]


def asleep(number: int) -> list[ev.EventData]:
    dispatched = ev.WorkflowDispatched("remind", b"1", {"order": f"{number}"})
    return [dispatched, ev.SleepStarted(((1,),), 1, 1 << 52), ev.WorkflowSuspended(1 << 52)]


async def write(url: str, events: int, sleeping: int) -> None:
    log = await open_log(url, partitions=PARTITIONS)
    epochs = [(await log.acquire(partition)).epoch for partition in range(PARTITIONS)]
    told, count = complete(), 0
    while count < events or sleeping:
        histories = (
            [asleep(sleeping - n) for n in range(min(sleeping, AT_ONCE))] if count >= events else [told] * AT_ONCE
        )
        sleeping -= len(histories) if count >= events else 0
        batch: list[list[NewRecord]] = [[] for _ in range(PARTITIONS)]
        now_us = START_US + count
        ids = [new_workflow_id(now_us, os.urandom(8)) for _ in histories]
        envelopes = [_envelope(one) for one in ids]
        for seq in range(1, len(histories[0]) + 1):
            for workflow_id, envelope, history in zip(ids, envelopes, histories, strict=True):
                partition = partition_of(workflow_id, PARTITIONS)
                value = envelope.encode(seq, now_us + seq, history[seq - 1])
                record = NewRecord("default.events", partition, f"{workflow_id}/{seq}", value, now_us + seq)
                batch[partition].append(record)
                count += 1
        sections = [Section(p, epochs[p], records) for p, records in enumerate(batch) if records]
        assert all(isinstance(outcome, Appended) for outcome in await log.append(sections))
    await log.close()


def _envelope(workflow_id: str) -> Envelope:
    return Envelope(
        namespace="default",
        workflow_id=workflow_id,
        workflow="fulfil",
        ray_id=workflow_id,
        partition=partition_of(workflow_id, PARTITIONS),
        epoch=1,
        worker="3f1c0d9a-77d4-4f3a-9d5e-0c8d6f2b1a90",
    )


def rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 1e6, 1)


async def start(url: str) -> dict[str, Any]:
    imports_mb, begun = rss_mb(), time.perf_counter()
    async with Gasoline.open(url) as gasoline:
        opened = time.perf_counter()
        async with gasoline.worker([fulfil]):
            handle = await gasoline.dispatch(fulfil, 3)
            assert await handle.output() == 3
            while not all(_mine(gasoline.log.owner(index)) for index in range(PARTITIONS)):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            started = time.perf_counter()
            found: dict[str, Any] = {
                "start_s": round(started - begun, 3),
                "open_s": round(opened - begun, 3),
                "rss_mb": rss_mb(),
                "imports_mb": imports_mb,
            }
            before = time.perf_counter()
            page = [one.id async for one in gasoline.list(name="fulfil", status="complete", limit=50)]
            found["page_ms"] = round(1e3 * (time.perf_counter() - before), 1)
            before = time.perf_counter()
            assert len(await gasoline.history(page[20])) == STEPS + 2
            found["get_ms"] = round(1e3 * (time.perf_counter() - before), 1)
            before = time.perf_counter()
            counts = await gasoline.counts()
            found["counts_ms"] = round(1e3 * (time.perf_counter() - before), 1)
            found["workflows"] = sum(sum(one.values()) for one in counts.values())
    return found


def _mine(owner: Owner | None) -> bool:
    return owner is not None and owner.mine


def rebuilt(url: str) -> dict[str, Any]:
    command = [f"{sys.prefix}/bin/gasoline", "--log", url, "projections", "rebuild", "--json"]
    wall, before = time.perf_counter(), os.times()
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    took, after = time.perf_counter() - wall, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    size = Path(url.removeprefix("file:"), "projections/default/workflows.sqlite").stat().st_size
    return {
        "rebuild_events": told["records"],
        "rebuild_events_per_s": round(told["records"] / took),
        "rebuild_events_per_processor_s": round(told["records"] / used),
        "views_mb": round(size / 1e6, 1),
    }


def in_a_process(url: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--start", url]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--sleeping", type=int, default=1_000)
    parser.add_argument("--directory", type=Path, help="where to write; what is there already is used")
    parser.add_argument("--start", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.start:
        print(json.dumps(asyncio.run(start(given.start))))
        return
    with tempfile.TemporaryDirectory(prefix="bench-", dir=given.directory) as folder:
        directory = (given.directory or Path(folder)) / "log"
        url = f"file:{directory}"
        if not directory.exists():
            asyncio.run(write(url, given.events, given.sleeping))
        found: dict[str, Any] = {"python": sys.version.split()[0], "cores": os.cpu_count(), "events": given.events}
        shutil.rmtree(directory / "projections", ignore_errors=True)
        found |= {f"first_{name}": value for name, value in in_a_process(url).items() if name in ("start_s", "rss_mb")}
        found |= rebuilt(url)
        in_a_process(url)  # so that what comes is warm
        found |= in_a_process(url)
    if given.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:>32}  {value:,}" if isinstance(value, (int, float)) else f"{name:>32}  {value}")


if __name__ == "__main__":
    main()
