"""The engine's own views as a projection: rebuilt and compared like any other (design §7)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

from gasoline_es.core.filters import Filters
from gasoline_es.core.ports import Prunable
from gasoline_es.core.schedules import Schedule
from gasoline_es.core.state import Summary
from gasoline_es.log.port import Record
from projections.definition import ENGINES, Projection
from projections.kept_feed import Feed, Pending
from projections.standing import StandingRow
from projections.stored import StoredView
from projections.tables import TOPICS, Tables, make_tables
from projections.views import Beside, PartitionViews
from projections.workflow_rows import WorkflowRow

T = TypeVar("T")

NAME: Final = ENGINES
VERSION: Final = 4
"""Of the rows and of the folds that make them: whoever changes what stands in a row, or when, counts it up."""


class Workflows(Projection):
    """Where each workflow stands, its tags, its queued signals, when it is due, where its history lies; what stands beside."""

    name = NAME
    version = VERSION
    topics = TOPICS

    def setup(self, db: Any) -> None:
        make_tables(db)

    def folding(self, partition: int, db: Any) -> WorkflowsFolding:
        """Return a fold that has in memory what the engine has."""
        return WorkflowsFolding(partition, db)


class WorkflowsFolding:
    """Folds a partition as the engine does, and writes the rows of what has changed."""

    def __init__(self, partition: int, db: Any) -> None:
        self._partition = partition
        self._tables = Tables(db)
        self._feeds: dict[str, Feed] = {}
        """Those that had records so far, by topic."""
        self._now: tuple[Feed, Pending] | None = None

    def prepare(self, records: Sequence[Record]) -> None:
        """Fold these records into rows."""
        topic, first = records[0].topic, records[0].offset
        feed = self._feeds.get(topic)
        if feed is None:
            assert first is not None
            feed = self._feeds[topic] = self._feed(topic)
            self._tables.load(feed, self._partition, first)
        feed.fold(records)
        if isinstance(feed, StoredView) and feed.unreadable is not None:
            raise ValueError(feed.unreadable)
        changes = feed.changes()
        while changes:
            changes.make(len(changes))
        self._now = feed, changes

    def _feed(self, topic: str) -> Feed:
        word = topic.rpartition(".")[2]
        if word == "events":
            return PartitionViews(KeptPartition(self._tables.workflows, self._partition))
        return Beside(KeptBesideOf(self._tables.ask, self._partition)).feeds()[word]

    def apply(self, records: Sequence[Record], db: Any) -> None:
        """Write the rows."""
        assert self._now is not None
        self._tables.write(self._partition, self._now[1])

    def committed(self) -> None:
        """Let go of what is over."""
        assert self._now is not None
        feed, changes = self._now
        feed.saved(changes.next_offset)

    def rolled_back(self) -> None:
        """Begin anew from what is stored."""
        self._feeds = {}


class Rows(Protocol):
    """Where rows of all partitions are read: a table, or whoever has one."""

    def get(self, workflow_id: str, /) -> WorkflowRow | None: ...

    def matching(self, partition: int, wanted: Filters, /) -> Iterator[Summary]: ...

    def prunable(self, partition: int, wanted: Prunable, after: tuple[int, str], limit: int, /) -> list[Summary]: ...


class KeptPartition:
    """The rows of one partition, for views that have let go of them."""

    def __init__(self, rows: Rows, partition: int) -> None:
        self._rows = rows
        self._partition = partition

    def get(self, workflow_id: str) -> WorkflowRow | None:
        return self._rows.get(workflow_id)

    def matching(self, wanted: Filters) -> Iterator[Summary]:
        return self._rows.matching(self._partition, wanted)

    def prunable(self, wanted: Prunable, after: tuple[int, str], limit: int) -> list[Summary]:
        return self._rows.prunable(self._partition, wanted, after, limit)


class Ask(Protocol):
    """Asks tables."""

    def __call__(self, question: Callable[[Tables], T], /) -> T: ...


class KeptBesideOf:
    """The rows of what stands beside one partition's workflows, for views that have let go of them."""

    def __init__(self, ask: Ask, partition: int) -> None:
        self._ask = ask
        self._partition = partition

    def schedule(self, its_id: str) -> StandingRow[Schedule] | None:
        return self._ask(lambda tables: tables.schedules.get(its_id))

    def first_known(self, sequence: str, originator: str, versions: Collection[int], base: int) -> int | None:
        return self._ask(
            lambda tables: tables.sequences.first_known(self._partition, sequence, originator, versions, base)
        )

    def of_originator(
        self,
        sequence: str,
        originator: str,
        above: int | None,
        up_to: int | None,
        base: int,
        *,
        newest_first: bool,
        limit: int | None,
    ) -> list[tuple[int, int]]:
        return self._ask(
            lambda tables: tables.sequences.of_originator(
                self._partition, sequence, originator, above, up_to, base, newest_first=newest_first, limit=limit
            )
        )

    def of_kinds(self, sequence: str, kinds: Sequence[str], start: int, stop: int, limit: int) -> list[int]:
        return self._ask(lambda tables: tables.sequences.of_kinds(self._partition, sequence, kinds, start, stop, limit))

    def of_item(
        self, sequence: str, types: Sequence[str], tags: Sequence[str], after: int, base: int, limit: int | None
    ) -> list[int]:
        return self._ask(
            lambda tables: tables.sequences.of_item(self._partition, sequence, types, tags, after, base, limit)
        )

    def located(self, sequence: str, seqs: Sequence[int]) -> list[tuple[int, int, int]]:
        return self._ask(lambda tables: tables.sequences.located(self._partition, sequence, seqs))
