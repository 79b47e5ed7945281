"""How long questions take that are about all partitions of a namespace on Kafka, of which another process owns each.

    python bench/kafka_asking.py [--json] [--partitions 32] [--times 10] [--driver confluent]

* list: all workflows of a namespace, which are a few. find: by tags. unique: a dispatch that finds the one that is there,
  and ``unique_new`` one that finds none. signal: by tags.
* first_list: of a process that has asked nothing before.
* by the owner: the same in the process that owns all partitions, which finds out each time whether they are still its own.

Medians, in milliseconds. The broker is that of ``bench/kafka_driver.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.kafka_driver import a_broker, show
from gasoline_es import Gasoline, Signal, WorkflowContext, workflow
from gasoline_es.log.kafka.settings import DRIVERS


class Go(Signal):
    pass


@workflow
async def waiting(ctx: WorkflowContext, _: None) -> None:
    while True:
        await ctx.listen(Go)


async def asked(gasoline: Gasoline, times: int) -> dict[str, float]:
    """Return how long each question took."""
    found: dict[str, float] = {}

    async def listed() -> None:
        async for _ in gasoline.list():
            pass

    def numbered() -> dict[str, Any]:
        return {"run": secrets.token_hex(4)}

    questions: dict[str, Callable[[], Awaitable[object]]] = {
        "list": listed,
        "find": lambda: gasoline.find(waiting, tags={"of": "bench"}),
        "unique": lambda: gasoline.dispatch(waiting, None, tags={"of": "bench"}, unique=True),
        "unique_new": lambda: gasoline.dispatch(waiting, None, tags=numbered(), unique=True),
        "signal": lambda: gasoline.signal(Go(), waiting, tags={"of": "bench"}),
    }
    began = time.perf_counter()
    await listed()
    found["first_list"] = round((time.perf_counter() - began) * 1e3)
    _ = await gasoline.dispatch(waiting, None, tags={"of": "bench"}, unique=True)
    for what, question in questions.items():
        took: list[float] = []
        for _ in range(times):
            began = time.perf_counter()
            await question()
            took.append(time.perf_counter() - began)
        found[what] = round(statistics.median(took) * 1e3, 1)
    return found


async def own(url: str, times: int) -> None:
    """Own everything, until somebody says that it is over; then ask, too."""
    async with Gasoline.open(url) as gasoline, gasoline.worker([waiting]):
        log = gasoline.log
        while not all(one is not None and one.mine for one in map(log.owner, range(log.partition_count))):  # noqa: ASYNC110  # of the log itself
            await asyncio.sleep(0.01)
        print("owned", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(json.dumps(await asked(gasoline, times)), flush=True)


async def measured(url: str, partitions: int, times: int) -> dict[str, float]:
    """Ask from a process that owns nothing, then from the one that owns all."""
    async with Gasoline.open(f"{url}-asking", partitions=partitions) as gasoline:
        owner = await asyncio.create_subprocess_exec(
            sys.executable,
            __file__,
            "--own",
            f"{url}-owning",
            "--times",
            str(times),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert owner.stdout is not None
        assert owner.stdin is not None
        assert await owner.stdout.readline() == b"owned\n"
        found = await asked(gasoline, times)
    owner.stdin.write(b"\n")
    told = json.loads(await owner.stdout.readline())
    await owner.wait()
    return found | {f"{what} by the owner": figure for what, figure in told.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--partitions", type=int, default=32)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--driver", choices=DRIVERS)
    parser.add_argument("--own", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.own:
        asyncio.run(own(given.own, given.times))
        return
    found: dict[str, dict[str, float]] = {}
    with a_broker() as bootstrap, tempfile.TemporaryDirectory(prefix="gasoline-bench-") as folder:
        for name in [given.driver] if given.driver else DRIVERS:
            url = f"kafka://{bootstrap}/b{secrets.token_hex(4)}?driver={name}&state_dir={folder}/{name}"
            found[name] = asyncio.run(measured(url, given.partitions, given.times))
    show(found, as_json=given.json, unit=" ms")


if __name__ == "__main__":
    main()
