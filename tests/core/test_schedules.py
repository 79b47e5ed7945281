"""What is decided about a schedule, from the fold of its events (``core.schedules``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasoline_es.core import schedule_events as se
from gasoline_es.core.commands import (
    ChangeSchedule,
    Request,
    ScheduleVerb,
    SetSchedule,
    decode_request,
    encode_request,
)
from gasoline_es.core.durations import MAX_US, MICROSECONDS, MIN_US, parse_time
from gasoline_es.core.ids import new_workflow_id, slot_of
from gasoline_es.core.schedule_events import Missed, Overlap, ScheduleData, ScheduleEvent
from gasoline_es.core.schedules import (
    GRACE_US,
    RUNS_KEPT,
    Schedule,
    change_schedule,
    due_now,
    fold_schedule,
    schedule_id,
    scheduled_run_id,
    set_schedule,
)
from gasoline_es.core.timetable import Cron, Every
from gasoline_es.errors import GasolineError, ScheduleExists, ScheduleNotFound

ID = schedule_id("default", "nightly")
MINUTE = 60 * MICROSECONDS
NOW = parse_time("2026-01-01T00:00:00Z")


def setting(**changes: Any) -> SetSchedule:
    given = SetSchedule(
        ID, "nightly", "report", b'{"of":"sales"}', {"team": "a"}, None, "UTC", MINUTE, "latest", "allow", "me"
    )
    return replace(given, **changes)


def folded(*facts: ScheduleData, now_us: int = NOW) -> Schedule:
    schedule: Schedule | None = None
    for seq, data in enumerate(facts, 1):
        schedule = fold_schedule(schedule, ID, seq, now_us, data)
    assert schedule is not None
    return schedule


def made(now_us: int = NOW, **changes: Any) -> Schedule:
    events, reply = set_schedule(None, setting(**changes), now_us)
    assert (reply.id, reply.created, reply.error) == (ID, True, None)
    return folded(*events, now_us=now_us)


def lived(schedule: Schedule, now_us: int, *, busy: bool = False) -> tuple[Schedule, list[ScheduleData]]:
    """Decide all that is due."""
    facts: list[ScheduleData] = []
    while (due := due_now(schedule, now_us, busy=busy)) is not None:
        for data in (due.skipped, due.fired):
            if data is not None:
                facts.append(data)
                schedule = fold_schedule(schedule, ID, schedule.seq + 1, now_us, data)
        assert len(facts) < 10_000
    return schedule, facts


def started(facts: list[ScheduleData]) -> list[int]:
    """For which minutes after NOW workflows were started."""
    return [
        (data.due_us - NOW) // MINUTE
        for data in facts
        if isinstance(data, se.ScheduleFired) and data.due_us is not None
    ]


# --- making and changing ----------------------------------------------------------------------------------------------


def test_a_schedule_that_is_made_is_due_one_interval_later() -> None:
    schedule = made()
    assert (schedule.status, schedule.due_us) == ("active", NOW + MINUTE)
    assert due_now(schedule, NOW + MINUTE - 1, busy=False) is None


def test_the_same_call_again_changes_nothing_however_its_input_is_spelled() -> None:
    schedule = made()
    for again in (setting(), setting(input=b' {"of" : "sales"}'), setting(replace=True, by="somebody else")):
        events, reply = set_schedule(schedule, again, NOW + 5 * MINUTE)
        assert (events, reply.id, reply.created, reply.error) == ([], ID, False, None)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"workflow": "other"}, "workflow"),
        ({"interval_us": 2 * MINUTE}, "timetable"),
        ({"cron": "0 3 * * *", "interval_us": None}, "timetable"),
        ({"input": b'{"of":"costs"}'}, "input"),
        ({"tags": {}}, "tags"),
        ({"missed": "all"}, "missed"),
        ({"overlap": "skip"}, "overlap"),
    ],
)
def test_another_definition_is_refused_unless_it_is_to_replace(changed: dict[str, Any], named: str) -> None:
    schedule = made()
    events, reply = set_schedule(schedule, setting(**changed), NOW)
    assert events == []
    assert isinstance(reply.error, ScheduleExists)
    assert named in reply.error.message
    assert "name='nightly'" in reply.error.message
    (data,), reply = set_schedule(schedule, setting(**changed, replace=True), NOW)
    assert isinstance(data, se.ScheduleSet)
    assert (reply.error, reply.created) == (None, False)


def test_a_change_keeps_the_pause_the_counts_and_the_rhythm_of_an_equal_interval() -> None:
    schedule, _ = lived(made(), NOW + 3 * MINUTE)
    later = NOW + 3 * MINUTE + 10 * MICROSECONDS
    schedule = fold_schedule(schedule, ID, schedule.seq + 1, later, se.SchedulePaused("me"))
    (data,), _ = set_schedule(schedule, setting(tags={"team": "b"}, replace=True), later)
    schedule = fold_schedule(schedule, ID, schedule.seq + 1, later, data)
    assert (schedule.status, schedule.next_us, schedule.created_us) == ("paused", NOW + 4 * MINUTE, NOW)
    assert schedule.fired == 1


def test_one_that_was_removed_is_made_anew_and_its_stream_goes_on() -> None:
    schedule = folded(*set_schedule(None, setting(), NOW)[0], se.SchedulePaused("me"), se.ScheduleRemoved("me"))
    assert (schedule.status, schedule.due_us) == ("removed", None)
    events, reply = set_schedule(schedule, setting(workflow="other"), NOW + MINUTE)
    assert reply.created
    anew = fold_schedule(schedule, ID, 4, NOW + MINUTE, events[0])
    assert (anew.status, anew.seq, anew.set.workflow, anew.created_us) == ("active", 4, "other", NOW + MINUTE)


# --- what is due ------------------------------------------------------------------------------------------------------


def test_each_time_starts_one_workflow_in_the_partition_of_the_schedule_tagged_with_the_time() -> None:
    due = due_now(made(), NOW + MINUTE, busy=False)
    assert due is not None
    assert due.skipped is None
    assert due.fired is not None
    assert due.dispatch is not None
    assert (due.fired.due_us, due.fired.next_us) == (NOW + MINUTE, NOW + 2 * MINUTE)
    assert due.dispatch.workflow_id == due.fired.workflow_id == scheduled_run_id(ID, NOW + MINUTE)
    assert slot_of(due.dispatch.workflow_id) == slot_of(ID)
    assert due.dispatch.tags == {"team": "a", "schedule": "nightly", "scheduled_for": "2026-01-01T00:01:00.000000Z"}
    assert (due.dispatch.name, due.dispatch.input, due.dispatch.schedule) == ("report", b'{"of":"sales"}', ID)


@pytest.mark.parametrize(
    ("missed", "minutes", "expected", "passed"),
    [("latest", 5, [5], 4), ("all", 5, [1, 2, 3, 4, 5], 0), ("skip", 5, [5], 4), ("skip", 5.99, [5], 4)],
)
def test_times_that_were_missed_are_treated_by_the_rule(
    missed: Missed, minutes: float, expected: list[int], passed: int
) -> None:
    schedule, facts = lived(made(missed=missed), NOW + int(minutes * MINUTE))
    assert started(facts) == expected
    assert schedule.skipped == passed
    assert schedule.due_us == NOW + 6 * MINUTE


def test_skip_starts_nothing_for_what_is_more_than_a_minute_ago() -> None:
    hour = 60 * MINUTE
    late = made(missed="skip", interval_us=hour)
    schedule, facts = lived(late, NOW + 3 * hour + GRACE_US + 1)
    assert [(type(data), getattr(data, "count", 0)) for data in facts] == [(se.ScheduleSkipped, 3)]
    assert schedule.due_us == NOW + 4 * hour
    assert started(lived(late, NOW + 3 * hour + GRACE_US)[1]) == [180]


def test_what_was_passed_is_recorded_with_its_first_and_last_time() -> None:
    _, facts = lived(made(), NOW + 5 * MINUTE)
    (skipped,) = (data for data in facts if isinstance(data, se.ScheduleSkipped))
    assert (skipped.first_us, skipped.last_us, skipped.count) == (NOW + MINUTE, NOW + 4 * MINUTE, 4)
    assert (skipped.reason, skipped.next_us) == ("missed", NOW + 5 * MINUTE)


def test_while_one_goes_on_nothing_is_started_if_overlaps_are_to_be_skipped() -> None:
    schedule, facts = lived(made(overlap="skip"), NOW + 2 * MINUTE, busy=True)
    assert [(data.TYPE, getattr(data, "reason", "")) for data in facts] == [("schedule.skipped", "overlap")]
    assert started(lived(schedule, NOW + 3 * MINUTE)[1]) == [3]
    assert started(lived(made(), NOW + MINUTE, busy=True)[1]) == [1], "allowed unless it is said otherwise"


def test_a_clock_that_is_set_back_starts_nothing_twice() -> None:
    schedule, _ = lived(made(), NOW + 5 * MINUTE)
    assert lived(schedule, NOW + 2 * MINUTE)[1] == []
    assert started(lived(schedule, NOW + 6 * MINUTE)[1]) == [6]


def test_a_paused_schedule_is_never_due_and_does_not_make_up_for_the_pause() -> None:
    schedule = made(missed="all")
    (paused,), _, _ = change_schedule(schedule, ChangeSchedule(ID, "pause", "me"), NOW)
    schedule = fold_schedule(schedule, ID, 2, NOW, paused)
    assert due_now(schedule, NOW + 10 * MINUTE, busy=False) is None
    (resumed,), _, _ = change_schedule(schedule, ChangeSchedule(ID, "resume", "me"), NOW + 10 * MINUTE)
    schedule = fold_schedule(schedule, ID, 3, NOW, resumed)
    assert started(lived(schedule, NOW + 11 * MINUTE)[1]) == [11]


def test_a_timetable_that_ends_is_finished() -> None:
    start_us = MAX_US - 90 * MICROSECONDS
    schedule, facts = lived(made(start_us), MAX_US)
    assert len(facts) == 1
    assert (schedule.status, schedule.due_us) == ("finished", None)


def test_only_the_last_runs_are_remembered() -> None:
    schedule, _ = lived(made(missed="all"), NOW + (RUNS_KEPT + 50) * MINUTE)
    assert len(schedule.runs) == RUNS_KEPT
    assert schedule.runs[-1] == scheduled_run_id(ID, NOW + (RUNS_KEPT + 50) * MINUTE)
    assert schedule.fired == RUNS_KEPT + 50


# --- an operator's hand -----------------------------------------------------------------------------------------------


def test_a_trigger_starts_one_now_and_a_repeat_of_it_none() -> None:
    schedule = made()
    run_id = new_workflow_id(NOW // 1000 * 1000, b"12345678", slot_of(ID))
    command = ChangeSchedule(ID, "trigger", "me", "nightly", run_id)
    (fired,), reply, dispatch = change_schedule(schedule, command, NOW + 7)
    assert dispatch is not None
    assert (reply.id, dispatch.workflow_id) == (run_id, run_id)
    assert dispatch.tags["scheduled_for"] == "2026-01-01T00:00:00.000007Z"
    schedule = fold_schedule(schedule, ID, 2, NOW, fired)
    assert schedule.due_us == NOW + MINUTE, "its own times stay as they are"
    assert change_schedule(schedule, command, NOW + 9) == ([], replace(reply, created=False), None)


@pytest.mark.parametrize("verb", ["pause", "resume", "remove"])
def test_what_is_so_already_stays_so(verb: ScheduleVerb) -> None:
    schedule = made()
    for fact in (
        se.SchedulePaused("me") if verb == "pause" else None,
        se.ScheduleRemoved("me") if verb == "remove" else None,
    ):
        if fact is not None:
            schedule = fold_schedule(schedule, ID, schedule.seq + 1, NOW, fact)
    events, reply, _ = change_schedule(schedule, ChangeSchedule(ID, verb, "me"), NOW)
    assert (events, reply.error) == ([], None)


@pytest.mark.parametrize("verb", ["pause", "resume", "trigger"])
@pytest.mark.parametrize("removed", [True, False])
def test_nothing_can_be_done_about_a_schedule_that_is_not_there(verb: ScheduleVerb, removed: bool) -> None:
    schedule = folded(*set_schedule(None, setting(), NOW)[0], se.ScheduleRemoved("me")) if removed else None
    events, reply, dispatch = change_schedule(schedule, ChangeSchedule(ID, verb, "me", "nightly"), NOW)
    assert (events, dispatch) == ([], None)
    assert isinstance(reply.error, ScheduleNotFound)
    assert "'nightly'" in reply.error.message


# --- what does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "facts",
    [
        [se.SchedulePaused("me")],
        [se.ScheduleUnreadable("gasoline.schedule.moved.v1", "unknown")],
    ],
)
def test_a_stream_that_makes_no_sense_is_set_aside_and_can_be_removed(facts: list[ScheduleData]) -> None:
    schedule = folded(*facts)
    assert (schedule.status, schedule.due_us) == ("unreadable", None)
    assert isinstance(set_schedule(schedule, setting(), NOW)[1].error, GasolineError)
    assert isinstance(change_schedule(schedule, ChangeSchedule(ID, "pause", "me"), NOW)[1].error, GasolineError)
    (removed,), _, _ = change_schedule(schedule, ChangeSchedule(ID, "remove", "me"), NOW)
    assert isinstance(removed, se.ScheduleRemoved)


def test_a_gap_in_a_stream_sets_the_schedule_aside() -> None:
    schedule = fold_schedule(made(), ID, 3, NOW, se.SchedulePaused("me"))
    assert schedule.problem == "event 3 follows event 1: events are missing or repeated"


# --- how it is written ------------------------------------------------------------------------------------------------

moments = st.integers(MIN_US, MAX_US)
text = st.text(st.characters(codec="utf-8"), max_size=20)
cron_tables = st.builds(Cron, text, text)
interval_tables = st.builds(Every, st.integers(1, 10**12), moments)
facts: st.SearchStrategy[ScheduleData] = st.one_of(
    st.builds(
        se.ScheduleSet,
        text,
        text,
        st.sampled_from([b"null", b'{"a":[1,2.5,"x"]}', b"18446744073709551616"]),
        st.dictionaries(text, text, max_size=3),
        cron_tables | interval_tables,
        st.sampled_from(["latest", "all", "skip"]),
        st.sampled_from(["allow", "skip"]),
        st.none() | moments,
        text,
    ),
    st.builds(se.SchedulePaused, text),
    st.builds(se.ScheduleResumed, text, st.none() | moments),
    st.builds(se.ScheduleFired, st.none() | moments, text, st.none() | moments, st.none() | text),
    st.builds(
        se.ScheduleSkipped,
        moments,
        moments,
        st.integers(1, 10**9),
        st.booleans(),
        st.sampled_from(["missed", "overlap", "refused"]),
        st.none() | moments,
    ),
    st.builds(se.ScheduleRemoved, text),
)


@given(facts, st.integers(1, 10**9), moments)
def test_every_event_reads_back_as_it_was_written_on_one_line(data: ScheduleData, seq: int, time_us: int) -> None:
    event = ScheduleEvent(ID, seq, time_us, "nightly", 3, 2, "w", data)
    raw = se.encode_schedule_event(event, "default")
    assert b"\n" not in raw
    assert se.decode_schedule_event(raw) == event


def test_what_a_newer_release_wrote_is_unreadable_and_what_is_no_event_is_refused() -> None:
    event = ScheduleEvent(ID, 1, NOW, "nightly", 3, 2, "w", se.SchedulePaused("me"))
    raw = se.encode_schedule_event(event, "default")
    for other in (
        raw.replace(b"paused.v1", b"paused.v2"),
        raw.replace(b"paused", b"moved"),
        raw.replace(b'"by"', b'"be"'),
    ):
        assert isinstance(se.decode_schedule_event(other).data, se.ScheduleUnreadable)
    for other in (b"{}", b"[]", b"nothing", raw.replace(b'"seq":1', b'"seq":"1"')):
        with pytest.raises(ValueError, match=r"."):
            se.decode_schedule_event(other)


@pytest.mark.parametrize(
    "command",
    [
        setting(),
        setting(cron="0 3 * * *", interval_us=None, timezone="Europe/Berlin", replace=True),
        ChangeSchedule(ID, "pause", "me", "nightly"),
        ChangeSchedule(ID, "trigger", "me", "nightly", new_workflow_id(NOW, b"12345678", slot_of(ID))),
    ],
)
def test_a_command_goes_through_an_inbox_as_it_is(command: SetSchedule | ChangeSchedule) -> None:
    request = Request("r", "c", command)
    assert decode_request(encode_request(request)) == request


@pytest.mark.parametrize(
    "command",
    [
        setting(schedule_id="../x"),
        setting(name="../x"),
        setting(workflow="A B"),
        setting(tags={"a": 1}),
        setting(interval_us=5),
        setting(interval_us=None),
        setting(cron="0 3 * *", interval_us=None),
        setting(cron="@daily", interval_us=None),
        setting(missed="none"),
        setting(overlap="none"),
        setting(replace=1),
        setting(by=None),
        ChangeSchedule(ID, "explode", "me"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        ChangeSchedule(ID, "trigger", "me", "nightly", new_workflow_id(NOW, b"12345678", slot_of(ID) ^ 1)),
        ChangeSchedule(ID, "trigger", "me", "nightly", "x"),
    ],
)
def test_what_no_client_would_send_is_refused_at_the_inbox(command: SetSchedule | ChangeSchedule) -> None:
    with pytest.raises(ValueError, match=r"not a request|no cron expression"):
        decode_request(encode_request(Request("r", "c", command)))


def test_rules_are_the_ones_that_types_name() -> None:
    missed: list[Missed] = ["latest", "all", "skip"]
    overlaps: list[Overlap] = ["allow", "skip"]
    assert (list(se.MISSED), list(se.OVERLAPS)) == (missed, overlaps)
