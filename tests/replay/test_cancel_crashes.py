"""Any program of branches, joins, races, catches and loops, cancelled at any event, ends the same through crashes.

The programs of ``test_flow_crashes.py``; the bodies let the cancel pass, clean up with steps of their own, or swallow it.
What is interrupted, where the cancel is thrown, and what the clean-up records must be the same however often the process
dies (semantics.md §4, §12).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gasoline_es import WorkflowContext
from gasoline_es.core import events as ev
from gasoline_es.core.location import Location
from gasoline_es.core.replay import Run
from gasoline_es.core.state import WorkflowState
from tests.replay.test_flow_crashes import Cancel, Outside, Program, Seen, Way, lived, programs, run_program
from tests.replay.world import PLANS, START_US, WORKFLOW_ID

ways: st.SearchStrategy[Way] = st.sampled_from(("let pass", "clean up", "swallow"))
cancels = st.builds(
    Cancel,
    st.integers(1, 15),
    st.sampled_from(("alone", "behind", "before")),
    st.lists(ways, min_size=1, max_size=4).map(tuple),
)


def with_cancel(program: Program, cancel: Cancel) -> Program:
    return replace(program, cancel=cancel)


cancelled_programs = st.builds(with_cancel, programs, cancels)


def assert_ends_the_same(disturbed: Outside, undisturbed: Outside) -> None:
    disturbed.live()
    cancelled = undisturbed.world.state.cancel_seq is not None
    by_itself = "dead" if undisturbed.program.fails else "complete"
    assert undisturbed.world.status == ("cancelled" if cancelled else by_itself), undisturbed.world.state.summary.error
    assert disturbed.facts == undisturbed.facts
    assert disturbed.world.state.summary.error == undisturbed.world.state.summary.error


@given(cancelled_programs, st.lists(st.booleans(), max_size=80), st.lists(st.booleans(), max_size=20))
def test_any_cancelled_flow_gives_the_same_history_through_crashes_and_evictions(
    program: Program, crashes: list[bool], evictions: list[bool]
) -> None:
    assert_ends_the_same(Outside(program, iter(crashes), iter(evictions)), lived(program))


@given(cancelled_programs)
def test_any_cancelled_flow_gives_the_same_when_it_crashes_around_every_append(program: Program) -> None:
    undisturbed = lived(program)
    appends = len(undisturbed.facts) + 1
    assert_ends_the_same(Outside(program, iter([True, False, True, False] * appends * 2)), undisturbed)


@given(cancelled_programs)
def test_replay_of_a_cancelled_flow_records_nothing(program: Program) -> None:
    world = lived(program).world
    state = WorkflowState(WORKFLOW_ID)
    times = iter(range(START_US, START_US * 2))
    ends = (ev.WorkflowCompleted, ev.WorkflowFailed, ev.WorkflowCancelled, ev.SignalDiscarded)
    for seq, data in enumerate(world.events, start=1):
        if not isinstance(data, ends):
            state.apply(seq, next(times), data, "ray", "w1")
    recorded: list[ev.EventData] = []
    run = Run(state, recorded.append, PLANS.get)
    seen = Seen(() if program.cancel is None else program.cancel.ways)
    run.start(lambda strand: run_program(WorkflowContext(strand), program, seen), world.now_us)
    assert recorded == []
    assert run.end is not None
    came_too_late = state.cancel_seq is not None and not run.cancelled  # the body had ended by its turn
    assert run.side_by_side == came_too_late
    assert not run.waits


@given(cancelled_programs)
def test_nothing_is_recorded_at_a_step_once_a_cancel_was_thrown_there(program: Program) -> None:
    interrupted: set[Location] = set()
    for data in lived(program).facts:
        location: Any = getattr(data, "location", None)
        assert location is None or location not in interrupted, data
        if isinstance(data, ev.StepInterrupted):
            interrupted.add(data.location)
