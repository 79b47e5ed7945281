"""What holds no more when a workflow starts over, told from its events (semantics.md §4), and which generation is where."""

from __future__ import annotations

import pytest

from gasoline_es.core import events as ev
from gasoline_es.core.folding import fold_facts
from gasoline_es.core.generations import Generation, Superseded
from gasoline_es.core.location import Location, parse_location
from gasoline_es.core.starting_over import Plan, RerunInfo, copied, fork, plan
from gasoline_es.errors import RerunRefused

ID = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"
OTHER = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a30"
ERROR = ev.ErrorInfo("ValueError", "no")


def at(text: str) -> Location:
    return parse_location(text)


def done(text: str, state: bytes | None = None) -> ev.ActivityCompleted:
    return ev.ActivityCompleted(at(text), 1, "charge", 1, 0, b"1", b"2", state)


def failed(text: str) -> ev.ActivityFailed:
    return ev.ActivityFailed(at(text), 1, "charge", 1, 0, b"1", ERROR, final=True)


def opened(text: str, kind: ev.BranchKind = "closure") -> ev.BranchOpened:
    return ev.BranchOpened(at(text), 1, kind)


def placed(text: str) -> ev.StepPlaced:
    return ev.StepPlaced(at(text), 1, "activity", "charge")


def committed(text: str, iteration: int = 0, output: bytes | None = None) -> ev.LoopCommitted:
    return ev.LoopCommitted(at(text), 1, iteration, b"%d" % iteration, output)


def received(signal_id: str) -> ev.SignalReceived:
    return ev.SignalReceived(signal_id, "paid", b"{}")


def history(*events: ev.EventData) -> list[ev.Fact]:
    """A workflow's events, from the second on."""
    everything = [ev.WorkflowDispatched("fulfil", b"null", {"order": "42"}), *events]
    return [(ID, seq, seq * 1_000, data, "ray", "w1") for seq, data in enumerate(everything, start=1)]


def gone(start: str, *events: ev.EventData) -> list[int]:
    """The numbers of the events that hold no more; the first of ``events`` is number 2."""
    return [seq for first, last in plan(history(*events), at(start)).spans for seq in range(first, last + 1)]


COMPLETED = ev.WorkflowCompleted(b"1", b"null")
DIED = ev.WorkflowFailed(ERROR)
WOKEN = ev.WorkflowWoken("operator")
SUSPENDED = ev.WorkflowSuspended(60)


# --- what goes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("story", "start", "events", "superseded"),
    [
        ("its end goes", "{2}", [done("{1}"), done("{2}"), COMPLETED], [3, 4]),
        ("what came before stays", "{2}", [DIED, WOKEN, done("{1}"), done("{2}"), DIED], [5, 6]),
        ("waking is no matter", "{2}", [done("{1}"), failed("{2}"), DIED, WOKEN, SUSPENDED], [3, 4, 6]),
        ("attempts are one step", "{1}", [placed("{1}"), failed("{1}"), done("{1}")], [2, 3, 4]),
        ("signals that came stay", "{1}", [received("a"), done("{1}"), received("b"), done("{2}")], [3, 5]),
        ("waiters stay", "{1}", [done("{1}"), ev.WaiterAdded(OTHER, at("{7}"), 1)], [2]),
        ("an insertion above", "{1.1}", [done("{1}"), done("{2}"), done("{1.1}")], [3, 4]),
        ("behind the branch", "{1, 2}", [opened("{1}"), done("{1, 1}"), done("{1, 2}"), done("{2}")], [4, 5]),
        ("the whole branch", "{1}", [opened("{1}"), done("{1, 1}"), done("{2}")], [2, 3, 4]),
        ("all of it", "{}", [received("a"), done("{1}"), COMPLETED], [3, 4]),
        (
            "tags go with the result that brought them",
            "{2}",
            [ev.WorkflowTagsUpdated({"a": "1"}), done("{1}"), ev.WorkflowTagsUpdated({"a": "2"}), done("{2}")],
            [4, 5],
        ),
        (
            "commits after the step",
            "{1, 2, 1}",
            [committed("{1}"), done("{1, 1, 1}"), committed("{1}", 1), done("{1, 2, 1}"), committed("{1}", 2, b"1")],
            [5, 6],
        ),
        (
            "iterations before it come back",
            "{1, 2, 1}",
            [committed("{1}"), done("{1, 1, 1}"), done("{1, 2, 1}"), committed("{1}", 2), done("{1, 3, 1}")],
            [4, 5, 6],
        ),
        (
            "later iterations, also where newer code was put above them",
            "{1, 1, 0.1}",
            [committed("{1}"), done("{1, 1, 1}"), done("{1, 2, 1}"), done("{1, 1, 0.1}")],
            [3, 4, 5],
        ),
        (
            "a closure that newer code put above",
            "{1.1, 1}",
            [done("{1}"), done("{2}"), opened("{1.1}"), done("{1.1, 1}")],
            [3, 5],
        ),
        (
            "what follows a closure to which newer code added a step",
            "{1, 2}",
            [opened("{1}"), done("{1, 1}"), opened("{2}"), done("{2, 1}"), done("{1, 2}")],
            [4, 5, 6],
        ),
        (
            "what follows an empty closure, if it is no branch",
            "{1, 1}",
            [opened("{1}"), done("{2}"), done("{1, 1}")],
            [3, 4],
        ),
    ],
)
def test_superseded_is(story: str, start: str, events: list[ev.EventData], superseded: list[int]) -> None:
    assert gone(start, *events) == superseded, story


@pytest.mark.parametrize(
    ("story", "start", "events", "beside", "superseded"),
    [
        (
            "closures joined",
            "{1, 1}",
            [opened("{1}"), opened("{2}"), done("{2, 1}"), done("{1, 1}"), done("{2, 2}"), done("{3}")],
            ["{2}"],
            [5, 7],
        ),
        (
            "an activity and a sleep joined with a closure",
            "{1, 1}",
            [opened("{1}"), placed("{2}"), ev.SleepStarted(at("{3}"), 1, 60), done("{1, 1}"), done("{2}")],
            ["{2}", "{3}"],
            [5],
        ),
        (
            "competitors of a race, before and behind",
            "{1, 2, 1}",
            [opened("{1}", "race"), done("{1, 3, 1}"), done("{1, 2, 1}"), done("{1, 1, 1}"),
             ev.RaceDecided(at("{1}"), 0, b"1")],
            ["{1, 3}"],
            [4, 6],
        ),
        (
            "a race whose competitors were placed with it, joined with another step",
            "{1, 2, 1}",
            [opened("{1}", "race"), ev.SleepStarted(at("{1, 1, 1}"), 1, 60), placed("{2}"), done("{1, 2, 1}"),
             ev.RaceDecided(at("{1}"), 1, b"1"), done("{2}")],
            ["{2}"],
            [5, 6],
        ),
        (
            "what follows a race",
            "{1, 2, 1}",
            [opened("{1}", "race"), done("{1, 2, 1}"), ev.RaceDecided(at("{1}"), 1, b"1"), opened("{2}"), done("{2, 1}")],
            [],
            [3, 4, 5, 6],
        ),
        (
            "loops joined",
            "{1, 1, 1}",
            [committed("{1}"), committed("{2}"), done("{1, 1, 1}"), done("{2, 1, 1}"), committed("{2}", 1, b"1")],
            ["{2}"],
            [4],
        ),
        (
            "a loop that follows a loop",
            "{1, 1, 1}",
            [committed("{1}"), done("{1, 1, 1}"), committed("{1}", 1, b"1"), committed("{2}"), done("{2, 1, 1}")],
            [],
            [3, 4, 5, 6],
        ),
        (
            "a join within a join",
            "{1, 1, 1}",
            [opened("{1}"), opened("{2}"), opened("{1, 1}"), opened("{1, 2}"), done("{1, 1, 1}"), done("{1, 2, 1}"),
             done("{2, 1}"), done("{1, 3}"), done("{3}")],
            ["{1, 2}", "{2}"],
            [6, 9, 10],
        ),
    ],
)  # fmt: skip
def test_what_stays_beside_the_step(
    story: str, start: str, events: list[ev.EventData], beside: list[str], superseded: list[int]
) -> None:
    planned = plan(history(*events), at(start))
    assert [at(text) for text in beside] == list(planned.beside), story
    assert gone(start, *events) == superseded, story


def test_what_a_cancel_led_to_goes_wherever_it_was_recorded() -> None:
    """Or the branch beside the step would be cancelled, and its clean-up stand where its next step belongs."""
    events = [
        opened("{1}"),
        placed("{2}"),
        done("{1, 1}"),
        ev.WorkflowCancelRequested("operator"),
        ev.StepInterrupted(at("{2}"), 1, "activity", "charge"),
        done("{3}"),
        ev.WorkflowCancelled(b"null"),
    ]
    assert gone("{1, 1}", *events) == [4, 5, 6, 7, 8]
    assert gone("{3}", *events) == [7, 8], "from a step of its clean-up it cleans up again"


def test_a_recovery_goes_with_the_last_of_the_failures_it_cleared() -> None:
    """What it opened and stays is open: else a step beside would fail again for good, with its attempt under way."""

    def recovered(*places: str) -> ev.WorkflowRecovered:
        return ev.WorkflowRecovered("operator", tuple(map(at, places)))

    events = [opened("{1}"), placed("{2}"), failed("{1, 1}"), failed("{2}"), DIED]
    assert gone("{1, 1}", *events, recovered("{2}"), done("{2}")) == [4, 6]
    assert gone("{1, 1}", *events, recovered("{1, 1}"), done("{1, 1}")) == [4, 6, 7, 8]
    assert gone("{1, 1}", *events, recovered("{1, 1}", "{2}")) == [4, 6]


def test_signals_and_tags_of_before_are_told() -> None:
    def taken(text: str, *ids: str) -> ev.SignalConsumed:
        return ev.SignalConsumed(at(text), 1, ids)

    events = [
        received("a"), received("b"), received("c"), received("d"), taken("{1}", "a"),
        ev.WorkflowTagsUpdated({"n": "1"}), done("{2}"), taken("{3}", "c"), taken("{4}", "b"),
        ev.WorkflowTagsUpdated({"n": "2"}), done("{5}"), ev.SignalDiscarded(("d",)), COMPLETED,
    ]  # fmt: skip
    planned = plan(history(*events), at("{3}"))
    assert planned.returned == (("b", "paid"), ("c", "paid"), ("d", "paid")), "in the order of their receipt"
    assert planned.tags == {"n": "1"}
    assert plan(history(*events), at("{1}")).tags == {"order": "42"}
    assert planned.info(ID) == RerunInfo(ID, "{3}", 1, 6, ("b", "c", "d"), ())
    assert RerunInfo.read(planned.info(ID).json()) == planned.info(ID)


def test_the_next_time_counts_only_what_holds() -> None:
    facts = history(done("{1}"), done("{2}"), COMPLETED)
    first = plan(facts, at("{2}")).fact("operator", "one")
    facts = history(done("{1}"), done("{2}"), COMPLETED, first, done("{2}"), COMPLETED)
    again = plan(facts, at("{1}"))
    assert (again.generation, again.spans) == (2, ((2, 2), (6, 7))), "each event is superseded once"
    superseded = Superseded([(1, first.superseded), (2, again.spans)])
    assert [superseded.by(seq) for seq in range(1, 9)] == [None, 2, 1, 1, None, 2, 2, None]
    assert not Superseded([])


def test_a_place_that_somebody_made_up_is_cut_in_the_message() -> None:
    with pytest.raises(RerunRefused) as refused:
        plan(history(done("{1}")), ((1,),) * 100_000)
    assert len(refused.value.message) < 400


# --- the fold ---------------------------------------------------------------------------------------------------------


def test_the_fold_is_that_of_what_holds() -> None:
    facts = history(
        received("a"), done("{1}", b'{"n":1}'), ev.SignalConsumed(at("{2}"), 1, ("a",)), done("{3}", b'{"n":2}')
    )
    planned = plan(facts, at("{2}"))
    facts.append((ID, 6, 6_000, planned.fact("operator", "one"), "ray", "w1"))
    facts.append((ID, 7, 7_000, WOKEN, "ray", "w1"))
    state = fold_facts(ID, facts.copy)
    assert (state.document, list(state.queue), state.summary.seq, state.summary.status) == (
        b'{"n":1}',
        ["a"],
        7,
        "running",
    )
    assert state.history.at(at("{2}")) is None
    del facts[3]
    broken = fold_facts(ID, facts.copy).summary
    assert broken.status == "unreadable", "an event that is missing is missed, superseded or not"


def test_a_gap_among_what_was_superseded_sets_it_aside() -> None:
    facts = history(done("{1}"), done("{2}"), done("{3}"))
    rerun = plan(facts, at("{1}")).fact("operator", "one")
    del facts[2]
    facts.append((ID, 5, 5_000, rerun, "ray", "w1"))
    summary = fold_facts(ID, facts.copy).summary
    assert summary.status == "unreadable"
    assert summary.error is not None
    assert "event 4 follows event 2" in summary.error.message


# --- generations ------------------------------------------------------------------------------------------------------


def test_places_of_a_generation() -> None:
    generation = Generation(1, at("{2, 5, 3}"), (at("{3}"), at("{2, 5, 4.1}")), (1,), ID, "one")
    for inside in ("{2, 5, 3}", "{2, 5, 3, 1}", "{2, 5, 4}", "{2, 6}", "{2, 6, 1}", "{4}", "{2.1}", "{2, 5, 3.1}"):
        assert generation.holds(at(inside)), inside
    for outside in ("{1}", "{2}", "{2, 5}", "{2, 4, 9}", "{2, 5, 2}", "{2, 5, 2.9}", "{3}", "{3, 1}", "{2, 5, 4.1}"):
        assert not generation.holds(at(outside)), outside


def test_draws_of_a_generation_begin_right_behind_the_step_before() -> None:
    """A draw stands behind a place: that of a branch, once it is over, is what goes on after it."""
    generation = Generation(1, at("{2, 5, 3}"), (at("{2, 5, 4.1}"),), (1,), ID, "one")
    for inside in ("{2, 5, 1}", "{2, 5, 3}", "{2, 5}", "{2}", "{4}", "{2, 5, 4}"):
        assert generation.holds_draw(at(inside)), inside
    for outside in ("{}", "{1}", "{2, 5, 0}", "{2, 4}", "{2, 4, 9}", "{2, 5, 4.1}", "{2, 5, 1, 1}"):
        assert not generation.holds_draw(at(outside)), outside
    for start, here in (("{1}", "{}"), ("{}", "{}"), ("{2, 5, 1}", "{2, 5, 0}")):
        assert Generation(1, at(start), (), None, ID, "one").holds_draw(at(here)), "nothing stands before it"


# --- forks ------------------------------------------------------------------------------------------------------------


def copy_of(planned: Plan) -> list[ev.EventData]:
    return [data for _, data in copied(planned, ID, "one")]


def test_a_fork_begins_with_what_holds_but_waiters_and_what_was_on_its_way() -> None:
    facts = history(
        received("a"),
        ev.WorkflowTagsUpdated({"n": "1"}),
        done("{1}"),
        SUSPENDED,
        WOKEN,
        ev.WaiterAdded(OTHER, at("{7}"), 1),
        ev.ActivityStarted(at("{2}"), 1, "charge", 1),
        done("{2}"),
    )
    planned = plan(facts, at("{2}"))
    assert [(time_us, data.TYPE) for time_us, data in copied(planned, ID, "one")] == [
        (1_000, "workflow.dispatched"),
        (2_000, "signal.received"),
        (3_000, "workflow.tags_updated"),
        (4_000, "activity.completed"),
    ]
    first = copy_of(planned)[0]
    assert first == ev.WorkflowDispatched(
        "fulfil", b"null", {"order": "42"}, request_id="one", forked_from=ID, seed=ID
    )  # fmt: skip
    last = fork(planned, "operator", "one")
    assert (last.superseded, last.returned, last.tags, last.start) == ((), (), {"n": "1"}, at("{2}"))


def test_a_fork_of_a_fork_keeps_whose_draws_they_are() -> None:
    dispatched = ev.WorkflowDispatched("fulfil", b"null", {}, forked_from=OTHER, seed=OTHER)
    rerun = ev.WorkflowRerun("operator", at("{2}"), 1, ((3, 3),), (), {}, (("a", "paid"),))
    events = [dispatched, done("{1}"), done("{2}"), rerun, done("{2}"), done("{3}")]
    facts: list[ev.Fact] = [(ID, seq, 0, data, "ray", "w1") for seq, data in enumerate(events, start=1)]
    copy = copy_of(plan(facts, at("{3}")))
    assert isinstance(copy[0], ev.WorkflowDispatched)
    assert (copy[0].forked_from, copy[0].seed) == (ID, OTHER)
    assert copy[2] == ev.WorkflowRerun("operator", at("{2}"), 1, (), (), {}, (), seed=ID)


def test_handlers_of_a_loop_find_their_events_by_the_new_numbers() -> None:
    handler = ev.RollbackHandler("refund", b"1", 5)
    commit = ev.LoopCommitted(at("{1}"), 1, 1, b"null", handlers=(handler,))
    facts = history(committed("{1}"), SUSPENDED, WOKEN, done("{1, 1, 1}"), commit, done("{1, 2, 1}"))
    copy = copy_of(plan(facts, at("{1, 2, 1}")))
    assert isinstance(copy[-1], ev.LoopCommitted)
    assert copy[-1].handlers[0].seq == 3, "the third event of the copy is the fifth of the original"
