"""The engine's own views as a projection: rebuilt and compared like any other (design §7)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from gasoline_es.core.filters import Filters
from gasoline_es.core.state import Summary
from gasoline_es.log.port import Record
from projections.definition import ENGINES, Projection
from projections.views import Changes, PartitionViews
from projections.workflow_rows import WorkflowRow
from projections.workflow_table import WorkflowTable, make_tables

NAME: Final = ENGINES
VERSION: Final = 2
"""Of the rows and of the fold that makes them: whoever changes what stands in a row, or when, counts it up."""


class Workflows(Projection):
    """Where each workflow stands, its tags, its queued signals, when it is due, where its history lies."""

    name = NAME
    version = VERSION

    def setup(self, db: Any) -> None:
        make_tables(db)

    def folding(self, partition: int, db: Any) -> WorkflowsFolding:
        """Return a fold that has in memory what the engine has."""
        return WorkflowsFolding(partition, WorkflowTable(db))


class WorkflowsFolding:
    """Folds a partition as the engine does, and writes the rows of what has changed."""

    def __init__(self, partition: int, table: WorkflowTable) -> None:
        self._partition = partition
        self._table = table
        self._views: PartitionViews | None = None
        self._changes: Changes | None = None

    def prepare(self, records: Sequence[Record]) -> None:
        """Fold these records into rows."""
        views = self._views
        if views is None:
            first = records[0].offset
            assert first is not None
            views = self._views = PartitionViews(KeptPartition(self._table, self._partition))
            views.load(first, self._table.counts(self._partition), self._table.going_on(self._partition))
        views.fold(records)
        self._changes = views.changes()
        self._changes.make(len(self._changes))

    def apply(self, records: Sequence[Record], db: Any) -> None:
        """Write the rows."""
        assert self._changes is not None
        self._table.write(self._partition, self._changes.rows, self._changes.counts)

    def committed(self) -> None:
        """Let go of what is over."""
        assert self._views is not None
        self._views.saved(self._views.next_offset)

    def rolled_back(self) -> None:
        """Begin anew from what is stored."""
        self._views = None


class Rows(Protocol):
    """Where rows of all partitions are read: a table, or whoever has one."""

    def get(self, workflow_id: str, /) -> WorkflowRow | None: ...

    def matching(self, partition: int, wanted: Filters, /) -> Iterator[Summary]: ...


class KeptPartition:
    """The rows of one partition, for views that have let go of them."""

    def __init__(self, rows: Rows, partition: int) -> None:
        self._rows = rows
        self._partition = partition

    def get(self, workflow_id: str) -> WorkflowRow | None:
        return self._rows.get(workflow_id)

    def matching(self, wanted: Filters) -> Iterator[Summary]:
        return self._rows.matching(self._partition, wanted)
