"""Which workflows may be pruned, and what stays of them (semantics.md §10): the decision alone."""

from __future__ import annotations

import pytest

from gasoline_es.core import events as ev
from gasoline_es.core.commands import Prune, Request, decode_request, encode_request
from gasoline_es.core.pruning import Ends, left, prune
from gasoline_es.core.state import Status, Summary, WorkflowState
from gasoline_es.errors import GasolineError

ID = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"
ERROR = ev.ErrorInfo("ValueError", "x" * 5_000, "a traceback", b"{}")


def over(rule: ev.PruneRule = "all", status: Status = "complete") -> tuple[Summary, Ends]:
    """A workflow that ended at 100 with its event 5."""
    summary = Summary(ID)
    summary.name, summary.status, summary.seq, summary.completed_us, summary.prune = "order", status, 5, 100, rule
    summary.tags = {"a": "1"}
    end = ev.WorkflowCompleted(b"1", b"2", rule) if status == "complete" else ev.WorkflowCancelled(b"2", ERROR, rule)
    first: ev.Fact = (ID, 1, 0, ev.WorkflowDispatched("order", b"null", {}), ID, "w")
    return summary, (first, (ID, 5, 100, end, ID, "w"))


@pytest.mark.parametrize(
    ("rule", "by_rule", "variant"),
    [
        ("all", True, "all"),
        ("all", False, "history"),
        ("history", True, "history"),
        ("history", False, "history"),
        ("none", True, None),
        ("none", False, "history"),
    ],
)
def test_definition_says_what_goes_and_a_hand_takes_the_history_alone(
    rule: ev.PruneRule, by_rule: bool, variant: str | None
) -> None:
    """semantics.md §10."""
    events, reply = prune(*over(rule), Prune(ID, "me", 101, by_rule))
    assert (reply.error, reply.created) == (None, variant is not None)
    pruned = events[0] if events else None
    assert (None if pruned is None else (isinstance(pruned, ev.WorkflowPruned) and pruned.variant)) == variant


def test_age_is_over_once_the_end_lies_before_it() -> None:
    """semantics.md §10: half-open."""
    assert prune(*over(), Prune(ID, "me", 100, by_rule=True))[0] == []
    assert len(prune(*over(), Prune(ID, "me", 101, by_rule=True))[0]) == 1


def test_error_that_stays_is_cut_so_that_the_event_fits() -> None:
    """design §6: the whole of it is in the event of the end."""
    (pruned,), _ = prune(*over("history", "cancelled"), Prune(ID, "me", 101, by_rule=True, reason="why"))
    assert isinstance(pruned, ev.WorkflowPruned)
    assert (pruned.keeps, pruned.reason) == ((1, 5), "why")
    assert pruned.remains is not None
    error = pruned.remains.error
    assert error is not None
    assert (error.type, error.traceback, error.details) == ("ValueError", "", None)
    assert len(error.message) <= 2_000


@pytest.mark.parametrize("status", ["running", "sleeping", "dead", "silenced", "unreadable"])
def test_what_is_not_over_for_good_is_never_pruned(status: Status) -> None:
    """semantics.md §10."""
    summary, ends = over()
    summary.status = status
    assert prune(summary, ends, Prune(ID, "me", 1_000, by_rule=False))[0] == []


def test_history_that_does_not_end_with_its_end_is_refused() -> None:
    """Nothing is given up of what makes no sense."""
    summary, ends = over()
    summary.seq = 6
    events, reply = prune(summary, ends, Prune(ID, "me", 101, by_rule=True))
    assert events == []
    assert isinstance(reply.error, GasolineError)


def test_left_are_the_events_that_nothing_has_pruned() -> None:
    """design §8: of the newest of an id alone."""
    facts: list[ev.Fact] = [
        (ID, 1, 0, ev.WorkflowDispatched("a", b"1", {}), ID, "w"),
        (ID, 2, 1, ev.WorkflowCompleted(b"1", b"1"), ID, "w"),
        (ID, 3, 2, ev.WorkflowPruned("me"), ID, "w"),
        (ID, 4, 3, ev.WorkflowDispatched("a", b"2", {}), ID, "w"),
        (ID, 5, 4, ev.WorkflowWoken("me"), ID, "w"),
        (ID, 6, 5, ev.WorkflowCompleted(b"2", b"2"), ID, "w"),
        (ID, 7, 6, ev.WorkflowPruned("me", (4, 6), ev.Remains("complete", 5, {})), ID, "w"),
    ]
    assert left(facts[:2], lambda fact: fact) == facts[:2]
    assert left(facts[:3], lambda fact: fact) == []
    assert left(facts[:5], lambda fact: fact) == facts[3:5]
    assert left(facts, lambda fact: fact) == [facts[3], facts[5], facts[6]]
    state = WorkflowState(ID)
    for _, seq, time_us, data, ray_id, worker in facts:
        state.apply(seq, time_us, data, ray_id, worker)
    assert (state.summary.status, state.summary.pruned, state.output) == ("complete", "history", b"2")
    assert state.dispatched == facts[3][3]


def test_command_comes_back_from_an_inbox() -> None:
    """design §5: also decided by another process."""
    for command in (Prune(ID, "me", 5, by_rule=True), Prune(ID, "me", 5, by_rule=False, reason="why")):
        assert decode_request(encode_request(Request("r", "c", command))).command == command
    bad = encode_request(Request("r", "c", Prune(ID, "me", "soon", by_rule=True)))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="before 'soon'"):
        decode_request(bad)
