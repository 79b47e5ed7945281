"""Any program gives the same history and result however often its process dies; replay records nothing (semantics §3, §4).

A program is a list of steps with what the outside does to them. It is run once undisturbed, and once more with crashes
before and after appends, as hypothesis likes: what was not appended is lost, the events are folded anew, the body runs from
its first line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, assert_never

from hypothesis import given
from hypothesis import strategies as st

from gasoline_es import WorkflowContext
from gasoline_es.core import events as ev
from gasoline_es.core.durations import to_datetime
from gasoline_es.core.replay import Returned, Run
from gasoline_es.core.state import WorkflowState
from gasoline_es.core.waits import WaitActivity, WaitListen, WaitSleep
from gasoline_es.errors import ActivityFailed
from tests.replay.code import Cancelled, Paid, Shipped, charge, notify, refund, ship
from tests.replay.world import START_US, WORKFLOW_ID, When, World

SECOND_US = 1_000_000
ACTIVITIES = {activity.name: activity for activity in (charge, notify, refund, ship)}
SIGNALS: dict[str, Any] = {"paid": Paid, "cancelled": Cancelled, "shipped": Shipped}
BODIES = {"paid": b'{"amount":1}', "cancelled": b"{}", "shipped": b"{}"}


@dataclass(frozen=True)
class Do:
    """One step of a program. ``failures``: how many attempts of the activity fail before one succeeds."""

    verb: Literal["activity", "sleep", "sleep_until", "listen", "listen_n", "removed", "check_version"]
    version: int = 1
    name: str = "charge"
    failures: int = 0
    attempts: int = 1
    seconds: int | None = None
    kinds: tuple[str, ...] = ("paid",)
    limit: int = 1
    number: int = 1


@dataclass(frozen=True)
class Program:
    steps: tuple[Do, ...]
    signals: tuple[tuple[int, str], ...] = ()
    """When (in seconds), and of which kind. Their ids are s0, s1, …"""


seconds = st.integers(0, 5)
versions = st.integers(1, 3)
kinds = st.lists(st.sampled_from(sorted(SIGNALS)), min_size=1, max_size=3, unique=True).map(tuple)
steps = st.one_of(
    st.builds(
        Do,
        st.just("activity"),
        versions,
        name=st.sampled_from(sorted(ACTIVITIES)),
        failures=st.integers(0, 3),
        attempts=st.integers(1, 3),
    ),
    st.builds(Do, st.sampled_from(["sleep", "sleep_until"]), versions, seconds=seconds),
    st.builds(Do, st.just("listen"), versions, kinds=kinds, seconds=st.none() | seconds),
    st.builds(Do, st.just("listen_n"), versions, kinds=kinds, limit=st.integers(1, 3), seconds=st.none() | seconds),
    st.builds(Do, st.just("removed"), versions, name=st.sampled_from(sorted(ACTIVITIES))),
    st.builds(Do, st.just("check_version"), versions, number=st.integers(1, 3)),
)
programs = st.builds(
    Program,
    st.lists(steps, max_size=8).map(tuple),
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from(sorted(SIGNALS))), max_size=6).map(
        lambda signals: tuple(sorted(signals))
    ),
)


async def body_of(program: Program, ctx: WorkflowContext) -> list[Any]:
    """Run the program; give all that the body has seen."""
    seen: list[Any] = []
    for do in program.steps:
        at = ctx.v(do.version)
        try:
            seen.append(repr(await one(at, do)))
        except ActivityFailed as failed:
            seen.append(str(failed))
        seen.append([ctx.now().isoformat(), ctx.random(), str(ctx.uuid())])
    return seen


async def one(ctx: WorkflowContext, do: Do) -> Any:
    listened: list[Any] = [SIGNALS[kind] for kind in do.kinds]
    match do.verb:
        case "activity":
            return await ctx.activity(ACTIVITIES[do.name], do.failures, max_attempts=do.attempts)
        case "sleep":
            assert do.seconds is not None
            return await ctx.sleep(do.seconds)
        case "sleep_until":
            assert do.seconds is not None
            return await ctx.sleep_until(to_datetime(START_US + do.seconds * SECOND_US))
        case "listen":
            return await ctx.listen(*listened, timeout=do.seconds)
        case "listen_n":
            return await ctx.listen_n(*listened, limit=do.limit, timeout=do.seconds)
        case "removed":
            return await ctx.removed("activity", do.name)
        case "check_version":
            return await ctx.check_version(do.number)
        case _:
            assert_never(do.verb)


class Crash(Exception):
    """The process is gone."""


@dataclass
class Outside:
    """Everything around a workflow: it looks at where things stand and does the next thing, so that it may be asked again."""

    program: Program
    crashes: Iterator[bool] = field(default_factory=lambda: iter(()))

    def __post_init__(self) -> None:
        self.world = World(lambda ctx: body_of(self.program, ctx), self._maybe_crash)
        self.crashed = 0

    def live(self) -> World:
        while self.world.status in ("running", "sleeping"):
            try:
                self._next()
            except Crash:
                self.crashed += 1
                self.world.crash()
        return self.world

    def _maybe_crash(self, when: When) -> None:
        if next(self.crashes, False):
            raise Crash

    def _next(self) -> None:
        world = self.world
        if not world.events:
            world.dispatch()
            return
        if world.run is None:
            world.drive()
            return
        for number, (second, kind) in enumerate(self.program.signals):
            if START_US + second * SECOND_US <= world.now_us and f"s{number}" not in world.state.known:
                world.signal(kind, BODIES[kind], f"s{number}")
                return
        wait = world.wait
        match wait:
            case WaitActivity(not_before_us=not_before_us):
                if not_before_us is not None and world.now_us < not_before_us:
                    self._pass_time(not_before_us)
                elif wait.attempt <= int(wait.step.input):
                    world.fail("ConnectionError", "refused")
                else:
                    world.complete(f"{wait.step.plan.name} done")
            case WaitSleep(deadline_us=deadline_us):
                self._pass_time(deadline_us)
            case WaitListen(deadline_us=deadline_us):
                self._pass_time(deadline_us)
            case None:
                world.drive()
            case _:
                raise AssertionError(f"it waits for {wait}")

    def _pass_time(self, until_us: int | None) -> None:
        """Let time pass until the next thing happens; a listen that nothing will ever end gets its signal."""
        world = self.world
        coming = [START_US + second * SECOND_US for second, _ in self.program.signals]
        moments = [moment for moment in coming if moment > world.now_us]
        if until_us is not None:
            moments.append(until_us)
        if moments:
            world.now_us = max(world.now_us, min(moments))
            world.drive()
            return
        wait = world.wait
        assert isinstance(wait, WaitListen)
        kind = min(wait.step.decoders)
        world.signal(kind, BODIES[kind], f"last {len(world.state.known)}")


@given(programs, st.lists(st.booleans(), max_size=60))
def test_any_program_gives_the_same_history_and_result_through_crashes(program: Program, crashes: list[bool]) -> None:
    undisturbed = Outside(program).live()
    outside = Outside(program, iter(crashes))
    crashed = outside.live()
    assert crashed.lines == undisturbed.lines
    assert crashed.state.output == undisturbed.state.output
    assert undisturbed.status == "complete"
    assert outside.crashed <= sum(crashes)


@given(programs)
def test_any_program_gives_the_same_history_when_it_crashes_around_every_append(program: Program) -> None:
    undisturbed = Outside(program).live()
    appends = len(undisturbed.lines) + 1
    # Twice in a row before the append, once after it, and so on for each.
    outside = Outside(program, iter([True, False, True, False] * appends * 2))
    assert outside.live().lines == undisturbed.lines


@given(programs)
def test_replay_of_a_complete_history_records_nothing_and_gives_the_same(program: Program) -> None:
    world = Outside(program).live()
    state = WorkflowState(WORKFLOW_ID)
    for seq, data in enumerate(world.events, start=1):
        if not isinstance(data, ev.WorkflowCompleted | ev.SignalDiscarded):
            state.apply(seq, START_US, data, "ray", "w1")
    recorded: list[ev.EventData] = []
    run = Run(state, recorded.append)
    run.start(lambda strand: body_of(program, WorkflowContext(strand)), world.now_us)
    assert recorded == []
    assert isinstance(run.end, Returned)
    assert len(run.end.value) == 2 * len(program.steps)


@given(programs, st.data())
def test_any_prefix_of_a_history_is_gone_on_from(program: Program, data: st.DataObject) -> None:
    whole = Outside(program).live()
    kept = data.draw(st.integers(1, len(whole.lines)))
    outside = Outside(program)
    outside.world.lines = whole.lines[:kept]
    outside.world.crash()
    # The time of the process that comes back: when the last of these events was.
    outside.world.now_us = outside.world.state.summary.updated_us
    cut_in_an_append = any(
        isinstance(data, ev.SleepFinished) and data.outcome == "interrupted" for data in outside.world.events[-1:]
    )
    discarded = isinstance(outside.world.events[-1], ev.SignalDiscarded)
    if cut_in_an_append or discarded:
        return  # these go with what follows them in one append
    assert [data.TYPE for data in outside.live().events][:kept] == [data.TYPE for data in whole.events][:kept]
    assert outside.world.status == "complete"
