"""The cleaner: removes what does not count, and what rules give up, from segments that nobody writes to any more.

One compacted segment takes the place of exactly one original: it is written beside it, synced, and renamed over it, so at
every moment there is one of the two, and each is whole (filelog.md §5). One cleaner works at a time, under a lock of the
kernel. Where it was killed is no matter: the next one begins from what there is.

* Before it begins, the directory is synced: what it finds removed stays removed. So a tombstone that goes because nothing
  older is left cannot be outlived by that.
* Before a tombstone goes, the horizon is raised (horizon.py).
* It believes no more than a reader does: its own view of the log, and every byte it keeps is verified on the way.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from portalocker.constants import LockFlags
from portalocker.exceptions import LockException
from portalocker.portalocker import FlockLocker

from gasoline_es.errors import LogCorrupt, LogError, NoSpace
from gasoline_es.log.file.bodies import decode_records
from gasoline_es.log.file.catalog import Catalog
from gasoline_es.log.file.disk import FULL, Disk
from gasoline_es.log.file.horizon import Horizon
from gasoline_es.log.file.index import SegmentIndex
from gasoline_es.log.file.lines import BatchHeader, Piece, Place, SectionHeader
from gasoline_es.log.file.marks import Marks
from gasoline_es.log.file.ownership import Ownership
from gasoline_es.log.file.rewriting import Plan, Undecided, plan_segment, write_segment
from gasoline_es.log.file.scan import BatchScan, Damage, read_section
from gasoline_es.log.file.segments import Segment
from gasoline_es.log.file.tail import passed
from gasoline_es.log.port import CONSUMED, Compaction, Record, Rules

Progress = Callable[[int, int], None]


class Stopped(Exception):
    """Somebody asked the cleaner to stop."""


class Pace:
    """Holds whoever reads or writes to a rate, and says when to stop."""

    def __init__(self, bytes_per_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.stop: Final = threading.Event()
        self.total = 1
        self.progress: Progress | None = None
        self._bytes_per_s: Final = bytes_per_s
        self._clock: Final = clock
        self._done = 0
        self._free_s = clock()
        """When so much time has passed as everything up to now may take."""

    def spend(self, size: int) -> None:
        """Take note that so many bytes were read or written; wait if that was too fast. Raises: Stopped."""
        if self.stop.is_set():
            raise Stopped
        self._done += size
        if self.progress is not None:
            self.progress(min(self._done, self.total), self.total)
        if self._bytes_per_s is None:
            return
        now = self._clock()
        self._free_s = max(self._free_s, now - 0.1) + size / self._bytes_per_s
        if self._free_s > now and self.stop.wait(self._free_s - now):
            raise Stopped


class Cleaner:
    """Cleans one log once. Everything in it belongs to one thread, but for ``pace.stop``."""

    def __init__(
        self,
        directory: str,
        disk: Disk,
        marks: Marks,
        horizon: Horizon,
        rules: Rules,
        pace: Pace,
        *,
        dry_run: bool,
        gain_min: float,
        who: str,
    ) -> None:
        self._directory: Final = directory
        self._disk: Final = disk
        self._marks: Final = marks
        self._horizon: Final = horizon
        self._rules: Final = rules
        self._pace: Final = pace
        self._dry_run: Final = dry_run
        self._gain_min: Final = gain_min
        self._who: Final = who
        self._consumed: dict[tuple[str, int], Mapping[str, Any] | None] = {}
        self._removed: Counter[tuple[str, str]] = Counter()
        self._report = Compaction(dry_run=dry_run)

    def run(self, look: Callable[[], tuple[Catalog, Ownership]]) -> Compaction:
        """Clean. ``look``: opens a view of the log, as somebody who changes nothing. Raises: LogCorrupt, NoSpace, LogError."""
        with _locked(self._directory) as mine:
            if not mine:
                return Compaction("another", self._dry_run)
            if not self._dry_run:
                self._settle_former()
            catalog, ownership = look()
            try:
                if catalog.damage is not None:
                    raise catalog.damage
                with suppress(Stopped):
                    self._clean(catalog, ownership)
            finally:
                catalog.close()
        removed: dict[str, dict[str, int]] = {}
        for (topic, reason), count in sorted(self._removed.items()):
            removed.setdefault(topic, {})[reason] = count
        return replace(self._report, removed=removed)

    def _settle_former(self) -> None:
        """Make durable what a cleaner that was killed has renamed, and remove what it has not."""
        segments = f"{self._directory}/segments"
        for name in self._disk.names(segments):
            if name.endswith(".jsonl.tmp"):
                self._disk.unlink(f"{segments}/{name}")
        self._disk.sync_directory(segments)

    # --- what there is ------------------------------------------------------------------------------------------------

    def _clean(self, catalog: Catalog, ownership: Ownership) -> None:
        sealed: list[Segment] = []
        unsealed: list[Segment] = []
        for segment in catalog.ordered():
            if segment.header is not None:
                (sealed if self._sealed(catalog, ownership, segment) else unsealed).append(segment)
        self._report = replace(self._report, open=len(unsealed))
        self._pace.total = max(1, 2 * sum(segment.position for segment in sealed))
        while True:
            for segment in sealed:
                self._observe(catalog, ownership, segment, sealed=True)
            for segment in unsealed:
                self._observe(catalog, ownership, segment, sealed=False)
            if not self._rules.again():
                break
        for segment in sealed:
            self._clean_segment(catalog, ownership, segment)

    def _sealed(self, catalog: Catalog, ownership: Ownership, segment: Segment) -> bool:
        """Whether nothing will be written to a segment any more, nor anything be decided about it (filelog.md §5)."""
        assert segment.header is not None
        if not segment.finished or segment.damage is not None:
            return False
        epochs = catalog.indexes.of(segment).epochs
        views = {partition: ownership.view(segment.header.namespace, partition) for partition, _ in epochs}
        if all(epoch < views[partition].epoch for partition, epoch in epochs):
            return True
        if any(views[partition].undecided for partition, _ in epochs):
            return False
        return segment.header.compacted is not None or catalog.end_state(segment) == "closed"

    def _counts(self, ownership: Ownership, segment: Segment) -> Callable[[SectionHeader, BatchHeader], bool | None]:
        assert segment.header is not None
        namespace, number = segment.header.namespace, segment.number

        def counts(section: SectionHeader, batch: BatchHeader) -> bool | None:
            if section.epoch is None:
                return True
            return ownership.counts(namespace, section.partition, section.epoch, Place(number, batch.number))

        return counts

    def _observe(self, catalog: Catalog, ownership: Ownership, segment: Segment, *, sealed: bool) -> None:
        """Show the rules what of a segment counts."""
        assert segment.header is not None
        wanted = {
            (topic, partition) for topic, partition in catalog.indexes.of(segment).tails if self._rules.observes(topic)
        }
        if not wanted:
            return
        counts = self._counts(ownership, segment)
        with catalog.files.reading(segment) as window:
            try:
                for batch in BatchScan(window, segment.header.bytes, None, None).headers(window.limit):
                    self._pace.spend(batch.end - batch.position)
                    position = batch.body
                    for section in batch.sections:
                        pieces = [piece for piece in section.pieces() if piece.group[:2] in wanted]
                        if pieces and counts(section, batch):
                            body = read_section(window, batch, section, position)
                            for group, line, _ in pieces:
                                for record in decode_records(body, line, group, 0, group.size):
                                    self._rules.observe(record, sealed=sealed)
                        position += section.bytes
            except Damage as damage:
                raise catalog.files.corrupt_error(segment, damage) from damage

    # --- one segment --------------------------------------------------------------------------------------------------

    def _clean_segment(self, catalog: Catalog, ownership: Ownership, segment: Segment) -> None:
        before = segment.position + segment.torn
        with catalog.files.reading(segment) as window:
            try:
                plan = plan_segment(
                    segment,
                    window,
                    self._disk,
                    self._counts(ownership, segment),
                    self._judges,
                    self._judge(segment),
                    self._pace.spend,
                )
            except Damage as damage:
                raise catalog.files.corrupt_error(segment, damage) from damage
            except Undecided:
                self._report = replace(self._report, open=self._report.open + 1)
                return
            # What is to go goes, if there is no bound, even where a short segment gets longer by saying so.
            done = plan.worth_it and (not self._gain_min or before - plan.size >= self._gain_min * before)
            if done and not self._dry_run:
                self._replace(catalog, plan)
        after = plan.size if done else before
        report = self._report
        self._report = replace(
            report,
            segments=report.segments + 1,
            bytes_before=report.bytes_before + before,
            bytes_after=report.bytes_after + after,
            rewritten=report.rewritten + done,
            emptied=report.emptied + (done and plan.empty),
        )
        if done:
            self._removed += plan.removed

    def _judges(self, topic: str) -> bool:
        return self._rules.judges(topic)

    def _judge(self, segment: Segment) -> Callable[[BatchHeader, int, Piece, Record], str | None]:
        def judge(batch: BatchHeader, number: int, piece: Piece, record: Record) -> str | None:
            feed = piece.group.topic, piece.group.partition
            if feed not in self._consumed:
                self._consumed[feed] = self._rules.consumed(*feed)
            position = self._consumed[feed]
            if position is not None and passed(position, segment.number, batch.number, number):
                return CONSUMED
            return self._rules.gives_up(record)

        return judge

    def _replace(self, catalog: Catalog, plan: Plan) -> None:
        """Write a segment anew and put it in its place. Raises: NoSpace, LogError: the original is still there."""
        segment = plan.segment
        beside = f"{segment.path}.jsonl.tmp"
        try:
            self._disk.unlink(beside)
            fd = self._disk.create(beside)
            try:
                with catalog.files.reading(segment) as window:
                    index, last, filled = write_segment(plan, window, self._disk, fd, self._pace.spend)
                self._disk.stamp(fd)
                self._disk.sync(fd)
            finally:
                self._disk.close(fd)
            if plan.horizons:
                self._horizon.raise_to(plan.horizons)
            self._disk.rename(beside, f"{segment.path}.jsonl")
            self._disk.sync_directory(f"{self._directory}/segments")
        except Damage as damage:
            self._drop(beside)
            raise catalog.files.corrupt_error(segment, damage) from damage
        except Stopped:
            self._drop(beside)
            raise
        except OSError as error:
            self._drop(beside)
            kind = NoSpace if error.errno in FULL else LogError
            raise kind(
                f"segment {segment.number} of the log in {self._directory} could not be written anew: {error}. "
                "It is as it was",
                segment=segment.number,
                path=self._directory,
            ) from error
        catalog.files.window(segment).close()  # takes the new file in
        if last is not None:
            segment.last, segment.body, segment.filled = last.position, last.body, filled
        catalog.indexes.replace(segment, index)
        self._vouch(catalog, segment, index)

    def _vouch(self, catalog: Catalog, segment: Segment, index: SegmentIndex) -> None:
        """Say that every byte of it was verified, so that the next opening need not read it."""
        assert segment.header is not None
        with suppress(OSError, LogCorrupt):
            with catalog.files.reading(segment) as window:
                segment.seen = window.status()
            marked = self._marks.marked(segment, index)
            if marked is not None:
                self._marks.claim(marked, segment.header.namespace, index, self._who)

    def _drop(self, beside: str) -> None:
        with suppress(OSError):
            self._disk.unlink(beside)


@contextmanager
def _locked(directory: str) -> Generator[bool]:
    """Hold the cleaner's lock; yields False, at once, if somebody else has it, however long he keeps still."""
    fd = os.open(f"{directory}/compaction.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            FlockLocker().lock(fd, LockFlags.EXCLUSIVE | LockFlags.NON_BLOCKING)
        except LockException:
            yield False
        else:
            yield True
    finally:
        os.close(fd)
