"""``gasoline log copy`` and ``log reopen``: a namespace moves to another log, or stays after all."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

from gasoline_es.cli.escape import escape
from gasoline_es.cli.failures import Misuse
from gasoline_es.cli.output import Facts, Output
from gasoline_es.cli.progress import progress
from gasoline_es.cli.render import count
from gasoline_es.cli.settings import Settings
from gasoline_es.log.copying import Copied, copy_log, namespace_of, reopen


def copy(settings: Settings, source: str, target: str, partitions: int | None, output: Output) -> None:
    """Copy a namespace, and write what was copied. Raises: Misuse: one of the URLs cannot be meant; GasolineError."""
    for url in (source, target):
        _require_lasting(url)
    with progress("copying and checking") as advance:

        def tell(doing: str, done: int, total: int) -> None:
            if advance is not None:
                advance(done + (total if doing == "checking" else 0), 2 * total)

        copied = asyncio.run(
            copy_log(source, target, namespace=settings.namespace, partitions=partitions, progress=tell)
        )
    if output.json:
        output.object(asdict(copied))
    else:
        _show(copied, output)


def open_again(settings: Settings, output: Output) -> None:
    """Let a namespace go on where it was. Raises: Misuse; GasolineError."""
    _require_lasting(settings.url)
    namespace = namespace_of(settings.url, namespace=settings.namespace)
    asyncio.run(reopen(settings.url, namespace=namespace))
    if output.json:
        output.object({"url": settings.url, "namespace": namespace})
    else:
        output.console.print(escape(f"namespace {namespace} goes on in {settings.url}"), style="green")


def _require_lasting(url: str) -> None:
    if url.partition(":")[0] not in ("file", "kafka"):
        raise Misuse(f"{url!r} is not the URL of a log that lasts: write file:DIRECTORY or kafka://HOST:9092/NAMESPACE")


def _show(copied: Copied, output: Output) -> None:
    facts = Facts()
    facts.add("from", escape(copied.source))
    facts.add("to", escape(copied.target))
    facts.add("namespace", escape(copied.namespace))
    facts.add("partitions", f"{copied.partitions[0]} before, {copied.partitions[1]} now")
    for name, topic in copied.topics.items():
        found = f", {topic.found} of them by a copy that was broken off" if topic.found else ""
        facts.add(name, f"{count(topic.records, 'record')}{found}, sha-256 {topic.digest[:16]}")
    facts.show(output.console)
    told = "all of it had been copied before" if copied.again else "all is copied, and was read again there"
    output.console.print(f"{told}: it goes on at the new place, and nowhere else", style="green", soft_wrap=True)
