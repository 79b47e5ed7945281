"""A log opened to decide something about one workflow, and where that stands then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from gasoline_es.cli import render
from gasoline_es.cli.escape import escape
from gasoline_es.cli.output import Output
from gasoline_es.cli.reading import DEFAULT_NAMESPACE, reading
from gasoline_es.cli.settings import Settings
from gasoline_es.cli.single import history_records, load
from gasoline_es.engine import Gasoline
from gasoline_es.handles import WorkflowInfo

Deed = Callable[[Gasoline], Awaitable[None]]


def act(settings: Settings, as_json: bool | None, workflow_id: str, deed: Deed) -> None:
    """Do something with a workflow, and print where it stands then.

    What is decided is durable on return. A process that drives the workflow's partition decides it, or else this one.

    Raises: Failure, WorkflowNotFound: there is no such log, namespace or workflow; nothing is made. GasolineError: refused.
    """
    with reading(settings) as log:
        next(history_records(log, workflow_id))
    info = asyncio.run(_done(settings, workflow_id, deed))
    output = Output(as_json)
    if output.json:
        output.object({"id": info.id, "name": info.name, "status": info.status})
    else:
        show(info, output)


def wake(settings: Settings, as_json: bool | None, workflow_id: str) -> None:
    """Wake a workflow, and say so if that will not do: what it died of is recorded as final. Raises: as :func:`act`."""
    with reading(settings) as log:
        final = bool(load(log, workflow_id).state.summary.failures)
    info = asyncio.run(_done(settings, workflow_id, lambda gasoline: gasoline.wake(workflow_id)))
    output = Output(as_json)
    if output.json:
        output.object({"id": info.id, "name": info.name, "status": info.status, "final": final})
        return
    show(info, output)
    if final:
        told = "it died of a final failure of an activity, and will of it again: to have it tried again, "
        output.console.print(f"{told}`gasoline workflow recover {info.id}`", style="yellow", soft_wrap=True)


def deciding(settings: Settings, *, tracing: bool = False) -> AbstractAsyncContextManager[Gasoline]:
    """Open the log that the settings name to decide something. One that is not there is made: read it first."""
    namespace = settings.namespace or DEFAULT_NAMESPACE
    return Gasoline.open(settings.url, namespace=namespace, tracing=tracing, operator=settings.decided_by)


def looking(settings: Settings) -> AbstractAsyncContextManager[Gasoline]:
    """Open the log that the settings name to ask only: nothing is made, and no trace is left."""
    return Gasoline.open(settings.url, namespace=settings.namespace or DEFAULT_NAMESPACE, readonly=True)


async def _done(settings: Settings, workflow_id: str, deed: Deed) -> WorkflowInfo:
    async with deciding(settings) as gasoline:
        await deed(gasoline)
        return await gasoline.get(workflow_id)


def show(info: WorkflowInfo, output: Output) -> None:
    """Print one line."""
    from rich.text import Text

    text = Text(f"{escape(info.name)} {escape(info.id)}  ", "bold", overflow="fold")
    output.console.print(text.append(info.status, f"not bold {render.STYLES[info.status]}"))
