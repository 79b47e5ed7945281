"""Takes signals out of the queues of workflows of an owned partition (semantics.md §5, ``core.discarding``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gasoline_es.core import events as ev
from gasoline_es.core.commands import Discard, Reply
from gasoline_es.core.decide import not_found
from gasoline_es.core.discarding import became, not_queued
from gasoline_es.errors import GasolineError, RecordTooLarge

if TYPE_CHECKING:
    from gasoline_es.runtime.partition import Partition


def discard(partition: Partition, command: Discard) -> Reply:
    """Decide the command. The reply may be told once everything decided so far is durable.

    A signal that is queued is found at once. What became of another one is told by the whole history, which is read for it:
    this is an operator's deed, and what a loop has forgotten is to be told too.
    """
    live = partition.load(command.workflow_id)
    if live is None:
        return Reply(error=not_found(command.workflow_id))
    if live.state.summary.status == "unreadable":
        partition.drop_if_idle(live)
        why = f"workflow {live.id} takes no command about its signals: {live.state.summary.error}"
        return Reply(error=GasolineError(why, workflow_id=live.id))
    if command.signal_id not in live.state.queue:
        reply = not_queued(command, became(partition.facts(live), command.signal_id))
        partition.drop_if_idle(live)
        return reply
    try:
        partition.record(live, ev.SignalDiscarded((command.signal_id,), command.by))
    except RecordTooLarge as error:
        return Reply(error=error)
    partition.begin(live, None)
    return Reply(command.signal_id, created=True)
