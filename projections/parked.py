"""Parked signals: where each one of a partition stands, and which a workflow would get (design §7)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping

from gasoline_es.core.parked import ENDED_REMEMBERED, ENDED_REMEMBERED_US, Ended, Parked, fold_parked
from gasoline_es.core.parked_events import ParkedEvent, decode_parked_event
from projections.standing import StandingRow, StandingView

_Key = tuple[str, ...]


class ParkedView(StandingView[ParkedEvent, Parked | Ended]):
    """Parked signals by id; of those that ended, what is remembered, which takes a third of a kilobyte each."""

    def __init__(self, *, kept: bool = False) -> None:
        super().__init__(decode_parked_event, fold_parked, kept=kept)
        self._order: dict[str, int] = {}
        """The live ones, each with the offset at which it was parked."""
        self._by_tag: dict[_Key, dict[str, None]] = {}
        """The live ones by the workflow's name and one of their tags; without tags, by the name."""
        self._ended: OrderedDict[str, int] = OrderedDict()
        """Those that are remembered, in the order of their ends, each with the offset of its end."""

    def apply(self, offset: int, event: ParkedEvent) -> None:
        """Fold the event at ``offset``."""
        super().apply(offset, event)
        parked = self._subjects[event.subject]
        assert isinstance(parked, Parked)  # what a fold gives
        self._ended.pop(parked.id, None)  # it may have been parked anew, by an owner that remembered less
        if parked.live:
            if parked.id not in self._order:
                self._found_by(parked, offset)
        elif parked.id in self._order:
            del self._order[parked.id]
            bucket = self._by_tag[_key(parked)]
            del bucket[parked.id]
            if not bucket:
                del self._by_tag[_key(parked)]
        if (ended := parked.ended) is not None:
            self._subjects[parked.id] = ended
            self._ended[parked.id] = offset
            self._forget(event.time_us)

    def _found_by(self, parked: Parked, offset: int) -> None:
        self._order[parked.id] = offset
        self._by_tag.setdefault(_key(parked), {})[parked.id] = None

    def _forget(self, now_us: int) -> None:
        while len(self._ended) > ENDED_REMEMBERED:
            oldest = self._subjects[next(iter(self._ended))]
            assert isinstance(oldest, Ended)
            if oldest.ended_us > now_us - ENDED_REMEMBERED_US:
                break
            self._ended.popitem(last=False)
            del self._subjects[oldest.id]
            self._note(oldest.id)

    def since(self, subject: str) -> int:
        """Return the offset at which it was parked, of one that is over that of its end."""
        return self._order[subject] if subject in self._order else self._ended.get(subject, 0)

    def restore(self, row: StandingRow[Parked | Ended]) -> None:
        super().restore(row)
        parked = row.state
        if isinstance(parked, Ended):
            self._ended[row.id] = row.since
        elif parked is not None and parked.live:
            self._found_by(parked, row.since)

    def order(self, parked_id: str) -> int:
        """Return the place of a live one in the order in which they were parked."""
        return self._order[parked_id]

    def live(self) -> Iterator[Parked]:
        """Yield the live ones in the order in which they were parked."""
        return self._whole(self._order)

    def any_live(self) -> bool:
        """Whether there are any."""
        return bool(self._order)

    def waiting_for(self, name: str, tags: Mapping[str, str]) -> list[Parked]:
        """Return the live ones that are for a workflow of this name with these tags, in the order of parking."""
        keys: list[_Key] = [(name,), *((name, tag, value) for tag, value in tags.items())]
        found = self._whole(parked_id for key in keys for parked_id in self._by_tag.get(key, ()))
        return sorted((one for one in found if one.takes(name, tags)), key=lambda one: self._order[one.id])

    def _whole(self, live: Iterable[str]) -> Iterator[Parked]:
        found = map(self._subjects.__getitem__, live)
        return (one for one in found if isinstance(one, Parked))  # which live ones are


def _key(parked: Parked) -> _Key:
    tags = parked.signal.tags
    first = min(tags, default=None)
    return (parked.signal.workflow,) if first is None else (parked.signal.workflow, first, tags[first])
