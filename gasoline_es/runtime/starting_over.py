"""Lets workflows of an owned partition start over, or a copy of one (semantics.md §4, ``core.starting_over``).

It is decided from the whole history: that which is durable and that which is on its way there. Whatever happens to the
append, there is the whole rerun afterwards, or none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gasoline_es.core import events as ev
from gasoline_es.core.commands import Reply, Rerun
from gasoline_es.core.decide import not_found
from gasoline_es.core.folding import fold_without, superseded_in
from gasoline_es.core.location import format_location, parse_location
from gasoline_es.core.starting_over import Plan, RerunInfo, copied, fork, plan
from gasoline_es.errors import GasolineError, RecordTooLarge, RerunRefused

if TYPE_CHECKING:
    from gasoline_es.runtime.live import Live
    from gasoline_es.runtime.partition import Partition


def start_over(partition: Partition, command: Rerun) -> Reply:
    """Decide the command. The reply may be told once everything decided so far is durable."""
    live = partition.load(command.workflow_id)
    if live is None:
        return Reply(error=not_found(command.workflow_id))
    try:
        reply = _repeated(partition, live, command)
        if reply is None:
            reply = _decide(partition, live, command)
    except (RerunRefused, RecordTooLarge) as error:
        reply = Reply(error=error)
    if reply.error is not None or command.fork_id is not None:
        partition.drop_if_idle(live)  # nothing was decided about it
    return reply


def _repeated(partition: Partition, live: Live, command: Rerun) -> Reply | None:
    """Answer a command that was decided before: its caller never learned what became of it."""
    target = live if command.fork_id is None else partition.load(command.fork_id)
    generations = () if target is None else target.state.generations
    for generation in generations:
        if target is not None and generation.rerun_id == command.rerun_id:
            info = RerunInfo(target.id, format_location(generation.start), generation.number, 0, (), ())
            return Reply(target.id, output=info.json())
    return None


def _decide(partition: Partition, live: Live, command: Rerun) -> Reply:
    """Raises: RerunRefused, RecordTooLarge: nothing was decided."""
    summary = live.state.summary
    if summary.status == "unreadable":
        why = f"workflow {live.id} cannot start over: {summary.error}"
        return Reply(error=GasolineError(why, workflow_id=live.id))
    facts = partition.facts(live)
    planned = plan(facts, parse_location(command.start), fork=command.fork_id is not None)
    if command.fork_id is None:
        _rerun(partition, live, facts, planned.fact(command.by, command.rerun_id))
        decided = live.id
    else:
        _fork(partition, live, planned, command, command.fork_id)
        decided = command.fork_id
    return Reply(decided, created=command.fork_id is not None, output=planned.info(decided).json())


def _rerun(partition: Partition, live: Live, facts: list[ev.Fact], rerun: ev.WorkflowRerun) -> None:
    partition.require_room(live, rerun)
    summary = live.state.summary
    following: ev.Fact = (live.id, summary.seq + 1, summary.updated_us, rerun, summary.ray_id, summary.worker)
    state = fold_without(superseded_in([*facts, following]), live.id, facts)
    new = partition.replace(live, state)
    partition.record(new, rerun)
    partition.begin(new, live)


def _fork(partition: Partition, live: Live, planned: Plan, command: Rerun, fork_id: str) -> None:
    """Begin a new workflow with a copy of what holds, its times and all: in one append, as all that is decided at once."""
    name, ray_id = live.state.summary.name, live.state.summary.ray_id
    events: list[tuple[int | None, ev.EventData]] = [*copied(planned, live.id, command.rerun_id)]
    events.append((None, fork(planned, command.by, command.rerun_id)))
    new = partition.new(fork_id, name, ray_id)
    try:
        for _, data in events:
            partition.require_room(new, data)  # each as it was, but for its envelope
    except RecordTooLarge:
        del partition.lives[fork_id]
        raise
    for time_us, data in events:
        partition.record(new, data, time_us)
    partition.begin(new, None)
