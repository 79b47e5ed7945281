"""What published batch headers say about the epochs of partitions: begins, releases, and how far each epoch's topics go."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field

from gasoline_es.log.file.index import SegmentIndex
from gasoline_es.log.file.lines import BatchHeader, Begin, Place
from gasoline_es.log.file.mark import Columns, MarkedEpochs, raise_ends


@dataclass(slots=True)
class Begun:
    """A begin that was found published."""

    place: Place
    begin: Begin
    writer: str


@dataclass(slots=True)
class _Partition:
    """The begins of one partition. ``newest``: that of the highest epoch, which is the one that is asked for."""

    columns: Columns = field(default_factory=Columns)
    top: int = 0
    newest: Begun | None = None


class Begins:
    """Everything known of epochs, by namespace, partition and epoch. An old epoch takes about a hundred bytes."""

    def __init__(self, writer_of: Callable[[int], str]) -> None:
        """``writer_of``: who wrote a segment."""
        self._writer_of = writer_of
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self.fresh: list[tuple[str, int, int, Begun]] = []
        """Begins (namespace, partition, epoch) found since the catalog last took them from here."""
        self._released: set[tuple[str, int, int]] = set()
        self._ends: dict[tuple[str, int, int], dict[str, int]] = {}

    def begun(self, namespace: str, partition: int, epoch: int) -> Begun | None:
        """Return the epoch's begin if it is published."""
        of = self._partitions.get((namespace, partition))
        if of is None:
            return None
        if epoch == of.top:
            return of.newest
        at = of.columns.find(epoch)
        if at < 0:
            return None
        place = of.columns.place(at)
        return Begun(place, of.columns.begin(at), self._writer_of(place.segment))

    def top(self, namespace: str, partition: int) -> int:
        """Return the highest epoch of which a begin is published, 0 if none."""
        of = self._partitions.get((namespace, partition))
        return 0 if of is None else of.top

    def released(self, namespace: str, partition: int, epoch: int) -> bool:
        """Return whether the epoch's owner gave the partition up. Of the highest epochs only, since the log was opened."""
        return (namespace, partition, epoch) in self._released

    def ends(self, namespace: str, partition: int, epoch: int) -> dict[str, int]:
        """Return topic → next offset after everything published in this epoch. Changes with the next refresh.

        Of the epoch that was the highest with a begin when the log was opened, and those above it.
        """
        return self._ends.get((namespace, partition, epoch), {})

    def _begins(self, namespace: str, partition: int, epoch: int, begun: Begun) -> None:
        self.fresh.append((namespace, partition, epoch, begun))
        of = self._partitions.get((namespace, partition))
        if of is None:
            of = self._partitions[namespace, partition] = _Partition()
        if of.columns.add(epoch, begun.place, begun.begin) and epoch > of.top:
            of.top, of.newest = epoch, begun

    def note(self, namespace: str, writer: str, place: Place, header: BatchHeader) -> None:
        """Take in a batch that was found published."""
        for section in header.sections:
            if section.epoch is None:
                continue
            key = (namespace, section.partition, section.epoch)
            ends = self._ends.get(key)
            if ends is None:
                ends = self._ends[key] = {}
            if section.begin is not None:
                self._begins(*key, Begun(place, section.begin, writer))
                raise_ends(ends, section.begin.offsets)
            if section.release:
                self._released.add(key)
            for topic, _, offset, count in section.groups:
                if offset is not None and offset + count > ends.get(topic, -1):
                    ends[topic] = offset + count

    def note_index(self, namespace: str, writer: str, number: int, index: SegmentIndex) -> None:
        """Take in a whole segment by its index."""
        for (partition, epoch), notes in index.epochs.items():
            key = (namespace, partition, epoch)
            ends = self._ends.setdefault(key, {})
            if notes.begin is not None:
                self._begins(*key, Begun(Place(number, notes.begin_batch), notes.begin, writer))
                raise_ends(ends, notes.begin.offsets)
            if notes.released:
                self._released.add(key)
            raise_ends(ends, notes.ends)

    def note_mark(self, namespace: str, partition: int, marked: MarkedEpochs, segments: Container[int]) -> None:
        """Take in what a mark says of a partition, before anything else of it. ``segments``: those of the mark.

        What goes on from a segment that the mark does not name counts as found just now: whether it holds that is not known.
        """
        columns = marked.begins.copy()
        if marked.top:
            key = (namespace, partition, marked.top)
            self._ends[key] = dict(marked.ends)
            if marked.released:
                self._released.add(key)
        if not columns.epochs:
            return
        of = self._partitions[namespace, partition] = _Partition(columns, columns.epochs[-1])
        newest = columns.place(-1)
        of.newest = Begun(newest, columns.begin(-1), self._writer_of(newest.segment))
        self.fresh.append((namespace, partition, of.top, of.newest))  # its epoch file must be there, and all below it
        for at, segment in enumerate(columns.after_segments):
            if segment and segment not in segments:
                self.again(namespace, partition, columns.epochs[at])

    def again(self, namespace: str, partition: int, epoch: int) -> None:
        """Let a begin count as found just now."""
        begun = self.begun(namespace, partition, epoch)
        if begun is not None:
            self.fresh.append((namespace, partition, epoch, begun))

    def every(self, namespace: str, partition: int) -> Iterator[tuple[int, Begun]]:
        """Yield all begins of a partition, by epoch."""
        of = self._partitions.get((namespace, partition))
        for epoch in () if of is None else of.columns.epochs:
            begun = self.begun(namespace, partition, epoch)
            assert begun is not None
            yield epoch, begun

    def forget(self) -> None:
        """Let go of what is only asked of the highest epochs: called when a log was opened, and all of them are known."""
        tops = {(*key, of.top) for key, of in self._partitions.items()}
        self._ends = {key: ends for key, ends in self._ends.items() if key in tops or key[2] > self.top(*key[:2])}
        self._released = {key for key in self._released if key in tops or key[2] > self.top(*key[:2])}
