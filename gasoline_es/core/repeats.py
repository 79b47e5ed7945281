"""Whether a dispatch repeats one that is recorded, although its code has changed meanwhile (semantics.md §6).

The bytes of two releases may differ where the input is the same: a later release's model has one more field with a default.
So what is recorded is read as today's code reads it, and written again, before it is compared.
"""

from __future__ import annotations

import json
from typing import Any, cast

from gasoline_es.core.comparison import key_step
from gasoline_es.core.values import Codec, parse_json
from gasoline_es.errors import NotSerializable, ReplayError

_SHOWN_MAX = 60


def difference_of_inputs(recorded: bytes, given: bytes, codec: Codec[Any], where: str) -> str | None:
    """Say where a recorded input and a given one first differ, as ``order.cents: recorded is 5, given is 7``, or None."""
    try:
        recorded = codec.encode(codec.decode(recorded), where)
    except ReplayError as error:
        return f"the recorded one does not read as {codec.name} any more ({error.path}: {error.__cause__})"
    except NotSerializable:  # it read, but is of another form now: compared as it is recorded
        pass
    return _difference(parse_json(recorded), parse_json(given), where)


def _difference(recorded: Any, given: Any, path: str) -> str | None:
    # To Python True, 1 and 1.0 are equal; as inputs they are not.
    if type(recorded) is not type(given):
        return _said(path, recorded, given)
    if isinstance(recorded, dict):
        ours, theirs = cast(dict[str, Any], recorded), cast(dict[str, Any], given)
        for key in [*ours, *(key for key in theirs if key not in ours)]:
            step = f".{key}" if key.isidentifier() else key_step(key)
            if key not in ours:
                return f"{path}{step}: recorded is nothing, given is {_shown(theirs[key])}"
            if key not in theirs:
                return f"{path}{step}: recorded is {_shown(ours[key])}, given is nothing"
            if found := _difference(ours[key], theirs[key], path + step):
                return found
        return None
    if isinstance(recorded, list):
        items, others = cast(list[Any], recorded), cast(list[Any], given)
        for at, (item, other) in enumerate(zip(items, others, strict=False)):
            if found := _difference(item, other, f"{path}[{at}]"):
                return found
        if len(items) != len(others):
            return f"{path}: recorded are {len(items)} items, given are {len(others)}"
        return None
    return None if recorded == given else _said(path, recorded, given)


def _said(path: str, recorded: Any, given: Any) -> str:
    return f"{path}: recorded is {_shown(recorded)}, given is {_shown(given)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
