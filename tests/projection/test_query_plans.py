"""What is asked of the views' tables takes as long as what it returns, whatever else is there (decision 0044).

Rows are read on the thread of the event loop, so nothing may pass over the rows of all that was pruned, or all that is over.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

from gasoline_es.core.events import ErrorInfo, PruneRule
from gasoline_es.core.filters import Filters
from gasoline_es.core.ports import Prunable
from gasoline_es.core.state import Summary
from projections.history import KeptEvents
from projections.workflow_rows import WorkflowRow
from projections.workflow_table import WorkflowTable, make_tables

MANY = 3_000
ASKED: dict[str, Filters] = {
    "all": Filters(),
    "name": Filters(name="order"),
    "status": Filters(status="complete"),
    "both": Filters(name="order", status="complete"),
    "tag": Filters(tags={"kept": "yes"}),
    "before": Filters(until_us=10**9),
    "error": Filters(error="no network"),
}


class Asked(sqlite3.Connection):
    """A connection that tells how each question is answered, and counts SQLite's steps for all of them."""

    def __init__(self) -> None:
        super().__init__(":memory:")
        self.plans: list[str] = []
        self.steps = 0
        make_tables(self)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql.startswith("SELECT"):
            self.plans += [plan for _, _, _, plan in super().execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]
            self.set_progress_handler(self._step, 1)
        return super().execute(sql, parameters)

    def _step(self) -> int:
        self.steps += 1
        return 0


@pytest.fixture
def asked() -> Iterator[Asked]:
    made = Asked()
    yield made
    made.close()


def row(
    number: int, *, prune: PruneRule | None = None, pruned: Literal["all"] | None = None, name: str = "order"
) -> WorkflowRow:
    """A workflow that is over, the ``number``-th to be dispatched."""
    summary = Summary(f"{number:08}")
    summary.name, summary.created_us, summary.completed_us = name, number, number
    summary.status, summary.prune, summary.pruned = "complete", prune, pruned
    if pruned is None:
        summary.tags, summary.error = {"kept": "yes"}, ErrorInfo("OSError", "no network", "", None)
    return WorkflowRow(summary, KeptEvents(number, number, b"", {}), [], False, None)


def filled(asked: Asked, passed: int, of: Callable[[int], WorkflowRow]) -> WorkflowTable:
    """Ten that are asked for, the first and the last among them, and so many others between."""
    table = WorkflowTable(asked)
    kept = [row(number, prune="all") for number in (*range(5), *range(MANY * 2, MANY * 2 + 5))]
    table.write(0, [*kept, *(of(10 + number) for number in range(passed))], None)
    asked.plans.clear()
    asked.steps = 0
    return table


@pytest.mark.parametrize("name", ASKED)
def test_a_list_goes_through_an_index_that_has_nothing_of_what_was_pruned(name: str) -> None:
    """Between two that are there may be any number of rows which only say that there was a workflow."""
    steps: list[int] = []
    for passed in (0, MANY):
        one = Asked()
        table = filled(one, passed, lambda number: row(number, pruned="all"))
        assert len(list(table.matching(0, ASKED[name]))) == 10
        steps.append(one.steps)
        for plan in one.plans:
            assert " USING " in plan or plan == "LIST SUBQUERY 1", plan
            assert not plan.startswith(("SCAN", "USE TEMP")), plan
        one.close()
    assert steps[1] <= steps[0] + 20, "nothing was passed over"


@pytest.mark.parametrize("by_rule", [True, False])
def test_the_pruner_is_shown_what_it_may_prune_and_passes_over_nothing_else(asked: Asked, by_rule: bool) -> None:
    """By rule, those are passed over of which everything stays; by hand, those of which nothing is left."""
    others: PruneRule | None = "none" if by_rule else None
    table = filled(asked, MANY, lambda number: row(number, prune=others, pruned=None if by_rule else "all"))
    found = table.prunable(0, Prunable(10**9, by_rule=by_rule), (-1, ""), 100)
    assert len(found) == 10
    assert asked.steps < 1_500, asked.plans
