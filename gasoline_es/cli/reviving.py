"""Wakes every dead workflow that matches, or says which it would wake."""

from __future__ import annotations

import asyncio
import dataclasses

from gasoline_es.cli import render
from gasoline_es.cli.acting import deciding
from gasoline_es.cli.escape import escape
from gasoline_es.cli.failures import Misuse
from gasoline_es.cli.listing import find
from gasoline_es.cli.output import Facts, Output
from gasoline_es.cli.progress import progress
from gasoline_es.cli.reading import reading
from gasoline_es.cli.settings import Settings
from gasoline_es.errors import DefinitionError
from gasoline_es.reviving import ReviveInfo, check_revival, told


def revive(settings: Settings, name: str | None, error: str | None, dry_run: bool, as_json: bool | None) -> None:
    """Do it, or with ``dry_run`` only look, and say what it came to.

    Raises: Misuse: it is not said which. Failure: there is no such log or namespace; nothing is made.
    """
    output = Output(as_json)
    if name is None and error is None:
        raise Misuse('say which: --name NAME or --error TEXT; --error "" is every dead one')
    try:
        wanted = check_revival(name, error)
    except DefinitionError as refused:
        raise Misuse(refused.message) from refused
    with reading(settings) as log:
        dead = [row.summary for row in find(log, wanted)] if dry_run else []
    info = told(dead, dry_run=True) if dry_run else asyncio.run(_done(settings, name, error))
    if output.json:
        output.object(dataclasses.asdict(info))
    else:
        _show(info, output)


async def _done(settings: Settings, name: str | None, error: str | None) -> ReviveInfo:
    with progress("reviving") as advance:
        async with deciding(settings) as gasoline:
            return await gasoline.revive(name=name, error=error, progress=advance)


def _show(info: ReviveInfo, output: Output) -> None:
    """Print how many there are of each name and of each error."""
    facts = Facts()
    facts.add("would wake" if info.dry_run else "woken", render.count(len(info.ids), "workflow"))
    for number, (name, count) in enumerate(info.names.items()):
        facts.add("" if number else "by name", f"{count:,} {escape(name)}")
    for number, (error, count) in enumerate(info.errors.items()):
        facts.add("" if number else "by error", f"{count:,} {escape(error)}")
    if info.passed:
        facts.add("passed", f"{render.count(info.passed, 'workflow')} that somebody else had woken or ended meanwhile")
    facts.show(output.console)
