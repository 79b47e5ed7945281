"""Every event that the engine's tests bring forth is held against the published schema of its type.

Events of one shape (a type, and which of its optional members are there) differ in their texts and numbers only, which
tests/contract proves: one of each shape is looked at in each process.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import pytest

from gasoline_es.core.codec import Envelope
from gasoline_es.core.events import EventData
from tests.contract.published import problems

_seen: set[tuple[Any, ...]] = set()


@contextmanager
def held_to_schemas() -> Generator[None]:
    """Raises: AssertionError, when it ends: events were written that are not as their schema says."""
    encode = Envelope.encode
    wrong: list[str] = []

    def looked_at(envelope: Envelope, seq: int, time_us: int, data: EventData) -> bytes:
        line = encode(envelope, seq, time_us, data)
        shape = (type(data), *(bool(getattr(data, field.name)) for field in fields(data)))
        if shape not in _seen:
            _seen.add(shape)
            wrong.extend(f"{problem} in {line!r}" for problem in problems("events", line))
        return line

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Envelope, "encode", looked_at)
        yield
    assert not wrong, "\n".join(wrong)
