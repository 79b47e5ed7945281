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
