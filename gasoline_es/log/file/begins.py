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


class Begins:
    """Everything known of epochs, by (namespace, partition, epoch)."""

    def __init__(self) -> None:
        self._begun: dict[tuple[str, int, int], Begun] = {}
        self._released: set[tuple[str, int, int]] = set()
        self._ends: dict[tuple[str, int, int], dict[str, int]] = {}

    def begun(self, namespace: str, partition: int, epoch: int) -> Begun | None:
        """Return the epoch's begin if it is published."""
        return self._begun.get((namespace, partition, epoch))

    def released(self, namespace: str, partition: int, epoch: int) -> bool:
        """Return whether the epoch's owner gave the partition up."""
        return (namespace, partition, epoch) in self._released

    def ends(self, namespace: str, partition: int, epoch: int) -> dict[str, int]:
        """Return topic → next offset after everything published in this epoch. Changes with the next refresh."""
        return self._ends.get((namespace, partition, epoch), {})

    def note(self, namespace: str, place: Place, header: BatchHeader) -> None:
        """Take in a batch that was found published."""
        for section in header.sections:
            if section.epoch is None:
                continue
            key = (namespace, section.partition, section.epoch)
            if section.begin is not None:
                self._begun[key] = Begun(place, section.begin)
                self._ends[key] = dict(section.begin.offsets)
            if section.release:
                self._released.add(key)
            ends = self._ends.setdefault(key, {})
            for topic, _, offset, count in section.groups:
                if offset is not None:
                    ends[topic] = offset + count

    def note_index(self, namespace: str, number: int, index: SegmentIndex) -> None:
        """Take in a whole segment by its index."""
        for (partition, epoch), notes in index.epochs.items():
            key = (namespace, partition, epoch)
            ends = self._ends.setdefault(key, {})
            if notes.begin is not None:
                self._begun[key] = Begun(Place(number, notes.begin_batch), notes.begin)
                ends.update(notes.begin.offsets)
            if notes.released:
                self._released.add(key)
            ends.update(notes.ends)
