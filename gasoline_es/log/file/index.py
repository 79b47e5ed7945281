"""The sparse index of a segment: where in it a topic's partition has records, one entry for every 64 KiB or more.

In memory while a segment grows; beside it as ``segments/<number>.index`` once it is complete. The file only saves time: it
is never synced, checks itself, and is built anew from the segment when it is missing or damaged. One JSON line::

    {"segment":42,"bytes":N,"batch":4790,"batches":80,"records":812,"digest":"D","torn":0,
     "epochs":[[partition,epoch,begin or null,released,{topic:next offset}],…],
     "runs":[[topic,partition,epoch,[offset,position,…]],…],"tails":[[topic,partition,[batch,position,…]],…],"head":"H"}
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from pydantic_core import from_json, to_json

from gasoline_es.log.file.compacted import Compacted
from gasoline_es.log.file.lines import BatchHeader, Begin, begin_members, decode_begin, with_head

_K = TypeVar("_K")
SPACING_BYTES: Final = 64 * 1024
"""A batch that begins so far behind the last one noted, or farther, is noted."""
_SIZE_MAX: Final = 256 * 1024 * 1024


@dataclass(slots=True)
class Places:
    """Ascending (ordinal, position) pairs, sparse. Arrays: lists of ints take two to three times as much."""

    ordinals: array[int] = field(default_factory=lambda: array("q"))
    positions: array[int] = field(default_factory=lambda: array("q"))

    def add(self, ordinal: int, position: int) -> None:
        """Note a batch unless the last one noted is near."""
        if not self.positions or position - self.positions[-1] >= SPACING_BYTES:
            self.ordinals.append(ordinal)
            self.positions.append(position)

    def at(self, ordinal: int) -> int:
        """Return the position of a batch at or before the one that has ``ordinal``."""
        return self.positions[max(0, bisect_right(self.ordinals, ordinal) - 1)]


@dataclass(slots=True)
class EpochNotes:
    """What a segment says about one epoch of one partition."""

    begin: Begin | None = None
    begin_batch: int = 0
    released: bool = False
    ends: dict[str, int] = field(default_factory=dict[str, int])
    """topic → the offset after the last record of this epoch in this segment."""


@dataclass(slots=True)
class SegmentIndex:
    """All of a segment's index. ``runs``: (topic, partition, epoch) → by offset; ``tails``: (topic, partition) → by batch."""

    position: int = 0
    batch: int = 0
    batches: int = 0
    records: int = 0
    digest: str = ""
    torn: int = 0
    epochs: dict[tuple[int, int], EpochNotes] = field(default_factory=dict[tuple[int, int], EpochNotes])
    runs: dict[tuple[str, int, int], Places] = field(default_factory=dict[tuple[str, int, int], Places])
    tails: dict[tuple[str, int], Places] = field(default_factory=dict[tuple[str, int], Places])

    def add(self, header: BatchHeader) -> None:
        """Note a batch that was just found published."""
        for section in header.sections:
            notes: EpochNotes | None = None
            if section.epoch is not None:
                epoch = (section.partition, section.epoch)
                notes = self.epochs.get(epoch)
                if notes is None:
                    notes = self.epochs[epoch] = EpochNotes()
                if section.begin is not None:
                    notes.begin, notes.begin_batch = section.begin, header.number
                notes.released = notes.released or section.release
            for topic, _, offset, count in section.groups:
                if offset is not None and notes is not None:
                    notes.ends[topic] = (
                        offset + count
                    )  # also where the records are gone: the next one's number is above
            for (topic, partition, offset, count), _, _ in section.pieces():
                self.records += count
                _places_of(self.tails, (topic, partition)).add(header.number, header.position)
                if offset is not None and section.epoch is not None:
                    _places_of(self.runs, (topic, partition, section.epoch)).add(offset, header.position)
        self.position, self.batch, self.digest = header.end, header.number, header.digest
        self.batches += 1

    @property
    def size(self) -> int:
        """Return about how many bytes of memory it takes."""
        places = [*self.runs.values(), *self.tails.values()]
        return 400 * (len(places) + len(self.epochs)) + 16 * sum([len(each.positions) for each in places])

    @property
    def topics(self) -> dict[str, int]:
        """Return which partitions each topic has records of: bit ``n`` for partition ``n``."""
        found: dict[str, int] = {}
        for topic, partition in self.tails:
            found[topic] = found.get(topic, 0) | 1 << partition
        return found


def _places_of(known: dict[_K, Places], key: _K) -> Places:
    places = known.get(key)
    if places is None:  # not `setdefault`, which would make one for every batch
        places = known[key] = Places()
    return places


def encode_epochs(epochs: Mapping[tuple[int, int], EpochNotes]) -> list[Any]:
    """Return what a segment says about epochs, as JSON values."""
    members: list[Any] = []
    for (partition, epoch), notes in epochs.items():
        begin = None if notes.begin is None else [begin_members(notes.begin), notes.begin_batch]
        members.append([partition, epoch, begin, notes.released, notes.ends])
    return members


def decode_epochs(members: Iterable[Any]) -> dict[tuple[int, int], EpochNotes]:
    """Return the same, read back. Raises: KeyError, TypeError, ValueError."""
    epochs: dict[tuple[int, int], EpochNotes] = {}
    for partition, epoch, begin, released, ends in members:
        notes = EpochNotes(released=released, ends=dict(ends))
        if begin is not None:
            notes.begin, notes.begin_batch = decode_begin(begin[0]), begin[1]
        epochs[partition, epoch] = notes
    return epochs


def index_of_nothing(told: Compacted) -> SegmentIndex:
    """Return the index of a segment of which no record is left. Raises: KeyError, TypeError, ValueError."""
    assert told.epochs is not None
    return SegmentIndex(
        position=told.bytes,
        batch=told.batch,
        batches=told.batches,
        digest=told.digest,
        epochs=decode_epochs(told.epochs),
    )


def encode_index(number: int, index: SegmentIndex) -> bytes:
    """Return the index file's bytes."""
    members = {
        "segment": number,
        "bytes": index.position,
        "batch": index.batch,
        "batches": index.batches,
        "records": index.records,
        "digest": index.digest,
        "torn": index.torn,
        "epochs": encode_epochs(index.epochs),
        "runs": [[*key, _flat(places)] for key, places in index.runs.items()],
        "tails": [[*key, _flat(places)] for key, places in index.tails.items()],
    }
    return with_head(to_json(members)[:-1])[0]


def decode_index(number: int, data: bytes) -> SegmentIndex | None:
    """Return the index, or None if the bytes are not a whole index of this segment."""
    core, found, _ = data.rpartition(b',"head":"')
    if not found or len(data) > _SIZE_MAX or with_head(core)[0] != data:
        return None
    members = cast(dict[str, Any], from_json(data))
    if members["segment"] != number:
        return None
    index = SegmentIndex(
        position=members["bytes"],
        batch=members["batch"],
        batches=members["batches"],
        records=members["records"],
        digest=members["digest"],
        torn=members["torn"],
    )
    index.epochs = decode_epochs(members["epochs"])
    index.runs = {(topic, partition, epoch): _places(flat) for topic, partition, epoch, flat in members["runs"]}
    index.tails = {(topic, partition): _places(flat) for topic, partition, flat in members["tails"]}
    return index


def _flat(places: Places) -> list[int]:
    return [number for pair in zip(places.ordinals, places.positions, strict=True) for number in pair]


def _places(flat: Iterable[int]) -> Places:
    numbers = list(flat)
    return Places(array("q", numbers[0::2]), array("q", numbers[1::2]))
