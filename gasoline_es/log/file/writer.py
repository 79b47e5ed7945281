"""The writer of one incarnation's segments: one batch at a time, durable and published when ``append`` returns."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

from gasoline_es.errors import LogError, LogFailed, NoSpace
from gasoline_es.log.file.disk import FULL, Disk, Status
from gasoline_es.log.file.drafts import Draft, encode_batch
from gasoline_es.log.file.end import PublishedEnd, State, encode_end
from gasoline_es.log.file.lines import BatchHeader, Place, SegmentHeader, encode_segment_header
from gasoline_es.log.file.segments import segment_path

SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024
SEGMENT_BATCHES_MAX: Final = 4_096
"""A process that was killed leaves a segment that nobody vouches for, and the next opening walks it: a quarter of a second."""


@dataclass(slots=True)
class _Active:
    """The segment being appended to. Nothing at or after ``end.position`` counts."""

    header: bytes
    digest: str
    fd: int
    end_fd: int
    end: PublishedEnd
    batches: int = 0
    written: Status | None = None
    """The file, as it was after the last batch was written."""
    alone: bool = True
    """Nobody else has written to it between two batches."""
    named: bool = False
    """The directory was synced after the segment was made: its name is durable."""


class SegmentWriter:
    """Appends batches to segments of its own. Not thread-safe: the log serialises its calls."""

    def __init__(
        self, directory: str, writer: str, namespace: str, disk: Disk, segment_bytes_max: int = SEGMENT_BYTES_MAX
    ) -> None:
        self.sync_s = 0.0
        """A running estimate of how long one sync takes."""
        self.highest_known = 0
        """A segment number known to be taken; the next one is looked for above it."""
        self.ends: dict[int, PublishedEnd] = {}
        """The published ends of this writer's segments, as the files beside them say."""
        self.closed: dict[int, Status] = {}
        """The files of this writer's segments that it closed, and that nobody else had written to until then."""
        self.failed: LogFailed | None = None
        self._directory: Final = directory
        self._writer: Final = writer
        self._namespace: Final = namespace
        self._disk: Final = disk
        self._segment_bytes_max: Final = segment_bytes_max
        self._active: _Active | None = None
        self.last: Place | None = None
        """The last batch that was published."""
        self.last_header: BatchHeader | None = None
        self.last_position = 0
        """The byte of its segment where that batch starts."""

    def append(self, drafts: Sequence[Draft]) -> None:
        """Write the drafts as one batch, sync it, publish it (filelog.md §3.1).

        Raises: NoSpace: nothing of it counts, and it may be tried again. LogFailed: nothing may be appended any more.
        """
        if self.failed is not None:
            raise self.failed
        number = 1 if self.last is None else self.last.batch + 1
        try:
            active = self._segment(drafts)
            first = active.end.position == 0
            data, header = encode_batch(number, active.digest, drafts)
            if first:
                data = active.header + data
                # Written before it matters: rewriting these bytes in place later cannot run out of space.
                self._disk.write(active.end_fd, encode_end(active.end), 0)
            if active.written is not None and self._disk.status(active.fd) != active.written:
                active.alone = False
            self._disk.write(active.fd, data, active.end.position)
        except OSError as error:
            self._write_failed(error)
        try:
            started = time.perf_counter()
            self._disk.datasync(active.fd)
            active.written = self._disk.status(active.fd)
            if not self._disk.linked(active.fd):
                raise FileNotFoundError(
                    errno.ENOENT, "the segment was removed while it was written", active.end.segment
                )
            if not active.named:
                self._disk.sync_directory(f"{self._directory}/segments")
                active.named = True
            else:
                self._measured(time.perf_counter() - started)
            segment, position = active.end.segment, active.end.position
            active.end = PublishedEnd(segment, self._writer, number, position + len(data))
            self._disk.write(active.end_fd, encode_end(active.end), 0)
        except OSError as error:
            self._sync_failed(active, error)
        active.digest = header.digest
        active.batches += 1
        self.ends[segment] = active.end
        self.last = Place(segment, number)
        self.last_position = len(active.header) if first else position
        header.position += self.last_position
        header.body += self.last_position
        header.end += self.last_position
        self.last_header = header

    def _measured(self, sync_s: float) -> None:
        if self.sync_s == 0.0:
            self.sync_s = sync_s
        else:
            # One sync in a hundred takes ten times as long, which says nothing about the next; several in a row do.
            self.sync_s = 0.8 * self.sync_s + 0.2 * min(sync_s, 4 * self.sync_s)

    def _segment(self, drafts: Sequence[Draft]) -> _Active:
        active = self._active
        if active is not None and (
            active.end.position >= self._segment_bytes_max or active.batches >= SEGMENT_BATCHES_MAX
        ):
            self.finish()
            active = None
        elif active is not None and active.end.position > 0:
            size = sum([draft.size for draft in drafts])
            if active.end.position + size > self._segment_bytes_max:
                self.finish()
                active = None
        if active is None:
            active = self._active = self._claim()
        return active

    def _claim(self) -> _Active:
        number = self.highest_known
        fd = -1
        while fd < 0:
            number += 1
            path = segment_path(self._directory, number)
            if self._disk.exists(path + ".end") or self._disk.exists(path + ".index"):
                continue  # whatever is left of a segment says that the number was given
            try:
                fd = self._disk.create(segment_path(self._directory, number) + ".jsonl")
            except FileExistsError:
                continue
        self.highest_known = number
        try:
            end_fd = self._disk.create(segment_path(self._directory, number) + ".end")
        except OSError:
            self._disk.close(fd)
            raise
        end = PublishedEnd(number, self._writer, 0 if self.last is None else self.last.batch, 0)
        header, digest = encode_segment_header(
            SegmentHeader(number, self._writer, self._namespace, self.last, time.time_ns() // 1000)
        )
        self.ends[number] = end
        return _Active(header, digest, fd, end_fd, end)

    def _write_failed(self, error: OSError) -> NoReturn:
        """Take back what was written of a batch: it was never published, and never will be."""
        active = self._active
        try:
            if active is not None and active.end.position == 0:
                self._disk.truncate(active.fd)
            elif active is not None:
                self._leave(active, "failed")
        except OSError as second:
            raise self._fail(f"the log in {self._directory} cannot be written: {second}") from second
        where = f"the log in {self._directory}"
        if error.errno in FULL:
            raise NoSpace(
                f"{where} has no space left; nothing of the append counts, and it can be repeated once there is space",
                path=self._directory,
            ) from error
        raise LogFailed(f"a write to {where} failed: {error}", path=self._directory) from error

    def _sync_failed(self, active: _Active, error: OSError) -> NoReturn:
        # The kernel may have dropped the pages and called them clean: no later sync can be believed (fsyncgate).
        good = self.ends[active.end.segment]
        with suppress(OSError):
            self._disk.write(active.end_fd, encode_end(good._replace(state="failed")), 0)
        self.ends[good.segment] = good._replace(state="failed")
        raise self._fail(f"a sync of the log in {self._directory} failed: {error}; reopen the log to go on") from error

    def refusal(self, error: OSError) -> LogError:
        """Return what a failed operation on another file of the log means: the error to raise.

        A full disk is :class:`NoSpace`, and may be tried again. After anything else, a failed sync above all, this handle
        can believe nothing any more.
        """
        if error.errno in FULL:
            return NoSpace(f"the log in {self._directory} has no space left: {error}", path=self._directory)
        return self._fail(f"the log in {self._directory} failed: {error}; reopen the log to go on")

    def interrupted(self, error: BaseException) -> None:
        """Something broke an append off in the middle: where that was nobody knows, so nothing may be appended any more."""
        self._fail(f"an append to the log in {self._directory} was interrupted: {error!r}; reopen the log to go on")

    def _fail(self, message: str) -> LogFailed:
        self.failed = LogFailed(message, path=self._directory)
        return self.failed

    def finish(self) -> None:
        """Say that the active segment gets no more batches, and let go of it."""
        active = self._active
        if active is not None and self.failed is None:
            self._stamp(active)
            self._leave(active, "closed")

    def _stamp(self, active: _Active) -> None:
        """Make sure that whatever is written to the segment from here on shows, before anybody takes it for complete."""
        if active.alone and self._disk.status(active.fd) == active.written:
            with suppress(OSError):
                self._disk.stamp(active.fd)
                self.closed[active.end.segment] = self._disk.status(active.fd)

    def _leave(self, active: _Active, state: State) -> None:
        active.end = active.end._replace(state=state)
        self._disk.write(active.end_fd, encode_end(active.end), 0)
        self.ends[active.end.segment] = active.end
        self._drop(active)

    def _drop(self, active: _Active) -> None:
        self._active = None
        for fd in (active.fd, active.end_fd):
            os.close(fd)

    def close(self) -> None:
        """Let go of the files without a word, as the end of the process would."""
        if self._active is not None:
            self._drop(self._active)
