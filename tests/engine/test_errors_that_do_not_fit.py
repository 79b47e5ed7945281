"""Whatever an error says, what was to be undone is undone, and each end is recorded (semantics.md §12)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gasoline_es import ActivityContext, Break, Workflow, WorkflowContext, activity, workflow
from gasoline_es.errors import WorkflowFailed
from gasoline_es.events import Event, LoopCommitted, RaceDecided, RollbackStarted
from gasoline_es.testing import Simulation

TEXTS: dict[str, str] = {
    "short": "no",
    "a file name that is not UTF-8": "caf\udce9.txt",
    "half a megabyte": "b" * 500_000,
    "more than a record": "b" * 5_000_000,
    "control characters": "\x00" * 300_000,
}


@activity(max_attempts=1)
async def charge(ctx: ActivityContext, amount: int) -> int:
    return amount


@activity(max_attempts=1)
async def refund(ctx: ActivityContext, amount: int) -> None: ...


def fails(raising: Callable[[WorkflowContext], Any]) -> Workflow[int, None]:
    """A workflow that has something to undo when ``raising`` raises."""

    @workflow(name="order")
    async def order(ctx: WorkflowContext, amount: int) -> None:
        await ctx.checkpoint()
        ctx.on_rollback(refund, await ctx.activity(charge, amount))
        await raising(ctx)

    return order


def died(order: Workflow[int, None]) -> tuple[WorkflowFailed, list[Event]]:
    with Simulation([order]) as sim:
        handle = sim.dispatch(order, 7)
        with pytest.raises(WorkflowFailed) as failed:
            handle.output()
        return failed.value, handle.history()


def types(history: list[Event]) -> list[str]:
    return [event.type for event in history]


ROLLED_BACK = [
    "workflow.dispatched",
    "checkpoint.reached",
    "activity.completed",
    "rollback.started",
    "activity.completed",
    "workflow.failed",
]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_what_was_given_is_undone_whatever_the_error_says(text: str) -> None:
    async def raising(ctx: WorkflowContext) -> None:
        raise ValueError(text)

    failed, history = died(fails(raising))
    assert types(history) == ROLLED_BACK
    assert failed.error.type == "ValueError"
    started = next(event.data for event in history if isinstance(event.data, RollbackStarted))
    assert started.error == failed.error
    assert text.encode("utf-8", "backslashreplace").decode()[:5] == failed.error.message[:5]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_group_of_errors_is_rolled_back(text: str) -> None:
    async def raising(ctx: WorkflowContext) -> None:
        raise ExceptionGroup(text, [ValueError(text)] * 5)

    _, history = died(fails(raising))
    assert types(history) == ROLLED_BACK


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_failure_that_is_caught_as_a_value_can_be_kept(text: str) -> None:
    async def breaks(ctx: WorkflowContext) -> None:
        raise ValueError(text)

    @activity
    async def note(ctx: ActivityContext, why: str) -> None: ...

    @workflow
    async def caught(ctx: WorkflowContext, _: None) -> str:
        failed = await ctx.catch(ctx.closure(breaks))
        assert not hasattr(failed, "value")
        message = getattr(failed, "error").message  # noqa: B009  # either type has one of the two
        await ctx.activity(note, message)
        return message[:5]

    with Simulation([caught]) as sim:
        assert sim.dispatch(caught, None).output() == text.encode("utf-8", "backslashreplace").decode()[:5]


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError("stop"), GeneratorExit(), BaseException("x")])
def test_what_is_no_exception_is_rolled_back_too(error: BaseException) -> None:
    async def raising(ctx: WorkflowContext) -> None:
        raise error

    failed, history = died(fails(raising))
    assert types(history) == ROLLED_BACK
    assert failed.error.type == type(error).__name__


@pytest.mark.parametrize("below", ["closure", "join", "race", "catch", "loop"])
def test_what_is_no_exception_passes_every_step_to_the_body(below: str) -> None:
    seen: list[str] = []

    async def leaves(ctx: WorkflowContext) -> Break[int] | None:
        raise SystemExit(3)

    def step(ctx: WorkflowContext) -> Any:
        match below:
            case "join":
                return ctx.join(ctx.activity(charge, 1), ctx.closure(leaves))
            case "race":
                return ctx.race(ctx.closure(leaves), ctx.closure(leaves))
            case "catch":
                return ctx.catch(ctx.closure(leaves))
            case "loop":
                return ctx.repeat(leaves)
            case _:
                return ctx.closure(leaves)

    async def raising(ctx: WorkflowContext) -> None:
        try:
            await step(ctx)
        except Exception:
            seen.append("an Exception")
        except SystemExit:
            seen.append("SystemExit")
            raise

    failed, history = died(fails(raising))
    assert set(seen) == {"SystemExit"}
    assert failed.error.type == "SystemExit"
    assert types(history)[-3:] == ROLLED_BACK[-3:]


def test_winner_that_does_not_fit_into_a_record_wins() -> None:
    @workflow
    async def long_race(ctx: WorkflowContext, size: int) -> int:
        async def wins(ctx: WorkflowContext) -> str:
            return "y" * size

        index, value = await ctx.race(ctx.closure(wins), ctx.sleep(100))
        await ctx.activity(charge, index)
        return len(value or "")

    with Simulation([long_race]) as sim:
        for size, recorded in ((10, '"yyyyyyyyyy"'), (2_000_000, "null")):
            handle = sim.dispatch(long_race, size)
            assert handle.output() == size
            decided = [event.data for event in handle.history() if isinstance(event.data, RaceDecided)]
            assert [(one.winner, one.value.decode()) for one in decided] == [(0, recorded)]


@pytest.mark.parametrize("grown", ["z" * 2_000_000, float("nan")], ids=["too large", "not JSON"])
def test_loop_whose_state_cannot_be_committed_waits_for_mended_code_and_undoes_nothing(grown: Any) -> None:
    """semantics.md §12: a mistake in the code, as nobody could catch it; the history stays as it was."""

    code: list[Any] = [grown]  # what it appends, in the code of today

    async def iterate(ctx: WorkflowContext, found: list[Any]) -> Break[None]:
        found.append(code[0])
        await ctx.activity(charge, 1)
        return Break(None)

    async def raising(ctx: WorkflowContext) -> None:
        await ctx.loop(iterate, list[Any]())

    order = fails(raising)
    with Simulation([order]) as sim:
        handle = sim.dispatch(order, 7)
        with pytest.raises(WorkflowFailed) as failed:
            handle.output()
        assert failed.value.error.type in ("RecordTooLarge", "NotSerializable")
        ended = ["activity.completed", "loop.committed", "activity.completed", "workflow.failed"]
        assert types(handle.history())[2:] == ended
        code[0] = "small"
        handle.wake()
        handle.output()
        kept = [event.data.state for event in handle.history() if isinstance(event.data, LoopCommitted)]
        assert kept == [b"[]", b'["small"]']
