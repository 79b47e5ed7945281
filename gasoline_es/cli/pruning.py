"""Prunes the histories of workflows that are over, or says how many it would prune."""

from __future__ import annotations

import asyncio
import dataclasses

from gasoline_es.cli import render
from gasoline_es.cli.acting import deciding, looking
from gasoline_es.cli.escape import escape
from gasoline_es.cli.failures import Misuse
from gasoline_es.cli.output import Facts, Output
from gasoline_es.cli.reading import DEFAULT_NAMESPACE, require_namespace
from gasoline_es.cli.settings import Settings
from gasoline_es.cli.typed import length_of
from gasoline_es.pruning import PruneInfo


def prune_history(
    settings: Settings,
    name: str | None,
    older_than: str | None,
    archive: str | None,
    dry_run: bool,
    as_json: bool | None,
) -> None:
    """Do it, or with ``dry_run`` only look, and say what it came to.

    Raises: Misuse: it is not said which. Failure: there is no such log or namespace; nothing is made.
    """
    output = Output(as_json)
    if name is None and older_than is None:
        raise Misuse("say which: --name NAME or --older-than AGE, or both")
    age_us = length_of("--older-than", older_than) or 0
    require_namespace(settings, settings.namespace or DEFAULT_NAMESPACE)
    info = asyncio.run(_done(settings, name, age_us / 1e6, archive, dry_run=dry_run))
    if output.json:
        output.object(dataclasses.asdict(info))
    else:
        _show(info, output)


async def _done(settings: Settings, name: str | None, age_s: float, archive: str | None, *, dry_run: bool) -> PruneInfo:
    async with looking(settings) if dry_run else deciding(settings) as gasoline:
        return await gasoline.prune_history(name=name, age=age_s, archive=archive, dry_run=dry_run)


def _show(info: PruneInfo, output: Output) -> None:
    facts = Facts()
    told = f"{render.count(info.workflows, 'workflow')}, {render.count(info.events, 'event')}"
    facts.add("would prune" if info.dry_run else "pruned", told)
    for number, (name, count) in enumerate(info.names.items()):
        facts.add("" if number else "by name", f"{count:,} {escape(name)}")
    facts.show(output.console)
