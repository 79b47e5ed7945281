"""The error of a simulation in which nothing can happen any more, and what it says of every workflow that waits."""

from __future__ import annotations

from collections.abc import Collection

from gasoline_es.client import Client
from gasoline_es.core.state import OVER
from gasoline_es.errors import GasolineError
from gasoline_es.handles import WorkflowInfo

SHOWN_MAX = 10


class Stuck(GasolineError):
    """What is awaited never comes, however much time passes. The message says what each workflow waits for."""


async def where_all_stand(client: Client, registered: Collection[str]) -> str:
    """Say of every workflow that is not over what it waits for."""
    stand = [_stands(info, registered) async for info in client.list() if info.status not in OVER]
    if not stand:
        return "every workflow is complete"
    shown = stand[:SHOWN_MAX]
    if len(stand) > len(shown):
        shown.append(f"and {len(stand) - len(shown)} more")
    return "; ".join(shown)


def _stands(info: WorkflowInfo, registered: Collection[str]) -> str:
    who = f"workflow {info.name!r} {info.id}"
    if info.status == "dead":
        return f"{who} is dead: {info.error}"
    if info.name not in registered:
        return f"{who} was not given to this simulation: `Simulation([…, {info.name}])`"
    if info.status == "sleeping":
        until = "" if info.waiting_until is None else f" until {info.waiting_until:%Y-%m-%d %H:%M:%S} UTC"
        return f"{who} waits for {info.waiting_for}{until}"
    return f"{who} is {info.status}"
