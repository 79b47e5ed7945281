"""One segment written anew without what is given up: planned by reading it once, written by reading it once more.

Nothing of it is kept in memory but one byte for each record of the batches that lose any, and one batch at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final

from gasoline_es.core.retention import TOMBSTONE
from gasoline_es.log.file.bodies import Body, decode_records
from gasoline_es.log.file.compacted import (
    COMPACTED,
    KEPT,
    NOTHING,
    Compacted,
    KeptLines,
    as_written,
    encode_compacted,
    encode_kept,
    merged_digests,
    runs_of,
    with_member,
)
from gasoline_es.log.file.disk import Disk
from gasoline_es.log.file.index import SegmentIndex, encode_epochs
from gasoline_es.log.file.lines import BatchHeader, Piece, SectionHeader, SegmentHeader, decode_batch_header
from gasoline_es.log.file.scan import BatchScan, Window, read_section
from gasoline_es.log.file.segments import Segment
from gasoline_es.log.port import VOID, Record

_CHUNK_BYTES: Final = 1024 * 1024
_DIGEST_BYTES: Final = 32

Counts = Callable[[SectionHeader, BatchHeader], bool | None]
"""Whether a section counts; None: it is not decided yet."""
Judge = Callable[[BatchHeader, int, Piece, Record], str | None]
"""Why a record goes; None: it stays. Told its batch, and its number among the batch's records as they were written."""


class Undecided(Exception):
    """Whether a section counts is not known yet: the segment is left alone."""


@dataclass(slots=True)
class Plan:
    """What a segment will be. ``masks``: (batch, which of its sections) → of each record written, whether it stays."""

    segment: Segment
    header: SegmentHeader
    masks: dict[tuple[int, int], bytearray] = field(default_factory=dict[tuple[int, int], bytearray])
    removed: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Topic and reason → how many records go."""
    horizons: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """Where the horizon has to be before the tombstones among them go."""
    index: SegmentIndex = field(default_factory=SegmentIndex)
    """Of the segment as it is: of nothing but its epochs, its batches and its digest."""
    size: int = 0
    """Of the file as it will be, in bytes."""
    records: int = 0
    line: bytes = b""
    """The header line as it will be."""

    @property
    def empty(self) -> bool:
        """Whether no record is left."""
        return not self.records

    @property
    def worth_it(self) -> bool:
        """Whether there is anything to do."""
        if self.removed:
            return True
        told = self.header.compacted
        # One that never held records, or lost all in the days of another version, takes a line as well.
        return self.empty and (told is None or told.epochs is None) and self.size < self.segment.position


def plan_segment(
    segment: Segment,
    window: Window,
    disk: Disk,
    counts: Counts,
    judges: Callable[[str], bool],
    judge: Judge,
    spend: Callable[[int], None],
) -> Plan:
    """Read a complete segment and decide what of it stays. Raises: Damage, Undecided."""
    assert segment.header is not None
    header = segment.header
    plan = Plan(segment, header)
    body_bytes = 0
    if header.compacted is None or header.compacted.epochs is None:
        for batch in _scan(segment, window).headers(window.limit):
            spend(batch.end - batch.position)
            body_bytes += _plan_batch(plan, window, batch, counts, judges, judge)
            plan.index.add(batch)
    told = Compacted(
        bytes=0,
        batch=segment.batch,
        batches=segment.batches,
        records=plan.records,
        digest=segment.digest or "",
        was_bytes=segment.position if header.compacted is None else header.compacted.was_bytes,
        was_records=segment.records if header.compacted is None else header.compacted.was_records,
        epochs=None,
    )
    if plan.empty:
        body_bytes = 0
        known = None if header.compacted is None else header.compacted.epochs
        told = replace(told, epochs=encode_epochs(plan.index.epochs) if known is None else known)
    core = as_written(window.read(0, header.bytes)[:-1], COMPACTED)
    _settle(plan, core, told, body_bytes)
    return plan


def _settle(plan: Plan, core: bytes, told: Compacted, body_bytes: int) -> None:
    """Find the header line that names the length of the file that it is a part of."""
    size = body_bytes
    while len(plan.line) + body_bytes != size or not plan.line:
        size = len(plan.line) + body_bytes
        plan.line = with_member(core, COMPACTED, encode_compacted(replace(told, bytes=size)))
    plan.size = size


def _scan(segment: Segment, window: Window) -> BatchScan:
    assert segment.header is not None
    header = segment.header
    return BatchScan(window, header.bytes, 0 if header.follows is None else header.follows.batch, header.digest)


def _plan_batch(
    plan: Plan,
    window: Window,
    batch: BatchHeader,
    counts: Counts,
    judges: Callable[[str], bool],
    judge: Judge,
) -> int:
    """Decide what of a batch stays; return how many bytes it will take."""
    position, passed = batch.body, 0
    kept: list[KeptLines | None] = []
    touched = False
    for at, section in enumerate(batch.sections):
        mask = _plan_section(plan, window, batch, section, position, passed, counts, judges, judge)
        if mask is None:
            kept.append(section.kept)
            plan.records += section.line_count
        else:
            touched = True
            left = sum(mask)
            plan.masks[batch.number, at] = mask
            plan.records += left
            if left:
                body = read_section(window, batch, section, position)
                size = sum([_length(body, line) for line in _lines_left(section, mask)])
                kept.append(KeptLines(runs_of(mask), size, bytes(_DIGEST_BYTES * (len(mask) - left))))
            else:
                kept.append(NOTHING)
        position += section.bytes
        passed += section.record_count
    if not touched:
        return batch.end - batch.position
    core = as_written(window.read(batch.position, batch.body - batch.position)[:-1], KEPT)
    sizes = [
        section.bytes if one is section.kept else one.size if one is not None else 0
        for section, one in zip(batch.sections, kept, strict=True)
    ]
    return len(with_member(core, KEPT, [encode_kept(one) for one in kept])) + sum(sizes)


def _plan_section(
    plan: Plan,
    window: Window,
    batch: BatchHeader,
    section: SectionHeader,
    position: int,
    passed: int,
    counts: Counts,
    judges: Callable[[str], bool],
    judge: Judge,
) -> bytearray | None:
    """Return for each record of a section, as it was written, whether it stays; None: all that are there do."""
    if not section.line_count:
        return None
    counted = counts(section, batch)
    if counted is None:
        raise Undecided
    pieces = section.pieces()
    if not counted:
        for piece in pieces:
            plan.removed[piece.group.topic, VOID] += piece.group.size
        return bytearray(section.record_count)
    if not any(judges(piece.group.topic) for piece in pieces):
        return None
    mask: bytearray | None = None
    body = read_section(window, batch, section, position)
    for piece in pieces:
        topic, partition, _, size = piece.group
        if not judges(topic):
            continue
        for at, record in enumerate(decode_records(body, piece.line, piece.group, 0, size)):
            reason = judge(batch, passed + piece.number + at, piece, record)
            if reason is None:
                continue
            if mask is None:
                mask = _mask(section)
            mask[piece.number + at] = 0
            plan.removed[topic, reason] += 1
            if reason == TOMBSTONE and record.offset is not None:
                feed = topic, partition
                plan.horizons[feed] = max(plan.horizons.get(feed, 0), record.offset + 1)
    return mask


def _mask(section: SectionHeader) -> bytearray:
    if section.kept is None:
        return bytearray(b"\1" * section.record_count)
    mask = bytearray(section.record_count)
    for first, count in section.kept.runs:
        mask[first : first + count] = b"\1" * count
    return mask


def _lines_left(section: SectionHeader, mask: Sequence[int]) -> list[int]:
    """Return which of the lines that are there are left, by their numbers there."""
    numbers = range(section.record_count)
    if section.kept is not None:
        there = [number for first, count in section.kept.runs for number in range(first, first + count)]
    else:
        there = list(numbers)
    return [line for line, number in enumerate(there) if mask[number]]


def _length(body: Body, line: int) -> int:
    return body.ends[line] - (body.ends[line - 1] if line else -1)


def write_segment(
    plan: Plan, window: Window, disk: Disk, fd: int, spend: Callable[[int], None]
) -> tuple[SegmentIndex, BatchHeader | None, int]:
    """Write what a segment will be into an empty file, verifying every byte that is kept.

    Return its index, the header of its last batch (None: none is left), and where the last batch that has records ends.
    Raises: Damage, OSError.
    """
    index = SegmentIndex()
    position, filled, last = len(plan.line), 0, None
    parts: list[bytes] = [plan.line]
    size = flushed = 0
    if not plan.empty:
        for batch in _scan(plan.segment, window).headers(window.limit):
            data, line = _write_batch(plan, window, batch)
            last = decode_batch_header(line[:-1], position)
            index.add(last)
            position = last.end
            if last.end > last.body:
                filled = last.end
            parts += [line, *data]
            size += last.end - last.position
            spend(batch.end - batch.position)
            if size >= _CHUNK_BYTES:
                flushed = _flush(disk, fd, parts, flushed)
                size = 0
    _flush(disk, fd, parts, flushed)
    assert position == plan.size, "a segment is written as it was planned"
    if plan.empty:
        index = SegmentIndex(
            plan.size, plan.segment.batch, plan.segment.batches, 0, plan.segment.digest or "", epochs=plan.index.epochs
        )
    return index, last, filled


def _flush(disk: Disk, fd: int, parts: list[bytes], position: int) -> int:
    data = b"".join(parts)
    parts.clear()
    disk.write(fd, data, position)
    return position + len(data)


def _write_batch(plan: Plan, window: Window, batch: BatchHeader) -> tuple[list[bytes], bytes]:
    """Return a batch's record lines that are left, and its header line."""
    line = window.read(batch.position, batch.body - batch.position)
    position = batch.body
    data: list[bytes] = []
    kept: list[KeptLines | None] = []
    touched = False
    for at, section in enumerate(batch.sections):
        mask = plan.masks.get((batch.number, at))
        if mask is not None and not any(mask):
            touched = True
            kept.append(NOTHING)
        else:
            body = read_section(window, batch, section, position)
            if mask is None:
                data.append(body.data)
                kept.append(section.kept)
            else:
                touched = True
                one, lines = _left(section, body, mask)
                data.append(lines)
                kept.append(one)
        position += section.bytes
    if touched:
        line = with_member(as_written(line[:-1], KEPT), KEPT, [encode_kept(one) for one in kept])
    return data, line


def _left(section: SectionHeader, body: Body, mask: bytearray) -> tuple[KeptLines, bytes]:
    """Return which lines of a section are left, and those lines."""
    starts = [0, *[end + 1 for end in body.ends]]
    digests = [sha256(body.data[starts[line] : body.ends[line]]).digest() for line in range(len(body.ends))]
    if section.kept is not None:
        digests = merged_digests(section.kept, digests)
    removed = b"".join([digest for digest, stays in zip(digests, mask, strict=True) if not stays])
    lines = b"".join([body.data[starts[line] : starts[line + 1]] for line in _lines_left(section, mask)])
    return KeptLines(runs_of(mask), len(lines), removed), lines
