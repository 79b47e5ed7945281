"""One workflow: its events, found by their keys, and where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gasoline_es.cli import listing, render
from gasoline_es.cli.escape import escape
from gasoline_es.cli.failures import Failure
from gasoline_es.cli.output import Facts, Output, fragment
from gasoline_es.cli.reading import Reading
from gasoline_es.core import events as ev
from gasoline_es.core.codec import read_fact
from gasoline_es.core.durations import format_time
from gasoline_es.core.events import ErrorInfo, Fact
from gasoline_es.core.folding import beyond, facts_until, fold_facts
from gasoline_es.core.ids import check_workflow_id, partition_of
from gasoline_es.core.pruning import fold_remains, left, may_prune
from gasoline_es.core.state import WorkflowState
from gasoline_es.errors import HorizonMoved, LogError, WorkflowNotFound
from gasoline_es.log.port import Record
from projections.history import located

_AGAIN_MAX: Final = 5
"""So many times a history is read that the log's cleaner keeps getting ahead of."""
_WAITED_FOR_MAX: Final = 3
"""Of so many workflows that one waits for `get` says where they stand, as each has to be read."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """A workflow and the partition it lies in."""

    state: WorkflowState
    partition: int


def history_records(reading: Reading, workflow_id: str) -> Iterator[Record]:
    """Yield the records of a workflow's events, in order: what is left of it, if it was pruned.

    One that is pruned while it is read is read again: what the log's cleaner may have removed in the middle is not left out.

    Raises: WorkflowNotFound for a text that is no id; Failure if there are none.
    """
    partition = partition_of(check_workflow_id(workflow_id), reading.log.partition_count)
    own = _own(reading, partition, workflow_id)
    if any(may_prune(record.value) for record in own):
        readable = [record for record in own if record.value is not None and reading.decode(record) is not None]
        own = left(readable, lambda record: read_fact(record.key, record.value or b""))
    yield from own
    if not own:
        where = f"namespace {reading.log.namespace!r} of {reading.log.url}"
        if reading.damages:
            raise Failure(f"workflow {workflow_id} was not found in what can be read of {where}: {reading.damages[0]}")
        raise Failure(f"workflow {workflow_id} was not found in {where}: `gasoline workflow list` shows what there is")


def _own(reading: Reading, partition: int, workflow_id: str) -> list[Record]:
    """Read all records of a workflow's events, as of one moment."""
    prefix = f"{workflow_id}/"
    topic, tries = reading.events_topic, 0
    while True:
        tries += 1
        try:
            end = reading.end(topic, partition)
            own, missing = _read(reading, partition, workflow_id)
            since = reading.records(topic, partition, end)
            if not any(may_prune(record.value) and record.key.startswith(prefix) for record in since):
                break
        except HorizonMoved:
            if tries == _AGAIN_MAX:
                raise
    own = [record for record in own if record.key.startswith(prefix)]
    if missing is not None and not any(may_prune(record.value) for record in own):
        reading.note(missing.message)
    return own


def _read(reading: Reading, partition: int, workflow_id: str) -> tuple[list[Record], LogError | None]:
    """Read records of a partition among which those of a workflow are: as few as the stored views know of.

    Also why those were not to be had: the log's cleaner has removed them, or they are damaged.
    """
    topic, found = reading.events_topic, list[Record]()
    missing: LogError | None = None
    row, since = reading.looked_up(lambda stored: (stored.get(workflow_id), stored.next_offset(partition)))
    if row is not None:
        lie = located(row.events)
        if lie.forgotten:
            since = row.events.first
        else:
            try:
                found += reading.log.read_at(topic, partition, lie.offsets, lie.places)
            except LogError as error:
                missing, since = error, row.events.first
    found += reading.records(topic, partition, since)
    return found, missing


def load(reading: Reading, workflow_id: str, *, moment_us: int | None = None, events: int | None = None) -> Workflow:
    """Fold a workflow's events: those before the first that is younger than a time, and no more than so many.

    Raises: as :func:`history_records`; Failure: it was dispatched later, or has not so many events.
    """
    facts = list(sound_facts(reading, workflow_id))
    if facts and isinstance(facts[-1][3], ev.WorkflowPruned):
        state = fold_remains(None, facts)
        ended_us = state.summary.completed_us or 0
        if (moment_us is not None and moment_us < ended_us) or (events is not None and events < facts[-2][1]):
            raise Failure(
                f"the history of workflow {workflow_id} was pruned: how it stood before its end at {format_time(ended_us)} "
                f"is not known any more"
            )
        return Workflow(state, partition_of(workflow_id, reading.log.partition_count))
    before = facts[0][1] - 1 if facts else 0
    until = None if events is None else max(events - before, 0)
    facts = list(facts_until(facts, moment_us=moment_us, events=until))
    state = fold_facts(workflow_id, facts.copy)
    if moment_us is not None and not facts and not reading.damages:
        raise Failure(f"workflow {workflow_id} was dispatched later than {format_time(moment_us)}")
    if events is not None and (why := beyond(workflow_id, events, state.summary.seq)) is not None:
        raise Failure(f"--as-of {events}: {why}")
    return Workflow(state, partition_of(workflow_id, reading.log.partition_count))


def sound_facts(reading: Reading, workflow_id: str) -> Iterator[Fact]:
    """Yield a workflow's events up to the first that is missing, which is noted. Raises: as :func:`history_records`."""
    expected = 0
    records = list(history_records(reading, workflow_id))
    # Of one whose history is pruned nothing else is to be there.
    pruned_at = next((one for one in records if may_prune(one.value)), None)
    for record in records:
        event = reading.decode(record)
        if event is None:
            continue
        if not expected:  # what comes first is its dispatch, or damage
            expected = event.seq if isinstance(event.data, ev.WorkflowDispatched) else 1
        if event.seq != expected and pruned_at is None:
            reading.note(f"workflow {workflow_id}: event {event.seq} stands where {expected} should")
            return
        expected += 1
        yield event.fact


def members(workflow: Workflow) -> dict[str, Any]:
    """Return a workflow as a JSON object: all fields of ``WorkflowInfo``."""
    state = workflow.state
    return {
        **listing.members(_row(workflow)),
        "input": fragment(None if state.dispatched is None else state.dispatched.input),
        "output": fragment(state.output),
        "state": fragment(state.document),
    }


def _row(workflow: Workflow) -> listing.Row:
    queued = {signal.id: signal.name for signal in workflow.state.queue.values()}
    return listing.Row(workflow.state.summary, workflow.partition, queued)


def waited_for(reading: Reading, workflow: Workflow) -> list[tuple[str, str, str]]:
    """Return the ids of the first few workflows whose outputs a sleeping one waits for, how each stands, and its style."""
    waiting = workflow.state.summary.waiting
    told: list[tuple[str, str, str]] = []
    for other in waiting.outputs[:_WAITED_FOR_MAX] if waiting is not None else ():
        try:
            summary = load(reading, other).state.summary
        except (Failure, WorkflowNotFound):
            told.append((other, "not found", "red"))
            continue
        note = render.note(summary)
        stands = f"{escape(summary.name)}, {summary.status}{f': {note}' if note else ''}"
        told.append((other, stands, render.STYLES.get(summary.status, "")))
    return told


def show(workflow: Workflow, output: Output, *, full: bool, others: Sequence[tuple[str, str, str]] = ()) -> None:
    """Print a workflow as a block of labelled lines. ``others``: of :func:`waited_for`."""
    state, summary = workflow.state, workflow.state.summary
    facts = Facts()
    line = facts.add
    line("workflow", escape(summary.id))
    line("name", escape(summary.name))
    status = summary.status if summary.waiting is None else f"{summary.status}, {render.waiting(summary.waiting)}"
    line("status", status, render.STYLES.get(summary.status, ""))
    for other, stands, style in others:
        line("of", f"{escape(other)} {stands}", style)
    if summary.tags:
        line("tags", render.tags(summary.tags, full=full))
    line("created", render.moment(summary.created_us))
    if summary.completed_us is not None:
        took = render.duration(summary.completed_us - summary.created_us)
        line("completed", f"{render.moment(summary.completed_us)}, after {took}")
    if summary.ray_id != summary.id:
        line("ray", escape(summary.ray_id))
    line("events", f"{summary.seq:,} in partition {workflow.partition}, the last by {escape(summary.worker)}")
    if state.dispatched is not None:
        line("input", render.payload(state.dispatched.input, full=full))
    line("state", render.payload(state.document, full=full))
    if state.output is not None:
        line("output", render.payload(state.output, full=full))
    for number, signal in enumerate(state.queue.values()):
        body = render.payload(signal.body, full=full)
        line("queued" if number == 0 else "", f"{escape(signal.name)} {escape(signal.id)} {body}")
    if summary.error is not None:
        _add_error(facts, summary.error, full)
    facts.show(output.console)


def _add_error(facts: Facts, error: ErrorInfo, full: bool) -> None:
    facts.add("error", render.error(error, full=full), "red")
    if error.details is not None:
        facts.add("details", render.payload(error.details, full=full))
    lines = error.traceback.rstrip("\n").split("\n") if error.traceback else []
    if lines and not full:
        facts.add("traceback", f"{render.count(len(lines), 'line')}; --full shows them", "dim")
        return
    for number, line in enumerate(lines):  # the one text that is shown over several lines
        facts.add("" if number else "traceback", escape(line), "dim")
