"""State derived from the log: folds of the events that anyone can rebuild. Every name loads when it is first asked for.

:class:`Projection` and :func:`projection` are for users' own; docs/guides/projections.md is their guide. :class:`Workflows` is
the engine's, docs/guides/views.md says what is in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gasoline_es.lazy import lazily

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


__getattr__, __dir__ = lazily(globals(), _MODULES)
