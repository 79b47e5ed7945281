"""Which workflows may be pruned, and what stays of them (design §8).

``workflow.pruned`` alone decides. It is recorded by the owner of the workflow's partition, and what folds it meets it as any
other event; the cleaner removes what it gave up whenever that comes. So whatever was removed already, everybody who folds
what is left comes to where those stand who have folded all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from gasoline_es.core import events as ev
from gasoline_es.core.commands import Prune, Reply
from gasoline_es.core.error_info import shortened
from gasoline_es.core.ports import Prunable
from gasoline_es.core.state import Summary, WorkflowState
from gasoline_es.errors import GasolineError

ERROR_BYTES_KEPT: Final = 2_000
"""So much of each part of an error stands in the event; the whole of it is in that of the workflow's end, which stays."""

PRUNES: Final = b'"gasoline.workflow.pruned.'
"""What stands in each event that prunes a workflow, and in whatever quotes one."""

T = TypeVar("T")

Ends = tuple[ev.Fact, ev.Fact]
"""The first and the last event of a workflow."""


def eligible(summary: Summary, command: Prune) -> bool:
    """Whether the command may prune this workflow: it is over for good, old enough, and there is something left to prune.

    The dead, the silenced and whatever still runs or sleeps never are: somebody may yet want to know, or to go on.
    """
    if command.seq is not None and command.seq != summary.seq:  # it is not any more what was archived
        return False
    return Prunable(command.before_us, by_rule=command.by_rule).match(summary)


def prune(summary: Summary, ends: Ends, command: Prune) -> tuple[list[ev.EventData], Reply]:
    """Decide the command about a workflow whose first and last events these are. Asked again, nothing changes."""
    if not eligible(summary, command):
        return [], Reply(command.workflow_id)
    (_, first, _, begun, _, _), (_, last, _, end, _, _) = ends
    odd = not isinstance(begun, ev.WorkflowDispatched) or last != summary.seq
    if odd or not isinstance(end, ev.WorkflowCompleted | ev.WorkflowCancelled):
        error = GasolineError(
            f"workflow {command.workflow_id} is {summary.status}, and its history does not begin with its dispatch and end "
            f"with its end: it is not pruned",
            workflow_id=command.workflow_id,
        )
        return [], Reply(error=error)
    begins = None if first == 1 else first
    if command.by_rule and summary.prune == "all":
        return [ev.WorkflowPruned(command.by, reason=command.reason, first=begins)], Reply(
            command.workflow_id, created=True
        )
    assert summary.completed_us is not None
    assert summary.status in ("complete", "cancelled")
    left_with = end.error if isinstance(end, ev.WorkflowCancelled) else None
    remains = ev.Remains(
        "complete" if summary.status == "complete" else "cancelled",
        summary.completed_us,
        summary.tags,
        None if left_with is None else _brief(left_with),
    )
    pruned = ev.WorkflowPruned(command.by, (first, last), remains, command.reason, begins)
    return [pruned], Reply(command.workflow_id, created=True)


def _brief(error: ev.ErrorInfo) -> ev.ErrorInfo:
    cut = shortened(error, ERROR_BYTES_KEPT)
    return ev.ErrorInfo(cut.type, cut.message)


def may_prune(value: bytes | None) -> bool:
    """Whether a record of the events topic may be one that prunes a workflow. It costs no decoding."""
    return value is not None and PRUNES in value


def left(facts: Iterable[T], fact: Callable[[T], ev.Fact]) -> list[T]:
    """Return those of a workflow's events, in order, that nothing has pruned; ``fact`` gives what each says.

    Where all of it was pruned that is nothing, or what another of the same id has recorded since.
    """
    kept: list[T] = []
    for one in facts:
        data = fact(one)[3]
        if isinstance(data, ev.WorkflowPruned):
            kept = [before for before in kept if fact(before)[1] in data.keeps]
            if data.remains is None:
                continue
        kept.append(one)
    return kept


def fold_remains(summary: Summary | None, facts: Sequence[ev.Fact]) -> WorkflowState:
    """Fold the events that are left of a workflow, or are to stay: its first, its last, and what pruned it if that came.

    ``summary`` is of all of its events; None: what comes of these. The error of its clean-up is the whole one, as the event
    of its end has it.
    """
    state = WorkflowState(facts[0][0])
    error = None if summary is None else summary.error
    for _, seq, time_us, data, ray_id, worker in facts:
        state.summary.seq = seq - 1
        state.apply(seq, time_us, data, ray_id, worker)
        if isinstance(data, ev.WorkflowCancelled):
            error = data.error
    if summary is not None:
        state.summary = summary.copy()
    state.summary.error = error
    return state


def taken_back(pruned: ev.WorkflowPruned, seq: int, after: int = 0) -> Iterator[int]:
    """Yield the numbers above ``after`` of the events that ``pruned`` gives up, which has the number ``seq`` itself.

    What was before its dispatch was given up by what pruned the former workflow of this id. But for that event itself, which
    is not needed any more to tell that nothing is left: another one says so.
    """
    for number in range(max((pruned.first or 1) - 1, 1, after + 1), seq):
        if number not in pruned.keeps:
            yield number
