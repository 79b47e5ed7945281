"""A cursor compares each step with what is recorded at its place (semantics §2, §3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasoline_es.core.cursor import Cursor
from gasoline_es.core.history import ActivityEntry, History, RemovedEntry, SleepEntry, VersionEntry
from gasoline_es.core.location import Coordinate, Location, format_location, parse_location
from gasoline_es.core.steps import SleepStep, Step
from gasoline_es.errors import HistoryDiverged, LatentHistoryFound

CODE = compile("\n" * 11 + "step()", "orders.py", "exec")
LINE_12 = next(start for start, _, line in CODE.co_lines() if line == 12)


def step(version: int = 1) -> Step:
    return SleepStep(version, "activity", CODE, LINE_12, duration_us=1)


def history(*locations: str, version: int = 1) -> History:
    made = History()
    for text in locations:
        made.add(ActivityEntry(parse_location(text), version, 0, 0, f"at {text}", 0))
    return made


def place(cursor: Cursor, name: str, version: int = 1) -> str:
    return format_location(cursor.place(step(version), "activity", name)[0])


def passed(history: History, prefix: str, *names: str) -> Cursor:
    """A cursor that has passed the entries with these names."""
    cursor = Cursor(history, parse_location(prefix))
    for name in names:
        _, entry = cursor.place(step(), "activity", name)
        assert entry is not None
    return cursor


def insert(history: History, cursor: Cursor, name: str, version: int = 2) -> str:
    location, entry = cursor.place(step(version), "activity", name)
    assert entry is None
    history.add(ActivityEntry(location, version, 0, 0, name, 0))
    return format_location(location)


# --- the table of semantics §2 ----------------------------------------------------------------------------------------


def test_after_all_three_a_new_step_counts_on_from_the_head() -> None:
    recorded = history("{1}", "{3}", "{6}")
    assert insert(recorded, passed(recorded, "{}", "at {1}", "at {3}", "at {6}"), "new") == "{7}"


def test_after_the_first_an_insertion_is_below_it() -> None:
    recorded = history("{1}", "{3}", "{6}")
    assert insert(recorded, passed(recorded, "{}", "at {1}"), "new") == "{1.1}"


def test_after_an_insertion_two_more_follow_it() -> None:
    recorded = history("{1, 2.1}", "{1, 3}")
    cursor = passed(recorded, "{1}", "at {1, 2.1}")
    assert [insert(recorded, cursor, "a"), insert(recorded, cursor, "b")] == ["{1, 2.2}", "{1, 2.3}"]
    assert place(cursor, "at {1, 3}") == "{1, 3}"


def test_between_two_insertions_is_room() -> None:
    recorded = history("{1, 2.1}", "{1, 2.2}")
    assert insert(recorded, passed(recorded, "{1}", "at {1, 2.1}"), "new") == "{1, 2.1.1}"


def test_between_an_insertion_and_the_one_below_it_is_room() -> None:
    recorded = history("{1, 2.1}", "{1, 2.1.1}")
    assert insert(recorded, passed(recorded, "{1}", "at {1, 2.1}"), "new") == "{1, 2.1.0.1}"


def test_branches_do_not_meet() -> None:
    recorded = history("{1}", "{1, 1}", "{2}", "{2, 1}")
    cursor = passed(recorded, "{1}", "at {1, 1}")
    assert cursor.current is None
    assert insert(recorded, cursor, "new") == "{1, 2}"
    assert cursor.last_location == parse_location("{1, 2}")
    assert Cursor(recorded, parse_location("{2}")).last_location == parse_location("{2}")


# --- the five rules of semantics §3 -----------------------------------------------------------------------------------


def test_nothing_recorded_is_new() -> None:
    assert place(Cursor(History(), ()), "charge") == "{1}"


def test_higher_version_is_an_insertion_and_the_cursor_stays() -> None:
    recorded = history("{1}")
    cursor = Cursor(recorded, ())
    assert insert(recorded, cursor, "new") == "{0.1}"
    assert place(cursor, "at {1}") == "{1}"


def test_lower_version_diverges_and_names_both() -> None:
    cursor = Cursor(history("{1}", version=3), ())
    with pytest.raises(HistoryDiverged, match=r"orders\.py:12: version 3 is recorded, the code has 2") as raised:
        place(cursor, "at {1}", version=2)
    assert raised.value.location == "{1}"
    assert "`ctx.v(3).activity(…)`" in raised.value.fix
    with pytest.raises(HistoryDiverged) as raised:
        place(cursor, "another", version=2)
    assert "`ctx.v(4).activity(…)`" in raised.value.fix


def test_versions_in_the_fix_count_from_the_context_of_the_branch() -> None:
    """semantics.md §3: ``ctx.v(n)`` is n - 1 above its context."""
    with pytest.raises(HistoryDiverged) as raised:
        place(Cursor(history("{1}", version=5), (), 5), "another", version=5)
    assert "`ctx.v(2).activity(…)`" in raised.value.fix
    assert "`await ctx.check_version(2) >= 2`" in raised.value.fix


@pytest.mark.parametrize(("kind", "name"), [("sleep", None), ("activity", "refund"), ("listen", None)])
def test_another_kind_or_name_diverges_and_names_both(kind: str, name: str | None) -> None:
    cursor = Cursor(history("{1}"), ())
    with pytest.raises(HistoryDiverged) as raised:
        cursor.place(step(), kind, name)
    error = raised.value
    assert (error.location, error.file, error.line) == ("{1}", "orders.py", 12)
    assert error.recorded == "activity 'at {1}' at {1}"
    assert error.attempted == (kind if name is None else f"{kind} {name!r}")
    assert cursor.current is not None, "the cursor stays"


def test_fix_for_a_version_check_is_to_put_it_back_whatever_its_version() -> None:
    for version in (1, 2):
        recorded = History()
        recorded.add(VersionEntry(((1,),), version, 0, 0, 1))
        with pytest.raises(HistoryDiverged) as raised:
            place(Cursor(recorded, ()), "charge")
        assert raised.value.fix.startswith("Put `await ctx.check_version(…)` back where it stood;")


def test_fix_for_a_timed_listen_removes_a_listen() -> None:
    recorded = History()
    recorded.add(SleepEntry(((1,),), 1, 0, 0, 60, listen=True))
    with pytest.raises(HistoryDiverged, match=r"await ctx\.removed\('listen'\)"):
        place(Cursor(recorded, ()), "charge")


def test_rest_of_a_branch_is_latent_and_counted() -> None:
    cursor = passed(history("{1}", "{2}", "{3}"), "{}", "at {1}")
    with pytest.raises(LatentHistoryFound, match="2 recorded steps remain") as raised:
        cursor.finish()
    assert raised.value.locations == ["{2}", "{3}"]


def test_many_latent_steps_are_shown_in_part_and_named_in_full() -> None:
    cursor = Cursor(history(*(f"{{{n}}}" for n in range(1, 31))), ())
    with pytest.raises(LatentHistoryFound, match="30 recorded steps remain") as raised:
        cursor.finish()
    assert str(raised.value).count("activity") == 10
    assert len(raised.value.recorded) == 30


# --- removed and version checks ---------------------------------------------------------------------------------------


def test_removed_is_new_at_the_end_and_matches_its_step_or_its_event() -> None:
    assert Cursor(History(), ()).place_removed("sleep", None) is not None
    recorded = history("{1}")
    cursor = Cursor(recorded, ())
    assert cursor.place_removed("activity", "refund") is None
    assert cursor.place_removed("sleep", None) is None
    current = cursor.current
    placement = cursor.place_removed("activity", "at {1}")
    assert placement is not None
    assert placement[1] is current
    assert cursor.current is None
    removed = History()
    removed.add(RemovedEntry(((1,),), 1, 0, 0, "activity", "charge"))
    cursor = Cursor(removed, ())
    assert cursor.place_removed("activity", "refund") is None
    assert cursor.place_removed("activity", "charge") is not None


def test_version_check_goes_before_what_is_recorded_and_holds_its_version() -> None:
    (location, entry), before = Cursor(history("{1}", version=4), ()).place_version_check()
    assert (format_location(location), entry, before) == ("{0.1}", None, 4)
    (location, entry), before = Cursor(History(), ()).place_version_check()
    assert (format_location(location), before) == ("{1}", None)


# --- a model ----------------------------------------------------------------------------------------------------------

releases = st.lists(st.tuples(st.lists(st.integers(0, 30), min_size=1, max_size=4), st.integers(0, 40)), max_size=6)


def walk(recorded: History, program: list[tuple[str, int]], far: int) -> tuple[list[Location], int]:
    """Run the first ``far`` steps of a program; give where each was placed, and how many were not recorded before."""
    cursor = Cursor(recorded, ())
    locations: list[Location] = []
    new = 0
    for name, version in program[:far]:
        location, entry = cursor.place(step(version), "activity", name)
        if entry is None:
            new += 1
            recorded.add(ActivityEntry(location, version, 0, 0, name, 0))
        locations.append(location)
    return locations, new


@given(st.integers(0, 4), releases)
def test_any_releases_over_any_runs_keep_the_order_of_the_code_and_replay_exactly(
    size: int, releases: list[tuple[list[int], int]]
) -> None:
    """Each release inserts steps above all versions so far, somewhere; a run takes each at some point of its way."""
    program = [(f"s{n}", 1) for n in range(size)]
    recorded = History()
    reached = size
    walk(recorded, program, reached)
    for version, (places, further) in enumerate(releases, start=2):
        at_end = program[reached - 1] if reached else None
        for number, at in enumerate(places):
            program.insert(at % (len(program) + 1), (f"r{version}.{number}", version))
        # Old runs must be able to go at least as far as they are.
        reached = max(program.index(at_end) + 1 if at_end else 0, min(len(program), further))
        locations, _ = walk(recorded, program, reached)
        assert locations == sorted(set(locations)), "the history's order is the code's"
        assert walk(recorded, program, reached) == (locations, 0), "a second walk is a replay"
        assert [entry.location for entry in recorded.branch(())] == locations, "and nothing else is recorded"
    coordinates: list[Coordinate] = [entry.coordinate for entry in recorded.branch(())]
    assert coordinates == sorted(coordinates)
