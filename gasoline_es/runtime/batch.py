"""What the next append of one partition holds, and what is to happen once its fate is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gasoline_es.core.events import EventData
from gasoline_es.core.state import Summary
from gasoline_es.errors import LogError
from gasoline_es.log.port import NewRecord
from gasoline_es.runtime.live import Live

if TYPE_CHECKING:
    from gasoline_es.runtime.activities import Attempt

Done = Callable[[LogError | None], None]
"""Called once: with None when durable, else with the error."""


class Batch:
    """The records of one section in the making.

    ``lives``, ``facts`` and ``times`` tell of the events among them, in their order: whose each is, what, and when. (Three
    lists, because a tuple for every event would be one more object for the garbage collector to follow.) ``attempts``
    are what the driver hears of again once their outcomes are durable.
    """

    __slots__ = (
        "_findable",
        "attempts",
        "cleared",
        "done",
        "facts",
        "indexed",
        "lives",
        "published",
        "records",
        "standing",
        "times",
        "told",
    )

    def __init__(self) -> None:
        self.records: list[NewRecord] = []
        self.lives: list[Live] = []
        self.facts: list[EventData] = []
        self.times: list[int] = []
        self.standing: dict[str, list[Any]] = {}
        """The events of what stands beside workflows among the records, by topic, in order."""
        self.told: set[int] = set()
        """The partitions to whose inboxes some of the records go."""
        self.published = False
        """Whether messages are among the records."""
        self.cleared: list[NewRecord] = []
        """Tombstones of events. They come last, so that the offsets of the events among the records have no gaps."""
        self.done: list[Done] = []
        self.attempts: list[Attempt] = []
        self.indexed: set[str] = set()
        """The workflows of which this changes by which tags they are found, or whether they are."""
        self._findable: dict[tuple[str, ...], list[tuple[str, Mapping[str, str]]]] = {}
        """Those of them that are found, by name and by each of their tags: a thousand may be on their way at once."""

    def index(self, summary: Summary) -> None:
        """Note that a workflow stands so from now on: who looks for one has to look here besides the views."""
        self.indexed.add(summary.id)
        if summary.incomplete:
            noted = (summary.id, summary.tags)
            self._findable.setdefault((summary.name,), []).append(noted)
            for tag, value in summary.tags.items():
                self._findable.setdefault((summary.name, tag, value), []).append(noted)

    def find(self, name: str, tags: Mapping[str, str]) -> Iterator[str]:
        """Yield workflows of this name whose tags contained ``tags`` when they were noted, in order; one more than once."""
        found: Sequence[tuple[str, Mapping[str, str]]] = self._findable.get((name,), ())
        if tags:
            found = min((self._findable.get((name, tag, value), ()) for tag, value in tags.items()), key=len)
        for workflow_id, its in found:
            if tags.items() <= its.items():
                yield workflow_id

    @property
    def empty(self) -> bool:
        return not self.records and not self.done
