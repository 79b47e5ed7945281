"""Time in a simulation: it jumps, in order, to what comes next, and only when nothing else can happen."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from gasoline_es import (
    ActivityContext,
    Gasoline,
    GasolineError,
    Message,
    OperationContext,
    OperationTimedOut,
    WorkflowContext,
    WorkflowNotFound,
    activity,
    operation,
    workflow,
)
from gasoline_es.errors import DefinitionError
from gasoline_es.testing import Simulation, crash_everywhere
from tests.testing.shop import (
    MONTH,
    WEEK,
    Order,
    Paid,
    Receipt,
    charge,
    deliver,
    fulfil,
    order_and_deliver,
    subscribe,
    two_payments,
)
from tests.testing.shop import ship as ship_parcel


def receipt(ctx: ActivityContext, order: Order) -> Receipt:
    return Receipt(order=order.number, cents=order.cents)


def test_a_year_passes_in_well_under_a_second() -> None:
    began = time.process_time()
    with Simulation([subscribe]) as sim:
        sim.fake(charge, receipt)
        assert sim.dispatch(subscribe, Order(number=1)).output() == 12
        assert sim.elapsed == 12 * MONTH
        calls = sim.calls(charge)
    assert [call.at - datetime(2026, 1, 1, tzinfo=UTC) for call in calls] == [n * MONTH for n in range(1, 13)]
    assert time.process_time() - began < 1


def test_a_sleep_of_thousands_of_years_is_one_jump() -> None:
    @workflow
    async def rest(ctx: WorkflowContext, _: None) -> datetime:
        await ctx.sleep_until(datetime(9000, 1, 1, tzinfo=UTC))
        await ctx.sleep(0.000_001)
        return ctx.now()

    with Simulation([rest]) as sim:
        assert sim.dispatch(rest, None).output() - datetime(9000, 1, 1, tzinfo=UTC) < timedelta(milliseconds=1)


def test_a_retry_waits_for_its_backoff_without_jitter() -> None:
    with Simulation([subscribe, fulfil]) as sim:
        sim.fake(charge, receipt, raises=ConnectionError("no line"), times=3)
        handle = sim.dispatch(fulfil, Order(number=1))
        handle.signal(Paid(cents=500))
        assert handle.output() == "parcel 1 for 500"
        # 60 s, 120 s and 240 s of backoff, then two seconds of shipping.
        assert sim.elapsed == timedelta(seconds=60 + 120 + 240 + 2)
        assert [call.attempt for call in sim.calls(charge)] == [1, 2, 3, 4]


def test_a_timeout_of_an_activity_is_virtual() -> None:
    async def hangs_once(ctx: ActivityContext, order: Order) -> Receipt:
        if ctx.attempt == 1:
            await asyncio.sleep(3600)
        return receipt(ctx, order)

    with Simulation([fulfil]) as sim:
        sim.fake(charge, hangs_once)
        handle = sim.dispatch(fulfil, Order(number=1))
        handle.signal(Paid(cents=500))
        handle.output()
        assert sim.elapsed == timedelta(seconds=10 + 60 + 2)


def test_a_timed_listen_is_lost_at_its_deadline() -> None:
    with Simulation([fulfil]) as sim:
        assert sim.dispatch(fulfil, Order(number=1)).output() == "cancelled"
        assert sim.elapsed == WEEK


def test_a_timed_listen_is_won_by_a_signal_before_it() -> None:
    with Simulation([fulfil]) as sim:
        sim.fake(charge, receipt)
        handle = sim.dispatch(fulfil, Order(number=1))
        sim.signal_at(WEEK - timedelta(seconds=1), Paid(cents=500), to=handle)
        assert handle.output() == "parcel 1 for 500"
        assert sim.elapsed == WEEK + timedelta(seconds=1)


def test_signals_come_in_the_order_of_their_times_and_then_of_the_calls() -> None:
    with Simulation([two_payments]) as sim:
        handle = sim.dispatch(two_payments, Order(number=1))
        sim.signal_at(timedelta(days=2), Paid(cents=2), to=handle)
        sim.signal_at(sim.now + timedelta(days=1), Paid(cents=11), to=handle.id)
        sim.signal_at(86_400, Paid(cents=12), to=handle)
        assert handle.output() == [11, 12]
        assert sim.elapsed == timedelta(days=1)


def test_a_signal_may_be_planned_before_its_workflow_is_dispatched() -> None:
    with Simulation([two_payments]) as sim:
        sim.signal_at(timedelta(hours=2), Paid(cents=1), two_payments, tags={"order": "7"})
        sim.signal_at(timedelta(hours=3), Paid(cents=2), two_payments)
        sim.advance(timedelta(hours=1))
        handle = sim.dispatch(two_payments, Order(number=7), tags={"order": "7"})
        assert handle.output() == [1, 2]
        assert sim.elapsed == timedelta(hours=3)


def test_a_planned_signal_that_nobody_can_take_is_an_error() -> None:
    with Simulation([two_payments]) as sim:
        sim.signal_at(5, Paid(cents=1), two_payments)
        with pytest.raises(WorkflowNotFound):
            sim.advance(10)
        sim.advance(1)  # it is told once


def test_a_time_that_has_passed_is_refused() -> None:
    with Simulation([fulfil]) as sim:
        sim.advance(10)
        with pytest.raises(ValueError, match="has passed"):
            sim.signal_at(9, Paid(cents=1), fulfil)
        with pytest.raises(ValueError, match="one of the two"):
            sim.signal_at(11, Paid(cents=1))


def test_a_verb_returns_when_nothing_can_happen_at_this_time() -> None:
    with Simulation([fulfil]) as sim:
        sim.fake(charge, receipt)
        handle = sim.dispatch(fulfil, Order(number=1))
        handle.signal(Paid(cents=500))
        assert len(sim.calls(charge)) == 1
        assert len(sim.calls(ship_parcel)) == 1
        assert handle.get().status == "running"
        assert sim.elapsed == timedelta(0)
        sim.advance(2)
        assert handle.get().status == "complete"


def test_advance_stops_at_its_time_with_everything_due_then_done() -> None:
    with Simulation([deliver]) as sim:
        handle = sim.dispatch(deliver, Order(number=1))
        sim.advance(3599)
        assert sim.calls(ship_parcel) == []
        sim.advance(1)
        assert len(sim.calls(ship_parcel)) == 1
        assert handle.get().status == "running"
        sim.advance(timedelta(seconds=2))
        assert handle.output() == "parcel 1 with label 1"
        assert sim.elapsed == timedelta(seconds=3602)


def test_a_thread_is_waited_for_and_takes_no_virtual_time() -> None:
    @activity
    def slow(ctx: ActivityContext, _: None) -> None:
        time.sleep(0.05)

    @workflow
    async def waits(ctx: WorkflowContext, _: None) -> None:
        await ctx.activity(slow, None)

    with Simulation([waits]) as sim:
        sim.dispatch(waits, None).output()
        assert sim.elapsed == timedelta(0)


def test_a_call_in_an_executor_is_waited_for_too() -> None:
    @activity
    async def slow(ctx: ActivityContext, _: None) -> None:
        await asyncio.to_thread(time.sleep, 0.05)

    @workflow
    async def waits(ctx: WorkflowContext, _: None) -> None:
        await ctx.activity(slow, None)

    with Simulation([waits]) as sim:
        sim.dispatch(waits, None).output()
        assert sim.elapsed == timedelta(0)


def test_a_socket_is_waited_for_really() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    @activity
    async def ask(ctx: ActivityContext, port: int) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello\n")
        answered = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return answered.decode().strip()

    @workflow
    async def asks(ctx: WorkflowContext, port: int) -> str:
        return await ctx.activity(ask, port)

    with Simulation([asks]) as sim:
        server = sim.run(asyncio.start_server(answer, "127.0.0.1", 0))
        assert sim.dispatch(asks, server.sockets[0].getsockname()[1]).output() == "hello"
        assert sim.elapsed == timedelta(0)
        server.close()


def test_sub_workflows_and_joins_run_in_the_same_time() -> None:
    with Simulation([order_and_deliver, deliver]) as sim:
        handle = sim.dispatch(order_and_deliver, Order(number=1))
        assert handle.output() == ["parcel 1 with label 1", "parcel 2 with label 2"]
        assert sim.elapsed == timedelta(seconds=3602)
        (child,) = sim.workflows(deliver)
        assert child.tags == {"order": "1"}
        assert sim.handle(child.id, deliver).output() == "parcel 1 with label 1"


def test_a_coroutine_takes_virtual_time_with_the_ordinary_client() -> None:
    async def customer(gasoline: Gasoline) -> str:
        handle = await gasoline.dispatch(fulfil, Order(number=1))
        await asyncio.sleep(86_400)
        await handle.signal(Paid(cents=500))
        return await handle.output(timeout=60)

    with Simulation([fulfil]) as sim:
        sim.fake(charge, receipt)
        assert sim.run(customer(sim.gasoline)) == "parcel 1 for 500"
        assert sim.elapsed == timedelta(days=1, seconds=2)


def test_a_long_wait_is_a_replay() -> None:
    """Whoever waits longer than ``evict_after`` leaves memory, so a body that cannot be replayed shows without a crash."""
    with Simulation([fulfil]) as sim:
        handle = sim.dispatch(fulfil, Order(number=1))
        sim.advance(6)
        assert handle.get().status == "sleeping"
        assert handle.output() == "cancelled"


def test_two_simulations_of_one_seed_have_the_same_ids() -> None:
    ids: list[str] = []
    for seed in (1, 1, 2):
        with Simulation([fulfil], seed=seed) as sim:
            ids.append(sim.dispatch(fulfil, Order(number=1)).id)
    assert ids[0] == ids[1] != ids[2]


def test_the_clock_starts_where_it_is_told_to() -> None:
    start = datetime(2030, 2, 3, tzinfo=UTC)
    with Simulation([fulfil], start=start) as sim:
        assert sim.now == start
        sim.dispatch(fulfil, Order(number=1)).output()
        assert sim.now == start + WEEK


class Step(Message):
    number: int


@workflow
async def steps(ctx: WorkflowContext, count: int) -> None:
    for number in range(count):
        await ctx.message(Step(number=number), topic={"even": number % 2 == 0})
        await ctx.sleep(60)


def test_messages_that_bodies_sent_can_be_looked_at() -> None:
    with Simulation([steps]) as sim:
        handle = sim.dispatch(steps, 3)
        assert [sent.message for sent in sim.messages(Step)] == [Step(number=0)]
        sim.crash()
        handle.output()
        sent = sim.messages(Step)
        assert [one.message.number for one in sent] == [0, 1, 2], "once, whatever crashes"
        assert [one.time - sent[0].time for one in sent] == [timedelta(minutes=n) for n in range(3)]
        assert {one.ray_id for one in sent} == {handle.id}
        assert [one.message.number for one in sim.messages(Step, topic={"even": True})] == [0, 2]
        sim.run(sim.gasoline.message(Step(number=9), topic={"even": False}))
        assert [one.message.number for one in sim.messages(Step, topic={"even": False})] == [1, 9]
        with pytest.raises(DefinitionError, match="not a kind of message"):
            sim.messages(int)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


def test_crashes_everywhere_send_each_message_of_a_body_once() -> None:
    def scenario(sim: Simulation) -> list[int]:
        sim.dispatch(steps, 3).output()
        return [sent.message.number for sent in sim.messages(Step)]

    assert crash_everywhere(scenario, [steps]) == [0, 1, 2]


def test_subscriber_in_a_simulation_is_given_messages_as_time_passes() -> None:
    async def first_two(gasoline: Gasoline) -> list[int]:
        async with gasoline.subscribe(Step) as sent:
            await gasoline.dispatch(steps, 3)
            return [(await anext(sent)).message.number for _ in range(2)]

    with Simulation([steps]) as sim:
        assert sim.run(first_two(sim.gasoline)) == [0, 1]
        assert sim.elapsed == timedelta(minutes=1)


@operation(timeout=60)
async def slow_lookup(ctx: OperationContext, seconds: float) -> str:
    await asyncio.sleep(seconds)
    return f"found for {ctx.workflow_name}"


@operation(timeout=60)
def lookup_in_a_thread(ctx: OperationContext, seconds: float) -> str:
    time.sleep(seconds)
    return f"found for {ctx.workflow_name}"


@activity(max_attempts=1, timeout=600)
async def look_up(ctx: ActivityContext, seconds: float) -> list[str]:
    try:
        slowly = await ctx.operation(slow_lookup, seconds)
    except OperationTimedOut as error:
        slowly = f"{error.operation} took longer than {error.timeout:g} s"
    return [slowly, await ctx.operation(lookup_in_a_thread, 0.01)]


@workflow
async def search(ctx: WorkflowContext, seconds: float) -> list[str]:
    return await ctx.activity(look_up, seconds)


@pytest.mark.parametrize(
    ("takes", "passes", "first"), [(50.0, 50, "found for search"), (70.0, 60, "slow_lookup took longer than 60 s")]
)
def test_operations_take_virtual_time_and_their_threads_hold_the_clock(takes: float, passes: int, first: str) -> None:
    with Simulation([search]) as sim:
        assert sim.dispatch(search, takes).output() == [first, "found for search"]
        assert sim.elapsed == timedelta(seconds=passes)
        assert sim.run(sim.gasoline.operation(lookup_in_a_thread, 0.01)) == "found for None"


def test_operation_that_works_for_too_long_in_a_thread_is_named() -> None:
    named = pytest.raises(GasolineError, match="in operation lookup_in_a_thread, in a thread")
    with Simulation([search], patience=0.05) as sim, named:
        sim.run(sim.gasoline.operation(lookup_in_a_thread, 1.0))
