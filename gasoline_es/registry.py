"""The definitions one worker runs, by name. One name means one thing (semantics.md §1)."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from gasoline_es.core.steps import ActivityPlan
from gasoline_es.definitions import Activity, Workflow
from gasoline_es.errors import DefinitionError


class Registry(Mapping[str, Workflow[Any, Any]]):
    """The workflows of one worker by name; and every activity met so far, so that no two share a name.

    Activities are not given: the ones that a body names directly (in its module or its closure) are found here, at the
    start, the rest when :meth:`meet` sees them first. Two activity objects are the same definition when they come from
    the same place, file and qualified name: a module imported twice (as ``__main__`` too), or reloaded, is no conflict.
    """

    def __init__(self, definitions: Iterable[Workflow[Any, Any]]) -> None:
        """Raises: DefinitionError when something is no workflow, a name is used twice, or a type cannot be resolved."""
        self._workflows: dict[str, Workflow[Any, Any]] = {}
        self._activities: dict[str, Activity[Any, Any]] = {}
        if isinstance(definitions, Workflow) or not isinstance(definitions, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] -- comes from users
            written = getattr(getattr(definitions, "fn", definitions), "__name__", "fulfil")
            raise DefinitionError(
                f"a worker takes a list of workflows, not {definitions!r}: write `gasoline.worker([{written}])`"
            )
        for definition in definitions:
            self._add(definition)

    def __getitem__(self, name: str) -> Workflow[Any, Any]:
        return self._workflows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._workflows)

    def __len__(self) -> int:
        return len(self._workflows)

    @property
    def activities(self) -> list[str]:
        """The names of the activities met so far, in order."""
        return sorted(self._activities)

    def meet(self, activity: Activity[Any, Any]) -> None:
        """Note an activity that a body uses.

        Raises: DefinitionError, naming both places, when another one has its name.
        """
        known = self._activities.setdefault(activity.name, activity)
        if known is not activity:
            if known.origin != activity.origin:
                raise _name_used_twice(known, activity)
            self._activities[activity.name] = activity

    def activity(self, name: str) -> Activity[Any, Any] | None:
        """Find an activity by name: one that was met, or that stands in the module of a workflow.

        For what is to be undone of steps that replay has forgotten: their code is not run again, and names none.
        """
        known = self._activities.get(name)
        if known is not None:
            return known
        for workflow in self._workflows.values():
            for value in list(workflow.fn.__globals__.values()):
                found = cast("Activity[Any, Any] | None", value if isinstance(value, Activity) else None)
                if found is not None and found.name == name:
                    self.meet(found)
                    return found
        return None

    def plan_of(self, name: str) -> ActivityPlan | None:
        """Return how an activity is run that :meth:`activity` finds."""
        found = self.activity(name)
        return None if found is None else found.plan

    def _add(self, workflow: Workflow[Any, Any]) -> None:
        if not isinstance(workflow, Workflow):  # pyright: ignore[reportUnnecessaryIsInstance] -- comes from users
            raise DefinitionError(
                f"{workflow!r} is not a workflow, so a worker cannot run it. Give functions decorated with "
                "@workflow, as in `gasoline.worker([fulfil, ship])`; activities need not be given."
            )
        known = self._workflows.setdefault(workflow.name, workflow)
        if known is not workflow:
            raise _name_used_twice(known, workflow)
        # A missing name is better found when the worker starts than when the first input arrives.
        _ = workflow.input_codec, workflow.output_codec
        for activity in _named_activities(workflow):
            self.meet(activity)
            _ = activity.input_codec, activity.output_codec


def _name_used_twice(
    known: Workflow[Any, Any] | Activity[Any, Any], other: Workflow[Any, Any] | Activity[Any, Any]
) -> Exception:
    return DefinitionError(
        f"two {'workflows' if known.kind == 'workflow' else 'activities'} have the name {known.name!r}: "
        f"{known.file}:{known.line} and {other.file}:{other.line}. A history could not tell them apart: rename one, or "
        f"write `@{known.kind}(name=…)`."
    )


def _named_activities(workflow: Workflow[Any, Any]) -> Iterator[Activity[Any, Any]]:
    """The activities a body names directly. Not those behind an attribute or another function: they are met at use."""
    fn: Any = workflow.fn
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    enclosed = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    for name in _names(fn.__code__):
        found: Any = enclosed.get(name, fn.__globals__.get(name))
        if isinstance(found, Activity):
            yield found


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
