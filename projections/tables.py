"""All tables of the engine's own projection, and which of them holds what is folded from which topic (design §7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from projections import announced_table, letter_table, sequence_table, standing_table, workflow_table
from projections.announced_table import AnnouncedTable
from projections.kept_feed import Feed, Pending
from projections.letter_table import LetterTable
from projections.parked import ParkedView
from projections.registry import RegistryChanges, RegistryView
from projections.schedules import ScheduleView
from projections.sequence_table import SequenceTable
from projections.standing import StandingChanges
from projections.standing_table import parked_table, schedule_table
from projections.stored import StoredChanges, StoredView
from projections.views import Changes, PartitionViews
from projections.workflow_table import WorkflowTable

T = TypeVar("T")

TOPICS: Final = ("events", "schedules", "parked", "stored", "registry")
"""What is folded, by the last word of the topics' names."""


def make_tables(db: Any) -> None:
    """Make the tables and views in a new generation."""
    for module in (workflow_table, standing_table, sequence_table, announced_table, letter_table):
        module.make_tables(db)


class Tables:
    """Reads and writes rows through a store's connection."""

    def __init__(self, db: Any) -> None:
        self.workflows: Final = WorkflowTable(db)
        self.schedules: Final = schedule_table(db)
        self.parked: Final = parked_table(db)
        self.sequences: Final = SequenceTable(db)
        self.announced: Final = AnnouncedTable(db)
        self.letters: Final = LetterTable(db)

    def ask(self, question: Callable[[Tables], T]) -> T:
        """Ask these tables."""
        return question(self)

    def write(self, partition: int, changes: Pending) -> Any:
        """Write the rows of one feed; return what its ``saved`` is to be told."""
        match changes:
            case Changes():
                counts = self.workflows.write(partition, changes.rows, None if changes.drifted else changes.counts)
                return counts if changes.drifted else None
            case StandingChanges():
                table: Any = self.schedules if isinstance(changes.view, ScheduleView) else self.parked
                table.write(partition, changes.rows)
            case StoredChanges():
                self.sequences.write(partition, changes.records)
            case RegistryChanges():
                self.announced.write(partition, changes.said)
                self.letters.write(partition, changes.letters)
            case _:
                raise AssertionError(f"{type(changes).__name__} is of no table")
        return None

    def load(self, feed: Feed, partition: int, next_offset: int) -> None:
        """Let a fold begin where the rows of a partition stand."""
        match feed:
            case PartitionViews():
                feed.load(next_offset, self.workflows.counts(partition), self.workflows.going_on(partition))
            case ScheduleView():
                feed.load(next_offset, self.schedules.rows(partition))
            case ParkedView():
                feed.load(next_offset, self.parked.rows(partition))
            case StoredView():
                feed.load(next_offset, self.sequences.ends(partition), self.sequences.tracked(partition))
            case RegistryView():
                feed.load(next_offset, self.letters.waiting(partition))
            case _:
                raise AssertionError(f"{type(feed).__name__} is of no table")
