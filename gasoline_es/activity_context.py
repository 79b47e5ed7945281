"""What an activity is told and may change: :class:`ActivityContext` (api.md, "Inside an activity")."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import ValidationError

from gasoline_es.core.durations import to_datetime
from gasoline_es.core.tags import Tags, check_tags
from gasoline_es.core.values import Codec, codec_for, encode_any, parse_json
from gasoline_es.errors import DefinitionError, RecordTooLarge
from gasoline_es.operating import Operations, call

if TYPE_CHECKING:
    from gasoline_es.operations import Operation

I = TypeVar("I")  # noqa: E741  # an operation's input, next to O, its output
O = TypeVar("O")  # noqa: E741
S = TypeVar("S")

HEARTBEAT_BYTES_MAX = 10_000
"""The details of a heartbeat take at most so much as JSON: they share a record with the input and the error."""


def idempotency_key(workflow_id: str, location: str, generation: int) -> str:
    """Name what an activity does at a place of a workflow: once in each generation."""
    key = f"{workflow_id}:{location}"
    return f"{key}:g{generation}" if generation else key


@dataclass(slots=True, eq=False, kw_only=True)
class ActivityContext:
    """The first parameter of an activity: who it works for, which attempt this is, and the workflow's state.

    Made by the runtime for each attempt; ``ActivityContext()`` does for a unit test. ``attempt`` counts from 1.
    ``location`` is where the step stands in the workflow's history, as ``{1, 4}``; ``generation`` counts how often the
    workflow started over from it or from before it. ``given_tags`` are what ``tags`` shows.
    """

    workflow_id: str = "00000000-0000-7000-8000-000000000000"
    workflow_name: str = "workflow"
    name: str = "activity"
    ray_id: str = "00000000-0000-7000-8000-000000000000"
    attempt: int = 1
    first_attempt_us: int = 0
    attempt_us: int = 0
    location: str = "{1}"
    state_json: bytes = field(default=b"null", repr=False)
    heartbeat_json: bytes = field(default=b"null", repr=False)
    alone: bool = True
    generation: int = 0
    given_tags: Mapping[str, str] | None = field(default=None, repr=False)

    _operations: Operations | None = field(default=None, repr=False)
    _asked: _Asked | None = field(default=None, init=False, repr=False)
    # A plain flag: set by the event loop, read by the activity's thread, and assignment is atomic.
    _cancelled: bool = field(default=False, init=False, repr=False)
    _tags: dict[str, str] | None = field(default=None, init=False, repr=False)
    # Both set by whoever runs the activity and read by the event loop.
    _beat_s: float = field(default=0.0, init=False, repr=False)
    _beat: bytes | None = field(default=None, init=False, repr=False)

    @property
    def first_attempt_at(self) -> datetime:
        """When the first attempt of this step started (UTC)."""
        return to_datetime(self.first_attempt_us)

    @property
    def attempt_at(self) -> datetime:
        """When this attempt started (UTC)."""
        return to_datetime(self.attempt_us)

    @property
    def idempotency_key(self) -> str:
        """The same text for every attempt of this step and for no other step: hand it to services that deduplicate.

        Another one after the workflow started over from this step or from before it: then it is to be done once more.
        """
        return idempotency_key(self.workflow_id, self.location, self.generation)

    @property
    def cancelled(self) -> bool:
        """Whether the attempt's result is no longer wanted (it timed out, or the worker stops). Poll it in long loops.

        An ``async def`` is cancelled as a task is; a thread can only look here.
        """
        return self._cancelled

    @property
    def tags(self) -> Mapping[str, str]:
        """The workflow's tags as the attempt started, read only; after ``update_tags`` those that were set."""
        return MappingProxyType((self.given_tags or {}) if self._tags is None else self._tags)

    @property
    def last_heartbeat(self) -> Any:
        """What the attempt before this one gave to its last ``heartbeat``; None if it gave nothing, or there was none.

        It is recorded with the failure of that attempt; of one that ended with its process nothing is known.
        """
        return parse_json(self.heartbeat_json)

    def heartbeat(self, details: Any = None, /) -> None:
        """Say that the attempt is alive, and how far it has come: the next attempt finds it in ``last_heartbeat``.

        With ``heartbeat_timeout=`` on the definition an attempt that does not say so in time has timed out. ``details``
        is anything JSON holds. Raises: NotSerializable; RecordTooLarge above 10,000 bytes.
        """
        beat = encode_any(details, "details")
        if len(beat) > HEARTBEAT_BYTES_MAX:
            raise RecordTooLarge(
                f"the details of a heartbeat take {len(beat):,} bytes, more than {HEARTBEAT_BYTES_MAX:,}. Keep them "
                f"elsewhere and pass a reference",
                size=len(beat),
            )
        self._beat = beat
        self._beat_s = time.monotonic()

    def operation(self, operation: Operation[I, O], input: I, /) -> Coroutine[Any, Any, O]:
        """Call an operation, to be awaited: under its own timeout, within the attempt's. Nothing of it is recorded.

        It gets a copy of ``input``, and gives a copy of its output, as they come back from JSON. For an ``async def``
        activity; a plain ``def`` cannot await it.

        Raises at the call: DefinitionError: it is no operation, or this is a thread. Raises from the await: NotSerializable:
        the input or output is not what the operation declares; OperationTimedOut; what the operation raises, as it is.
        """
        return call(self._operations, operation, input, self, "ctx.operation")

    def update_tags(self, tags: Tags, /) -> Awaitable[None]:
        """Replace all of the workflow's tags; committed together with the result, and dropped if the attempt fails.

        To keep the others: ``await ctx.update_tags({**ctx.tags, "stage": "packed"})``.
        To be awaited where the activity is ``async def``; a plain ``def`` just calls it. Raises: InvalidTags, which
        is not tried again.
        """
        self._tags = check_tags(tags, f"update_tags in activity {self.name}")
        return _DONE

    def state(self, model: type[S], /) -> S:
        """Give the workflow's state as a copy of ``model`` to change; the change is committed together with the result.

        A workflow that has no state yet gives ``model()``, which is kept only if it is changed. A failed attempt's
        changes are dropped. Asking again gives the same object.

        Raises: DefinitionError when the model cannot be made without arguments, or another model was asked for before.
        """
        if not self.alone:
            raise DefinitionError(
                f"activity {self.name} asked for the workflow's state inside a join or a race: what runs side by side would "
                "overwrite each other's changes. Return from it what is to be kept, and change the state in an activity "
                "after the join."
            )
        if self._asked is not None:
            if self._asked.model != model:
                raise DefinitionError(
                    f"activity {self.name} asked for the state as {_shown(model)} after {_shown(self._asked.model)}; "
                    "the changes to one would overwrite the other's. Use one model for the whole state."
                )
            return cast("S", self._asked.value)
        codec = codec_for(model, f"the state {_shown(model)} in activity {self.name}")
        if self.state_json == b"null":
            value = self._empty(model)
            encoded = codec.encode(value, "state")
        else:
            value = codec.decode(self.state_json)
            encoded = codec.render(value)
        self._asked = _Asked(model, codec, value, encoded)
        return cast("S", value)

    def changed_state(self) -> bytes | None:
        """Give the state as JSON if the activity changed it, else None. For the runtime, after the activity returned.

        Raises: NotSerializable when what the activity left there cannot be kept exactly.
        """
        if self._asked is None:
            return None
        encoded = self._asked.codec.encode(self._asked.value, "state")
        return None if encoded == self._asked.encoded else encoded

    def last_beat(self) -> bytes | None:
        """Give the details of the last heartbeat as JSON, if there was one. For the runtime."""
        return self._beat

    def silent_s(self) -> float:
        """Give the seconds since the last heartbeat. For the runtime."""
        return time.monotonic() - self._beat_s

    def start_beating(self) -> None:
        """The attempt starts now. For the runtime."""
        self._beat_s = time.monotonic()

    def changed_tags(self) -> dict[str, str] | None:
        """Give the tags that were set, if any were. For the runtime."""
        return self._tags

    def _cancel(self) -> None:
        """Tell the activity that its result is no longer wanted. For the runtime."""
        self._cancelled = True

    def _empty(self, model: type[S]) -> S:
        try:
            return model()
        except Exception as error:
            problem = _fields(error) if isinstance(error, ValidationError) else str(error)
            raise DefinitionError(
                f"activity {self.name}: the workflow has no state yet and {_shown(model)}() fails ({problem}). Give "
                "every field of it a default."
            ) from error


class _Done:
    """Awaiting it takes no time."""

    def __await__(self) -> Generator[None]:
        yield from ()


_DONE = _Done()


@dataclass(slots=True, frozen=True, eq=False)
class _Asked:
    """The state an activity asked for: as it was handed out (changed in place since) and as it was encoded then."""

    model: Any
    codec: Codec[Any]
    value: Any
    encoded: bytes


def _fields(error: ValidationError) -> str:
    """Name the fields in one line: pydantic's own text takes three for each."""
    return "; ".join(f"{'.'.join(map(str, found['loc']))}: {found['msg']}" for found in error.errors())


def _shown(model: Any) -> str:
    return model.__qualname__ if type(model) is type or hasattr(model, "model_fields") else str(model)
