"""Equal texts, kept once: what many workflows have alike takes memory once, however many of them sleep (design §10).

Texts read from a log, or that come from other processes, are objects of their own, equal or not. Those that stay in memory
for each workflow go through here. What is remembered for that is bounded; once it was forgotten, an equal text is kept a
second time, and no harm is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gasoline_es.core.memo import Memo

_LIMIT: Final = 4_096
_NO_TAGS: Final[Mapping[str, str]] = {}


def _itself(text: str) -> str:
    return text


_texts: Final = Memo(_itself, _LIMIT)
_names: Final = Memo[tuple[str, ...], tuple[str, ...]](lambda names: tuple(map(shared, names)), _LIMIT)


def shared(text: str) -> str:
    """Return a text that is equal, maybe the one that others keep."""
    return _texts[text]


def shared_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """The same for names that often stand together."""
    return _names[names]


def shared_tags(tags: Mapping[str, str]) -> Mapping[str, str]:
    """The same for tags. Nobody may change what is returned."""
    return {_texts[name]: _texts[value] for name, value in tags.items()} if tags else _NO_TAGS
