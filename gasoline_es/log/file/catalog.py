"""The catalog: every segment this handle knows, how far each is published, and what its batch headers say.

``refresh`` is the only way anything gets in: it reads published ends, walks the new batch headers once (bodies are skipped,
unless they have to be verified), notes them in the sparse indexes, and tells the tails that wait for them.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Container
from typing import Final, Protocol
from weakref import WeakSet

from gasoline_es.errors import LogCorrupt
from gasoline_es.log.file.begins import Begins, Begun
from gasoline_es.log.file.compacted import Compacted
from gasoline_es.log.file.disk import Disk, Status
from gasoline_es.log.file.end import PublishedEnd, State, decode_end
from gasoline_es.log.file.incarnation import Observer
from gasoline_es.log.file.index import SegmentIndex, index_of_nothing
from gasoline_es.log.file.indexes import Indexes
from gasoline_es.log.file.lines import BatchHeader, Place, SegmentHeader
from gasoline_es.log.file.scan import (
    BatchScan,
    Damage,
    Window,
    content_size,
    read_segment_header,
    valid_batch_after,
)
from gasoline_es.log.file.segments import Segment, SegmentFiles, segment_path
from gasoline_es.log.file.vouching import Vouching

_LIVENESS_S: Final = 0.25
_LOST_MAX: Final = 1_000


class Subscriber(Protocol):
    """Somebody who wants to hear of new batches with records of a topic's partition."""

    def heard(self, segment: Segment, header: BatchHeader) -> None:
        """Called once per batch, in order of the segment's batches."""


class Catalog:
    """All segments of a log. Its owner holds a lock around every call."""

    def __init__(
        self,
        directory: str,
        disk: Disk,
        observer: Observer,
        *,
        readonly: bool,
        verify: bool,
        own_ends: Callable[[int], PublishedEnd | None],
        vouching: Vouching | None = None,
    ) -> None:
        """``verify``: check every body when it is first seen, but for what the mark vouches for.

        ``own_ends``: the published end of one's own segment. ``vouching``: None if all has to be read, whatever the mark says.
        """
        self.segments: dict[int, Segment] = {}
        self.by_writer: dict[str, list[int]] = {}
        self.last_place: dict[str, Place] = {}
        """incarnation → the last batch it published."""
        self.highest = 0
        self.subscribers: dict[tuple[str, int], WeakSet[Subscriber]] = {}
        self.readonly = readonly
        self.verify = verify
        self.writes_indexes = False
        self.begun: dict[tuple[str, int], list[tuple[int, Begun]]] = {}
        """(namespace, partition) → begins that were found and not compared with the epoch files yet."""
        self.checked: Final[dict[tuple[str, int], tuple[int, str]]] = {}
        """(namespace, partition) → up to which epoch the epoch files were read before, and the seal of those files."""
        self.begins: Final = Begins(lambda number: self.segments[number].writer)
        self.files: Final = SegmentFiles(directory, disk)
        self.indexes: Final = Indexes(self.files, disk, stores=not readonly)
        self._files: Final = self.files
        self._directory: Final = directory
        self._disk: Final = disk
        self._observer: Final = observer
        self._own_ends: Final = own_ends
        self._vouching: Final = vouching
        self._topics: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}
        """What segments hold, each once: most hold the same."""
        self._growing: list[Segment] = []
        self._damaged = False
        self._listed = False
        self._referred: dict[int, tuple[int, str]] = {}
        self._looked_s = float("-inf")

    # --- what was found -----------------------------------------------------------------------------------------------

    @property
    def damage(self) -> LogCorrupt | None:
        """Return the first damage found, in order of segments."""
        if not self._damaged:
            return None  # asked each time a partition is taken: no walk through all segments
        return next(segment.damage for segment in self.ordered() if segment.damage is not None)

    @property
    def damaged(self) -> bool:
        """Return whether any segment is damaged."""
        return self._damaged

    def complete(self, writer: str) -> bool:
        """Return whether nothing more can come from a writer that is dead: all of its segments were taken in to their ends."""
        return self._observer.known_dead(writer) and not any(
            segment.writer == writer and segment.header is not None for segment in self._growing
        )

    def subscribe(self, topic: str, partition: int, subscriber: Subscriber) -> None:
        """Tell the subscriber of every new batch with records of the topic's partition, for as long as it lives."""
        self.subscribers.setdefault((topic, partition), WeakSet()).add(subscriber)

    def ordered(self) -> list[Segment]:
        """Return all segments in order of their numbers."""
        return [self.segments[number] for number in sorted(self.segments)]

    # --- finding out --------------------------------------------------------------------------------------------------

    def refresh(self, *, liveness: bool = False) -> None:
        """Take in everything published by now. ``liveness``: look now at who still lives, not just every so often."""
        now = time.monotonic()
        look = liveness or now - self._looked_s >= _LIVENESS_S
        self._discover()
        if self._growing:
            self._take_in(look=look, now=now)
        self._check_referred()
        if self.writes_indexes:
            self.indexes.write()
            if self._vouching is not None:
                self._vouching.write()

    def _take_in(self, *, look: bool, now: float) -> None:
        dead: set[str] = set()
        if look:
            self._looked_s = now
            dead = self._look()
        for segment in self._growing:
            self._read(segment)
        for segment in self._growing:
            self._advance(segment, dead=segment.writer in dead)
        self._growing = [segment for segment in self._growing if not segment.finished]

    def _look(self) -> set[str]:
        """Return which writers are dead. On return all of their segments are discovered: they make no more."""
        looked: set[str] = set()
        dead: set[str] = set()
        while True:
            for segment in self._growing:
                if not segment.writer:
                    self._read(segment)
                if segment.writer and segment.writer not in looked:
                    looked.add(segment.writer)
                    if not self._observer.alive(segment.writer):
                        dead.add(segment.writer)
            highest = self.highest
            self._discover()
            if highest == self.highest:
                return dead

    def _read(self, segment: Segment) -> None:
        if segment.finished:
            return
        own = self._own_ends(segment.number)
        if own is None:
            self._files.read_end(segment)
        else:
            segment.end, segment.writer = own, own.writer
        if segment.header is None:
            self._read_header(segment)

    def _discover(self) -> None:
        if not self._listed:
            self._listed = True
            self._list()
        # Numbers are claimed one after the other, so a new segment is always the next one.
        while self._disk.exists(segment_path(self._directory, self.highest + 1) + ".jsonl"):
            self._add(self.highest + 1)

    def _list(self) -> None:
        traces = self._traces()
        self.highest = max(traces, default=0)
        if any("jsonl" not in kinds for kinds in traces.values()) or len(traces) < self.highest:
            # Looked at once more: a directory that grows is not listed in the order of time.
            for number, kinds in self._traces().items():
                if number <= self.highest:
                    traces.setdefault(number, set()).update(kinds)
        marked = self._take_marked()
        for number in sorted(traces):
            if "jsonl" in traces[number] and number not in marked:
                self._add(number)
        below = 0
        for number in sorted(traces):
            if "jsonl" not in traces[number]:
                self._add_lost(number)
            if number - below > 1 and (end := self._stored_end(number)) is not None and end.position > 0:
                # Its writer synced the directory after the numbers below it were taken.
                for lost in range(below + 1, min(number, below + _LOST_MAX)):
                    self._lost(lost, f"its file is missing, and segment {number}, made after it, was published")
            below = number

    def _take_marked(self) -> Container[int]:
        """Take in the complete segments that the mark vouches for, without reading them; return their numbers."""
        found = None if self._vouching is None else self._vouching.read()
        if found is None:
            return ()
        mark, headers = found
        for number in sorted(mark.segments):
            marked = mark.segments[number]
            segment = Segment(
                number,
                segment_path(self._directory, number),
                position=marked.position,
                batch=marked.batch,
                batches=marked.batches,
                records=marked.records,
                digest=marked.digest,
                last=marked.last,
                body=marked.body,
                newest_us=marked.newest_us,
                topics=marked.topics,
                finished=True,
                torn=marked.bytes - marked.position,
                file=Status(marked.inode, marked.bytes, marked.changed_ns),
            )
            self.segments[number] = segment
            self._take_header(segment, headers[number])
            if marked.batches:
                self.last_place[segment.writer] = Place(number, marked.batch)
        for (namespace, partition), epochs in mark.epochs.items():
            self.begins.note_mark(namespace, partition, epochs, mark.segments)
            self.checked[namespace, partition] = epochs.read, epochs.seal
        for namespace, partition, epoch in mark.merged:
            self.begins.again(namespace, partition, epoch)
        return mark.segments

    def _traces(self) -> dict[int, set[str]]:
        """Return which files there are of each segment's number."""
        traces: dict[int, set[str]] = {}
        try:
            names = self._disk.names(f"{self._directory}/segments")
        except FileNotFoundError as error:
            path = f"{self._directory}/segments"
            raise LogCorrupt(
                f"the log is damaged: {path} is missing. Nothing was changed; put it back from a copy",
                segment=None,
                position=0,
                reason=f"{path} is missing",
                path=path,
            ) from error
        for name in names:
            stem, _, kind = name.partition(".")
            if kind in ("jsonl", "end", "index") and stem.isascii() and stem.isdigit() and f"{int(stem):010d}" == stem:
                traces.setdefault(int(stem), set()).add(kind)
        return traces

    def _add_lost(self, number: int) -> None:
        """Take in a number of which the segment itself is not there: it is missing if anything was published in it.

        A power loss may take the name of a segment before that, and leave that of its published end.
        """
        end = self._stored_end(number)
        index = self.indexes.stored(Segment(number, segment_path(self._directory, number)))
        if end is not None and end.position > 0:
            self._lost(number, f"its file is missing, and batches up to {end.batch} were published", end.writer)
        elif index is not None and index.batches:
            self._lost(number, f"its file is missing, and batches up to {index.batch} were published")

    def _lost(self, number: int, reason: str, writer: str = "") -> None:
        segment = Segment(number, segment_path(self._directory, number), writer=writer, finished=True)
        self.segments[number] = segment
        self.highest = max(self.highest, number)
        self._corrupt(segment, 0, reason)

    def end_state(self, segment: Segment) -> State | None:
        """Return what the file beside a complete segment says of its end; None: nothing that can be read."""
        end = segment.end or self._stored_end(segment.number)
        return None if end is None else end.state

    def _stored_end(self, number: int) -> PublishedEnd | None:
        try:
            end = decode_end(self._disk.read_file(segment_path(self._directory, number) + ".end"))
        except FileNotFoundError:
            return None
        return end if end is not None and end.segment == number else None

    def refer(self, number: int, batch: int, who: str) -> None:
        """Take note that something published says of a segment's batch that it was published."""
        if self._referred.get(number, (0, ""))[0] < batch:
            self._referred[number] = (batch, f"{who} names its batch {batch}")

    def _check_referred(self) -> None:
        fresh, self.begins.fresh = self.begins.fresh, []
        for namespace, partition, epoch, begun in fresh:
            self.begun.setdefault((namespace, partition), []).append((epoch, begun))
            if begun.begin.after is not None:
                place = begun.begin.after.place
                who = f"segment {begun.place.segment}, where epoch {epoch} of partition {partition} begins,"
                self.refer(place.segment, place.batch, who)
        for number, (batch, why) in list(self._referred.items()):
            segment = self.segments.get(number)
            if segment is None:
                if self._disk.exists(segment_path(self._directory, number) + ".jsonl"):
                    continue  # made since the last look
                self._lost(number, f"its file is missing, and {why}")
            elif segment.damage is None and segment.batch < batch:
                if segment.header is None and not segment.finished:
                    self._read_header(segment)
                if segment.header is not None and not segment.finished:
                    continue  # more was published since its end was read
                if segment.damage is None:
                    self._corrupt(segment, segment.position, f"batches are missing: {why}")
            self._referred.pop(number, None)

    def _add(self, number: int) -> None:
        segment = Segment(number, segment_path(self._directory, number), index=SegmentIndex())
        self.segments[number] = segment
        self._growing.append(segment)
        self.highest = max(self.highest, number)

    def _read_header(self, segment: Segment) -> None:
        fd = self._files.open(segment)
        if self.verify:
            segment.seen = self._disk.status(fd)
        size = self._disk.size(fd)
        try:
            header = read_segment_header(Window(self._disk, fd, size), size)
            if header.number != segment.number:
                raise Damage(0, f"the header says segment {header.number}", "invalid")
        except Damage as damage:
            promised = segment.end is not None and segment.end.position > 0
            if segment.end is None and (index := self.indexes.stored(segment)) is not None:
                promised = index.batches > 0
            dead = bool(segment.writer) and self._observer.known_dead(segment.writer)
            incomplete = damage.kind in ("incomplete", "zeroed")
            if promised or (not incomplete and (dead or not segment.writer)):
                self._corrupt(segment, damage.position, damage.reason)
            elif segment.end is not None and segment.end.state != "open":
                self._finish(segment)  # its writer gave it up before anything was published in it
            elif dead:
                # Not finished: after a power loss somebody may be about to use the number again.
                segment.torn = size
            return
        if segment.end is not None and segment.end.writer != header.writer:
            segment.end, segment.end_bytes = None, b""
        segment.torn = 0
        segment.position, segment.digest = header.bytes, header.digest
        segment.batch = 0 if header.follows is None else header.follows.batch
        self._take_header(segment, header)

    def _take_header(self, segment: Segment, header: SegmentHeader) -> None:
        segment.header, segment.writer = header, header.writer
        insort(self.by_writer.setdefault(header.writer, []), segment.number)
        if header.follows is not None and (before := self.segments.get(header.follows.segment)) is not None:
            before.batch_max = header.follows.batch
        if header.follows is not None:
            self.refer(header.follows.segment, header.follows.batch, f"segment {segment.number}, which follows it,")

    def _advance(self, segment: Segment, *, dead: bool) -> None:
        if segment.finished or segment.header is None:
            return
        if segment.header.compacted is not None:
            self._take_compacted(segment, segment.header.compacted)
            return
        end = segment.end
        failed = end is not None and end.state == "failed"
        if dead and not failed:
            if self.verify or not self._load_index(segment):
                self._advance_dead(segment)
            if not segment.finished:
                self._finish(segment)
            return
        if end is not None and end.position > segment.position:
            try:
                self._scan(segment, end.position, check_from=0 if self.verify else None)
            except Damage as damage:
                self._corrupt(segment, damage.position, damage.reason)
                return
        if failed or (end is not None and end.state == "closed" and end.position <= segment.position):
            if failed and segment.fd >= 0:
                segment.torn = max(0, self._disk.size(segment.fd) - segment.position)
            self._finish(segment)

    def _take_compacted(self, segment: Segment, told: Compacted) -> None:
        """Take in a segment that the cleaner wrote anew: it counts as it is, whoever wrote it first and however he is."""
        assert segment.header is not None
        segment.batch_max = None
        size = self._disk.size(self._files.open(segment))
        if size != told.bytes:
            reason = f"it has {size} bytes, and had {told.bytes} when the cleaner had written it"
            self._corrupt(segment, min(size, told.bytes), reason)
            return
        if told.epochs is not None:
            try:
                segment.index = index_of_nothing(told)
            except (KeyError, TypeError, ValueError):
                self._corrupt(segment, 0, "what its header says of epochs cannot be read")
                return
            self._take_index(segment, segment.index)
        elif self.verify or not self._load_index(segment):
            try:
                self._scan(segment, size, check_from=0 if self.verify else None)
            except Damage as damage:
                self._corrupt(segment, damage.position, damage.reason)
                return
        found = (segment.batch, segment.batches, segment.records, segment.digest, segment.position)
        if found != (told.batch, told.batches, told.records, told.digest, told.bytes):
            self._corrupt(segment, segment.position, "its batches are not those that its header tells of")
            return
        self._finish(segment)

    def _advance_dead(self, segment: Segment) -> None:
        fd = self._files.open(segment)
        try:
            self._disk.sync(fd)
            self._disk.sync_directory(f"{self._directory}/segments")
        except OSError:
            if not self.readonly:
                raise
        if segment.end is not None:
            promised = segment.end.position
        else:
            index = self.indexes.stored(segment)  # made when all of it was read
            promised = 0 if index is None else index.position
        size = content_size(self._disk, fd)
        try:
            self._scan(segment, size, check_from=0 if self.verify else promised)
        except Damage as damage:
            torn = damage.kind == "incomplete" or (
                damage.kind == "zeroed" and not valid_batch_after(self._disk, fd, damage.position, size)
            )
            if damage.position < promised or not torn:
                self._corrupt(segment, damage.position, damage.reason)
                return
        if segment.position < promised and segment.batch_max is None:
            self._corrupt(segment, segment.position, f"bytes up to {promised} were published and are missing")
            return
        segment.torn = self._disk.size(fd) - segment.position

    def _scan(self, segment: Segment, end: int, check_from: int | None) -> None:
        scan = BatchScan(
            Window(self._disk, self._files.open(segment), end), segment.position, segment.batch, segment.digest
        )
        while (header := scan.next(end)) is not None:
            if segment.batch_max is not None and header.number > segment.batch_max:
                return
            if check_from is not None and header.position >= check_from:
                scan.check_body(header)
            self._publish(segment, header)

    def wrote(self, number: int, header: BatchHeader) -> None:
        """Take in a batch that this process has just published: it need not be read back, unless something precedes it."""
        segment = self.segments.get(number)
        if (
            segment is None
            or segment.header is None
            or segment.finished
            or segment.position != header.position
            or segment.digest != header.prev
            or any(section.begin is not None for section in header.sections)
        ):
            return  # the next refresh reads it
        self._publish(segment, header)

    def _publish(self, segment: Segment, header: BatchHeader) -> None:
        assert segment.header is not None
        assert segment.index is not None
        segment.index.add(header)
        segment.position, segment.batch, segment.digest = header.end, header.number, header.digest
        segment.last, segment.body = header.position, header.body
        if header.end > header.body:
            segment.filled = header.end
        segment.batches, segment.records = segment.index.batches, segment.index.records
        place = Place(segment.number, header.number)
        self.last_place[segment.writer] = place
        self.begins.note(segment.header.namespace, segment.writer, place, header)
        if self.subscribers:
            heard: set[tuple[str, int]] = {(group[0], group[1]) for s in header.sections for group in s.groups}
            for key in heard & self.subscribers.keys():
                for subscriber in self.subscribers[key]:
                    subscriber.heard(segment, header)

    def _corrupt(self, segment: Segment, position: int, reason: str) -> None:
        self._damaged = True
        segment.damage = self._files.corrupt_error(segment, Damage(position, reason, "invalid"))
        if not segment.finished:
            self._finish(segment)

    # --- complete segments --------------------------------------------------------------------------------------------

    def _finish(self, segment: Segment) -> None:
        segment.finished = True
        if segment.fd >= 0:
            segment.file = self._disk.status(segment.fd)
        self._files.close(segment)
        index, segment.index = segment.index, None
        assert index is not None
        self.indexes.finished(segment, index)
        if segment.header is not None and segment.damage is None:
            topics = index.topics
            segment.topics = self._topics.setdefault(tuple(sorted(topics.items())), topics)
            if self._vouching is not None:
                self._vouching.finished(segment, segment.header, index)

    def _load_index(self, segment: Segment) -> bool:
        """Take a dead writer's segment in by its index file; whether there is one that fits."""
        if segment.batches:
            return False
        index = self.indexes.stored(segment)
        size = self._disk.size(self._files.open(segment))
        if index is None or index.position + index.torn != size:
            return False
        assert segment.header is not None
        segment.index = index
        self._take_index(segment, index)
        return True

    def _take_index(self, segment: Segment, index: SegmentIndex) -> None:
        assert segment.header is not None
        segment.position, segment.batch, segment.digest = index.position, index.batch, index.digest
        segment.batches, segment.records, segment.torn = index.batches, index.records, index.torn
        if index.batches:
            self.last_place[segment.writer] = Place(segment.number, index.batch)
        self.begins.note_index(segment.header.namespace, segment.writer, segment.number, index)

    def close(self) -> None:
        """Let go of every file."""
        for segment in self._growing:
            self._files.close(segment)
        self._growing = []
