"""The bytes of a mark, and that a log opened by its mark is known as one that was read whole."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gasoline_es.errors import Fenced, PartitionOwned
from gasoline_es.log.file.index import EpochNotes, SegmentIndex
from gasoline_es.log.file.lines import After, Begin, Place
from gasoline_es.log.file.log import FileLog
from gasoline_es.log.file.mark import Mark, MarkedSegment, decode_mark, encode_mark
from gasoline_es.log.port import Epoch, Position, Problem
from gasoline_es.testing.faults import UnsyncedDisk
from gasoline_es.testing.log_contract import EVENTS, INBOX, event, numbers, put
from tests.log.test_crashes import aged, opened

LOG = "0123456789abcdef" * 2


def marked(number: int, **values: Any) -> MarkedSegment:
    segment = MarkedSegment(
        number, 7_000 + number, 10**18, 10**18, 900, 200, "ab" * 32, 500, 800, 900, 4, 4, 9, "cd" * 32, 5, {}
    )
    return segment._replace(topics={EVENTS: 5, INBOX: 1 << 4095}, **values)


def indexes() -> list[SegmentIndex]:
    """Of three segments: partition 0 goes on through all of them, partition 3 is released and taken again."""
    first = Begin(None, {})
    second = Begin(After(1, Place(1, 4)), {"default.events": 4})
    third = Begin(After(3, Place(2, 6)), {"default.events": 9, "default.index": 1})
    return [
        SegmentIndex(
            epochs={
                (0, 1): EpochNotes(first, 1, False, {EVENTS: 2}),
                (3, 1): EpochNotes(first, 2, True, {EVENTS: 4}),
            }
        ),
        SegmentIndex(
            epochs={
                (0, 1): EpochNotes(None, 0, False, {EVENTS: 5, INBOX: 1}),
                (3, 3): EpochNotes(second, 5, False, {EVENTS: 9, "default.index": 1}),
            }
        ),
        SegmentIndex(
            epochs={
                (0, 1): EpochNotes(None, 0, True, {EVENTS: 7}),
                (3, 4): EpochNotes(third, 7, False, {EVENTS: 10}),
            }
        ),
    ]


def test_a_mark_says_the_same_in_whatever_order_its_segments_come() -> None:
    found: set[bytes] = set()
    for seed in range(20):
        order = list(enumerate(indexes(), 1))
        random.Random(seed).shuffle(order)
        mark = Mark(LOG)
        if seed % 2:
            for number, index in order:
                mark.add(marked(number), "default", index)
        else:
            for number, index in order:
                one = Mark(LOG)
                one.add(marked(number), "default", index)
                mark.merge(one)
        found.add(encode_mark(mark).replace(b'"default.index"', b'"x"'))
        own, other = mark.epochs["default", 0], mark.epochs["default", 3]
        assert (own.top, own.released, own.ends) == (1, True, {EVENTS: 7, INBOX: 1})
        assert (other.top, other.released, other.ends) == (4, False, {EVENTS: 10, "default.index": 1})
        assert list(other.begins.epochs) == [1, 3, 4]
        assert other.begins.begin(other.begins.find(4)) == indexes()[2].epochs[3, 4].begin
        assert other.begins.begin(other.begins.find(1)) == Begin(None, {})
        assert other.begins.find(2) == -1
    assert len({len(data) for data in found}) == 1


def test_a_mark_is_read_back_or_not_at_all() -> None:
    mark = Mark(LOG)
    for number, index in enumerate(indexes(), 1):
        mark.add(marked(number), "default", index)
    mark.epochs["default", 3].read, mark.epochs["default", 3].seal = 4, "ef" * 32
    data = encode_mark(mark)
    assert decode_mark(LOG, data) == mark
    assert decode_mark("f" * 32, data) is None
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        assert decode_mark(LOG, bytes(changed)) is None
    for cut in (0, 1, len(data) // 2, len(data) - 1):
        assert decode_mark(LOG, data[:cut]) is None


# --- beside one that was read whole -----------------------------------------------------------------------------------


def known(log: FileLog) -> dict[str, Any]:
    """Everything that an opening establishes."""
    begins = log._catalog.begins
    found: dict[str, Any] = {}
    for number, segment in log._catalog.segments.items():
        found[f"segment {number}"] = (
            segment.header,
            segment.writer,
            segment.position,
            segment.batch,
            segment.batches,
            segment.records,
            segment.digest,
            segment.finished,
            segment.torn,
            segment.topics,
            segment.newest_us,
            segment.damage,
            log._catalog.indexes.of(segment),
        )
    for partition in range(log.partition_count):
        top = begins.top("default", partition)
        owner = log.owner(partition)
        chain = log._counted.view("default", partition).chain
        found[f"partition {partition}"] = (
            top,
            [begins.begun("default", partition, epoch) for epoch in range(top + 2)],
            begins.ends("default", partition, top),
            begins.released("default", partition, top),
            owner,
            [(link.epoch, link.writer, link.limit, link.begin, link.start) for link in chain.all()],
            list(log.read(EVENTS, partition)),
            log._soundness.check("default", partition, read=True),
        )
        tail = log.tail(INBOX, partition)
        found[f"inbox {partition}"] = (numbers(tail.poll()), tail.position, tail.waiting())
    found["places"] = (log._catalog.last_place, log._catalog.by_writer, log._catalog.highest, log.info().torn)
    return found


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "take", "release", "send", "close", "die", "another", "void"]),
        st.integers(0, 1),
        st.integers(0, 1),
    ),
    max_size=30,
)


class Lives:
    """Two handles on a log, and what they own."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.now_s = 0.0
        self.logs: list[FileLog] = []
        self.owned: list[dict[int, Epoch]] = [{}, {}]
        self.number = 0

    async def open(self) -> FileLog:
        return await opened(
            self.directory, partitions=2, segment_bytes_max=1_100, disk=UnsyncedDisk(), clock=lambda: self.now_s
        )

    async def step(self, what: str, who: int, partition: int) -> None:
        log, owned = self.logs[who], self.owned[who]
        self.number += 1
        match what:
            case "put":
                if partition not in owned:
                    await self.step("take", who, partition)
                if partition in owned:
                    records = [event(self.number, partition), event(self.number, 1 - partition, INBOX)]
                    await put(log, owned[partition], *records, partition=partition)
            case "take":
                with suppress(PartitionOwned, Fenced):
                    owned[partition] = (await log.acquire(partition)).epoch
            case "void":
                # The other one stands still, is taken for dead, and writes what does not count.
                self.logs[1 - who].owner(partition)
                log.owner(partition)
                self.now_s += 10.0
                beating = log._incarnation
                assert beating is not None
                beating.beat()
                await self.step("take", who, partition)
            case "release":
                await log.release(partition)
                owned.pop(partition, None)
            case "send":
                await put(log, None, event(self.number, partition, INBOX), partition=partition)
            case "another":
                await (await self.open()).close()
            case _:
                await (log.close() if what == "close" else log.crash())
                self.logs[who], self.owned[who] = await self.open(), {}


async def _compare(steps: list[tuple[str, int, int]], directory: str) -> None:
    lives = Lives(f"{directory}/log")
    lives.logs = [await lives.open(), await lives.open()]
    for step in steps:
        await lives.step(*step)
    for log in lives.logs:
        await (log.close() if len(steps) % 2 else log.crash())
    aged(lives.directory)
    for _ in range(2):
        shutil.copytree(lives.directory, f"{directory}/copy")
        shutil.rmtree(f"{directory}/copy/verified")
        whole = await opened(f"{directory}/copy", disk=UnsyncedDisk())
        log = await lives.open()
        assert known(log) == known(whole)
        assert [found for found in log.verify() if isinstance(found, Problem)] == []
        await log.crash()
        await whole.crash()
        shutil.rmtree(f"{directory}/copy")


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(_STEPS)
def test_a_log_opened_by_its_mark_is_known_as_one_that_was_read_whole(steps: list[tuple[str, int, int]]) -> None:
    """Whatever lives it had: epochs, begins, releases, void sections, last places, torn bytes, indexes, records."""
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_compare(steps, directory))


async def test_a_position_goes_on_in_a_log_opened_by_its_mark(tmp_path: Path) -> None:
    log = await opened(tmp_path, partitions=1, segment_bytes_max=900, disk=UnsyncedDisk())
    tail, seen, left = log.tail(INBOX, 0), list[int](), Position({})
    for number in range(30):
        await put(log, None, event(number, 0, INBOX))
        if number < 20:
            seen += numbers(tail.poll(1))
            left = tail.position
    await log.close()
    for _ in range(2):
        log = await opened(tmp_path, disk=UnsyncedDisk())
        assert [*seen, *numbers(log.tail(INBOX, 0, left).poll())] == list(range(30))
        await log.close()
