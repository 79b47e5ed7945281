"""Why a projection cannot be kept up is kept with it; what nobody goes on with is taken away."""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any

import pytest

from gasoline_es.core.events import Event
from gasoline_es.errors import ProjectionError, Superseded
from gasoline_es.log.port import Log
from projections.building import rebuild
from projections.comparing import verify
from projections.definition import Projection, projection
from projections.reading import ProjectionView
from projections.running import Notice, Runner
from projections.stores.port import Failure, Store
from tests.projection.conftest import OpenStore
from tests.projection.orders import append_orders, make_tables, parameter, read, turnover


class Mended(Projection):
    """Its ``setup`` raises until it is mended."""

    name = "mended"
    broken = True

    def setup(self, db: Any) -> None:
        if self.broken:
            raise LookupError("no such\0thing")
        make_tables(db)

    def apply(self, event: Event, db: Any) -> None:
        """Change nothing."""


class Clock:
    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


async def test_why_a_projection_cannot_be_kept_up_is_kept_until_it_goes_on(log: Log, open_store: OpenStore) -> None:
    await append_orders(log, 5)
    store, seen, mended, clock = open_store(), open_store(), Mended(), Clock()
    notices: list[Notice] = []
    with closing(Runner(log, store, [mended], tell=notices.append, clock=clock)) as runner:
        for _ in range(3):  # the same again and again: told once
            runner.step()
            clock.at += 100
        kept = seen.failure("mended")
        assert kept is not None
        assert re.match(r"LookupError: no such.thing \(test_failing\.py:[0-9]+\)$", kept.error)
        assert [notice.kind for notice in notices] == ["failing"]
        assert isinstance(notices[0].error, LookupError), "whose traceback is logged"
        assert "mended" in seen.names()
        mended.broken = False
        while runner.step():
            pass
    assert seen.failure("mended") is None
    assert [notice.kind for notice in notices] == ["failing", "recovered", "built"]


async def test_what_a_process_before_this_kept_of_failing_is_over_once_it_is_folded(
    log: Log, open_store: OpenStore
) -> None:
    open_store().tell_failure("turnover", Failure("the disk was full", 1))
    assert open_store().failure("turnover") == ("the disk was full", 1)
    Runner(log, open_store(), [turnover()]).run_once()
    assert open_store().failure("turnover") is None


async def test_a_store_that_comes_back_is_told_of(log: Log, store: Store[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    await append_orders(log, 5)
    clock, notices = Clock(), list[Notice]()
    with closing(Runner(log, store, [turnover()], tell=notices.append, clock=clock)) as runner:
        while runner.step():
            pass
        kept = runner.kept[0]
        fold = kept._fold  # pyright: ignore[reportPrivateUsage]
        assert fold is not None
        fold.generation.close()
        await append_orders(log, 6, first=2)
        runner.step()
        assert kept.standing == "failing"
        assert notices[-1].kind == "failing"
        clock.at += 10
        while runner.step():
            pass
    assert [notice.kind for notice in notices] == ["built", "failing", "recovered"]
    assert read(store) == [(0, 2, 11)]


# --- what stands in the way of who waits ------------------------------------------------------------------------------


def refuses(event: Event, db: Any) -> None:
    raise ValueError("no price")


async def test_who_waits_in_vain_is_told_the_event_that_stands_in_the_way(log: Log, store: Store[Any]) -> None:
    await append_orders(log, 5)
    stuck = turnover(then=refuses)
    Runner(log, store, [stuck]).run_once()
    with pytest.raises(
        TimeoutError, match=r"stands before event .* at offset 0 .* ValueError: no price \(test_failing"
    ):
        await ProjectionView(log, store, stuck).wait_for(timeout=0)


async def test_who_waits_in_vain_is_told_why_nobody_goes_on(log: Log, store: Store[Any]) -> None:
    await append_orders(log, 5)
    Runner(log, store, [Mended()]).run_once()
    with pytest.raises(TimeoutError, match=r"is not built yet, for it cannot be kept up: LookupError"):
        await ProjectionView(log, store, Mended()).wait_for(timeout=0)


# --- removing ---------------------------------------------------------------------------------------------------------


async def test_a_projection_is_removed_and_those_who_fold_it_write_nowhere(log: Log, open_store: OpenStore) -> None:
    await append_orders(log, 5)
    store = open_store()
    Runner(log, store, [turnover()]).run_once()
    rebuild(log, store, turnover())
    store.tell_failure("turnover", Failure("it was", 1))
    writer = store.current("turnover")
    assert writer is not None
    left = store.create("turnover", 7, make_tables)
    left.close()
    with store.building("turnover"):
        store.remove("turnover")
    assert store.generations("turnover") == []
    assert store.failure("turnover") is None
    assert open_store().current("turnover") is None
    Runner(log, open_store(), [turnover()]).run_once()
    with pytest.raises(Superseded), writer.writing():
        pytest.fail("it is not current")
    writer.close()
    assert read(store) == [(0, 1, 5)]


async def test_a_projection_that_is_read_is_removed_with_its_readers_at_peace(log: Log, open_store: OpenStore) -> None:
    await append_orders(log, 5)
    store = open_store()
    Runner(log, store, [turnover()]).run_once()
    with store.snapshot("turnover") as snapshot:
        if store.kind == "postgres":
            with store.building("turnover"), pytest.raises(ProjectionError, match="is being read or folded: try again"):
                store.remove("turnover")
        else:
            with store.building("turnover"):
                store.remove("turnover")
        assert snapshot.db.execute("SELECT cents FROM turnover").fetchall() == [(5,)]


async def test_a_generation_that_somebody_began_and_left_is_taken_away(log: Log, open_store: OpenStore) -> None:
    await append_orders(log, 5)
    store = open_store()
    Runner(log, store, [turnover()]).run_once()
    store.create("turnover", 1, make_tables).close()  # as a rebuild does that is killed
    assert [info.meta.state for info in store.generations("turnover")] == ["live", "building"]
    other = open_store()
    with other.building("turnover"):
        Runner(log, store, [turnover()]).run_once()
        assert len(store.generations("turnover")) == 2, "somebody may be building it"
    Runner(log, store, [turnover()]).run_once()
    assert [info.meta.state for info in store.generations("turnover")] == ["live"]
    store.create("turnover", 2, make_tables).close()
    Runner(log, store, [turnover()]).run_once()
    assert len(store.generations("turnover")) == 2, "newer code may go on with it"


# --- comparing --------------------------------------------------------------------------------------------------------


def make_last(db: Any) -> None:
    db.execute("CREATE TABLE last(one INTEGER PRIMARY KEY, partition INTEGER NOT NULL)")


@projection("last", setup=make_last)
def last(event: Event, db: Any) -> None:
    mark = parameter(db)
    db.execute(
        f"INSERT INTO last VALUES (1, {mark}) ON CONFLICT (one) "  # noqa: S608  # a placeholder
        f"DO UPDATE SET partition = excluded.partition",
        (event.partition,),
    )


async def test_tables_that_depend_on_the_order_of_partitions_are_found_right_after_a_build(
    log: Log, store: Store[Any]
) -> None:
    await append_orders(log, 5)
    await append_orders(log, 6, partition=1, first=10)
    Runner(log, store, [last]).run_once()
    difference = verify(log, store, last).difference
    assert difference is not None
    assert difference.table == "last"


async def test_what_stands_still_is_told_with_the_comparison(log: Log, store: Store[Any]) -> None:
    await append_orders(log, 5)
    stuck = turnover(then=refuses)
    Runner(log, store, [stuck]).run_once()
    verdict = verify(log, store, stuck)
    assert (verdict.records, verdict.stopped, verdict.difference) == (0, 1, None)


# --- committing -------------------------------------------------------------------------------------------------------

ENDS = "apply cannot commit or roll back: the store does, together with the position"


@pytest.mark.parametrize("how", ["commit", "rollback", "COMMIT", "ROLLBACK", "with"])
async def test_an_apply_that_commits_is_told_that_it_cannot(how: str, log: Log, store: Store[Any]) -> None:
    def ends(event: Event, db: Any) -> None:
        if how == "with":
            with db:
                pass
        elif how.islower():
            getattr(db, how)()
        else:
            db.execute(how)

    await append_orders(log, 5)
    Runner(log, store, [turnover(then=ends)]).run_once()
    (info,) = store.generations("turnover")
    (stop,) = info.stops.values()
    told = "makes a savepoint" if how == "with" and store.kind == "postgres" else ENDS
    assert told in stop.error
    assert read(store) == []
