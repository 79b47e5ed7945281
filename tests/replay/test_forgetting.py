"""What a loop has forgotten nobody misses: a fold of what the index keeps is the fold of all (semantics.md §4, loops).

Programs are those of ``test_flow_crashes.py``: loops in loops, in joins, in races. After each append the state is folded
from the kept events alone and compared with the one folded from all; and whenever a world loses its memory, it goes on
from the kept events, and must record what a world records that never forgot anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import projections.loops
from gasoline_es import Break, WorkflowContext
from gasoline_es.core import events as ev
from gasoline_es.core import state as state_module
from gasoline_es.core.codec import decode
from gasoline_es.core.commands import Reply
from gasoline_es.core.history import LoopEntry
from gasoline_es.core.location import parse_location
from gasoline_es.core.state import Summary, WorkflowState, refold
from gasoline_es.core.waits import WaitActivity
from projections.history import HistoryIndex, located
from tests.replay.code import charge
from tests.replay.test_crashes import SIGNALS
from tests.replay.test_flow_crashes import (
    Do,
    Join,
    Loop,
    Outside,
    Program,
    Race,
    assert_same,
    busy,
    leaves,
    versions,
    with_flow,
)
from tests.replay.world import WORKFLOW_ID, When, World


def looping(below: st.SearchStrategy[Do]) -> st.SearchStrategy[Do]:
    bodies = st.lists(below, min_size=1, max_size=3).map(tuple)
    loops = st.builds(Loop, versions, bodies, st.integers(2, 6), st.integers(1, 3))
    beside = st.builds(Join, versions, st.tuples(loops, loops | below))
    return st.one_of(loops, beside, below, st.builds(Race, versions, st.tuples(loops, below)))


looping_programs = st.builds(
    Program,
    st.lists(looping(looping(busy | with_flow(leaves))), min_size=1, max_size=3).map(tuple),
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from(sorted(SIGNALS))), max_size=8).map(
        lambda signals: tuple(sorted(signals))
    ),
    st.lists(st.integers(0, 11), min_size=1, max_size=8).map(tuple),
)

KNOWN_MAX = 2
RETAGGED_MAX = 2


@pytest.fixture(autouse=True, scope="module")
def low_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (state_module, projections.loops):
            patch.setattr(module, "SIGNALS_REMEMBERED", KNOWN_MAX)
            patch.setattr(module, "SIGNALS_REMEMBERED_US", 3_000_000)
            patch.setattr(module, "RETAGGED_MAX", RETAGGED_MAX)
        yield


def everything(state: WorkflowState) -> dict[str, Any]:
    """All that a state tells, in the order in which it does."""
    told: dict[str, Any] = {name: getattr(state, name) for name in state.__slots__ if name not in ("history", "news")}
    told["summary"] = {name: getattr(state.summary, name) for name in Summary.__slots__}
    for name in ("queue", "known", "waiters"):
        told[name] = list(told[name].items())
    told["branches"] = {
        branch: [(type(entry), *astuple(entry)) for entry in entries]
        for branch, entries in state.history.branches().items()
        if entries
    }
    return told


def left_memory(index: HistoryIndex) -> HistoryIndex:
    """An index that was stored, and knows what it knew."""
    kept = index.kept(WORKFLOW_ID)
    stored = replace(kept, more=orjson.loads(orjson.dumps(kept.more)))
    again = HistoryIndex()
    again.restore(WORKFLOW_ID, stored)
    assert again.located(WORKFLOW_ID) == index.located(WORKFLOW_ID) == located(stored)
    assert again.last(WORKFLOW_ID) == index.last(WORKFLOW_ID) == kept.last
    return again


class ForgettingWorld(World):
    """A world that keeps what the index keeps. ``forgotten``: the most events that it had forgotten so far."""

    index = HistoryIndex()
    summary = Summary(WORKFLOW_ID)
    forgotten = 0
    compares = True

    def _append(self) -> None:
        first = len(self.lines)
        try:
            super()._append()
        finally:
            self._note(first)

    def _note(self, first: int) -> None:
        if first == 0:
            self.index, self.summary = HistoryIndex(), Summary(WORKFLOW_ID)
        for offset, line in enumerate(self.lines[first:], start=first):
            event = decode(line)
            self.summary.apply(event.seq, event.time_us, event.data, event.ray_id, event.worker)
            self.index.apply(WORKFLOW_ID, event.seq, event.time_us, 3 * offset, offset, event.data)
        if self.lines:
            self.index = left_memory(self.index)
        located = self.index.located(WORKFLOW_ID)
        assert located.count == len(self.lines)
        assert not located.whole
        self.forgotten = max(self.forgotten, located.forgotten)
        if not self.compares:
            return
        kept = self.kept()
        self.recall(kept)
        assert everything(kept) == everything(self.all())

    def all(self) -> WorkflowState:
        state = WorkflowState(WORKFLOW_ID)
        for line in self.lines:
            event = decode(line)
            state.apply(event.seq, event.time_us, event.data, event.ray_id, event.worker)
        return state

    def kept(self) -> WorkflowState:
        located = self.index.located(WORKFLOW_ID)
        events = [decode(self.lines[place]) for place in located.places]
        assert [event.seq for event in events] == list(located.seqs)
        assert [3 * place for place in located.places] == list(located.offsets)
        return refold(self.summary, [(event.seq, event.time_us, event.data) for event in events])

    def recall(self, state: WorkflowState) -> None:
        received = self.index.received(WORKFLOW_ID)
        events = [decode(self.lines[place]) for place in received.places]
        signals = [(e.data.signal_id, e.time_us) for e in events if isinstance(e.data, ev.SignalReceived)]
        state.recall(signals, received.forgotten_us)

    def _undo(self) -> None:
        self._batch.clear()
        self.state = self.kept() if self.lines else WorkflowState(WORKFLOW_ID)

    def signal(self, name: str, body: bytes, signal_id: str | None = None) -> Reply:
        if not self.state.every_signal_known:
            self.recall(self.state)
        return super().signal(name, body, signal_id)


class Busy(Outside):
    """Activities change the state document and the tags, and others ask for the output, as the program's order says."""

    def _finish(self, running: list[WaitActivity], cancelled: str | None) -> None:
        order = self.program.order
        number = len(self.facts)
        choice = order[number % len(order)]
        if choice % 3 == 0:
            self.world._record(ev.WorkflowTagsUpdated({"number": str(number)}))
        if choice % 4 == 1:
            self.world._record(ev.WaiterAdded(f"waiter {number}", parse_location("{1}"), 1))
        document = b'{"number":%d}' % number if choice % 3 == 1 else None
        ends = [running[choice % len(running)], *([running[(choice + 1) % len(running)]] if choice > 8 else [])]
        self.world.finish({wait.location: self._outcome(wait) for wait in ends}, document)


class Forgetting(Busy):
    def _make_world(self) -> World:
        return ForgettingWorld(self._body, self._maybe_crash)


@given(looping_programs, st.lists(st.booleans(), max_size=60), st.lists(st.booleans(), max_size=12))
def test_a_state_folded_from_what_is_kept_is_that_of_the_complete_history(
    program: Program, crashes: list[bool], evictions: list[bool]
) -> None:
    undisturbed = Busy(program)
    undisturbed.live()
    disturbed = Forgetting(program, iter(crashes), iter(evictions))
    assert_same(disturbed, undisturbed)


# --- single cases -----------------------------------------------------------------------------------------------------


async def nothing_but_work(ctx: WorkflowContext, state: list[int]) -> None:
    await ctx.join(ctx.activity(charge, state[0]), ctx.closure(below))
    await ctx.loop(twice, [0], commit_interval=1)
    state[0] += 1


async def below(ctx: WorkflowContext) -> None:
    await ctx.activity(charge, 0)


async def twice(ctx: WorkflowContext, state: list[int]) -> Break[None] | None:
    await ctx.activity(charge, state[0])
    state[0] += 1
    return Break(None) if state[0] == 2 else None


def work(world: World, iterations: int) -> None:
    """Let so many iterations of :func:`nothing_but_work` pass."""
    for _ in range(4 * iterations):
        location = world.waits[0].location
        world.complete("done", b'{"at":"%b"}' % str(location).encode(), at=location)


def test_what_is_kept_of_a_loop_of_many_iterations_is_no_more_than_of_few() -> None:
    """semantics.md §4: what has looped a million times costs what its last few iterations cost."""

    async def body(ctx: WorkflowContext) -> None:
        await ctx.loop(nothing_but_work, [0], commit_interval=5)

    world = ForgettingWorld(body)
    world.compares = False  # with all of a long history, each time
    world.dispatch()
    kept: list[int] = []
    for _ in range(40):
        work(world, 5)
        kept.append(len(world.index.located(WORKFLOW_ID).seqs))
    assert len(world.lines) > 40 * 5 * 8
    assert set(kept[1:]) == {kept[0]}
    assert kept[0] < 12


def test_a_shorter_interval_forgets_all_that_was_recorded_with_a_longer_one() -> None:
    """A shorter ``commit_interval`` in new code commits behind the iterations that are recorded already, all at once."""

    async def iteration(ctx: WorkflowContext, state: list[int]) -> None:
        await ctx.activity(charge, state[0])
        state[0] += 1

    async def rare(ctx: WorkflowContext) -> None:
        await ctx.loop(iteration, [0], commit_interval=100)

    async def often(ctx: WorkflowContext) -> None:
        await ctx.loop(iteration, [0], commit_interval=2)

    world = ForgettingWorld(rare)
    world.dispatch()
    for number in range(7):
        world.complete(number, b"%d" % number)
    forgotten: list[int] = []

    def watch(_: When) -> None:
        forgotten.append(world.index.located(WORKFLOW_ID).forgotten)

    world.around_append = watch
    world.restart(often)
    assert [entry.iteration for entry in world.state.history.branch(()) if isinstance(entry, LoopEntry)] == [7]
    # Seven activities and the first commit; the event with the document is kept.
    assert world.index.located(WORKFLOW_ID).forgotten == 7
    assert sorted(set(forgotten)) == [0]
    assert world.state.document == b"6"


def test_needs_all_keeps_every_event_from_then_on() -> None:
    """Forgotten iterations may come back into a replay: then it needs what lies between the first event and the last."""

    async def body(ctx: WorkflowContext) -> None:
        await ctx.loop(nothing_but_work, [0], commit_interval=5)

    world = World(body)
    world.dispatch()
    work(world, 20)
    for marked in (0, 1, 50):  # before the loop, in it, after it forgot something
        index = HistoryIndex()
        for offset, line in enumerate(world.lines):
            if offset == marked:
                index.needs_all(WORKFLOW_ID)
            event = decode(line)
            index.apply(WORKFLOW_ID, event.seq, event.time_us, 10 + offset, offset, event.data)
        located = index.located(WORKFLOW_ID)
        assert located.count == len(world.lines)
        assert (located.first, located.last) == (10, 9 + len(world.lines))
        if located.whole:
            assert list(located.seqs) == []
        else:
            assert list(located.places) == list(range(len(world.lines)))


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(ev.SignalConsumed(parse_location("{1, 2, 1}"), 1, ("never received",)), id="consumed"),
        pytest.param(ev.LoopCommitted(parse_location("{2}"), 1, 20, b"null"), id="committed"),
    ],
)
def test_what_does_not_fit_makes_a_workflow_keep_its_complete_history(odd: ev.EventData) -> None:
    """design §1.2: such a history sets its workflow aside, by a fold of all of it."""
    index = HistoryIndex()
    loop = parse_location("{1}")
    started = ev.LoopCommitted(loop, 1, 0, b"null")
    facts = [ev.WorkflowDispatched("told", b"null", {}), started, ev.LoopCommitted(loop, 1, 20, b"null"), odd]
    for seq, data in enumerate(facts, start=1):
        index.apply(WORKFLOW_ID, seq, seq, seq, seq, data)
    located = index.located(WORKFLOW_ID)
    assert located.whole
    assert (located.count, located.first, located.last) == (4, 1, 4)
