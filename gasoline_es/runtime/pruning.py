"""Prunes workflows of an owned partition: the decision (design §8, ``core.pruning``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gasoline_es.core import events as ev
from gasoline_es.core.codec import read_fact
from gasoline_es.core.commands import Prune, Reply
from gasoline_es.core.decide import not_found
from gasoline_es.core.ports import Located
from gasoline_es.core.pruning import Ends, eligible, fold_remains, prune
from gasoline_es.errors import LogError, RecordTooLarge
from gasoline_es.log.port import Log

if TYPE_CHECKING:
    from gasoline_es.runtime.partition import Partition


def prune_one(partition: Partition, command: Prune) -> Reply:
    """Decide the command. The reply may be told once everything decided so far is durable.

    Two of the workflow's records are read, however long its history is.
    """
    workflow_id = command.workflow_id
    live = partition.lives.get(workflow_id)
    summary = partition.views.summary(workflow_id) if live is None else live.state.summary
    if summary is None or summary.pruned == "all":
        return Reply(error=not_found(workflow_id))
    if not eligible(summary, command) or (live is not None and not live.settled):
        return Reply(workflow_id)
    ends = partition.ends_of(workflow_id)
    events, reply = prune(summary, ends, command)
    if not events:
        return reply
    if live is None:
        live = partition.hold(fold_remains(summary, list(ends)))
    try:
        for data in events:
            partition.record(live, data)
    except RecordTooLarge as error:
        partition.let_go_of(live)  # what is in memory of it may be too little for anything else
        return Reply(error=error)
    live.blocked_on = live.state.summary.seq
    return reply


def ends_of(workflow_id: str, log: Log, topic: str, partition: int, located: Located) -> Ends:
    """Read the first and the last event of a workflow. Raises: LogError where the log does not hold them."""
    offsets = [located.first, located.last]
    places = None if located.whole else [located.places[0], located.places[-1]]
    if not located.whole and (located.offsets[0], located.offsets[-1]) != (located.first, located.last):
        places = None  # the last one is none that a replay needs
    records = log.read_at(topic, partition, offsets, places)
    facts: list[ev.Fact] = [read_fact(one.key, one.value) for one in records if one.value is not None]
    if len(facts) != 2 or any(fact[0] != workflow_id for fact in facts):
        raise LogError(f"the log does not hold the first and the last event of workflow {workflow_id}")
    return facts[0], facts[1]
