"""How the indexes of complete segments are stored."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gasoline_es.log.file.disk import Disk
from gasoline_es.log.file.index import SegmentIndex
from gasoline_es.log.file.indexes import Indexes
from gasoline_es.log.file.segments import Segment, SegmentFiles


class Interrupted(Disk):
    """Lets another handle store the same index in the middle of storing one."""

    def __init__(self, other: Indexes, segment: Segment) -> None:
        self.meanwhile: list[tuple[Indexes, Segment]] = [(other, segment)]

    def write(self, fd: int, data: bytes, position: int) -> None:
        super().write(fd, data, position)
        if self.meanwhile:
            other, segment = self.meanwhile.pop()
            other.replace(segment, SegmentIndex())


def test_two_handles_of_one_process_store_the_same_index_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An application and a view of it, for instance: each closes, and each finds the segment complete."""
    segment, disk = Segment(1, f"{tmp_path}/0000000001"), Disk()
    second = Indexes(SegmentFiles(str(tmp_path), disk), disk, stores=True)
    interrupted = Interrupted(second, segment)
    first = Indexes(SegmentFiles(str(tmp_path), interrupted), interrupted, stores=True)
    with caplog.at_level(logging.DEBUG, "gasoline_es.log"):
        first.replace(segment, SegmentIndex())
    assert not interrupted.meanwhile
    assert caplog.messages == []
    assert first.stored(segment) is not None
    assert [path.name for path in tmp_path.iterdir()] == ["0000000001.index"]
