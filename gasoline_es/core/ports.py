"""What the runtime needs of the projections, named here so that it need not import them (design §2)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from gasoline_es.core.events import EventData
from gasoline_es.core.filters import Filters
from gasoline_es.core.parked import Ended, Parked
from gasoline_es.core.parked_events import ParkedEvent
from gasoline_es.core.schedule_events import ScheduleEvent
from gasoline_es.core.schedules import Schedule
from gasoline_es.core.standing import StandingEvent, Stands
from gasoline_es.core.state import Status, Summary
from gasoline_es.core.stored_events import Stored
from gasoline_es.core.storing import Query

E = TypeVar("E", bound=StandingEvent[Any], contravariant=True)
S = TypeVar("S", bound=Stands, covariant=True)


@dataclass(frozen=True, slots=True)
class Located:
    """Where those events of a workflow lie that its replay needs, in order of their ``seqs``: ``offsets`` and ``places``.

    ``forgotten``: so many more it has, which replay does not look at (semantics.md §4, loops). All of them lie between the
    offsets ``first`` and ``last``. ``whole``: replay needs every one of them; none is listed, read from first to last.
    ``before``: so many events had this id before, of a workflow of which nothing is left.
    """

    seqs: Sequence[int]
    offsets: Sequence[int]
    places: Sequence[int]
    forgotten: int = 0
    first: int = 0
    last: int = -1
    whole: bool = False
    before: int = 0

    @property
    def count(self) -> int:
        """How many events the workflow has."""
        return len(self.seqs) + self.forgotten


@dataclass(frozen=True, slots=True)
class Received:
    """Where the signals lie whose ids a workflow remembers, among other events of it (design §5, "Repeats").

    ``forgotten_us``: the newest time of a signal that is not among them any more.
    """

    offsets: Sequence[int]
    places: Sequence[int]
    forgotten_us: int | None


class Foldable(Protocol):
    """What is folded from the records of one topic and partition, in order of offset."""

    next_offset: int

    def fold(self, records: Iterable[Any], /) -> None:
        """Fold events as read from the log, from ``next_offset`` on."""

    @property
    def unsaved(self) -> int:
        """How much is not stored as it stands here."""
        ...

    def saved_elsewhere(self, stored_to: int, /) -> None:
        """Another process has stored it up to this offset."""


class BesideView(Foldable, Protocol):
    """What is folded from a topic of its own, beside the events of workflows."""

    def stands_at(self, place: int, key: str, value: bytes | None, /) -> None:
        """The last record that was folded is this one. Whoever calls ``apply`` says so, before others have a turn."""


class StandingView(BesideView, Protocol[E, S]):
    """What stands beside workflows in one partition: folded from its durable events, in order of offset."""

    def apply(self, offset: int, event: E, /) -> None:
        """Fold the event at ``offset``."""

    def get(self, subject: str, /) -> S | None: ...

    def __iter__(self) -> Iterator[S]: ...


ScheduleView = StandingView[ScheduleEvent, Schedule]


class ParkedView(StandingView[ParkedEvent, Parked | Ended], Protocol):
    """The parked signals of one partition; of those that ended, what is remembered."""

    def order(self, parked_id: str, /) -> int:
        """Return the place of a live one in the order in which they were parked."""
        ...

    def live(self) -> Iterator[Parked]: ...

    def any_live(self) -> bool: ...

    def waiting_for(self, name: str, tags: Mapping[str, str], /) -> Sequence[Parked]:
        """Return the live ones that are for a workflow of this name with these tags, in the order of parking."""
        ...


class StoredView(BesideView, Protocol):
    """The sequences of one partition. Numbers are of events in their sequence, from 1."""

    unreadable: str | None
    """Why what is here cannot be relied on."""

    def apply(self, offset: int, place: int, stored: Stored, /) -> None:
        """Fold what the record at ``offset`` holds, which lies at ``place``."""

    def end(self, sequence: str, /) -> int: ...

    def first_known(self, sequence: str, originator: str, versions: Collection[int], /) -> int | None:
        """Return one of these versions that is there, None if none is."""
        ...

    def tracked(self, application: str, /) -> int | None: ...

    def of_originator(
        self,
        sequence: str,
        originator: str,
        above: int | None,
        up_to: int | None,
        /,
        *,
        newest_first: bool,
        limit: int | None,
    ) -> list[int]:
        """Return the numbers of an originator's events in order of version, with ``above < version <= up_to``."""
        ...

    def of_kinds(self, sequence: str, kinds: Sequence[str], start: int, stop: int | None, limit: int, /) -> list[int]:
        """Return at most ``limit`` numbers with ``start <= number < stop`` of events of one of these kinds; of all if none."""
        ...

    def matching(self, sequence: str, query: Query, after: int, limit: int | None, /) -> list[int]:
        """Return at most ``limit`` numbers above ``after`` of decisions that match, ascending."""
        ...

    def located(self, sequence: str, seqs: Sequence[int], /) -> tuple[list[int], list[int], list[list[int]]]:
        """Return where the events of these ascending numbers are, all of which must be there.

        By record: their offsets, their places, and which of the numbers each of them holds.
        """
        ...


class WrittenRecord(Protocol):
    """A record that is durable."""

    @property
    def key(self) -> str: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def time_us(self) -> int: ...


class RegistryView(BesideView, Protocol):
    """What stands in one partition's registry: what workers have said about what they run, and dead letters that wait."""

    @property
    def letters(self) -> Mapping[str, int]:
        """The offsets of letters that wait, by key, in the order in which they came."""
        ...

    def apply(self, records: Iterable[WrittenRecord], first_offset: int, place: int, /) -> None:
        """Fold records of the registry that have become durable one after the other, all at ``place``."""


@dataclass(frozen=True, slots=True)
class Prunable:
    """Which workflows that are over are asked for: those that ended before a time, and of which something is left to prune.

    ``name``: of which name; None: any. ``by_rule``: only those of which their definitions let something go.
    """

    before_us: int
    name: str | None = None
    by_rule: bool = True

    def match(self, summary: Summary) -> bool:
        """Tell whether a workflow is one of them."""
        return (
            summary.prune is not None
            and summary.completed_us is not None
            and summary.completed_us < self.before_us
            and (self.name is None or summary.name == self.name)
            and not (self.by_rule and summary.prune == "none")
            and summary.status in ("complete", "cancelled")
        )


OnTagged = Callable[[str, Mapping[str, str]], None]


@dataclass(frozen=True, slots=True)
class Tally:
    """How much there is in one partition, without going through it. Times are microseconds UTC.

    ``standing``: how many workflows of a name stand somewhere. ``running_since``: by name, since when the first of those
    that run does, without a pause. ``queued``: signals that are not taken, by their name. ``queued_since``: since when the
    oldest of them is.
    """

    standing: Mapping[tuple[str, Status], int]
    running_since: Mapping[str, int]
    queued: Mapping[str, int]
    queued_since: int | None


class Views(Protocol):
    """The views of one partition: folded from its durable events, in order of offset."""

    next_offset: int
    last_record: tuple[str, bytes | None]
    """Key and value of the last event that was folded. Whoever calls ``apply`` sets it, before others have a turn."""
    drifted: bool
    """Whether the store was found to be further than what is folded here: views that are loaded anew are right."""
    on_tagged: OnTagged | None
    """Called with the name and the tags of a workflow, for each event that gives it some, or once for several of them."""

    @property
    def schedules(self) -> ScheduleView: ...

    @property
    def parked(self) -> ParkedView: ...

    @property
    def stored(self) -> StoredView: ...

    @property
    def registry(self) -> RegistryView: ...

    def apply(
        self,
        offset: int,
        place: int,
        workflow_id: str,
        seq: int,
        time_us: int,
        data: EventData,
        ray_id: str,
        worker: str,
        /,
    ) -> None:
        """Fold the event at ``offset``, whose record lies at ``place``."""

    def passed(self, offset: int, place: int, key: str, /) -> None:
        """Pass the tombstone at ``offset``, and what comes before it: what it takes back was given up by an event."""

    def fold(self, records: Iterable[Any], /) -> None:
        """Fold events as read from the log, from ``next_offset`` on."""

    def summary(self, workflow_id: str, /) -> Summary | None: ...

    def matching(self, wanted: Filters, /) -> Iterator[Summary]:
        """Yield the workflows that match, in order of creation."""
        ...

    @property
    def unsaved(self) -> int:
        """How many workflows are not stored as they stand here."""
        ...

    def saved_elsewhere(self, stored_to: int, /) -> None:
        """Another process has stored the views up to this offset."""

    def stored_offsets(self) -> Mapping[str, int]:
        """Return the offsets up to which all of it is stored, by the last words of topics' names."""
        ...

    def located(self, workflow_id: str, /) -> Located: ...

    def received(self, workflow_id: str, /) -> Received: ...

    def running(self) -> list[str]: ...

    def signalled(self) -> list[str]: ...

    def tally(self) -> Tally: ...

    def deadlines(self) -> Mapping[str, int]: ...

    def find(self, name: str, tags: Mapping[str, str], /) -> Iterator[str]: ...

    def queued(self, workflow_id: str, /) -> Mapping[str, str]: ...

    def pruned_seq(self, workflow_id: str, /) -> int:
        """Return the number of the event by which a workflow of this id was pruned, if nothing of it is left; else 0."""
        ...

    def prunable(self, wanted: Prunable, after: tuple[int, str], limit: int, /) -> list[Summary]:
        """Return at most ``limit`` workflows that may be pruned, in order of their end; behind ``after``, an end and an id."""
        ...


class PastView(Protocol):
    """The workflows of one partition that matched at a time: folded from the start of the log."""

    def fold_until(self, records: Iterable[Any], moment_us: int, /) -> bool:
        """Fold events up to the first that is younger than a moment; whether there may be more: none was, and some came."""
        ...

    def matching(self) -> Iterator[Summary]:
        """Yield them in order of creation."""
        ...


V = TypeVar("V", bound=Views)


class ViewKeeper(Protocol[V]):
    """Keeps the views of a namespace's partitions where they outlive the process."""

    @property
    def keeps(self) -> bool:
        """Whether it does; else all is folded from the start of the log by each process."""
        ...

    async def load(self, index: int, before: V | None, /) -> V:
        """Return the views of a partition as they were stored last. Others have turns meanwhile, however many rows there are.

        ``before``: views of it that are to be given up, but for what stands beside workflows, which goes on in the new ones.
        """
        ...

    def past(self, wanted: Filters, /) -> PastView:
        """Return a view with nothing folded, of the workflows that match at a time."""
        ...

    async def stands(self, index: int, /) -> Mapping[str, int]:
        """Return the offsets up to which a partition's views are stored, by the last words of topics' names, if known."""
        ...

    @property
    def name(self) -> str:
        """The name of the projection that it keeps them as."""
        ...

    async def renew(self) -> None:
        """Build anew what is stored, if the log does not know it any more; what cannot be done is logged."""

    async def save(self, views: Mapping[int, V], /) -> None:
        """Store what these views have folded since they were stored, if that can be done; failures are logged."""

    async def close(self) -> None:
        """Let go of the store."""
