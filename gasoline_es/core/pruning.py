"""Which workflows may be pruned, what stays of them, and which of their events the log's cleaner may remove (design §8).

``workflow.pruned`` alone decides. It is recorded by the owner of the workflow's partition, and what folds it meets it as any
other event; the cleaner removes what it gave up whenever that comes. So whatever was removed already, everybody who folds
what is left comes to where those stand who have folded all of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from gasoline_es.core import events as ev
from gasoline_es.core.codec import decode
from gasoline_es.core.commands import Prune, Reply
from gasoline_es.core.error_info import shortened
from gasoline_es.core.ids import is_workflow_id
from gasoline_es.core.ports import Prunable
from gasoline_es.core.state import Summary, WorkflowState
from gasoline_es.errors import GasolineError

ERROR_BYTES_KEPT: Final = 2_000
"""So much of each part of an error stands in the event; the whole of it is in that of the workflow's end, which stays."""

MARK: Final = b'"gasoline.workflow.pruned.v1"'
"""No record of an event that prunes is without it."""

T = TypeVar("T")

Ends = tuple[ev.Fact, ev.Fact]
"""The first and the last event of a workflow."""


def eligible(summary: Summary, command: Prune) -> bool:
    """Whether the command may prune this workflow: it is over for good, old enough, and there is something left to prune.

    The dead, the silenced and whatever still runs or sleeps never are: somebody may yet want to know, or to go on.
    """
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


_ENTRY: Final = struct.Struct("<q2q")
"""The number of the event that pruned a workflow, and the two that stay: 0 where none does."""


class Pruned:
    """Tells the log's cleaner which events of workflows may be removed. It takes about 150 bytes a pruned workflow.

    Of a log that is cleaned now and then those are the workflows which were pruned since, and those whose histories alone
    were: the event that says so stays, as it says how they stand. :meth:`settle` lets go of what has nothing left to remove.
    """

    def __init__(self) -> None:
        self._entries: dict[bytes, bytes | tuple[int, ...]] = {}

    def __len__(self) -> int:
        """How many pruned workflows are known."""
        return len(self._entries)

    def observe(self, value: bytes | None) -> None:
        """Look at a record of the events topic, as its value is. What is no event that prunes is passed at once."""
        if value is None or MARK not in value:
            return
        event = decode(value)
        if isinstance(event.data, ev.WorkflowPruned):
            self.note(event.workflow_id, event.seq, event.data.keeps)

    def note(self, workflow_id: str, seq: int, keeps: tuple[int, ...] = ()) -> None:
        """Know that the event ``seq`` of a workflow has pruned it; ``keeps`` are the events before it that stay."""
        known = self.pruned_by(workflow_id)
        if known is not None and known >= seq:
            return
        packed: bytes | tuple[int, ...] = (seq, *keeps)
        if len(keeps) in (0, 2):
            packed = _ENTRY.pack(seq, *(keeps or (0, 0)))
        self._entries[_key(workflow_id)] = packed

    def pruned_by(self, workflow_id: str) -> int | None:
        """Return the number of the newest event known that has pruned a workflow."""
        entry = self._entries.get(_key(workflow_id))
        return None if entry is None else _unpacked(entry)[0]

    def removes(self, workflow_id: str, seq: int) -> bool:
        """Whether an event may be removed: a later one has pruned the workflow, and does not keep it.

        The event that prunes is never one of them, unless a later one has pruned the workflow again.
        """
        entry = self._entries.get(_key(workflow_id))
        if entry is None:
            return False
        by, *keeps = _unpacked(entry)
        return seq < by and seq not in keeps

    def is_tombstone(self, workflow_id: str, seq: int) -> bool:
        """Whether an event says that nothing is left of a workflow: it may go, but only once no older one survives anywhere."""
        entry = self._entries.get(_key(workflow_id))
        return entry is not None and _unpacked(entry) == (seq, 0, 0)

    def settle(self, workflow_id: str) -> None:
        """Let go of a workflow of which the log holds nothing more to remove."""
        self._entries.pop(_key(workflow_id), None)


def _key(workflow_id: str) -> bytes:
    return bytes.fromhex(workflow_id.replace("-", "")) if is_workflow_id(workflow_id) else workflow_id.encode()


def _unpacked(entry: bytes | tuple[int, ...]) -> tuple[int, ...]:
    return entry if isinstance(entry, tuple) else _ENTRY.unpack(entry)
