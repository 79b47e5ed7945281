"""An author's mistakes end the run with an error that names the fix and the place, whatever the body catches (design §3)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import logging
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, cast

import pytest

from gasoline_es import WorkflowContext
from gasoline_es.core import events as ev
from gasoline_es.core.guard import check_outside_body
from gasoline_es.errors import DefinitionError, StepMisused
from tests.replay.code import Paid, charge, notify
from tests.replay.world import World

Body = Callable[[WorkflowContext], Coroutine[Any, Any, Any]]


def died(body: Body) -> ev.ErrorInfo:
    """Run a body until it dies; nothing of it may be recorded but that it died."""
    world = World(body)
    world.dispatch()
    assert world.status == "dead", world.events
    assert [data.TYPE for data in world.events] == ["workflow.dispatched", "workflow.failed"]
    assert world.state.summary.error is not None
    gc.collect(1)  # what is forgotten is told by Python now, if at all
    return world.state.summary.error


def line_of(body: Callable[..., Any], marker: str) -> str:
    """The place of the line of a body that holds the marker."""
    lines, first = inspect.getsourcelines(body)
    return f"{inspect.getsourcefile(body)}:{first + next(n for n, line in enumerate(lines) if marker in line)}"


# --- asyncio ----------------------------------------------------------------------------------------------------------


async def helper(ctx: WorkflowContext) -> None:
    await ctx.sleep(1)


async def sleeps(ctx: WorkflowContext) -> None:
    await asyncio.sleep(1)  # here


async def yields(ctx: WorkflowContext) -> None:
    await asyncio.sleep(0)  # here


async def gathers(ctx: WorkflowContext) -> None:
    await asyncio.gather(helper(ctx), helper(ctx), ctx.sleep(1))  # here


async def creates_a_task(ctx: WorkflowContext) -> None:
    await asyncio.create_task(helper(ctx))  # here


async def groups_tasks(ctx: WorkflowContext) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(helper(ctx))  # here


async def waits(ctx: WorkflowContext) -> None:
    await asyncio.wait([asyncio.ensure_future(helper(ctx))])  # here


async def waits_for_a_step(ctx: WorkflowContext) -> None:
    await asyncio.wait_for(ctx.listen(Paid), 10)  # here


async def waits_for_a_coroutine(ctx: WorkflowContext) -> None:
    await asyncio.wait_for(helper(ctx), 10)  # here


async def shields(ctx: WorkflowContext) -> None:
    await asyncio.shield(helper(ctx))  # here


async def takes_as_completed(ctx: WorkflowContext) -> None:
    for next_one in asyncio.as_completed([helper(ctx), helper(ctx)]):  # here
        await next_one


async def times_out(ctx: WorkflowContext) -> None:
    async with asyncio.timeout(1):  # here
        await ctx.sleep(2)


async def times_out_at(ctx: WorkflowContext) -> None:
    async with asyncio.timeout_at(1):  # here
        await ctx.sleep(2)


async def times_out_never(ctx: WorkflowContext) -> None:
    async with asyncio.timeout(None):  # here
        await ctx.sleep(2)


async def uses_a_thread(ctx: WorkflowContext) -> None:
    await asyncio.to_thread(print)  # here


async def uses_an_executor(ctx: WorkflowContext) -> None:
    await asyncio.get_running_loop().run_in_executor(None, print)  # here


async def runs_a_loop(ctx: WorkflowContext) -> None:
    asyncio.run(helper(ctx))  # here


async def gets_from_a_queue(ctx: WorkflowContext) -> None:
    await asyncio.Queue[int]().get()  # here


async def waits_for_an_event(ctx: WorkflowContext) -> None:
    await asyncio.Event().wait()  # here


async def waits_for_a_condition(ctx: WorkflowContext) -> None:
    async with (condition := asyncio.Condition()):
        await condition.wait()  # here


async def contends_for_a_lock(ctx: WorkflowContext) -> None:
    lock = asyncio.Lock()
    await lock.acquire()
    async with lock:  # here
        pass


async def awaits_a_future(ctx: WorkflowContext) -> None:
    await asyncio.Future[int]()  # here


async def opens_a_connection(ctx: WorkflowContext) -> None:
    await asyncio.open_connection("example.org", 80)  # here


async def uses_a_client(ctx: WorkflowContext) -> None:
    # What every client does somewhere below.
    loop = asyncio.get_running_loop()
    future = loop.create_future()  # here
    loop.call_soon(future.set_result, 1)
    await future


async def reads_the_loops_clock(ctx: WorkflowContext) -> None:
    asyncio.get_running_loop().time()  # here


ASYNCIO = [
    (sleeps, "asyncio.sleep", "await ctx.sleep(…)"),
    (yields, "asyncio.sleep(0)", "ctx.sleep(…)"),
    (gathers, "asyncio.gather", "ctx.activity(…)"),
    (creates_a_task, "asyncio.create_task", "ctx.activity(…)"),
    (groups_tasks, "asyncio.TaskGroup.create_task", "ctx.activity(…)"),
    (waits, "asyncio.ensure_future", "ctx.activity(…)"),
    (waits_for_a_step, "asyncio.wait_for", "ctx.listen(Paid, timeout=10)"),
    (waits_for_a_coroutine, "asyncio.wait_for", "timeout="),
    (shields, "asyncio.shield", "ctx.activity(…)"),
    (takes_as_completed, "asyncio.as_completed", "ctx.activity(…)"),
    (times_out, "asyncio.timeout", "timeout="),
    (times_out_at, "asyncio.Timeout", "timeout="),
    (times_out_never, "asyncio.Timeout", "timeout="),
    (uses_a_thread, "asyncio.to_thread", "plain `def` activity"),
    (uses_an_executor, "run_in_executor", "plain `def` activity"),
    (runs_a_loop, "asyncio.run", "ctx.activity(…)"),
    (gets_from_a_queue, "asyncio.Queue.get", "ctx.listen(…)"),
    (waits_for_an_event, "asyncio.Event.wait", "ctx.listen(…)"),
    (waits_for_a_condition, "asyncio.Condition.wait", "ctx.listen(…)"),
    (contends_for_a_lock, "asyncio.Lock", "activity"),
    (awaits_a_future, "Future", "ctx.activity(…)"),
    (opens_a_connection, "asyncio.open_connection", "ctx.activity(…)"),
    (uses_a_client, "create_future", "ctx.listen(…)"),
    (reads_the_loops_clock, "time", "ctx.now()"),
]


if "cancelling" not in inspect.getsource(asyncio.Timeout.__aenter__):
    # Python 3.11 before its fourth release or so: a timeout of None touches nothing there that could refuse it.
    ASYNCIO.remove(next(case for case in ASYNCIO if case[0] is times_out_never))


@pytest.mark.parametrize(("body", "found", "fix"), [pytest.param(*case, id=case[0].__name__) for case in ASYNCIO])
def test_asyncio_in_a_body_names_what_was_called_where_and_the_verb(body: Body, found: str, fix: str) -> None:
    error = died(body)
    assert error.type == "StepMisused"
    assert found in error.message
    assert fix in error.message
    assert line_of(body, "# here") in error.message


# Two never come back from what they await, one is refused by Python itself (see below).
CATCHABLE = [case[0] for case in ASYNCIO if case[0] not in (yields, awaits_a_future, runs_a_loop)]


@pytest.mark.parametrize("body", CATCHABLE, ids=lambda body: body.__name__)
@pytest.mark.parametrize("caught", [Exception, BaseException])
def test_body_that_catches_the_guards_error_and_goes_on_ends_all_the_same(
    body: Body, caught: type[BaseException]
) -> None:
    async def catching(ctx: WorkflowContext) -> str:
        with contextlib.suppress(caught):
            await body(ctx)
        await ctx.activity(charge, 1)
        return "went on"

    assert died(catching).type == "StepMisused"


def test_refusal_that_python_makes_itself_is_the_same_on_every_replay() -> None:
    async def body(ctx: WorkflowContext) -> str:
        with contextlib.suppress(RuntimeError):
            asyncio.run(cast(Any, None))
        return await ctx.activity(charge, 1)

    world = World(body)
    world.dispatch()
    world.restart()
    world.complete("ok")
    assert world.status == "complete"


@pytest.mark.timeout(10)
@pytest.mark.parametrize("caught", [Exception, BaseException])
def test_body_that_polls_with_asyncio_and_catches_everything_does_not_hang(caught: type[BaseException]) -> None:
    async def body(ctx: WorkflowContext) -> None:
        while True:
            with contextlib.suppress(caught):
                await asyncio.sleep(1)

    world = World(body)
    world.dispatch()
    assert world.status == "dead"
    error = world.state.summary.error
    assert error is not None
    assert "asyncio.sleep" in error.message


def test_asyncio_refused_in_a_body_works_around_it() -> None:
    async def main() -> tuple[str, str]:
        task = asyncio.current_task()
        died(sleeps)
        assert asyncio.current_task() is task
        async with asyncio.timeout(10):
            first, second = await asyncio.gather(asyncio.sleep(0, "a"), asyncio.sleep(0, "b"))
            return first, second

    assert asyncio.run(main()) == ("a", "b")


def test_client_of_the_engine_in_a_body_is_refused_even_if_caught() -> None:
    async def body(ctx: WorkflowContext) -> None:
        with contextlib.suppress(StepMisused):
            check_outside_body("instead of `gasoline.dispatch(…)` use `ctx.dispatch(…)`")
        await ctx.activity(charge, 1)

    assert "`ctx.dispatch(…)`" in died(body).message
    check_outside_body("outside of a body it says nothing")


def test_two_bodies_at_once_are_told_apart() -> None:
    # One body is driven while another one is (as by two engines in two threads): each hears of its own mistake only.
    inner: list[World] = []

    async def outer_body(ctx: WorkflowContext) -> str:
        world = World(sleeps)
        world.dispatch()
        inner.append(world)
        return "innocent"

    world = World(outer_body)
    world.dispatch()
    assert (world.status, inner[0].status) == ("complete", "dead")


# --- steps ------------------------------------------------------------------------------------------------------------


async def forgets_before_a_step(ctx: WorkflowContext) -> None:
    ctx.activity(charge, 1)  # here  # pyright: ignore[reportUnusedCoroutine]
    await ctx.sleep(1)


async def forgets_before_the_return(ctx: WorkflowContext) -> None:
    ctx.sleep(1)  # here  # pyright: ignore[reportUnusedCoroutine]


async def returns_a_step(ctx: WorkflowContext) -> Any:
    return ctx.sleep(1)  # here


async def forgets_in_an_except(ctx: WorkflowContext) -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        ctx.activity(notify, "broken")  # here  # pyright: ignore[reportUnusedCoroutine]


async def keeps_for_later(ctx: WorkflowContext) -> None:
    later = ctx.sleep(1)  # here
    await ctx.sleep(2)
    await later


@pytest.mark.parametrize(
    "body",
    [forgets_before_a_step, forgets_before_the_return, returns_a_step, forgets_in_an_except, keeps_for_later],
    ids=lambda body: body.__name__,
)
def test_step_that_is_not_awaited_is_named_with_its_place_and_not_done(body: Body) -> None:
    error = died(body)
    assert error.type == "StepMisused"
    assert "never awaited" in error.message
    assert re.search(r"Write `await ctx\.(activity|sleep)\(…\)`", error.message)
    assert line_of(body, "# here") in error.message


def test_step_that_is_not_awaited_before_an_error_leaves_the_error_as_it_is() -> None:
    async def body(ctx: WorkflowContext) -> None:
        step = ctx.sleep(1)
        raise ValueError(f"broken before {bool(step)}")

    assert died(body).type == "ValueError"


async def awaits_twice(ctx: WorkflowContext) -> None:
    step = ctx.check_version(1)
    await step
    await step  # here


def test_step_awaited_twice_is_told_with_the_fix() -> None:
    world = World(awaits_twice)
    world.dispatch()
    error = world.state.summary.error
    assert error is not None
    assert error.type == "StepMisused"
    assert "awaited twice" in error.message
    assert "anew" in error.message
    assert line_of(awaits_twice, "# here") in error.message


def test_context_of_another_workflow_is_refused_and_the_other_is_unharmed() -> None:
    leaked: list[WorkflowContext] = []

    async def leaks(ctx: WorkflowContext) -> str:
        leaked.append(ctx)
        await ctx.sleep(1)
        return await ctx.activity(charge, 1)

    async def uses_the_leaked(ctx: WorkflowContext) -> None:
        await leaked[0].sleep(1)  # here

    async def catches(ctx: WorkflowContext) -> None:
        with contextlib.suppress(StepMisused):
            await leaked[0].sleep(1)
        await ctx.activity(charge, 1)

    other = World(leaks)
    other.dispatch()
    error = died(uses_the_leaked)
    assert error.type == "StepMisused"
    assert "one run of one body" in error.message
    assert line_of(uses_the_leaked, "# here") in error.message
    assert died(catches).type == "StepMisused"
    other.advance(1_000_000)
    other.complete("ok")
    assert other.status == "complete"


def test_step_made_on_a_context_outside_of_every_body_is_refused_there() -> None:
    # As from an activity, a thread or a callback that got hold of the context.
    leaked: list[WorkflowContext] = []

    async def leaks(ctx: WorkflowContext) -> None:
        leaked.append(ctx)
        await ctx.sleep(1)

    world = World(leaks)
    world.dispatch()
    with pytest.raises(StepMisused, match="outside of that workflow's body"):
        leaked[0].sleep(1).close()
    world.advance(1_000_000)
    assert world.status == "complete"
    with pytest.raises(StepMisused, match="outside of that workflow's body"):
        leaked[0].sleep(1).close()


def test_step_of_another_run_that_is_awaited_is_refused() -> None:
    async def outer(ctx: WorkflowContext) -> None:
        step = ctx.sleep(1)

        async def inner(_inner: WorkflowContext) -> None:
            await step

        world = World(inner)
        world.dispatch()
        error = world.state.summary.error
        assert error is not None
        raise ValueError(error.message)

    assert "belongs to another run" in died(outer).message


def test_async_generator_of_steps_left_unfinished_is_closed_with_the_body() -> None:
    async def paid(ctx: WorkflowContext) -> AsyncIterator[Paid]:
        while True:
            yield await ctx.listen(Paid)

    async def body(ctx: WorkflowContext) -> int:
        async for one in paid(ctx):
            return one.amount
        return 0

    async def main() -> World:
        world = World(body)
        world.dispatch()
        world.signal("paid", b'{"amount":7}')
        world.run = None
        gc.collect()
        await asyncio.sleep(0)  # the loop would run what was handed to it
        return world

    assert asyncio.run(main()).state.output == b"7"


# --- errors and values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError("stop"), GeneratorExit(), ValueError("no")])
def test_anything_that_leaves_a_body_makes_it_dead(error: BaseException) -> None:
    async def body(ctx: WorkflowContext) -> None:
        raise error

    told = died(body)
    assert told.type == type(error).__name__
    assert "in body" in told.traceback


def test_keyboard_interrupt_passes_and_records_nothing() -> None:
    # A Ctrl-C is for the process, not for the workflow that happens to run.
    async def body(ctx: WorkflowContext) -> None:
        raise KeyboardInterrupt

    world = World(body)
    with pytest.raises(KeyboardInterrupt):
        world.dispatch()
    assert [data.TYPE for data in world.events] == ["workflow.dispatched"]
    run = world.run
    assert run is not None
    assert run.closed
    run.advance(world.now_us)
    world.restart(_charges)
    world.complete("ok")
    assert world.status == "complete"


async def _charges(ctx: WorkflowContext) -> Any:
    return await ctx.activity(charge, 1)


def test_error_whose_text_cannot_be_shown_is_an_error_all_the_same() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    async def body(ctx: WorkflowContext) -> None:
        raise Broken

    error = died(body)
    assert error.type.endswith("Broken")
    assert "RuntimeError" in error.message


WRONG: list[Callable[[WorkflowContext], Any]] = [
    lambda ctx: ctx.sleep(float("inf")),
    lambda ctx: ctx.sleep(float("nan")),
    lambda ctx: ctx.sleep(-1),
    lambda ctx: ctx.sleep(timedelta(seconds=-1)),
    lambda ctx: ctx.sleep(timedelta.max),
    # Refused by itself, and not because of the time at which a step comes to it (§1.5).
    lambda ctx: ctx.sleep(timedelta(days=365 * 7001)),
    lambda ctx: ctx.sleep_until(datetime(2030, 1, 1)),  # noqa: DTZ001  # what it is about
    lambda ctx: ctx.listen(Paid, timeout=float("inf")),
    lambda ctx: ctx.listen(Paid, timeout=-1),
    lambda ctx: ctx.listen(Paid, until=datetime(2030, 1, 1)),  # noqa: DTZ001
    lambda ctx: ctx.listen_n(Paid, limit=0),
    lambda ctx: ctx.activity(charge, 1, timeout=float("nan")),
]


@pytest.mark.parametrize("call", WRONG)
def test_wrong_argument_is_raised_at_the_call_and_takes_no_location(call: Callable[[WorkflowContext], Any]) -> None:
    async def body(ctx: WorkflowContext) -> Any:
        with pytest.raises(ValueError, match=r"ctx\."):
            call(ctx)
        return await ctx.activity(charge, 1)

    world = World(body)
    world.dispatch()
    assert len(world.events) == 1
    assert world.waiting_activity().location == ((1,),)
    world.close()


def test_activity_called_directly_is_refused_with_the_fix() -> None:
    async def body(ctx: WorkflowContext) -> None:
        cast(Any, charge)(ctx, 1)

    error = died(body)
    assert error.type == DefinitionError.__name__
    assert "`await ctx.activity(charge, …)`" in error.message


# --- what is allowed --------------------------------------------------------------------------------------------------


def test_logging_in_a_body_works(caplog: pytest.LogCaptureFixture) -> None:
    # From Python 3.12 on, logging asks asyncio for the current task and its name.
    async def body(ctx: WorkflowContext) -> Any:
        logging.getLogger("orders").warning("charging")
        task = asyncio.current_task()
        assert task is not None
        assert task.get_name() == "workflow body"
        return await ctx.activity(charge, 1)

    world = World(body)
    world.dispatch()
    assert caplog.messages == ["charging"]
    world.complete("ok")
    assert world.status == "complete"


def test_clocks_and_random_numbers_of_python_are_allowed() -> None:
    # Documented as what a replay sees anew; the verbs are ctx.now() and ctx.random().
    async def body(ctx: WorkflowContext) -> Any:
        assert time.time() > 0
        assert 0 <= random.random() < 1
        return await ctx.activity(charge, 1)

    world = World(body)
    world.dispatch()
    world.complete("ok")
    assert world.status == "complete"


def test_uncontended_lock_and_set_event_do_not_wait_and_pass() -> None:
    async def body(ctx: WorkflowContext) -> Any:
        event = asyncio.Event()
        event.set()
        await event.wait()
        async with asyncio.Lock():
            return await ctx.activity(charge, 1)

    world = World(body)
    world.dispatch()
    world.complete("ok")
    assert world.status == "complete"
