"""One name means one thing in a worker; a module loaded twice is no second thing (semantics.md §1)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gasoline_es import ActivityContext, WorkflowContext, activity, workflow
from gasoline_es.definitions import Activity, Workflow
from gasoline_es.errors import DefinitionError
from gasoline_es.registry import Registry

SOURCE = """
from gasoline_es import activity, workflow, ActivityContext, WorkflowContext

@activity
async def charge(ctx: ActivityContext, order: int) -> int: ...

@workflow
async def fulfil(ctx: WorkflowContext, order: int) -> int:
    return await ctx.activity(charge, order)

@workflow
async def refund(ctx: WorkflowContext, order: int) -> int:
    return await ctx.activity(charge, order)
"""


def load(file: str) -> SimpleNamespace:
    scope: dict[str, Any] = {"__name__": "orders"}
    exec(compile(SOURCE, file, "exec"), scope)  # noqa: S102
    return SimpleNamespace(**scope)


@workflow
async def ship(ctx: WorkflowContext, parcel: str) -> None: ...


def test_registry_finds_workflows_by_name() -> None:
    orders = load("orders.py")
    registry = Registry([ship, orders.fulfil, ship])
    assert dict(registry) == {"ship": ship, "fulfil": orders.fulfil}


def test_two_workflows_under_one_name_are_refused_naming_both_places() -> None:
    @workflow(name="ship")
    async def other(ctx: WorkflowContext, parcel: str) -> None: ...

    with pytest.raises(DefinitionError, match=r"two workflows have the name 'ship'.*rename one, or write") as caught:
        Registry([ship, other])
    assert f"{__file__}:{ship.line} and {__file__}:{other.line}" in str(caught.value)


def plain(ctx: WorkflowContext, order: int) -> None: ...


def test_what_is_no_workflow_is_refused() -> None:
    @activity
    async def charge(ctx: ActivityContext, order: int) -> None: ...

    for wrong in (charge, plain, ship.fn, "ship"):
        with pytest.raises(DefinitionError, match=r"is not a workflow.*`gasoline\.worker\(\[fulfil, ship\]\)`"):
            Registry([cast(Workflow[Any, Any], wrong)])


def test_two_activities_under_one_name_are_refused_when_the_worker_starts() -> None:
    one, other = load("one.py"), load("other.py")
    with pytest.raises(DefinitionError, match=r"two activities have the name 'charge': one\.py:4 and other\.py:4"):
        Registry([one.fulfil, other.refund])


def test_module_loaded_twice_is_no_conflict() -> None:
    """As ``__main__`` and by its name, or reloaded: the same code, so the same meaning."""
    once, again = load("orders.py"), load("orders.py")
    registry = Registry([once.fulfil, again.refund])
    registry.meet(once.charge)
    registry.meet(again.charge)


def test_activity_met_only_in_a_body_is_checked_then() -> None:
    registry = Registry([ship])
    registry.meet(load("one.py").charge)
    with pytest.raises(DefinitionError, match=r"one\.py:4 and other\.py:4"):
        registry.meet(load("other.py").charge)


def test_activities_in_closures_and_inner_functions_are_found() -> None:
    def define() -> tuple[Activity[int, int], Workflow[int, int]]:
        @activity(name="charge")
        async def enclosed(ctx: ActivityContext, order: int) -> int:
            return order

        @workflow
        async def flow(ctx: WorkflowContext, order: int) -> int:
            async def inner() -> int:
                return await ctx.activity(enclosed, order)

            return await inner()

        return enclosed, flow

    enclosed, flow = define()
    registry = Registry([flow])
    registry.meet(enclosed)
    with pytest.raises(DefinitionError, match="two activities have the name 'charge'"):
        registry.meet(load("one.py").charge)
