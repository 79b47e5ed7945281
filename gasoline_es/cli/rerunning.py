"""Lets a workflow start over, or says what that would do."""

from __future__ import annotations

import asyncio
import dataclasses

from gasoline_es.cli import render
from gasoline_es.cli.acting import deciding
from gasoline_es.cli.escape import escape
from gasoline_es.cli.failures import Misuse
from gasoline_es.cli.output import Output
from gasoline_es.cli.reading import reading
from gasoline_es.cli.settings import Settings
from gasoline_es.cli.single import sound_facts
from gasoline_es.core.location import Location, format_location, read_location
from gasoline_es.core.starting_over import RerunInfo, plan


def rerun(settings: Settings, workflow_id: str, start: str, fork: bool, dry_run: bool, as_json: bool | None) -> None:
    """Do it, or with ``dry_run`` plan it, and say what it came to.

    Raises: Misuse: no location. Failure, WorkflowNotFound, RerunRefused: there is no such log, workflow or step.
    """
    output = Output(as_json)
    try:
        at = read_location(start)
    except ValueError as error:
        raise Misuse(f'--from {start!r} is no location: write it as "{{2, 5, 3}}" or 2,5,3') from error
    with reading(settings) as log:
        info = plan(list(sound_facts(log, workflow_id)), at, fork=fork).info(workflow_id)
    if not dry_run:
        info = asyncio.run(_done(settings, workflow_id, at, fork))
    if output.json:
        output.object(dataclasses.asdict(info))
    else:
        output.console.print(told(info, workflow_id, fork, dry_run), highlight=False, markup=False, soft_wrap=True)


async def _done(settings: Settings, workflow_id: str, start: Location, fork: bool) -> RerunInfo:
    async with deciding(settings) as gasoline:
        return await gasoline.rerun(workflow_id, format_location(start), fork=fork)


def told(info: RerunInfo, workflow_id: str, fork: bool, dry_run: bool) -> str:
    """Say it in a sentence."""
    who = f"a fork of workflow {workflow_id}" if fork else f"workflow {workflow_id}"
    does = "would start over" if dry_run else "starts over"
    named = f" as {info.id}" if fork and not dry_run else ""
    parts = [f"{render.count(info.events, 'event')} {'not copied' if fork else 'superseded'}"]
    if info.signals:
        parts.append(f"{render.count(len(info.signals), 'signal')} queued again")
    if info.beside:
        parts.append(f"{' '.join(info.beside)} beside it {'stays' if len(info.beside) == 1 else 'stay'}")
    return escape(f"{who} {does}{named} from {info.start}, generation {info.generation}: {', '.join(parts)}")
