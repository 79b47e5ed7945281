"""Tag index: the incomplete workflows of a name whose tags contain the given ones, oldest first (semantics.md §5, §6)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import merge
from typing import NamedTuple, cast

from gasoline_es.core.tags import matches


class _Entry(NamedTuple):
    """``dispatched``: by which of its partition's events."""

    name: str
    tags: Mapping[str, str]
    dispatched: int


_Ids = str | dict[str, None]
"""The only workflow with a tag, or all of them: most values are those of one, and a dictionary for each is large."""


_Who = tuple[str, ...]
"""Of whom a collection is: name; or name, tag and value."""


class TagIndex:
    """Incomplete workflows by name and by each of their tags. A completed workflow leaves it at once."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._newest = -1
        # Dictionaries keep the order of dispatch, so the first match is the oldest one, but for those that come late.
        self._by_name: dict[str, dict[str, None]] = {}
        self._by_tag: dict[tuple[str, str], dict[str, _Ids]] = {}
        """Name and tag → its values → who has them."""
        self._late: dict[_Who, dict[str, None]] = {}
        """Those that stand behind younger ones: their tags were changed, or they are back after they had left."""

    def put(self, workflow_id: str, name: str, tags: Mapping[str, str], dispatched: int) -> None:
        """Add an incomplete workflow; one that was there before goes back to its place in the order.

        ``dispatched``: the offset of the event that dispatched it.
        """
        self.remove(workflow_id)
        self._newest = max(self._newest, dispatched)
        entry = self._entries[workflow_id] = _Entry(name, tags, dispatched)
        self._by_name.setdefault(name, {})[workflow_id] = None
        if dispatched < self._newest:
            self._comes_late((name,), workflow_id)
        self._add_tags(workflow_id, entry)

    def change(self, workflow_id: str, tags: Mapping[str, str]) -> None:
        """Give an incomplete workflow other tags; it keeps its place in the order. One that is not there: does nothing."""
        had = self._entries.get(workflow_id)
        if had is None:
            return
        self._drop_tags(workflow_id, had)
        entry = self._entries[workflow_id] = had._replace(tags=tags)
        self._add_tags(workflow_id, entry)

    def remove(self, workflow_id: str) -> None:
        """Take a completed workflow out. One that is not there: does nothing."""
        had = self._entries.pop(workflow_id, None)
        if had is None:
            return
        ids = self._by_name[had.name]
        del ids[workflow_id]
        if not ids:
            del self._by_name[had.name]
        self._is_gone((had.name,), workflow_id)
        self._drop_tags(workflow_id, had)

    def __contains__(self, workflow_id: str) -> bool:
        return workflow_id in self._entries

    def find(self, name: str, tags: Mapping[str, str]) -> Iterator[str]:
        """Yield the ids of the incomplete workflows of this name whose tags contain ``tags``, oldest first."""
        entries = self._entries
        candidates: Collection[str] = self._by_name.get(name, {})
        who: _Who = (name,)
        if tags:
            having = ((self._having(name, tag, value), (name, tag, value)) for tag, value in tags.items())
            candidates, who = min(having, key=lambda one: len(one[0]))
        ordered: Iterable[str] = candidates
        if who in self._late:
            ordered = self._in_order(who, cast(dict[str, None], candidates))  # a single one is never late
        for workflow_id in ordered:
            if matches(entries[workflow_id].tags, tags):
                yield workflow_id

    def _in_order(self, who: _Who, ids: dict[str, None]) -> Iterable[str]:
        """Return those that came late at their places among the others. If they are many, they are put there for good."""
        entries, late = self._entries, self._late[who]

        def dispatched(workflow_id: str) -> int:
            return entries[workflow_id].dispatched

        if len(late) ** 2 <= len(ids):
            return merge((one for one in ids if one not in late), sorted(late, key=dispatched), key=dispatched)
        ordered = sorted(ids, key=dispatched)
        ids.clear()
        ids.update(dict.fromkeys(ordered))
        del self._late[who]
        return ordered

    def _comes_late(self, who: _Who, workflow_id: str) -> None:
        self._late.setdefault(who, {})[workflow_id] = None

    def _is_gone(self, who: _Who, workflow_id: str) -> None:
        late = self._late.get(who)
        if late is not None:
            late.pop(workflow_id, None)
            if not late:
                del self._late[who]

    def _having(self, name: str, tag: str, value: str) -> Collection[str]:
        ids = self._by_tag.get((name, tag), {}).get(value, {})
        return (ids,) if isinstance(ids, str) else ids

    def _add_tags(self, workflow_id: str, entry: _Entry) -> None:
        late = entry.dispatched < self._newest
        for tag, value in entry.tags.items():
            values = self._by_tag.setdefault((entry.name, tag), {})
            ids = values.get(value)
            if ids is None:
                values[value] = workflow_id
                continue  # alone, it is in order
            if isinstance(ids, str):
                values[value] = {ids: None, workflow_id: None}
            else:
                ids[workflow_id] = None
            if late:
                self._comes_late((entry.name, tag, value), workflow_id)

    def _drop_tags(self, workflow_id: str, entry: _Entry) -> None:
        for tag, value in entry.tags.items():
            values = self._by_tag[entry.name, tag]
            self._is_gone((entry.name, tag, value), workflow_id)
            ids = values[value]
            if isinstance(ids, dict):
                del ids[workflow_id]
                if ids:
                    continue
            del values[value]
            if not values:
                del self._by_tag[entry.name, tag]
