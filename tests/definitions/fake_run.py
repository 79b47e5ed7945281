"""A run that only notes what a context does, and a driver of a few lines: enough to test the verbs without the core."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast
from uuid import UUID

from gasoline_es.core.steps import ActivityPlan, Step
from gasoline_es.core.strand import Strand
from gasoline_es.verbs import RunPort


class FakeRun:
    def __init__(self, *, version: int = 1, tags: Mapping[str, str] | None = None) -> None:
        self.workflow_id = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"
        self.workflow_name = "fulfil"
        self.ray_id = "0190f3a2-0000-7000-8000-000000000001"
        self.tags: dict[str, str] = dict(tags or {})
        self.version = version
        self.steps: list[Step] = []
        self.handlers: list[tuple[str, bytes]] = []
        self.refused: list[Exception] = []

    def made(self, step: Step) -> None:
        self.steps.append(step)

    def now_us(self) -> int:
        return 1_767_225_600_000_001  # 2026-01-01T00:00:00.000001Z

    def random(self) -> float:
        return 0.25

    def uuid(self) -> UUID:
        return UUID(int=7, version=4)

    def give_handler(self, plan: ActivityPlan, input: bytes) -> None:
        self.handlers.append((plan.name, input))

    def refuse(self, error: Exception) -> None:
        self.refused.append(error)


def made_by(step: Coroutine[Any, Any, Any], run: FakeRun) -> Any:
    """The core's step object behind the only step made so far."""
    (found,) = run.steps
    assert cast(Any, step) is found
    return found


def drive(body: Coroutine[Any, Any, Any], answers: list[Any]) -> tuple[list[Step], Any]:
    """Run a body, answering each step it awaits in turn; give the steps and what it returned."""
    awaited: list[Step] = []
    value: Any = None
    while True:
        try:
            step = body.send(value)
        except StopIteration as stopped:
            return awaited, stopped.value
        awaited.append(step)
        value = answers[len(awaited) - 1]


# Both checkers hold the fake and the real driver to the shape that contexts stand on.
ports: list[Callable[..., RunPort]] = [FakeRun, Strand]
