"""Dispatches workflows and sends signals by name, with JSON as it was typed: there is no code here to hold it against."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from gasoline_es.cli.acting import deciding
from gasoline_es.cli.escape import escape
from gasoline_es.cli.failures import Misuse
from gasoline_es.cli.output import Output
from gasoline_es.cli.reading import DEFAULT_NAMESPACE, require_namespace
from gasoline_es.cli.settings import Settings
from gasoline_es.core.commands import Reply

if TYPE_CHECKING:
    from gasoline_es.signalling import Sent


def dispatch(
    settings: Settings,
    name: str,
    payload: bytes,
    tags: Mapping[str, str],
    unique: bool,
    key: str | None,
    as_json: bool | None,
) -> None:
    """Start a workflow, and print its id; that it was there already, where ``unique`` or ``key`` found it.

    Raises: Misuse: both of these, or no key. Failure: there is no such log or namespace; nothing is made. KeyReused.
    """
    output = Output(as_json)
    require_namespace(settings, settings.namespace or DEFAULT_NAMESPACE)

    async def done() -> Reply:
        async with deciding(settings) as gasoline:
            return await gasoline._dispatch_json(name, payload, tags, unique=unique, key=key)  # pyright: ignore[reportPrivateUsage] -- made for this

    try:
        reply = asyncio.run(done())
    except ValueError as refused:  # not an error of the library's own
        raise Misuse(str(refused)) from refused
    if output.json:
        output.object({"id": reply.id, "name": name, "created": reply.created})
    else:
        was_there = "" if reply.created else "  was there already"
        output.console.print(f"{escape(name)} {escape(reply.id)}{was_there}", soft_wrap=True)


def send(
    settings: Settings,
    name: str,
    body: bytes,
    to: str | None,
    workflow: str | None,
    tags: Mapping[str, str],
    caller_id: str | None,
    park_us: int | None,
    as_json: bool | None,
) -> None:
    """Send a signal, and print its id and whose queue it is in; with ``park_us`` also that it is parked, or was got before.

    Raises: Misuse: both ways of addressing, or none. Failure: there is no such log or namespace. WorkflowNotFound;
    SignalDiscarded: it was parked before, and nobody came.
    """
    output = Output(as_json)
    if (to is None) == (workflow is None) or (to is not None and tags):
        raise Misuse("say where it goes: --to ID, or --workflow NAME with any --tag KEY=VALUE, one of the two")
    if to is not None and park_us is not None:
        raise Misuse("--park goes with --workflow NAME: nobody can be started later under the id of --to")
    require_namespace(settings, settings.namespace or DEFAULT_NAMESPACE)

    async def done() -> Sent:
        async with deciding(settings) as gasoline:
            return await gasoline._signal_json(  # pyright: ignore[reportPrivateUsage] -- made for this
                name,
                body,
                to=to,
                workflow=workflow or "",
                tags=tags,
                caller_id=caller_id,
                park=None if park_us is None else timedelta(microseconds=park_us),
            )

    try:
        sent = asyncio.run(done())
    except ValueError as refused:
        raise Misuse(str(refused)) from refused
    if output.json:
        output.object({"id": sent.id, "name": name, "workflow_id": sent.target, "stands": sent.stands})
    else:
        was_there = "" if sent.created else "  was there already"
        if sent.target is not None:
            where = f"to {escape(sent.target)}"
        elif sent.stands == "delivered":
            where, was_there = f"was got by a workflow {escape(workflow or '')} before", ""
        else:
            where = f"parked for {escape(workflow or '')}"
        output.console.print(f"{escape(name)} {escape(sent.id)} {where}{was_there}", soft_wrap=True)
