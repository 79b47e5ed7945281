"""How fast the Kafka drivers commit and read, on a broker of this machine.

    python bench/kafka_driver.py [--json]

The broker is the one that ``GASOLINE_KAFKA_BOOTSTRAP`` names, else one that is started as for the tests. The times of a
transaction are medians; records have values of 700 bytes, on one partition.
"""

from __future__ import annotations

import json
import os
import secrets
import statistics
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gasoline_es.log.kafka.drivers.port import Committed, Driver, Feed, NewTopic, Out
from gasoline_es.log.kafka.settings import DRIVERS, Address, make_driver

VALUE_BYTES = 700
COMMITS = {1: 200, 100: 50, 5_000: 8}


@contextmanager
def a_broker() -> Generator[str]:
    given = os.environ.get("GASOLINE_KAFKA_BOOTSTRAP")
    if given:
        yield given
        return
    from tests.kafka_server import own_broker

    with own_broker() as broker:
        yield broker.bootstrap


def commits(driver: Driver, feed: Feed, size: int, count: int) -> list[float]:
    """Return how long each of so many transactions of so many records took, in seconds."""
    records = [Out(feed, b"workflow/%d" % n, b"x" * VALUE_BYTES, [("ce_type", b"x")], 1) for n in range(size)]
    took: list[float] = []
    with closing(driver.writer(f"bench-{secrets.token_hex(4)}", 60)) as writer:
        writer.fence()
        for number in range(count + 3):
            began = time.perf_counter()
            fate = writer.commit(records)
            assert isinstance(fate, Committed), fate
            if number >= 3:
                took.append(time.perf_counter() - began)
    return took


def reading(driver: Driver, feed: Feed) -> tuple[int, float]:
    """Return how many records there are, and how long it took to read them once the first were there."""
    with closing(driver.reader()) as reader:
        reader.assign({feed: 0})
        end = reader.ends([feed], 10)[feed]
        first = len(reader.poll(10_000, 10))
        began = time.perf_counter()
        count = 0
        while reader.position(feed) < end:
            count += len(reader.poll(10_000, 0.1))
        return first + count, count / (time.perf_counter() - began)


def measure(bootstrap: str, name: str) -> dict[str, float]:
    driver = make_driver(Address((bootstrap,), driver=name), environ={})
    feed = Feed(f"bench-{secrets.token_hex(4)}", 0)
    found: dict[str, float] = {}
    with closing(driver):
        with closing(driver.admin()) as admin:
            admin.create([NewTopic(feed.topic, 1, 1, {"retention.ms": "-1"})], 30)
        for size, count in COMMITS.items():
            took = commits(driver, feed, size, count)
            found[f"commit_{size}_median_ms"] = round(statistics.median(took) * 1000, 2)
            found[f"commit_{size}_records_per_s"] = round(size / statistics.median(took))
        _, found["read_records_per_s"] = (round(one) for one in reading(driver, feed))
    return found


def show(found: Mapping[str, Mapping[str, float]], *, as_json: bool, unit: str = "") -> None:
    """Print the figures of each of several things that were measured."""
    if as_json:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        print(name)
        for what, figure in figures.items():
            print(f"  {what:28} {figure:>12,}{unit}")


def main() -> None:
    with a_broker() as bootstrap:
        found = {name: measure(bootstrap, name) for name in DRIVERS}
    show(found, as_json="--json" in sys.argv[1:])


if __name__ == "__main__":
    main()
