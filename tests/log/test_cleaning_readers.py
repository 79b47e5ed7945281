"""Who reads while the cleaner puts other files in the place of segments: nobody loses his place, and nothing seems damaged."""

from __future__ import annotations

import asyncio
import json
import shutil
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gasoline_es.errors import HorizonMoved, LogCorrupt, LogError
from gasoline_es.log.file import checkpoint
from gasoline_es.log.file.catalog import Catalog
from gasoline_es.log.file.log import FileLog, open_file_log
from gasoline_es.log.file.segments import Segment
from gasoline_es.log.port import Appended, NewRecord, Problem, SegmentInfo
from gasoline_es.testing.faults import CountingDisk, UnsyncedDisk
from gasoline_es.testing.log_contract import EVENTS, INBOX, event, numbers, put
from tests.log.cleaned import (
    HOUR_US,
    INDEX,
    NOW_US,
    REPLIES,
    clean,
    consumed,
    happened,
    keyed,
    life,
    newest,
    offsets,
    problems,
    pruned,
    rules,
    taken,
    tombstone,
)
from tests.log.test_crashes import segment


async def _writer(directory: Path, **options: object) -> FileLog:
    return await open_file_log(str(directory), partitions=1, segment_bytes_max=2_000, disk=UnsyncedDisk(), **options)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


async def _workflows(directory: Path) -> list[tuple[int, int]]:
    """Twenty workflows of five events each in segments of a few batches; every other one is pruned. Return offset and place."""
    log = await _writer(directory)
    epoch = await taken(log)
    told: list[tuple[int, int]] = []
    for seq in range(1, 6):
        for number in range(20):
            outcome = await put(log, epoch, happened(f"w{number}", seq))
            assert isinstance(outcome, Appended)
            told.append((outcome.offsets[EVENTS], outcome.place))
    for number in range(0, 20, 2):
        await put(log, epoch, pruned(f"w{number}", 6, [1], time_us=NOW_US))
    await log.close()
    return told


async def test_a_read_that_stands_in_a_segment_which_is_replaced_goes_on_behind_where_it_was(tmp_path: Path) -> None:
    await _workflows(tmp_path)
    reader = await open_file_log(str(tmp_path), readonly=True)
    whole = offsets(reader.read(EVENTS, 0))
    standing = {passed: reader.read(EVENTS, 0) for passed in (0, 1, 3, 12, 40, 99)}
    seen = {passed: [next(records) for _ in range(passed)] for passed, records in standing.items()}
    report = await clean(tmp_path)
    assert report.removed == {EVENTS: {"pruned": 40}}
    left = offsets(reader.read(EVENTS, 0))
    assert len(left) == len(whole) - 40
    for passed, records in standing.items():
        got = offsets(iter(seen[passed])) + offsets(records)
        assert got[:passed] == whole[:passed]
        assert [offset for offset in got if offset in left] == left
        assert sorted(set(got)) == got
    assert reader.damage is None
    await reader.close()


async def test_records_are_found_by_the_places_told_before_and_after(tmp_path: Path) -> None:
    """log port: a place only saves time; what was removed is not there, however it is asked for."""
    told = await _workflows(tmp_path)
    reader = await open_file_log(str(tmp_path), readonly=True)
    assert len(reader.read_at(EVENTS, 0, [o for o, _ in told], [p for _, p in told])) == len(told)
    await clean(tmp_path)
    left = {int(record.offset or 0): record.place for record in reader.read(EVENTS, 0)}
    stay = [(offset, place) for offset, place in told if offset in left]
    for places in ([place for _, place in stay], [left[offset] for offset, _ in stay], None):
        assert offsets(iter(reader.read_at(EVENTS, 0, [offset for offset, _ in stay], places))) == [o for o, _ in stay]
    for offset, place in told:
        if offset not in left:
            for places in ([place], None):
                with pytest.raises(LogError) as raised:
                    reader.read_at(EVENTS, 0, [offset], places)
                assert not isinstance(raised.value, LogCorrupt)
    await reader.close()


async def test_tails_go_on_where_they_were_and_records_keep_their_names(tmp_path: Path) -> None:
    """filelog.md §2: a stored position is segment, batch, record, whatever was removed since."""
    log = await _writer(tmp_path)
    epoch = await taken(log)
    for number in range(40):
        await put(log, epoch, happened("w", number + 1), event(number, 0, INBOX), event(100 + number, 0, INBOX))
    follower = await open_file_log(str(tmp_path), readonly=True)
    whole = follower.tail(INBOX, 0).poll_named(1_000)
    names = {named.name: named.record for named in whole}
    standing = [follower.tail(INBOX, 0) for _ in range(8)]
    for number, tail in enumerate(standing):
        assert len(tail.poll(number * 11)) == number * 11 or number == 0
    fed = follower.tail(INBOX, 0)
    assert len(fed.poll()) == 80
    consumer = log.tail(INBOX, 0)
    consumer.poll(33)
    for number in range(40, 60):
        await put(log, epoch, happened("w", number + 1), event(number, 0, INBOX))
    assert fed.waiting() == 20  # it was told of them, batch by batch
    await put(log, epoch, consumed(consumer.position), pruned("w", 61, [], time_us=NOW_US))
    await log.close()
    report = await clean(tmp_path)
    assert report.removed[INBOX] == {"consumed": 33}
    assert report.removed[EVENTS] == {"pruned": 60}
    assert fed.waiting() == 20
    assert numbers(fed.poll()) == list(range(40, 60))
    for number, tail in enumerate(standing):
        stored = follower.tail(INBOX, 0, tail.position)
        expected = [named.record.key for named in whole[max(33, number * 11) :]]
        for reading in (tail, stored):
            assert reading.waiting() == len(expected) + 20
            found = reading.poll_named(1_000)
            assert [named.record.key for named in found][: len(expected)] == expected
            assert all(names.get(named.name, named.record) == named.record for named in found)
            assert len({named.name for named in found}) == len(found)
            assert reading.poll() == []
    assert follower.damage is None
    await follower.close()


async def test_a_handle_that_had_read_half_of_a_segment_reads_the_rest_of_it(tmp_path: Path) -> None:
    """What it holds open is the file that its positions are about."""
    log = await open_file_log(str(tmp_path), partitions=1, disk=UnsyncedDisk())
    epoch = await taken(log)
    for seq in range(1, 11):
        await put(log, epoch, happened("w", seq), happened("x", seq))
    reader = await open_file_log(str(tmp_path), readonly=True)
    assert reader.end(EVENTS, 0) == 20
    half = reader.read(EVENTS, 0)
    first = next(half)
    for seq in range(11, 21):
        await put(log, epoch, happened("w", seq), happened("x", seq))
    await put(log, epoch, pruned("w", 21, []))
    await log.close()
    await clean(tmp_path)
    assert len([first, *half]) == 20
    assert [record.key for record in reader.read(EVENTS, 0) if record.key.startswith("x")] == [
        f"x/{seq}" for seq in range(1, 21)
    ]
    later = await open_file_log(str(tmp_path), readonly=True)
    assert offsets(later.read(EVENTS, 0)) == [*range(1, 40, 2), 40] == offsets(reader.read(EVENTS, 0))
    assert reader.damage is None
    await reader.close()
    await later.close()


async def test_a_scan_over_which_the_horizon_moved_is_refused_at_its_end_and_right_when_repeated(
    tmp_path: Path,
) -> None:
    """filelog.md §5: it saw the value, and the tombstone was gone when it came there."""
    await life(tmp_path, [keyed("k", 1), keyed("stays", 1)], partitions=1)
    await life(tmp_path, [keyed("other", 1)], [tombstone("k")])
    await life(tmp_path, [keyed("last", 1)])
    reader = await open_file_log(str(tmp_path), readonly=True)
    scan = reader.read(INDEX, 0)
    seen = [next(scan)]
    behind = reader.read(INDEX, 0, 4)
    await clean(tmp_path)
    assert reader.horizon(INDEX, 0) == 0
    await clean(tmp_path)
    assert reader.horizon(INDEX, 0) == 4
    with pytest.raises(HorizonMoved, match="read it again") as raised:
        seen.extend(scan)
    assert raised.value.fields["horizon"] == 4
    assert "k" in newest(seen), "what it has is wrong"
    assert newest(reader.read(INDEX, 0)).keys() == {"stays", "other", "last"}
    assert [record.key for record in behind] == ["last"], "who starts behind the horizon misses nothing"
    await reader.close()


@pytest.mark.parametrize("times", [1, 2])
async def test_verify_goes_on_in_a_log_that_is_cleaned_under_it(tmp_path: Path, times: int) -> None:
    """Each segment is proved as it is when it is read: the file that was there, or the one in its place."""
    await _workflows(tmp_path)
    reader = await open_file_log(str(tmp_path), readonly=True)
    whole = sum(isinstance(found, SegmentInfo) for found in reader.verify())
    assert whole > 5
    for after in range(1, whole):
        copy = tmp_path / f"copy{after}"
        shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns("copy*"))
        log = await open_file_log(str(copy), readonly=True)
        verified = log.verify()
        found = [next(verified) for _ in range(after)]
        for time in range(times):
            await clean(copy, rules(NOW_US + time * 48 * HOUR_US))
        found += verified
        assert [one for one in found if isinstance(one, Problem)] == [], after
        assert sum(isinstance(one, SegmentInfo) for one in found) == whole
        await log.close()
    await reader.close()


@pytest.mark.parametrize("what", ["checkpoint", "against"])
async def test_a_checkpoint_is_taken_of_and_held_to_a_log_that_is_cleaned_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Of each segment one file is looked at, and it says the same as the one that was there."""
    await _workflows(tmp_path)
    log = await open_file_log(str(tmp_path), readonly=True)
    expected = json.loads(log.checkpoint())["segments"]
    held = log.checkpoint()
    at = checkpoint._at
    looked: list[int] = []

    def cleaning(catalog: Catalog, segment: Segment, batch: int) -> tuple[str | None, int]:
        looked.append(segment.number)
        if looked == [1, 2, 3, 4, 5, 6]:  # its header was looked at, and its file was not opened
            with ThreadPoolExecutor(1) as others:
                report = others.submit(asyncio.run, clean(tmp_path)).result()
            assert report.removed == {EVENTS: {"pruned": 40}}
        return at(catalog, segment, batch)

    monkeypatch.setattr(checkpoint, "_at", cleaning)
    if what == "checkpoint":
        assert json.loads(log.checkpoint())["segments"] == expected
    else:
        assert list(log.against(held)) == []
    assert looked.count(6) == 2, "once more, as it is now"
    await log.close()


async def test_a_backup_that_is_taken_while_the_log_is_cleaned_is_a_log(tmp_path: Path) -> None:
    """File by file: segments from before a cleaning and from after it go together, as each holds what the others need."""
    await _workflows(tmp_path / "log")
    await life(tmp_path / "log", [keyed("k", 1), keyed("gone", 1)], [keyed("k", 2), tombstone("gone")])
    before = await open_file_log(str(tmp_path / "log"), readonly=True)
    index, ends = newest(before.read(INDEX, 0)), (before.end(EVENTS, 0), before.end(INDEX, 0))
    await before.close()
    names = sorted(path.relative_to(tmp_path / "log") for path in (tmp_path / "log").rglob("*") if path.is_file())
    left: list[int] | None = None
    for at in range(0, len(names) + 1, 2):
        origin, backup = tmp_path / f"log{at}", tmp_path / f"backup{at}"
        shutil.copytree(tmp_path / "log", origin)
        for number, name in enumerate([*names, None]):
            if number == at:
                report = await clean(origin)
                assert report.removed[EVENTS] == {"pruned": 40}
            if name is not None:
                (backup / name).parent.mkdir(parents=True, exist_ok=True)
                if (origin / name).exists():
                    shutil.copy2(origin / name, backup / name)
        restored = await open_file_log(str(backup))
        assert problems(restored) == [], at
        assert newest(restored.read(INDEX, 0)) == index
        assert (restored.end(EVENTS, 0), restored.end(INDEX, 0)) == ends
        await restored.compact(rules())
        await restored.compact(rules())
        assert problems(restored) == []
        left = left or offsets(restored.read(EVENTS, 0))
        assert offsets(restored.read(EVENTS, 0)) == left, "cleaned to its end it is as any other"
        epoch = await taken(restored)
        assert isinstance(await put(restored, epoch, happened("w1", 6)), Appended)
        await restored.close()
        shutil.rmtree(origin)
        shutil.rmtree(backup)


async def test_an_opening_after_a_cleaning_reads_what_the_cleaner_vouches_for_as_little_as_before(
    tmp_path: Path,
) -> None:
    """Decision 0032: what was verified is not verified again; so also where a file took the place of another."""
    await _workflows(tmp_path)
    await (await open_file_log(str(tmp_path))).close()
    await clean(tmp_path)
    disk = CountingDisk(str(tmp_path))
    log = await open_file_log(str(tmp_path), disk=disk)
    total = sum(path.stat().st_size for path in tmp_path.glob("segments/*.jsonl"))
    assert disk.read_of(".jsonl") < total
    assert len(offsets(log.read(EVENTS, 0))) == 70
    assert log.end(EVENTS, 0) == 110
    epoch = await taken(log)
    assert isinstance(await put(log, epoch, happened("w1", 6)), Appended)
    await log.close()
    segment(tmp_path, 1).write_bytes(segment(tmp_path, 1).read_bytes().replace(b"y" * 10, b"z" * 10, 1))
    with pytest.raises(LogCorrupt):
        await open_file_log(str(tmp_path))


async def test_the_newest_record_is_found_behind_what_was_removed(tmp_path: Path) -> None:
    log = await _writer(tmp_path)
    for number in range(60):
        await put(log, None, NewRecord(REPLIES, 0, f"c/{number}", b"{}", number * 10**9))
    await log.close()
    reader = await open_file_log(str(tmp_path), readonly=True)
    found = reader.newest(REPLIES, 0, 0, lambda record: record.key == "c/3")
    assert found is not None
    how = rules(59 * 10**9)
    assert (await clean(tmp_path, how)).removed == {REPLIES: {"expired": 56}}
    assert reader.newest(REPLIES, 0, 0, lambda record: record.key == "c/3") is None
    for key in ("c/57", "c/59"):
        found = reader.newest(REPLIES, 0, 0, lambda record, key=key: record.key == key)
        assert found is not None
        assert found.key == key
    await reader.close()


async def test_workers_take_partitions_over_and_go_on_while_segments_are_replaced(tmp_path: Path) -> None:
    """filelog.md §4: begins stay where they are found, also those of epochs of which nothing else is left."""
    for number in range(6):
        await life(tmp_path, [keyed("k", number)], [event(number, 0, INBOX)], partitions=1)
        report = await clean(tmp_path)
        log = await open_file_log(str(tmp_path))
        owned = await log.acquire(0)
        assert owned.ends[INDEX] == number + 1
        assert newest(log.read(INDEX, 0))["k"].startswith(b'{"number":%d' % number)
        assert problems(log) == []
        await log.close()
        assert report.by == "log"
    for path in [*tmp_path.glob("verified/*"), *tmp_path.glob("segments/*.index"), *tmp_path.glob("segments/*.end")]:
        path.unlink()
    log = await open_file_log(str(tmp_path))
    assert (await log.acquire(0)).ends[INDEX] == 6
    assert problems(log) == []
    await log.close()


async def test_what_a_replaced_owner_wrote_goes_and_counts_as_little_as_before(tmp_path: Path) -> None:
    """filelog.md §5: void sections go first."""
    now = [0.0]
    frozen = await open_file_log(str(tmp_path), partitions=1, disk=UnsyncedDisk(), clock=lambda: now[0])
    epoch = await taken(frozen)
    await put(frozen, epoch, happened("w", 1))
    other = await open_file_log(str(tmp_path), disk=UnsyncedDisk(), clock=lambda: now[0], silent_after_s=0.0)
    now[0] += 20.0
    epoch_two = await taken(other)
    await put(frozen, epoch, happened("w", 2), happened("w", 3))  # refused, and on the disk
    await put(other, epoch_two, happened("w", 2))
    await frozen.close()
    assert segment(tmp_path, 1).read_bytes().count(b'"key":"w/') == 3
    report = await other.compact(rules())
    assert report.removed == {EVENTS: {"void": 2}}
    assert segment(tmp_path, 1).read_bytes().count(b'"key":"w/') == 1
    assert [record.key for record in other.read(EVENTS, 0)] == ["w/1", "w/2"]
    assert problems(other) == []
    await other.close()


async def test_memory_does_not_grow_with_the_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch at a time, a byte for each of its records that may go, and what is written at once."""
    monkeypatch.setattr("gasoline_es.log.file.rewriting._CHUNK_BYTES", 50_000)
    peaks = [await _peak(tmp_path / str(batches), batches) for batches in (8, 32)]
    assert peaks[1] < 1.3 * peaks[0], peaks


async def _peak(directory: Path, batches: int) -> int:
    """Return how much memory a cleaning takes of a segment of so many batches, half of which goes."""
    log = await open_file_log(str(directory), partitions=1, disk=UnsyncedDisk())
    epoch = await taken(log)
    for batch in range(batches):
        await put(log, epoch, *[happened(f"w{number}", batch + 1) for number in range(500)])
    await put(log, epoch, *[pruned(f"w{number}", batches + 1, []) for number in range(0, 500, 2)])
    await log.close()
    log = await open_file_log(str(directory))
    tracemalloc.start()
    report = await log.compact(rules())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert report.removed[EVENTS] == {"pruned": 250 * batches}
    await log.close()
    return peak
