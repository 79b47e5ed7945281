"""Fakes: what runs in an activity's place keeps its retries, limits and codecs (semantics.md §4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gasoline_es import ActivityContext, NotRetryable, WorkflowContext, WorkflowFailed, activity, workflow
from gasoline_es.errors import NotSerializable
from gasoline_es.testing import Simulation, UnfakedActivity
from tests.testing.shop import Order, Paid, Receipt, charge, deliver, fulfil, label, ship

ORDER = Order(number=1)


def paid_for(sim: Simulation) -> str:
    handle = sim.dispatch(fulfil, ORDER)
    handle.signal(Paid(cents=500))
    return handle.output()


def test_a_function_runs_instead_of_the_real_one() -> None:
    with Simulation([fulfil]) as sim:
        sim.fake(charge, lambda ctx, order: Receipt(order=order.number, cents=order.cents * 2))
        assert paid_for(sim) == "parcel 1 for 1000"
        (call,) = sim.calls(charge)
        assert (call.input, call.attempt) == (ORDER, 1)


def test_a_coroutine_function_runs_instead_of_the_real_one() -> None:
    async def slow(ctx: ActivityContext, order: Order) -> Receipt:
        await asyncio.sleep(1)
        return Receipt(order=order.number, cents=7)

    with Simulation([fulfil]) as sim:
        sim.fake(charge, slow)
        assert paid_for(sim) == "parcel 1 for 7"


def test_a_value_is_returned() -> None:
    with Simulation([fulfil]) as sim:
        sim.fake(charge, returns=Receipt(order=1, cents=9))
        assert paid_for(sim) == "parcel 1 for 9"


def test_a_fake_of_a_thread_activity_needs_no_thread() -> None:
    with Simulation([deliver]) as sim:
        sim.fake(label, returns="no label")
        assert sim.dispatch(deliver, ORDER).output() == "parcel 1 with no label"


def test_an_error_uses_up_the_attempts() -> None:
    with Simulation([fulfil]) as sim:
        sim.fake(charge, raises=ConnectionError("no line"))
        with pytest.raises(WorkflowFailed, match="no line"):
            paid_for(sim)
        assert [call.attempt for call in sim.calls(charge)] == [1, 2, 3, 4]


def test_an_error_that_is_not_to_be_retried_is_final() -> None:
    with Simulation([fulfil]) as sim:
        sim.fake(charge, raises=NotRetryable("blocked"))
        with pytest.raises(WorkflowFailed, match="blocked"):
            paid_for(sim)
        assert len(sim.calls(charge)) == 1


def test_a_fake_can_change_between_two_attempts() -> None:
    with Simulation([fulfil]) as sim:
        sim.fake(charge, raises=ConnectionError)
        handle = sim.dispatch(fulfil, ORDER)
        handle.signal(Paid(cents=1))
        sim.fake(charge, returns=Receipt(order=1, cents=3))
        assert handle.output() == "parcel 1 for 3"


def test_what_a_fake_returns_is_encoded_as_what_the_activity_returns() -> None:
    def wrong(ctx: ActivityContext, order: Order) -> Any:
        return "a receipt"

    with Simulation([fulfil]) as sim:
        sim.fake(charge, wrong)
        with pytest.raises(WorkflowFailed, match="output"):
            paid_for(sim)


def test_a_value_that_the_activity_cannot_return_is_refused_at_once() -> None:
    with Simulation([fulfil]) as sim, pytest.raises(NotSerializable, match="returns"):
        sim.fake(charge, returns="no receipt")


def test_real_activities_are_noted_too() -> None:
    with Simulation([deliver]) as sim:
        sim.dispatch(deliver, ORDER).output()
        assert [call.input for call in sim.calls(ship)] == [ORDER]
        assert [call.input for call in sim.calls(label)] == [ORDER]


def test_a_strict_simulation_names_the_activity_without_a_fake() -> None:
    with Simulation([fulfil], strict=True) as sim:
        sim.fake(ship, returns="parcel")
        handle = sim.dispatch(fulfil, ORDER)
        with pytest.raises(UnfakedActivity, match=r"sim\.fake\(charge, …\)"):
            handle.signal(Paid(cents=1))


def test_a_strict_simulation_is_not_calmed_by_a_body_that_catches_everything() -> None:
    @activity
    async def real(ctx: ActivityContext, _: None) -> None:
        raise AssertionError("it ran")

    @workflow
    async def careless(ctx: WorkflowContext, _: None) -> None:
        await ctx.catch(ctx.activity(real, None))

    with Simulation([careless], strict=True) as sim, pytest.raises(UnfakedActivity):
        sim.dispatch(careless, None)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"returns": 1, "times": 2},
        {"raises": OSError, "returns": 1},
        {"raises": OSError, "times": 1},
        {"raises": OSError, "times": 0, "returns": 1},
    ],
)
def test_a_fake_that_makes_no_sense_is_refused(settings: dict[str, Any]) -> None:
    fake: Any = Simulation([fulfil]).fake
    with pytest.raises((TypeError, ValueError), match="fake of 'charge'"):
        fake(charge, **settings)
