"""The tag index against a plain list: who has these tags, oldest first (semantics.md §5, §6)."""

from __future__ import annotations

from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from projections.tags import TagIndex, _Entry

# What it has in memory is a promise.
# pyright: reportPrivateUsage=false

NAMES = st.sampled_from(["order", "parcel"])
TAGS = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"), max_size=2)
Operation = tuple[Literal["put", "change", "remove"], int, str, dict[str, str]]
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["put", "change", "remove"]), st.integers(0, 5), NAMES, TAGS), max_size=30
)


@given(OPERATIONS)
def test_index_finds_what_a_search_of_all_finds(operations: list[Operation]) -> None:
    index = TagIndex()
    there: dict[int, tuple[str, dict[str, str]]] = {}
    for verb, number, name, tags in operations:
        workflow_id = f"w{number}"
        if verb == "put":  # its place in the order is that of its dispatch, also when it comes back
            index.put(workflow_id, name, tags, number)
            there[number] = (name, tags)
        elif verb == "change":
            index.change(workflow_id, tags)
            if number in there:
                there[number] = (there[number][0], tags)
        else:
            index.remove(workflow_id)
            there.pop(number, None)
        for wanted in ({}, {"a": "x"}, {"b": "y"}, {"a": "x", "b": "y"}, {"c": "z"}):
            found = [
                f"w{one}" for one in sorted(there) if there[one][0] == name and wanted.items() <= there[one][1].items()
            ]
            assert list(index.find(name, wanted)) == found


@given(OPERATIONS)
def test_index_keeps_nothing_of_what_has_left(operations: list[Operation]) -> None:
    index = TagIndex()
    for verb, number, name, tags in operations:
        if verb == "put":
            index.put(f"w{number}", name, tags, number)
        elif verb == "change":
            index.change(f"w{number}", tags)
    for number in range(6):
        index.remove(f"w{number}")
    assert (index._entries, index._by_name, index._by_tag, index._late) == ({}, {}, {}, {})


class Counted(dict[str, _Entry]):
    """What the index knows, with how often it was asked."""

    asked = 0

    def __getitem__(self, workflow_id: str) -> _Entry:
        self.asked += 1
        return super().__getitem__(workflow_id)


def test_the_oldest_is_found_without_a_look_at_all_though_tags_are_changed_now_and_then() -> None:
    """A look-up does not get slower for good because somebody has changed a tag once, nor where it happens between any two."""
    index, count = TagIndex(), 10_000
    for number in range(count):
        index.put(f"w{number}", "order", {"at": "gate", "number": str(number)}, number)
    index._entries = known = Counted(index._entries)
    looks = 400
    for number in range(looks):
        index.change(f"w{count - 2 - number}", {"at": "gate", "changed": str(number)})
        assert next(index.find("order", {})) == "w0"
        assert next(index.find("order", {"at": "gate"})) == "w0"
    assert known.asked < looks * count / 25, "all of them were looked at but a few times"
