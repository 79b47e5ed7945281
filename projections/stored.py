"""What is stored in the sequences of a partition: where it lies and by what it is found, no payloads (design §7).

In memory is what no store has yet: about 30 bytes for each event, 24 for each record, and 400 for each originator, besides the
events themselves until they are stored. The rest is asked of the store, up to the numbers that are known here.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import Any, Final, Protocol, cast

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
from projections.kept_feed import KeptFeed


class KeptSequences(Protocol):
    """What a store holds of one partition's sequences: rows of the events that are numbered up to ``base``, and maybe more."""

    def first_known(self, sequence: str, originator: str, versions: Collection[int], base: int, /) -> int | None: ...

    def of_originator(
        self,
        sequence: str,
        originator: str,
        above: int | None,
        up_to: int | None,
        base: int,
        /,
        *,
        newest_first: bool,
        limit: int | None,
    ) -> list[tuple[int, int]]:
        """Return versions and numbers, in order of version."""
        ...

    def of_kinds(self, sequence: str, kinds: Sequence[str], start: int, stop: int, limit: int, /) -> list[int]: ...

    def of_item(
        self, sequence: str, types: Sequence[str], tags: Sequence[str], after: int, base: int, limit: int | None, /
    ) -> Iterable[int]:
        """Return the numbers of what has all the tags and one of the types; some are given."""
        ...

    def located(self, sequence: str, seqs: Sequence[int], /) -> Sequence[tuple[int, int, int]]:
        """Return the records that hold these numbers, and maybe others between them: first number, offset, place."""
        ...


class StoredChanges:
    """The records that are to be stored."""

    def __init__(self, view: StoredView, records: Sequence[tuple[int, int, Stored]]) -> None:
        self.next_offset, self.stored_to = view.storable_to, view.stored_to
        self.last_place, self.last_record = view.last_place, view.last_record
        self.records = records
        """Each with its offset and its place, without payloads."""

    def __len__(self) -> int:
        return 0

    def make(self, count: int) -> None:
        """Do nothing: they are made."""


class _Sequence:
    """The end of a sequence, behind the event of number ``base``: it begins with the next one.

    The event of number n is at index n - base - 1 of ``kinds``; the arrays of records have one item for each.
    """

    __slots__ = (
        "base",
        "by_kind",
        "by_tag",
        "end",
        "firsts",
        "kind_numbers",
        "kinds",
        "offsets",
        "originators",
        "places",
    )

    def __init__(self, base: int) -> None:
        self.base = base
        self.end = base
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


class StoredView(KeptFeed):
    """All sequences of one partition. Folded from durable events only, in order of offset."""

    def __init__(self, kept: KeptSequences | None = None) -> None:
        super().__init__(kept=kept is not None)
        self.unreadable: str | None = None
        """Why what is here cannot be relied on: an event of it does not read. Nothing is stored behind it."""
        self._unreadable_at: int | None = None
        self._store = kept
        self._bases: dict[str, int] = {}
        """The number of the last event of each sequence that the store is asked for."""
        self._sequences: dict[str, _Sequence] = {}
        """What comes behind these."""
        self._tracked: dict[str, int] = {}
        self._unsaved: list[tuple[int, int, Stored]] = []
        """The records that are in memory because no store has them: each with its offset and its place."""
        self._unsaved_events = 0

    # --- folding ------------------------------------------------------------------------------------------------------

    def apply(self, offset: int, place: int, stored: Stored) -> None:
        """Fold what the record at ``offset`` holds, which lies at ``place``. Raises: ValueError: its numbers do not follow."""
        assert offset >= self.next_offset, "an event is folded once"
        self.next_offset = offset + 1
        sequence, first, _, _, events = stored
        known = self._tail(sequence)
        if first != known.end + 1:
            raise ValueError(f"event {first} of the sequence {sequence!r} follows event {known.end}")
        known.add(offset, place, events)
        for data in events:
            if not isinstance(data, TrackingStored):
                break  # records hold events of one kind
            self._tracked[data.application] = data.notification_id
        if self._kept and self._unreadable_at is None:
            self._unsaved.append((offset, place, _stripped(stored)))
            self._unsaved_events += len(events)

    def _tail(self, sequence: str) -> _Sequence:
        known = self._sequences.get(sequence)
        if known is None:
            known = self._sequences[sequence] = _Sequence(self._bases.get(sequence, 0))
        return known

    def fold(self, records: Iterable[Record]) -> None:
        """Fold events as they are read from the log, from :attr:`next_offset` on."""
        for record in records:
            if record.value is None or record.offset is None:
                continue
            try:
                self.apply(record.offset, record.place, decode_stored(record.value))
            except ValueError as error:
                self.next_offset = record.offset + 1
                if self.unreadable is None:
                    self.unreadable = f"the event at offset {record.offset} does not read: {error}"
                    self._unreadable_at = record.offset
            self.stands_at(record.place, record.key, record.value)

    def stands_at(self, place: int, key: str, value: bytes | None) -> None:
        if self._unreadable_at is None:
            super().stands_at(place, key, value)

    # --- the store ----------------------------------------------------------------------------------------------------

    def load(self, next_offset: int, ends: Mapping[str, int], tracked: Mapping[str, int]) -> None:
        """Begin where the store stands."""
        assert not self.next_offset, "what was folded before is known"
        self.next_offset = self.stored_to = next_offset
        self._bases.update(ends)
        self._tracked.update(tracked)

    @property
    def storable_to(self) -> int:
        """The offset up to which it can be stored: what does not read now may, in a newer version."""
        return self.next_offset if self._unreadable_at is None else self._unreadable_at

    @property
    def unsaved(self) -> int:
        """How many events are in memory because no store has them."""
        return self._unsaved_events

    def changes(self) -> StoredChanges:
        """Begin to bring the store up to where this stands now. To be ended by :meth:`saved` or :meth:`not_saved`."""
        return StoredChanges(self, list(self._unsaved))

    def saved(self, stored_to: int, told: None = None) -> None:
        """The rows are in the store, which stands at ``stored_to``, by this process or by another one that is ahead."""
        self._let_go(min(stored_to, self.storable_to))

    def not_saved(self) -> None:
        """The rows are not in the store."""

    def saved_elsewhere(self, stored_to: int) -> None:
        """Another process has stored rows: the store stands at ``stored_to``."""
        self._let_go(min(stored_to, self.storable_to))

    def _let_go(self, stored_to: int) -> None:
        """Let go of what lies before an offset: the store is asked for it from now on."""
        if not self._kept or stored_to <= self.stored_to:
            return
        self.stored_to = stored_to
        count = bisect_left(self._unsaved, stored_to, key=_offset)
        for _, _, (sequence, first, _, _, events) in self._unsaved[:count]:
            self._bases[sequence] = first + len(events) - 1
        del self._unsaved[:count]
        self._sequences = {}
        self._unsaved_events = 0
        for offset, place, (sequence, _, _, _, events) in self._unsaved:
            self._tail(sequence).add(offset, place, events)
            self._unsaved_events += len(events)

    # --- asking -------------------------------------------------------------------------------------------------------

    def end(self, sequence: str) -> int:
        """Return the number of the last event, 0 if there is none."""
        known = self._sequences.get(sequence)
        return self._bases.get(sequence, 0) if known is None else known.end

    def first_known(self, sequence: str, originator: str, versions: Collection[int]) -> int | None:
        """Return one of these versions of an originator that is there, None if none is."""
        known, base = self._sequences.get(sequence), self._bases.get(sequence, 0)
        if known is not None and originator in known.originators:
            there, _ = known.originators[originator]
            for version in versions:
                if version <= there[-1] and _holds(there, version):
                    return version
        if self._store is not None and base and versions:
            return self._store.first_known(sequence, originator, versions, base)
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
        known, base = self._sequences.get(sequence), self._bases.get(sequence, 0)
        found: list[tuple[int, int]] = []
        if self._store is not None and base:
            found = self._store.of_originator(
                sequence, originator, above, up_to, base, newest_first=newest_first, limit=limit
            )
        if known is not None and originator in known.originators:
            versions, seqs = known.originators[originator]
            start = 0 if above is None else bisect_right(versions, above)
            stop = len(versions) if up_to is None else bisect_right(versions, up_to)
            places = islice(range(stop - 1, start - 1, -1) if newest_first else range(start, stop), limit)
            found = list(merge(found, [(versions[at], seqs[at]) for at in places], reverse=newest_first))
        return [seq for _, seq in islice(found, limit)]

    def of_kinds(self, sequence: str, kinds: Sequence[str], start: int, stop: int | None, limit: int) -> list[int]:
        """Return at most ``limit`` numbers with ``start <= number < stop`` of events of one of these kinds; of all if none."""
        known, base = self._sequences.get(sequence), self._bases.get(sequence, 0)
        end = self.end(sequence) + 1
        stop = end if stop is None else min(stop, end)
        if not kinds:
            return list(islice(range(max(start, 1), stop), limit))
        found: list[int] = []
        if self._store is not None and start <= base:
            found = self._store.of_kinds(sequence, kinds, start, min(stop, base + 1), limit)
        if known is not None and len(found) < limit:
            of_kind = [known.by_kind[kind] for kind in dict.fromkeys(kinds) if kind in known.by_kind]
            found += islice(merge(*(_between(numbers, start, stop) for numbers in of_kind)), limit - len(found))
        return found

    def matching(self, sequence: str, query: Query, after: int, limit: int | None) -> list[int]:
        """Return at most ``limit`` numbers above ``after`` of decisions that match, ascending."""
        if not query.items or any(not types and not tags for types, tags in query.items):
            return list(islice(range(max(after, 0) + 1, self.end(sequence) + 1), limit))
        known, base = self._sequences.get(sequence), self._bases.get(sequence, 0)
        parts: list[Iterable[int]] = []
        if (store := self._store) is not None and after < base:
            parts.append(
                merge(*(store.of_item(sequence, types, tags, after, base, limit) for types, tags in query.items))
            )
        if known is not None:
            parts.append(merge(*(_of_item(known, types, tags, after) for types, tags in query.items)))
        return list(islice(_once(chain(*parts)), limit))

    def located(self, sequence: str, seqs: Sequence[int]) -> tuple[list[int], list[int], list[list[int]]]:
        """Return where the events of these ascending numbers are, all of which must be there.

        By record: their offsets, their places, and which of the numbers each of them holds.
        """
        known, base = self._sequences.get(sequence), self._bases.get(sequence, 0)
        split = bisect_right(seqs, base)
        records: list[tuple[int, int, int]] = []
        if self._store is not None and split:
            records += self._store.located(sequence, seqs[:split])
        if known is not None and split < len(seqs):
            start = bisect_right(known.firsts, seqs[split]) - 1
            stop = bisect_right(known.firsts, seqs[-1])
            records += zip(known.firsts[start:stop], known.offsets[start:stop], known.places[start:stop], strict=True)
        offsets: list[int] = []
        places: list[int] = []
        held: list[list[int]] = []
        begin = 0
        for at, (_, offset, place) in enumerate(records):
            end = len(seqs) if at + 1 == len(records) else bisect_left(seqs, records[at + 1][0], begin)
            if end > begin:
                offsets.append(offset)
                places.append(place)
                held.append(list(seqs[begin:end]))
            begin = end
        return offsets, places, held


def _offset(unsaved: tuple[int, int, Stored]) -> int:
    return unsaved[0]


def _of_item(known: _Sequence, types: Sequence[str], tags: Sequence[str], after: int) -> Iterator[int]:
    """Yield the numbers above ``after`` of what has all the tags and one of the types, ascending."""
    if not tags:
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
        if types and known.kinds[seq - known.base - 1] not in wanted:
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


def _stripped(stored: Stored) -> Stored:
    """Return what a record holds without payloads, which no row has."""
    sequence, first, time_us, request, events = stored
    bare: Sequence[StoredData] = events
    match events[0]:
        case EventStored():
            bare = [EventStored(*one[:4], b"") for one in cast(Sequence[EventStored], events)]
        case DecisionStored():
            bare = [DecisionStored(*one[:2], b"") for one in cast(Sequence[DecisionStored], events)]
        case TrackingStored():
            pass
    return Stored(sequence, first, time_us, request, bare)
