"""What a body asks the driver for: one small object per durable step, awaited by the body, understood only by the core.

``context`` makes them, ``core.replay`` answers them. Awaiting one yields the object itself to whoever drives the
coroutine with ``send()``; the driver sends the step's value back, or throws its recorded error (design §3).

They are plain (not frozen) slotted dataclasses because one is made for every step, on the hot path; nobody changes them.
Times are integer microseconds: durations relative, deadlines since the epoch in UTC. Payloads are JSON in UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False, kw_only=True)
class Step:
    """One call of a ``ctx`` verb. ``version`` is absolute (semantics.md §3); ``verb`` is how users write it."""

    version: int
    verb: str
    file: str = ""
    line: int = 0
    coroutine: Coroutine[Any, Any, Any] | None = field(default=None, repr=False)

    def __await__(self) -> Generator[Step, Any, Any]:
        value = yield self
        return value


@dataclass(slots=True, eq=False, kw_only=True)
class ActivityStep(Step):
    """``definition`` is the ``Activity`` object; the core only passes it through to the runtime."""

    name: str
    input: bytes
    definition: Any
    decode: Callable[[bytes], Any]
    max_attempts: int
    timeout_us: int
    retry_on_timeout: bool
    backoff_base_us: int
    backoff_doublings: int


@dataclass(slots=True, eq=False, kw_only=True)
class SleepStep(Step):
    """Exactly one of ``duration_us`` and ``until_us`` is set."""

    duration_us: int | None = None
    until_us: int | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class ListenStep(Step):
    """``decoders``: signal name → decoder of its body. ``limit`` None: one signal (or None); else a list.

    At most one of ``timeout_us`` and ``until_us`` is set; neither: waits for ever.
    """

    decoders: Mapping[str, Callable[[bytes], Any]]
    limit: int | None = None
    timeout_us: int | None = None
    until_us: int | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class RemovedStep(Step):
    """``ctx.removed(kind, name)``: kind is one of the removable kinds of api.md; name None where it is no part of the match."""

    kind: str
    name: str | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class CheckVersionStep(Step):
    """``ctx.check_version(n)``: ``latest`` is absolute; the answer the driver sends is relative to ``context_version``."""

    latest: int
    context_version: int
