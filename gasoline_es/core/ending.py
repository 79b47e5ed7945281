"""How a workflow ends by somebody's wish, and how one that died comes back: decided from its fold (semantics.md §7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, cast

from gasoline_es.core import events as ev
from gasoline_es.core.commands import Cancel, Recover, Reply, Revive, Silence
from gasoline_es.core.history import TAKEN_CHARACTERS_MAX, ActivityEntry, History
from gasoline_es.core.location import Location, format_location, parse_location
from gasoline_es.core.state import WorkflowState
from gasoline_es.errors import ActivityFailed, GasolineError

FAILURES_MAX = 1_000
"""So many failures are noted with a workflow's death: a body may raise any number of them in one group."""


def discarded(queue: Iterable[str]) -> Iterator[ev.SignalDiscarded]:
    """Name the signals that are left in as many events as it takes for each to fit into a record."""
    ids: list[str] = []
    characters = 0
    for signal_id in queue:
        ids.append(signal_id)
        characters += len(signal_id)
        if characters > TAKEN_CHARACTERS_MAX:
            yield ev.SignalDiscarded(tuple(ids))
            ids, characters = [], 0
    if ids:
        yield ev.SignalDiscarded(tuple(ids))


def cancelled(
    state: WorkflowState, error: ev.ErrorInfo | None = None, prune: ev.PruneRule = "none"
) -> list[ev.EventData]:
    """Return the facts that end a workflow as cancelled. ``error``: what left its body while it cleaned up.

    ``prune``: what may go of it; nothing, where nobody knows its definition.
    """
    return [*discarded(state.queue), ev.WorkflowCancelled(state.document, error, prune)]


def cancel(state: WorkflowState, command: Cancel) -> tuple[list[ev.EventData], Reply]:
    """Ask a body to clean up; end at once what has none any more, or is not to. Asked again, nothing changes."""
    workflow_id, status = command.workflow_id, state.summary.status
    if status == "complete":
        return [], _refused(workflow_id, "is complete: there is nothing left to cancel")
    if status == "unreadable":
        return [], _refused(workflow_id, f"cannot be cancelled: {state.summary.error}")
    if status == "silenced":
        return [], _refused(workflow_id, "was silenced, so it is over already: there is nothing left to cancel")
    if status == "cancelled":
        return [], Reply(workflow_id)
    events: list[ev.EventData] = []
    if state.cancel_seq is None:
        events.append(ev.WorkflowCancelRequested(command.by))
    if command.now or status == "dead":
        events += cancelled(state)
    return events, Reply(workflow_id)


def silence(state: WorkflowState, command: Silence) -> tuple[list[ev.EventData], Reply]:
    """End a workflow as it stands: its body has no say, and nothing of it is undone. Asked again, nothing changes."""
    workflow_id, status = command.workflow_id, state.summary.status
    if status == "silenced":
        return [], Reply(workflow_id)
    if status in ("complete", "cancelled"):
        return [], _refused(workflow_id, f"is {status}: it does not run any more, so there is nothing to silence")
    if status == "unreadable":
        return [], _refused(workflow_id, f"cannot be silenced: {state.summary.error}")
    if state.cancel_seq is not None:
        # From that on it can only end as cancelled: who asked for it may rely on that.
        return [], _refused(
            workflow_id,
            "is being cancelled, so it cannot be silenced. To end it at once, without its clean-up: "
            "`gasoline workflow cancel ID --now`, or `cancel(now=True)`",
        )
    return [*discarded(state.queue), ev.WorkflowSilenced(command.by)], Reply(workflow_id)


def no_more(workflow_id: str) -> Reply:
    """Refuse to run a workflow that was silenced."""
    return _refused(
        workflow_id,
        "was silenced, so it will not run again. A new workflow can go on from a step of it: "
        "`gasoline workflow rerun ID --from LOCATION --fork`",
    )


def recover(state: WorkflowState, command: Recover) -> tuple[list[ev.EventData], Reply]:
    """Clear the failures that a workflow died of, so that these activities run again, from their first attempt."""
    workflow_id, status = command.workflow_id, state.summary.status
    if status == "silenced":
        return [], no_more(workflow_id)
    if status != "dead":
        told = f": {state.summary.error}" if status == "unreadable" else ""
        return [], _refused(workflow_id, f"is {status}{told}. Only a dead workflow can be recovered")
    at = state.rollback_at
    if at is not None and not state.failures:
        return [], _refused(
            workflow_id,
            f"was rolled back at {format_location(at)} after {state.summary.error}: what it did before is undone, so it cannot "
            f"go on. Start it over from its checkpoint, or a step before: `gasoline workflow rerun`",
        )
    if not state.failures:
        return [], _refused(
            workflow_id,
            f"did not die of an activity's failure, but of {state.summary.error}. Only a failure that leaves the body as "
            f"it is can be cleared. Mend the code, then wake the workflow, which replays what is recorded",
        )
    undone = [location for location in state.failures if _is_undone(state, location)]
    if undone:
        places = ", ".join(map(format_location, undone))
        return [], _refused(
            workflow_id,
            f"failed at {places}, and was rolled back since: what was done before it is undone, so it cannot go on from "
            f"there. Rerun it from a step",
        )
    return [ev.WorkflowRecovered(command.by, state.failures)], Reply(workflow_id)


def revive(state: WorkflowState, command: Revive) -> tuple[list[ev.EventData], Reply]:
    """Wake a dead workflow, as one of many: one that is not dead any more, or of something else, is none of them."""
    summary = state.summary
    if summary.status != "dead" or command.error not in str(summary.error):
        return [], Reply(command.workflow_id)
    if not command.recover:
        return [ev.WorkflowWoken(command.by)], Reply(command.workflow_id, created=True)
    events, reply = recover(state, Recover(command.workflow_id, command.by))
    return (events, replace(reply, created=True)) if events else ([], Reply(command.workflow_id))


def _is_undone(state: WorkflowState, location: Location) -> bool:
    """Whether a failure belongs to what a rollback undid; those of the rollback itself stand below its own location."""
    at = state.rollback_at
    return at is not None and location[: len(at)] != at


def _refused(workflow_id: str, why: str) -> Reply:
    return Reply(error=GasolineError(f"workflow {workflow_id} {why}", workflow_id=workflow_id))


def failures_in(error: BaseException, history: History) -> tuple[Location, ...]:
    """Return where the activities are whose recorded final failures this error is, or holds as a group."""
    found: dict[Location, None] = {}
    to_see: list[BaseException] = [error]
    while to_see and len(found) < FAILURES_MAX:
        one = to_see.pop(0)
        if isinstance(one, BaseExceptionGroup):
            to_see[:0] = _errors_in(cast("BaseExceptionGroup[BaseException]", one))
        elif isinstance(one, ActivityFailed):
            location = _located(one)
            entry = None if location is None else history.at(location)
            # Anybody can make such an error; only a recorded failure can be cleared.
            if (
                location is not None
                and isinstance(entry, ActivityEntry)
                and entry.failures
                and entry.failures[-1].final
            ):
                found[location] = None
    return tuple(sorted(found))


_ERRORS: Final[Any] = BaseExceptionGroup.__dict__["exceptions"]


def _errors_in(group: BaseExceptionGroup[BaseException]) -> tuple[BaseException, ...]:
    """Return what a group was made of, whatever its class makes of ``exceptions``."""
    found: tuple[BaseException, ...] = _ERRORS.__get__(group)
    return found


def _located(error: ActivityFailed) -> Location | None:
    try:
        return parse_location(error.location)
    except (AttributeError, TypeError, ValueError):
        return None
