"""Where the workflows of a partition stood at a time, for a list: only those that may be in it (design §7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gasoline_es.core.codec import read_fact
from gasoline_es.core.events import WorkflowDispatched
from gasoline_es.core.filters import Filters
from gasoline_es.core.state import Summary, created
from gasoline_es.log.port import Record


class PastView:
    """Folded from the start of the log. In memory is of each workflow that may match the summary: 400 bytes, tags, error.

    What a workflow is called and when it was created shows in its first event, for good: one that does not match by that is
    passed. Tags, status and error may change until the end.
    """

    def __init__(self, wanted: Filters) -> None:
        self._wanted = wanted
        self._chosen = not wanted.may_match_all
        self._summaries: dict[str, Summary] = {}

    def fold_until(self, records: Iterable[Record], moment_us: int) -> bool:
        """Fold events up to the first that is younger than a moment; whether there may be more: none was, and some came."""
        some, summaries = False, self._summaries
        for record in records:
            some = True
            if record.value is None:
                continue
            workflow_id, seq, time_us, data, ray_id, worker = read_fact(record.key, record.value)
            if time_us > moment_us:
                return False
            summary = summaries.get(workflow_id)
            begins = isinstance(data, WorkflowDispatched)
            if summary is None:
                if self._chosen and not begins:
                    continue
                summary = Summary(workflow_id)
            summary.apply(seq, time_us, data, ray_id, worker)
            if not begins or self._wanted.may_match(summary):
                summaries[workflow_id] = summary
            else:
                summaries.pop(workflow_id, None)  # one of the same id that was pruned
        return some

    def matching(self) -> Iterator[Summary]:
        """Yield the workflows that match, in order of creation."""
        there = (one for one in self._summaries.values() if one.pruned != "all")
        yield from sorted(filter(self._wanted.match, there), key=created)
