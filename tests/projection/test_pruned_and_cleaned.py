"""Projections over a log from which events of pruned workflows were removed: offsets have gaps (decision 0045)."""

from __future__ import annotations

from typing import Any

import pytest

from gasoline_es.core.events import Event, WorkflowDispatched, WorkflowPruned
from gasoline_es.core.retention import Retention
from gasoline_es.errors import HorizonMoved
from gasoline_es.log.port import Log
from projections import partition_fold
from projections.building import Progress, rebuild
from projections.comparing import verify
from projections.definition import Projection, projection
from projections.partition_fold import PartitionFold
from projections.reading import ProjectionView
from projections.running import Notice, Runner
from projections.stores.port import Feed, Store
from tests.projection.orders import TOPIC, append, completed, dispatched, encoded, parameter, workflow_id

NOW_US = 1_800_000_000_000_000
FEED = Feed(TOPIC, 0)


@pytest.fixture(params=("sqlite", "memory"))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def known() -> Projection:
    """Which orders there are: what was pruned is not."""

    def setup(db: Any) -> None:
        db.execute("CREATE TABLE known(workflow VARCHAR(40) PRIMARY KEY)")

    @projection("known", setup=setup)
    def fold_order(event: Event, db: Any) -> None:
        mark = parameter(db)
        if isinstance(event.data, WorkflowDispatched):
            db.execute(f"INSERT INTO known VALUES ({mark})", (event.workflow_id,))  # noqa: S608
        elif isinstance(event.data, WorkflowPruned):
            db.execute(f"DELETE FROM known WHERE workflow = {mark}", (event.workflow_id,))  # noqa: S608

    return fold_order


def orders(store: Store[Any]) -> list[int]:
    with store.snapshot("known") as snapshot:
        return [int(one[-12:]) for (one,) in snapshot.db.execute("SELECT workflow FROM known ORDER BY workflow")]


async def order(log: Log, number: int) -> None:
    """Append an order that is over."""
    await append(log, 0, [encoded(number, 1, dispatched(1)), encoded(number, 2, completed())])


async def prune(log: Log, number: int) -> None:
    await append(log, 0, [encoded(number, 3, WorkflowPruned("x"))])


async def clean(log: Log) -> dict[str, int]:
    return dict((await log.compact(Retention(NOW_US))).removed.get(TOPIC, {}))


def keep_up(log: Log, store: Store[Any]) -> list[Notice]:
    notices: list[Notice] = []
    runner = Runner(log, store, [known()], tell=notices.append)
    runner.run_once()
    return notices


def there(log: Log) -> list[int | None]:
    return [record.offset for record in log.read(TOPIC, 0)]


async def test_tables_that_stand_at_a_removed_record_are_compared_up_to_it_and_no_further(
    log: Log, store: Store[Any]
) -> None:
    """design §7: so many records are not so many offsets; what comes behind the position is not in the tables."""
    for number in range(1, 5):
        await order(log, number)
    keep_up(log, store)
    for number in (2, 4):
        await prune(log, number)
    await order(log, 5)
    assert await clean(log) == {"pruned": 4}
    assert there(log) == [0, 1, 4, 5, 8, 9, 10, 11]
    verdict = verify(log, store, known())
    assert verdict.difference is not None
    assert verdict.difference.reason == "only the store has the row", "it has not folded yet that these were pruned"
    assert keep_up(log, store) == []
    assert orders(store) == [1, 3, 5]
    assert verify(log, store, known()).difference is None
    rebuilt = rebuild(log, store, known())
    assert rebuilt.generation == 2
    assert orders(store) == [1, 3, 5]


async def test_work_over_gaps_is_told_to_its_end_and_counts_what_it_read(
    log: Log, store: Store[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """design §7: a bar goes by offsets, so it comes to its end; records are those that there are."""
    monkeypatch.setattr(partition_fold, "_CHUNK_FIRST", 2)
    for number in range(1, 9):
        await order(log, number)
    for number in range(1, 7):
        await prune(log, number)
    await order(log, 9)
    assert await clean(log) == {"pruned": 12}
    held = len(there(log))
    assert held == 18 + 6 - 12
    assert log.end(TOPIC, 0) == 24
    told: list[Progress] = []
    assert rebuild(log, store, known(), told.append).records == held
    assert [one.total for one in told] == [24] * len(told)
    assert [one.done for one in told] == sorted(one.done for one in told)
    assert told[0].done > 12, "what is gone is passed"
    assert (told[-2].done, told[-1].done) == (24, 24)
    told.clear()
    verdict = verify(log, store, known(), told.append)
    assert (verdict.records, verdict.difference) == (held, None)
    assert [one.done for one in told] == sorted(one.done for one in told)
    assert told[-1] == Progress("known", 24, 24)
    store.discard("known")
    (notice,) = keep_up(log, store)
    assert notice.extra["records"] == held


async def test_one_that_stands_below_a_horizon_is_built_anew(log: Log, store: Store[Any]) -> None:
    """filelog.md §5: nothing is left that would tell it what was pruned."""
    for number in range(1, 4):
        await order(log, number)
    keep_up(log, store)
    await prune(log, 2)
    await order(log, 5)
    assert await clean(log) == {"pruned": 2}
    assert await clean(log) == {"tombstone": 1}
    assert log.horizon(TOPIC, 0) == 7
    assert [notice.kind for notice in keep_up(log, store)] == ["discarded", "built"]
    assert orders(store) == [1, 3, 5]


async def test_one_that_runs_while_the_horizon_passes_it_is_built_anew_at_once(log: Log, store: Store[Any]) -> None:
    """The runner has its tables open and everything folded; then marks go that it has not come to."""
    for number in range(1, 4):
        await order(log, number)
    notices: list[Notice] = []
    runner = Runner(log, store, [known()], tell=notices.append)
    while runner.step():
        pass
    await prune(log, 2)
    await order(log, 5)
    await clean(log)
    await clean(log)
    while runner.step():
        pass
    assert [notice.kind for notice in notices] == ["built", "discarded", "built"]
    assert orders(store) == [1, 3, 5]
    runner.close()


async def test_a_mark_that_goes_while_its_partition_is_read_is_missed_by_nobody(
    log: Log, store: Store[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read ahead in one scan, chunk by chunk: what was folded before is not trusted any more."""
    monkeypatch.setattr(partition_fold, "_CHUNK_FIRST", 3)
    for number in range(1, 4):
        await order(log, number)
    await prune(log, 1)
    await order(log, 5)
    generation = store.create("known", 1, known().setup)
    fold = PartitionFold(known(), generation, log, 0)
    assert fold.step(FEED) == 3
    await clean(log)
    await clean(log)
    with pytest.raises(HorizonMoved):
        fold.step(FEED)
    assert fold.position(FEED).offset == 2, "nothing more was folded"
    generation.close()
    keep_up(log, store)
    assert orders(store) == [2, 3, 5]


async def test_one_that_begins_when_the_marks_are_gone_misses_nothing(
    log: Log, store: Store[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the start on there is nothing below the horizon that was taken back."""
    monkeypatch.setattr(partition_fold, "_CHUNK_FIRST", 1)
    for number in range(1, 6):
        await order(log, number)
    await prune(log, 3)
    await order(log, 6)
    await clean(log)
    await clean(log)
    assert [notice.kind for notice in keep_up(log, store)] == ["built"]
    assert orders(store) == [1, 2, 4, 5, 6]
    assert verify(log, store, known()).difference is None


async def test_whoever_waits_for_the_end_comes_there_though_all_before_it_went(log: Log, store: Store[Any]) -> None:
    """decision 0045: the last event of a partition stays, so nobody waits for an offset that no record has."""
    for number in (1, 2):
        await order(log, number)
    for number in (1, 2):
        await prune(log, number)
    assert await clean(log) == {"pruned": 4}
    assert await clean(log) == {"tombstone": 1}
    assert await clean(log) == {}
    assert there(log) == [5]
    keep_up(log, store)
    assert orders(store) == []
    await ProjectionView(log, store, known()).wait_for(timeout=5)
    await order(log, 7)
    assert await clean(log) == {"tombstone": 1}, "once it is not the last"
    assert there(log) == [6, 7]
    assert workflow_id(7) in {record.key.partition("/")[0] for record in log.read(TOPIC, 0)}
