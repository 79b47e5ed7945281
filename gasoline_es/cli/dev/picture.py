"""What runs, sleeps and is dead, as a fold of a log's events that keeps no more than it takes to show it.

What is over is counted and forgotten. The steps are kept of the workflows that did something last, and of each the last few.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gasoline_es.core import events as ev
from gasoline_es.core.events import Event
from gasoline_es.core.location import Location
from gasoline_es.core.state import OVER, Status, Summary

WITH_STEPS_MAX: Final = 200
"""Of so many workflows the steps are kept: more than stand on any terminal."""
STEPS_MAX: Final = 3
ENDED_OTHERWISE_MAX: Final = 10_000
"""Of so many that were cancelled or silenced it is kept that they were, in case they start over; the rest completed."""
MENDED_BY_CODE: Final = frozenset(
    {"HistoryDiverged", "LatentHistoryFound", "InvalidVersion", "StepMisused", "NotImplementedError"}
)
"""What a workflow dies of when its code and its history do not fit, or the code is not written yet: saving it may mend that."""


@dataclass(slots=True)
class Life:
    """A workflow that is not over."""

    summary: Summary
    parent: str | None = None
    rolled_back: bool = False
    """Whether its steps were undone, or began to be: other code cannot just go on from there."""

    @property
    def mendable(self) -> bool:
        """Whether it is dead of what a change of the code may mend, so that it goes on when it is woken."""
        error = self.summary.error
        dead = self.summary.status == "dead" and error is not None
        return dead and error is not None and error.type in MENDED_BY_CODE and not self.rolled_back


class Picture:
    """Give it the events of each workflow in order of ``seq``; those of different workflows in any order."""

    def __init__(self) -> None:
        self.counts: Final = Counter[Status]()
        """How many stand where, of all there were."""
        self.lives: Final = OrderedDict[str, Life]()
        """Those that run or sleep, by id; who did something last stands last."""
        self.dead: Final = OrderedDict[str, Life]()
        """The dead ones, and those that cannot be read; who died last stands last."""
        self._ended_otherwise: Final = OrderedDict[str, Status]()
        """How those ended that did not complete, by id."""
        self._steps: Final = OrderedDict[str, OrderedDict[Location, list[Event]]]()

    def add(self, event: Event) -> Life:
        """Take in the next event of a workflow; return where that stands now."""
        workflow_id = event.workflow_id
        life = self.lives.pop(workflow_id, None) or self.dead.pop(workflow_id, None)
        if life is None:
            life = self._found(event)
        else:
            self.counts[life.summary.status] -= 1
        summary, data = life.summary, event.data
        summary.apply(event.seq, event.time_us, data, event.ray_id, event.worker)
        if summary.error is not None and summary.error.traceback:
            summary.error = ev.ErrorInfo(summary.error.type, summary.error.message)  # as many as died are kept
        if summary.pruned == "all":
            self._steps.pop(workflow_id, None)
            return life  # it is none of them any more
        self.counts[summary.status] += 1
        if isinstance(data, ev.WorkflowDispatched):
            life.parent = data.parent
        elif isinstance(data, ev.RollbackStarted):
            life.rolled_back = True
        elif isinstance(data, ev.WorkflowRerun):
            life.rolled_back = False
            self._steps.pop(workflow_id, None)
        if summary.status in OVER:
            self._steps.pop(workflow_id, None)
            if summary.status != "complete":
                self._ended_otherwise[workflow_id] = summary.status
                if len(self._ended_otherwise) > ENDED_OTHERWISE_MAX:
                    self._ended_otherwise.popitem(last=False)
        else:
            (self.dead if summary.status in ("dead", "unreadable") else self.lives)[workflow_id] = life
            self._keep(workflow_id, event)
        return life

    def _found(self, event: Event) -> Life:
        """Return a workflow that is new, or was over and starts over now, or is pruned."""
        summary = Summary(event.workflow_id)
        summary.name, summary.seq = event.workflow, event.seq - 1
        if event.seq > 1 and not isinstance(event.data, ev.WorkflowDispatched):
            ended = self._ended_otherwise.pop(event.workflow_id, "complete")
            self.counts[ended] -= self.counts[ended] > 0
        return Life(summary)

    def _keep(self, workflow_id: str, event: Event) -> None:
        steps = self._steps.pop(workflow_id, None) or OrderedDict[Location, list[Event]]()
        data = event.data
        if isinstance(data, ev.LocatedData):
            events = steps.setdefault(data.location, [])
            if len(events) > 1:
                del events[1:]  # the first and the last say how a step stands
            events.append(event)
            steps.move_to_end(data.location)
            if len(steps) > STEPS_MAX:
                steps.popitem(last=False)
        if steps:
            self._steps[workflow_id] = steps
            if len(self._steps) > WITH_STEPS_MAX:
                self._steps.popitem(last=False)

    def steps(self, workflow_id: str) -> Sequence[tuple[Location, Sequence[Event]]]:
        """Return the last steps of a workflow, the newest last: of each the first event and the last."""
        steps: Mapping[Location, list[Event]] = self._steps.get(workflow_id, {})
        return list(steps.items())

    def mendable(self) -> Iterator[str]:
        """Yield the ids of the dead that a change of the code may mend, in order of their deaths."""
        return (workflow_id for workflow_id, life in self.dead.items() if life.mendable)
