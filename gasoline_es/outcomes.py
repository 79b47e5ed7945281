"""What became of a step, as a value: ``ctx.catch`` gives ``Ok`` or ``Failed`` (semantics.md §4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from gasoline_es.core.events import ErrorInfo

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, slots=True)
class Ok(Generic[T]):
    """The step succeeded with ``value``."""

    value: T


@dataclass(frozen=True, slots=True)
class Failed:
    """The step failed for good. ``attempts``: how often it was tried (1 for what is no activity)."""

    error: ErrorInfo
    attempts: int
