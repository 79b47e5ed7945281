"""The indexes of complete segments: stored beside them, and those used last kept in memory, up to a bound on their size."""

from __future__ import annotations

import itertools
import os
from contextlib import suppress
from typing import Final

from gasoline_es.engine_log import EngineLog
from gasoline_es.log.file.disk import Disk
from gasoline_es.log.file.index import SegmentIndex, decode_index, encode_index, index_of_nothing
from gasoline_es.log.file.recent import Recent
from gasoline_es.log.file.scan import Window
from gasoline_es.log.file.segments import Segment, SegmentFiles

_CACHED_BYTES_MAX: Final = 16 * 1024 * 1024
"""An index takes up to 2 MB where all of sixteen partitions are written all the time, and some KB otherwise."""
_handles: Final = itertools.count(1)
"""Numbers for those of one process that store indexes: an application and its view may have the same log open."""
_logger = EngineLog("gasoline_es.log")


class Indexes:
    """Finds a segment's index: in the segment while it grows, in the cache, in its file, or by walking the headers again."""

    def __init__(self, files: SegmentFiles, disk: Disk, *, stores: bool) -> None:
        self._files: Final = files
        self._disk: Final = disk
        self._stores: Final = stores
        self._cached: Final = Recent[tuple[int, int], SegmentIndex](_CACHED_BYTES_MAX)
        """Number and version of a segment → its index."""
        self._unwritten: list[tuple[Segment, SegmentIndex]] = []
        self._handle: Final = next(_handles)

    def finished(self, segment: Segment, index: SegmentIndex) -> None:
        """Take over the index of a segment that is complete, and report its torn bytes.

        That is said once in the log's life where the index is stored, which remembers it.
        """
        self._cached.put((segment.number, segment.version), index, index.size)
        if segment.damage is not None:
            return
        index.torn = segment.torn
        if self._disk.exists(segment.path + ".index"):
            return
        if segment.torn:
            # What a killed process leaves, and nobody has anything to do about.
            _logger.info(
                "torn bytes at the end of a segment are ignored",
                extra={"segment": segment.number, "position": segment.position, "bytes": segment.torn},
            )
        self._store(segment, index)

    def _store(self, segment: Segment, index: SegmentIndex) -> None:
        if self._stores:
            self._unwritten.append((segment, index))

    def stored(self, segment: Segment) -> SegmentIndex | None:
        """Return the index from its file, None if there is no whole one."""
        try:
            return decode_index(segment.number, self._disk.read_file(segment.path + ".index"))
        except (FileNotFoundError, LookupError, TypeError, ValueError, OverflowError):
            return None

    def of(self, segment: Segment, window: Window | None = None) -> SegmentIndex:
        """Return a segment's index, from its file or by walking its headers again if it has left the cache.

        ``window``: a window of the segment, whose bytes the index is to be about; None: whichever file is there now.
        """
        if segment.index is not None:
            return segment.index
        index = self._cached.get((segment.number, segment.version))
        if index is None:
            index = self.stored(segment)
            # The digest of the last header is of all headers before it: it is the same segment, up to the same batch. What
            # the cleaner has removed from it shows in its length: it only gets shorter.
            if index is None or not _about(index, segment):
                if window is not None:
                    index = self._rebuild(segment, window)
                else:
                    with self._files.reading(segment) as opened:
                        index = self._rebuild(segment, opened)
                if segment.damage is None:
                    self._store(segment, index)
            self._cached.put((segment.number, segment.version), index, index.size)
        if segment.finished and segment.topics is None and segment.damage is None:
            segment.topics = index.topics
        return index

    def _rebuild(self, segment: Segment, window: Window) -> SegmentIndex:
        header = segment.header
        if header is not None and header.compacted is not None and header.compacted.epochs is not None:
            return index_of_nothing(header.compacted)
        index = SegmentIndex(torn=segment.torn)
        if header is not None:
            for batch in self._files.headers(segment, window, header.bytes):
                index.add(batch)
        return index

    def replace(self, segment: Segment, index: SegmentIndex) -> None:
        """Store the index of a segment that was just written anew."""
        self._cached.put((segment.number, segment.version), index, index.size)
        self._unwritten.append((segment, index))
        self.write()

    def write(self) -> None:
        """Store the indexes of segments that were completed since the last call. They only save time: errors are no matter."""
        unwritten, self._unwritten = self._unwritten, []
        for segment, index in unwritten:
            # Two that find the same segment complete must not take each other's file away, in two processes or in one.
            beside = f"{segment.path}.index.{os.getpid()}.{self._handle}.tmp"
            try:
                self._disk.unlink(beside)
                fd = self._disk.create(beside)
                try:
                    self._disk.write(fd, encode_index(segment.number, index), 0)
                finally:
                    self._disk.close(fd)
                self._disk.rename(beside, segment.path + ".index")
            except OSError as error:
                with suppress(OSError):
                    self._disk.unlink(beside)
                _logger.warning(
                    "a segment's index was not stored", extra={"segment": segment.number, "error": str(error)}
                )


def _about(index: SegmentIndex, segment: Segment) -> bool:
    if index.batches != segment.batches or not index.batches:
        return index.batches == segment.batches
    return index.digest == segment.digest and index.position == segment.position
