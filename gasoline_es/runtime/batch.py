"""What the next append of one partition holds, and what is to happen once its fate is known."""

from __future__ import annotations

from collections.abc import Callable

from gasoline_es.core.events import EventData, WorkflowDispatched
from gasoline_es.errors import LogError
from gasoline_es.log.port import NewRecord
from gasoline_es.runtime.live import Live

Done = Callable[[LogError | None], None]
"""Called once: with None when durable, else with the error."""


class Batch:
    """The records of one section in the making. ``events`` are those of the events topic, in order of their records.

    ``attempts`` are what the driver hears of again once their outcomes are durable.
    """

    __slots__ = ("attempts", "dispatched", "done", "events", "records")

    def __init__(self) -> None:
        self.records: list[NewRecord] = []
        self.events: list[tuple[Live, int, int, EventData]] = []
        self.done: list[Done] = []
        self.attempts: list[object] = []
        self.dispatched: list[tuple[Live, WorkflowDispatched]] = []
        """Those of the events that dispatch: what a unique dispatch has to look at besides the views."""

    @property
    def empty(self) -> bool:
        return not self.records and not self.done
