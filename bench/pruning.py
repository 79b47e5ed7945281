"""Measures what it is worth to prune workflows and to clean the log: disk, memory, starts and questions.

    python bench/pruning.py [--json] [--workflows 100000] [--directory DIR]

A file log of sixteen partitions gets workflows of ten activities that are over, as the engine's codec writes them: twelve
events each, appended through the log's own interface in sections of a few thousand. Nine of ten are pruned (`Prune.ALL`) by
the event that says so. Then it is cleaned as `gasoline log compact` does: once, which removes their events, and once as if a
day had passed, which removes the marks. Each of these is measured in a process of its own:

* disk_mb: of the segments, before, after the first cleaning, and after the second.
* clean_s, clean_rss_mb: how long a cleaning took, and the most memory that its process had.
* first_start_s: until a worker owns everything and has counted the workflows, with no views stored: all of the log is folded.
* start_s: the same with the views that this left.
* list_ms, get_ms: the first hundred workflows by name; one workflow. Medians of a hundred.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gasoline_es import Gasoline, WorkflowContext, workflow
from gasoline_es.core.codec import Envelope
from gasoline_es.core.events import ActivityCompleted, EventData, WorkflowCompleted, WorkflowDispatched, WorkflowPruned
from gasoline_es.core.ids import new_workflow_id, partition_of
from gasoline_es.core.retention import Retention
from gasoline_es.log.file.log import open_file_log
from gasoline_es.log.port import Appended, NewRecord, Section

PARTITIONS: Final = 16
_AT_ONCE: Final = 4_000
"""So many workflows are written at a time."""
_DAY_US: Final = 86_400 * 10**6
_STEPS: Final = 10


@workflow
async def order(ctx: WorkflowContext, number: int) -> int:
    return number


def _id(number: int) -> str:
    return new_workflow_id(number, number.to_bytes(8, "big"), number % 4_096)


def _data(number: int, time_us: int) -> Iterator[EventData]:
    yield WorkflowDispatched("order", b'{"order":%d,"item":"book","cents":1999}' % number, {"customer": str(number)})
    for step in range(1, _STEPS + 1):
        output = b'{"step":%d,"state":"done","reference":"%016x"}' % (step, number)
        yield ActivityCompleted(((step,),), 1, "ship_item", 1, time_us, b'{"order":%d}' % number, output)
    yield WorkflowCompleted(b"1999", b"null")


def _records(number: int, time_us: int, *, pruned: bool) -> list[NewRecord]:
    """The events of one workflow; or the one by which it is pruned."""
    its = _id(number)
    home = partition_of(its, PARTITIONS)
    envelope = Envelope(
        namespace="default", workflow_id=its, workflow="order", ray_id=its, partition=home, epoch=1, worker="w"
    )
    first = _STEPS + 3 if pruned else 1
    data = [WorkflowPruned("rule")] if pruned else _data(number, time_us)
    values = ((seq, envelope.encode(seq, time_us, one)) for seq, one in enumerate(data, start=first))
    return [NewRecord("default.events", home, f"{its}/{seq}", value, time_us) for seq, value in values]


async def make(directory: str, workflows: int, now_us: int) -> None:
    """Write the workflows in one life, and what prunes nine of ten in another; closed, so that all may be cleaned."""
    for pruned in (False, True):
        log = await open_file_log(directory, partitions=PARTITIONS)
        epochs = [(await log.acquire(partition)).epoch for partition in range(PARTITIONS)]
        time_us = now_us - (2 if pruned else 40) * _DAY_US
        for first in range(0, workflows, _AT_ONCE):
            records: list[list[NewRecord]] = [[] for _ in range(PARTITIONS)]
            for number in range(first, min(first + _AT_ONCE, workflows)):
                if not pruned or number % 10:
                    for record in _records(number, time_us, pruned=pruned):
                        records[record.partition].append(record)
            sections = [Section(index, epochs[index], its) for index, its in enumerate(records) if its]
            assert all(isinstance(outcome, Appended) for outcome in await log.append(sections))
        await log.close()


def disk_mb(directory: str) -> float:
    return round(sum(path.stat().st_size for path in Path(directory, "segments").glob("*.jsonl")) / 1e6, 1)


async def clean(directory: str, now_us: int) -> dict[str, float]:
    """Clean the log, in this process."""
    begun = time.perf_counter()
    log = await open_file_log(directory)
    report = await log.compact(Retention(now_us))
    await log.close()
    removed = sum(report.removed.get("default.events", {}).values())
    return {"clean_s": round(time.perf_counter() - begun, 2), "clean_rss_mb": _rss_mb(), "removed": removed}


async def start(directory: str, kept: str) -> dict[str, float]:
    """Start a worker, and ask it, in this process."""
    begun = time.perf_counter()
    async with Gasoline.open(f"file:{directory}") as gasoline, gasoline.worker([order]):
        counts = await gasoline.counts()
        found: dict[str, float] = {
            "start_s": round(time.perf_counter() - begun, 2),
            "there": sum(counts["order"].values()),
        }
        listing: list[float] = []
        getting: list[float] = []
        for _ in range(100):
            begun = time.perf_counter()
            some = 0
            async for _info in gasoline.list(name="order"):
                some += 1
                if some == 100:
                    break
            listing.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            await gasoline.get(kept)
            getting.append(time.perf_counter() - begun)
        found |= {
            "list_ms": round(statistics.median(listing) * 1e3, 2),
            "get_ms": round(statistics.median(getting) * 1e3, 2),
        }
    return {**found, "rss_mb": _rss_mb()}


def _rss_mb() -> float:
    """Return the most that this process had: what it was before it became this program does not count."""
    (line,) = [one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM:")]
    return round(int(line.split()[1]) * 1024 / 1e6)


def alone(what: str, directory: str, given: str) -> dict[str, float]:
    """Measure in a new process."""
    command = [sys.executable, __file__, "--alone", what, directory, given]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def starts(directory: str, name: str) -> dict[str, float]:
    """Start twice on a copy: with nothing stored, and with what the first one stored."""
    copy = f"{directory}-start"
    shutil.copytree(directory, copy)
    first = alone("start", copy, _id(0))
    again = alone("start", copy, _id(0))
    shutil.rmtree(copy)
    told = {f"{name}_first_start_s": first["start_s"], f"{name}_first_start_rss_mb": first["rss_mb"]}
    return told | {f"{name}_{key}": value for key, value in again.items()}


def report(directory: str, workflows: int) -> dict[str, float]:
    now_us = time.time_ns() // 1000
    begun = time.perf_counter()
    asyncio.run(make(directory, workflows, now_us))
    found: dict[str, float] = {"workflows": workflows, "made_s": round(time.perf_counter() - begun, 1)}
    found["before_disk_mb"] = disk_mb(directory)
    found |= starts(directory, "before")
    for name, at_us in (("once", now_us - 2 * _DAY_US), ("twice", now_us)):
        found |= {f"{name}_{key}": value for key, value in alone("clean", directory, str(at_us)).items()}
        found[f"{name}_disk_mb"] = disk_mb(directory)
    return found | starts(directory, "after")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--workflows", type=int, default=100_000, help="up to a million")
    parser.add_argument("--directory", help="where to make the log, instead of a temporary directory")
    parser.add_argument("--alone", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        what, directory, value = given.alone
        done: dict[str, Any] = asyncio.run(clean(directory, int(value)) if what == "clean" else start(directory, value))
        print(json.dumps(done))
        return
    with tempfile.TemporaryDirectory(dir=given.directory) as directory:
        found = report(f"{directory}/log", given.workflows)
    if given.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:24} {value:12,.2f}")


if __name__ == "__main__":
    main()
