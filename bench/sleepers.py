"""Measures what sleeping workflows cost a worker: memory, processor time, and how long others wait.

    python bench/sleepers.py [--json] [--many 100000] [--few 10000] [--payload 4000]

Sleepers of several kinds are dispatched to a worker on a file log, which lets them leave memory. Then another worker
opens the same log, as after a restart. Each figure is of a process of its own:

* rss_bytes: by how much the resident memory grew for each sleeper, after a collection. Besides what the sleepers take, it
  has what the allocator did not give back.
* traced_bytes: what Python's allocations for each come to (tracemalloc), in a run of its own.
* idle_percent: processor time of a worker with so many sleepers and nothing else to do, in per cent of a core.
* dispatch_ms: from the dispatch of a workflow of one step until its output is there, in the worker's own process; the
  median, beside so many sleepers and, in the same process before them, beside none.

The kinds: ``plain`` sleeps for a year; ``listening`` waits for a signal for a year, and has a tag of its own and one that
all have; ``payload`` is plain, with an input of so many bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any, Final

from gasoline_es import ActivityContext, Gasoline, Signal, WorkflowContext, activity, workflow

BUDGET_BYTES: Final = 1_000
YEAR_S: Final = 365 * 24 * 3600.0
AT_ONCE: Final = 500
WARM_UP: Final = 500
"""So many are asleep before the measuring begins: what is allocated once is not theirs."""
TIMES: Final = 300
IDLE_S: Final = 5.0


class Paid(Signal):
    amount: int


@activity
async def double(ctx: ActivityContext, number: int) -> int:
    return 2 * number


@workflow
async def one_step(ctx: WorkflowContext, number: int) -> int:
    return await ctx.activity(double, number)


@workflow
async def plain(ctx: WorkflowContext, number: int) -> None:
    await ctx.sleep(YEAR_S)


@workflow
async def listening(ctx: WorkflowContext, number: int) -> None:
    await ctx.listen(Paid, timeout=YEAR_S)


@workflow
async def payload(ctx: WorkflowContext, text: str) -> None:
    await ctx.sleep(YEAR_S)


WORKFLOWS: Final = (one_step, plain, listening, payload)


async def dispatch(gasoline: Gasoline, kind: str, number: int, bytes_each: int) -> None:
    match kind:
        case "plain":
            await gasoline.dispatch(plain, number)
        case "listening":
            await gasoline.dispatch(listening, number, tags={"order": f"order-{number}", "region": "north"})
        case _:
            await gasoline.dispatch(payload, f"{number:0{bytes_each}}")


async def put_to_sleep(gasoline: Gasoline, kind: str, first: int, count: int, bytes_each: int) -> None:
    """Dispatch so many more, and return when all of them have left memory."""
    for start in range(first, first + count, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, first + count))
        await asyncio.gather(*(dispatch(gasoline, kind, number, bytes_each) for number in numbers))
    while await asleep(gasoline) < first + count:  # noqa: ASYNC110 -- nobody tells when the last has left
        await asyncio.sleep(0.2)


async def asleep(gasoline: Gasoline) -> int:
    return sum([1 async for _ in gasoline.list(status="sleeping")])


# --- what is measured, each in a process of its own -------------------------------------------------------------------


def memory(traced: bool) -> int:
    """Return what the process takes now, in bytes."""
    for _ in range(3):
        gc.collect()
    if traced:
        return tracemalloc.get_traced_memory()[0]
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


async def round_trip_ms(gasoline: Gasoline) -> float:
    took: list[float] = []
    for number in range(TIMES + 20):
        started = time.perf_counter()
        handle = await gasoline.dispatch(one_step, number)
        await handle.output(timeout=30)
        took.append(time.perf_counter() - started)
    return round(statistics.median(took[20:]) * 1e3, 3)


async def idle_percent() -> float:
    started = time.process_time()
    await asyncio.sleep(IDLE_S)
    return round((time.process_time() - started) / IDLE_S * 100, 2)


async def fall_asleep(log: str, kind: str, count: int, bytes_each: int, traced: bool) -> dict[str, Any]:
    """Let so many fall asleep in this process, and say what each of them takes then."""
    found: dict[str, Any] = {}
    async with Gasoline.open(log) as gasoline, gasoline.worker(WORKFLOWS, evict_after=0.05):
        await put_to_sleep(gasoline, kind, 0, WARM_UP, bytes_each)
        if not traced:
            found["dispatch_beside_none_ms"] = await round_trip_ms(gasoline)
        before = memory(traced)
        await put_to_sleep(gasoline, kind, WARM_UP, count, bytes_each)
        found["bytes"] = round((memory(traced) - before) / count)
        if not traced:
            found["dispatch_ms"] = await round_trip_ms(gasoline)
            found["idle_percent"] = await idle_percent()
    return found


async def wake_up(log: str, count: int, traced: bool) -> dict[str, Any]:
    """Open a log in which so many sleep, as a worker does after a restart, and say what each of them takes."""
    found: dict[str, Any] = {}
    async with Gasoline.open(log + "-empty") as gasoline, gasoline.worker(WORKFLOWS):
        await round_trip_ms(gasoline)
    before = memory(traced)
    started = time.process_time()
    async with Gasoline.open(log) as gasoline, gasoline.worker(WORKFLOWS):
        if not traced:
            found["start_s"] = round(time.process_time() - started, 2)
        found["bytes"] = round((memory(traced) - before) / count)
        assert await asleep(gasoline) == count + WARM_UP
        if not traced:
            found["dispatch_ms"] = await round_trip_ms(gasoline)
            found["idle_percent"] = await idle_percent()
    return found


def alone(log: str, what: str, kind: str, count: int, bytes_each: int, traced: bool) -> dict[str, Any]:
    """Measure in a new process."""
    given = [log, what, kind, str(count), str(bytes_each), "traced" if traced else ""]
    done = subprocess.run([sys.executable, __file__, "--alone", *given], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def measure_alone(log: str, what: str, kind: str, count: str, bytes_each: str, traced: str) -> dict[str, Any]:
    if traced:
        tracemalloc.start()
    if what == "asleep":
        return asyncio.run(fall_asleep(log, kind, int(count), int(bytes_each), bool(traced)))
    return asyncio.run(wake_up(log, int(count), bool(traced)))


def measure(folder: Path, kind: str, count: int, bytes_each: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for what in ("asleep", "restarted"):
        for traced in (False, True):
            log = f"file:{folder}/{kind}-{count}{'-traced' if traced else ''}"
            figures = alone(log, what, kind, count, bytes_each, traced)
            found[f"{what}_{'traced' if traced else 'rss'}_bytes"] = figures.pop("bytes")
            found |= {f"{what}_{name}": figure for name, figure in figures.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--few", type=int, default=10_000)
    parser.add_argument("--payload", type=int, default=4_000)
    parser.add_argument("--dir", type=Path, help="where to write (default: a temporary directory here)")
    parser.add_argument("--alone", nargs=6, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        print(json.dumps(measure_alone(*args.alone)))
        return
    found: dict[str, Any] = {"python": sys.version.split()[0], "budget_bytes": BUDGET_BYTES}
    kinds = [(kind, args.few) for kind in ("plain", "listening", "payload")] + [("listening", args.many)]
    for kind, count in kinds:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=args.dir or Path.cwd()) as folder:
            figures = measure(Path(folder), kind, count, args.payload)
        found |= {f"{kind}_{count}_{name}": figure for name, figure in figures.items()}
    if args.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:>48}  {value:,}" if isinstance(value, (int, float)) else f"{name:>48}  {value}")


if __name__ == "__main__":
    main()
