"""Entries are found by their location, on any branch, in whatever order they came (semantics §2)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gasoline_es.core.history import ActivityEntry, History
from gasoline_es.core.location import Location

coordinates = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)
locations = st.lists(coordinates, min_size=1, max_size=3).map(tuple)


@given(st.lists(locations, unique=True, max_size=30), locations)
def test_entries_are_found_and_kept_in_order(recorded: list[Location], other: Location) -> None:
    history = History()
    entries = {location: ActivityEntry(location, 1, 0, 0, "charge", 0) for location in recorded}
    for entry in entries.values():
        history.add(entry)
    assert all(history.at(location) is entry for location, entry in entries.items())
    assert history.at(other) is entries.get(other)
    for branch in {location[:-1] for location in recorded}:
        here = [entry.location for entry in history.branch(branch)]
        assert here == sorted(location for location in recorded if location[:-1] == branch)
