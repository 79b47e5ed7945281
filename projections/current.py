"""Current state: where every workflow of a partition stands, by id (design §7). The same fold as the engine's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gasoline_es.core.events import EventData
from gasoline_es.core.state import Status, Summary


class CurrentState:
    """Summaries by workflow id, in order of dispatch, of those that are in memory; and counts, of all there are."""

    def __init__(self) -> None:
        self._summaries: dict[str, Summary] = {}
        self.counts: dict[tuple[str, Status], int] = {}
        """How many workflows of a name stand somewhere."""

    def apply(self, workflow_id: str, seq: int, time_us: int, data: EventData, ray_id: str, worker: str) -> Summary:
        """Fold the next event of a workflow and return its summary."""
        summary = self._summaries.get(workflow_id)
        if summary is None:
            summary = self._summaries[workflow_id] = Summary(workflow_id)
            summary.apply(seq, time_us, data, ray_id, worker)
            if summary.pruned != "all":
                self._count(summary.name, summary.status, 1)
            return summary
        name, status, pruned = summary.name, summary.status, summary.pruned
        summary.apply(seq, time_us, data, ray_id, worker)
        if summary.status != status or summary.name != name or summary.pruned != pruned:
            if pruned != "all":
                self._count(name, status, -1)
            if summary.pruned != "all":
                self._count(summary.name, summary.status, 1)
        return summary

    def _count(self, name: str, status: Status, more: int) -> None:
        key = (name, status)
        count = self.counts.get(key, 0) + more
        if count:
            self.counts[key] = count
        else:
            del self.counts[key]

    def recount(self, exact: Mapping[tuple[str, Status], int], held: Mapping[tuple[str, Status], int]) -> None:
        """Count by what is exact of a moment at which these counts ``held``."""
        keys = {*self.counts, *exact, *held}
        now = {key: exact.get(key, 0) + self.counts.get(key, 0) - held.get(key, 0) for key in keys}
        self.counts = {key: count for key, count in now.items() if count}

    def restore(self, summary: Summary) -> None:
        """Have a workflow again that had left memory. It was counted all along."""
        self._summaries[summary.id] = summary

    def drop(self, workflow_id: str) -> None:
        """Have a workflow no more that is kept elsewhere. It goes on to be counted."""
        del self._summaries[workflow_id]

    def get(self, workflow_id: str) -> Summary | None:
        return self._summaries.get(workflow_id)

    def __iter__(self) -> Iterator[Summary]:
        return iter(self._summaries.values())

    def __contains__(self, workflow_id: str) -> bool:
        return workflow_id in self._summaries

    def __len__(self) -> int:
        return len(self._summaries)
