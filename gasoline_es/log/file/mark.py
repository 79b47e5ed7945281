"""The verified mark: what of a log was verified, or written by whoever says so, and what its batch headers say in sum.

It only saves time. Whoever opens the log takes in what the mark names without reading it, if the files are still the ones
that were verified; else everything is read. Two kinds of files have this form (marks.py)::

    verified/log.json           all that an opening for writing has verified
    verified/0000000042.json    one segment, by the process that wrote it: its claim is about its own bytes

One JSON line::

    {"format":1,"log":"<log id>","segments":[S,…],"topics":[{"shop.events":"ffff"},…],"epochs":[E,…],"head":"H"}

    S   [number, inode, changed_ns, kept_ns, bytes, header bytes, header digest, last, body, position, batch, batches,
         records, digest, newest, topics]
        `inode`, `changed_ns`, `kept_ns`, `bytes`: the file, when it was written to last (mtime, which a backup that is put
        back may set) and changed at all (ctime, which it cannot), how long it is. `last`, `body`: the first byte
        of the last batch's header, and the byte after it. `digest`: of that header. `topics`: an index into the list of
        that name, which has the partitions of each topic as a number in base 16. `newest`: the time of the last record; 0:
        there is none.
    E   [namespace, partition, read, seal, top, released, {topic: next offset}, [epoch,…], [segment,…], [batch,…],
         [after epoch,…], [after segment,…], [after batch,…], {topic: [offset,…]}]
        Column by column, the begins in these segments, ascending; `after` 0, 0, 0 is null, offset -1 not named. `top`: the
        highest epoch that has sections in these segments, whether it was released in them, and where its topics go on
        after them. `read`: up to this epoch every epoch file was read and fits; `seal`: of those files, what the file system
        says of them (epochs.py).
    H   as of every header line (lines.py)
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from pydantic_core import from_json, to_json

from gasoline_es.log.file.index import SegmentIndex
from gasoline_es.log.file.lines import After, Begin, Place, with_head

FORMAT: Final = 1


class MarkedSegment(NamedTuple):
    """A complete segment, every byte of which up to ``position`` was verified or written by whoever says so."""

    number: int
    inode: int
    changed_ns: int
    kept_ns: int
    bytes: int
    header_bytes: int
    header_digest: str
    last: int
    body: int
    position: int
    batch: int
    batches: int
    records: int
    digest: str
    newest_us: int
    topics: Mapping[str, int]
    """Which partitions each topic has records of: bit ``n`` for partition ``n``."""


def _ints() -> array[int]:
    return array("q")


@dataclass(slots=True)
class Columns:
    """Begins of one partition, ascending by epoch, as arrays: there are thousands, and hardly ever is one looked at."""

    epochs: array[int] = field(default_factory=_ints)
    segments: array[int] = field(default_factory=_ints)
    batches: array[int] = field(default_factory=_ints)
    after_epochs: array[int] = field(default_factory=_ints)
    after_segments: array[int] = field(default_factory=_ints)
    after_batches: array[int] = field(default_factory=_ints)
    offsets: dict[str, array[int]] = field(default_factory=dict[str, "array[int]"])

    def _numbers(self) -> tuple[array[int], ...]:
        return (
            self.epochs,
            self.segments,
            self.batches,
            self.after_epochs,
            self.after_segments,
            self.after_batches,
            *self.offsets.values(),
        )

    def copy(self) -> Columns:
        """Return columns that can be added to without changing these."""
        return _columns([column[:] for column in self._numbers()[:6]], {t: each[:] for t, each in self.offsets.items()})

    def find(self, epoch: int) -> int:
        """Return where the epoch's begin is, -1 if it is not here."""
        at = bisect_left(self.epochs, epoch)
        return at if at < len(self.epochs) and self.epochs[at] == epoch else -1

    def add(self, epoch: int, place: Place, begin: Begin) -> bool:
        """Take in a begin; False if the epoch has one already, which stays."""
        at = len(self.epochs)
        if at and self.epochs[-1] >= epoch:
            at = bisect_left(self.epochs, epoch)
            if self.epochs[at] == epoch:
                return False
        for topic in begin.offsets.keys() - self.offsets.keys():
            self.offsets[topic] = array("q", [-1]) * len(self.epochs)
        after = begin.after or After(0, Place(0, 0))
        values = (epoch, place.segment, place.batch, after.epoch, after.place.segment, after.place.batch)
        named = [begin.offsets.get(topic, -1) for topic in self.offsets]
        for column, value in zip(self._numbers(), (*values, *named), strict=True):
            column.insert(at, value)
        return True

    def place(self, at: int) -> Place:
        """Return where a begin is on the log."""
        return Place(self.segments[at], self.batches[at])

    def begin(self, at: int) -> Begin:
        """Return a begin."""
        after = None
        if self.after_epochs[at]:
            after = After(self.after_epochs[at], Place(self.after_segments[at], self.after_batches[at]))
        offsets = {topic: column[at] for topic, column in self.offsets.items()}
        return Begin(after, {topic: offset for topic, offset in offsets.items() if offset >= 0})

    def encoded(self) -> list[Any]:
        """Return the columns as JSON values."""
        ints = [column.tolist() for column in self._numbers()[:6]]
        return [*ints, {topic: column.tolist() for topic, column in self.offsets.items()}]

    @staticmethod
    def decoded(ints: list[list[int]], offsets: dict[str, list[int]]) -> Columns:
        """Return the columns of JSON values. Raises: ValueError unless they fit together."""
        columns = _columns([array("q", each) for each in ints], {t: array("q", each) for t, each in offsets.items()})
        if len({len(each) for each in columns._numbers()}) != 1 or any(
            low >= high for low, high in zip(columns.epochs, columns.epochs[1:], strict=False)
        ):
            raise ValueError("columns of a mark do not fit together")
        return columns


def _columns(ints: list[array[int]], offsets: dict[str, array[int]]) -> Columns:
    epochs, segments, batches, after_epochs, after_segments, after_batches = ints
    return Columns(epochs, segments, batches, after_epochs, after_segments, after_batches, offsets)


@dataclass(slots=True)
class MarkedEpochs:
    """What the marked segments say of one partition's epochs."""

    read: int = 0
    seal: str = ""
    top: int = 0
    released: bool = False
    ends: dict[str, int] = field(default_factory=dict[str, int])
    begins: Columns = field(default_factory=Columns)


@dataclass(slots=True)
class Mark:
    """See the module."""

    log_id: str
    segments: dict[int, MarkedSegment] = field(default_factory=dict[int, MarkedSegment])
    epochs: dict[tuple[str, int], MarkedEpochs] = field(default_factory=dict[tuple[str, int], MarkedEpochs])
    merged: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])
    """The begins (namespace, partition, epoch) of marks that were merged into it: no opening has compared them yet."""

    def add(self, segment: MarkedSegment, namespace: str, index: SegmentIndex) -> None:
        """Take in a segment. In which order segments come does not matter."""
        self.segments[segment.number] = segment
        for (partition, epoch), notes in index.epochs.items():
            marked = self.epochs.get((namespace, partition))
            if marked is None:
                marked = self.epochs[namespace, partition] = MarkedEpochs()
            if notes.begin is not None:
                marked.begins.add(epoch, Place(segment.number, notes.begin_batch), notes.begin)
            if epoch > marked.top:
                marked.top, marked.released, marked.ends = epoch, False, {}
            if epoch == marked.top:
                marked.released = marked.released or notes.released
                if notes.begin is not None:
                    raise_ends(marked.ends, notes.begin.offsets)
                raise_ends(marked.ends, notes.ends)

    def merge(self, other: Mark) -> None:
        """Take in a mark of other segments: what it says of them, not of the epoch files."""
        self.segments |= other.segments
        for key, theirs in other.epochs.items():
            marked = self.epochs.setdefault(key, MarkedEpochs())
            for at, epoch in enumerate(theirs.begins.epochs):
                if marked.begins.add(epoch, theirs.begins.place(at), theirs.begins.begin(at)):
                    self.merged.append((*key, epoch))
            if theirs.top > marked.top:
                marked.top, marked.released, marked.ends = theirs.top, theirs.released, dict(theirs.ends)
            elif theirs.top == marked.top:
                marked.released = marked.released or theirs.released
                raise_ends(marked.ends, theirs.ends)


def raise_ends(ends: dict[str, int], others: Mapping[str, int]) -> None:
    """Take in where topics go on, from any other part of the same epoch: offsets only grow in it."""
    for topic, end in others.items():
        if end > ends.get(topic, -1):
            ends[topic] = end


def encode_mark(mark: Mark) -> bytes:
    """Return the bytes of a mark's file."""
    topics: list[dict[str, str]] = []
    known: dict[tuple[tuple[str, int], ...], int] = {}
    segments: list[Any] = []
    for number in sorted(mark.segments):
        segment = mark.segments[number]
        key = tuple(sorted(segment.topics.items()))
        if key not in known:
            known[key] = len(topics)
            topics.append({topic: f"{partitions:x}" for topic, partitions in key})
        segments.append([*segment[:-1], known[key]])
    members = {
        "format": FORMAT,
        "log": mark.log_id,
        "segments": segments,
        "topics": topics,
        "epochs": [
            [*key, of.read, of.seal, of.top, of.released, of.ends, *of.begins.encoded()]
            for key, of in sorted(mark.epochs.items())
        ],
    }
    return with_head(to_json(members)[:-1])[0]


def decode_mark(log_id: str, data: bytes) -> Mark | None:
    """Return the mark, or None if the bytes are not a whole mark of this log in a form that is known."""
    core, found, _ = data.rpartition(b',"head":"')
    if not found or with_head(core)[0] != data:
        return None
    try:
        members = cast(dict[str, Any], from_json(data))
        if members["format"] != FORMAT or members["log"] != log_id:
            return None
        mark = Mark(log_id)
        topics = [{topic: int(bits, 16) for topic, bits in each.items()} for each in members["topics"]]
        for values in members["segments"]:
            mark.segments[values[0]] = MarkedSegment._make([*values[:-1], topics[values[-1]]])
        mark.epochs.update(_epochs(members["epochs"]))
        return mark
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
        return None


def _epochs(members: list[Any]) -> Iterator[tuple[tuple[str, int], MarkedEpochs]]:
    for namespace, partition, read, seal, top, released, ends, *ints, offsets in members:
        yield (namespace, partition), MarkedEpochs(read, seal, top, released, ends, Columns.decoded(ints, offsets))
