"""Measures what a request of a web application waits for: a dispatch, until the output of its one step is there.

    python bench/round_trip.py [--json] [--times 500] [--threads 8]

The worker is another process. Four syncs and three hops between the processes lie on the way: the command into the
worker's inbox, the decision, the step's result with the workflow's end. Beside it stand its parts and the same without
another process, in one run, because the machine is noisy:

* round_trip: dispatch and output with the client that blocks, one request after the other; median and 95th percentile.
* dispatch: the first half of it, until the dispatch is durable and answered.
* asynchronous: the same with the asynchronous client.
* in_one_process: the same where client and worker share a process.
* at_once: requests/s of so many threads that share one client, as a web process with threads has.
* fdatasync: one sync of that size.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from gasoline_es import ActivityContext, Gasoline, SyncGasoline, WorkflowContext, activity, workflow

BUDGET_MS: Final = 20.0
WARM_UP: Final = 20


class Order(BaseModel):
    item: str
    amount: int


class Receipt(BaseModel):
    number: int
    paid: bool


@activity
async def charge(ctx: ActivityContext, order: Order) -> Receipt:
    return Receipt(number=order.amount + 1, paid=True)


@workflow
async def fulfil(ctx: WorkflowContext, order: Order) -> Receipt:
    return await ctx.activity(charge, order)


async def work(log: str) -> None:
    async with Gasoline.open(log) as gasoline:
        print("ready", flush=True)
        await gasoline.run_worker([fulfil])


@contextmanager
def worker(log: str) -> Generator[None]:
    """Run the worker in a process of its own."""
    command = [sys.executable, __file__, "--work", log]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            process.terminate()


def order(number: int) -> Order:
    return Order(item="book", amount=number)


# --- what is measured -------------------------------------------------------------------------------------------------


def blocking_s(gasoline: SyncGasoline, times: int) -> tuple[list[float], list[float]]:
    """Return what each dispatch took, and what each took with its output."""
    dispatches: list[float] = []
    wholes: list[float] = []
    for number in range(WARM_UP + times):
        started = time.perf_counter()
        handle = gasoline.dispatch(fulfil, order(number))
        dispatches.append(time.perf_counter() - started)
        assert handle.output(timeout=30).number == number + 1
        wholes.append(time.perf_counter() - started)
    return dispatches[WARM_UP:], wholes[WARM_UP:]


async def asynchronous_s(log: str, times: int, *, working: bool = False) -> list[float]:
    """Return what each dispatch took with its output. ``working``: this process is the worker, too."""
    took: list[float] = []
    async with AsyncExitStack() as stack:
        gasoline = await stack.enter_async_context(Gasoline.open(log))
        if working:
            await stack.enter_async_context(gasoline.worker([fulfil]))
        for number in range(WARM_UP + times):
            started = time.perf_counter()
            handle = await gasoline.dispatch(fulfil, order(number))
            assert (await handle.output(timeout=30)).number == number + 1
            took.append(time.perf_counter() - started)
    return took[WARM_UP:]


def at_once_per_s(gasoline: SyncGasoline, times: int, threads: int) -> float:
    def request(number: int) -> None:
        assert gasoline.dispatch(fulfil, order(number)).output(timeout=30).number == number + 1

    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        for _ in pool.map(request, range(times)):
            pass
        return times / (time.perf_counter() - started)


def syncs_s(folder: Path, times: int) -> list[float]:
    took: list[float] = []
    file = os.open(folder / "sync", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for _ in range(times):
        os.write(file, b"x" * 1_000)
        started = time.perf_counter()
        os.fdatasync(file)
        took.append(time.perf_counter() - started)
    os.close(file)
    return took


def ms(took: list[float], percent: int = 50) -> float:
    """The so-manieth percentile, in milliseconds."""
    return round(statistics.quantiles(took, n=100)[percent - 1] * 1e3, 3)


def measure(folder: Path, times: int, threads: int) -> dict[str, Any]:
    log = f"file:{folder}/log"
    with worker(log):
        with Gasoline.open_sync(log) as gasoline:
            dispatches, wholes = blocking_s(gasoline, times)
            per_s = at_once_per_s(gasoline, 4 * times, threads)
        awaited = asyncio.run(asynchronous_s(log, times))
    alone = asyncio.run(asynchronous_s(f"file:{folder}/alone", times, working=True))
    return {
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "round_trip_ms": ms(wholes),
        "round_trip_p95_ms": ms(wholes, 95),
        "round_trip_budget_ms": BUDGET_MS,
        "dispatch_ms": ms(dispatches),
        "asynchronous_ms": ms(awaited),
        "in_one_process_ms": ms(alone),
        "at_once_per_s": round(per_s),
        "fdatasync_ms": ms(syncs_s(folder, times)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--times", type=int, default=500)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--dir", type=Path, help="where to write (default: a temporary directory here)")
    parser.add_argument("--work", metavar="LOG", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        asyncio.run(work(args.work))
        return
    with tempfile.TemporaryDirectory(prefix="bench-", dir=args.dir or Path.cwd()) as folder:
        found = measure(Path(folder), args.times, args.threads)
    if args.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:>28}  {value:,}" if isinstance(value, (int, float)) else f"{name:>28}  {value}")


if __name__ == "__main__":
    main()
