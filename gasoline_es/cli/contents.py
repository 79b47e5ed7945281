"""What a log is made of, as ``log info`` shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from gasoline_es.cli import render
from gasoline_es.cli.escape import escape
from gasoline_es.cli.output import Facts, Output
from gasoline_es.cli.reading import namespaces, reading
from gasoline_es.cli.settings import Settings
from gasoline_es.log.port import LogInfo, Owner

_SEGMENTS_SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Contents:
    """A log, and the owners in each of the namespaces asked for."""

    log: LogInfo
    owners: Mapping[str, Sequence[Owner]]


def describe(settings: Settings) -> Contents:
    """Read what a log is made of. Raises: Failure, Misuse."""
    wanted = [settings.namespace] if settings.namespace is not None else list(namespaces(settings))
    log: LogInfo | None = None
    owners: dict[str, Sequence[Owner]] = {}
    for namespace in wanted or ["default"]:
        with reading(settings, namespace=namespace) as opened:
            log = opened.log.info()
            owners[namespace] = log.owners
    assert log is not None
    return Contents(log, owners)


def members(contents: Contents) -> dict[str, Any]:
    """Return the contents as one JSON object."""
    log = contents.log
    return {
        "url": log.url,
        "log_id": log.log_id,
        "namespaces": dict(log.namespaces),
        "owners": [
            {
                "namespace": namespace,
                "partition": owner.partition,
                "epoch": owner.epoch,
                "incarnation": owner.incarnation,
                "alive": owner.alive,
                "released": owner.released,
                "host": owner.host,
                "pid": owner.pid,
            }
            for namespace, owners in contents.owners.items()
            for owner in owners
        ],
        "segments": [asdict(segment) for segment in log.segments],
        "torn": list(log.torn),
        "problems": list(log.problems),
    }


def show(contents: Contents, output: Output) -> None:
    """Print the contents as labelled lines and two small tables."""
    from rich.text import Text

    log, console = contents.log, output.console
    head = Facts()
    head.add("log", escape(log.url))
    head.add("id", escape(log.log_id))
    for number, (namespace, partitions) in enumerate(sorted(log.namespaces.items())):
        told = f"{escape(namespace)}, {render.count(partitions, 'partition')}"
        head.add("" if number else "namespaces", told)
    totals = [sum(column) for column in zip(*((s.bytes, s.batches, s.records) for s in log.segments), strict=True)]
    size, batches, records = totals or (0, 0, 0)
    batches_told = f"{batches:,} batch" if batches == 1 else f"{batches:,} batches"
    told = f"{len(log.segments):,}: {render.count(size, 'byte')}, {batches_told}, {render.count(records, 'record')}"
    head.add("segments", told)
    for number, torn in enumerate(log.torn):
        head.add("" if number else "torn", escape(torn), "yellow")
    for number, problem in enumerate(log.problems):
        head.add("" if number else "problems", escape(problem), "red")
    head.show(console)
    console.print()
    console.print(_owners(contents))
    if log.segments:
        console.print()
        console.print(_segments(log))
        if (older := len(log.segments) - _SEGMENTS_SHOWN_MAX) > 0:
            console.print(Text(f"… and {older:,} older; --json shows all", "dim"))


def _owners(contents: Contents) -> Any:
    """Return a table of who owns what: one row for each owner and state, with its partitions."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("NAMESPACE", "PARTITIONS", "OWNER", "PROCESS", "STATE"):
        table.add_column(column, overflow="fold")
    for namespace, owners in contents.owners.items():
        groups: dict[tuple[str, str, str], list[int]] = {}
        for owner in owners:
            state = "released" if owner.released else "alive" if owner.alive else "dead"
            process = f"{owner.pid} on {owner.host}"
            groups.setdefault((owner.incarnation, process, state), []).append(owner.partition)
        owned = {owner.partition for owner in owners}
        free = [p for p in range(contents.log.namespaces.get(namespace, 0)) if p not in owned]
        if free:
            groups["", "", "never owned"] = free
        for (incarnation, process, state), partitions in groups.items():
            style = {"alive": "green", "dead": "red"}.get(state, "dim")
            cells = (namespace, _ranges(partitions), incarnation, process)
            table.add_row(*(Text(escape(cell)) for cell in cells), Text(state, style))
    return table


def _ranges(numbers: Sequence[int]) -> str:
    """Write ascending numbers shortly: ``0-3,7``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _segments(log: LogInfo) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("SEGMENT", "BYTES", "BATCHES", "RECORDS"):
        table.add_column(column, justify="right")
    table.add_column("WRITER", overflow="fold")
    table.add_column("STATE")
    for segment in log.segments[-_SEGMENTS_SHOWN_MAX:]:
        numbers = (segment.number, segment.bytes, segment.batches, segment.records)
        state = Text("closed", "dim") if segment.closed else Text("open", "green")
        table.add_row(*(Text(f"{number:,}") for number in numbers), Text(escape(segment.writer)), state)
    return table
