"""Projections that a worker runs, and their tables as code reads them (docs/guides/projections.md)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import Event, Gasoline, WorkflowContext, workflow
from gasoline_es.cli.projected import Shown, all_of
from gasoline_es.errors import DefinitionError, NoOwner, ProjectionError, ProjectionNotBuilt, WorkflowNotFound
from gasoline_es.events import WorkflowCompleted, WorkflowDispatched
from gasoline_es.log import ends
from gasoline_es.log.file.log import open_file_log
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Log, Record
from gasoline_es.metrics import collector
from projections.definition import Projection, projection
from projections.stores.port import START

# A process in the middle of a take-over is made by hand.
# pyright: reportPrivateUsage=false
from tests.kafka.cluster_of_memory import cluster_for_all

WAIT_S = 20.0


@workflow
async def double(ctx: WorkflowContext, number: int) -> int:
    return number * 2


def make_tables(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE outputs(workflow TEXT PRIMARY KEY, input INTEGER NOT NULL, output INTEGER)")


def keep_output(event: Event, db: sqlite3.Connection) -> None:
    if isinstance(event.data, WorkflowDispatched):
        db.execute("INSERT INTO outputs VALUES (?, ?, NULL)", (event.workflow_id, int(event.data.input)))
    elif isinstance(event.data, WorkflowCompleted):
        db.execute("UPDATE outputs SET output = ? WHERE workflow = ?", (int(event.data.output), event.workflow_id))


outputs = projection("outputs", version=1, setup=make_tables)(keep_output)


@pytest.fixture(params=["file", "kafka"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A log that outlives who opens it."""
    return url_of(str(request.param), tmp_path, monkeypatch)


@pytest.fixture(params=["file", "memory", "kafka"])
async def gasoline(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Gasoline]:
    async with Gasoline.open(url_of(str(request.param), tmp_path, monkeypatch), partitions=4) as opened:
        yield opened


def url_of(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if kind == "memory":
        return "memory:"
    if kind == "file":
        return f"file:{tmp_path}/log"
    cluster_for_all(monkeypatch)
    return f"kafka://memory:9092/default?state_dir={tmp_path}/state"


async def test_a_worker_keeps_its_projections_up_and_a_reader_waits_for_what_it_needs(gasoline: Gasoline) -> None:
    view = gasoline.projection(outputs)
    with pytest.raises(ProjectionNotBuilt):
        view.snapshot()
    async with gasoline.worker([double], projections=[outputs]):
        for number in range(5):
            handle = await gasoline.dispatch(double, number)
            assert await handle.output(timeout=WAIT_S) == number * 2
            await view.wait_for(handle, timeout=WAIT_S)
            with view.read() as db:
                found = db.execute("SELECT input, output FROM outputs WHERE workflow = ?", (handle.id,)).fetchall()
            assert found == [(number, number * 2)]
        await view.wait_for(timeout=WAIT_S)
        with view.snapshot() as snapshot:
            await view.wait_for(snapshot.positions, timeout=WAIT_S)
            further = {feed: position._replace(offset=10**6) for feed, position in snapshot.positions.items()}
        with pytest.raises(WorkflowNotFound, match="no workflow has the id 'order-4711'"):
            await view.wait_for("order-4711", timeout=WAIT_S)
        with pytest.raises(TimeoutError, match="and that is 1000000"):
            await view.wait_for(further, timeout=0.01)
    with view.read() as db:
        assert db.execute("SELECT count(*), sum(output) FROM outputs").fetchall() == [(5, 20)]


async def test_what_was_folded_is_gone_on_with_by_the_next_worker(gasoline: Gasoline) -> None:
    view = gasoline.projection(outputs)
    for number in range(2):
        async with gasoline.worker([double], projections=[outputs]):
            handle = await gasoline.dispatch(double, number)
            await handle.output(timeout=WAIT_S)
            await view.wait_for(timeout=WAIT_S)
    with view.snapshot() as snapshot:
        assert snapshot.meta.generation == 1
        assert snapshot.db.execute("SELECT count(*) FROM outputs").fetchone() == (2,)


async def test_who_waits_for_a_projection_that_nobody_runs_is_told_so(gasoline: Gasoline) -> None:
    view = gasoline.projection(outputs)
    with pytest.raises(TimeoutError, match="it is not built yet"):
        await view.wait_for(timeout=1)  # so long a cluster may take to answer what there is
    async with gasoline.worker([double], projections=[outputs]):
        await view.wait_for(timeout=WAIT_S)
    handle = await gasoline.dispatch(double, 1)
    with pytest.raises(TimeoutError, match=r"partition \d+, .* Somebody has to run it"):
        await view.wait_for(handle, timeout=0.01)


async def test_who_waits_for_a_projection_waits_for_a_take_over_to_say_what_counts(tmp_path: Path) -> None:
    """filelog.md §4: until a taker has begun, what was acknowledged may seem not to be there; it is waited for."""
    url = f"file:{tmp_path}/log"
    async with Gasoline.open(url, partitions=1) as first, first.worker([double], projections=[outputs]):
        await first.projection(outputs).wait_for(timeout=WAIT_S)
    async with Gasoline.open(url) as first:
        handle = await first.dispatch(double, 1)
    taker = await open_file_log(f"{tmp_path}/log", namespace="default")
    assert taker._incarnation is not None
    assert taker._partitions.claim(0, taker._incarnation, None) is not None  # and it has not begun yet
    async with Gasoline.open(url) as second:
        view = second.projection(outputs)
        with pytest.raises(TimeoutError, match="is being taken over"):
            await view.wait_for(handle, timeout=0.01)
        waiting = asyncio.ensure_future(view.wait_for(handle, timeout=WAIT_S))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done(), "what the workflow has recorded is not in the tables"
        await taker.acquire(0)
        await taker.close()
        async with second.worker([double], projections=[outputs]):
            await waiting
        with view.read() as db:
            assert db.execute("SELECT count(*) FROM outputs").fetchone() == (1,)


async def test_who_waits_is_told_where_a_take_over_does_not_come_to_its_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "TAKING_LIMIT_S", 0.02)
    url = f"file:{tmp_path}/log"
    async with Gasoline.open(url, partitions=1) as first:
        await first.dispatch(double, 1)
    taker = await open_file_log(f"{tmp_path}/log", namespace="default")
    assert taker._incarnation is not None
    taker._partitions.claim(0, taker._incarnation, None)
    async with Gasoline.open(url) as second:
        with pytest.raises(NoOwner, match="is being taken over"):
            await second.projection(outputs).wait_for()
    await taker.close()


async def test_an_event_that_takes_long_does_not_hold_the_worker_up(gasoline: Gasoline) -> None:
    """Steps go on while a projection is at an event; a worker that stops leaves it alone at the limit."""
    at_it, go_on = threading.Event(), threading.Event()

    @projection("slow", setup=make_tables)
    def slow(event: Event, db: sqlite3.Connection) -> None:
        at_it.set()
        assert go_on.wait(WAIT_S)

    worker = gasoline.worker([double], projections=[slow, outputs])
    async with worker:
        await (await gasoline.dispatch(double, 1)).output(timeout=WAIT_S)
        assert await asyncio.to_thread(at_it.wait, WAIT_S)
        assert await (await gasoline.dispatch(double, 2)).output(timeout=WAIT_S) == 4
        await worker.stop(0.01)
        # It is built already if it was begun before the first event came; nothing of one that is not over is stored.
        with suppress(ProjectionNotBuilt), gasoline.projection(slow).snapshot() as snapshot:
            assert {position.offset for position in snapshot.positions.values()} <= {START.offset}
        go_on.set()


async def test_projections_that_cannot_be_are_refused_before_the_worker_runs(gasoline: Gasoline) -> None:
    class NoName(Projection):
        def apply(self, event: Event, db: sqlite3.Connection) -> None: ...

    with pytest.raises(DefinitionError, match="a projection's name is"):
        gasoline.worker([double], projections=[NoName])
    with pytest.raises(DefinitionError, match="two projections are called 'outputs'"):
        gasoline.worker([double], projections=[outputs, outputs])
    with pytest.raises(DefinitionError, match="is no projection"):
        gasoline.worker([double], projections=[double])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ProjectionError, match="is not the URL of a store"):
        gasoline.worker([double], projections=[outputs], store="mysql://x")
    with pytest.raises(DefinitionError, match="is no projection"):
        gasoline.projection(keep_output)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_code_that_is_not_async_reads_projections_too(url: str) -> None:
    async def work() -> str:
        async with Gasoline.open(url) as gasoline, gasoline.worker([double], projections=[outputs]):
            handle = await gasoline.dispatch(double, 4)
            await handle.output(timeout=WAIT_S)
            await gasoline.projection(outputs).wait_for(handle, timeout=WAIT_S)
            return handle.id

    workflow_id = asyncio.run(work())
    with Gasoline.open_sync(url) as gasoline:
        view = gasoline.projection(outputs)
        view.wait_for(workflow_id, timeout=WAIT_S)
        with view.read() as db:
            assert db.execute("SELECT input, output FROM outputs").fetchall() == [(4, 8)]
        with view.snapshot() as snapshot:
            assert snapshot.meta.projection == "outputs"


class Gate(Projection):
    """Stands still where it is told to."""

    name = "gate"
    topics = ("events", "schedules")

    def __init__(self) -> None:
        self.open = threading.Event()
        self.broken = False

    def setup(self, db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE seen(event TEXT)")

    def read(self, record: Record) -> Any:
        return record.key

    def apply(self, event: Any, db: sqlite3.Connection) -> None:
        assert self.open.wait(WAIT_S)
        if self.broken:
            raise ValueError("it is broken")
        db.execute("INSERT INTO seen VALUES (?)", (event,))


async def behind_as_told(log: Log) -> dict[str, int]:
    """What `gasoline projections status` shows."""
    found = [one for one in all_of(log, None) if isinstance(one, Shown)]
    return {one.info.meta.projection: one.behind for one in found if one.info.current}


async def test_how_far_projections_are_behind_is_a_metric_that_agrees_with_status(url: str) -> None:
    gate = Gate()
    gate.open.set()
    async with (
        Gasoline.open(url, partitions=4) as gasoline,
        gasoline.worker([double], projections=[gate, outputs]),
    ):
        log = await open_log(url, readonly=True)
        view = gasoline.projection(gate)
        handle = await gasoline.dispatch(double, 1)
        await handle.output(timeout=WAIT_S)
        await gasoline.schedule(3600, double, 1)
        async with asyncio.timeout(WAIT_S):
            while behind_of(gasoline) != {"gate": 0, "outputs": 0, "workflows": 0}:
                await asyncio.sleep(0.01)
        for one in (view, gasoline.projection(outputs)):  # built, which is a moment after nothing is left to apply
            await one.wait_for(timeout=WAIT_S)
        assert await behind_as_told(log) == {"gate": 0, "outputs": 0, "workflows": 0}
        gate.broken = True
        for number in range(5):
            await (await gasoline.dispatch(double, number)).output(timeout=WAIT_S)
        async with asyncio.timeout(WAIT_S):
            while (
                behind_of(gasoline)["gate"] < 10 or behind_of(gasoline)["outputs"] or behind_of(gasoline)["workflows"]
            ):
                await asyncio.sleep(0.01)
            while (behind := await behind_as_told(log)) != behind_of(gasoline):
                await asyncio.sleep(0.01)  # what is said of a log that is elsewhere is what has come
        # Kafka counts by offsets, as every consumer's lag does: the markers of transactions have some, too.
        assert behind["gate"] == 10 or (log.remote and 10 < behind["gate"] <= 20)
        await log.close()
    assert behind_of(gasoline) == {}


def behind_of(gasoline: Gasoline) -> dict[str, int]:
    (family,) = (one for one in collector(gasoline).collect() if one.name == "gasoline_projection_behind_records")
    return {sample.labels["projection"]: int(sample.value) for sample in family.samples}
