"""What a process has read of many-writer topics and may yet be asked for: in memory, and no longer than that."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from gasoline_es.log.port import Record


class Recent:
    """One feed's records from a first offset on, as far as they were read. Any thread may use it."""

    __slots__ = ("_lock", "_offsets", "_records", "first", "position")

    def __init__(self, first: int) -> None:
        self.first = first
        """Everything from this offset on is here, or was read and forgotten."""
        self.position = first
        """Everything before this offset was read."""
        self._offsets: list[int] = []
        self._records: list[Record] = []
        self._lock: Final = threading.Lock()

    def add(self, records: Sequence[tuple[int, Record]], start: int, position: int) -> None:
        """Take what was read: offsets and records in order, from where, and how far the feed is read now.

        What would leave a gap is not taken: it is of a reading that was given up, and comes again.
        """
        with self._lock:
            if start > self.position:
                return
            for offset, record in records:
                if offset >= self.position:
                    self._offsets.append(offset)
                    self._records.append(record)
            self.position = max(self.position, position)

    def after(self, offset: int, count: int) -> tuple[list[Record], int]:
        """Return so many records at most from an offset on, and the offset to go on from."""
        with self._lock:
            begin = bisect_left(self._offsets, offset)
            records = self._records[begin : begin + count]
            if begin + count < len(self._offsets):
                return records, self._offsets[begin + count]
            return records, max(self.position, offset)

    def count(self, offset: int) -> int:
        """Return how many records there are from an offset on."""
        with self._lock:
            return len(self._offsets) - bisect_left(self._offsets, offset)

    def forget(self, before: int) -> None:
        """Let go of what lies before an offset: nobody asks for it any more."""
        with self._lock:
            count = bisect_left(self._offsets, before)
            del self._offsets[:count], self._records[:count]
            self.first = max(self.first, min(before, self.position))
