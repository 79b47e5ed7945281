"""What pyright and mypy infer in tests that use a simulation: one assertion for each row of the reference."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import assert_type

from gasoline_es import ActivityContext, Event, Gasoline, Received, WorkflowInfo
from gasoline_es.testing import Call, SimulatedWorkflow, Simulation, crash_everywhere
from tests.typing.inside import Order, Paid, Progress, Receipt, charge, fulfil, tick


def verbs(sim: Simulation, order: Order) -> None:
    handle = sim.dispatch(fulfil, order, tags={"order": "42"})
    assert_type(handle, SimulatedWorkflow[Receipt])
    assert_type(handle.output(), Receipt)
    assert_type(handle.signal(Paid(amount=9)), str)
    assert_type(handle.get(), WorkflowInfo)
    assert_type(handle.cancel(now=True), None)
    assert_type(handle.silence(), None)
    assert_type(handle.discard_signal("line-7"), None)
    assert_type(handle.recover(), None)
    assert_type(handle.history(), list[Event])
    assert_type(sim.dispatch(tick, None), SimulatedWorkflow[None])
    assert_type(handle.rerun("{1}", fork=True), SimulatedWorkflow[Receipt])
    assert_type(sim.handle(handle.id, fulfil).output(), Receipt)
    assert_type(sim.workflows(), list[WorkflowInfo])
    assert_type(sim.signal(Paid(amount=9), fulfil), str)
    assert_type(sim.messages(Progress, topic={"map": "forest"}), list[Received[Progress]])
    assert_type(sim.run(asyncio.sleep(1, "done")), str)
    assert_type(sim.gasoline, Gasoline)
    assert_type(sim.now, datetime)
    assert_type(sim.elapsed, timedelta)
    sim.signal_at(1.5, Paid(amount=9), to=handle)
    sim.signal_at(timedelta(days=1), Paid(amount=9), fulfil)


def fakes(sim: Simulation, receipt: Receipt) -> None:
    async def slow(ctx: ActivityContext, order: Order) -> Receipt:
        return receipt

    sim.fake(charge, slow)
    sim.fake(charge, lambda ctx, order: receipt)
    sim.fake(charge, returns=receipt, raises=OSError, times=2)
    sim.fake(charge, raises=OSError("no"))
    assert_type(sim.calls(charge), list[Call[Order]])


def crashes(order: Order) -> None:
    def scenario(sim: Simulation) -> Receipt:
        return sim.dispatch(fulfil, order).output()

    assert_type(crash_everywhere(scenario, [fulfil], every=2, strict=True), Receipt)
