"""What an activity is told, and that what it does to the state is kept exactly, or refused (semantics.md §4)."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from gasoline_es import ActivityContext
from gasoline_es.core.durations import from_datetime
from gasoline_es.errors import DefinitionError, NotSerializable


class Basket(BaseModel):
    items: list[Any] = []
    total: int = 0


@dataclass
class Counter:
    seen: dict[str, int] = field(default_factory=dict[str, int])


class Strict(BaseModel):
    owner: str


def context(state: bytes = b"null", *, attempt: int = 1, location: str = "{1, 4}") -> ActivityContext:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return ActivityContext(
        workflow_id="0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f",
        workflow_name="fulfil",
        name="charge",
        ray_id="ray",
        attempt=attempt,
        first_attempt_us=from_datetime(now),
        attempt_us=from_datetime(now),
        location=location,
        state_json=state,
    )


def test_idempotency_key_is_the_same_for_every_attempt_of_a_step_and_no_other() -> None:
    assert context(attempt=1).idempotency_key == "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f:{1, 4}"
    assert context(attempt=1).idempotency_key == context(attempt=5).idempotency_key
    assert context().idempotency_key != context(location="{2}").idempotency_key


def test_cancelled_turns_true_once_the_runtime_says_so() -> None:
    ctx = context()
    assert not ctx.cancelled
    ctx._cancel()
    assert cast(bool, ctx.cancelled)


def test_tags_are_those_of_the_workflow_and_after_an_update_the_new_ones() -> None:
    ctx = ActivityContext(given_tags={"order": "17", "stage": "new"})
    assert ctx.tags == {"order": "17", "stage": "new"}
    assert ctx.changed_tags() is None
    ctx.update_tags({**ctx.tags, "stage": "packed"})
    ctx.update_tags({**ctx.tags, "box": 3})
    assert ctx.tags == ctx.changed_tags() == {"order": "17", "stage": "packed", "box": "3"}
    with pytest.raises(TypeError, match="does not support item assignment"):
        cast("dict[str, str]", ctx.tags)["order"] = "18"
    with pytest.raises(AttributeError):
        cast("Any", ctx).tags = {}
    assert ActivityContext().tags == {}


def test_state_that_was_not_asked_for_is_unchanged() -> None:
    assert context(b'{"items":[],"total":3}').changed_state() is None


def test_null_gives_a_new_model_which_is_kept_only_if_changed() -> None:
    ctx = context()
    basket = ctx.state(Basket)
    assert basket == Basket()
    assert ctx.changed_state() is None
    basket.items.append("tea")
    basket.total = 3
    assert ctx.changed_state() == b'{"items":["tea"],"total":3}'


def test_state_is_a_copy_that_is_read_back() -> None:
    ctx = context(b'{"items":["tea"],"total":3}')
    basket = ctx.state(Basket)
    assert ctx.state(Basket) is basket
    assert ctx.changed_state() is None
    basket.total += 1
    assert ctx.changed_state() == b'{"items":["tea"],"total":4}'


def test_state_written_otherwise_is_not_taken_for_a_change() -> None:
    ctx = context(b'{ "total": 3 }')
    assert ctx.state(Basket).total == 3
    assert ctx.changed_state() is None


def test_dataclasses_dicts_and_lists_are_models_too() -> None:
    ctx = context()
    ctx.state(Counter).seen["tea"] = 1
    assert ctx.changed_state() == b'{"seen":{"tea":1}}'
    ctx = context()
    ctx.state(dict[str, int])["tea"] = 1
    assert ctx.state(dict[str, int]) == {"tea": 1}
    assert ctx.changed_state() == b'{"tea":1}'
    ctx = context(b"[1]")
    ctx.state(list[int]).append(2)
    assert ctx.changed_state() == b"[1,2]"


@given(st.dictionaries(st.text(), st.integers()), st.dictionaries(st.text(), st.integers()))
def test_change_of_any_state_is_read_back_by_the_next_activity(before: dict[str, int], after: dict[str, int]) -> None:
    ctx = context()
    ctx.state(dict[str, int]).update(before)
    raw = ctx.changed_state() or b"null"
    ctx = context(raw)
    state = ctx.state(dict[str, int])
    assert state == before
    state.clear()
    state.update(after)
    raw = ctx.changed_state() or raw
    assert context(raw).state(dict[str, int]) == after


def test_second_model_is_refused() -> None:
    ctx = context()
    ctx.state(Basket)
    with pytest.raises(DefinitionError, match=r"asked for the state as Counter after Basket.*Use one model"):
        ctx.state(Counter)


def test_model_without_defaults_is_refused_while_there_is_no_state() -> None:
    with pytest.raises(
        DefinitionError,
        match=r"no state yet and Strict\(\) fails \(owner: Field required\)\. Give every field of it a default",
    ):
        context().state(Strict)
    assert context(b'{"owner":"me"}').state(Strict).owner == "me"


def test_state_that_cannot_be_kept_is_refused_with_its_path() -> None:
    """B22: an open file, a lambda, a list within itself."""
    loop: list[Any] = []
    loop.append(loop)
    for wrong in (io.StringIO(), lambda: None, loop):
        ctx = context()
        ctx.state(Basket).items.append(wrong)
        with pytest.raises(NotSerializable, match=r"state\.items\[0\]"):
            ctx.changed_state()
