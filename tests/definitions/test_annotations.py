"""Annotations are resolved wherever the function was written, at the latest when they are first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import pytest
from pydantic import BaseModel, Field

from gasoline_es import ActivityContext, WorkflowContext, activity, workflow
from gasoline_es.errors import DefinitionError
from gasoline_es.registry import Registry
from tests.definitions.fake_run import FakeRun

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForCheckers


@activity
async def early(ctx: ActivityContext, order: Later) -> list[Later]:
    return [order]


@activity
async def tree(ctx: ActivityContext, node: Node) -> None: ...


@workflow
async def run_early(ctx: WorkflowContext, order: Later) -> None:
    await ctx.activity(early, order)


class Node(BaseModel):
    """Not complete until Leaf is there."""

    leaf: Leaf


@activity
async def incomplete(ctx: ActivityContext, node: Node) -> None: ...


class Leaf(BaseModel):
    value: int


class Later(BaseModel):
    item: str


@activity
async def never(ctx: ActivityContext, order: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable, reportUnknownParameterType]


@activity
async def checked_only(ctx: ActivityContext, amount: OnlyForCheckers) -> None: ...


@workflow
async def uses_never(ctx: WorkflowContext, order: Later) -> None:
    async def inner() -> None:
        await ctx.activity(cast(Any, never), order)

    await inner()


def test_type_defined_later_in_the_module_is_resolved_at_first_use() -> None:
    assert early.input_codec.decode(b'{"item":"tea"}') == Later(item="tea")
    assert early.output_codec.decode(b'[{"item":"tea"}]') == [Later(item="tea")]


def test_model_completed_later_is_resolved_at_first_use() -> None:
    for definition in (tree, incomplete):
        assert definition.input_codec.decode(b'{"leaf":{"value":1}}') == Node(leaf=Leaf(value=1))


def test_types_of_the_enclosing_function_are_found() -> None:
    class Local(BaseModel):
        item: str

    @activity
    async def bare(ctx: ActivityContext, order: Local) -> Local:
        return order

    @activity(max_attempts=2)
    def keyworded(ctx: ActivityContext, order: Local) -> dict[str, Local]:
        return {}

    @workflow
    async def flow(ctx: WorkflowContext, order: Local) -> Local:
        return order

    for definition in (bare, keyworded, flow):
        assert definition.input_codec.decode(b'{"item":"tea"}') == Local(item="tea")


def test_types_defined_later_in_the_enclosing_function_are_found() -> None:
    @activity
    async def early_here(ctx: ActivityContext, order: Afterwards) -> Afterwards:
        return order

    class Afterwards(BaseModel):
        item: str

    assert early_here.input_codec.decode(b'{"item":"tea"}') == Afterwards(item="tea")


def test_frame_is_let_go_once_everything_is_resolved() -> None:
    class Local(BaseModel):
        item: str

    @activity
    async def bare(ctx: ActivityContext, order: Local) -> Local:
        return order

    assert bare._signature._frame is None


def test_constraints_in_annotated_survive() -> None:
    @activity
    async def limited(ctx: ActivityContext, amount: Annotated[int, Field(gt=0)]) -> None: ...

    assert limited.input_codec.decode(b"1") == 1
    with pytest.raises(Exception, match="greater than 0"):
        limited.input_codec.decode(b"0")


def test_context_annotation_is_never_resolved() -> None:
    @activity
    async def free(ctx: NotImported, order: Later) -> None: ...  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable, reportUnknownParameterType]

    made: Any = free
    assert made.input_codec.decode(b'{"item":"tea"}') == Later(item="tea")


def test_none_is_an_input_and_an_output() -> None:
    @workflow
    async def tick(ctx: WorkflowContext, _: None) -> None: ...

    assert tick.input_codec.roundtrip(None, "input") == (b"null", None)


@pytest.mark.parametrize(
    "definition", [cast(Any, never), cast(Any, checked_only)], ids=["undefined", "type checking only"]
)
def test_name_that_never_appears_is_an_error_at_first_use(definition: Any) -> None:
    with pytest.raises(DefinitionError, match=r"cannot be resolved \(name '\w+' is not defined\).*not only under"):
        _ = WorkflowContext(FakeRun()).activity(definition, 1)


def test_worker_finds_missing_names_when_it_starts() -> None:
    """Before the first input arrives: also those of activities that a body names."""
    with pytest.raises(DefinitionError, match=r"activity never .*'Missing'"):
        Registry([uses_never])
    assert list(Registry([run_early])) == ["run_early"]


def test_broken_annotation_is_refused_at_once() -> None:
    async def broken(ctx: Any, order: Any) -> None: ...

    broken.__annotations__["order"] = "list["
    with pytest.raises(DefinitionError, match=r"its parameter 'order' is not a type that can be kept"):
        activity(broken)


def test_strings_without_the_future_import_are_resolved() -> None:
    scope: dict[str, Any] = {"__name__": "orders"}
    source = (
        "from gasoline_es import activity, ActivityContext\n"
        "from pydantic import BaseModel\n"
        "@activity\n"
        "async def send(ctx: ActivityContext, order: 'Order') -> 'list[Order]': ...\n"
        "class Order(BaseModel):\n"
        "    item: str\n"
    )
    exec(compile(source, "orders.py", "exec"), scope)  # noqa: S102
    assert scope["send"].output_codec.decode(b'[{"item":"tea"}]') == [scope["Order"](item="tea")]
