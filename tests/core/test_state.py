"""The fold: where a workflow stands after each event, and which signal ids it remembers (semantics §5, §7, design §5)."""

from __future__ import annotations

import pytest

from gasoline_es.core import events as ev
from gasoline_es.core import state as state_module
from gasoline_es.core.state import Started, Summary, WorkflowState

AT = ((1,),)
NEXT = ((2,),)
ERROR = ev.ErrorInfo("ValueError", "no")

DISPATCHED = ev.WorkflowDispatched("fulfil", b"null", {"order": "42"})
SUSPENDED = ev.WorkflowSuspended(60, ("cancelled", "paid"))
COMPLETED = ev.WorkflowCompleted(b"1", b"null")
FAILED = ev.WorkflowFailed(ERROR)
WOKEN = ev.WorkflowWoken("operator")
PAID = ev.SignalReceived("s1", "paid", b"{}")
SHIPPED = ev.SignalReceived("s2", "shipped", b"{}")
SLEEP = ev.SleepStarted(AT, 1, 60)
SLEPT = ev.SleepFinished(AT, "normal")
DONE = ev.ActivityCompleted(AT, 1, "charge", 1, 0, b"1", b"2")
DONE_WITH_STATE = ev.ActivityCompleted(NEXT, 1, "charge", 1, 0, b"1", b"2", b'{"n":1}')
TRIED = ev.ActivityFailed(AT, 1, "charge", 1, 0, b"1", ERROR, 500)
UNREADABLE = ev.Unreadable("gasoline.x.v9", "written by a newer version")


def fold(*events: ev.EventData) -> WorkflowState:
    state = WorkflowState("id")
    for seq, data in enumerate(events, start=1):
        state.apply(seq, seq * 1_000, data, "ray", "w1")
    return state


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([], "running"),
        ([SUSPENDED], "sleeping"),
        ([SUSPENDED, PAID], "running"),
        ([SUSPENDED, SHIPPED], "sleeping"),
        ([SUSPENDED, WOKEN], "running"),
        ([SLEEP, SUSPENDED, SLEPT], "running"),
        ([SUSPENDED, DONE], "running"),
        ([SUSPENDED, TRIED], "running"),
        ([SUSPENDED, SLEEP], "running"),
        ([SUSPENDED, ev.StepRemoved(AT, 1, "sleep")], "running"),
        ([SUSPENDED, ev.StepPlaced(AT, 1, "listen")], "running"),
        ([SUSPENDED, ev.VersionChecked(AT, 1, 1)], "running"),
        ([PAID, SUSPENDED, ev.SignalConsumed(AT, 1, ("s1",))], "running"),
        ([FAILED], "dead"),
        ([FAILED, PAID], "dead"),
        ([FAILED, WOKEN], "running"),
        ([SUSPENDED, FAILED, WOKEN, SUSPENDED], "sleeping"),
        ([COMPLETED], "complete"),
        ([FAILED, WOKEN, COMPLETED], "complete"),
        ([UNREADABLE], "unreadable"),
        ([UNREADABLE, WOKEN, COMPLETED], "unreadable"),
    ],
)
def test_status_after_events(events: list[ev.EventData], status: str) -> None:
    summary = fold(DISPATCHED, *events).summary
    assert summary.status == status
    assert (summary.waiting is not None) == (status == "sleeping")
    assert (summary.error is not None) == (status in ("dead", "unreadable"))
    assert summary.incomplete == (status != "complete")
    assert summary.seq == 1 + len(events)


def test_summary_tells_who_and_when() -> None:
    summary = fold(DISPATCHED, DONE, COMPLETED).summary
    assert (summary.name, dict(summary.tags), summary.ray_id, summary.worker) == (
        "fulfil",
        {"order": "42"},
        "ray",
        "w1",
    )
    assert (summary.created_us, summary.updated_us, summary.completed_us) == (1_000, 3_000, 3_000)


def test_summary_alone_folds_to_the_same_as_the_whole_state() -> None:
    events = [DISPATCHED, SUSPENDED, PAID, ev.SignalConsumed(AT, 1, ("s1",)), FAILED, WOKEN, COMPLETED]
    summary = Summary("id")
    for seq, data in enumerate(events, start=1):
        summary.apply(seq, seq * 1_000, data, "ray", "w1")
    whole = fold(*events).summary
    assert all(getattr(summary, name) == getattr(whole, name) for name in Summary.__slots__)


@pytest.mark.parametrize("seq", [1, 3, 0])
def test_gap_or_repeat_in_the_sequence_sets_the_workflow_aside(seq: int) -> None:
    """design §4: one history that makes no sense stops nobody else; nothing is passed in silence either."""
    state = fold(DISPATCHED)
    state.apply(seq, 0, WOKEN, "ray", "w1")
    assert state.summary.status == "unreadable"
    assert f"event {seq} follows event 1" in str(state.summary.error)


def test_event_that_does_not_fit_what_is_recorded_sets_the_workflow_aside() -> None:
    state = fold(DISPATCHED, ev.SignalConsumed(AT, 1, ("never received",)))
    assert state.summary.status == "unreadable"
    assert "event 2 of type signal.consumed" in str(state.summary.error)


def test_unreadable_event_sets_the_workflow_aside_with_its_position() -> None:
    state = fold(DISPATCHED, PAID, UNREADABLE, ev.SignalConsumed(AT, 1, ("s1",)), DONE_WITH_STATE)
    assert str(state.summary.error) == "Unreadable: event 3 of type gasoline.x.v9: written by a newer version"
    assert list(state.queue) == ["s1"], "nothing after it is folded"
    assert state.document == b"null"


def test_state_document_is_the_last_one_an_activity_left_and_then_the_final_one() -> None:
    assert fold(DISPATCHED).document == b"null"
    state = fold(DISPATCHED, DONE, DONE_WITH_STATE)
    assert state.document == b'{"n":1}'
    state.apply(4, 0, ev.WorkflowCompleted(b"5", b'{"n":2}'), "ray", "w1")
    assert (state.output, state.document) == (b"5", b'{"n":2}')


def test_signals_queue_in_order_until_taken_or_discarded() -> None:
    third = ev.SignalReceived("s3", "paid", b'{"n":3}')
    state = fold(DISPATCHED, PAID, SHIPPED, third)
    assert list(state.queue) == ["s1", "s2", "s3"]
    state.apply(5, 0, ev.SignalConsumed(AT, 1, ("s1", "s3")), "ray", "w1")
    assert list(state.queue) == ["s2"]
    state.apply(6, 0, ev.SignalDiscarded(("s2",)), "ray", "w1")
    assert list(state.queue) == []
    assert list(state.known) == ["s1", "s2", "s3"], "a repeat is still known"


# --- which ids are remembered -----------------------------------------------------------------------------------------


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember the newest 3, and all of the last 100 µs."""
    monkeypatch.setattr(state_module, "SIGNALS_REMEMBERED", 3)
    monkeypatch.setattr(state_module, "SIGNALS_REMEMBERED_US", 100)


def receive(*times: int) -> WorkflowState:
    state = fold(DISPATCHED)
    for number, time_us in enumerate(times):
        state.apply(2 + number, time_us, ev.SignalReceived(f"s{number}", "paid", b"{}"), "ray", "w1")
    return state


@pytest.mark.usefixtures("small_memory")
def test_newest_ids_are_remembered_however_old_they_are() -> None:
    state = receive(0, 1, 100_000)
    assert list(state.known) == ["s0", "s1", "s2"]
    assert state.forgotten_us is None


@pytest.mark.usefixtures("small_memory")
def test_young_ids_are_remembered_however_many_they_are() -> None:
    state = receive(*range(100))
    assert len(state.known) == 100
    assert state.forgotten_us is None


@pytest.mark.usefixtures("small_memory")
def test_ids_both_old_and_beyond_the_newest_are_forgotten_and_their_newest_time_is_kept() -> None:
    state = receive(0, 10, 20, 30, 115)
    assert list(state.known) == ["s2", "s3", "s4"], "s0 and s1 are older than 100 µs, and two more than 3"
    assert state.forgotten_us == 10
    state.apply(7, 10_000, ev.SignalReceived("s5", "paid", b"{}"), "ray", "w1")
    assert list(state.known) == ["s3", "s4", "s5"]
    assert state.forgotten_us == 20


def test_memory_is_ten_thousand_signals_or_a_day() -> None:
    assert state_module.SIGNALS_REMEMBERED == 10_000
    assert state_module.SIGNALS_REMEMBERED_US == 24 * 3600 * 1_000_000


def test_starts_are_counted_until_the_attempt_ends() -> None:
    """design §5: only those started and unfinished count."""
    started = ev.ActivityStarted(AT, 1, "charge", 1)
    assert fold(DISPATCHED, started, started).starts == {AT: Started("charge", 2, 3_000)}
    assert fold(DISPATCHED, started, DONE).starts == {}
    assert fold(DISPATCHED, started, TRIED, started).starts == {AT: Started("charge", 1, 4_000)}
    assert fold(DISPATCHED, started, DONE_WITH_STATE).starts == {AT: Started("charge", 1, 2_000)}


def test_start_after_a_suspension_for_a_retry_makes_it_run() -> None:
    """semantics.md §7: its body goes on."""
    assert fold(DISPATCHED, TRIED, SUSPENDED, ev.ActivityStarted(AT, 1, "charge", 2)).summary.status == "running"


def test_nothing_located_makes_a_dead_or_ended_workflow_run() -> None:
    """semantics.md §7: nothing wakes a dead one but an operator; one that is over is over."""
    output = ev.OutputReceived(((9,),), 1, "other", "ship", b"1")
    assert fold(DISPATCHED, FAILED, output).summary.status == "dead"
    assert fold(DISPATCHED, COMPLETED, output).summary.status == "complete"
    assert fold(DISPATCHED, FAILED, output, ev.WorkflowWoken("operator")).summary.status == "running"
