"""A body never sees that it waits or leaves memory, whatever it catches (semantics §4 "not yet", B08)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import WorkflowContext
from gasoline_es.core import events as ev
from gasoline_es.core.values import dump_json
from tests.replay.code import Paid, charge, notify, pack
from tests.replay.world import World

ROOT = Path(__file__).resolve().parents[2]
OTHER = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a40"
HOUR_US = 3_600_000_000

Step = Callable[[WorkflowContext], Coroutine[Any, Any, Any]]
Wrapped = Callable[[WorkflowContext, Step, list[str]], Coroutine[Any, Any, Any]]


# --- what it waits for, and what lets it go on ------------------------------------------------------------------------


async def _listen(ctx: WorkflowContext) -> Any:
    return (await ctx.listen(Paid)).amount


async def _timed_listen(ctx: WorkflowContext) -> Any:
    return await ctx.listen(Paid, timeout=3600)


async def _sleep(ctx: WorkflowContext) -> Any:
    return await ctx.sleep(3600)


async def _backoff(ctx: WorkflowContext) -> Any:
    return await ctx.activity(charge, 1)


async def _output(ctx: WorkflowContext) -> Any:
    return await ctx.output(pack, OTHER)


def _completed(world: World) -> None:
    world.tell_output(b'"packed"', at=((1,),))


def _paid(world: World) -> None:
    world.signal("paid", b'{"amount":9}')


def _an_hour(world: World) -> None:
    world.advance(HOUR_US)


def _retried(world: World) -> None:
    world.advance(HOUR_US)
    world.complete(9)


WAITS = [
    pytest.param(_listen, _paid, 9, id="listen"),
    pytest.param(_timed_listen, _an_hour, None, id="timed listen"),
    pytest.param(_sleep, _an_hour, None, id="sleep"),
    pytest.param(_backoff, _retried, 9, id="backoff"),
    pytest.param(_output, _completed, "packed", id="output of another workflow"),
]


# --- how the body wraps it --------------------------------------------------------------------------------------------


async def _except_exception(ctx: WorkflowContext, step: Step, seen: list[str]) -> Any:
    try:
        return await step(ctx)
    except Exception as error:
        seen.append(repr(error))


async def _suppress(ctx: WorkflowContext, step: Step, seen: list[str]) -> Any:
    with contextlib.suppress(Exception):
        return await step(ctx)
    seen.append("suppressed")


async def _bare_except(ctx: WorkflowContext, step: Step, seen: list[str]) -> Any:
    try:
        return await step(ctx)
    except:  # noqa: E722  # what it is about
        seen.append("caught")
        return "swallowed"


async def _except_base_exception_then_a_step(ctx: WorkflowContext, step: Step, seen: list[str]) -> Any:
    value = "swallowed"
    try:
        value = await step(ctx)
    except BaseException:
        seen.append("caught")
    await ctx.activity(notify, value)
    return value


async def _finally_a_step(ctx: WorkflowContext, step: Step, seen: list[str]) -> Any:
    try:
        return await step(ctx)
    finally:
        await ctx.activity(notify, "finally")
        seen.append("after finally")


QUIET = [pytest.param(_except_exception, id="except Exception"), pytest.param(_suppress, id="suppress")]
WIDE = [
    pytest.param(_bare_except, id="bare except"),
    pytest.param(_except_base_exception_then_a_step, id="except BaseException"),
    pytest.param(_finally_a_step, id="finally"),
]


def waiting(wrapped: Wrapped, step: Step, seen: list[str]) -> World:
    """A world whose body has reached the wait; an activity has failed once."""
    world = World(lambda ctx: wrapped(ctx, step, seen))
    world.dispatch()
    if step is _backoff:
        world.fail("ConnectionError", "refused")
    return world


def outcome(world: World) -> bytes | None:
    return world.state.output


@pytest.mark.parametrize(("step", "go_on", "value"), WAITS)
@pytest.mark.parametrize("wrapped", [*QUIET, *WIDE])
@pytest.mark.parametrize("evicted", [False, True], ids=["in memory", "evicted"])
def test_wait_is_never_seen_and_the_step_gives_its_real_value(
    wrapped: Wrapped, step: Step, go_on: Callable[[World], None], value: object, evicted: bool
) -> None:
    seen: list[str] = []
    world = waiting(wrapped, step, seen)
    assert seen == []
    if evicted:
        world.suspend()
        seen.clear()
        assert world.status == "sleeping"
        world.restart()
    go_on(world)
    if wrapped in (_except_base_exception_then_a_step, _finally_a_step):
        world.complete("noted")
    assert outcome(world) == dump_json(value)
    assert seen in ([], ["after finally"])
    assert [world.state.summary.status, world.state.summary.error] == ["complete", None]


@pytest.mark.parametrize(("step", "go_on", "value"), WAITS)
@pytest.mark.parametrize("wrapped", [*QUIET, *WIDE])
def test_eviction_runs_no_step_and_records_nothing(
    wrapped: Wrapped, step: Step, go_on: Callable[[World], None], value: object
) -> None:
    seen: list[str] = []
    world = waiting(wrapped, step, seen)
    before = list(world.events)
    run = world.run
    assert run is not None
    world.stop()
    assert world.events == before
    assert run.end is None
    assert "after finally" not in seen


@pytest.mark.parametrize(("step", "go_on", "value"), WAITS)
def test_except_exception_and_suppress_do_not_even_see_the_eviction(
    step: Step, go_on: Callable[[World], None], value: object
) -> None:
    for wrapped in (_except_exception, _suppress):
        seen: list[str] = []
        world = waiting(wrapped, step, seen)
        world.stop()
        assert (seen, world.complaints) == ([], [])


def test_step_in_finally_is_refused_at_an_eviction_without_a_complaint() -> None:
    # A finally that undoes something is ordinary code: it runs when the body ends, and not because of an eviction.
    world = waiting(_finally_a_step, _sleep, [])
    world.stop()
    assert world.complaints == []


def test_nested_finally_steps_are_refused_without_a_complaint() -> None:
    async def body(ctx: WorkflowContext) -> None:
        try:
            try:
                await ctx.sleep(3600)
            finally:
                await ctx.activity(notify, 1)
        finally:
            await ctx.activity(notify, 2)

    world = World(body)
    world.dispatch()
    world.stop()
    assert world.complaints == []
    assert len(world.events) == 2


def test_swallowed_close_followed_by_a_step_is_complained_about_with_its_place() -> None:
    world = waiting(_except_base_exception_then_a_step, _sleep, [])
    world.stop()
    (complaint,) = world.complaints
    assert "swallowed" in complaint
    assert "`ctx.activity(…)`" in complaint
    assert f"{__file__}:" in complaint


def test_swallowed_close_followed_by_a_return_is_complained_about() -> None:
    world = waiting(_bare_except, _sleep, [])
    world.stop()
    (complaint,) = world.complaints
    assert "swallowed" in complaint
    assert "dropped" in complaint
    assert world.state.output is None


def test_error_in_a_finally_at_eviction_is_complained_about_and_records_nothing() -> None:
    async def body(ctx: WorkflowContext) -> None:
        try:
            await ctx.sleep(3600)
        finally:
            raise ValueError("cannot undo")

    world = World(body)
    world.dispatch()
    world.stop()
    (complaint,) = world.complaints
    assert "cannot undo" in complaint
    assert len(world.events) == 2
    assert world.status == "running"


# --- bodies that will not let go --------------------------------------------------------------------------------------


async def _swallows_for_ever(ctx: WorkflowContext) -> None:
    while True:
        try:
            await ctx.sleep(3600)
        except BaseException:  # noqa: S112  # what it is about
            continue


async def _waits_outside_for_ever(ctx: WorkflowContext) -> None:
    try:
        await ctx.sleep(3600)
    except BaseException:
        while True:
            with contextlib.suppress(BaseException):
                await asyncio.sleep(0)


@pytest.mark.parametrize("body", [_swallows_for_ever, _waits_outside_for_ever])
@pytest.mark.timeout(10)
def test_body_that_swallows_the_close_for_ever_does_not_hang(
    body: Callable[[WorkflowContext], Coroutine[Any, Any, Any]],
) -> None:
    world = World(body)
    world.dispatch()
    before = list(world.events)
    world.stop()
    assert world.events == before
    assert any("does not let go" in complaint for complaint in world.complaints)
    gc.collect()


def test_death_of_a_body_that_swallows_the_close_is_recorded_all_the_same() -> None:
    async def body(ctx: WorkflowContext) -> None:
        await ctx.activity(charge, 1)
        await ctx.sleep(3600)

    async def diverged(ctx: WorkflowContext) -> str:
        with contextlib.suppress(BaseException):
            await ctx.activity(notify, 1)
        return "swallowed"

    world = World(body)
    world.dispatch()
    world.complete(1)
    world.restart(diverged)
    assert world.status == "dead"
    assert isinstance(world.events[-1], ev.WorkflowFailed)
    assert world.events[-1].error.type == "HistoryDiverged"
    assert world.complaints


EXIT = """
import sys
from tests.replay.test_suspension import _except_base_exception_then_a_step, _sleep, _swallows_for_ever, waiting
from tests.replay.test_suspension import _finally_a_step, _waits_outside_for_ever
from tests.replay.world import World

sys.unraisablehook = lambda unraisable: print("unraisable:", unraisable, file=sys.stderr)
kept = []
for body in (_swallows_for_ever, _waits_outside_for_ever):
    world = World(body)
    world.dispatch()
    world.stop()
    kept.append(world)
for wrapped in (_except_base_exception_then_a_step, _finally_a_step):
    waiting(wrapped, _sleep, []).stop()
"""

DROPPED = """
from tests.replay.test_suspension import _swallows_for_ever
from tests.replay.world import World

world = World(_swallows_for_ever)
world.dispatch()
del world
"""


def _python(code: str) -> tuple[int, str, str]:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def test_nothing_is_said_at_the_interpreters_exit() -> None:
    assert _python(EXIT) == (0, "", "")


def test_run_that_was_never_closed_does_not_hang_the_interpreters_exit() -> None:
    assert _python(DROPPED)[0] == 0
