"""A workflow that fails is rolled back once, whatever dies when (semantics.md §12)."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from gasoline_es import Activity, ActivityContext, WorkflowContext, activity, workflow
from gasoline_es.errors import NotRetryable, WorkflowFailed
from gasoline_es.events import ActivityCompleted, RollbackStarted
from gasoline_es.testing import Simulation, crash_everywhere


class Trip(BaseModel):
    legs: list[str]
    booked: int = 0


@activity
async def book(ctx: ActivityContext, leg: str) -> str:
    if leg == "moon":
        raise NotRetryable("nobody flies there")
    return f"ticket to {leg}"


@activity
async def hand_back(ctx: ActivityContext, ticket: str) -> None:
    if ctx.attempt < 2:
        raise ConnectionError("the airline does not answer")


@activity
async def tell(ctx: ActivityContext, traveller: str) -> None: ...


def booked(trip: Trip) -> str:
    """The leg that is next."""
    return trip.legs[trip.booked]


async def book_next(ctx: WorkflowContext, trip: Trip) -> None:
    ticket = await ctx.activity(book, booked(trip))
    ctx.on_rollback(hand_back, ticket)
    trip.booked += 1


@workflow
async def travel(ctx: WorkflowContext, trip: Trip) -> None:
    await ctx.activity(tell, "we begin")
    await ctx.checkpoint()
    ctx.on_rollback(tell, "we are home again")
    await ctx.loop(book_next, trip, commit_interval=2)


LEGS = ["Rome", "Oslo", "Lima", "Bonn", "Kyiv", "moon"]
BACK = [f"ticket to {leg}" for leg in reversed(LEGS[:-1])]


def undone(sim: Simulation) -> list[str]:
    """What the rollback's activities were given, in the order in which they succeeded."""
    (found,) = sim.workflows(travel)
    history = sim.handle(found.id, travel).history()
    started = next(event.seq for event in history if isinstance(event.data, RollbackStarted))
    after = [event.data for event in history if event.seq > started]
    return [data.input.decode() for data in after if isinstance(data, ActivityCompleted)]


def fails(sim: Simulation) -> tuple[str, list[str]]:
    handle = sim.dispatch(travel, Trip(legs=LEGS))
    with pytest.raises(WorkflowFailed, match="nobody flies there") as failed:
        handle.output()
    return str(failed.value.error), undone(sim)


def test_a_rollback_survives_a_crash_at_every_append() -> None:
    error, given = crash_everywhere(fails, [travel], every=3)
    assert error == "ActivityFailed: activity 'book' at {3, 6, 1} failed with NotRetryable: nobody flies there"
    assert given == [*(f'"{ticket}"' for ticket in BACK), '"we are home again"']


def test_what_undoes_forgotten_iterations_is_found_in_the_module_of_the_workflow() -> None:
    """A fresh process has met no activity that only a function of the module names."""
    assert "hand_back" not in travel.fn.__code__.co_names
    with Simulation([travel]) as sim:
        sim.fake(book, lambda ctx, leg: _sold_out(leg))
        handle = sim.dispatch(travel, Trip(legs=LEGS))
        sim.advance(1)
        assert [event.type for event in handle.history()].count("loop.committed") == 3
        sim.crash()
        sim.fake(book, raises=NotRetryable("nobody flies there"))
        with pytest.raises(WorkflowFailed, match="nobody flies there"):
            handle.output()
        assert len(undone(sim)) == len(LEGS)


def _sold_out(leg: str) -> str:
    if leg == "moon":
        raise ConnectionError("try again")
    return f"ticket to {leg}"


def test_what_undoes_and_is_not_there_any_more_stops_the_workflow_with_what_to_do() -> None:
    async def book_one(ctx: WorkflowContext, trip: Trip) -> None:
        ticket = await ctx.activity(book, booked(trip))
        if trip.booked < 2:
            ctx.on_rollback(_unnamed(), ticket)
        trip.booked += 1

    @workflow
    async def journey(ctx: WorkflowContext, trip: Trip) -> None:
        await ctx.checkpoint()
        await ctx.loop(book_one, trip, commit_interval=2)

    with Simulation([journey]) as sim:
        sim.fake(book, lambda ctx, leg: _sold_out(leg))
        handle = sim.dispatch(journey, Trip(legs=["Rome", "Oslo", "moon"]))
        sim.advance(1)
        sim.crash()
        sim.fake(book, raises=NotRetryable("nobody flies there"))
        with pytest.raises(WorkflowFailed, match=r"activity 'vanishes' is to be rolled back with.*import it there"):
            handle.output()
        assert "rollback.started" not in [event.type for event in handle.history()]


def _unnamed() -> Activity[str, None]:
    @activity
    async def vanishes(ctx: ActivityContext, ticket: str) -> None: ...

    return vanishes
