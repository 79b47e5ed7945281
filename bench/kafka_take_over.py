"""How soon a worker goes on with what a killed one has left on Kafka, whose last transaction is still open.

    python bench/kafka_take_over.py [--json] [--events 10000] [--times 3] [--driver confluent]

A worker in a process of its own records so many events and is killed between the records of a transaction and its commit.
Another, that has read none of that, waits. Times count from the moment at which it takes the other one for dead, which is
10 s after the last sign of life: until all partitions are its own, and until a workflow of each of them has taken a signal.
Beside it: what the same takes when nothing was left open. The broker is that of ``bench/kafka_driver.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.kafka_driver import a_broker, show
from gasoline_es import ActivityContext, Gasoline, Signal, WorkflowContext, activity, workflow
from gasoline_es.core.ids import partition_of
from gasoline_es.log.kafka.settings import DRIVERS

PARTITIONS = 8
EVENTS_OF_ONE = 1 + 2 * 10 + 1
"""Of a workflow of ten steps, about."""


class Go(Signal):
    pass


@activity
async def step(ctx: ActivityContext, number: int) -> int:
    return number + 1


@workflow
async def steps(ctx: WorkflowContext, count: int) -> int:
    for number in range(count):
        await ctx.activity(step, number)
    return count


@workflow
async def waiting(ctx: WorkflowContext, _: None) -> None:
    await ctx.listen(Go)


class Dying:
    """A producer that ends its process when it is to commit: the records are with the broker, and the transaction is open."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def commit_transaction(self, *args: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def die_in_the_middle(log: Any) -> None:
    """Make the next commit of an owner the last thing that this process does not do."""
    for own in log._own.values():
        writer = own.sender._writer
        writer._producer = Dying(writer._producer)


async def first(url: str, events: int) -> None:
    """The worker that is killed. It tells when it is ready, and dies when it is told how."""
    async with Gasoline.open(url, partitions=PARTITIONS) as gasoline, gasoline.worker([steps, waiting]):
        of_each: dict[int, str] = {}
        while len(of_each) < PARTITIONS:
            handle = await gasoline.dispatch(waiting, None)
            of_each[partition_of(handle.id, PARTITIONS)] = handle.id
        handles = await asyncio.gather(*(gasoline.dispatch(steps, 10) for _ in range(events // EVENTS_OF_ONE)))
        await asyncio.gather(*(handle.output() for handle in handles))
        print(json.dumps([*of_each.values()]), flush=True)
        how = await asyncio.to_thread(sys.stdin.readline)
        if how.strip() == "open":
            die_in_the_middle(gasoline.log)
            await asyncio.gather(*(gasoline.dispatch(steps, 10) for _ in range(PARTITIONS * 8)))
        os.kill(os.getpid(), signal.SIGKILL)


async def once(bootstrap: str, driver: str, events: int, how: str) -> dict[str, float]:
    """Let one die, and take over from it; return the times in ms."""
    with tempfile.TemporaryDirectory(prefix="gasoline-bench-") as folder:
        namespace = f"b{secrets.token_hex(4)}"
        url = f"kafka://{bootstrap}/{namespace}?driver={driver}&state_dir={folder}"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, "--first", f"{url}/one", "--events", str(events)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            ids = json.loads(await process.stdout.readline())
            async with Gasoline.open(f"{url}/two") as gasoline:
                process.stdin.write(how.encode() + b"\n")
                await process.wait()
                return await _take_over(gasoline, [gasoline.handle(one, waiting) for one in ids])
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _take_over(gasoline: Gasoline, handles: list[Any]) -> dict[str, float]:
    log = gasoline.log
    async with gasoline.worker([steps, waiting]):
        while any(one is not None and one.alive and not one.mine for one in map(log.owner, range(PARTITIONS))):  # noqa: ASYNC110  # of the log itself
            await asyncio.sleep(0.002)
        noticed = time.perf_counter()
        took: dict[str, float] = {}
        going = [asyncio.ensure_future(_go(handle)) for handle in handles]
        while not all(one is not None and one.mine for one in map(log.owner, range(PARTITIONS))):  # noqa: ASYNC110  # of the log itself
            await asyncio.sleep(0.002)
        took["owned_ms"] = (time.perf_counter() - noticed) * 1000
        await asyncio.gather(*going)
        took["working_ms"] = (time.perf_counter() - noticed) * 1000
    return took


async def _go(handle: Any) -> None:
    await handle.signal(Go())
    await handle.output()


async def measure(bootstrap: str, driver: str, events: int, times: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for how in ("open", "quiet"):
        runs = [await once(bootstrap, driver, events, how) for _ in range(times)]
        for name in runs[0]:
            found[f"{how}_{name}"] = round(statistics.median(run[name] for run in runs))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--driver", choices=DRIVERS)
    parser.add_argument("--first", metavar="URL", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.first:
        asyncio.run(first(given.first, given.events))
        return
    with a_broker() as bootstrap:
        names = [given.driver] if given.driver else DRIVERS
        found = {name: asyncio.run(measure(bootstrap, name, given.events, given.times)) for name in names}
    show(found, as_json=given.json, unit=" ms")


if __name__ == "__main__":
    main()
