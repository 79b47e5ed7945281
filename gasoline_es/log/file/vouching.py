"""For which complete segments a handle vouches: those it has verified while it opened the log, and those it wrote itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gasoline_es.log.file.disk import Status
from gasoline_es.log.file.index import SegmentIndex
from gasoline_es.log.file.lines import SegmentHeader
from gasoline_es.log.file.mark import Mark
from gasoline_es.log.file.marks import Marks
from gasoline_es.log.file.segments import Segment


class Vouching:
    """Takes in what a mark says, and adds to it. Its owner holds a lock around every call."""

    def __init__(self, marks: Marks, own_files: Callable[[int], Status | None], *, readonly: bool) -> None:
        """``own_files``: the file of one's own segment, as it was closed; None: it is not one's own, or not one's alone."""
        self._marks: Final = marks
        self._own_files: Final = own_files
        self._readonly: Final = readonly
        self.mark: Mark | None = None
        """What is vouched for while the log is being opened for writing, which verifies all else."""
        self._claims: list[tuple[Segment, SegmentHeader, SegmentIndex]] = []

    def read(self) -> tuple[Mark, dict[int, SegmentHeader]] | None:
        """Return what need not be verified, with the segments' headers; None: there is nothing."""
        found = self._marks.read()
        if not self._readonly:
            self.mark = Mark(self._marks.log_id) if found is None else found[0]
        return found

    def finished(self, segment: Segment, header: SegmentHeader, index: SegmentIndex) -> None:
        """Take note that a segment is complete and sound, as far as it was looked at."""
        if self.mark is not None:
            # Only behind all that its writer wrote before: what an epoch's first segment says is needed for its others.
            if header.follows is None or header.follows.segment in self.mark.segments:
                marked = self._marks.marked(segment, index)
                if marked is not None:
                    self.mark.add(marked, header.namespace, index)
        elif (own := self._own_files(segment.number)) is not None:
            segment.seen = own
            self._claims.append((segment, header, index))

    def write(self) -> None:
        """Store what is claimed of one's own segments since the last call. It only saves time: errors are no matter."""
        claims, self._claims = self._claims, []
        for segment, header, index in claims:
            marked = self._marks.marked(segment, index)
            if marked is not None:
                self._marks.claim(marked, header.namespace, index, segment.writer)

    def opened(self) -> Mark:
        """Return all that is vouched for now that the log is open: from here on only what this handle writes is added."""
        mark, self.mark = self.mark, None
        assert mark is not None
        return mark
