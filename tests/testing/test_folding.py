"""`gasoline_es.testing.fold`: a projection, tested with events and without a log (docs/guides/projections.md)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from gasoline_es import WorkflowContext, workflow
from gasoline_es.core.events import Event, WorkflowDispatched
from gasoline_es.errors import DefinitionError
from gasoline_es.testing import Simulation, fold
from projections import Projection, projection


def make_table(db: sqlite3.Connection) -> None:
    db.executescript("CREATE TABLE turnover(cents INTEGER NOT NULL); INSERT INTO turnover VALUES (0);")


@projection("turnover", setup=make_table)
def turnover(event: Event, db: sqlite3.Connection) -> None:
    if isinstance(event.data, WorkflowDispatched):
        db.execute("UPDATE turnover SET cents = cents + ?", (int(event.data.input),))


def order(number: int, cents: int) -> Event:
    data = WorkflowDispatched("order", str(cents).encode(), {})
    return Event(f"w{number}", 1, 0, "order", "", 0, 1, "", data)


def test_a_history_is_folded_into_tables_that_can_be_read() -> None:
    db = fold(turnover, [order(1, 5), order(2, 7)])
    assert db.execute("SELECT cents FROM turnover").fetchall() == [(12,)]
    db.close()


def test_a_class_will_do() -> None:
    class Turnover(Projection):
        name = "turnover"

        def setup(self, db: sqlite3.Connection) -> None:
            make_table(db)

        def apply(self, event: Event, db: sqlite3.Connection) -> None:
            turnover.fn(event, db)

    db = fold(Turnover, [order(1, 5)])
    assert db.execute("SELECT cents FROM turnover").fetchall() == [(5,)]
    db.close()


def test_an_error_of_the_projection_comes_out_as_it_is() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        fold(turnover, [Event("w", 1, 0, "order", "", 0, 1, "", WorkflowDispatched("order", b'"five"', {}))])


def test_a_projection_that_commits_is_found_out() -> None:
    @projection("commits", setup=make_table)
    def commits(event: Event, db: sqlite3.Connection) -> None:
        db.commit()

    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        fold(commits, [order(1, 5)])


def test_what_is_no_projection_is_refused() -> None:
    with pytest.raises(DefinitionError, match="is no projection"):
        fold(make_table, [])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


@pytest.mark.parametrize(
    ("name", "version", "topics", "told"),
    [
        ("Turnover", 1, ("events",), "a projection's name is"),
        ("turnover", 0, ("events",), "a version is a whole number from 1 up"),
        ("turnover", True, ("events",), "a version is a whole number from 1 up"),
        ("turnover", 1, (), "topics are the last words"),
        ("turnover", 1, "events", "topics are the last words"),
        ("turnover", 1, ("shop.events",), "no topic 'shop.events' to fold"),
    ],
)
def test_a_definition_that_cannot_be_is_refused(name: str, version: int, topics: tuple[str, ...], told: str) -> None:
    with pytest.raises(DefinitionError, match=told):
        projection(name, version=version, topics=topics, setup=make_table)(turnover.fn)


async def awaited(event: Event, db: sqlite3.Connection) -> None: ...


def iterated(event: Event, db: sqlite3.Connection) -> Iterator[None]:
    yield


two: Any = iterated


def of_one(event: Event) -> None: ...


@pytest.mark.parametrize(
    ("fn", "told"),
    [(awaited, "a plain `def`"), (iterated, "a plain `def`"), (of_one, r"its apply is called with \(event, db\)")],
)
def test_a_function_that_would_do_nothing_is_refused(fn: Any, told: str) -> None:
    """An `async def` that is called and not awaited would skip every event, silently."""
    with pytest.raises(DefinitionError, match=told):
        projection("turnover", setup=make_table)(fn)
    with pytest.raises(DefinitionError, match=r"its setup is called with \(db\)|a plain `def`"):
        projection("turnover", setup=two if fn is of_one else fn)(turnover.fn)


def test_a_kind_that_is_none_is_refused() -> None:
    with pytest.raises(DefinitionError, match="names kinds of events"):
        projection("turnover", setup=make_table, only=(int,))(turnover.fn)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_a_class_without_apply_is_refused() -> None:
    class Nothing(Projection):
        name = "nothing"

    with pytest.raises(DefinitionError, match="has no apply"):
        fold(Nothing, [])


@workflow
async def delivery(ctx: WorkflowContext, cents: int) -> int:
    await ctx.sleep(60)
    return cents


@workflow
async def bought(ctx: WorkflowContext, cents: int) -> int:
    sent = await ctx.dispatch(delivery, cents)
    return await sent.output()


def test_a_simulation_has_the_events_of_all_its_workflows() -> None:
    """By partition, in each as they were appended; every event of every workflow, once."""
    with Simulation([bought, delivery]) as sim:
        parents = [sim.dispatch(bought, cents) for cents in (5, 7)]
        assert [one.output() for one in parents] == [5, 7]
        events = sim.history()
        histories = {
            one.id: sim.handle(one.id, delivery if one.name == "delivery" else bought) for one in sim.workflows()
        }
        assert len(histories) == 4
        of_each = {id: [event for event in events if event.workflow_id == id] for id in histories}
        assert of_each == {id: handle.history() for id, handle in histories.items()}
        assert sum(map(len, of_each.values())) == len(events)
        assert [event.partition for event in events] == sorted(event.partition for event in events)
        assert fold(turnover, events).execute("SELECT cents FROM turnover").fetchall() == [(24,)]
