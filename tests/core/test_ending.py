"""What cancel, silence and recover decide, and which failures a death is noted with (semantics.md §7, §12)."""

from __future__ import annotations

import pytest

from gasoline_es.core import events as ev
from gasoline_es.core.commands import (
    AwaitOutput,
    Cancel,
    Recover,
    Request,
    Revive,
    SendSignal,
    Silence,
    TellOutput,
    Wake,
    decode_request,
    encode_request,
)
from gasoline_es.core.decide import decide
from gasoline_es.core.ending import discarded, failures_in
from gasoline_es.core.error_info import error_info
from gasoline_es.core.history import TAKEN_CHARACTERS_MAX
from gasoline_es.core.location import Location
from gasoline_es.core.state import WorkflowState
from gasoline_es.errors import ActivityFailed, Cancelled, WorkflowNotFound, WorkflowSilenced

WORKFLOW_ID = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"
ERROR = ev.ErrorInfo("ConnectionError", "refused")
FIRST: Location = ((1,),)
SECOND: Location = ((2,),)


def test_error_of_a_group_names_the_first_few_in_it() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    group = ExceptionGroup("all failed", [ValueError("x" * 1000), Mute(), KeyError("a"), KeyError("b")])
    info = error_info(group)
    assert info.type == "ExceptionGroup"
    assert info.message == (
        f"all failed (4 sub-exceptions): ValueError: {'x' * 300}; "
        f"{Mute.__qualname__}: (its text cannot be shown: RuntimeError); KeyError: 'a'; and 1 more"
    )
    assert error_info(ExceptionGroup("one", [ValueError("a")])).message == "one (1 sub-exception): ValueError: a"


def failed(location: Location, *, final: bool = True) -> ev.ActivityFailed:
    return ev.ActivityFailed(location, 1, "charge", 1, 0, b"1", ERROR, None if final else 5, final)


def folded(*facts: ev.EventData) -> WorkflowState:
    state = WorkflowState(WORKFLOW_ID)
    for seq, data in enumerate((ev.WorkflowDispatched("fulfil", b"1", {}), *facts), start=1):
        state.apply(seq, seq, data, "ray", "w1")
    return state


Commanded = Cancel | Silence | Recover | Revive | Wake | SendSignal


def decided(state: WorkflowState | None, command: Commanded) -> list[str] | str:
    events, reply = decide(state, command)
    return [data.TYPE for data in events] if reply.error is None else str(reply.error)


cancel = Cancel(WORKFLOW_ID, "me")
cancel_now = Cancel(WORKFLOW_ID, "me", now=True)
silence = Silence(WORKFLOW_ID, "me")
wake = Wake(WORKFLOW_ID, "me")
recover_many = Revive(WORKFLOW_ID, "me", "refu", recover=True)
revive = Revive(WORKFLOW_ID, "me", "Error: refu")
recover = Recover(WORKFLOW_ID, "me")
signal = ev.SignalReceived("s1", "paid", b"{}")
suspended = ev.WorkflowSuspended(7)
asked = ev.WorkflowCancelRequested("me")
over = ev.WorkflowCancelled(b"null")
silenced = ev.WorkflowSilenced("me")
send = SendSignal(WORKFLOW_ID, "s2", "paid", b"{}")


@pytest.mark.parametrize(
    ("facts", "command", "events"),
    [
        ((), cancel, ["workflow.cancel_requested"]),
        ((suspended,), cancel, ["workflow.cancel_requested"]),
        ((asked,), cancel, []),
        ((asked, suspended), cancel, []),
        ((over,), cancel, []),
        ((over,), cancel_now, []),
        ((signal,), cancel_now, ["workflow.cancel_requested", "signal.discarded", "workflow.cancelled"]),
        ((asked, suspended), cancel_now, ["workflow.cancelled"]),
        ((ev.WorkflowFailed(ERROR),), cancel, ["workflow.cancel_requested", "workflow.cancelled"]),
        ((asked, ev.WorkflowFailed(ERROR)), cancel, ["workflow.cancelled"]),
        ((failed(FIRST), ev.WorkflowFailed(ERROR, failures=(FIRST,))), recover, ["workflow.recovered"]),
        ((ev.WorkflowFailed(ERROR),), revive, ["workflow.woken"]),
        ((ev.WorkflowFailed(ERROR),), Revive(WORKFLOW_ID, "me"), ["workflow.woken"]),
        ((ev.WorkflowFailed(ERROR),), recover_many, []),
        ((failed(FIRST), ev.WorkflowFailed(ERROR, failures=(FIRST,))), recover_many, ["workflow.recovered"]),
        ((failed(FIRST), ev.WorkflowFailed(ev.ErrorInfo("E", "x"), failures=(FIRST,))), recover_many, []),
        (
            (failed(FIRST), ev.RollbackStarted(SECOND, 1, ERROR), ev.WorkflowFailed(ERROR, failures=(FIRST,))),
            recover_many,
            [],
        ),
        ((suspended,), recover_many, []),
        ((ev.WorkflowFailed(ev.ErrorInfo("KeyError", "denied")),), revive, []),
        ((ev.WorkflowFailed(ERROR), ev.WorkflowWoken("you")), revive, []),
        ((ev.WorkflowFailed(ERROR), ev.WorkflowWoken("you"), suspended), revive, []),
        ((ev.WorkflowFailed(ERROR), silenced), revive, []),
        ((ev.Unreadable("step.new", "v9"),), revive, []),
        ((), silence, ["workflow.silenced"]),
        ((suspended,), silence, ["workflow.silenced"]),
        ((signal,), silence, ["signal.discarded", "workflow.silenced"]),
        ((ev.WorkflowFailed(ERROR),), silence, ["workflow.silenced"]),
        ((silenced,), silence, []),
    ],
)
def test_command_decides_what_is_to_be_recorded(
    facts: tuple[ev.EventData, ...], command: Commanded, events: list[str]
) -> None:
    assert decided(folded(*facts), command) == events


@pytest.mark.parametrize(
    ("facts", "command", "told"),
    [
        ((ev.WorkflowCompleted(b"1", b"null"),), cancel, "is complete: there is nothing left to cancel"),
        ((ev.Unreadable("step.new", "v9"),), cancel, "cannot be cancelled"),
        ((), recover, "is running. Only a dead workflow can be recovered"),
        ((ev.Unreadable("step.new", "v9"),), recover, "is unreadable"),
        ((ev.WorkflowCompleted(b"1", b"null"),), silence, "is complete: it does not run any more"),
        ((over,), silence, "is cancelled: it does not run any more"),
        ((asked,), silence, "is being cancelled, so it cannot be silenced"),
        ((asked, ev.WorkflowFailed(ERROR)), silence, "is being cancelled, so it cannot be silenced"),
        ((ev.Unreadable("step.new", "v9"),), silence, "cannot be silenced"),
        ((silenced,), cancel, "was silenced, so it is over already"),
        ((silenced,), cancel_now, "was silenced, so it is over already"),
        ((ev.WorkflowFailed(ERROR), silenced), recover, "was silenced, so it will not run again"),
        ((silenced,), wake, "was silenced, so it will not run again"),
        ((silenced,), send, f"workflow {WORKFLOW_ID} not found: it is silenced"),
        ((ev.WorkflowFailed(ERROR),), recover, "did not die of an activity's failure, but of ConnectionError: refused"),
        (
            (failed(FIRST), ev.RollbackStarted(SECOND, 1, ERROR), ev.WorkflowFailed(ERROR, failures=(FIRST,))),
            recover,
            "failed at {1}, and was rolled back since",
        ),
    ],
)
def test_command_is_refused_with_the_reason(facts: tuple[ev.EventData, ...], command: Commanded, told: str) -> None:
    assert told in decided(folded(*facts), command)


def test_failed_handler_of_a_rollback_can_be_recovered() -> None:
    """semantics.md §4, Rollback: its handlers stand below its location."""
    handler: Location = ((2,), (1,))
    rolled_back = (failed(FIRST), ev.RollbackStarted(SECOND, 1, ERROR), failed(handler))
    assert decided(folded(*rolled_back, ev.WorkflowFailed(ERROR, failures=(handler,))), recover) == [
        "workflow.recovered"
    ]


def test_nobody_is_cancelled_or_recovered_where_there_is_none() -> None:
    for command in (cancel, silence, recover, revive):
        assert isinstance(decide(None, command)[1].error, WorkflowNotFound)


def test_silenced_workflow_keeps_the_error_that_it_died_of() -> None:
    """semantics.md §7: what it is silenced for can still be seen."""
    summary = folded(ev.WorkflowFailed(ERROR), silenced).summary
    assert (summary.status, summary.error, summary.incomplete) == ("silenced", ERROR, False)


def test_who_waits_for_a_silenced_workflow_is_told_so_at_once_and_later() -> None:
    """semantics.md §4: as an error that is recorded."""
    events, reply = decide(folded(silenced), AwaitOutput(WORKFLOW_ID, WORKFLOW_ID, "{1}", 1))
    assert events == []
    assert isinstance(reply.error, WorkflowSilenced)
    tell = TellOutput(WORKFLOW_ID, "{1}", 1, WORKFLOW_ID, "pack", silenced=True)
    assert decode_request(encode_request(Request("r", "c", tell))).command == tell
    (received,), _ = decide(folded(), tell)
    assert isinstance(received, ev.OutputReceived)
    assert received.error == ev.ErrorInfo("WorkflowSilenced", reply.error.message.replace("'fulfil'", "'pack'"))


def test_a_wake_forgets_the_failures_that_were_noted() -> None:
    """semantics.md §7: the next death notes its own."""
    dead = (failed(FIRST), ev.WorkflowFailed(ERROR, failures=(FIRST,)))
    assert folded(*dead, ev.WorkflowWoken("me")).failures == ()
    assert "did not die of" in decided(folded(*dead, ev.WorkflowWoken("me"), ev.WorkflowFailed(ERROR)), recover)


def error_at(location: object) -> ActivityFailed:
    return ActivityFailed("charge failed", location=location)


def test_failures_are_those_recorded_ones_that_an_error_is_or_holds() -> None:
    """semantics.md §7: of a race that nobody won, all of them."""
    history = folded(failed(FIRST), failed(SECOND), failed(((3,),), final=False)).history
    assert failures_in(error_at("{1}"), history) == (FIRST,)
    nested = ExceptionGroup("nobody won", [error_at("{2}"), ValueError(), ExceptionGroup("", [error_at("{1}")])])
    assert failures_in(nested, history) == (FIRST, SECOND)
    assert failures_in(ValueError(), history) == ()


@pytest.mark.parametrize("location", ["{3}", "{4}", "nowhere", "", None, 7])
def test_error_that_somebody_made_up_is_no_recorded_failure(location: object) -> None:
    """Anybody can raise ActivityFailed."""
    history = folded(failed(FIRST), failed(((3,),), final=False)).history
    assert failures_in(error_at(location), history) == ()
    assert failures_in(ActivityFailed("without a place"), history) == ()


def test_signals_left_are_named_in_as_many_events_as_fit() -> None:
    ids = [f"{number:0200}" for number in range(TAKEN_CHARACTERS_MAX // 100)]
    events = list(discarded(ids))
    assert len(events) == 2
    assert [one for event in events for one in event.signal_ids] == ids


@pytest.mark.parametrize(
    "command",
    [cancel, cancel_now, silence, recover, revive, TellOutput(WORKFLOW_ID, "{1}", 1, WORKFLOW_ID, "pack"),
     TellOutput(WORKFLOW_ID, "{1}", 1, WORKFLOW_ID, "pack", b"null")],
)  # fmt: skip
def test_command_comes_through_an_inbox_as_it_was(command: Cancel | Silence | Recover | Revive | TellOutput) -> None:
    """design §5: a command is data; an output of null is another thing than none."""
    request = Request("r", "c", command)
    assert decode_request(encode_request(request)) == request


def test_revival_says_whether_it_woke_anything() -> None:
    """semantics.md §7: beside others who wake and end workflows it counts what it did itself."""
    dead = folded(ev.WorkflowFailed(ERROR))
    assert decide(dead, revive)[1].created
    assert not decide(folded(), revive)[1].created
    raw = encode_request(Request("r", "c", revive))
    with pytest.raises(ValueError, match="not a request"):
        decode_request(raw.replace(b'"Error: refu"', b"3"))


@pytest.mark.parametrize("broken", [b'"now":1', b'"now":"yes"', b'"by":3'])
def test_command_that_no_client_sends_is_refused(broken: bytes) -> None:
    known = {b'"now"': b'"now":true', b'"by"': b'"by":"me"'}
    raw = encode_request(Request("r", "c", cancel_now))
    key = broken.partition(b":")[0]
    assert known[key] in raw
    with pytest.raises(ValueError, match="not a request"):
        decode_request(raw.replace(known[key], broken))


def test_cancelled_cannot_be_made_by_users() -> None:
    """style.md §8."""
    with pytest.raises(TypeError, match=r"call `handle\.cancel\(\)`"):
        Cancelled()
