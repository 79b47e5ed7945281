"""Any program of branches, joins, races, catches and loops gives the same through crashes and evictions (semantics.md §4).

As ``test_crashes.py``, with steps side by side: several activities run at once and end in any order, sometimes two in one
append. All branches of a body append to one Python list, and what they find there goes into their activities' inputs: if a
replay let them go on in another order than the first run did, the histories would differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from gasoline_es import Break, WorkflowContext
from gasoline_es.core import events as ev
from gasoline_es.core.decide import AttemptFailed
from gasoline_es.core.location import Location
from gasoline_es.core.replay import Died, Returned, Run
from gasoline_es.core.state import WorkflowState
from gasoline_es.core.values import parse_json
from gasoline_es.core.waits import WaitActivity, WaitListen, WaitSleep
from gasoline_es.errors import ActivityFailed, Cancelled
from tests.replay.code import Moved, refund
from tests.replay.test_crashes import ACTIVITIES, BODIES, SECOND_US, SIGNALS, Crash
from tests.replay.world import PLANS, START_US, WORKFLOW_ID, When, World

# --- programs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Do:
    """One step. ``version``: of ``ctx.v``."""

    version: int


@dataclass(frozen=True)
class Act(Do):
    """``failures``: how many attempts fail before one succeeds."""

    name: str
    failures: int
    attempts: int


@dataclass(frozen=True)
class Sleep(Do):
    seconds: int


@dataclass(frozen=True)
class Listen(Do):
    kinds: tuple[str, ...]
    limit: int | None
    seconds: int | None


@dataclass(frozen=True)
class Check(Do):
    number: int


@dataclass(frozen=True)
class Removed(Do):
    kind: Any


@dataclass(frozen=True)
class Tell(Do):
    """``ctx.message``."""


@dataclass(frozen=True)
class Nothing(Do):
    """``ctx.maybe(None)``."""


@dataclass(frozen=True)
class Closure(Do):
    """``lets_fail``: an error of a step ends it."""

    body: tuple[Do, ...]
    lets_fail: bool


@dataclass(frozen=True)
class Join(Do):
    parts: tuple[Do, ...]


@dataclass(frozen=True)
class Race(Do):
    parts: tuple[Do, ...]


@dataclass(frozen=True)
class Catch(Do):
    part: Do


@dataclass(frozen=True)
class Loop(Do):
    body: tuple[Do, ...]
    iterations: int
    interval: int


@dataclass(frozen=True)
class Guard(Do):
    """``ctx.on_rollback``."""


class Rounds(BaseModel):
    seen: list[str] = []


@dataclass(frozen=True)
class Cancel:
    """Somebody cancels it when there are ``after`` facts: alone, or in one append with an activity's end, or its opposite.

    ``ways``: what the bodies make of it.
    """

    after: int
    beside: Literal["alone", "behind", "before"]
    ways: tuple[Way, ...]


Way = Literal["let pass", "clean up", "swallow"]


@dataclass(frozen=True)
class Program:
    """``order`` decides which activity ends next, and whether another one ends in the same append.

    ``checkpoint``: behind which step there is a second one. ``fails``: an error leaves the body, and it is rolled back.
    """

    body: tuple[Do, ...]
    signals: tuple[tuple[int, str], ...]
    order: tuple[int, ...]
    checkpoint: int = 9
    fails: bool = False
    cancel: Cancel | None = None


class Seen(list[Any]):
    """All that the branches of a body saw. ``ways``: what they make of a cancel."""

    def __init__(self, ways: tuple[Way, ...] = ("let pass",)) -> None:
        super().__init__()
        self.ways = ways


versions = st.integers(1, 2)
kinds = st.lists(st.sampled_from(sorted(SIGNALS)), min_size=1, max_size=2, unique=True).map(tuple)
leaves = st.one_of(
    st.builds(Act, versions, st.sampled_from(sorted(ACTIVITIES)), st.sampled_from([0, 0, 0, 1, 2]), st.integers(1, 2)),
    st.builds(Act, versions, st.sampled_from(sorted(ACTIVITIES)), st.just(0), st.just(1)),
    st.builds(Sleep, versions, st.integers(0, 5)),
    st.builds(Listen, versions, kinds, st.sampled_from([None, None, 2]), st.none() | st.integers(0, 5)),
    st.builds(Check, versions, st.integers(1, 3)),
    st.builds(Removed, versions, st.sampled_from(["join", "race", "loop", "sleep", "listen"])),
    st.builds(Tell, versions),
    st.builds(Nothing, versions),
    st.builds(Guard, versions),
)
busy = st.builds(Act, versions, st.sampled_from(sorted(ACTIVITIES)), st.just(0), st.just(1)) | leaves


def with_flow(below: st.SearchStrategy[Do]) -> st.SearchStrategy[Do]:
    bodies = st.lists(below, max_size=3).map(tuple)
    parts = st.lists(below, min_size=1, max_size=3).map(tuple)
    return st.one_of(
        leaves,
        st.builds(Closure, versions, bodies, st.booleans()),
        st.builds(Join, versions, bodies),
        st.builds(Join, versions, st.lists(busy, min_size=2, max_size=4).map(tuple)),
        st.builds(Race, versions, parts),
        st.builds(Catch, versions, below),
        st.builds(Loop, versions, bodies, st.integers(1, 4), st.integers(1, 3)),
    )


programs = st.builds(
    Program,
    st.lists(with_flow(with_flow(with_flow(leaves))), max_size=4).map(tuple),
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from(sorted(SIGNALS))), max_size=5).map(
        lambda signals: tuple(sorted(signals))
    ),
    st.lists(st.integers(0, 11), min_size=1, max_size=8).map(tuple),
    st.integers(0, 9),
    st.booleans(),
)


class Lost(Exception):
    """What a program fails with."""


async def run_program(ctx: WorkflowContext, program: Program, seen: Seen) -> None:
    await ctx.checkpoint()
    await run_body(ctx, program.body[: program.checkpoint], seen)
    if program.checkpoint < len(program.body):
        await ctx.checkpoint()
        await run_body(ctx, program.body[program.checkpoint :], seen)
    if program.fails:
        raise Lost("all of it")


async def run_body(ctx: WorkflowContext, body: Sequence[Do], seen: Seen, *, lets_fail: bool = False) -> None:
    """Do the steps; add all that is seen to the list that the branches share."""
    for do in body:
        try:
            value = await made(ctx, do, seen)
        except (ActivityFailed, ExceptionGroup) as failed:
            if lets_fail:
                raise
            value = failed
        except Cancelled:
            way = seen.ways[len(seen) % len(seen.ways)]
            if way != "let pass":
                await clean_up(ctx, seen)
            if way != "swallow":
                raise
            value = "swallowed"
        seen.append([repr(value), ctx.now().isoformat(), ctx.random()])


async def clean_up(ctx: WorkflowContext, seen: Seen) -> None:
    async def branch(inner: WorkflowContext) -> None:
        await inner.sleep(1)
        seen.append("cleaned up in a branch")

    await ctx.activity(ACTIVITIES["refund"], [0, len(seen)])
    await ctx.join(ctx.closure(branch), ctx.activity(ACTIVITIES["refund"], [0, len(seen)]))


def made(given: WorkflowContext, do: Do, seen: Seen) -> Any:
    ctx = given.v(do.version)
    match do:
        case Act():
            return ctx.activity(ACTIVITIES[do.name], [do.failures, len(seen)], max_attempts=do.attempts)
        case Sleep():
            return ctx.sleep(do.seconds)
        case Listen():
            listened: list[Any] = [SIGNALS[kind] for kind in do.kinds]
            if do.limit is None:
                return ctx.listen(*listened, timeout=do.seconds)
            return ctx.listen_n(*listened, limit=do.limit, timeout=do.seconds)
        case Check():
            return ctx.check_version(do.number)
        case Removed():
            return ctx.removed(do.kind)
        case Tell():
            return ctx.message(Moved(x=len(seen)))
        case Nothing():
            return ctx.maybe(None)
        case Guard():
            ctx.on_rollback(refund, [len(seen) % 2, len(seen)])
            return ctx.maybe(None)
        case Closure():

            async def closure(inner: WorkflowContext) -> int:
                await run_body(inner, do.body, seen, lets_fail=do.lets_fail)
                return len(seen)

            return ctx.closure(closure)
        case Join():
            return ctx.join_all([made(given, part, seen) for part in do.parts])
        case Race():
            competitors: list[Any] = [made(given, part, seen) for part in do.parts]
            return cast("Any", ctx.race)(*competitors)
        case Catch():
            return ctx.catch(made(given, do.part, seen))
        case Loop():
            return made_loop(ctx, do, seen.ways)
        case _:
            raise AssertionError(do)


def made_loop(ctx: WorkflowContext, do: Loop, ways: tuple[Way, ...]) -> Any:
    """Nothing but its state goes from one iteration to another, so each has a list of its own."""

    async def iteration(inner: WorkflowContext, state: Rounds) -> Break[list[str]] | None:
        here = Seen(ways)
        await run_body(inner, do.body, here)
        state.seen.append(repr(here))
        return Break(state.seen) if len(state.seen) == do.iterations else None

    return ctx.loop(iteration, Rounds(), commit_interval=do.interval)


# --- what is around it ------------------------------------------------------------------------------------------------


@dataclass
class Outside:
    """Looks at where things stand and does the next thing, so that it may be asked again after a crash.

    ``crashes``: one for before and one for after each append; ``evictions``: one for each time it waits and nothing runs.
    """

    program: Program
    crashes: Iterator[bool] = field(default_factory=lambda: iter(()))
    evictions: Iterator[bool] = field(default_factory=lambda: iter(()))

    def __post_init__(self) -> None:
        self.world = self._make_world()

    def _make_world(self) -> World:
        return World(self._body, self._maybe_crash)

    async def _body(self, ctx: WorkflowContext) -> list[Any]:
        cancel = self.program.cancel
        seen = Seen() if cancel is None else Seen(cancel.ways)
        await run_program(ctx, self.program, seen)
        return seen

    def live(self) -> World:
        while self.world.status in ("running", "sleeping"):
            try:
                self._next()
            except Crash:
                self.world.crash()
        return self.world

    @property
    def facts(self) -> list[ev.EventData]:
        """All that is recorded, but for when it left memory."""
        facts: list[ev.EventData] = []
        seqs = [0]
        for data in self.world.events:
            if not isinstance(data, ev.WorkflowSuspended):
                facts.append(_renumbered(data, seqs) if isinstance(data, ev.LoopCommitted) else data)
            seqs.append(len(facts))
        return facts

    def _maybe_crash(self, when: When) -> None:
        if next(self.crashes, False):
            raise Crash

    def _next(self) -> None:
        world = self.world
        if not world.events:
            world.dispatch()
            return
        if world.run is None:
            world.up = True
            world.drive()
            return
        for number, (second, kind) in enumerate(self.program.signals):
            if START_US + second * SECOND_US <= world.now_us and f"s{number}" not in self._received:
                world.signal(kind, BODIES[kind], f"s{number}")
                return
        running = [wait for wait in world.waits if isinstance(wait, WaitActivity) and self._runs(wait)]
        cancel = self.program.cancel
        due = cancel is not None and world.state.cancel_seq is None and len(self.facts) >= cancel.after
        if cancel is not None and due and not (running and cancel.beside != "alone"):
            world.cancel()
        elif running:
            self._finish(running, None if cancel is None or not due else cancel.beside)
        elif world.waits and world.status == "running" and next(self.evictions, False):
            world.suspend()
        elif world.waits:
            self._pass_time()
        else:
            world.drive()

    @property
    def _received(self) -> set[str]:
        return {data.signal_id for data in self.world.events if isinstance(data, ev.SignalReceived)}

    def _runs(self, wait: WaitActivity) -> bool:
        return wait.not_before_us is None or wait.not_before_us <= self.world.now_us

    def _finish(self, running: list[WaitActivity], cancelled: str | None) -> None:
        order = self.program.order
        choice = order[len(self.facts) % len(order)]
        first = running[choice % len(running)]
        outcomes = {first.location: self._outcome(first)}
        if choice > 8:
            other = running[(choice + 1) % len(running)]
            outcomes[other.location] = self._outcome(other)
        cancel = ev.WorkflowCancelRequested("somebody")
        before, behind = (cancel if cancelled == beside else None for beside in ("before", "behind"))
        self.world.finish(outcomes, before=before, behind=behind)

    def _outcome(self, wait: WaitActivity) -> Any:
        failures, _ = parse_json(wait.step.input)
        if wait.attempt <= failures:
            return AttemptFailed(ev.ErrorInfo("ConnectionError", "refused"))
        return f"{wait.step.plan.name} done"

    def _pass_time(self) -> None:
        """Let time pass until the next thing happens; a listen that nothing will ever end gets its signal."""
        world = self.world
        moments = [START_US + second * SECOND_US for second, _ in self.program.signals]
        for wait in world.waits:
            match wait:
                case WaitActivity(not_before_us=moment):
                    pass
                case WaitSleep(deadline_us=moment) | WaitListen(deadline_us=moment):
                    pass
                case _:
                    raise AssertionError(f"nobody here answers {wait}")
            if moment is not None:
                moments.append(moment)
        coming = [moment for moment in moments if moment > world.now_us]
        if coming:
            world.now_us = min(coming)
            world.drive()
            return
        listen = next(wait for wait in world.waits if isinstance(wait, WaitListen))
        kind = min(listen.step.decoders)
        world.signal(kind, BODIES[kind], f"last {len(self._received)}")


def _renumbered(data: ev.LoopCommitted, seqs: list[int]) -> ev.LoopCommitted:
    """Tell by which fact a handler was given, as if there had been no evictions."""
    handlers = tuple(replace(handler, seq=seqs[handler.seq]) for handler in data.handlers)
    return replace(data, handlers=handlers)


def assert_same(disturbed: Outside, undisturbed: Outside) -> None:
    disturbed.live()
    program, error = undisturbed.program, undisturbed.world.state.summary.error
    assert undisturbed.world.status == ("dead" if program.fails else "complete"), error
    assert (None if error is None else error.type) == ("Lost" if program.fails else None)
    assert disturbed.facts == undisturbed.facts
    assert disturbed.world.state.output == undisturbed.world.state.output


def lived(program: Program) -> Outside:
    outside = Outside(program)
    outside.live()
    return outside


@given(programs, st.lists(st.booleans(), max_size=80), st.lists(st.booleans(), max_size=20))
def test_any_flow_gives_the_same_history_and_result_through_crashes_and_evictions(
    program: Program, crashes: list[bool], evictions: list[bool]
) -> None:
    assert_same(Outside(program, iter(crashes), iter(evictions)), lived(program))


TIMED_BESIDE_A_BRANCH = Program(
    (
        Act(1, "charge", 0, 1),
        Join(1, (Listen(1, ("cancelled",), None, 1), Closure(1, (Nothing(1),), lets_fail=False))),
    ),
    (),
    (0,),
)
"""A replay that comes to a listen which has timed out since must not tell the branch beside it of a later time."""


@given(programs)
@example(TIMED_BESIDE_A_BRANCH)
def test_any_flow_gives_the_same_when_it_crashes_around_every_append(program: Program) -> None:
    undisturbed = lived(program)
    appends = len(undisturbed.facts) + 1
    # Twice in a row before the append, once after it, and so on for each.
    assert_same(Outside(program, iter([True, False, True, False] * appends * 2)), undisturbed)


@given(programs)
def test_any_flow_gives_the_same_when_it_is_evicted_wherever_it_may_be(program: Program) -> None:
    undisturbed = lived(program)
    assert_same(Outside(program, evictions=iter([True] * 2 * len(undisturbed.facts))), undisturbed)


@given(programs)
def test_replay_of_a_complete_flow_records_nothing_and_returns_the_same(program: Program) -> None:
    world = lived(program).world
    state = WorkflowState(WORKFLOW_ID)
    times = iter(range(START_US, START_US * 2))
    for seq, data in enumerate(world.events, start=1):
        if not isinstance(data, ev.WorkflowCompleted | ev.WorkflowFailed | ev.SignalDiscarded):
            state.apply(seq, next(times), data, "ray", "w1")
    recorded: list[ev.EventData] = []
    run = Run(state, recorded.append, PLANS.get)
    seen = Seen()
    run.start(lambda strand: run_program(WorkflowContext(strand), program, seen), world.now_us)
    assert recorded == []
    assert isinstance(run.end, Died if program.fails else Returned), run.end
    assert program.fails or len(seen) == len(parse_json(world.state.output or b""))
    assert run.side_by_side == 0
    assert not run.waits


@given(programs)
def test_every_location_of_a_flow_is_used_once(program: Program) -> None:
    """semantics.md §2: an event's address is its own."""
    opened: list[Location] = []
    for data in lived(program).facts:
        match data:
            case ev.ActivityCompleted() | ev.SleepStarted() | ev.SignalConsumed() | ev.StepRemoved():
                opened.append(data.location)
            case ev.VersionChecked() | ev.BranchOpened() | ev.CheckpointReached() | ev.RollbackStarted():
                opened.append(data.location)
            case ev.MessageSent():
                opened.append(data.location)
            case ev.LoopCommitted(iteration=0):
                opened.append(data.location)
            case _:
                pass
    assert len(set(opened)) == len(opened)
