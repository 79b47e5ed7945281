"""What the runtime needs of the projections, named here so that it need not import them (design §2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from gasoline_es.core.events import EventData
from gasoline_es.core.state import Summary


class Views(Protocol):
    """The views of one partition: folded from its durable events, in order of offset."""

    next_offset: int

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

    def fold(self, records: Iterable[Any], /) -> None:
        """Fold events as read from the log, from ``next_offset`` on."""

    def summary(self, workflow_id: str, /) -> Summary | None: ...

    def summaries(self) -> Iterator[Summary]: ...

    def offsets(self, workflow_id: str, /) -> Sequence[int]: ...

    def places(self, workflow_id: str, /) -> Sequence[int]: ...

    def running(self) -> list[str]: ...

    def signalled(self) -> list[str]: ...

    def deadlines(self) -> Mapping[str, int]: ...

    def find(self, name: str, tags: Mapping[str, str], /) -> Iterator[str]: ...

    def queued(self, workflow_id: str, /) -> Mapping[str, str]: ...
