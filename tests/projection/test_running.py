"""Keeping projections up with a log (design §7), and required case B20."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from gasoline_es.core.events import Event, Unreadable, WorkflowCompleted
from gasoline_es.errors import DefinitionError, LogCorrupt, ProjectionError, ProjectionNotBuilt, ProjectionStopped
from gasoline_es.log.memory import open_memory_log
from gasoline_es.log.port import Log, NewRecord, Record, Section
from projections import building
from projections.building import Build, Progress, rebuild
from projections.comparing import verify
from projections.definition import Projection, projection
from projections.folding import Folding
from projections.generation_fold import GenerationFold
from projections.partition_fold import PartitionFold
from projections.reading import ProjectionView
from projections.running import Notice, Runner
from projections.stores.port import Feed, Position, Store
from projections.stores.sqlite import SqliteStore
from tests.projection.conftest import OpenStore
from tests.projection.orders import (
    TOPIC,
    append,
    append_orders,
    apply_order,
    completed,
    dispatched,
    encoded,
    make_tables,
    parameter,
    read,
    turnover,
)

WAIT_S = 20.0

ON_SQLITE = pytest.mark.parametrize("both_kinds", ["memory-sqlite", "kafka-sqlite"], indirect=True)
IN_MEMORY = pytest.mark.parametrize("both_kinds", ["memory-sqlite", "memory-postgres"], indirect=True)
"""What Kafka does at its own time: appends in the middle of a step; or never: a position that a take-over leaves open."""


@pytest.fixture(params=("memory-sqlite", "memory-postgres", "kafka-sqlite"))  # a store in memory is SQLite too
def both_kinds(request: pytest.FixtureRequest) -> tuple[str, str]:
    log, _, store = str(request.param).partition("-")
    return log, store


@pytest.fixture
def log_kind(both_kinds: tuple[str, str]) -> str:
    return both_kinds[0]


@pytest.fixture
def kind(both_kinds: tuple[str, str]) -> str:
    return both_kinds[1]


def keep_up(log: Log, store: Store[Any], *projections: Projection, notices: list[Notice] | None = None) -> Runner:
    """Fold what there is, in a runner of its own, as a process that is started and ended."""
    runner = Runner(log, store, projections, tell=(notices if notices is not None else []).append)
    runner.run_once()
    return runner


def generations(store: Store[Any], name: str = "turnover") -> list[int]:
    return [info.meta.generation for info in store.generations(name)]


async def test_a_projection_is_built_and_then_folded_on(log: Log, store: Store[Any]) -> None:
    await append_orders(log, 5, 7)
    await append_orders(log, 100, partition=1, first=10)
    keep_up(log, store, turnover())
    assert read(store) == [(0, 2, 12), (1, 1, 100)]
    await append_orders(log, 1, first=20)
    keep_up(log, store, turnover())
    assert read(store) == [(0, 3, 13), (1, 1, 100)]
    assert generations(store) == [1]
    verdict = verify(log, store, turnover())
    assert (verdict.records, verdict.tables, verdict.rows, verdict.difference) == (4, 2, 6, None)


async def test_a_projection_of_an_empty_log_can_be_read(log: Log, store: Store[Any]) -> None:
    keep_up(log, store, turnover())
    assert read(store) == []


async def test_a_runner_folds_its_partitions_alone(log: Log, store: Store[Any]) -> None:
    keep_up(log, store, turnover())
    await append_orders(log, 5)
    await append_orders(log, 100, partition=1, first=10)
    mine = [1]
    runner = Runner(log, store, [turnover()], partitions=lambda: mine)
    runner.run_once()
    assert read(store) == [(1, 1, 100)]
    mine[:] = [0]
    runner.run_once()
    assert read(store) == [(0, 1, 5), (1, 1, 100)]


async def test_processes_that_keep_up_the_same_count_each_event_once(log: Log, open_store: OpenStore) -> None:
    for at in range(20):
        await append_orders(log, *range(25), first=1 + 25 * at)
    start = threading.Barrier(3)

    def fold_all() -> None:
        start.wait(WAIT_S)
        store = open_store()
        runner = Runner(log, store, [turnover()])
        while True:
            runner.run_once()
            if (found := store.generations("turnover")) and found[-1].current:
                return

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(fold_all) for _ in range(3)]:
            done.result(WAIT_S)
    assert read(open_store()) == [(0, 500, 20 * sum(range(25)))]
    assert generations(open_store()) == [1]


# --- rebuilding -------------------------------------------------------------------------------------------------------


async def test_an_event_that_is_being_applied_while_a_rebuild_begins_counts_once(
    log: Log, open_store: OpenStore
) -> None:
    """Required case B20: its handler is held in the middle of one event, rebuild is called, it is released."""
    store = open_store()
    keep_up(log, store, turnover())
    await append_orders(log, 5, 7, 11)
    in_the_midst, go_on = threading.Event(), threading.Event()

    def hold(event: Event, db: Any) -> None:
        if event.workflow_id.endswith("2"):
            in_the_midst.set()
            assert go_on.wait(WAIT_S)

    held = Runner(log, open_store(), [turnover(then=hold)])
    with ThreadPoolExecutor(2) as pool:
        folding = pool.submit(held.run_once)
        assert in_the_midst.wait(WAIT_S)
        # It comes to its end, and waits there for the lock that the handler holds.
        rebuilding = pool.submit(rebuild, log, open_store(), turnover())
        while store.unfinished("turnover", 1) is None:
            assert not rebuilding.done()
        assert read(store) == []  # the old tables, as of before
        go_on.set()
        folding.result(WAIT_S)
        rebuilding.result(WAIT_S)
    assert generations(store) == [2]
    assert read(store) == [(0, 3, 23)]
    await append_orders(log, 100, first=9)
    held.run_once()  # of the old generation: it is refused there, and goes on in the new one
    assert read(store) == [(0, 4, 123)]
    assert verify(log, store, turnover()).difference is None


async def test_a_rebuild_shows_the_old_tables_until_it_is_done(log: Log, store: Store[Any]) -> None:
    await append_orders(log, 5, 7)
    keep_up(log, store, turnover())
    seen: list[list[tuple[int, int, int]]] = []
    progress: list[Progress] = []

    def add(event: Event, db: Any) -> None:
        seen.append(read(store))
        db.execute("UPDATE turnover SET cents = cents + 1000")

    rebuild(log, store, turnover(then=add), progress.append)
    assert seen == [[(0, 2, 12)]] * 2
    assert read(store) == [(0, 2, 2012)]
    assert (progress[-1].done, progress[-1].total) == (2, 2)


async def test_a_new_version_is_built_beside_the_old_one_by_itself(log: Log, store: Store[Any]) -> None:
    await append_orders(log, 5, 7)
    keep_up(log, store, turnover())
    seen: list[list[tuple[int, int, int]]] = []
    newer = turnover(2, then=lambda event, db: seen.append(read(store)))
    keep_up(log, store, newer)
    assert seen == [[(0, 2, 12)]] * 2
    assert [(info.meta.generation, info.meta.version) for info in store.generations("turnover")] == [(2, 2)]
    assert read(store) == [(0, 2, 12)]


async def test_code_of_an_older_version_leaves_a_newer_one_alone(log: Log, open_store: OpenStore) -> None:
    store = open_store()
    await append_orders(log, 5)
    old = Runner(log, open_store(), [turnover()], tell=(notices := list[Notice]()).append)
    while old.step():
        pass
    keep_up(log, store, turnover(2))
    await append_orders(log, 7, first=5)
    while old.step():
        pass
    assert read(store) == [(0, 1, 5)]
    assert old.kept[0].standing == "outdated"
    assert "built by version 2, and this code has version 1" in notices[-1].why
    rebuild(log, store, turnover())  # whoever means it
    assert read(store) == [(0, 2, 12)]


async def test_a_build_whose_process_died_is_gone_on_with(log: Log, store: Store[Any]) -> None:
    await append_orders(log, *range(10))
    died = Runner(log, store, [turnover()])
    while died.kept[0].standing != "building":
        died.step()
    died.step()
    died.close()
    with pytest.raises(ProjectionNotBuilt):
        store.snapshot("turnover")
    applied: list[Event] = []
    keep_up(log, store, turnover(then=lambda event, db: applied.append(event)))
    assert read(store) == [(0, 10, 45)]
    assert applied == []
    assert generations(store) == [1]


async def test_who_does_not_build_waits_for_who_does(log: Log, open_store: OpenStore) -> None:
    await append_orders(log, 5)
    store = open_store()
    with store.building("turnover"):
        waiting = keep_up(log, open_store(), turnover())
        assert waiting.kept[0].standing == "waiting"
    keep_up(log, store, turnover())
    assert read(store) == [(0, 1, 5)]


# --- events that cannot be applied ------------------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def refusing(cents: str, version: int = 1) -> Projection:
    def refuse(event: Event, db: Any) -> None:
        if getattr(event.data, "input", b"") == cents.encode():
            raise RuntimeError(f"{cents} is no price")

    return turnover(version, then=refuse)


async def test_an_event_that_cannot_be_applied_stops_its_partition_alone(log: Log, store: Store[Any]) -> None:
    await append_orders(log, 5, 7, 666, 9)
    await append_orders(log, 100, 200, partition=1, first=10)
    notices: list[Notice] = []
    clock = Clock()
    runner = Runner(log, store, [refusing("666")], tell=notices.append, clock=clock)
    for _ in range(10):
        runner.step()
    assert read(store) == [(0, 2, 12), (1, 2, 300)]
    (error,) = runner.kept[0].stopped
    assert (error.projection, error.topic, error.partition, error.offset) == ("turnover", TOPIC, 0, 2)
    assert error.event == "00000000-0000-7000-8000-000000000003/1 (WorkflowDispatched)"
    assert "RuntimeError: 666 is no price" in error.message
    assert [notice.why for notice in notices if notice.kind == "stopped"] == [error.message]  # told once
    (info,) = store.generations("turnover")
    stop = info.stops[Feed(TOPIC, 0)]
    assert stop.offset == 2
    assert re.fullmatch(r"RuntimeError: 666 is no price \(test_running\.py:[0-9]+\)", stop.error)

    await append_orders(log, 1, partition=1, first=20)
    runner.step()
    assert read(store) == [(0, 2, 12), (1, 3, 301)]
    runner.close()


async def test_an_event_that_could_not_be_applied_is_tried_again_after_a_while(log: Log, store: Store[Any]) -> None:
    await append_orders(log, 5, 666, 9)
    clock = Clock()
    tried: list[float] = []

    def refuse(event: Event, db: Any) -> None:
        if event.workflow_id.endswith("2"):
            tried.append(clock.now)
            if len(tried) < 4:
                raise RuntimeError("not yet")

    runner = Runner(log, store, [turnover(then=refuse)], clock=clock)
    for _ in range(400):
        runner.step()
        clock.now += 0.1
    assert read(store) == [(0, 3, 680)]
    assert [round(after - before) for before, after in pairwise(tried)] == [5, 10, 20]
    assert store.generations("turnover")[0].stops == {}
    runner.close()


async def test_a_deploy_goes_on_where_the_code_before_it_stopped(log: Log, store: Store[Any]) -> None:
    await append_orders(log, 5, 666, 9)
    keep_up(log, store, refusing("666"))
    assert read(store) == [(0, 1, 5)]
    keep_up(log, store, turnover())
    assert read(store) == [(0, 3, 680)]
    assert store.generations("turnover")[0].stops == {}
    assert verify(log, store, turnover()).difference is None


async def test_a_new_version_that_cannot_apply_what_the_old_one_did_is_not_swapped_in(
    log: Log, store: Store[Any]
) -> None:
    await append_orders(log, 5, 666, 9)
    keep_up(log, store, turnover())
    runner = keep_up(log, store, refusing("666", version=2))
    assert read(store) == [(0, 3, 680)]
    assert runner.kept[0].standing == "failing"
    assert isinstance(runner.kept[0].error, ProjectionStopped)
    assert [(info.meta.version, info.current) for info in store.generations("turnover")] == [(1, True), (2, False)]
    with pytest.raises(ProjectionStopped):
        rebuild(log, store, refusing("666"))
    assert read(store) == [(0, 3, 680)]
    keep_up(log, store, turnover(2))
    assert read(store) == [(0, 3, 680)]
    assert [info.meta.version for info in store.generations("turnover")] == [2]


async def test_one_projection_that_cannot_be_made_leaves_the_others_alone(log: Log, store: Store[Any]) -> None:
    @projection("broken", setup=lambda db: db.execute("CREATE TABEL x"))
    def broken(event: Event, db: Any) -> None: ...

    await append_orders(log, 5)
    notices: list[Notice] = []
    runner = keep_up(log, store, broken, turnover(), notices=notices)
    assert read(store) == [(0, 1, 5)]
    assert runner.kept[0].standing == "failing"
    assert "TABEL" in str(runner.kept[0].error)
    assert notices[0].projection == "broken"


async def test_what_cannot_be_read_is_passed_on_as_such(log: Log, store: Store[Any]) -> None:
    known = encoded(1, 1, completed())
    assert known.value is not None
    newer = known._replace(value=known.value.replace(b"completed.v1", b"completed.v9"))
    other = NewRecord(TOPIC, 0, known.key, b"17", 1)
    await append(log, 0, [newer, other])
    given: list[Event] = []

    @projection("given", setup=make_tables)
    def give(event: Event, db: Any) -> None:
        given.append(event)

    keep_up(log, store, give)
    assert [type(event.data) for event in given] == [Unreadable, Unreadable]
    assert [event.id for event in given] == [known.key, known.key]


async def test_only_the_kinds_that_are_wanted_are_given_and_what_cannot_be_read(log: Log, store: Store[Any]) -> None:
    known, given = encoded(1, 2, completed()), list[Event]()
    assert known.value is not None
    newer = known._replace(key=known.key[:-1] + "3", value=known.value.replace(b"completed.v1", b"completed.v9"))
    unknown = known._replace(
        key=known.key[:-1] + "4", value=known.value.replace(b"workflow.completed", b"workflow.praised")
    )
    parts = json.loads(known.value)
    foreign = known._replace(value=json.dumps(dict(reversed(parts.items()))).encode())  # another writer's order
    unwanted = encoded(1, 1, dispatched(5))
    foreign_unwanted = unwanted._replace(value=json.dumps(json.loads(unwanted.value or b"")).encode())
    await append(log, 0, [unwanted, known, newer, unknown, foreign, foreign_unwanted])

    @projection("given", setup=make_tables, only=(WorkflowCompleted,))
    def give(event: Event, db: Any) -> None:
        given.append(event)

    keep_up(log, store, give)
    kinds = [type(event.data) for event in given]
    assert kinds == [WorkflowCompleted, Unreadable, Unreadable, WorkflowCompleted]
    assert store.generations("given")[0].positions[Feed(TOPIC, 0)].offset == 5


@ON_SQLITE
async def test_each_kind_that_is_not_wanted_is_known_by_how_its_line_begins(log: Log, store: Store[Any]) -> None:
    """Were the layout another, they would be decoded to be passed: `only=` would be right, and no use."""
    decoded: list[Record] = []

    class Completions(Projection):
        name = "completions"
        only = (WorkflowCompleted,)

        def read(self, record: Record) -> Event:
            decoded.append(record)
            return super().read(record)

        def apply(self, event: Event, db: Any) -> None: ...

    await append(log, 0, [encoded(1, 1, dispatched(5)), encoded(1, 2, completed())])
    keep_up(log, store, Completions())
    assert [record.offset for record in decoded] == [1]


async def test_a_record_that_is_nobodys_event_stops_its_partition(log: Log, store: Store[Any]) -> None:
    await append(log, 0, [NewRecord(TOPIC, 0, "whatever", b"17", 1)])
    runner = keep_up(log, store, turnover())
    assert runner.kept[0].standing == "folding"
    (info,) = store.generations("turnover")
    assert info.stops[Feed(TOPIC, 0)].event == "whatever"


async def test_a_tombstone_is_passed(log: Log, store: Store[Any]) -> None:
    await append(log, 0, [NewRecord(TOPIC, 0, "whatever", None, 1), encoded(1, 1, completed())])
    keep_up(log, store, turnover())
    assert store.generations("turnover")[0].positions[Feed(TOPIC, 0)].offset == 1


async def test_damage_in_one_partition_leaves_what_can_be_read_to_be_folded(
    log: Log, store: Store[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await append_orders(log, 5, 7, 9)
    await append_orders(log, 100, partition=1, first=10)
    sound = log.read

    def read_to_damage(topic: str, partition: int, start: int = 0, stop: int | None = None) -> Iterator[Record]:
        for record in sound(topic, partition, start, stop):
            if partition == 0 and record.offset == 2:
                raise LogCorrupt("damaged here")
            yield record

    with monkeypatch.context() as damaged:
        damaged.setattr(log, "read", read_to_damage)
        notices: list[Notice] = []
        runner = keep_up(log, store, turnover(), notices=notices)
    (info,) = store.generations("turnover")
    assert {feed.partition: position.offset for feed, position in info.positions.items()} == {0: 1, 1: 0}
    assert runner.kept[0].standing == "failing"
    assert [(notice.kind, notice.why) for notice in notices] == [("failing", "'turnover': damaged here")]
    keep_up(log, store, turnover())
    assert read(store) == [(0, 3, 21), (1, 1, 100)]


# --- positions that a log does not know -------------------------------------------------------------------------------


@ON_SQLITE
@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE gasoline_meta SET log_id = 'another'", "it is of log another"),
        ("UPDATE gasoline_meta SET namespace = 'another'", "it is of namespace 'another'"),
        ('UPDATE gasoline_positions SET "offset" = 3', "which ends at 3"),
        ("UPDATE gasoline_positions SET digest = '0123456789abcdef'", "is another one"),
        ("UPDATE gasoline_positions SET partition = 77", "it has folded partition 77, and there are 2"),
    ],
)
async def test_a_generation_of_another_past_is_built_anew(
    statement: str, why: str, log: Log, store: Store[Any], tmp_path: Path
) -> None:
    await append_orders(log, 5, 7, 11)
    keep_up(log, store, turnover())
    db = sqlite3.connect(tmp_path / "projections" / "turnover.sqlite")
    db.execute("UPDATE turnover SET cents = 0")
    db.execute(statement)
    db.commit()
    db.close()
    notices: list[Notice] = []
    keep_up(log, store, turnover(), notices=notices)
    assert read(store) == [(0, 3, 23)]
    assert generations(store) == [2]
    warned = [notice.why for notice in notices if notice.kind == "discarded"]
    assert len(warned) == 1
    assert why in warned[0]


@ON_SQLITE
@pytest.mark.parametrize("damage", ["garbage", "empty", "missing", "no symlink"])
async def test_a_damaged_generation_is_built_anew(damage: str, log: Log, store: Store[Any], tmp_path: Path) -> None:
    await append_orders(log, 5, 7, 11)
    keep_up(log, store, turnover())
    directory = tmp_path / "projections"
    file = directory / "turnover.1.sqlite"
    if damage == "garbage":
        file.write_bytes(b"no database" * 1_000)
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "missing":
        file.unlink()
    else:
        (directory / "turnover.sqlite").unlink()
        (directory / "turnover.sqlite").write_bytes(b"")
    notices: list[Notice] = []
    keep_up(log, store, turnover(), notices=notices)
    assert read(store) == [(0, 3, 23)]
    assert any(notice.kind == "discarded" for notice in notices)


async def test_a_store_that_is_not_the_logs_own_is_not_taken_over(log: Log, tmp_path: Path) -> None:
    await append_orders(log, 5)

    def shared(of: Log) -> SqliteStore:
        return SqliteStore(f"{tmp_path}/shared", log_id=of.log_id, namespace="default", private=False)

    keep_up(log, shared(log), turnover())
    other = await open_memory_log(partitions=2)
    await append_orders(other, 7)
    runner = keep_up(other, shared(other), turnover())
    assert runner.kept[0].standing == "failing"
    assert "is not this log's" in str(runner.kept[0].error)
    assert read(shared(log)) == [(0, 1, 5)]
    rebuild(other, shared(other), turnover())  # whoever means it
    assert read(shared(other)) == [(0, 1, 7)]
    await other.close()


def ends_at_one(topic: str, partition: int) -> int:
    return 1


def is_undecided(topic: str, partition: int) -> bool:
    return True


@IN_MEMORY
async def test_a_position_that_is_not_known_yet_is_waited_for(
    log: Log, store: Store[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await append_orders(log, 5, 7)
    keep_up(log, store, turnover())
    clock = Clock()
    with monkeypatch.context() as taken_over:
        taken_over.setattr(log, "end", ends_at_one)
        taken_over.setattr(log, "undecided", is_undecided)
        runner = Runner(log, store, [turnover()], clock=clock)
        for _ in range(5):
            assert runner.step() == 0
    clock.now += 10
    assert runner.step()
    assert runner.kept[0].standing == "folding"
    assert generations(store) == [1]
    runner.close()


# --- folds that keep more in memory -----------------------------------------------------------------------------------


class InMemory:
    """Counts in memory, and writes what it counted at the end of each chunk."""

    def __init__(self, partition: int, db: Any, log: list[str]) -> None:
        mark = parameter(db)
        found = db.execute(f"SELECT cents FROM totals WHERE partition = {mark}", (partition,)).fetchone()  # noqa: S608
        self.durable = self.cents = 0 if found is None else int(found[0])
        self._partition = partition
        self._prepared = 0
        self._log = log

    def prepare(self, records: Sequence[Record]) -> None:
        self._prepared = len(records)

    def apply(self, records: Sequence[Record], db: Any) -> None:
        assert len(records) == self._prepared, "what is applied was prepared"
        for record in records:
            if record.value == b'"bad"':
                raise RuntimeError("bad")
            self.cents += 1
        self._log.append(f"apply {len(records)}")
        mark = parameter(db)
        db.execute(
            f"INSERT INTO totals VALUES ({mark}, {mark}) ON CONFLICT (partition) DO UPDATE SET cents = excluded.cents",  # noqa: S608
            (self._partition, self.cents),
        )

    def committed(self) -> None:
        self.durable = self.cents
        self._log.append("committed")

    def rolled_back(self) -> None:
        self.cents = self.durable
        self._log.append("rolled back")


class Totals(Projection):
    name = "totals"
    topics = ("events", "schedules")

    def __init__(self) -> None:
        self.log: list[str] = []

    def setup(self, db: Any) -> None:
        db.execute("CREATE TABLE totals(partition INTEGER PRIMARY KEY, cents INTEGER NOT NULL)")

    def folding(self, partition: int, db: Any) -> Folding:
        return InMemory(partition, db, self.log)


def total(store: Store[Any]) -> int:
    with store.snapshot("totals") as snapshot:
        return int(snapshot.db.execute("SELECT sum(cents) FROM totals").fetchone()[0])


def plain(*values: str, topic: str = TOPIC) -> list[NewRecord]:
    return [NewRecord(topic, 0, f"k{at}", f'"{value}"'.encode(), 1) for at, value in enumerate(values)]


async def test_a_fold_may_keep_its_state_in_memory_and_follow_the_transactions(log: Log, store: Store[Any]) -> None:
    await append(log, 0, plain("a", "b", "c"))
    await append(log, 0, plain("d", topic="default.schedules"))
    totals = Totals()
    keep_up(log, store, totals)
    assert total(store) == 4
    assert totals.log == ["apply 3", "committed", "apply 1", "committed"]
    await append(log, 0, plain("e"))
    keep_up(log, store, totals)
    assert total(store) == 5


async def test_the_record_that_a_fold_cannot_apply_is_looked_for(log: Log, store: Store[Any]) -> None:
    await append(log, 0, plain(*"abcdefg", "bad", *"hij"))
    totals = Totals()
    keep_up(log, store, totals)
    assert total(store) == 7
    (info,) = store.generations("totals")
    assert info.stops[Feed(TOPIC, 0)].offset == 7
    assert totals.log.count("rolled back") >= 2


async def test_a_fold_in_memory_is_made_anew_when_another_process_went_on(log: Log, open_store: OpenStore) -> None:
    await append(log, 0, plain("a"))
    first = Runner(log, open_store(), [Totals()])
    while first.step():
        pass
    await append(log, 0, plain("b", "c"))
    keep_up(log, open_store(), Totals())
    await append(log, 0, plain("d"))
    while first.step():
        pass
    assert total(open_store()) == 4
    first.close()


class Slow(Projection):
    """Takes so many seconds for each record."""

    name = "slow"

    def __init__(self, clock: Clock, takes_s: float) -> None:
        self.chunks: list[int] = []
        self._clock = clock
        self._takes_s = takes_s

    def folding(self, partition: int, db: Any) -> Folding:
        return self

    def prepare(self, records: Sequence[Record]) -> None: ...

    def apply(self, records: Sequence[Record], db: Any) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self.chunks.append(len(records))
        self._clock.now += self._takes_s * len(records)

    def committed(self) -> None: ...

    def rolled_back(self) -> None: ...


@ON_SQLITE
@pytest.mark.parametrize(
    ("takes_s", "chunks"),
    [
        (0.001, [500, 250, 125, 125]),
        (0.0, [500, 500]),
        (0.00001, [500, 500]),
        (1.0, [500, 250, 125, 62, 31, 15, 7, 3, 1]),
    ],
)
async def test_a_chunk_holds_the_write_lock_for_about_a_tenth_of_a_second(
    takes_s: float, chunks: list[int], log: Log, store: Store[Any]
) -> None:
    await append(log, 0, plain(*("x" * 1000)))
    clock = Clock()
    slow = Slow(clock, takes_s)
    runner = Runner(log, store, [slow], clock=clock)
    runner.run_once()
    assert slow.chunks[: len(chunks)] == chunks
    assert sum(slow.chunks) == 1000


async def test_a_runner_follows_until_it_is_stopped(log: Log, store: Store[Any]) -> None:
    runner = Runner(log, store, [turnover()])
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(runner.run)
        await append_orders(log, 5)
        runner.wake()
        while True:
            try:
                if read(store) == [(0, 1, 5)]:
                    break
            except ProjectionNotBuilt:
                continue
        runner.stop()
        running.result(WAIT_S)


# --- under load -------------------------------------------------------------------------------------------------------


@IN_MEMORY
async def test_a_rebuild_ends_while_more_and_more_is_appended(log: Log, open_store: OpenStore) -> None:
    """As much comes as is folded: it folds what there was as it began, and what the old tables have."""
    store = open_store()
    await append_orders(log, *range(30))
    await append_orders(log, *range(501), partition=1, first=100)  # so the two come to an end at different steps
    keep_up(log, store, turnover())
    numbers = count(1_000)
    owned = {partition: await log.acquire(partition) for partition in (0, 1)}

    def append_one() -> None:
        sections = [
            Section(partition, owned[partition].epoch, [encoded(next(numbers), 1, dispatched(1), partition)])
            for partition in (0, 1)
        ]
        log.append_now(sections)

    rebuild(log, store, turnover(then=lambda event, db: append_one()))
    ((_, orders, _), *_) = read(store)
    assert orders >= 30
    assert generations(store) == [2]

    runner = Runner(log, store, [turnover(then=lambda event, db: append_one())])
    runner.run_once()  # it ends, too
    assert read(store)[0][1] > orders
    assert verify(log, store, turnover()).difference is None


@IN_MEMORY
async def test_a_build_is_swapped_once_what_comes_meanwhile_gets_no_less(
    log: Log, store: Store[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "LITTLE", 3)
    owned = await log.acquire(0)
    numbers = count(1)

    def append_some(amount: int) -> None:
        log.append_now([Section(0, owned.epoch, [encoded(next(numbers), 1, dispatched(1)) for _ in range(amount)])])

    def steps_of(*amounts: int) -> int:
        """Return how many steps a build folds, during which so many records come, one after the other."""
        generation = store.create("turnover", 1, make_tables)
        build = Build(log, store, GenerationFold(turnover(), generation, log, lambda error: None))
        for step, amount in enumerate(amounts):
            if build.step():
                build.fold.close()
                return step
            append_some(amount)
        raise AssertionError("it has not come to an end")

    append_some(10)
    assert steps_of(0, 1) == 1
    assert steps_of(3, 1) == 1  # a little, which the swap folds
    assert steps_of(9, 5, 3, 1) == 3  # less and less
    assert steps_of(9, 9, 9, 9) == 2  # it does not get less, however long it goes on


async def test_a_share_is_folded_to_where_the_log_ended_as_it_began(log: Log, store: Store[Any]) -> None:
    """Whoever folds one may be who appends: what comes from then on is not waited for."""
    await append_orders(log, *range(10))
    await append_orders(log, *range(501), partition=1, first=100)
    owned = await log.acquire(0)
    came = count(1_000)

    def append_one(event: Event, db: Any) -> None:
        log.append_now([Section(0, owned.epoch, [encoded(next(came), 1, dispatched(1))])])

    generation = store.create("turnover", 1, make_tables)
    fold = GenerationFold(turnover(then=append_one), generation, log, lambda error: None)
    ends = fold.ends([0, 1])
    fold.fold_to(ends)
    assert fold.left(ends) == 0
    assert fold.behind([0])
    fold.close()


async def test_what_came_since_a_feed_was_read_ahead_is_there_at_the_next_step(log: Log, store: Store[Any]) -> None:
    await append_orders(log, *range(500))  # as many as a first chunk has
    generation = store.create("turnover", 1, make_tables)
    fold = PartitionFold(turnover(), generation, log, 0)
    feed = Feed(TOPIC, 0)
    assert fold.step(feed) == 500
    await append_orders(log, 7, first=1_000)
    assert fold.step(feed) == 1
    await append_orders(log, 7, first=2_000)
    assert fold.step(feed) == 1
    assert fold.step(feed) == 0
    generation.close()


async def test_a_stop_that_another_process_is_past_is_gone_on_from(log: Log, open_store: OpenStore) -> None:
    store = open_store()
    await append_orders(log, 5, 666, 7)
    keep_up(log, store, turnover(), notices=[])
    rebuilt = store.create("turnover", 2, make_tables)
    told: list[ProjectionStopped] = []
    other = open_store().again(rebuilt.meta)

    def refuse(event: Event, db: Any) -> None:
        if event.data.input == b"666":  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            raise RuntimeError("not this one")

    fold = GenerationFold(turnover(then=refuse), rebuilt, log, told.append)
    stop, stopped = fold._stop, list[ProjectionStopped]()  # pyright: ignore[reportPrivateUsage]

    def overtaken(feed: Feed, error: ProjectionStopped) -> int:
        stopped.append(error)
        faster = GenerationFold(turnover(), other, log, told.append)
        while faster.step([0]):
            pass
        return stop(feed, error)

    fold._stop = overtaken  # type: ignore[method-assign]  # pyright: ignore[reportPrivateUsage]
    assert fold.step([0]) == 1
    assert [error.offset for error in stopped] == [1]
    assert fold.step([0]) == 0
    assert told == []
    assert fold.position(Feed(TOPIC, 0)).offset == 2
    assert [info.stops for info in store.generations("turnover")] == [{}, {}]
    fold.close()
    other.close()


# --- code that does not fit -------------------------------------------------------------------------------------------


class OfTopics(Projection):
    name = "of-topics"

    def setup(self, db: Any) -> None:
        db.execute("CREATE TABLE counted(topic VARCHAR(40))")

    def read(self, record: Record) -> Any:
        return record

    def apply(self, event: Any, db: Any) -> None:
        db.execute(f"INSERT INTO counted VALUES ({parameter(db)})", (event.topic,))  # noqa: S608


async def test_tables_of_other_topics_than_the_codes_are_not_compared(log: Log, store: Store[Any]) -> None:
    await append_orders(log, 5)
    await append(log, 0, [NewRecord("default.schedules", 0, "k", b'"v"', 1)])
    code = OfTopics()
    code.topics = ("events", "schedules")
    keep_up(log, store, code)
    assert verify(log, store, code).difference is None
    code.topics = ("events",)
    with pytest.raises(
        ProjectionError, match=r"topics that this code does not fold: default\.schedules\. Raise its version"
    ):
        verify(log, store, code)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"only": WorkflowCompleted}, "a tuple of kinds of events"),
        ({"only": 7}, "a tuple of kinds of events"),
        ({"only": (7,)}, "7 is none"),
        ({"only": (["it"],)}, r"\['it'\] is none"),
        ({"only": (Event,)}, "Event'> is none"),
        ({"topics": 7}, "last words of topics' names"),
        ({"topics": "events"}, "last words of topics' names"),
        ({"topics": ()}, "last words of topics' names"),
        ({"topics": {"events"}}, "last words of topics' names"),
        ({"topics": ("evnts",)}, "no topic 'evnts' to fold: topics are of events, "),
        ({"topics": ("events", 7)}, "no topic 7 to fold"),
        ({"topics": ("default.events",)}, "no topic 'default.events' to fold"),
        ({"topics": ("inbox",)}, "no topic 'inbox' to fold"),
        ({"topics": ("events", "events")}, "named twice"),
    ],
)
def test_what_cannot_be_folded_is_refused_when_it_is_defined(given: dict[str, Any], told: str) -> None:
    make = projection("given", setup=make_tables, **given)
    with pytest.raises(DefinitionError, match=told):
        make(apply_order)


@pytest.mark.parametrize(
    "feed", [Feed("default.schedules", 0), Feed("other.events", 0), Feed(TOPIC, 2), Feed(TOPIC, -1)]
)
async def test_a_position_that_is_never_reached_is_not_waited_for(feed: Feed, log: Log, store: Store[Any]) -> None:
    await append_orders(log, 5)
    keep_up(log, store, turnover())
    view = ProjectionView(log, store, turnover())
    with view.snapshot() as snapshot:
        await view.wait_for(snapshot.positions, timeout=WAIT_S)
    with pytest.raises(
        ValueError, match=re.escape(f"does not fold partition {feed.partition} of topic {feed.topic!r}")
    ):
        await view.wait_for({feed: Position(0, 0, "")}, timeout=WAIT_S)
