"""Mistakes that both checkers report, each with the codes on its line.

The comments keep `make test` clean, and mypy refuses one that suppresses nothing; ``test_typing`` takes all of them out
and holds both checkers to exactly these reports.
"""

from __future__ import annotations

from datetime import datetime

from gasoline_es import ActivityContext, Break, Gasoline, Signal, WorkflowContext, activity, workflow
from tests.typing.inside import Cancelled, Order, Paid, Progress, Receipt, charge, fulfil, lookup, pack


async def body(ctx: WorkflowContext) -> int:
    return 1


async def iteration(ctx: WorkflowContext, order: Order) -> Break[int] | None: ...


async def repetition(ctx: WorkflowContext) -> Break[int] | None: ...


async def forgotten_await(ctx: WorkflowContext, order: Order, when: datetime) -> None:
    ctx.activity(charge, order)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    ctx.sleep(1)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    ctx.sleep_until(when)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    ctx.listen(Paid)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    ctx.listen(Paid, timeout=1)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    ctx.listen_n(Paid, limit=1)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    ctx.v(2).sleep(1)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    ctx.removed("sleep")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    ctx.check_version(2)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    ctx.closure(body)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    ctx.run(fulfil, order)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    ctx.join(ctx.sleep(1), ctx.sleep(2))  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    ctx.join_all([ctx.sleep(1)])  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    ctx.race(ctx.sleep(1), ctx.sleep(2))  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    ctx.catch(ctx.sleep(1))  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    ctx.loop(iteration, order)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    ctx.repeat(repetition)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]


async def wrong_input(ctx: WorkflowContext, order: Order) -> None:
    await ctx.activity(charge, "order")  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    await ctx.activity(pack, Receipt(number=1))  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    await ctx.activity(charge)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def wrong_output(ctx: WorkflowContext, order: Order) -> str:
    return await ctx.activity(charge, order)  # type: ignore[arg-type]  # pyright: ignore[reportReturnType]


async def no_activity(ctx: WorkflowContext, order: Order) -> None:
    await ctx.activity(fulfil, order)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.activity(charge.fn, order)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def called_directly(ctx: ActivityContext, order: Order) -> None:
    await charge(ctx, order)  # type: ignore[operator]  # pyright: ignore[reportCallIssue]
    pack(ctx, order)  # type: ignore[operator]  # pyright: ignore[reportCallIssue]


async def not_narrowed(ctx: WorkflowContext) -> int:
    either = await ctx.listen(Paid, Cancelled)
    _ = either.amount  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]
    timed = await ctx.listen(Paid, timeout=1)
    return timed.amount  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]


async def no_signal(ctx: WorkflowContext) -> None:
    await ctx.listen(Order)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    await ctx.listen(Paid(amount=1))  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await ctx.listen()  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


async def no_message(ctx: WorkflowContext) -> None:
    await ctx.message(Paid(amount=1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ctx.message(Progress(done=1))  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    await ctx.message(Progress(done=1), topic={"map": None})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]


async def no_operation(ctx: WorkflowContext, inner: ActivityContext, gasoline: Gasoline, order: Order) -> None:
    await ctx.operation(lookup, order)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    await ctx.activity(lookup, order)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await inner.operation(charge, order)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await inner.operation(lookup, 1)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    inner.operation(lookup, order)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    await gasoline.operation(lookup, 1)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    lookup(inner, order)  # type: ignore[operator]  # pyright: ignore[reportCallIssue]


async def both_times(ctx: WorkflowContext, when: datetime) -> None:
    await ctx.listen(Paid, timeout=1, until=when)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await ctx.listen_n(Paid, limit=1, timeout=1, until=when)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await ctx.listen_n(Paid)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


async def unknown_kind(ctx: WorkflowContext) -> None:
    await ctx.removed("actvity", "charge")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def no_step(ctx: WorkflowContext, order: Order) -> None:
    await ctx.join(ctx.sleep(1), charge)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await ctx.join(ctx.sleep(1), body)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await ctx.join(ctx.sleep(1), None)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await ctx.join([ctx.sleep(1), ctx.sleep(2)])  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await ctx.join()  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await ctx.join_all(ctx.sleep(1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.race(ctx.sleep(1), order)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await ctx.race(ctx.sleep(1))  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await ctx.catch(charge)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.maybe(order)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def no_body(ctx: WorkflowContext, order: Order, receipt: Receipt) -> None:
    async def without_break(ctx: WorkflowContext, order: Order) -> int:
        return 1

    def not_async(ctx: WorkflowContext) -> int:
        return 1

    await ctx.closure(not_async)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.closure(iteration)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.loop(without_break, order)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.loop(iteration, receipt)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.loop(iteration)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await ctx.repeat(iteration)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.run(charge, order)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.run(fulfil, receipt)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]


async def race_not_narrowed(ctx: WorkflowContext, order: Order) -> int:
    _, value = await ctx.race(ctx.activity(charge, order), ctx.sleep(1))
    return value.number  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]


async def catch_not_narrowed(ctx: WorkflowContext, order: Order) -> Receipt:
    return (await ctx.catch(ctx.activity(charge, order))).value  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]


async def wrong_loop_value(ctx: WorkflowContext, order: Order) -> str:
    return await ctx.loop(iteration, order)  # type: ignore[arg-type]  # pyright: ignore[reportReturnType]


async def wrong_outside(gasoline: Gasoline, order: Order, receipt: Receipt) -> str:
    gasoline.dispatch(fulfil, order)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    await gasoline.dispatch(fulfil, receipt)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    await gasoline.dispatch(charge, order)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await gasoline.signal(Paid, to="id")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await gasoline.signal(Paid(amount=1))  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await gasoline.signal(Paid(amount=1), to="id", park=60)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await gasoline.signal(Paid(amount=1), fulfil, park="60")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await gasoline.message(Paid(amount=1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    gasoline.message(Progress(done=1))  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    gasoline.subscribe(Paid)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    await gasoline.tail(Progress(done=1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    handle = await gasoline.dispatch(fulfil, order)
    return await handle.output()  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def wrong_definitions() -> None:
    @workflow  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUntypedFunctionDecorator]
    def not_async(ctx: WorkflowContext, order: Order) -> None: ...

    @activity  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUntypedFunctionDecorator]
    async def with_the_wrong_context(ctx: WorkflowContext, order: Order) -> None: ...

    @activity(retries=3)  # type: ignore[call-overload, untyped-decorator]  # pyright: ignore[reportCallIssue, reportUntypedFunctionDecorator]
    async def unknown_setting(ctx: ActivityContext, order: Order) -> None: ...


class Fields(Signal):
    amount: int


def wrong_body() -> None:
    Fields(amount="nine")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Fields()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
