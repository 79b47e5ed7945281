"""State derived from the log: folds of the events that anyone can rebuild. Every name loads when it is first asked for.

:class:`Projection` and :func:`projection` are for users' own; docs/guides/projections.md is their guide. :class:`Workflows` is
the engine's, docs/guides/views.md says what is in it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from projections.definition import Projection, projection
    from projections.reading import ProjectionView
    from projections.workflows import Workflows

__all__ = ["Projection", "ProjectionView", "Workflows", "projection"]

_MODULES = {
    "Projection": "definition",
    "ProjectionView": "reading",
    "Workflows": "workflows",
    "projection": "definition",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value  # found directly from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
