"""The fold of a complete history: of the events that hold (design §4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, takewhile

from gasoline_es.core import events as ev
from gasoline_es.core.generations import Superseded
from gasoline_es.core.state import WorkflowState


def superseded_in(facts: Iterable[ev.Fact]) -> Superseded:
    """Return which of a workflow's events were superseded, by all that is recorded."""
    reruns = (data for _, _, _, data, _, _ in facts if isinstance(data, ev.WorkflowRerun))
    return Superseded((data.generation, data.superseded) for data in reruns)


def fold_facts(workflow_id: str, read: Callable[[], Iterable[ev.Fact]]) -> WorkflowState:
    """Fold a workflow's events, in order from its first.

    ``read`` gives them. It is called once; for a workflow that started over, again: which of its events hold is told by
    later ones.
    """
    state = WorkflowState(workflow_id)
    for _, seq, time_us, data, ray_id, worker in read():
        if isinstance(data, ev.WorkflowRerun) and data.superseded:
            return fold_without(superseded_in(read()), workflow_id, read())
        state.apply(seq, time_us, data, ray_id, worker)
    return state


def fold_without(superseded: Superseded, workflow_id: str, facts: Iterable[ev.Fact]) -> WorkflowState:
    """Fold a workflow's events but for those that were superseded."""
    state = WorkflowState(workflow_id)
    for _, seq, time_us, data, ray_id, worker in facts:
        if seq in superseded:
            state.skip(seq, time_us, worker)
        else:
            state.apply(seq, time_us, data, ray_id, worker)
    return state


def facts_until(
    facts: Iterable[ev.Fact], *, moment_us: int | None = None, events: int | None = None
) -> Iterator[ev.Fact]:
    """Return a workflow's events before the first that is younger than a time, and no more than so many of them."""
    return islice(facts if moment_us is None else takewhile(lambda fact: fact[2] <= moment_us, facts), events)


def beyond(workflow_id: str, events: int, there: int) -> str | None:
    """Say why nobody knows how a workflow stood behind an event of this number; None: there is one."""
    if events <= there:
        return None
    return (
        f"workflow {workflow_id} has {there} event{'' if there == 1 else 's'} so far, and none of the number {events}"
    )
