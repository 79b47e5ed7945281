"""A rebuild in several processes gives what one gives, whatever happens to one of them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import Event, Gasoline
from gasoline_es.log.opening import open_log
from projections import Workflows, building, projection
from projections.building import Progress, rebuild
from projections.comparing import verify
from projections.parallel import shares
from projections.stores.opening import open_store
from projections.stores.port import Meta
from projections.workflows import WorkflowsFolding
from tests.engine.harness import soon
from tests.engine.programs import ten_steps
from tests.projection.orders import turnover


@projection("seen", setup=lambda db: db.execute("CREATE TABLE seen(id TEXT PRIMARY KEY, pid INTEGER)"))
def seen(event: Event, db: Any) -> None:
    db.execute("INSERT INTO seen VALUES (?, ?)", (f"{event.workflow_id}/{event.seq}", os.getpid()))


class DiesElsewhere(Workflows):
    """Can be folded by the process alone that asked for it."""

    def folding(self, partition: int, db: Any) -> WorkflowsFolding:
        if multiprocessing.parent_process() is not None:
            os._exit(1)
        return super().folding(partition, db)


ANNOUNCED = 2
"""A worker says in the registry what it runs, and takes that back."""


@pytest.fixture
def worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "RECORDS_WORTH_IT", 0)


async def recorded(url: str, workflows: int) -> None:
    async with Gasoline.open(url) as gasoline, gasoline.worker([ten_steps]):
        handles = await asyncio.gather(*(gasoline.dispatch(ten_steps, number) for number in range(workflows)))
        await soon(asyncio.gather(*(handle.output() for handle in handles)))


@pytest.mark.usefixtures("worth_it")
async def test_several_processes_build_what_one_builds(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/log"
    await recorded(url, 60)
    log = await open_log(url, readonly=True)
    store = open_store(log)
    told: list[Progress] = []
    built = rebuild(log, store, Workflows(), told.append, jobs=2)
    assert built.records == 60 * 12 + ANNOUNCED
    assert told[-1] == Progress("workflows", 60 * 12 + ANNOUNCED, 60 * 12 + ANNOUNCED)
    assert verify(log, store, Workflows()).difference is None
    with store.snapshot("workflows") as snapshot:
        counts = snapshot.db.execute("SELECT name, status, count FROM counts").fetchall()
    assert counts == [("ten_steps", "complete", 60)]
    await log.close()


@pytest.mark.usefixtures("worth_it")
async def test_a_function_is_folded_in_several_processes(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/log"
    await recorded(url, 40)
    log = await open_log(url, readonly=True)
    store = open_store(log)
    assert rebuild(log, store, seen, jobs=2).records == 40 * 12
    with store.snapshot("seen") as snapshot:
        assert snapshot.db.execute("SELECT count(*), count(DISTINCT pid) FROM seen").fetchall() == [(40 * 12, 2)]
        assert snapshot.db.execute("SELECT count(*) FROM seen WHERE pid = ?", (os.getpid(),)).fetchall() == [(0,)]
    await log.close()


@pytest.mark.usefixtures("worth_it")
async def test_what_a_process_that_died_has_left_is_folded_here(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/log"
    await recorded(url, 20)
    log = await open_log(url, readonly=True)
    store = open_store(log)
    assert rebuild(log, store, DiesElsewhere(), jobs=2).records == 20 * 12 + ANNOUNCED
    assert verify(log, store, Workflows()).difference is None
    await log.close()


async def test_who_has_a_module_in_the_librarys_way_builds_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line puts the folder of the code first: what others load by that path is not this library any more."""
    log = await open_log(f"file:{tmp_path}/log")
    meta = Meta("seen", 1, log.log_id, "default", 1, "building")
    assert len(shares(log, None, meta, seen, 2)) == 2
    (tmp_path / "projections.py").touch()
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    assert shares(log, None, meta, seen, 2) == []
    await log.close()


async def test_a_projection_that_others_cannot_load_is_folded_here(tmp_path: Path) -> None:
    log = await open_log(f"file:{tmp_path}/log")
    meta = Meta("turnover", 1, log.log_id, "default", 1, "building")
    assert shares(log, None, meta, turnover(), 2) == []
    assert shares(log, None, meta, seen, 1) == []
    found = shares(log, None, meta, seen, 3)
    assert sorted(partition for one in found for partition in one.partitions) == list(range(16))
    await log.close()
