"""What goes on while workflows are pruned and their log is cleaned under it (decision 0045)."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gasoline_es.cli.projected import Shown, all_of
from gasoline_es.errors import HorizonMoved, WorkflowNotFound
from gasoline_es.log.opening import open_log
from gasoline_es.runtime.viewing import Viewing
from gasoline_es.testing.log_contract import EVENTS
from projections.building import rebuild
from projections.comparing import verify
from projections.keeping import StoreKeeper
from projections.stores.opening import open_store
from projections.workflows import Workflows
from tests.engine.harness import Process, World
from tests.engine.test_pruning import AGE_S, ledger, ledger_all, prune, ran, worker
from tests.engine.test_pruning_and_cleaning import DAY_S, clean, sound
from tests.log.cleaned import REGISTRY


@pytest.fixture
async def filed(tmp_path: Path) -> AsyncIterator[World]:
    made = World(f"file:{tmp_path}/log")
    yield made
    await made.end()


# --- a process that has stored views open, below the horizon ----------------------------------------------------------


async def _behind(world: World, monkeypatch: pytest.MonkeyPatch) -> tuple[Process, list[str], list[str]]:
    """Return a client whose stored views stand below the horizons, and nobody owns a partition; who is gone, and who not.

    Workers that have stored nothing have pruned since, and the log was cleaned twice.
    """
    first = await worker(world)
    gone = [(await ran(first, ledger_all, str(n), tags={"n": n})).id for n in range(24)]
    await first.stop()
    client = await world.process()
    with monkeypatch.context() as unstored:

        async def nothing(self: StoreKeeper, views: Mapping[int, Any]) -> None:
            return None

        unstored.setattr(StoreKeeper, "save", nothing)
        second = await worker(world)
        await second.advance(AGE_S + 1)
        assert await prune(second) == 24
        there = [(await ran(second, ledger, str(n))).id for n in range(24)]
        await second.stop()
    await clean(world)
    world.clock.advance(DAY_S)
    assert (await clean(world)).removed[EVENTS].keys() == {"tombstone"}
    return client, gone, there


async def test_a_process_whose_stored_views_miss_a_pruning_builds_them_anew_by_itself(
    filed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """filelog.md §5: nothing is gone on with below the horizon; nobody has to start the process again for that."""
    client, gone, there = await _behind(filed, monkeypatch)
    for one in gone:
        with pytest.raises(WorkflowNotFound):
            await client.gasoline.get(one)
    assert {one.id async for one in client.gasoline.list()} == {*there}
    assert await client.gasoline.counts() == {"ledger": {"complete": 24}}
    await sound(filed)
    again = await worker(filed)
    assert await again.gasoline.counts() == {"ledger": {"complete": 24}}
    assert (await ran(again, ledger, "new")).id in {one.id async for one in client.gasoline.list()}
    await again.stop()
    await client.stop()
    await sound(filed)


async def test_it_owns_partitions_and_stores_them_as_anybody_does(
    filed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The views that it takes partitions over with are those that it built anew."""
    client, gone, there = await _behind(filed, monkeypatch)
    await client.work(ledger, ledger_all)
    new = [(await ran(client, ledger_all, str(n))).id for n in range(12)]
    assert {one.id async for one in client.gasoline.list()} == {*there, *new}
    await client.stop()
    await sound(filed)
    again = await worker(filed)
    for one in gone:
        with pytest.raises(WorkflowNotFound):
            await again.gasoline.get(one)
    await again.stop()


async def test_where_they_cannot_be_built_it_says_so_and_asked_later_it_can(
    filed: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that names the topic and the partition, and no answer that shows what was pruned."""
    client, gone, there = await _behind(filed, monkeypatch)
    with monkeypatch.context() as broken:

        def refused(self: StoreKeeper) -> None:
            raise OSError("no space left")

        broken.setattr(StoreKeeper, "_renewed", refused)
        with pytest.raises(HorizonMoved) as raised:
            await client.gasoline.get(gone[0])
    assert raised.value.fields["topic"] == EVENTS
    assert raised.value.fields["horizon"] > 0
    assert "the views could not be built anew: OSError('no space left')" in caplog.messages
    with pytest.raises(WorkflowNotFound):
        await client.gasoline.get(gone[0])
    assert {one.id async for one in client.gasoline.list()} == {*there}
    await client.stop()


async def test_views_that_are_folded_while_the_horizon_passes_them_are_loaded_once_more(
    filed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked meanwhile is answered, and not told to ask again."""
    first = await worker(filed)
    gone = [(await ran(first, ledger_all, str(n))).id for n in range(12)]
    await first.advance(AGE_S + 1)
    assert await prune(first) == 12
    there = {(await ran(first, ledger, str(n))).id for n in range(24)}
    await first.stop()
    shutil.rmtree(Path(filed.url.removeprefix("file:"), "projections"))
    client = await filed.process()
    fold, cleaned = Viewing._fold, list[int]()

    async def cleaning(self: Viewing, index: int, stop: int | None) -> None:
        if not cleaned and client.log.end(EVENTS, index):
            cleaned.append(index)
            views = self._views[index]
            views.fold(iter([next(client.log.read(EVENTS, index))]))
            await clean(filed)
            filed.clock.advance(DAY_S)
            await clean(filed)
        await fold(self, index, stop)

    monkeypatch.setattr(Viewing, "_fold", cleaning)
    assert {one.id async for one in client.gasoline.list()} == there
    assert len(cleaned) == 1
    for one in gone:
        with pytest.raises(WorkflowNotFound):
            await client.gasoline.get(one)
    await client.stop()


async def test_views_are_built_anew_after_the_last_that_workers_said_of_themselves_is_a_tombstone(filed: World) -> None:
    """A new generation comes to where the old one stood in every topic, though what they took back is gone."""
    for _ in range(2):
        process = await worker(filed)
        await ran(process, ledger, "1")
        await process.stop()
    filed.clock.advance(2 * DAY_S)
    assert (await clean(filed)).removed[REGISTRY].keys() == {"superseded"}
    assert "tombstone" in (await clean(filed)).removed[REGISTRY]
    log = await open_log(filed.url)
    for index in range(log.partition_count):
        left = [(record.offset, record.value) for record in log.read(REGISTRY, index)]
        if end := log.end(REGISTRY, index):
            assert left[-1][0] == end - 1
    assert rebuild(log, open_store(log), Workflows()).generation == 2
    assert verify(log, open_store(log), Workflows()).difference is None
    await log.close()
    again = await worker(filed)
    assert await again.gasoline.counts() == {"ledger": {"complete": 2}}
    await again.stop()


async def test_what_is_behind_is_counted_without_what_is_gone(
    filed: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`projections status`: so many records are to be folded; of very many it is not worth reading them to say so."""
    first = await worker(filed)
    for n in range(3):
        await ran(first, ledger, str(n))
    await first.stop()
    views = tmp_path / "log" / "projections"
    shutil.copytree(views, tmp_path / "before", symlinks=True)
    second = await worker(filed)
    for n in range(12):
        await ran(second, ledger_all, str(n))
    await second.advance(AGE_S + 1)
    assert await prune(second) == 12
    await ran(second, ledger, "last")
    await second.stop()
    shutil.rmtree(views)
    shutil.copytree(tmp_path / "before", views, symlinks=True)
    log = await open_log(filed.url, readonly=True)
    (whole,) = all_of(log, None)
    await clean(filed)
    (shown,) = all_of(log, None)
    left = sum(
        1 for index in range(log.partition_count) for topic in (EVENTS, REGISTRY) for _ in log.read(topic, index)
    )
    with open_store(log).snapshot("workflows") as snapshot:
        folded = {feed: position.next_offset for feed, position in snapshot.positions.items()}
    known = sum(1 for feed, stop in folded.items() for _ in log.read(feed.topic, feed.partition, 0, stop))
    assert isinstance(shown, Shown)
    assert isinstance(whole, Shown)
    assert shown.problem is None
    assert shown.behind == left - known < whole.behind - 12 * 2
    monkeypatch.setattr("gasoline_es.cli.projected.COUNTED_MAX", 1)
    (by_offsets,) = all_of(log, None)
    assert isinstance(by_offsets, Shown)
    assert by_offsets.behind == whole.behind
    await log.close()
