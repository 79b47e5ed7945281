"""What an opening and a take-over read does not grow with the age of the log, but for a stated amount for each segment."""

from __future__ import annotations

import asyncio
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gasoline_es.log.file.index import SPACING_BYTES, Places, SegmentIndex
from gasoline_es.log.file.log import FileLog
from gasoline_es.log.port import Appended, NewRecord, Section
from gasoline_es.testing.faults import CountingDisk, UnsyncedDisk
from gasoline_es.testing.log_contract import EVENTS, INBOX, event, numbers, put
from tests.log.test_crashes import opened, segment

MESSAGES = "default.messages"
REGISTRY = "default.registry"
OPENING_BYTES = 2_000
"""For each segment: its entry in the mark, or the claim of its writer, with its epochs; and two of its header lines."""
PARTITIONS = 2


async def life(directory: Path, first: int, segments: int) -> int:
    """Fill so many segments in one life, and close; return the number of the next event.

    Partition 1 is owned too, and idle after its first records. Nobody reads an inbox in it, and somebody did so once.
    """
    log = await opened(directory, partitions=PARTITIONS, segment_bytes_max=20_000, disk=UnsyncedDisk())
    epochs = [(await log.acquire(partition)).epoch for partition in range(PARTITIONS)]
    records = [event(first, 1), event(first, 1, INBOX), NewRecord(REGISTRY, 1, "position", b"{}", 1)]
    await put(log, epochs[1], *records, partition=1)
    number, last = first, log._catalog.highest + segments
    while log._catalog.highest < last or segment(directory, last).stat().st_size < 10_000:
        records = [event(number + i, value=b'"%b"' % (b"x" * 900)) for i in range(3)]
        number += 3
        position = NewRecord(REGISTRY, 0, "position", b"{}", 1)
        await put(log, epochs[0], *records, position, event(number, 0, INBOX), event(number, 0, MESSAGES))
        log.end(EVENTS, 0)
    await log.close()
    return number


async def aged(directory: Path, lives: int, segments: int) -> int:
    await (await opened(directory, partitions=PARTITIONS, disk=UnsyncedDisk())).close()
    number = 0
    for _ in range(lives):
        number = await life(directory, number, segments)
    return number


async def costs(directory: Path) -> dict[str, int]:
    """Open the log, take its partitions over as a worker does, and return how many bytes each call read."""
    disk = CountingDisk(str(directory))
    found: dict[str, int] = {}

    def done(what: str) -> None:
        found[what] = disk.read_of()
        disk.forget()

    log = await opened(directory, disk=disk)
    done("open")
    for partition in range(PARTITIONS):
        await log.acquire(partition)
        done(f"acquire {partition}")
        assert log.owner(partition) is not None
        done(f"owner {partition}")
        end = log.end(EVENTS, partition)
        done(f"end {partition}")
        last = list(log.read(EVENTS, partition, end - 1))
        assert last[0].offset == end - 1
        done(f"read {partition}")
        log.read_at(EVENTS, partition, [end - 1], [last[0].place])
        done(f"read_at {partition}")
        stop = log.end(REGISTRY, partition)
        assert len(list(log.read(REGISTRY, partition, stop - 1, stop))) == 1
        done(f"position {partition}")
        tail = log.tail(INBOX, partition)
        tail.skip()
        position = tail.position
        done(f"skip {partition}")
        tail = log.tail(INBOX, partition, position)
        assert tail.poll() == []
        assert tail.waiting() == 0
        done(f"tail {partition}")
    assert log.newest(MESSAGES, 0, 0, lambda record: True) is not None
    done("newest")
    assert log.newest(MESSAGES, 1, 0, lambda record: True) is None
    done("newest of none")
    await log.close()
    return found


@pytest.mark.parametrize("many", ["lives", "segments"])
async def test_what_is_read_to_open_and_to_take_over_does_not_grow_with_the_log(tmp_path: Path, many: str) -> None:
    found: dict[int, dict[str, int]] = {}
    for times in (3, 30):
        directory = tmp_path / str(times)
        await (aged(directory, times, 1) if many == "lives" else aged(directory, 1, times))
        found[times] = await costs(directory)
    segments = 27
    grown = {what: found[30][what] - found[3][what] for what in found[3]}
    assert grown.pop("open") <= segments * OPENING_BYTES
    assert {what: more for what, more in grown.items() if more > 3_000} == {}, found


async def test_a_tail_left_long_ago_looks_only_at_segments_that_may_hold_something_for_it(tmp_path: Path) -> None:
    """An idle partition: what its inbox position names is as old as its last command."""
    await aged(tmp_path, 1, 2)
    log = await opened(tmp_path, disk=UnsyncedDisk())
    tail = log.tail(INBOX, 1)
    assert len(tail.poll()) == 1
    left = tail.position
    await log.close()
    found: list[int] = []
    for _ in range(2):
        await life(tmp_path, 0, 10)
        disk = CountingDisk(str(tmp_path))
        log = await opened(tmp_path, disk=disk)
        disk.forget()
        tail = log.tail(INBOX, 1, left)
        tail.poll()
        found.append(disk.read_of())
        await log.close()
    # One segment of the ten that a life fills has a record of this partition: its headers, and then the record's batch.
    assert found[1] - found[0] <= 50_000


async def test_old_epochs_are_not_looked_at_and_take_little_memory(tmp_path: Path) -> None:
    log = await opened(tmp_path, partitions=1, disk=UnsyncedDisk())
    for number in range(200):
        owned = await log.acquire(0)
        await put(log, owned.epoch, event(number))
        await log.release(0)
    await log.close()
    again = await opened(tmp_path, disk=UnsyncedDisk())
    owned = await again.acquire(0)
    await put(again, owned.epoch, event(200))
    assert numbers(again.read(EVENTS, 0, 199)) == [199, 200]
    chain = again._counted.view("default", 0).chain
    assert len(chain._links) <= 3
    assert len(again._catalog.begins._ends) <= 2
    assert numbers(again.read(EVENTS, 0)) == list(range(201))
    assert len(chain._links) == 201
    await again.close()


async def test_the_index_of_a_segment_that_has_none_is_made_of_that_segment_alone_and_stored(tmp_path: Path) -> None:
    await aged(tmp_path, 1, 5)
    await (await opened(tmp_path, disk=UnsyncedDisk())).close()
    stored = segment(tmp_path, 3, ".index").read_bytes()
    segment(tmp_path, 3, ".index").unlink()
    disk = CountingDisk(str(tmp_path))
    log = await opened(tmp_path, disk=disk)
    assert not segment(tmp_path, 3, ".index").exists()
    disk.forget()
    assert list(log.read(EVENTS, 0))
    often = {path for path in disk.bytes if disk.bytes[path] > 1.5 * (tmp_path / path).stat().st_size}
    assert often == set(), "walked and read in one go; the others are read by their indexes"
    assert disk.bytes["segments/0000000003.jsonl"] > 0
    log.end(EVENTS, 0)
    assert segment(tmp_path, 3, ".index").read_bytes() == stored
    await log.close()


async def test_indexes_in_memory_are_bounded_by_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await aged(tmp_path, 1, 12)
    monkeypatch.setattr("gasoline_es.log.file.indexes._CACHED_BYTES_MAX", 10_000)
    log = await opened(tmp_path, disk=UnsyncedDisk())
    expected = list(log.read(EVENTS, 0))
    cached = log._catalog.indexes._cached
    assert sum(index.size for index, _ in cached._values.values()) == cached._size <= 10_000
    assert 1 <= len(cached._values) < 12
    assert list(log.read(EVENTS, 0)) == expected
    await log.close()


def test_an_index_takes_sixteen_bytes_for_each_place_in_memory() -> None:
    """A soak test of endless loops watches a worker's memory: the index of the growing segment is part of that."""
    places = Places()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(20_000):
            places.add(10**6 + number, number * SPACING_BYTES)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 16 * 20_000 <= taken <= 20 * 20_000
    index = SegmentIndex(tails={(EVENTS, 0): places})
    assert 0.9 * taken <= index.size <= 1.1 * taken


async def test_a_segment_holds_so_many_batches_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a process that appends one by one and is killed leaves many more headers to be walked than others do."""
    monkeypatch.setattr("gasoline_es.log.file.writer.SEGMENT_BATCHES_MAX", 5)
    log = await opened(tmp_path, partitions=1, disk=UnsyncedDisk())
    for number in range(12):
        await put(log, None, event(number, 0, INBOX))
    assert numbers(log.tail(INBOX, 0).poll()) == list(range(12))
    assert [info.batches for info in log.info().segments] == [5, 5, 2]
    await log.close()


# --- reading from the middle ------------------------------------------------------------------------------------------


async def _filled(directory: Path, batches: list[tuple[int, int]]) -> tuple[FileLog, dict[str, list[int]]]:
    """One epoch over many small segments; in each batch so many events, and so many of another topic."""
    log = await opened(directory, partitions=1, segment_bytes_max=700, disk=UnsyncedDisk())
    owned = await log.acquire(0)
    written: dict[str, list[int]] = {EVENTS: [], REGISTRY: []}
    number = 0
    for counts in batches:
        records: list[NewRecord] = []
        for topic, count in zip(written, counts, strict=True):
            for _ in range(count):
                records.append(event(number, topic=topic))
                written[topic].append(number)
                number += 1
        (outcome,) = await log.append([Section(0, owned.epoch, records)])
        assert isinstance(outcome, Appended)
    return log, written


@settings(max_examples=25)
@given(st.lists(st.sampled_from([(0, 1), (0, 3), (1, 0), (3, 0), (1, 1), (0, 1), (0, 2)]), min_size=1, max_size=30))
def test_a_read_from_anywhere_gives_all_from_there_on(batches: list[tuple[int, int]]) -> None:
    """However an epoch's records lie in its segments, many of which have none of a topic."""

    async def check(directory: str) -> None:
        log, written = await _filled(Path(directory), batches)
        await log.crash()
        await (await opened(directory, disk=UnsyncedDisk())).close()
        again = await opened(directory, disk=UnsyncedDisk())
        for topic, expected in written.items():
            for start in range(len(expected) + 1):
                assert numbers(again.read(topic, 0, start)) == expected[start:]
                assert numbers(again.read(topic, 0, start, start + 1)) == expected[start : start + 1]
        await again.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(check(directory))
