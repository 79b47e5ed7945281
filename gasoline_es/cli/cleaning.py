"""``gasoline log compact``: what nobody needs any more goes, with a bar while somebody watches."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict

from gasoline_es.cli.escape import escape
from gasoline_es.cli.failures import Failure
from gasoline_es.cli.output import Facts, Output
from gasoline_es.cli.progress import progress
from gasoline_es.cli.reading import namespaces, require_namespace
from gasoline_es.cli.render import count
from gasoline_es.cli.settings import Settings
from gasoline_es.core.retention import Retention
from gasoline_es.log.moved import check_not_moving
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Compaction

_WHY = {
    "void": "never counted",
    "superseded": "a newer one of its key",
    "restarted": "its subject began anew",
    "consumed": "consumed",
    "expired": "by age",
    "pruned": "its workflow was pruned",
    "tombstone": "nothing is left of what it took back",
}


def compact(settings: Settings, output: Output, *, dry_run: bool, mib_per_s: float | None) -> None:
    """Clean the log and write what went. Raises: Failure: another cleaner is at work. LogMoved: it is being copied."""
    every = list(namespaces(settings))
    namespace = settings.namespace or (every[0] if every else "default")
    require_namespace(settings, namespace)
    with progress("cleaning") as advance:

        async def run() -> Compaction:
            log = await open_log(settings.url, namespace=namespace)  # segments are of all namespaces
            try:
                if not log.remote:
                    for name in every:
                        await _check_not_moving(settings.url, name)
                return await log.compact(
                    Retention(time.time_ns() // 1000),
                    dry_run=dry_run,
                    bytes_per_s=None if mib_per_s is None else mib_per_s * 1024 * 1024,
                    progress=advance,
                )
            finally:
                await log.close()

        report = asyncio.run(run())
    if output.json:
        output.object(asdict(report))
    else:
        _show(report, output)
    if report.by == "another":
        raise Failure(f"another process is cleaning {settings.url}: nothing was done here")


async def _check_not_moving(url: str, namespace: str) -> None:
    """Raises: LogMoved. Who begins to copy a namespace now sees that the log is open here, and does not."""
    log = await open_log(url, namespace=namespace, readonly=True)
    try:
        await check_not_moving(log)
    finally:
        await log.close()


def _show(report: Compaction, output: Output) -> None:
    if report.by == "broker":
        output.console.print("the brokers clean this log by themselves, as the policies of its topics say")
        return
    if report.by == "another":
        return
    facts = Facts()
    facts.add("segments", f"{report.segments} looked at, {report.open} in use and left alone")
    facts.add("rewritten", f"{report.rewritten}, of {report.emptied} of which nothing is left")
    facts.add("bytes", f"{report.bytes_before:,} before, {report.bytes_after:,} after")
    for topic, reasons in report.removed.items():
        for reason, removed in reasons.items():
            facts.add(escape(topic), f"{count(removed, 'record')}: {_WHY.get(reason, escape(reason))}")
    facts.show(output.console)
    total = sum(sum(reasons.values()) for reasons in report.removed.values())
    told = "would go; nothing was changed" if report.dry_run else "are gone"
    output.console.print(f"{count(total, 'record')} {told}", style="green", soft_wrap=True)
