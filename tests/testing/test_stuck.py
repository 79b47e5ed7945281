"""What can never end is told at once, with what it waits for; nothing hangs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gasoline_es import ActivityContext, GasolineError, WorkflowContext, activity, workflow
from gasoline_es.testing import Simulation, Stuck
from tests.testing.shop import Order, Paid, deliver, fulfil, order_and_deliver, two_payments

ORDER = Order(number=1)


def test_a_signal_that_never_comes_is_named() -> None:
    with Simulation([two_payments]) as sim:
        handle = sim.dispatch(two_payments, ORDER)
        with pytest.raises(Stuck, match=f"workflow 'two_payments' {handle.id} waits for signal paid"):
            handle.output()


def test_after_that_the_simulation_goes_on() -> None:
    with Simulation([two_payments]) as sim:
        handle = sim.dispatch(two_payments, ORDER)
        handle.signal(Paid(cents=1))
        with pytest.raises(Stuck):
            handle.output()
        handle.signal(Paid(cents=2))
        assert handle.output() == [1, 2]


def test_a_workflow_nobody_runs_is_named() -> None:
    with Simulation([order_and_deliver]) as sim, pytest.raises(Stuck, match=r"Simulation\(\[…, deliver\]\)"):
        sim.dispatch(order_and_deliver, ORDER).output()


def test_a_coroutine_that_waits_for_ever_is_told() -> None:
    with Simulation([fulfil]) as sim, pytest.raises(Stuck, match="every workflow is complete"):
        sim.run(asyncio.Event().wait())


def test_workflows_without_end_are_told() -> None:
    @workflow
    async def tick(ctx: WorkflowContext, _: None) -> None:
        async def once(ctx: WorkflowContext) -> None:
            await ctx.sleep(1)

        await ctx.repeat(once)

    with Simulation([tick], jumps_max=50) as sim, pytest.raises(Stuck, match="after 50 jumps"):
        sim.dispatch(tick, None).output()


def test_a_thread_without_end_is_told() -> None:
    release = threading.Event()

    @activity
    def block(ctx: ActivityContext, _: None) -> None:
        release.wait()

    @workflow
    async def blocked(ctx: WorkflowContext, _: None) -> None:
        await ctx.activity(block, None)

    try:
        with Simulation([blocked], patience=0.05) as sim:
            with pytest.raises(GasolineError, match="in activity block, in a thread"):
                sim.dispatch(blocked, None)
            release.set()
    finally:
        release.set()


def test_a_verb_inside_the_simulation_says_what_to_use() -> None:
    with Simulation([deliver]) as sim:

        async def inside() -> None:
            sim.dispatch(deliver, ORDER)

        with pytest.raises(GasolineError, match=r"await sim\.gasoline\.dispatch"):
            sim.run(inside())


def test_a_simulation_is_used_in_its_block() -> None:
    sim = Simulation([deliver])
    with pytest.raises(GasolineError, match="not entered yet"):
        sim.dispatch(deliver, ORDER)
    with sim:
        handle = sim.dispatch(deliver, ORDER)
    with pytest.raises(GasolineError, match="over"):
        handle.output()
    with pytest.raises(GasolineError, match="make a new one"), sim:
        pass
