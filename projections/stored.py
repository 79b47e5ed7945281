"""What is stored in the sequences of a partition: where it lies and by what it is found, no payloads (design §7).

About 30 bytes for each event, 24 for each record, and 400 for each originator.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, Final, cast

from gasoline_es.core.stored_events import (
    DecisionStored,
    EventStored,
    Stored,
    StoredData,
    TrackingStored,
    decode_stored,
)
from gasoline_es.core.storing import Query
from gasoline_es.log.port import Record


class _Sequence:
    """One sequence. The event of number n is at index n - 1 of ``kinds``; the arrays of records have one item for each."""

    __slots__ = ("by_kind", "by_tag", "end", "firsts", "kind_numbers", "kinds", "offsets", "originators", "places")

    def __init__(self) -> None:
        self.end = 0
        """The number of the last event."""
        self.firsts = array("q")
        """The number of the first event of each record, ascending."""
        self.offsets = array("q")
        self.places = array("q")
        self.kinds = array("I")
        """The number of the kind (an event's topic, a decision's type) of each."""
        self.kind_numbers: dict[str, int] = {}
        self.by_kind: dict[str, array[int]] = {}
        """Kind → the numbers of its events, ascending."""
        self.by_tag: dict[str, array[int]] = {}
        self.originators: dict[str, tuple[array[int], array[int]]] = {}
        """Originator → its versions, ascending, and the number of each."""

    def add(self, offset: int, place: int, events: Sequence[StoredData]) -> None:
        """Take in what the next record holds."""
        seq = self.end
        self.firsts.append(seq + 1)
        self.offsets.append(offset)
        self.places.append(place)
        # By runs: the events of one record are mostly of one originator, and of few kinds.
        for kind, run in groupby(map(_KIND[type(events[0])], events)):
            count = len(list(run))
            self.kinds.extend(array("I", (self.kind_numbers.setdefault(kind, len(self.kind_numbers)),)) * count)
            of_kind = self.by_kind.get(kind)
            if of_kind is None:
                of_kind = self.by_kind[kind] = array("q")
            of_kind.extend(range(seq + 1, seq + count + 1))
            seq += count
        if isinstance(events[0], EventStored):
            self._add_versions(events)
        elif isinstance(events[0], DecisionStored):
            self._add_tags(events)
        self.end = seq

    def _add_versions(self, events: Sequence[StoredData]) -> None:
        seq = self.end
        for originator, run in groupby(cast(Sequence[EventStored], events), _originator):
            added = [event.version for event in run]
            known = self.originators.get(originator)
            if known is None:
                known = self.originators[originator] = (array("q"), array("q"))
            versions, seqs = known
            if (not versions or versions[-1] < added[0]) and sorted(added) == added:
                versions.extend(added)
                seqs.extend(range(seq + 1, seq + len(added) + 1))
            else:
                for its_seq, version in enumerate(added, seq + 1):
                    at = bisect_left(versions, version)
                    versions.insert(at, version)
                    seqs.insert(at, its_seq)
            seq += len(added)

    def _add_tags(self, events: Sequence[StoredData]) -> None:
        for seq, data in enumerate(cast(Sequence[DecisionStored], events), self.end + 1):
            for tag in frozenset(data.tags):
                self.by_tag.setdefault(tag, array("q")).append(seq)


_originator = attrgetter("originator")


_KIND: Final[dict[type[StoredData], Callable[[Any], str]]] = {
    EventStored: attrgetter("topic"),
    DecisionStored: attrgetter("type"),
    TrackingStored: lambda _: "",
}
"""By what the events of a kind are found."""


class StoredView:
    """All sequences of one partition. Folded from durable events only, in order of offset."""

    def __init__(self) -> None:
        self.next_offset = 0
        """The offset of the next event to fold."""
        self.unreadable: str | None = None
        """Why what is here cannot be relied on: an event of it does not read. Nothing is stored behind it."""
        self._sequences: dict[str, _Sequence] = {}
        self._tracked: dict[str, int] = {}

    def apply(self, offset: int, place: int, stored: Stored) -> None:
        """Fold what the record at ``offset`` holds, which lies at ``place``. Raises: ValueError: its numbers do not follow."""
        assert offset >= self.next_offset, "an event is folded once"
        self.next_offset = offset + 1
        sequence, first, _, _, events = stored
        known = self._sequences.get(sequence)
        if known is None:
            known = self._sequences[sequence] = _Sequence()
        if first != known.end + 1:
            raise ValueError(f"event {first} of the sequence {sequence!r} follows event {known.end}")
        known.add(offset, place, events)
        for data in events:
            if not isinstance(data, TrackingStored):
                break  # records hold events of one kind
            self._tracked[data.application] = data.notification_id

    def fold(self, records: Iterable[Record]) -> None:
        """Fold events as they are read from the log, from :attr:`next_offset` on."""
        for record in records:
            if record.value is None or record.offset is None:
                continue
            try:
                self.apply(record.offset, record.place, decode_stored(record.value))
            except ValueError as error:
                self.unreadable = self.unreadable or f"the event at offset {record.offset} does not read: {error}"
                self.next_offset = record.offset + 1

    def end(self, sequence: str) -> int:
        """Return the number of the last event, 0 if there is none."""
        known = self._sequences.get(sequence)
        return 0 if known is None else known.end

    def first_known(self, sequence: str, originator: str, versions: Collection[int]) -> int | None:
        """Return one of these versions of an originator that is there, None if none is."""
        known = self._sequences.get(sequence)
        if known is None or originator not in known.originators:
            return None
        there, _ = known.originators[originator]
        for version in versions:
            if version <= there[-1] and _holds(there, version):
                return version
        return None

    def tracked(self, application: str) -> int | None:
        """Return up to which notification an application's were processed."""
        return self._tracked.get(application)

    def of_originator(
        self,
        sequence: str,
        originator: str,
        above: int | None,
        up_to: int | None,
        *,
        newest_first: bool,
        limit: int | None,
    ) -> list[int]:
        """Return the numbers of an originator's events in order of version, with ``above < version <= up_to``."""
        known = self._sequences.get(sequence)
        if known is None or originator not in known.originators:
            return []
        versions, seqs = known.originators[originator]
        start = 0 if above is None else bisect_right(versions, above)
        stop = len(versions) if up_to is None else bisect_right(versions, up_to)
        found = range(start, stop)
        return [seqs[at] for at in islice(reversed(found) if newest_first else found, limit)]

    def of_kinds(self, sequence: str, kinds: Sequence[str], start: int, stop: int | None, limit: int) -> list[int]:
        """Return at most ``limit`` numbers with ``start <= number < stop`` of events of one of these kinds; of all if none."""
        known = self._sequences.get(sequence)
        if known is None:
            return []
        end = known.end + 1
        stop = end if stop is None else min(stop, end)
        if not kinds:
            return list(islice(range(max(start, 1), stop), limit))
        of_kind = [known.by_kind[kind] for kind in dict.fromkeys(kinds) if kind in known.by_kind]
        return list(islice(merge(*(_between(numbers, start, stop) for numbers in of_kind)), limit))

    def matching(self, sequence: str, query: Query, after: int, limit: int | None) -> list[int]:
        """Return at most ``limit`` numbers above ``after`` of decisions that match, ascending."""
        known = self._sequences.get(sequence)
        if known is None:
            return []
        if not query.items:
            return list(islice(range(max(after, 0) + 1, known.end + 1), limit))
        found = merge(*(_of_item(known, types, tags, after) for types, tags in query.items))
        return list(islice(_once(found), limit))

    def located(self, sequence: str, seqs: Sequence[int]) -> tuple[list[int], list[int], list[list[int]]]:
        """Return where the events of these ascending numbers are, all of which must be there.

        By record: their offsets, their places, and which of the numbers each of them holds.
        """
        known = self._sequences[sequence]
        firsts = known.firsts
        offsets: list[int] = []
        places: list[int] = []
        held: list[list[int]] = []
        start, stop = 0, len(seqs)
        while start < stop:
            at = bisect_right(firsts, seqs[start]) - 1
            end = stop if at + 1 == len(firsts) else bisect_left(seqs, firsts[at + 1], start)
            offsets.append(known.offsets[at])
            places.append(known.places[at])
            held.append(list(seqs[start:end]))
            start = end
        return offsets, places, held


def _of_item(known: _Sequence, types: Sequence[str], tags: Sequence[str], after: int) -> Iterator[int]:
    """Yield the numbers above ``after`` of what has all the tags and one of the types, ascending."""
    if not tags:
        if not types:
            yield from range(max(after, 0) + 1, known.end + 1)
            return
        of_kind = [known.by_kind[kind] for kind in dict.fromkeys(types) if kind in known.by_kind]
        yield from merge(*(_between(numbers, after + 1, known.end + 1) for numbers in of_kind))
        return
    tagged = [known.by_tag.get(tag) for tag in dict.fromkeys(tags)]
    having = [numbers for numbers in tagged if numbers is not None]
    if len(having) < len(tagged):
        return
    having.sort(key=len)
    wanted = {known.kind_numbers[kind] for kind in types if kind in known.kind_numbers}
    rarest = having[0]
    for at in range(bisect_right(rarest, after), len(rarest)):
        seq = rarest[at]
        if types and known.kinds[seq - 1] not in wanted:
            continue
        if all(_holds(numbers, seq) for numbers in having[1:]):
            yield seq


def _between(numbers: array[int], start: int, stop: int) -> Iterator[int]:
    """Yield those with ``start <= number < stop``, without a copy of them: most callers take the first few."""
    for at in range(bisect_left(numbers, start), bisect_left(numbers, stop)):
        yield numbers[at]


def _holds(numbers: array[int], number: int) -> bool:
    at = bisect_left(numbers, number)
    return at < len(numbers) and numbers[at] == number


def _once(numbers: Iterable[int]) -> Iterator[int]:
    last = 0
    for number in numbers:
        if number != last:
            yield number
        last = number
