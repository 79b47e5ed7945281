"""Takes away a signal that waits somewhere: where, is looked up first; the owner of that place decides."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from gasoline_es.cli import parked, queues
from gasoline_es.cli.acting import deciding
from gasoline_es.cli.escape import escape
from gasoline_es.cli.failures import Failure
from gasoline_es.cli.output import Output
from gasoline_es.cli.reading import reading
from gasoline_es.cli.settings import Settings

_SHOWN_MAX: Final = 5
"""So many places are named in an error."""

Place = queues.Found | parked.Standing


def discard(settings: Settings, signal_id: str, to: str | None, only_parked: bool, as_json: bool | None) -> None:
    """Discard it where it waits, and say where that was.

    Raises: Failure: there is no such log, namespace or signal, or it waits in several places. WorkflowNotFound: ``to`` is
    no workflow. GasolineError: a workflow has taken it.
    """
    output = Output(as_json)
    with reading(settings) as log:
        found, others = queues.find(log, signal_id, to)
    places = _places(signal_id, [] if only_parked else found, others, only_parked)
    for done in asyncio.run(_done(settings, signal_id, places)):
        if output.json:
            output.object(done)
        else:
            _show(done, output)


def _places(
    signal_id: str, found: Sequence[queues.Found], others: Sequence[parked.Standing], only_parked: bool
) -> list[Place]:
    """Return where it is to be discarded. Raises: Failure: that cannot be told, or is nowhere."""
    everywhere: list[Place] = [*found, *others]
    waiting = [one for one in everywhere if _waits(one)] or everywhere  # where it does not, the owner says why
    if not waiting:
        raise Failure(f"no signal {signal_id!r} is parked: `gasoline signal get` with the id shows what became of it")
    if len(waiting) == 1 or only_parked:
        return waiting
    named = ", ".join(_name(one) for one in waiting[:_SHOWN_MAX])
    more = f" and {len(waiting) - _SHOWN_MAX} more" if len(waiting) > _SHOWN_MAX else ""
    does = "waits" if _waits(waiting[0]) else "waits no more, but came"
    raise Failure(
        f"signal {signal_id!r} {does} in {len(waiting)} places ({named}{more}): say which, with --to ID, or --parked for "
        f"those that wait for workflows to be started"
    )


def _waits(one: Place) -> bool:
    return one.stands == "queued" if isinstance(one, queues.Found) else one.parked.live


def _name(one: Place) -> str:
    if isinstance(one, queues.Found):
        return f"{one.workflow} {one.workflow_id}"
    return f"parked for {one.given.workflow} {dict(one.given.tags)}"


async def _done(settings: Settings, signal_id: str, places: Sequence[Place]) -> list[dict[str, Any]]:
    done: list[dict[str, Any]] = []
    async with deciding(settings) as gasoline:
        for one in places:
            name, workflow = (
                (one.data.name, one.workflow) if isinstance(one, queues.Found) else (one.given.name, one.given.workflow)
            )
            told: dict[str, Any] = {
                "id": signal_id,
                "name": name,
                "workflow_id": None,
                "workflow": workflow,
                "status": None,
            }
            if isinstance(one, queues.Found):
                reply = await gasoline._discard(signal_id, one.workflow_id)  # pyright: ignore[reportPrivateUsage] -- made for this
                told["workflow_id"] = one.workflow_id
                told["status"] = (await gasoline.get(one.workflow_id)).status
            else:
                reply = await gasoline._discard_parked(signal_id, workflow, dict(one.given.tags))  # pyright: ignore[reportPrivateUsage] -- made for this
            done.append({**told, "discarded": reply.created})
    return done


def _show(done: dict[str, Any], output: Output) -> None:
    """Print one line; and what is left to do for a workflow that is dead."""
    did = "discarded" if done["discarded"] else "was discarded before"
    workflow_id = done["workflow_id"]
    where = f"was parked for {escape(done['workflow'])}"
    if workflow_id is not None:
        where = f"was queued for {escape(done['workflow'])} {workflow_id}"
    output.console.print(f"{escape(done['name'])} {escape(done['id'])} {did}: {where}", soft_wrap=True)
    if done["status"] == "dead":
        output.console.print(
            f"that workflow is dead: `gasoline workflow wake {workflow_id}` runs it again", style="dim", soft_wrap=True
        )
