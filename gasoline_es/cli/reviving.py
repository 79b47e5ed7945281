"""Wakes every dead workflow that matches, or says which it would wake."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Final

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
from gasoline_es.reviving import ReviveInfo, check_revival, fit, told

PASSED: Final = "somebody else had woken or ended meanwhile"
PASSED_RECOVERY: Final = f"{PASSED}, or were rolled back since"
RECOVER_MANY: Final = "to have it tried again, --recover"


def revive(
    settings: Settings, name: str | None, error: str | None, recover: bool, dry_run: bool, as_json: bool | None
) -> None:
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
    if dry_run:
        would = fit(dead, recover=recover)
        info = told(would, dry_run=True, left=len(dead) - len(would))
    else:
        info = asyncio.run(_done(settings, name, error, recover))
    if output.json:
        output.object(dataclasses.asdict(info))
    else:
        _show(info, output, recover=recover)


async def _done(settings: Settings, name: str | None, error: str | None, recover: bool) -> ReviveInfo:
    with progress("reviving") as advance:
        async with deciding(settings) as gasoline:
            return await gasoline.revive(name=name, error=error, recover=recover, progress=advance)


def _show(info: ReviveInfo, output: Output, *, recover: bool) -> None:
    """Print how many there are of each name and of each error, and what is left to do."""
    facts = Facts()
    did, would = ("recovered", "would recover") if recover else ("woken", "would wake")
    facts.add(would if info.dry_run else did, render.count(len(info.ids), "workflow"))
    for number, (name, count) in enumerate(info.names.items()):
        facts.add("" if number else "by name", f"{count:,} {escape(name)}")
    for number, (error, count) in enumerate(info.errors.items()):
        facts.add("" if number else "by error", f"{count:,} {escape(error)}")
    if info.passed:
        facts.add("passed", f"{render.count(info.passed, 'workflow')} that {PASSED_RECOVERY if recover else PASSED}")
    if info.left:
        facts.add(
            "left", f"{render.count(info.left, 'workflow')} that died of no activity's failure: wake them", "yellow"
        )
    if info.final and not recover:
        again = f"{info.final:,} of them died of a final failure of an activity, and will of it again: {RECOVER_MANY}"
        facts.add("but", again, "yellow")
    facts.show(output.console)
