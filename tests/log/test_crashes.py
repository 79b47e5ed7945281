"""What a crash, a flipped bit, a failed sync and a full disk do to a file log (required.md B01–B04)."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from gasoline_es.errors import Fenced, LogCorrupt, LogError, LogFailed, NoSpace
from gasoline_es.log.file.log import FileLog, open_file_log
from gasoline_es.log.port import Appended, Offset, Problem, Record, Section
from gasoline_es.testing.faults import FaultyDisk, UnsyncedDisk
from gasoline_es.testing.log_contract import EVENTS, INBOX, event, numbers, put


def segment(directory: Path | str, number: int, suffix: str = ".jsonl") -> Path:
    """Return the path of a segment's file."""
    return Path(directory) / "segments" / f"{number:010d}{suffix}"


def fingerprint(directory: Path) -> dict[str, str]:
    """Return the hash of every file below a directory."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def aged(directory: Path | str) -> None:
    """Let a second pass since the segments were written to, as it does before anybody opens a killed process's log."""
    for path in Path(directory).glob("segments/*.jsonl"):
        found = path.stat()
        if time.time_ns() - found.st_mtime_ns < 10**9:
            os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns - 10**9))


def collect(records: Iterable[Record], into: list[int]) -> None:
    """Read record after record, so that what came before an error is kept."""
    for record in records:
        into += numbers([record])


async def opened(directory: Path | str, **options: object) -> FileLog:
    """Open the file log of a test."""
    return await open_file_log(str(directory), **options)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


# --- B01 --------------------------------------------------------------------------------------------------------------


async def test_a_cut_at_any_byte_of_the_last_record_loses_only_that_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """required.md B01: the newest segment ends anywhere between records 49 and 50; every reopening goes on by itself."""
    log = await opened(tmp_path / "log", partitions=1)
    owned = await log.acquire(0)
    for number in range(1, 50):
        await put(log, owned.epoch, event(number, value=b'"%b"' % (b"x" * (13_000 if number == 20 else number * 7))))
    before = segment(tmp_path / "log", 1).stat().st_size
    end = segment(tmp_path / "log", 1, ".end").read_bytes()
    expected = list(log.read(EVENTS, 0))
    await put(log, owned.epoch, event(50, value=b"[]"))
    after = segment(tmp_path / "log", 1).stat().st_size
    whole = list(log.read(EVENTS, 0))
    await log.crash()
    caplog.set_level(logging.INFO, "gasoline_es.log")
    for cut in range(before, after + 1):
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "log", copy, symlinks=True)
        segment(copy, 1, ".end").write_bytes(end)
        os.truncate(segment(copy, 1), cut)
        caplog.clear()
        again = await opened(copy, disk=UnsyncedDisk())
        kept = whole if cut == after else expected
        assert list(again.read(EVENTS, 0)) == kept
        torn = cut - before if cut < after else 0
        told = [r.__dict__["bytes"] for r in caplog.records if r.getMessage().startswith("torn bytes")]
        assert told == ([torn] if torn else [])
        taken = await again.acquire(0)
        assert await put(again, taken.epoch, event(51)) == Appended({EVENTS: Offset(len(kept))})
        await again.crash()
        caplog.clear()
        third = await opened(copy, disk=UnsyncedDisk())
        assert numbers(third.read(EVENTS, 0)) == [*numbers(kept), 51]
        assert caplog.records == []
        await third.close()
        shutil.rmtree(copy)


async def test_nul_bytes_that_a_power_loss_left_are_torn(tmp_path: Path) -> None:
    """filelog.md §2: a file that grew without its bytes reads as NULs; that is no corruption."""
    log = await opened(tmp_path, partitions=1)
    owned = await log.acquire(0)
    await put(log, owned.epoch, event(1))
    before = segment(tmp_path, 1).stat().st_size
    end = segment(tmp_path, 1, ".end").read_bytes()
    await put(log, owned.epoch, event(2, value=b'"%b"' % (b"y" * 9_000)))
    after = segment(tmp_path, 1).stat().st_size
    await log.crash()
    data = segment(tmp_path, 1).read_bytes()
    segment(tmp_path, 1, ".end").write_bytes(end)
    broken = {
        "nothing of it": data[:before] + bytes(after - before),
        "its first page": data[: before + 300] + bytes(after - before - 300),
        "all but its first page": data[:before] + bytes(4096 - before) + data[4096:],
        "all but a page in the middle": data[:4096] + bytes(4096) + data[8192:],
    }
    for kept, content in broken.items():
        segment(tmp_path, 1).write_bytes(content)
        segment(tmp_path, 1, ".index").unlink(missing_ok=True)
        again = await opened(tmp_path)
        assert numbers(again.read(EVENTS, 0)) == [1], kept
        assert len(again.info().torn) == 1, kept
        await again.close()


# --- B02 --------------------------------------------------------------------------------------------------------------


async def _four_segments(directory: Path) -> list[int]:
    log = await opened(directory, partitions=2, segment_bytes_max=2_000)
    owned = await log.acquire(0)
    number = 0
    while not segment(directory, 4).exists() or segment(directory, 4).stat().st_size < 1_200:
        await put(log, owned.epoch, event(number, value=b'{"text":"%b"}' % (b"z" * 150)), event(number, 1, INBOX))
        number += 1
    await log.crash()
    return list(range(number))


@pytest.mark.parametrize("where", ["payload", "length field", "segment header", "active segment"])
async def test_a_flipped_bit_is_an_error_that_names_its_place_and_changes_nothing(tmp_path: Path, where: str) -> None:
    """required.md B02."""
    directory = tmp_path / "log"
    every = await _four_segments(directory)
    number = 4 if where == "active segment" else 2
    path = segment(directory, number)
    data = bytearray(path.read_bytes())
    lines = bytes(data).split(b"\n")
    match where:
        case "payload":
            at = data.index(b"zzz", len(data) // 2) + 1
        case "length field":
            at = data.index(b'"bytes":', len(data) // 2) + 8
        case "segment header":
            at = data.index(b'"writer":"') + 12
        case _:
            at = data.index(b"zzz") + 1
    data[at] ^= 1
    path.write_bytes(data)
    clean = fingerprint(directory)

    with pytest.raises(LogCorrupt) as caught:
        await opened(directory)
    assert caught.value.segment == number
    line_start = 0 if where == "segment header" else bytes(data).rindex(b'{"batch"', 0, at)
    assert line_start <= caught.value.position <= at
    assert fingerprint(directory) == clean

    reader = await opened(directory, readonly=True)
    seen: list[int] = []
    with pytest.raises(LogCorrupt) as caught:
        collect(reader.read(EVENTS, 0), seen)
    assert (caught.value.segment, len(lines) > 3) == (number, True)
    intact = [
        int(line.partition(b"workflow/")[2].partition(b'"')[0])
        for before in range(1, number + 1)
        for line in (segment(directory, before).read_bytes()[: line_start if before == number else None]).split(b"\n")
        if line.startswith(b'{"topic":"default.events"')
    ]
    assert seen == intact
    assert seen == every[: len(seen)]
    tail = reader.tail(INBOX, 1)
    from_tail: list[int] = []
    with pytest.raises(LogCorrupt):
        collect((record for poll in iter(lambda: tail.poll(max_records=3), []) for record in poll), from_tail)
    assert set(intact) <= set(from_tail)
    problems = [found for found in reader.verify() if isinstance(found, Problem)]
    assert [problem.segment for problem in problems] == [number]
    await reader.close()
    assert fingerprint(directory) == clean


async def test_less_than_was_published_is_corrupt_even_at_the_end(tmp_path: Path) -> None:
    """filelog.md §2: `.end` promised it."""
    log = await opened(tmp_path, partitions=1)
    owned = await log.acquire(0)
    await put(log, owned.epoch, event(1))
    size = segment(tmp_path, 1).stat().st_size
    await put(log, owned.epoch, event(2))
    await log.crash()
    for cut in (size, size + 5):
        os.truncate(segment(tmp_path, 1), cut)
        with pytest.raises(LogCorrupt) as caught:
            await opened(tmp_path)
        assert (caught.value.segment, caught.value.position) == (1, size)
        data = segment(tmp_path, 1).read_bytes()
        segment(tmp_path, 1).write_bytes(data + b"x" * 10)


async def test_a_complete_last_batch_that_fails_its_digest_is_corrupt(tmp_path: Path) -> None:
    """filelog.md §2: last or not."""
    log = await opened(tmp_path, partitions=1)
    owned = await log.acquire(0)
    await put(log, owned.epoch, event(1))
    end = segment(tmp_path, 1, ".end").read_bytes()
    await put(log, owned.epoch, event(2))
    await log.crash()
    segment(tmp_path, 1, ".end").write_bytes(end)
    data = bytearray(segment(tmp_path, 1).read_bytes())
    data[-5] ^= 4
    segment(tmp_path, 1).write_bytes(data)
    with pytest.raises(LogCorrupt):
        await opened(tmp_path)


async def test_an_epoch_broken_by_damage_still_shows_the_epochs_before_it(tmp_path: Path) -> None:
    """required.md B02: no record before the damage is lost, across reopenings too."""
    for number in range(4):
        log = await opened(tmp_path, partitions=1)
        owned = await log.acquire(0)
        await put(log, owned.epoch, event(number))
        await log.close()
    data = bytearray(segment(tmp_path, 3).read_bytes())
    data[data.index(b'"writer"') + 12] ^= 1
    segment(tmp_path, 3).write_bytes(data)
    reader = await opened(tmp_path, readonly=True)
    seen: list[int] = []
    with pytest.raises(LogCorrupt):
        collect(reader.read(EVENTS, 0), seen)
    assert seen == [0, 1]
    await reader.close()


# --- B03 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["datasync", "sync_directory"])
async def test_a_failed_sync_is_never_trusted_again(tmp_path: Path, what: str) -> None:
    """required.md B03."""
    disk = FaultyDisk(str(tmp_path))
    log = await opened(tmp_path, partitions=1, disk=disk, segment_bytes_max=700)
    owned = await log.acquire(0)
    acked = 0
    while segment(tmp_path, 2).exists() is False:
        acked += 1
        await put(log, owned.epoch, event(acked))
    if what == "sync_directory":
        outcome: object = None
        while segment(tmp_path, 3).exists() is False:
            disk.fail_once("sync_directory", "segments")
            outcome = await put(log, owned.epoch, event(acked + 1))
            acked += isinstance(outcome, Appended)
    else:
        disk.fail_once("datasync")
        outcome = await put(log, owned.epoch, event(acked + 1))
    assert isinstance(outcome, LogFailed)
    for _ in range(2):
        with pytest.raises(LogFailed):
            await put(log, owned.epoch, event(99))
    with pytest.raises(LogFailed):
        await log.acquire(0)
    assert numbers(log.read(EVENTS, 0)) == list(range(1, acked + 1))
    await log.close()
    again = await opened(tmp_path)
    assert numbers(again.read(EVENTS, 0)) == list(range(1, acked + 1))
    taken = await again.acquire(0)
    await put(again, taken.epoch, event(acked + 1))
    assert numbers(again.read(EVENTS, 0)) == list(range(1, acked + 2))
    await again.close()


async def test_a_roll_syncs_the_old_segment_and_the_directory_before_the_first_ack(tmp_path: Path) -> None:
    """required.md B03, filelog.md §3.1: the order of write, sync, directory sync and published end."""
    disk = FaultyDisk(str(tmp_path))
    log = await opened(tmp_path, partitions=1, disk=disk, segment_bytes_max=700)
    owned = await log.acquire(0)
    await put(log, owned.epoch, event(1))
    disk.calls.clear()
    await put(log, owned.epoch, event(2, value=b'"%b"' % (b"x" * 600)))
    one, two = "segments/0000000001", "segments/0000000002"
    assert [(call.what, call.path) for call in disk.calls] == [
        ("write", one + ".end"),  # closed; its batches were synced one by one
        ("create", two + ".jsonl"),
        ("create", two + ".end"),
        ("write", two + ".end"),
        ("write", two + ".jsonl"),
        ("datasync", two + ".jsonl"),
        ("sync_directory", "segments"),
        ("write", two + ".end"),
    ]
    disk.calls.clear()
    await put(log, owned.epoch, event(3, value=b'"%b"' % (b"x" * 600)))
    assert [call.what for call in disk.calls if call.path == two + ".jsonl"] == []
    await log.close()


async def test_an_epoch_is_durable_before_anything_is_read_or_begun(tmp_path: Path) -> None:
    """filelog.md §4.1: link, directory sync, and only then the begin."""
    disk = FaultyDisk(str(tmp_path))
    log = await opened(tmp_path, partitions=1, disk=disk)
    disk.calls.clear()
    await log.acquire(0)
    calls = [(call.what, call.path) for call in disk.calls]
    linked = calls.index(("link", "epochs/default/0/0000000001"))
    synced = calls.index(("sync_directory", "epochs/default/0"))
    begun = calls.index(("write", "segments/0000000001.jsonl"))
    assert linked < synced < begun
    await log.close()


# --- B04 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [False, True], ids=["within a segment", "as a segment's first batch"])
@pytest.mark.parametrize("taken", ["1 byte", "half", "all but one byte", "nothing"])
async def test_a_full_disk_leaves_no_trace_of_the_append(tmp_path: Path, taken: str, first: bool) -> None:
    """required.md B04."""
    disk = FaultyDisk(str(tmp_path))
    log = await opened(tmp_path, partitions=1, disk=disk)
    acked: list[int] = []
    if first:
        records = [event(100 + i, 0, INBOX) for i in range(10)]
        epoch = None
    else:
        epoch = (await log.acquire(0)).epoch
        await put(log, epoch, event(1), event(2, topic=INBOX))
        acked = [1]
        records = [event(100 + i) for i in range(10)]
    position = segment(tmp_path, 1).stat().st_size if not first else 0
    probe = await opened(tmp_path / "probe", partitions=1)
    if not first:
        await probe.acquire(0)
        await put(probe, epoch, event(1), event(2, topic=INBOX))
    await put(probe, epoch, *records)
    size = segment(tmp_path / "probe", 1).stat().st_size - position
    await probe.close()
    spare = 256 if first else 0  # the published end of a new segment
    disk.space = spare + {"nothing": 0, "1 byte": 1, "half": size // 2, "all but one byte": size - 1}[taken]
    tail = log.tail(INBOX, 0)
    before = numbers(tail.poll())
    for _ in range(2):
        outcome = await put(log, epoch, *records)
        assert isinstance(outcome, NoSpace)
        assert outcome.retryable
    assert (numbers(log.read(EVENTS, 0)), tail.poll()) == (acked, [])
    disk.space = None
    if first:
        await put(log, None, event(3, 0, INBOX))
        await put(log, None, event(4, 0, INBOX))
        assert numbers(tail.poll()) == [3, 4]
    else:
        assert await put(log, epoch, event(3)) == Appended({EVENTS: Offset(1)})
        assert await put(log, epoch, event(4)) == Appended({EVENTS: Offset(2)})
    await log.crash()
    again = await opened(tmp_path)
    if first:
        assert numbers(again.tail(INBOX, 0).poll()) == [3, 4]
    else:
        assert numbers(again.read(EVENTS, 0)) == [1, 3, 4]
        assert numbers(again.tail(INBOX, 0).poll()) == [*before] == [2]
    assert [found for found in again.verify() if isinstance(found, Problem)] == []
    await again.close()


async def test_a_begin_that_found_no_space_is_tried_again_as_a_later_epoch(tmp_path: Path) -> None:
    """filelog.md §4.1: an epoch passed over is void for ever."""
    disk = FaultyDisk(str(tmp_path))
    log = await opened(tmp_path, partitions=1, disk=disk)
    first = await log.acquire(0)
    await put(log, first.epoch, event(1))
    await log.release(0)
    disk.space = 10
    with pytest.raises(NoSpace):
        await log.acquire(0)
    disk.space = None
    owned = await log.acquire(0)
    assert owned.epoch == first.epoch + 2
    await put(log, owned.epoch, event(2))
    assert numbers(log.read(EVENTS, 0)) == [1, 2]
    await log.close()


async def test_another_write_error_is_reported_and_the_writer_goes_on(tmp_path: Path) -> None:
    """filelog.md §3.4: like a full disk, under another name."""
    disk = FaultyDisk(str(tmp_path))
    log = await opened(tmp_path, partitions=1, disk=disk)
    owned = await log.acquire(0)
    disk.fail_once("write", ".jsonl", errno.EIO)
    outcome = await put(log, owned.epoch, event(1))
    assert type(outcome) is LogFailed
    assert isinstance(await put(log, owned.epoch, event(2)), Appended)
    assert numbers(log.read(EVENTS, 0)) == [2]
    await log.close()


async def test_a_failed_write_of_the_published_end_ends_the_handle(tmp_path: Path) -> None:
    """filelog.md §3.4: what cannot be published is not acknowledged."""
    disk = FaultyDisk(str(tmp_path))
    log = await opened(tmp_path, partitions=1, disk=disk)
    owned = await log.acquire(0)
    disk.fail_once("write", ".end", errno.EIO)
    assert isinstance(await put(log, owned.epoch, event(1)), LogFailed)
    with pytest.raises(LogFailed):
        await put(log, owned.epoch, event(2))
    await log.close()


async def test_reading_a_missing_directory_says_so(tmp_path: Path) -> None:
    """Nothing is created for a reader."""
    with pytest.raises(LogError, match="no log"):
        await opened(tmp_path / "missing", readonly=True)
    assert not (tmp_path / "missing").exists()


async def test_fenced_is_no_log_failure() -> None:
    """errors.py: what a caller may do differs."""
    assert not issubclass(Fenced, LogFailed)
    assert Section(0, None, ()).records == ()


async def test_a_segment_that_is_removed_while_it_is_written_ends_the_handle(tmp_path: Path) -> None:
    """filelog.md §3: what has no name any more is gone when the process ends: nothing of it may be acknowledged."""
    log = await open_file_log(f"{tmp_path}/log")
    taken = await log.acquire(0)
    (segment,) = (tmp_path / "log" / "segments").glob("*.jsonl")
    segment.unlink()
    outcome = await put(log, taken.epoch, event(1))
    assert isinstance(outcome, LogFailed)
    with pytest.raises(LogFailed):
        await put(log, taken.epoch, event(2))
    await log.crash()


async def test_a_failed_sync_while_a_partition_is_taken_ends_the_handle(tmp_path: Path) -> None:
    """B03, filelog.md §3.4: the next acknowledgement would rest on an epoch that may be lost."""
    disk = FaultyDisk(str(tmp_path))
    log = await open_file_log(f"{tmp_path}/log", disk=disk)
    await log.acquire(0)
    disk.fail_once("sync_directory", "", number=errno.EIO)
    with pytest.raises(LogFailed):
        await log.acquire(1)
    with pytest.raises(LogFailed):
        await log.acquire(2)
    await log.crash()


async def test_a_full_disk_while_a_partition_is_taken_can_be_tried_again(tmp_path: Path) -> None:
    """B04: goes on once there is space."""
    disk = FaultyDisk(str(tmp_path))
    log = await open_file_log(f"{tmp_path}/log", disk=disk)
    await log.acquire(0)
    disk.fail_once("link", "", number=errno.ENOSPC)
    with pytest.raises(NoSpace):
        await log.acquire(1)
    assert (await log.acquire(1)).epoch >= 1
    await log.crash()


async def test_heartbeats_go_on_while_the_event_loop_is_blocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """filelog.md §4.6: code that blocks the loop is no frozen process; its activity must not start again elsewhere."""
    monkeypatch.setattr("gasoline_es.log.file.log._BEAT_S", 0.01)
    log = await open_file_log(f"{tmp_path}/log")
    assert log._incarnation is not None
    before = log._incarnation._beats
    time.sleep(0.2)  # what it is about
    assert log._incarnation._beats > before
    await log.close()
