"""Any JSON-native tree comes back exactly, whatever it holds (design §9)."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from gasoline_es.core.comparison import difference
from gasoline_es.core.values import codec_for, dump_json, encode_any, parse_json
from gasoline_es.errors import NotSerializable

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
TREES: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=40
)
# What looks like JSON and is not.
STRANGE: st.SearchStrategy[Any] = (
    st.tuples(st.integers()) | st.binary() | st.floats().filter(lambda x: x != x or abs(x) == float("inf"))
) | st.frozensets(st.integers())


@given(TREES)
def test_json_tree_comes_back_exactly(tree: Any) -> None:
    raw, decoded = codec_for(Any, "a tree").roundtrip(tree, "tree")
    assert repr(decoded) == repr(tree)
    assert repr(parse_json(dump_json(tree))) == repr(tree)
    assert raw == dump_json(tree)
    assert repr(parse_json(raw.decode())) == repr(tree)


@given(st.recursive(STRANGE, lambda inner: st.lists(inner, min_size=1) | st.dictionaries(TEXT, inner, min_size=1)))
def test_tree_with_anything_else_in_it_is_refused(tree: Any) -> None:
    try:
        encode_any(tree, "tree")
    except NotSerializable as error:
        assert error.path.startswith("tree")  # noqa: PT017 -- raises() would hide which tree it was
    else:
        raise AssertionError(f"kept {tree!r}")


class Node(BaseModel):
    name: str
    value: int | float | str | bytes | None
    tags: dict[int, tuple[str, bool]]
    kids: list[Node] = []


NODES = st.recursive(
    st.builds(
        Node.model_construct,
        name=TEXT,
        value=st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
        tags=st.dictionaries(st.integers(), st.tuples(TEXT, st.booleans())),
        kids=st.just([]),
    ),
    lambda inner: st.builds(
        Node.model_construct, name=TEXT, value=st.none(), tags=st.just({}), kids=st.lists(inner, max_size=4)
    ),
    max_leaves=10,
)


@given(NODES)
def test_model_tree_comes_back_exactly(node: Node) -> None:
    raw, decoded = codec_for(Node, "a node").roundtrip(node, "node")
    assert difference(node, decoded) is None
    assert repr(codec_for(Node, "a node").decode(raw)) == repr(node)


@dataclasses.dataclass
class Row:
    number: int
    text: str
    flag: bool
    ratio: float
    maybe: int | None


ANY_SCALAR = SCALARS | st.floats() | st.binary()


@given(ANY_SCALAR, ANY_SCALAR, ANY_SCALAR, ANY_SCALAR, ANY_SCALAR)
def test_record_is_kept_exactly_or_refused(number: Any, text: Any, flag: Any, ratio: Any, maybe: Any) -> None:
    """Whatever stands in the fields: what comes back has the same values of the same types, or nothing does."""
    row = Row(number, text, flag, ratio, maybe)
    try:
        _, decoded = codec_for(Row, "a row").roundtrip(row, "row")
    except NotSerializable:
        return
    if type(ratio) is int:  # the one promotion, as the type checkers have it
        ratio = float(ratio)
        assert ratio == row.ratio
    assert repr(decoded) == repr(Row(number, text, flag, ratio, maybe))
