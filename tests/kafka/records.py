"""Records for tests, and readers that read all there is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

from gasoline_es.log.kafka.drivers.port import FIRST, Committed, Driver, Fate, Feed, In, Out, Reader


def out(feed: Feed, number: int, value: bytes | None = None) -> Out:
    """Return a record that can be told apart from others by its number."""
    return Out(feed, b"key/%d" % number, value or b"value/%d" % number, [], 1_000_000 + number)


def outs(feed: Feed, *numbers: int) -> list[Out]:
    return [out(feed, number) for number in numbers]


def numbers(records: Sequence[In]) -> list[int]:
    """Return the numbers of records made by :func:`out`."""
    return [int((record.key or b"").rpartition(b"/")[2]) for record in records]


def catch_up(reader: Reader, feeds: Sequence[Feed], limit_s: float = 20) -> list[In]:
    """Poll until the reader's position is at what were the ends, as the log does; fails if that takes too long."""
    found: list[In] = []
    ends = reader.ends(feeds, 10)
    deadline = time.monotonic() + limit_s
    while any(reader.position(feed) < ends[feed] for feed in feeds):
        at = {feed: reader.position(feed) for feed in feeds}
        assert time.monotonic() < deadline, f"not caught up after {limit_s} s: at {at}, the ends are {ends}"
        found += reader.poll(1000, 0.2)
    return found


def read_all(driver: Driver, *feeds: Feed, uncommitted: bool = False) -> list[In]:
    """Read everything that is there, of all feeds."""
    with closing(driver.reader(uncommitted=uncommitted)) as reader:
        reader.assign(dict.fromkeys(feeds, FIRST))
        return catch_up(reader, feeds)


def committed(fate: Fate) -> list[int]:
    """Return the offsets of a transaction that must have been committed."""
    assert isinstance(fate, Committed), fate
    return list(fate.offsets)
