"""A crash at each append changes nothing that can be seen; code that cannot be replayed is caught, and told."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from gasoline_es import ActivityContext, Break, WorkflowContext, activity, workflow
from gasoline_es.testing import CrashPoint, Simulation, crash_everywhere
from tests.testing.shop import (
    WEEK,
    Order,
    Paid,
    Receipt,
    charge,
    deliver,
    fulfil,
    label,
    order_and_deliver,
    subscribe,
    two_payments,
)

ORDER = Order(number=1)
RECEIPT = Receipt(order=1, cents=500)


def test_an_order_survives_a_crash_at_every_append() -> None:
    def scenario(sim: Simulation) -> str:
        sim.fake(charge, returns=RECEIPT, raises=ConnectionError("no line"), times=2)
        handle = sim.dispatch(fulfil, ORDER)
        sim.signal_at(timedelta(days=3), Paid(cents=500), to=handle)
        return handle.output()

    assert crash_everywhere(scenario, [fulfil]) == "parcel 1 for 500"


def test_sub_workflows_joins_and_threads_survive_a_crash_at_every_append() -> None:
    def scenario(sim: Simulation) -> list[str]:
        return sim.dispatch(order_and_deliver, ORDER).output()

    expected = ["parcel 1 with label 1", "parcel 2 with label 2"]
    assert crash_everywhere(scenario, [order_and_deliver, deliver]) == expected


def test_every_append_has_a_crash_before_it_and_one_after_it() -> None:
    runs: list[Simulation] = []

    def scenario(sim: Simulation) -> str:
        runs.append(sim)
        return sim.dispatch(fulfil, ORDER).output()

    crash_everywhere(scenario, [fulfil], partitions=1)
    events = ["workflow.dispatched fulfil", "sleep.started {1}", "workflow.suspended", "sleep.finished {1}"]
    appends = [*events, "workflow.completed"]
    assert [sim.crashed_at for sim in runs] == [None, *(one for append in appends for one in (append, append)), None]


def test_a_loop_survives_crashes() -> None:
    def scenario(sim: Simulation) -> int:
        sim.fake(charge, returns=RECEIPT)
        return sim.dispatch(subscribe, ORDER).output()

    assert crash_everywhere(scenario, [subscribe], every=5) == 12


def test_what_is_left_waiting_is_compared_too() -> None:
    def scenario(sim: Simulation) -> str:
        handle = sim.dispatch(two_payments, ORDER, unique=True, tags={"order": 1})
        handle.signal(Paid(cents=1))
        sim.advance(WEEK)
        return handle.get().status

    assert crash_everywhere(scenario, [two_payments]) == "sleeping"


def test_an_activity_that_runs_twice_is_nothing_to_complain_about() -> None:
    ran: list[str] = []

    def scenario(sim: Simulation) -> str:
        def print_label(ctx: ActivityContext, order: Order) -> str:
            ran.append(ctx.idempotency_key)
            return "a label"

        sim.fake(label, print_label)
        return sim.dispatch(deliver, ORDER).output()

    assert crash_everywhere(scenario, [deliver]) == "parcel 1 with a label"
    assert len(set(ran)) == 1, "the key is the same in every attempt of every run"


# --- what is caught ---------------------------------------------------------------------------------------------------


@activity
async def number(ctx: ActivityContext, given: int) -> int:
    return given


numbers: Iterator[int] = itertools.count()


@workflow
async def counts(ctx: WorkflowContext, _: None) -> int:
    """Broken: what it passes on is not the same on a replay."""
    return await ctx.activity(number, next(numbers))


@workflow
async def branches(ctx: WorkflowContext, _: None) -> str:
    """Broken: it takes another way on a replay."""
    if next(numbers) == 0:
        await ctx.activity(number, 1)
    await ctx.sleep(1)
    return "there"


def anew(scenario: Callable[[Simulation], object]) -> Callable[[Simulation], object]:
    def counted_anew(sim: Simulation) -> object:
        global numbers  # noqa: PLW0603  # what no body should read
        numbers = itertools.count()
        return scenario(sim)

    return counted_anew


def test_a_body_that_reads_a_global_counter_is_caught_with_both_histories() -> None:
    with pytest.raises(AssertionError) as caught:
        crash_everywhere(anew(lambda sim: sim.dispatch(counts, None).output()), [counts])
    said = str(caught.value)
    assert "with a crash before append 2 of the worker (activity.completed number {1}):" in said
    assert "the scenario gave 1 instead of 0" in said
    assert "- {1} activity.completed version=1 name=number attempt=1 input=0 output=0" in said
    assert "+ {1} activity.completed version=1 name=number attempt=1 input=1 output=1" in said
    assert "workflow.dispatched name=counts" in said


def test_a_body_that_diverges_is_caught_with_its_error() -> None:
    with pytest.raises(AssertionError, match=r"with a crash before append 4 .*HistoryDiverged"):
        crash_everywhere(anew(lambda sim: sim.dispatch(branches, None).output()), [branches], every=3)


def test_an_output_that_depends_on_the_execution_is_caught() -> None:
    def scenario(sim: Simulation) -> str:
        prints = itertools.count()
        sim.fake(label, lambda ctx, order: f"print {next(prints)}")
        return sim.dispatch(deliver, ORDER).output()

    with pytest.raises(AssertionError, match=r"before append \d+ of the worker \(activity\.completed label \{3\}"):
        crash_everywhere(scenario, [deliver])


def test_a_scenario_that_fails_without_a_crash_fails_as_it_is() -> None:
    def scenario(sim: Simulation) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        crash_everywhere(scenario, [fulfil])


def test_a_coroutine_is_no_scenario() -> None:
    async def later() -> None:
        pass

    def scenario(sim: Simulation) -> object:
        return later()

    with pytest.raises(TypeError, match=r"sim\.run"):
        crash_everywhere(scenario, [fulfil])


# --- one crash --------------------------------------------------------------------------------------------------------


def test_one_crash_can_be_had_alone() -> None:
    with Simulation([fulfil], crash=CrashPoint(4, "before")) as sim:
        sim.fake(charge, returns=RECEIPT)
        handle = sim.dispatch(fulfil, ORDER)
        handle.signal(Paid(cents=500))
        assert handle.output() == "parcel 1 for 500"
        assert sim.crashed_at == "activity.completed charge {3}"


def test_a_crash_by_hand_runs_again_what_was_not_recorded() -> None:
    with Simulation([fulfil]) as sim:
        sim.fake(charge, returns=RECEIPT)
        handle = sim.dispatch(fulfil, ORDER)
        handle.signal(Paid(cents=500))
        sim.advance(1)  # in the middle of shipping
        sim.crash()
        assert handle.output() == "parcel 1 for 500"
        assert sim.elapsed == timedelta(seconds=3)
        assert len(sim.calls(charge)) == 1


async def test_crashes_can_be_had_in_an_async_test() -> None:

    @workflow
    async def once(ctx: WorkflowContext, _: None) -> int:
        async def body(ctx: WorkflowContext, state: Order) -> Break[int] | None:
            state.number += 1
            return Break(state.number) if state.number == 3 else None

        return await ctx.loop(body, Order(number=0))

    assert crash_everywhere(lambda sim: sim.dispatch(once, None).output(), [once]) == 3
