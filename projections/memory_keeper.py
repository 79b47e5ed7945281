"""Keeps no views: those of a log in memory are folded from its start."""

from __future__ import annotations

from collections.abc import Mapping

from projections.views import PartitionViews


class MemoryKeeper:
    """Keeps nothing: the views of a log that lives in memory are folded from its start."""

    keeps = False

    async def load(self, index: int, before: PartitionViews | None) -> PartitionViews:
        """Return the views of a partition, with nothing folded."""
        return PartitionViews(beside=before)

    def fresh(self) -> PartitionViews:
        """Return views with nothing folded, which are not kept."""
        return PartitionViews()

    async def stands(self, index: int) -> int:
        """Return the offset up to which a partition's views are stored."""
        return 0

    async def save(self, views: Mapping[int, PartitionViews]) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""
