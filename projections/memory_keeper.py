"""Keeps no views: those of a log in memory are folded from its start."""

from __future__ import annotations

from collections.abc import Mapping

from gasoline_es.core.filters import Filters
from projections.definition import ENGINES
from projections.past import PastView
from projections.views import PartitionViews


class MemoryKeeper:
    """Keeps nothing: the views of a log that lives in memory are folded from its start."""

    keeps = False
    name = ENGINES

    async def load(self, index: int, before: PartitionViews | None) -> PartitionViews:
        """Return the views of a partition, with nothing folded."""
        return PartitionViews(beside=None if before is None else before.beside)

    def past(self, wanted: Filters) -> PastView:
        """Return a view with nothing folded, of the workflows that match at a time."""
        return PastView(wanted)

    async def stands(self, index: int) -> Mapping[str, int]:
        """Return the offsets up to which a partition's views are stored."""
        return {}

    async def renew(self) -> None:
        """Do nothing."""

    async def save(self, views: Mapping[int, PartitionViews]) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""
