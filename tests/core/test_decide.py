"""What a command makes of a workflow: a repeat changes nothing, a refusal records nothing (semantics §5–§7, design §5)."""

from __future__ import annotations

from typing import Any

import pytest

from gasoline_es.core import events as ev
from gasoline_es.core import state as state_module
from gasoline_es.core.commands import Dispatch, SendSignal, Wake
from gasoline_es.core.decide import AttemptFailed, activity_completed, activity_failed, decide
from gasoline_es.core.ids import new_workflow_id
from gasoline_es.core.state import WorkflowState
from gasoline_es.core.steps import ActivityPlan, ActivityStep
from gasoline_es.core.waits import WaitActivity
from gasoline_es.errors import GasolineError, KeyReused, WorkflowNotFound

ID = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"
DISPATCH = Dispatch(ID, "fulfil", b'{"n":1}', {"order": "42"}, unique=True, key="k", parent="p", ray_id="ray")
ERROR = ev.ErrorInfo("ValueError", "no")


def fold(*events: ev.EventData, time_us: int = 0) -> WorkflowState:
    state = WorkflowState(ID)
    for seq, data in enumerate(events, start=1):
        state.apply(seq, time_us, data, "ray", "w1")
    return state


def dispatched(given: bytes = b'{"n":1}') -> ev.WorkflowDispatched:
    return ev.WorkflowDispatched("fulfil", given, {}, key="k")


COMPLETED = ev.WorkflowCompleted(b"1", b"null")


# --- dispatch ---------------------------------------------------------------------------------------------------------


def test_dispatch_of_a_new_id_records_all_it_was_given() -> None:
    events, reply = decide(None, DISPATCH)
    assert events == [ev.WorkflowDispatched("fulfil", b'{"n":1}', {"order": "42"}, True, "k", "p")]
    assert (reply.id, reply.created, reply.error) == (ID, True, None)


@pytest.mark.parametrize("later", [(), (COMPLETED,), (ev.WorkflowFailed(ERROR),)])
def test_dispatch_repeated_gives_the_workflow_that_is_there_complete_or_not(later: tuple[ev.EventData, ...]) -> None:
    events, reply = decide(fold(dispatched(), *later), DISPATCH)
    assert events == []
    assert (reply.id, reply.created, reply.error) == (ID, False, None)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"n":1}', b'{ "n" : 1 }'),
        (b'{"a":1,"b":[2]}', b'{"b":[2],"a":1}'),
        (b"1e22", b"1E+22"),
        (b'"\xc3\xa9"', b'"\\u00e9"'),
        (b"18446744073709551616", b"18446744073709551616"),
        (b"[]", b" [ ] "),
    ],
)
def test_same_input_rendered_differently_is_the_same_key(one: bytes, other: bytes) -> None:
    for first, second in ((one, other), (other, one)):
        command = Dispatch(ID, "fulfil", second, key="k")
        assert decide(fold(dispatched(first)), command) == ([], decide(fold(dispatched(first)), command)[1])
        assert decide(fold(dispatched(first)), command)[1].error is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"1", b"2"),
        (b"1", b"true"),
        (b"0", b"false"),
        (b"1", b"1.0"),
        (b'{"n":1}', b'{"n":true}'),
        (b'{"n":1}', b'{"n":1,"m":null}'),
        (b"[1,2]", b"[2,1]"),
        (b"[[1]]", b"[[true]]"),
        (b"[1]", b"[1,1]"),
        (b"null", b"0"),
        (b'"1"', b"1"),
        (b"18446744073709551616", b"18446744073709551617"),
    ],
)
def test_another_input_under_the_same_key_is_refused_and_names_the_key(one: bytes, other: bytes) -> None:
    for first, second in ((one, other), (other, one)):
        events, reply = decide(fold(dispatched(first)), Dispatch(ID, "fulfil", second, key="k"))
        assert events == []
        assert isinstance(reply.error, KeyReused)
        assert (reply.error.workflow_id, reply.error.key) == (ID, "k")


# --- signals ----------------------------------------------------------------------------------------------------------


def signal(signal_id: str, *, by_caller: bool = True) -> SendSignal:
    return SendSignal(ID, signal_id, "paid", b"{}", by_caller, sender="somebody")


def test_signal_is_received_with_its_sender() -> None:
    events, reply = decide(fold(dispatched()), signal("s1"))
    assert events == [ev.SignalReceived("s1", "paid", b"{}", "somebody")]
    assert (reply.id, reply.error) == ("s1", None)


@pytest.mark.parametrize("later", [(), (COMPLETED,), (ev.SignalConsumed(((1,),), 1, ("s1",)),)])
def test_signal_repeated_is_answered_with_its_id_and_changes_nothing(later: tuple[ev.EventData, ...]) -> None:
    state = fold(dispatched(), ev.SignalReceived("s1", "paid", b"{}"), *later)
    events, reply = decide(state, signal("s1"))
    assert (events, reply.id, reply.error) == ([], "s1", None)


@pytest.mark.parametrize("state", [None, fold(dispatched(), COMPLETED)])
def test_signal_to_nobody_or_to_a_complete_workflow_is_refused(state: WorkflowState | None) -> None:
    events, reply = decide(state, signal("s1"))
    assert events == []
    assert isinstance(reply.error, WorkflowNotFound)
    assert reply.error.workflow_id == ID


@pytest.mark.parametrize(
    "state", [fold(dispatched(), ev.WorkflowFailed(ERROR)), fold(dispatched(), ev.WorkflowSuspended(60))]
)
def test_signal_waits_in_a_dead_or_sleeping_workflow(state: WorkflowState) -> None:
    assert len(decide(state, signal("s1"))[0]) == 1


def test_library_made_id_older_than_what_is_remembered_is_refused_never_guessed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_module, "SIGNALS_REMEMBERED", 2)
    monkeypatch.setattr(state_module, "SIGNALS_REMEMBERED_US", 1_000_000)
    state = fold(dispatched())
    ids = [new_workflow_id(second * 1_000_000, bytes(8)) for second in range(6)]
    for second in range(5):
        received = ev.SignalReceived(ids[second], "paid", b"{}")
        state.apply(state.summary.seq + 1, second * 1_000_000, received, "ray", "w1")
    assert list(state.known) == ids[3:5]
    for forgotten in ids[:3]:
        events, reply = decide(state, signal(forgotten, by_caller=False))
        assert events == []
        assert isinstance(reply.error, GasolineError)
        assert "older than what workflow" in reply.error.message
    assert decide(state, signal(ids[4], by_caller=False)) == ([], decide(state, signal(ids[4]))[1])
    assert len(decide(state, signal(ids[5], by_caller=False))[0]) == 1, "a newer one cannot have been forgotten"
    assert len(decide(state, signal("line 1"))[0]) == 1, "a caller's own id has no age: it is taken as new"


# --- wake -------------------------------------------------------------------------------------------------------------

WAKE = Wake(ID, "operator")


@pytest.mark.parametrize("last", [ev.WorkflowFailed(ERROR), ev.WorkflowSuspended(60)])
def test_wake_runs_a_dead_or_sleeping_workflow_again(last: ev.EventData) -> None:
    state = fold(dispatched(), last)
    events, reply = decide(state, WAKE)
    assert events == [ev.WorkflowWoken("operator")]
    assert (reply.id, reply.error) == (ID, None)
    state.apply(3, 0, events[0], "ray", "w1")
    assert decide(state, WAKE)[0] == [], "once is enough"


@pytest.mark.parametrize("events", [(), (COMPLETED,)])
def test_wake_of_a_running_or_complete_workflow_records_nothing(events: tuple[ev.EventData, ...]) -> None:
    recorded, reply = decide(fold(dispatched(), *events), WAKE)
    assert (recorded, reply.id, reply.error) == ([], ID, None)


def test_wake_of_nobody_is_not_found() -> None:
    events, reply = decide(None, WAKE)
    assert events == []
    assert isinstance(reply.error, WorkflowNotFound)


def test_wake_of_an_unreadable_workflow_is_refused_with_the_reason() -> None:
    events, reply = decide(fold(dispatched(), ev.Unreadable("gasoline.x.v9", "too new")), WAKE)
    assert events == []
    assert reply.error is not None
    assert "too new" in reply.error.message


# --- activities -------------------------------------------------------------------------------------------------------


NOBODY: Any = None


def waiting(attempt: int, max_attempts: int = 3) -> WaitActivity:
    plan = ActivityPlan(
        name="charge",
        definition=None,
        encode=lambda value, _: value,
        parameter="order",
        decode=lambda raw: raw,
        max_attempts=max_attempts,
        timeout_us=1,
        retry_on_timeout=True,
        backoff_base_us=500,
        backoff_doublings=1,
    )
    return WaitActivity(((4,),), ActivityStep(2, "activity", None, 0, plan, b"1"), NOBODY, attempt)


def test_success_is_recorded_with_its_attempt_and_the_new_state() -> None:
    done = activity_completed(waiting(2), 7, b"2", b'{"n":1}')
    assert done == ev.ActivityCompleted(((4,),), 2, "charge", 2, 7, b"1", b"2", b'{"n":1}')


@pytest.mark.parametrize(("attempt", "after_us"), [(1, 500), (2, 1_000)])
def test_failed_attempt_is_tried_again_after_its_backoff(attempt: int, after_us: int) -> None:
    failed = activity_failed(waiting(attempt), 7, AttemptFailed(ERROR), 100, 0.0)
    assert (failed.retry_us, failed.final, failed.exhausted) == (100 + after_us, False, False)
    assert (failed.location, failed.version, failed.attempt, failed.input, failed.error) == (
        ((4,),),
        2,
        attempt,
        b"1",
        ERROR,
    )


@pytest.mark.parametrize(
    ("attempt", "final", "exhausted"),
    [(3, False, True), (4, False, True), (1, True, False), (3, True, False)],
)
def test_last_attempt_or_final_error_is_not_tried_again(attempt: int, final: bool, exhausted: bool) -> None:
    failed = activity_failed(waiting(attempt), 7, AttemptFailed(ERROR, final), 100, 0.5)
    assert (failed.retry_us, failed.final, failed.exhausted) == (None, True, exhausted)


def test_commands_are_all_decided() -> None:
    unknown: Any = object()
    with pytest.raises(AssertionError):
        decide(None, unknown)
