"""What the next append of one partition holds, and what is to happen once its fate is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gasoline_es.core.events import EventData, WorkflowDispatched
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
        "_dispatched",
        "attempts",
        "cleared",
        "done",
        "facts",
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
        self._dispatched: dict[tuple[str, ...], list[tuple[Live, WorkflowDispatched]]] = {}
        """Those of the events that dispatch, by name and by each of their tags: a thousand may be on their way at once."""

    def dispatched(self, live: Live, data: WorkflowDispatched) -> None:
        """Note a dispatch: what a unique one has to look at besides the views."""
        self._dispatched.setdefault((data.name,), []).append((live, data))
        for tag, value in data.tags.items():
            self._dispatched.setdefault((data.name, tag, value), []).append((live, data))

    def find(self, name: str, tags: Mapping[str, str]) -> Iterator[Live]:
        """Yield the workflows of this name dispatched here whose tags contain ``tags``, in order."""
        found: Sequence[tuple[Live, WorkflowDispatched]] = self._dispatched.get((name,), ())
        if tags:
            found = min((self._dispatched.get((name, tag, value), ()) for tag, value in tags.items()), key=len)
        for live, data in found:
            if tags.items() <= data.tags.items():
                yield live

    @property
    def empty(self) -> bool:
        return not self.records and not self.done
