"""The verbs of flow: the step each makes, what is refused at the call and how to mend it (semantics.md §3, §4)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Optional, cast

import pytest
from pydantic import BaseModel

from gasoline_es import ActivityContext, Break, Failed, Ok, WorkflowContext, activity, workflow
from gasoline_es.branching import COMMIT_INTERVAL
from gasoline_es.core.steps import (
    ActivityStep,
    CatchStep,
    ClosureStep,
    JoinStep,
    LoopStep,
    RaceStep,
    SleepStep,
    Step,
    ValueStep,
)
from gasoline_es.errors import ActivityFailed, DefinitionError, NotSerializable
from gasoline_es.events import ErrorInfo
from tests.definitions.fake_run import FakeRun, drive, made_by


class Receipt(BaseModel):
    number: int


class Counted(BaseModel):
    rounds: int = 0


@dataclass
class Basket:
    cents: int


@activity
async def charge(ctx: ActivityContext, cents: int) -> Receipt:
    return Receipt(number=cents)


@workflow
async def fulfil(ctx: WorkflowContext, cents: int) -> Receipt:
    return await ctx.activity(charge, cents)


async def body(ctx: WorkflowContext) -> Receipt:
    return await ctx.activity(charge, 1)


async def counting(ctx: WorkflowContext, counted: Counted) -> Break[Receipt] | None:
    counted.rounds += 1
    return Break(Receipt(number=counted.rounds)) if counted.rounds == 3 else None


async def at_once(ctx: WorkflowContext) -> Break[Receipt]:
    return Break(Receipt(number=0))


@pytest.fixture
def run() -> FakeRun:
    return FakeRun()


@pytest.fixture
def ctx(run: FakeRun) -> WorkflowContext:
    return WorkflowContext(run)


def made(step: Any) -> Any:
    """The core's step object that a verb gave."""
    assert isinstance(step, Step)
    return step


# --- the steps --------------------------------------------------------------------------------------------------------


def test_closure_step_drives_its_body_on_the_port_of_its_branch(ctx: WorkflowContext, run: FakeRun) -> None:
    step = made_by(ctx.closure(body), run)
    assert isinstance(step, ClosureStep)
    assert (step.verb, step.name, step.version) == ("closure", None, 1)
    branch = FakeRun(version=4)
    steps, output = drive(step.body(branch), [Receipt(number=7)])
    assert (steps, output) == (branch.steps, Receipt(number=7))
    assert [below.version for below in steps] == [4]
    assert run.steps == [step]


def test_run_step_has_the_name_and_drives_the_body_with_a_copy_of_the_input(ctx: WorkflowContext) -> None:
    @workflow(name="tell")
    async def inline(ctx: WorkflowContext, given: Counted) -> int:
        given.rounds += 1
        return given.rounds

    own = Counted(rounds=1)
    step = made(ctx.run(inline, own))
    assert isinstance(step, ClosureStep)
    assert (step.verb, step.name) == ("run", "tell")
    assert drive(step.body(FakeRun()), []) == ([], 2)
    assert own.rounds == 1


def test_join_step_has_its_steps_in_order_and_makes_a_tuple(ctx: WorkflowContext, run: FakeRun) -> None:
    parts = [made(ctx.activity(charge, 1)), made(ctx.sleep(1)), made(ctx.join(ctx.closure(body)))]
    step = made(ctx.join(*cast(Any, parts)))
    assert isinstance(step, JoinStep)
    assert [*step.parts()] == parts
    assert step.make([1, 2, 3]) == (1, 2, 3)
    assert step.whole
    assert run.steps[-1] is step


def test_join_all_step_makes_a_list_of_any_iterable_but_a_set(ctx: WorkflowContext) -> None:
    for steps in (
        [ctx.sleep(1), ctx.sleep(2)],
        (ctx.sleep(1), ctx.sleep(2)),
        (ctx.sleep(seconds) for seconds in (1, 2)),
        {1: ctx.sleep(1), 2: ctx.sleep(2)}.values(),
    ):
        step = made(ctx.join_all(steps))
        assert isinstance(step, JoinStep)
        assert [cast(SleepStep, part).duration_us for part in step.parts()] == [1_000_000, 2_000_000]
        assert step.make([1, 2]) == [1, 2]
    assert [*made(ctx.join_all([])).parts()] == []


def test_maybe_gives_the_step_itself_or_one_that_gives_none(ctx: WorkflowContext) -> None:
    step = ctx.sleep(1)
    assert ctx.maybe(step) is step
    nothing = made(ctx.maybe(None))
    assert isinstance(nothing, ValueStep)
    assert (nothing.verb, nothing.value) == ("maybe", None)


def test_race_step_keeps_each_value_as_its_competitor_does(ctx: WorkflowContext) -> None:
    step = made(ctx.race(ctx.activity(charge, 1), ctx.closure(body), ctx.sleep(1)))
    assert isinstance(step, RaceStep)
    assert [type(part) for part in step.parts()] == [ActivityStep, ClosureStep, SleepStep]
    assert [
        encode(value) for encode, value in zip(step.encoders, [Receipt(number=1), Basket(2), None], strict=True)
    ] == [
        b'{"number":1}',
        b'{"cents":2}',
        b"null",
    ]


def test_race_refuses_a_value_that_cannot_be_kept_and_names_the_competitors_verb(ctx: WorkflowContext) -> None:
    step = made(ctx.race(ctx.closure(cast(Any, body)), ctx.sleep(1)))
    with pytest.raises(NotSerializable, match=r"what `ctx\.closure\(…\)` gave to the race cannot be recorded"):
        step.encoders[0](object())


def test_catch_step_makes_a_value_of_either_end(ctx: WorkflowContext) -> None:
    inner = ctx.activity(charge, 1)
    step = made(ctx.catch(inner))
    assert isinstance(step, CatchStep)
    assert [*step.parts()] == [made(inner)]
    assert step.made(7) == Ok(7)
    error = ErrorInfo("ConnectionError", "no bank")
    failed = ActivityFailed("…", activity="charge", location="{1}", attempts=3, error=error)
    assert step.failed(failed) == Failed(error, 3)
    other = step.failed(KeyError("CHF"))
    assert (other.error.type, other.error.message, other.attempts) == ("KeyError", "'CHF'", 1)


def test_loop_step_carries_the_state_as_it_will_come_back(ctx: WorkflowContext) -> None:
    own = Counted(rounds=1)
    step = made(ctx.loop(counting, own))
    assert isinstance(step, LoopStep)
    assert (step.verb, step.state, step.commit_interval) == ("loop", b'{"rounds":1}', COMMIT_INTERVAL)
    assert step.commit_interval == 20
    state = step.decode_state(step.state)
    assert state == own
    assert state is not own
    assert drive(step.body(FakeRun(), state), []) == ([], None)
    encoded, again = step.roundtrip(state)
    assert (encoded, again, again is state) == (b'{"rounds":2}', Counted(rounds=2), False)
    broken = drive(step.body(FakeRun(), again), [])[1]
    assert step.decode(step.encode(broken.value)) == Receipt(number=3)


@pytest.mark.parametrize("state", [Basket(7), {"rounds": 1}, [1, 2], None], ids=repr)
def test_loop_takes_any_state_that_can_be_changed_and_kept(ctx: WorkflowContext, state: Any) -> None:
    async def anything(ctx: WorkflowContext, state: Any) -> Break[None] | None:
        return None

    step = made(ctx.loop(anything, state))
    assert step.decode_state(step.state) == state


@pytest.mark.parametrize(
    "state", [0, 1.5, "text", b"bytes", (1, 2), frozenset({1}), True, datetime(2026, 1, 1, tzinfo=UTC)]
)
def test_loop_refuses_a_state_that_its_body_cannot_change(state: Any) -> None:
    """semantics.md §4: nothing but the state goes from one iteration to the next, so it would go on for ever."""
    run = FakeRun()

    async def anything(ctx: WorkflowContext, state: Any) -> Break[None] | None:
        return None

    with pytest.raises(DefinitionError, match=r"cannot be changed in place.*`ctx.repeat\(body\)`"):
        _ = WorkflowContext(run).loop(anything, state)
    assert len(run.refused) == 1


def test_repeat_is_a_loop_without_a_state(ctx: WorkflowContext) -> None:
    step = made(ctx.repeat(at_once))
    assert isinstance(step, LoopStep)
    assert (step.verb, step.state, step.commit_interval) == ("repeat", b"null", 20)
    broken = drive(step.body(FakeRun(), None), [])[1]
    assert step.decode(step.encode(broken.value)) == Receipt(number=0)


@pytest.mark.parametrize("interval", [1, 2, 1_000_000])
def test_commit_interval_is_a_setting_of_the_call(ctx: WorkflowContext, interval: int) -> None:
    assert made(ctx.loop(counting, Counted(), commit_interval=interval)).commit_interval == interval
    assert made(ctx.repeat(at_once, commit_interval=interval)).commit_interval == interval


def test_verbs_of_flow_make_their_steps_at_the_contexts_version() -> None:
    ctx = WorkflowContext(FakeRun(version=2)).v(3)
    steps: list[Any] = [
        ctx.closure(body),
        ctx.run(fulfil, 1),
        ctx.join(ctx.sleep(1)),
        ctx.join_all([ctx.sleep(1)]),
        ctx.maybe(None),
        ctx.race(ctx.sleep(1), ctx.sleep(1)),
        ctx.catch(ctx.sleep(1)),
        ctx.loop(counting, Counted()),
        ctx.repeat(at_once),
    ]
    assert [made(step).version for step in steps] == [4] * len(steps)


def test_verbs_of_flow_know_the_line_that_made_them(ctx: WorkflowContext) -> None:
    lines = Path(__file__).read_text().splitlines()
    steps: tuple[Any, ...] = (
        ctx.closure(body),
        ctx.run(fulfil, 1),
        ctx.join(ctx.sleep(1)),
        ctx.join_all([ctx.sleep(1)]),
        ctx.maybe(None),
        ctx.race(ctx.sleep(1), ctx.sleep(1)),
        ctx.catch(ctx.sleep(1)),
        ctx.loop(counting, Counted()),
        ctx.repeat(at_once),
    )
    for step in steps:
        there = made(step)
        assert there.file == __file__
        assert f"ctx.{there.verb}(" in lines[there.line - 1]


# --- what a loop breaks with ------------------------------------------------------------------------------------------


async def optional(ctx: WorkflowContext) -> Optional[Break[Receipt]]:  # noqa: UP045
    return None


async def without_annotation(ctx: WorkflowContext):  # type: ignore[no-untyped-def]
    return Break([1, 2])


@pytest.mark.parametrize("of", [optional, at_once, partial(at_once)], ids=["optional", "always", "partial"])
def test_value_of_a_break_is_kept_as_the_annotation_says(ctx: WorkflowContext, of: Any) -> None:
    step = made(ctx.repeat(of))
    assert step.decode(b'{"number":1}') == Receipt(number=1)
    with pytest.raises(NotSerializable, match=r"value of the Break: expected Receipt, got str"):
        step.encode("text")


def test_value_of_a_break_without_annotation_is_kept_if_it_is_plain_data(ctx: WorkflowContext) -> None:
    step = made(ctx.repeat(cast(Any, without_annotation)))
    assert step.decode(step.encode([1, 2])) == [1, 2]
    with pytest.raises(NotSerializable, match=r"value of the Break: Receipt became dict\..*declare the type"):
        step.encode(Receipt(number=1))


def test_same_line_may_name_another_type_next_time(ctx: WorkflowContext) -> None:
    def step_of(name: str) -> Any:
        class Local(BaseModel):
            number: int

        Local.__name__ = name

        async def local(ctx: WorkflowContext) -> Break[Local] | None:
            return None

        return Local, made(ctx.repeat(local))

    for name in ("First", "Second"):
        model, step = step_of(name)
        assert type(step.decode(b'{"number":1}')) is model


def test_break_is_shown_and_matched_by_its_value() -> None:
    assert repr(Break("done")) == "Break('done')"
    match Break(7):
        case Break(value):
            assert value == 7
    assert Break().value is None


# --- refusals ---------------------------------------------------------------------------------------------------------


def plain(ctx: WorkflowContext) -> int:
    return 1


NO_STEPS: list[tuple[Callable[[WorkflowContext], Any], str]] = [
    (lambda ctx: body, r"was given the function body; wrap it, as in `ctx\.closure\(body\)`"),
    (body, r"the coroutine of body; write `ctx\.closure\(body\)` with the function itself"),
    (lambda ctx: {ctx.sleep(1)}, r"a set, whose order differs from process to process; give its steps one by one"),
    (lambda ctx: [ctx.sleep(1)], r"a list of steps; write `ctx\.join_all\(\[…\]\)`, which is a step too"),
    (lambda ctx: (ctx.sleep(1),), r"a list of steps; write `ctx\.join_all\(\[…\]\)`"),
    (lambda ctx: None, r"was given None; write `ctx\.maybe\(step\)` for a step that may be None"),
    (lambda ctx: 7, r"was given int 7; give what a verb of `ctx` returns, before it is awaited"),
    (lambda ctx: Receipt(number=1), r"was given Receipt .*; give what a verb of `ctx` returns, before it is awaited"),
]


@pytest.mark.parametrize("wrong", NO_STEPS, ids=lambda wrong: wrong[1][:30])
@pytest.mark.parametrize("verb", ["join", "race", "catch", "join_all"])
def test_what_is_no_step_is_refused_with_what_to_write_and_ends_the_run(
    ctx: WorkflowContext, run: FakeRun, verb: str, wrong: tuple[Callable[[WorkflowContext], Any], str]
) -> None:
    give, told = wrong
    given = give(ctx)
    before = len(run.steps)
    with pytest.raises(DefinitionError, match=rf"ctx\.{verb} was given .*") as caught:
        getattr(ctx, verb)(*([[given]] if verb == "join_all" else [given]))
    assert caught.match(told)
    assert run.refused == [caught.value]
    assert len(run.steps) == before


@pytest.mark.parametrize("kind", [set, frozenset])
def test_join_all_refuses_a_set_whose_order_changes(ctx: WorkflowContext, run: FakeRun, kind: Any) -> None:
    """B07."""
    with pytest.raises(DefinitionError, match=r"given a set: .*Give a list, a tuple or a generator") as caught:
        _ = ctx.join_all(kind([ctx.sleep(1), ctx.sleep(2)]))
    assert run.refused == [caught.value]


def test_race_of_nothing_is_refused(ctx: WorkflowContext, run: FakeRun) -> None:
    with pytest.raises(DefinitionError, match=r"ctx\.race was given no step; give at least one") as caught:
        cast(Any, ctx).race()
    assert run.refused == [caught.value]


NO_BODIES: list[tuple[Callable[[WorkflowContext], Any], str, str]] = [
    (lambda ctx: plain, "closure", r"give a function written `async def body\(ctx\)`"),
    (body, "closure", r"give the function itself: `ctx\.closure\(body\)`"),
    (lambda ctx: 7, "closure", r"was given 7; give a function written `async def body\(ctx\)`"),
    (lambda ctx: plain, "loop", r"give a function written `async def body\(ctx, state\)`"),
    (lambda ctx: counting(ctx, Counted()), "loop", r"give the function itself: `ctx\.loop\(counting\)`"),
    (lambda ctx: plain, "repeat", r"give a function written `async def body\(ctx\)`"),
    (at_once, "repeat", r"give the function itself: `ctx\.repeat\(at_once\)`"),
    (lambda ctx: fulfil, "closure", r"give a function written"),
]


@pytest.mark.parametrize("wrong", NO_BODIES, ids=lambda wrong: f"{wrong[1]} {wrong[2][:30]}")
def test_what_is_no_body_is_refused_with_what_to_write_and_ends_the_run(
    ctx: WorkflowContext, run: FakeRun, wrong: tuple[Callable[[WorkflowContext], Any], str, str]
) -> None:
    give, verb, told = wrong
    with pytest.raises(DefinitionError, match=rf"ctx\.{verb} was given .*") as caught:
        getattr(ctx, verb)(*([give(ctx), Counted()] if verb == "loop" else [give(ctx)]))
    assert caught.match(told)
    assert run.refused == [caught.value]
    assert run.steps == []


@pytest.mark.parametrize("wrong", [charge, fulfil.fn, "fulfil", None], ids=["activity", "fn", "name", "none"])
def test_run_refuses_anything_but_a_workflow(ctx: WorkflowContext, run: FakeRun, wrong: Any) -> None:
    with pytest.raises(DefinitionError, match=r"ctx\.run was given .*; give a workflow and its input") as caught:
        _ = ctx.run(wrong, 1)
    assert run.refused == [caught.value]
    assert run.steps == []


@pytest.mark.parametrize("interval", [0, -1, 1.0, True, "20", None])
def test_commit_interval_is_a_whole_number_of_at_least_one(ctx: WorkflowContext, run: FakeRun, interval: Any) -> None:
    with pytest.raises(ValueError, match=r"ctx\.loop: commit_interval is .*; write a whole number of at least 1"):
        _ = ctx.loop(counting, Counted(), commit_interval=interval)
    with pytest.raises(ValueError, match=r"ctx\.repeat: commit_interval is .*; write a whole number of at least 1"):
        _ = ctx.repeat(at_once, commit_interval=interval)
    assert (run.steps, run.refused) == ([], [])


def test_state_that_cannot_be_kept_is_refused_at_the_call_with_its_path(ctx: WorkflowContext, run: FakeRun) -> None:
    """B22."""

    async def anything(ctx: WorkflowContext, state: Any) -> Break[None] | None:
        return None

    with pytest.raises(NotSerializable, match=r"state") as caught:
        _ = ctx.loop(anything, {"rounds": [1, object()]})
    assert caught.value.path == "state['rounds'][1]"
    assert (run.steps, run.refused) == ([], [])


def test_input_of_run_that_cannot_be_kept_is_refused_at_the_call(ctx: WorkflowContext, run: FakeRun) -> None:
    with pytest.raises(NotSerializable, match="cents"):
        _ = ctx.run(fulfil, cast(Any, "nine"))
    assert (run.steps, run.refused) == ([], [])


def test_values_of_a_race_and_of_a_catch_are_plain_data_to_look_at() -> None:
    assert json.loads(json.dumps({"value": Ok(7).value})) == {"value": 7}
    with pytest.raises(AttributeError):
        Ok(7).value = 8  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
