"""The engine on Kafka by both drivers, beside the file log and beside what the driver alone commits, all in one run.

    python bench/kafka_engine.py [--json] [--workflows 300] [--steps 10] [--driver confluent]

* steps/s: workflows of activities, from the first dispatch to the last output; ``records/s`` of the same.
* raw: the same numbers of records in the same number of transactions at once, by the driver alone, values of the same size;
  ``engine_to_raw`` is the median of the ratios of five turns, each of which measures one right after the other.
* alone: the median time from dispatch to output of a workflow of one step.
* signals/s: sent 500 at a time into one workflow that takes them all.
* recovery: events/s that are folded when a worker starts whose machine has neither copies nor views: first reading them
  from the broker, then ``again``, from the copies that are on its disk.

The broker is that of ``bench/kafka_driver.py``; a namespace has eight partitions.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.engine import Added, Plan, count, fulfil
from bench.kafka_driver import a_broker, show
from gasoline_es import Gasoline, SignalTo
from gasoline_es.log.kafka.drivers.port import Committed, Feed, NewTopic, Out
from gasoline_es.log.kafka.sender import Sender
from gasoline_es.log.kafka.settings import DRIVERS, Address, make_driver

PARTITIONS = 8
TURNS = 5


@dataclass(slots=True)
class Sent:
    """What the engine has given the drivers: records and bytes of each transaction."""

    records: list[int] = field(default_factory=list[int])
    bytes: int = 0


@contextmanager
def counting() -> Generator[Sent]:
    """Count what is sent meanwhile."""
    sent, send = Sent(), Sender.send

    def counted(self: Sender, records: Sequence[Out]) -> Sequence[int]:
        sent.records.append(len(records))
        sent.bytes += sum(len(record.value or b"") for record in records)
        return send(self, records)

    Sender.send = counted  # type: ignore[method-assign]
    try:
        yield sent
    finally:
        Sender.send = send  # type: ignore[method-assign]


def raw_records_per_s(bootstrap: str, name: str, each: int, value_bytes: int) -> float:
    """Commit so many records in each transaction, as many at once as there are partitions."""
    driver = make_driver(Address((bootstrap,), driver=name), environ={})
    topic = f"bench-{secrets.token_hex(4)}"
    times = max(20, 200 // each)

    def one(partition: int) -> None:
        records = [Out(Feed(topic, partition), b"workflow/%d" % n, b"x" * value_bytes, (), 1) for n in range(each)]
        with closing(driver.writer(f"{topic}.{partition}", 60)) as writer:
            writer.fence()
            for _ in range(times):
                fate = writer.commit(records)
                assert isinstance(fate, Committed), fate
            ended.append(time.perf_counter())

    with closing(driver):
        with closing(driver.admin()) as admin:
            admin.create([NewTopic(topic, PARTITIONS, 1, {})], 30)
        ended: list[float] = []
        with ThreadPoolExecutor(PARTITIONS) as pool:
            list(pool.map(one, range(PARTITIONS)))  # what is made and met only once is not measured
            began = time.perf_counter()
            list(pool.map(one, range(PARTITIONS)))
            return PARTITIONS * times * each / (time.perf_counter() - began)


async def steps(url: str, workflows: int, of_each: int) -> float:
    """Return the seconds that it takes."""
    async with (
        Gasoline.open(url, partitions=PARTITIONS) as gasoline,
        gasoline.worker([fulfil], max_concurrency=workflows),
    ):
        began = time.perf_counter()
        handles = await asyncio.gather(*(gasoline.dispatch(fulfil, Plan(steps=of_each)) for _ in range(workflows)))
        await asyncio.gather(*(handle.output() for handle in handles))
        return time.perf_counter() - began


async def alone_and_signals(url: str, signals: int) -> tuple[float, float]:
    async with Gasoline.open(url) as gasoline, gasoline.worker([fulfil, count]):
        took: list[float] = []
        for _ in range(50):
            began = time.perf_counter()
            handle = await gasoline.dispatch(fulfil, Plan(steps=1))
            await handle.output()
            took.append(time.perf_counter() - began)
        counted = await gasoline.dispatch(count, signals)
        began = time.perf_counter()
        for first in range(0, signals, 500):
            await gasoline.signal_many([SignalTo(Added(amount=n), counted.id) for n in range(first, first + 500)])
        await counted.output()
        return statistics.median(took) * 1e3, signals / (time.perf_counter() - began)


async def recovery(url: str) -> float:
    """Return how many events are folded each second until a worker has begun in all partitions."""
    began = time.perf_counter()
    async with Gasoline.open(url) as gasoline, gasoline.worker([fulfil, count]):
        log = gasoline.log
        while not all(one is not None and one.mine for one in map(log.owner, range(PARTITIONS))):  # noqa: ASYNC110  # of the log itself
            await asyncio.sleep(0.005)
        seconds = time.perf_counter() - began
        events = sum(1 for part in range(PARTITIONS) for _ in log.read(f"{log.namespace}.events", part))
    return events / seconds


def on(url: str, fresh: str, workflows: int, of_each: int) -> dict[str, float]:
    """Measure the engine on a log. ``fresh``: its URL from another machine."""
    seconds = asyncio.run(steps(url, workflows, of_each))
    alone_ms, signals = asyncio.run(alone_and_signals(url, 5_000))
    return {
        "steps_per_s": round(workflows * of_each / seconds),
        "alone_ms": round(alone_ms, 2),
        "signals_per_s": round(signals),
        "recovery_events_per_s": round(asyncio.run(recovery(fresh))),
        "recovery_again_events_per_s": round(asyncio.run(recovery(fresh))),
    }


def beside_raw(url: str, bootstrap: str, driver: str, workflows: int, of_each: int) -> dict[str, float]:
    """Measure steps and what the driver alone commits, in turn: medians, and the ratio of each turn."""
    turns: list[tuple[float, float, float]] = []
    each = value_bytes = 0
    for turn in range(TURNS):
        with counting() as sent:
            seconds = asyncio.run(steps(f"{url}-{turn}", workflows, of_each))
        each, value_bytes = round(statistics.mean(sent.records)), sent.bytes // sum(sent.records)
        turns.append((sum(sent.records) / seconds, raw_records_per_s(bootstrap, driver, each, value_bytes), seconds))
    ratios = sorted(engine / raw for engine, raw, _ in turns)
    return {
        "steps_per_s": round(workflows * of_each / statistics.median(seconds for *_, seconds in turns)),
        "records_each": each,
        "value_bytes": value_bytes,
        "records_per_s": round(statistics.median(engine for engine, *_ in turns)),
        "raw_records_per_s": round(statistics.median(raw for _, raw, _ in turns)),
        "engine_to_raw": round(statistics.median(ratios), 2),
        "engine_to_raw_least": round(ratios[0], 2),
        "engine_to_raw_most": round(ratios[-1], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--workflows", type=int, default=300)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--driver", choices=DRIVERS)
    given = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    with a_broker() as bootstrap, tempfile.TemporaryDirectory(prefix="gasoline-bench-") as folder:
        files = f"file:{folder}/log"
        found["file"] = on(files, files, given.workflows, given.steps)
        for name in [given.driver] if given.driver else DRIVERS:
            url = f"kafka://{bootstrap}/b{secrets.token_hex(4)}?driver={name}&state_dir={folder}/{name}"
            found[name] = on(url, f"{url}-fresh", given.workflows, given.steps)
            again = f"kafka://{bootstrap}/b{secrets.token_hex(4)}?driver={name}&state_dir={folder}/{name}"
            found[name] |= beside_raw(again, bootstrap, name, given.workflows, given.steps)
    show(found, as_json=given.json)


if __name__ == "__main__":
    main()
