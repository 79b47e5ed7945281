"""What a read of a few records touches (design §10: the cost of a cold history does not grow with its segment)."""

from __future__ import annotations

import pytest

from gasoline_es.log.file.scan import BatchScan
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import NewRecord, Section


async def test_reading_one_record_scans_no_further_than_that_record(
    tmp_log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await open_log(tmp_log_url, namespace="desk", partitions=1)
    epoch = (await log.acquire(0)).epoch
    for number in range(200):
        record = NewRecord("desk.events", 0, f"w/{number}", b'{"n":1}', number)
        await log.append([Section(0, epoch, [record])])
    assert log.end("desk.events", 0) == 200
    scanned: list[int] = []
    scan_next = BatchScan.next

    def counted(self: BatchScan, end: int) -> object:
        scanned.append(end)
        return scan_next(self, end)

    monkeypatch.setattr(BatchScan, "next", counted)
    assert [record.key for record in log.read_at("desk.events", 0, [3])] == ["w/3"]
    assert len(scanned) <= 10
    monkeypatch.undo()
    await log.close()


async def test_looking_for_the_newest_reads_no_further_than_it_or_than_the_time(
    tmp_log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """semantics.md §9: a tail's cost does not grow with its topic, nor with all else that the log holds."""
    log = await open_log(tmp_log_url, namespace="desk", partitions=1, segment_bytes_max=200_000)
    epoch = (await log.acquire(0)).epoch
    value = b'{"n":"%b"}' % (b"x" * 3000)
    for number in range(1, 201):
        # Two minutes of messages, and ten times as much of something else.
        message = NewRecord("desk.messages", 0, "moved", value, number * 1_000_000)
        await log.append([Section(0, None, [message])])
        events = [NewRecord("desk.events", 0, f"w/{number}/{i}", value, number) for i in range(10)]
        for event in events:
            await log.append([Section(0, epoch, [event])])
    assert log.end("desk.events", 0) == 2000, "what was written since the begin is taken in"
    scanned: list[int] = []
    scan_next = BatchScan.next

    def counted(self: BatchScan, end: int) -> object:
        scanned.append(end)
        return scan_next(self, end)

    monkeypatch.setattr(BatchScan, "next", counted)

    def newest(since_s: int, wanted: bool) -> tuple[int | None, int]:
        """The time of what is found, and how many batches were looked at."""
        scanned.clear()
        found = log.newest("desk.messages", 0, since_s * 1_000_000, lambda record: wanted)
        return (None if found is None else found.time_us // 1_000_000), len(scanned)

    for _ in range(2):
        found, looked = newest(0, True)
        assert found == 200
        assert looked <= 25, "within 64 KiB of the entry in the index"
        found, looked = newest(195, False)
        assert found is None
        assert looked <= 80
    assert newest(201, True)[0] is None
    scanned.clear()
    monkeypatch.undo()
    await log.close()


async def test_looking_for_the_newest_passes_complete_segments_that_have_none_without_reading_them_again(
    tmp_log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        log = await open_log(tmp_log_url, namespace="desk", partitions=1)
        await log.append([Section(0, None, [NewRecord("desk.inbox", 0, "k", b"1", 5)])])
        await log.append([Section(0, None, [NewRecord("desk.messages", 0, "moved", b"1", 7)])])
        await log.close()
    log = await open_log(tmp_log_url, namespace="desk", partitions=1)
    assert log.newest("desk.messages", 0, 100, lambda record: True) is None
    scanned: list[int] = []
    scan_next = BatchScan.next

    def counted(self: BatchScan, end: int) -> object:
        scanned.append(end)
        return scan_next(self, end)

    monkeypatch.setattr(BatchScan, "next", counted)
    assert log.newest("desk.messages", 0, 100, lambda record: True) is None
    assert scanned == []
    assert log.newest("desk.messages", 0, 7, lambda record: True) is not None
    monkeypatch.undo()
    await log.close()
