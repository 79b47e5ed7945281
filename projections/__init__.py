"""State derived from the log: folds of the events that anyone can rebuild. Every name loads when it is first asked for.

:class:`Projection` and :func:`projection` are for users' own; docs/guides/projections.md is their guide. :class:`Workflows` is
the engine's, docs/guides/views.md says what is in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gasoline_es.lazy import lazily

if TYPE_CHECKING:
    from gasoline_es.log.port import Record
    from projections.definition import Projection, projection
    from projections.folding import Folding
    from projections.reading import ProjectionView
    from projections.stores.port import Feed, Position, Snapshot
    from projections.workflows import Workflows

__all__ = [
    "Feed",
    "Folding",
    "Position",
    "Projection",
    "ProjectionView",
    "Record",
    "Snapshot",
    "Workflows",
    "projection",
]

_MODULES = {
    "Feed": "stores.port",
    "Folding": "folding",
    "Position": "stores.port",
    "Projection": "definition",
    "ProjectionView": "reading",
    "Record": "definition",
    "Snapshot": "stores.port",
    "Workflows": "workflows",
    "projection": "definition",
}


__getattr__, __dir__ = lazily(globals(), _MODULES)
