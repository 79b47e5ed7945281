"""Starting over from any step of any program is as if all that came after it had never been done (semantics.md §4).

Programs as in ``test_flow_crashes.py``; their activities change the state's document where they may. A program lives to any
point, starts over from any place that is recorded, and lives on, with crashes anywhere; and so again.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from gasoline_es.core import events as ev
from gasoline_es.core.decide import AttemptFailed
from gasoline_es.core.folding import fold_facts
from gasoline_es.core.history import Entry
from gasoline_es.core.location import Location, parse_location
from gasoline_es.core.starting_over import plan
from gasoline_es.core.state import WorkflowState
from gasoline_es.core.waits import WaitActivity
from gasoline_es.errors import RerunRefused
from tests.replay.test_crashes import Crash
from tests.replay.test_flow_crashes import Act, Check, Closure, Listen, Loop, Outside, Program, Sleep
from tests.replay.test_flow_crashes import programs as all_programs
from tests.replay.world import WORKFLOW_ID, World

programs = all_programs.map(lambda program: replace(program, fails=False))

# --- living, and starting over ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Restart:
    """After so many events, from the so-manieth of the recorded places (or the one above it, ``up`` times)."""

    after: int
    place: int
    up: int


restarts = st.lists(
    st.builds(Restart, st.integers(2, 60), st.integers(0, 59), st.sampled_from([0, 0, 0, 1, 2])), min_size=1, max_size=3
)


class Restarting(Outside):
    """An outside that lets its program start over now and then."""

    def live_until(self, events: int) -> None:
        """Live until so many events are recorded and it waits, or it is over."""
        world = self.world
        while world.status in ("running", "sleeping") and (len(self.facts) < events or world.run is None):
            self._once()

    def live_again(self, restarts: list[Restart], *, to_the_end: bool = True) -> World:
        for restart in restarts:
            self.live_until(len(self.facts) + restart.after)
            start = place_of(self.world, restart)
            if start is not None:
                self._start_over(start)
        return self.live() if to_the_end else self.world

    def _once(self) -> None:
        try:
            self._next()
        except Crash:
            self.world.crash()

    def _start_over(self, start: Location) -> None:
        generations = len(reruns(self.world))
        while len(reruns(self.world)) == generations:
            try:
                self.world.rerun(start)
            except Crash:
                self.world.crash()

    def _finish(self, running: list[WaitActivity], cancelled: str | None) -> None:
        """Which one ends next depends on the steps that hold, of which a fork has as many."""
        steps = len(live_steps(self.world))
        first = running[self.program.order[steps % len(self.program.order)] % len(running)]
        outcome = self._outcome(first)
        changes = first.alone and not isinstance(outcome, AttemptFailed)
        self.world.finish({first.location: outcome}, b'{"n":%d}' % steps if changes else None)


def place_of(world: World, restart: Restart) -> Location | None:
    """Pick a place where something is recorded that holds, or one above it."""
    places = sorted({data.location for _, data in live_steps(world)})
    if not places:
        return None
    place = places[restart.place % len(places)]
    return place[: max(len(place) - restart.up, 1)]


def reruns(world: World) -> list[ev.WorkflowRerun]:
    return [data for data in world.events if isinstance(data, ev.WorkflowRerun)]


def superseded(world: World) -> set[int]:
    spans = [span for rerun in reruns(world) for span in rerun.superseded]
    gone = [seq for first, last in spans for seq in range(first, last + 1)]
    assert len(gone) == len(set(gone)), "what holds no more is superseded once"
    return set(gone)


def live_steps(world: World) -> list[tuple[int, ev.LocatedData]]:
    """The located events that hold, with their numbers."""
    gone = superseded(world)
    return [
        (seq, data)
        for seq, data in enumerate(world.events, start=1)
        if seq not in gone and isinstance(data, ev.LocatedData)
    ]


def standing(state: WorkflowState) -> dict[str, Any]:
    """All of a state that says what comes next, but for numbers of events: of those, their order alone.

    (Handlers for a rollback are told by numbers, too.)
    """
    branches = {at: entries for at, entries in state.history.branches().items() if entries}
    order = sorted(entry.seq for entries in branches.values() for entry in entries)
    rank = {seq: index for index, seq in enumerate(order)}
    told = {at: [shown(entry, rank) for entry in entries] for at, entries in branches.items()}
    return {
        "history": told,
        "document": state.document,
        "queue": list(state.queue),
        "known": list(state.known),
        "tags": dict(state.summary.tags),
        "generations": [replace(one, seed="", rerun_id="") for one in state.generations],
        "status": state.summary.status,
        "output": state.output,
        "error": state.summary.error,
    }


def shown(entry: Entry, rank: dict[int, int]) -> tuple[Any, ...]:
    values = [getattr(entry, field.name) for field in fields(entry) if field.name not in {"seq", "handlers"}]
    values += [(handler.name, handler.input) for handler in getattr(entry, "handlers", ())]
    return type(entry).__name__, rank[entry.seq], *values


# --- properties -------------------------------------------------------------------------------------------------------


@given(programs, restarts)
def test_a_workflow_that_started_over_stands_and_goes_on_as_one_that_never_did_the_rest(
    program: Program, restarts: list[Restart]
) -> None:
    """The one that never did it is a fork: its history holds what stays, and nothing else."""
    here = Restarting(program)
    here.live_again(restarts[:-1], to_the_end=False)
    here.live_until(len(here.facts) + restarts[-1].after)
    start = place_of(here.world, restarts[-1])
    assume(start is not None)
    assert start is not None
    there = Restarting(program)
    there.world = here.world.fork(start, there.world.body)
    here.world.up = False  # nothing goes on before both are compared
    here.world.rerun(start)
    assert standing(here.world.state) == standing(there.world.state)
    assert standing(here.world.state) == standing(fold_facts(WORKFLOW_ID, here.world.facts))
    done = len(here.world.events), len(there.world.events)
    assert here.live().status == "complete", here.world.state.summary.error
    assert there.live().status == "complete", there.world.state.summary.error
    went_on = [unnumbered(data) for data in here.world.events[done[0] :]]
    assert went_on == [unnumbered(data) for data in there.world.events[done[1] :]]
    event("something stays beside" if reruns(here.world)[-1].beside else "nothing stays beside")
    event("signals return" if reruns(here.world)[-1].returned else "no signals return")


@given(programs, restarts, st.lists(st.booleans(), max_size=80), st.lists(st.booleans(), max_size=20))
def test_starting_over_gives_the_same_through_crashes_and_evictions(
    program: Program, restarts: list[Restart], crashes: list[bool], evictions: list[bool]
) -> None:
    """A rerun is whole, or there is none of it."""
    calm, disturbed = Restarting(program), Restarting(program, iter(crashes), iter(evictions))
    calm.live_again(restarts)
    disturbed.live_again(restarts)
    assert calm.world.status == disturbed.world.status == "complete", disturbed.world.state.summary.error
    assert [counted(data) for data in disturbed.facts] == [counted(data) for data in calm.facts]


def unnumbered(data: ev.EventData) -> ev.EventData:
    """A loop's commit tells by numbers of events when its iterations gave something to be rolled back."""
    if not isinstance(data, ev.LoopCommitted):
        return data
    return replace(data, handlers=tuple(replace(handler, seq=0) for handler in data.handlers))


def counted(data: ev.EventData) -> ev.EventData:
    """A rerun names events by their numbers, among which are those of suspensions."""
    return replace(data, superseded=()) if isinstance(data, ev.WorkflowRerun) else data


@given(programs, restarts)
def test_all_before_the_step_stays_and_what_is_recorded_later_and_stays_is_beside_it(
    program: Program, restarts: list[Restart]
) -> None:
    """semantics.md §4: locations at or after the step on its branch and its ancestors go; siblings of a join stay."""
    outside = Restarting(program)
    outside.live_again(restarts)
    facts, known = outside.world.facts(), [data for _, data in live_steps(outside.world)]
    for start in {data.location for data in known}:
        planned = plan(facts, start)
        kept = {fact[1] for fact in planned.kept}
        first = min(
            seq for seq, data in live_steps(outside.world) if data.location[: len(planned.start)] == planned.start
        )
        for seq, data in live_steps(outside.world):
            at, cut = data.location, len(planned.start)
            if at[:cut] == planned.start or (at == planned.start[: len(at)] and seq > first):
                assert seq not in kept, "the step itself, and what was recorded above it since"
            elif at < planned.start:
                assert seq in kept
            elif at[: cut - 1] == planned.start[:-1] and not is_race(known, planned.start[:-1]):
                assert seq not in kept, "behind it on its own branch"
            elif seq in kept:
                beside = [one for one in planned.beside if at[: len(one)] == one]
                assert len(beside) == 1, "whatever stays behind it is said to be beside it"
                assert beside[0][:-1] == planned.start[: len(beside[0]) - 1]


def is_race(known: list[ev.LocatedData], location: Location) -> bool:
    return any(isinstance(one, ev.BranchOpened) and one.kind == "race" and one.location == location for one in known)


def without_branches_beside(program: Program) -> bool:
    """Whether its steps come one after the other."""
    return all(is_plain(do) for do in program.body)


def is_plain(do: object) -> bool:
    if isinstance(do, Closure | Loop):
        return all(is_plain(below) for below in do.body)
    return isinstance(do, Act | Sleep | Listen | Check)


plain_leaves = st.one_of(
    st.builds(Act, st.just(1), st.sampled_from(["charge", "ship"]), st.sampled_from([0, 0, 1]), st.integers(1, 2)),
    st.builds(Sleep, st.just(1), st.integers(0, 5)),
    st.builds(Listen, st.just(1), st.just(("paid",)), st.sampled_from([None, 2]), st.none() | st.integers(0, 5)),
    st.builds(Check, st.just(1), st.integers(1, 3)),
)


def one_after_the_other(below: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    bodies = st.lists(below, max_size=3).map(tuple)
    return st.one_of(
        below,
        st.builds(Closure, st.just(1), bodies, st.booleans()),
        st.builds(Loop, st.just(1), bodies, st.integers(1, 4), st.integers(1, 3)),
    )


plain_programs = st.builds(
    Program,
    st.lists(one_after_the_other(one_after_the_other(plain_leaves)), max_size=4).map(tuple),
    st.lists(st.tuples(st.integers(0, 12), st.just("paid")), max_size=5).map(lambda signals: tuple(sorted(signals))),
    st.just((0,)),
)


@given(plain_programs)
def test_of_steps_one_after_the_other_those_stay_that_were_recorded_before(program: Program) -> None:
    """Then time tells all: the state is that of just before the step, with the signals that came since."""
    outside = Restarting(program)
    facts = outside.live().facts()
    for start in {fact[3].location for fact in facts if isinstance(fact[3], ev.LocatedData)}:
        planned = plan(facts, start)
        first = min(
            seq for seq, data in live_steps(outside.world) if data.location[: len(planned.start)] == planned.start
        )
        expected = [fact for fact in facts if fact[1] < first or isinstance(fact[3], ev.SignalReceived)]
        assert planned.kept == expected
        before = fold_facts(WORKFLOW_ID, lambda first=first: facts[: first - 1])
        world = outside.world.fork(start)
        assert world.state.document == before.document
        received = [fact[3].signal_id for fact in facts if isinstance(fact[3], ev.SignalReceived)]
        taken = [one for fact in expected if isinstance(fact[3], ev.SignalConsumed) for one in fact[3].signal_ids]
        assert list(world.state.queue) == [one for one in received if one not in taken], "in the order of their receipt"
        back = [signal_id for signal_id, _ in planned.returned]
        assert back == [one for one in received if one in back]


@given(programs, restarts)
def test_places_that_are_used_again_belong_to_a_new_generation(program: Program, restarts: list[Restart]) -> None:
    """api.md: derived ids carry the generation, so that no send is taken for a repeat; what stays keeps its own."""
    outside = Restarting(program)
    outside.live_again(restarts)
    asked: dict[tuple[Location, int], int] = {}
    state = WorkflowState(WORKFLOW_ID)
    for seq, data in enumerate(outside.world.events, start=1):
        if isinstance(data, ev.WorkflowRerun):
            before = {one: state.generation_at(one) for one in {location for location, _ in asked}}
            state.apply(seq, 0, data, "", "")
            gone = superseded_by(data)
            for (location, generation), at in asked.items():
                stays = before[location] == generation and at not in gone
                assert not stays or state.generation_at(location) == generation
        elif isinstance(data, ev.ActivityCompleted):
            place = data.location, state.generation_at(data.location)
            assert place not in asked, "an activity's key is its own"
            asked[place] = seq
            state.skip(seq, 0, "")
        else:
            state.skip(seq, 0, "")


def superseded_by(rerun: ev.WorkflowRerun) -> set[int]:
    return {seq for first, last in rerun.superseded for seq in range(first, last + 1)}


def test_a_place_where_nothing_is_recorded_is_refused_with_those_near_it() -> None:
    program = Program((Act(1, "charge", 0, 1), Sleep(1, 1), Act(1, "ship", 0, 1)), (), (0,))
    facts = Restarting(program).live().facts()
    with pytest.raises(RerunRefused, match=r"nothing is recorded at \{9\}.*near it are \{1\}, \{2\}, \{3\}, \{4\}$"):
        plan(facts, parse_location("{9}"))
    with pytest.raises(RerunRefused, match="no step is recorded yet"):
        plan(facts[:1], parse_location("{1}"))


def test_a_history_with_a_gap_is_refused() -> None:
    """What a loop has forgotten may be needed again: iterations before the step."""
    program = Program((Act(1, "charge", 0, 1), Sleep(1, 1)), (), (0,))
    facts = Restarting(program).live().facts()
    with pytest.raises(RerunRefused, match="up to number 6 only 5 are there"):
        plan([*facts[:1], *facts[2:]], parse_location("{2}"))
