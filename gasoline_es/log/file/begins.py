"""What published batch headers say about the epochs of partitions: begins, releases, and how far each epoch's topics go."""

from __future__ import annotations

from dataclasses import dataclass

from gasoline_es.log.file.index import SegmentIndex
from gasoline_es.log.file.lines import BatchHeader, Begin, Place


@dataclass(slots=True)
class Begun:
    """A begin that was found published."""

    place: Place
    begin: Begin
    writer: str


class Begins:
    """Everything known of epochs, by (namespace, partition, epoch)."""

    def __init__(self) -> None:
        self._begun: dict[tuple[str, int, int], Begun] = {}
        self._tops: dict[tuple[str, int], int] = {}
        self.fresh: list[tuple[str, int, int, Begun]] = []
        """Begins (namespace, partition, epoch) found since the catalog last took them from here."""
        self._released: set[tuple[str, int, int]] = set()
        self._ends: dict[tuple[str, int, int], dict[str, int]] = {}

    def begun(self, namespace: str, partition: int, epoch: int) -> Begun | None:
        """Return the epoch's begin if it is published."""
        return self._begun.get((namespace, partition, epoch))

    def top(self, namespace: str, partition: int) -> int:
        """Return the highest epoch of which a begin is published, 0 if none."""
        return self._tops.get((namespace, partition), 0)

    def released(self, namespace: str, partition: int, epoch: int) -> bool:
        """Return whether the epoch's owner gave the partition up."""
        return (namespace, partition, epoch) in self._released

    def ends(self, namespace: str, partition: int, epoch: int) -> dict[str, int]:
        """Return topic → next offset after everything published in this epoch. Changes with the next refresh."""
        return self._ends.get((namespace, partition, epoch), {})

    def _begins(self, namespace: str, partition: int, epoch: int, begun: Begun) -> None:
        self.fresh.append((namespace, partition, epoch, begun))
        self._begun.setdefault((namespace, partition, epoch), begun)
        self._tops[namespace, partition] = max(epoch, self.top(namespace, partition))

    def note(self, namespace: str, writer: str, place: Place, header: BatchHeader) -> None:
        """Take in a batch that was found published."""
        for section in header.sections:
            if section.epoch is None:
                continue
            key = (namespace, section.partition, section.epoch)
            if section.begin is not None:
                self._begins(*key, Begun(place, section.begin, writer))
                self._ends[key] = dict(section.begin.offsets)
            if section.release:
                self._released.add(key)
            ends = self._ends.setdefault(key, {})
            for topic, _, offset, count in section.groups:
                if offset is not None:
                    ends[topic] = offset + count

    def note_index(self, namespace: str, writer: str, number: int, index: SegmentIndex) -> None:
        """Take in a whole segment by its index."""
        for (partition, epoch), notes in index.epochs.items():
            key = (namespace, partition, epoch)
            ends = self._ends.setdefault(key, {})
            if notes.begin is not None:
                self._begins(*key, Begun(Place(number, notes.begin_batch), notes.begin, writer))
                ends.update(notes.begin.offsets)
            if notes.released:
                self._released.add(key)
            ends.update(notes.ends)
