"""The stored views of a log that is looked at, as of one moment: what they hold need not be folded again."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Final

from gasoline_es.core.announced import Announced
from gasoline_es.core.filters import Filters
from gasoline_es.core.topics import Topics
from gasoline_es.errors import GenerationDamaged, LogError, ProjectionError
from gasoline_es.log.port import Log
from projections.announced_table import AnnouncedTable
from projections.known import stands, unknown_so_far
from projections.stores.opening import open_store
from projections.stores.port import START, Feed, Position, Snapshot
from projections.workflow_rows import WorkflowRow
from projections.workflow_table import WorkflowTable
from projections.workflows import NAME, VERSION


class Stored:
    """Rows of workflows, and up to where each partition is in them."""

    def __init__(self, log: Log, snapshot: Snapshot[object] | None) -> None:
        self._topics: Final = Topics(log.namespace)
        self._positions: Final[dict[Feed, Position]] = {} if snapshot is None else dict(snapshot.positions)
        self._table: Final = None if snapshot is None else WorkflowTable(snapshot.db)
        self._announced: Final = None if snapshot is None else AnnouncedTable(snapshot.db)
        self._snapshot: Final = snapshot

    def next_offset(self, partition: int) -> int:
        """Return the offset of the first event of a partition that is not in the rows."""
        return self._next(self._topics.events, partition)

    def next_of_registry(self, partition: int) -> int:
        """Return the offset of the first record of a partition's registry that is not in the rows."""
        return self._next(self._topics.registry, partition)

    def _next(self, topic: str, partition: int) -> int:
        return self._positions.get(Feed(topic, partition), START).next_offset

    def announced(self) -> list[tuple[str, int, Announced | str]]:
        """Return what workers said last and did not take back: worker, when, and what, or why it does not read.

        Raises: GenerationDamaged.
        """
        if self._announced is None:
            return []
        with _damage():
            return self._announced.standing()

    def announced_last(self, worker: str) -> tuple[int, Announced | str | None] | None:
        """Return when a worker said something last, and what; nothing if it took that back. Raises: GenerationDamaged."""
        if self._announced is None:
            return None
        with _damage():
            return self._announced.last_of(worker)

    def get(self, workflow_id: str) -> WorkflowRow | None:
        """Return a workflow's row. Raises: GenerationDamaged."""
        if self._table is None:
            return None
        with _damage():
            return self._table.get(workflow_id)

    def rows(self, partition: int, wanted: Filters) -> Iterator[WorkflowRow]:
        """Yield the rows of a partition that match, in order of creation. Raises: GenerationDamaged."""
        if self._table is not None:
            with _damage():
                yield from self._table.rows(partition, wanted)

    def going_on(self, partition: int) -> Iterator[WorkflowRow]:
        """Yield the rows of all that are not over, in order of dispatch. Raises: GenerationDamaged."""
        if self._table is not None:
            with _damage():
                yield from self._table.going_on(partition)

    def close(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()


@contextmanager
def _damage() -> Generator[None]:
    """Take whatever goes wrong for damage: bytes that the database takes for sound may still be no row."""
    try:
        yield
    except Exception as error:
        raise GenerationDamaged(f"the stored views cannot be read: {error}", projection=NAME, store="") from error


def open_stored(log: Log) -> Stored:
    """Open what there is, if it can be relied on; else nothing is stored, and all is folded."""
    snapshot: Snapshot[object] | None = None
    try:
        snapshot = open_store(log).snapshot(NAME)
        if stands(log, snapshot.meta, snapshot.positions, VERSION, unknown_so_far)[0] == "usable":
            return Stored(log, snapshot)
    except (LogError, ProjectionError):
        pass
    if snapshot is not None:
        snapshot.close()
    return Stored(log, None)
