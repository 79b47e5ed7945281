"""Makes and changes schedules by hand, and prints where they stand then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gasoline_es.cli.acting import deciding
from gasoline_es.cli.escape import escape
from gasoline_es.cli.failures import Misuse
from gasoline_es.cli.output import Output
from gasoline_es.cli.reading import DEFAULT_NAMESPACE, reading, require_namespace
from gasoline_es.cli.scheduled import members, one_of, show_one
from gasoline_es.cli.settings import Settings
from gasoline_es.core.commands import ScheduleVerb
from gasoline_es.engine import Gasoline


def made(
    settings: Settings,
    name: str,
    when: str | float,
    workflow: str,
    payload: bytes,
    tags: Mapping[str, str],
    timezone: str,
    missed: Any,
    overlap: Any,
    as_json: bool | None,
) -> None:
    """Make a schedule, or change it. Raises: Misuse: no time, zone or rule. Failure: there is no such log or namespace."""

    def deed(gasoline: Gasoline) -> Awaitable[object]:
        return gasoline._set_schedule(  # pyright: ignore[reportPrivateUsage] -- made for this
            when, workflow, payload, name, tags, timezone, missed, overlap, replace=True
        )

    require_namespace(settings, settings.namespace or DEFAULT_NAMESPACE)
    _decided(settings, name, deed, as_json)


def changed(settings: Settings, verb: ScheduleVerb, name: str, as_json: bool | None) -> None:
    """Do something about a schedule. Raises: Failure: there is no such log, namespace or schedule."""
    with reading(settings) as log:
        one_of(log, name, removed=verb == "remove")

    def deed(gasoline: Gasoline) -> Awaitable[object]:
        return gasoline._change_schedule(verb, name)  # pyright: ignore[reportPrivateUsage] -- made for this

    _decided(settings, name, deed, as_json)


def trigger(settings: Settings, name: str, as_json: bool | None) -> None:
    """Start a workflow of a schedule now, and print which. Raises: Failure: there is no such log, namespace or schedule."""
    with reading(settings) as log:
        one_of(log, name, removed=False)

    async def done() -> tuple[str, str]:
        async with deciding(settings) as gasoline:
            reply = await gasoline._change_schedule("trigger", name)  # pyright: ignore[reportPrivateUsage] -- made for this
            return reply.id, (await gasoline.get(reply.id)).name

    started, workflow = asyncio.run(done())
    output = Output(as_json)
    if output.json:
        output.object({"id": started, "name": workflow, "schedule": name})
    else:
        output.console.print(f"{escape(workflow)} {started} started by {escape(name)}", soft_wrap=True)


def _decided(
    settings: Settings, name: str, deed: Callable[[Gasoline], Awaitable[object]], as_json: bool | None
) -> None:
    async def done() -> None:
        async with deciding(settings) as gasoline:
            await deed(gasoline)

    try:
        asyncio.run(done())
    except ValueError as refused:  # not an error of the library's own
        raise Misuse(str(refused)) from refused
    output = Output(as_json)
    with reading(settings) as log:
        found = one_of(log, name, removed=True)
        if output.json:
            output.object(members(found, whole=True))
        else:
            show_one(found, output)
