"""Checking every published byte of a log, and saying where it is not what was written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gasoline_es.errors import LogCorrupt
from gasoline_es.log.file.catalog import Catalog
from gasoline_es.log.file.scan import BatchScan, Damage
from gasoline_es.log.file.segments import Segment
from gasoline_es.log.port import Problem, SegmentInfo


def verify_log(
    catalog: Catalog, segments: Sequence[Segment], faults: Sequence[LogCorrupt]
) -> Iterator[Problem | SegmentInfo]:
    """Yield each segment when done with it, and each problem when met, in file order; then the ``faults`` of other files."""
    for segment in segments:
        damage: LogCorrupt | None = segment.damage
        try:
            yield from _verify_published(catalog, segment)
        except LogCorrupt as gone:  # since it was found
            damage = damage or gone
        if damage is not None:
            yield Problem(segment.number, damage.position, damage.reason)
        yield catalog.files.describe(segment)
    for fault in faults:
        yield Problem(None, 0, fault.reason)


def _verify_published(catalog: Catalog, segment: Segment) -> Iterator[Problem]:
    if segment.header is None:
        return
    with catalog.files.reading(segment) as window:
        header = segment.header  # looked at now: the cleaner may have put another file there since it was found
        batch = 0 if header.follows is None else header.follows.batch
        if header.compacted is not None and header.compacted.epochs is not None:
            return  # its header is all there is, and proves itself
        scan = BatchScan(window, header.bytes, batch, header.digest)
        while True:
            try:
                found = scan.next(window.limit)
                if found is None:
                    if header.compacted is not None and scan.digest != header.compacted.digest:
                        reason = f"it does not end with batch {header.compacted.batch} as that was written"
                        yield Problem(segment.number, window.limit, reason)
                    return
            except Damage as damage:
                yield Problem(segment.number, damage.position, damage.reason)
                return
            try:
                scan.check_body(found)
            except Damage as damage:
                # Where the next batch starts is known: the header's length is proved by its own digest.
                yield Problem(segment.number, damage.position, damage.reason)
