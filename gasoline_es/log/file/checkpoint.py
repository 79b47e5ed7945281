"""A digest of a log as it is, to hold it to later: for each segment the head of its chain, and how long it was (filelog.md §5).

One JSON object, as one line::

    {"format":1,"log":"<log id>","taken":T,"segments":[[number,"header digest",batch,"digest",bytes,records],…],"head":"H"}

`batch`, `digest`: of the last batch that was published. `bytes`: the byte after it, as the segment was written; `records`: how
many there were up to it. The digest of a batch proves all before it in its segment. What was removed since has left its digests
there, so the head is the same; where nothing is left of a segment only its last head is, and an earlier one proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

from pydantic_core import from_json, to_json

from gasoline_es.errors import LogCorrupt, LogError
from gasoline_es.log.file.catalog import Catalog
from gasoline_es.log.file.lines import with_head
from gasoline_es.log.file.scan import BatchScan, Damage
from gasoline_es.log.file.segments import Segment
from gasoline_es.log.port import Problem

FORMAT: Final = 1
_T = TypeVar("_T")


class Head(NamedTuple):
    """The end of a segment as it was published, in the bytes and records that were written."""

    segment: int
    header: str
    batch: int
    digest: str
    bytes: int
    records: int


def take(catalog: Catalog, log_id: str, now_us: int) -> bytes:
    """Return the digest of a log, after walking all its chains. Raises: LogCorrupt."""
    heads = [
        _of_one_file(segment, partial(_head, catalog, segment))
        for segment in catalog.ordered()
        if segment.header is not None
    ]
    members = {"format": FORMAT, "log": log_id, "taken": now_us, "segments": [list(head) for head in heads]}
    return with_head(to_json(members)[:-1])[0]


def decode(data: bytes, log_id: str) -> list[Head]:
    """Return what a digest says. Raises: LogError: it is none, or of another log."""
    line = data.strip() + b"\n"
    core, found, _ = line.rpartition(b',"head":"')
    if not found or with_head(core)[0] != line:
        raise LogError("this is not a checkpoint of a log, or not as it was written")
    try:
        members = cast(dict[str, Any], from_json(line))
        if members["format"] != FORMAT:
            raise LogError(f"a checkpoint of format {members['format']}; this version reads format {FORMAT}")
        if members["log"] != log_id:
            raise LogError(f"this is a checkpoint of log {members['log']}, and this log is {log_id}")
        return [Head._make(values) for values in members["segments"]]
    except (LookupError, TypeError, ValueError) as error:
        raise LogError("this is not a checkpoint of a log") from error


def hold(catalog: Catalog, heads: list[Head]) -> Iterator[Problem]:
    """Yield each place where the log is not the one that the checkpoint is of, nor that one without what was removed."""
    for head in heads:
        segment = catalog.segments.get(head.segment)
        if segment is None or segment.header is None:
            yield Problem(head.segment, 0, f"it is missing, and held {head.records} records up to batch {head.batch}")
            continue
        try:
            found = _of_one_file(segment, partial(_differs, catalog, segment, head))
        except LogCorrupt as error:
            found = f"batch {head.batch} cannot be reached: {error.fields.get('reason')}"
        if found is not None:
            yield Problem(head.segment, segment.position, found)


def _of_one_file(segment: Segment, look: Callable[[], _T]) -> _T:
    """Look at a segment again if the cleaner has put another file in its place meanwhile. Raises: LogCorrupt."""
    while True:
        version = segment.version
        try:
            found = look()
        except LogCorrupt:
            if segment.version == version:
                raise
        else:
            if segment.version == version:
                return found


def unproven(catalog: Catalog, heads: list[Head]) -> list[int]:
    """Return the segments of which nothing is left, and that had grown since: what they held then cannot be proven."""
    return [head.segment for head in heads if (of := _emptied(catalog, head.segment)) is not None and of > head.batch]


def _emptied(catalog: Catalog, number: int) -> int | None:
    """Return the last batch of a segment of which nothing is left; None: something is."""
    segment = catalog.segments.get(number)
    told = None if segment is None or segment.header is None else segment.header.compacted
    return None if told is None or told.epochs is None else told.batch


def _differs(catalog: Catalog, segment: Segment, head: Head) -> str | None:
    """Return in what a segment differs from what it was, None if in nothing. Raises: LogCorrupt."""
    header = segment.header
    assert header is not None
    if header.digest != head.header:
        return f"its header is another one than before, in front of batch {head.batch}"
    if segment.batch < head.batch:
        return f"it ends with batch {segment.batch}, and went on to batch {head.batch}"
    told = header.compacted
    if told is not None and told.epochs is not None:
        if told.batch > head.batch:
            return None  # see `unproven`
        if told.digest != head.digest:
            return f"batch {head.batch} is another one than before"
    else:
        digest, size = _at(catalog, segment, head.batch)
        if digest != head.digest:
            return f"batch {head.batch} is another one than before, or one before it is"
        if told is None and size != head.bytes:
            return f"batch {head.batch} ends at byte {size}, and ended at {head.bytes}"
    if (
        told is not None
        and told.batch == head.batch
        and (told.was_bytes, told.was_records) != (head.bytes, head.records)
    ):
        return f"up to batch {head.batch} it is said to have had {told.was_records} records, and had {head.records}"
    return None


def _at(catalog: Catalog, segment: Segment, batch: int) -> tuple[str | None, int]:
    """Return the digest of a batch, and where it ends, after walking the chain up to it. Raises: LogCorrupt."""
    with catalog.files.reading(segment) as window:
        header = segment.header
        assert header is not None
        number = 0 if header.follows is None else header.follows.batch
        scan = BatchScan(window, header.bytes, number, header.digest)
        try:
            while number < batch and (found := scan.next(window.limit)) is not None:
                number = found.number
        except Damage as damage:
            raise catalog.files.corrupt_error(segment, damage) from damage
        return scan.digest, scan.position


def _head(catalog: Catalog, segment: Segment) -> Head:
    header = segment.header
    assert header is not None
    told = header.compacted
    if told is not None and told.epochs is not None:
        return Head(segment.number, header.digest, told.batch, told.digest, told.was_bytes, told.was_records)
    digest, size = _at(catalog, segment, segment.batch)
    size, records = (size, segment.records) if told is None else (told.was_bytes, told.was_records)
    return Head(segment.number, header.digest, segment.batch, digest or "", size, records)
