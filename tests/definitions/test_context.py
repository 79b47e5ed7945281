"""A body's verbs: the step each makes, and that a wrong argument is refused at the call and makes none (§3, §4)."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from gasoline_es import ActivityContext, Signal, WorkflowContext, activity, workflow
from gasoline_es.core.steps import ActivityStep, CheckVersionStep, ListenStep, RemovedStep, SleepStep
from gasoline_es.errors import DefinitionError, InvalidVersion, NotSerializable
from tests.definitions.fake_run import FakeRun, drive, made_by


class Order(BaseModel):
    items: list[Any]


class Paid(Signal):
    amount: int


class Cancelled(Signal): ...


class AlsoPaid(Signal, name="paid"): ...


@activity(max_attempts=3, timeout=10)
async def charge(ctx: ActivityContext, order: Order) -> int:
    return len(order.items)


@workflow
async def fulfil(ctx: WorkflowContext, order: Order) -> int:
    paid = await ctx.listen(Paid, Cancelled, timeout=60)
    if not isinstance(paid, Paid):
        return 0
    await ctx.sleep(1)
    return await ctx.v(2).activity(charge, order) + paid.amount


@pytest.fixture
def run() -> FakeRun:
    return FakeRun(tags={"order": "42"})


@pytest.fixture
def ctx(run: FakeRun) -> WorkflowContext:
    return WorkflowContext(run)


# --- who and when -----------------------------------------------------------------------------------------------------


def test_context_tells_who_and_when(ctx: WorkflowContext, run: FakeRun) -> None:
    assert (ctx.workflow_id, ctx.name, ctx.ray_id) == (run.workflow_id, "fulfil", run.ray_id)
    assert ctx.now() == datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    assert ctx.random() == 0.25
    assert ctx.uuid() == UUID(int=7, version=4)


def test_tags_are_read_only(ctx: WorkflowContext) -> None:
    assert ctx.tags == {"order": "42"}
    with pytest.raises(TypeError):
        cast(Any, ctx.tags)["order"] = "43"


# --- steps ------------------------------------------------------------------------------------------------------------


def test_body_is_driven_step_by_step() -> None:
    run = FakeRun()
    steps, output = drive(fulfil.fn(WorkflowContext(run), Order(items=[])), [Paid(amount=9), None, 1])
    assert output == 10
    assert [(step.verb, step.version) for step in steps] == [("listen", 1), ("sleep", 1), ("activity", 2)]
    assert steps == run.steps


def test_step_knows_the_line_that_made_it() -> None:
    run = FakeRun()
    drive(fulfil.fn(WorkflowContext(run), Order(items=[])), [Paid(amount=9), None, 1])
    lines = Path(__file__).read_text().splitlines()
    assert {step.file for step in run.steps} == {__file__}
    assert ["ctx." + step.verb in lines[step.line - 1] or "v(2)" in lines[step.line - 1] for step in run.steps] == [
        True,
        True,
        True,
    ]


def test_activity_step_carries_the_definition(ctx: WorkflowContext, run: FakeRun) -> None:
    step = made_by(ctx.activity(charge, Order(items=[1])), run)
    assert isinstance(step, ActivityStep)
    plan = step.plan
    assert (plan.name, step.input, plan.definition) == ("charge", b'{"items":[1]}', charge)
    assert (plan.max_attempts, plan.timeout_us, plan.retry_on_timeout) == (3, 10_000_000, True)
    assert (plan.backoff_base_us, plan.backoff_doublings) == (500_000, 8)
    assert plan.decode(b"7") == 7


def test_activity_settings_can_be_overridden_for_one_call(ctx: WorkflowContext, run: FakeRun) -> None:
    step = made_by(ctx.activity(charge, Order(items=[]), max_attempts=1, timeout=timedelta(hours=1)), run)
    assert (step.plan.max_attempts, step.plan.timeout_us) == (1, 3_600_000_000)
    assert (charge.max_attempts, charge.timeout_us) == (3, 10_000_000)


def test_sleep_steps(ctx: WorkflowContext, run: FakeRun) -> None:
    step = made_by(ctx.sleep(1.5), run)
    assert isinstance(step, SleepStep)
    assert (step.verb, step.duration_us, step.until_us) == ("sleep", 1_500_000, None)
    run.steps.clear()
    step = made_by(ctx.sleep_until(datetime(2026, 1, 1, tzinfo=UTC)), run)
    assert (step.verb, step.duration_us, step.until_us) == ("sleep_until", None, 1_767_225_600_000_000)


def test_listen_steps(ctx: WorkflowContext, run: FakeRun) -> None:
    step = made_by(ctx.listen(Paid, Cancelled), run)
    assert isinstance(step, ListenStep)
    assert (step.verb, step.limit, step.timeout_us, step.until_us) == ("listen", None, None, None)
    assert step.decoders["paid"](b'{"amount":9}') == Paid(amount=9)
    assert step.decoders["cancelled"](b"{}") == Cancelled()
    run.steps.clear()
    step = made_by(ctx.listen_n(Paid, limit=10, timeout=2), run)
    assert (step.verb, step.limit, step.timeout_us, step.until_us) == ("listen_n", 10, 2_000_000, None)
    run.steps.clear()
    step = made_by(ctx.listen(Paid, until=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)), run)
    assert (step.limit, step.timeout_us, step.until_us) == (None, None, 1_000_000)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("activity", "charge"),
        ("signal", "paid"),
        ("message", "moved"),
        ("emit", "orders"),
        ("dispatch", "ship"),
        ("run", "ship"),
        ("output", "ship"),
        ("listen", None),
        ("loop", None),
        ("sleep", None),
        ("join", None),
        ("race", None),
    ],
)
def test_removed_step_has_a_kind_and_for_some_a_name(
    ctx: WorkflowContext, run: FakeRun, kind: Any, name: str | None
) -> None:
    step = made_by(ctx.removed(kind, name), run)
    assert isinstance(step, RemovedStep)
    assert (step.kind, step.name) == (kind, name)
    wrong = "charge" if name is None else None
    fix = rf"write `ctx\.removed\('{kind}'\)`" if name is None else rf"write `ctx\.removed\('{kind}', 'charge'\)`"
    with pytest.raises(ValueError, match=fix):
        _ = ctx.removed(kind, wrong)


def test_removed_refuses_an_unknown_kind(ctx: WorkflowContext) -> None:
    with pytest.raises(
        ValueError, match=r"unknown kind; write one of activity, checkpoint, dispatch, emit, join, listen, loop"
    ):
        _ = ctx.removed(cast(Any, "signals"))


# --- versions (semantics.md §3) ---------------------------------------------------------------------------------------


@given(base=st.integers(1, 50), n=st.integers(1, 50), m=st.integers(1, 50))
def test_v_is_relative_to_the_context_it_is_called_on(base: int, n: int, m: int) -> None:
    run = FakeRun(version=base)
    ctx = WorkflowContext(run)
    for raised, version in ((ctx, base), (ctx.v(n), base + n - 1), (ctx.v(n).v(m), base + n + m - 2)):
        run.steps.clear()
        assert made_by(raised.sleep(1), run).version == version


@given(base=st.integers(1, 50), n=st.integers(1, 50))
def test_check_version_asks_with_the_absolute_version(base: int, n: int) -> None:
    run = FakeRun(version=base)
    step = made_by(WorkflowContext(run).check_version(n), run)
    assert isinstance(step, CheckVersionStep)
    assert (step.version, step.context_version, step.latest) == (base, base, base + n - 1)


@pytest.mark.parametrize("n", [0, -1, True, 1.0, "2", None])
def test_version_below_one_ends_the_run(ctx: WorkflowContext, run: FakeRun, n: Any) -> None:
    with pytest.raises(InvalidVersion, match=r"write `ctx\.v\(2\)` for the first change") as first:
        ctx.v(n)
    with pytest.raises(InvalidVersion, match=r"write `ctx\.check_version\(2\)`") as second:
        _ = ctx.check_version(n)
    assert run.refused == [first.value, second.value]
    assert run.steps == []


# --- wrong arguments --------------------------------------------------------------------------------------------------


def plain(ctx: ActivityContext, order: Order) -> None: ...


NO_ACTIVITIES: list[tuple[Any, str]] = [
    (plain, r"plain function plain.*Decorate it with @activity and write `await ctx\.activity\(plain, …\)`"),
    (charge.fn, r"plain function charge.*not `charge\.fn`"),
    (fulfil, r"was given workflow fulfil \(.*Move the side effect into a function decorated with @activity"),
    ("charge", r"was given 'charge', which is no activity\. Give the decorated function"),
]


@pytest.mark.parametrize("wrong", NO_ACTIVITIES, ids=["function", "fn", "workflow", "name"])
def test_activity_refuses_anything_but_an_activity(ctx: WorkflowContext, run: FakeRun, wrong: tuple[Any, str]) -> None:
    with pytest.raises(DefinitionError, match=wrong[1]) as caught:
        _ = ctx.activity(wrong[0], Order(items=[]))
    assert run.refused == [caught.value]
    assert run.steps == []


def test_unserialisable_input_is_refused_at_the_call_with_its_path(ctx: WorkflowContext, run: FakeRun) -> None:
    """B22: raised to the caller, nothing recorded; the body may catch it, as it depends on the argument alone."""
    with pytest.raises(NotSerializable, match=r"order\.items\[1\]") as caught:
        _ = ctx.activity(charge, Order(items=[1, lambda: None]))
    assert (run.steps, run.refused) == ([], [])
    assert caught.value.path == "order.items[1]"


@pytest.mark.parametrize("wrong", [{"max_attempts": 0}, {"timeout": 0}, {"timeout": math.inf}, {"timeout": -1}])
def test_wrong_settings_of_one_call_are_refused(ctx: WorkflowContext, run: FakeRun, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"ctx\.activity: .*[Ww]rite"):
        _ = ctx.activity(charge, Order(items=[]), **wrong)
    assert (run.steps, run.refused) == ([], [])


@pytest.mark.parametrize("seconds", [math.inf, math.nan, -1, -0.5, timedelta(seconds=-1), 1e300])
def test_time_that_cannot_be_kept_is_refused(ctx: WorkflowContext, run: FakeRun, seconds: Any) -> None:
    """B12."""
    for call in (
        lambda: ctx.sleep(seconds),
        lambda: ctx.listen(Paid, timeout=seconds),
        lambda: ctx.listen_n(Paid, limit=1, timeout=seconds),
    ):
        with pytest.raises(ValueError, match=r"ctx\.\w+"):
            _ = call()
    assert (run.steps, run.refused) == ([], [])


def test_naive_deadline_is_refused_and_told_how_to_add_a_zone(ctx: WorkflowContext, run: FakeRun) -> None:
    naive = datetime(2026, 1, 1)  # noqa: DTZ001
    with pytest.raises(ValueError, match=r"ctx\.sleep_until is a naive datetime.*add a time zone"):
        _ = ctx.sleep_until(naive)
    with pytest.raises(ValueError, match=r"ctx\.listen: until is a naive datetime.*add a time zone"):
        _ = ctx.listen(Paid, until=naive)
    assert run.steps == []


def test_both_timeout_and_until_are_refused(ctx: WorkflowContext, run: FakeRun) -> None:
    both: Any = {"timeout": 1, "until": datetime(2026, 1, 1, tzinfo=UTC)}
    with pytest.raises(ValueError, match="both timeout and until are given; write one of them"):
        _ = ctx.listen(Paid, **both)
    with pytest.raises(ValueError, match="both timeout and until are given; write one of them"):
        _ = ctx.listen_n(Paid, limit=1, **both)
    assert run.steps == []


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, None])
def test_limit_is_a_whole_number_of_at_least_one(ctx: WorkflowContext, limit: Any) -> None:
    with pytest.raises(ValueError, match=r"ctx\.listen_n: limit is .*whole number of at least 1"):
        _ = ctx.listen_n(Paid, limit=limit)


WRONG_KINDS: list[tuple[tuple[Any, ...], str]] = [
    ((), r"was given no kind of signal; give at least one, as in `ctx\.listen\(Paid\)`"),
    ((Signal,), r"Signal itself has no name"),
    ((Paid, int), r"derive it from Signal"),
    ((Paid(amount=1),), r"give (the class, not an instance|classes derived)"),
    (([Paid, Cancelled],), r"give the kinds one by one, as in `ctx\.listen\(Paid, Withdrawn\)`"),
    ((Paid, Paid), r"two kinds with the wire name 'paid': Paid and Paid; name it once"),
    ((Paid, AlsoPaid), r"'paid': Paid and AlsoPaid; give one of the classes another name with `name=`"),
]


@pytest.mark.parametrize("wrong", WRONG_KINDS, ids=lambda wrong: wrong[1])
def test_listen_refuses_what_is_no_kind(ctx: WorkflowContext, run: FakeRun, wrong: tuple[tuple[Any, ...], str]) -> None:
    with pytest.raises(DefinitionError, match=wrong[1]) as caught:
        _ = ctx.listen(*wrong[0])
    assert run.refused == [caught.value]
    assert run.steps == []


# --- what is not there ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["state"])
def test_verb_that_a_body_does_not_have_says_what_to_write_and_ends_the_run(
    name: str, ctx: WorkflowContext, run: FakeRun
) -> None:
    with pytest.raises(DefinitionError, match=rf"a workflow's body has no `ctx\.{name}`: ") as raised:
        getattr(ctx, name)
    assert run.refused == [raised.value]


def test_other_names_are_plainly_missing(ctx: WorkflowContext, run: FakeRun) -> None:
    assert not hasattr(ctx, "activty")
    assert not hasattr(ctx, "__len__")
    assert run.refused == []
