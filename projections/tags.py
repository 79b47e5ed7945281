"""Tag index: the incomplete workflows of a name whose tags contain the given ones, oldest first (semantics.md §5, §6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from gasoline_es.core.tags import matches

_K = TypeVar("_K")


class TagIndex:
    """Incomplete workflows by name and by each of their tags. A completed workflow leaves it at once."""

    def __init__(self) -> None:
        self._tags: dict[str, tuple[str, Mapping[str, str]]] = {}
        self._order: dict[str, int] = {}
        """By which of its partition's events each one was dispatched."""
        self._newest = -1
        self._changed = False
        # Dictionaries keep the order of dispatch, so the first match is the oldest one, unless tags were changed or one is
        # back that had left.
        self._by_name: dict[str, dict[str, None]] = {}
        self._by_tag: dict[tuple[str, str, str], dict[str, None]] = {}

    def put(self, workflow_id: str, name: str, tags: Mapping[str, str], dispatched: int) -> None:
        """Add an incomplete workflow; one that was there before goes back to its place in the order.

        ``dispatched``: the offset of the event that dispatched it.
        """
        self.remove(workflow_id)
        self._changed = self._changed or dispatched < self._newest
        self._newest = max(self._newest, dispatched)
        self._tags[workflow_id] = (name, tags)
        self._order[workflow_id] = dispatched
        self._by_name.setdefault(name, {})[workflow_id] = None
        for tag, value in tags.items():
            self._by_tag.setdefault((name, tag, value), {})[workflow_id] = None

    def change(self, workflow_id: str, tags: Mapping[str, str]) -> None:
        """Give an incomplete workflow other tags; it keeps its place in the order. One that is not there: does nothing."""
        name, had = self._tags.get(workflow_id, ("", {}))
        if not name:
            return
        for tag, value in had.items():
            _discard(self._by_tag, (name, tag, value), workflow_id)
        self._changed = True
        self._tags[workflow_id] = (name, tags)
        for tag, value in tags.items():
            self._by_tag.setdefault((name, tag, value), {})[workflow_id] = None

    def remove(self, workflow_id: str) -> None:
        """Take a completed workflow out. One that is not there: does nothing."""
        name, tags = self._tags.pop(workflow_id, ("", {}))
        if not name:
            return
        del self._order[workflow_id]
        _discard(self._by_name, name, workflow_id)
        for tag, value in tags.items():
            _discard(self._by_tag, (name, tag, value), workflow_id)

    def find(self, name: str, tags: Mapping[str, str]) -> Iterator[str]:
        """Yield the ids of the incomplete workflows of this name whose tags contain ``tags``, oldest first."""
        candidates = self._by_name.get(name, {})
        if tags:
            candidates = min((self._by_tag.get((name, tag, value), {}) for tag, value in tags.items()), key=len)
        for workflow_id in sorted(candidates, key=self._order.__getitem__) if self._changed else candidates:
            if matches(self._tags[workflow_id][1], tags):
                yield workflow_id


def _discard(index: dict[_K, dict[str, None]], key: _K, workflow_id: str) -> None:
    ids = index[key]
    del ids[workflow_id]
    if not ids:
        del index[key]
