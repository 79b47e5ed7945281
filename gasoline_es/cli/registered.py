"""Which definitions workers have registered, and which names wait because no worker that lives has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gasoline_es.cli import render
from gasoline_es.cli.escape import escape
from gasoline_es.cli.listing import going_on
from gasoline_es.cli.output import Output
from gasoline_es.cli.reading import Reading
from gasoline_es.cli.stored import Stored
from gasoline_es.core.announced import WORKER, Announced, announced_as
from gasoline_es.log.port import Owner

Kind = Literal["workflow", "activity"]


@dataclass(frozen=True, slots=True)
class Worker:
    """What a worker said it runs, whether it lives, and where; ``owns`` so many partitions."""

    announced: Announced
    alive: bool
    owns: int
    host: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Definition:
    """A name, and the living workers that have registered it.

    ``waiting``: how many workflows of the name are running or sleeping. Of activities nobody counts that.
    """

    kind: Kind
    name: str
    workers: tuple[str, ...]
    waiting: int = 0

    @property
    def stranded(self) -> bool:
        """Whether there are workflows of the name, and no worker lives that would run them."""
        return self.waiting > 0 and not self.workers


@dataclass(frozen=True, slots=True)
class Registered:
    """All of it. ``workers`` in order of their start, ``definitions`` by kind and name."""

    workers: tuple[Worker, ...]
    definitions: tuple[Definition, ...]


def registered(reading: Reading, *, gone: bool = False) -> Registered:
    """Read it. ``gone``: also those workers that did not stop cleanly and live no more."""
    owners = [owner for owner in reading.log.info().owners if owner.alive and not owner.released]
    workers = [_worker(announced, owners) for announced in _announced(reading)]
    alive = [worker for worker in workers if worker.alive]
    waiting = _waiting(reading)
    names: dict[tuple[Kind, str], list[str]] = {("workflow", name): [] for name in waiting}
    for worker in alive:
        said = worker.announced
        kinds: tuple[tuple[Kind, tuple[str, ...]], ...] = (("workflow", said.workflows), ("activity", said.activities))
        for kind, its in kinds:
            for name in its:
                names.setdefault((kind, name), []).append(said.worker)
    order: Mapping[Kind, int] = {"workflow": 0, "activity": 1}
    definitions = [
        Definition(kind, name, tuple(its), waiting[name] if kind == "workflow" else 0)
        for (kind, name), its in sorted(names.items(), key=lambda entry: (order[entry[0][0]], entry[0][1]))
    ]
    return Registered(tuple(workers if gone else alive), tuple(definitions))


def _announced(reading: Reading) -> list[Announced]:
    """Return what stands in the registry, in order of the workers' starts: of each worker the last record counts."""
    return reading.looked_up(lambda stored: _announced_in(reading, stored))


def _announced_in(reading: Reading, stored: Stored) -> list[Announced]:
    topic = reading.topics.registry
    latest: dict[str, tuple[int, Announced | str | None]] = {
        worker: (time_us, said) for worker, time_us, said in stored.announced()
    }
    for partition in range(reading.log.partition_count):
        for record in reading.records(topic, partition, stored.next_of_registry(partition)):
            if not record.key.startswith(WORKER):
                continue
            worker = record.key.removeprefix(WORKER)
            known = latest.get(worker) or stored.announced_last(worker) or (0, None)
            if record.time_us >= known[0]:
                latest[worker] = record.time_us, _read(record.value)
    found: list[Announced] = []
    for worker, (_, said) in latest.items():
        if isinstance(said, Announced):
            found.append(said)
        elif said is not None:  # None: it stopped
            reading.note(f"topic {topic}, key {announced_as(worker)}: {said}")
    return sorted(found, key=lambda one: (one.started, one.worker))


def _read(value: bytes | None) -> Announced | str | None:
    """Return what a record says, or why it does not read."""
    try:
        return None if value is None else Announced.read(value)
    except ValueError as error:
        return str(error)


def _worker(announced: Announced, owners: Iterable[Owner]) -> Worker:
    its = [owner for owner in owners if owner.incarnation == announced.worker]
    host, pid = (its[0].host, its[0].pid) if its else ("", 0)
    return Worker(announced, bool(its), len(its), host, pid)


def _waiting(reading: Reading) -> Counter[str]:
    waiting: Counter[str] = Counter()
    for partition in range(reading.log.partition_count):
        for row in going_on(reading, partition):
            if row.summary.status in ("running", "sleeping"):
                waiting[row.summary.name] += 1
    return waiting


# --- what is shown ----------------------------------------------------------------------------------------------------


def members(found: Registered) -> Iterable[dict[str, Any]]:
    """Yield a JSON object for each worker, then for each definition."""
    for worker in found.workers:
        said = worker.announced
        yield {
            "kind": "worker",
            "worker": said.worker,
            "alive": worker.alive,
            "owns": worker.owns,
            "host": worker.host,
            "pid": worker.pid,
            "started": said.started,
            "library": said.version,
            "workflows": said.workflows,
            "activities": said.activities,
        }
    for one in found.definitions:
        shown: dict[str, Any] = {"kind": one.kind, "name": one.name, "workers": one.workers}
        if one.kind == "workflow":
            shown |= {"waiting": one.waiting, "stranded": one.stranded}
        yield shown


def show(found: Registered, output: Output) -> None:
    """Print the workers, then the workflows, and in a line what waits for nobody."""
    from rich.table import Table
    from rich.text import Text

    console = output.console
    if found.workers:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("WORKER", "STARTED", "LIBRARY", "PROCESS", "OWNS", "STATE"):
            table.add_column(column, overflow="fold")
        for worker in found.workers:
            said = worker.announced
            process = f"{worker.pid} on {worker.host}" if worker.alive and worker.pid else ""
            cells = (said.worker, f"{said.started[:19]}Z", said.version, process, str(worker.owns))
            state = Text("alive", "green") if worker.alive else Text("gone", "dim")
            table.add_row(*(Text(escape(cell)) for cell in cells), state)
        console.print(table)
        console.print()
    if found.definitions:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("KIND", "NAME", "WORKERS", "RUNNING OR SLEEPING"):
            table.add_column(column, overflow="fold")
        for one in found.definitions:
            style = "bold red" if one.stranded else ""
            waiting = f"{one.waiting:,}" if one.kind == "workflow" else ""
            row = (one.kind, one.name, f"{len(one.workers):,}", waiting)
            table.add_row(*(Text(escape(cell), style) for cell in row))
        console.print(table)
    stranded = [one for one in found.definitions if one.stranded]
    if stranded:
        names = ", ".join(escape(one.name) for one in stranded)
        told = f"{render.count(sum(one.waiting for one in stranded), 'workflow')} wait for a worker that runs {names}"
        console.print(Text(told, "bold red"))
    alive = sum(worker.alive for worker in found.workers)
    console.print(Text(f"{render.count(alive, 'worker')} alive" if alive else "no worker is alive", "dim"))
