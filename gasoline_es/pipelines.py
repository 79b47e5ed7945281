"""What records of other programs' topics lead to: what a mapping is given, and what it may answer (design §6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, Literal, TypeVar, cast, overload

from pydantic import TypeAdapter, ValidationError

from gasoline_es.core.commands import Asked, Park, SendSignal
from gasoline_es.core.commands import Dispatch as DispatchCommand
from gasoline_es.core.durations import duration_us
from gasoline_es.core.ids import check_caller_id, check_workflow_id, workflow_id_from_key
from gasoline_es.core.parked import parked_id
from gasoline_es.core.tags import Tags, check_tags
from gasoline_es.definitions import Workflow
from gasoline_es.errors import DefinitionError
from gasoline_es.log.port import Named
from gasoline_es.signals import Signal, signal_codec

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
I = TypeVar("I")  # noqa: E741  # the input

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Incoming(Generic[T_co]):
    """A record of a topic, as a mapping gets it."""

    topic: str
    partition: int
    record: str
    """Its name in the partition, for ever: of Kafka the offset, else what the log calls it."""
    key: str
    value: T_co
    """As the model that ``ingest`` was given; without one the bytes, or None of a tombstone."""
    headers: Mapping[str, str]
    time: datetime
    """When it was written, as its writer says. UTC."""


@dataclass(frozen=True, slots=True)
class Dispatch(Generic[I]):
    """Start a workflow, once. ``id``: the ``key`` of ``gasoline.dispatch``; unless given, made of the record's place."""

    workflow: Workflow[I, Any]
    input: I
    tags: Tags | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """Send a signal, once: to a workflow by its id (``to``), or to the first of a definition with these tags.

    By definition and tags it is parked, for ``park`` (a day), as ``gasoline.signal(…, park=…)`` does: it reaches a workflow
    that is dispatched later, too, and those sent before it are before it. ``id``: of the signal; unless given, made of the
    record's place.
    """

    signal: Signal
    workflow: Workflow[Any, Any] | None = None
    to: str | None = None
    tags: Tags | None = None
    id: str | None = None
    park: float | timedelta = timedelta(days=1)


Action = Dispatch[Any] | Send
Mapped = Action | Sequence[Action] | None
"""What a mapping returns: one thing to do, several in this order, or None: the record is passed over."""


@dataclass(frozen=True, slots=True)
class Pipeline(Generic[T]):
    """A topic and what its records lead to, made by :func:`pipeline`: for ``gasoline.ingest(…)`` and workers.

    The fields are the arguments of ``gasoline.ingest``.
    """

    topic: str
    mapping: Callable[[Incoming[T]], Mapped | Awaitable[Mapped]]
    model: type[T] | None = None
    name: str | None = None
    dead_letters: str | None = None
    start: Literal["earliest", "latest"] = "earliest"
    past_lost: bool = False

    def __call__(self, incoming: Incoming[T]) -> Mapped | Awaitable[Mapped]:
        """Return what a record leads to: the mapping itself, for tests of it."""
        return self.mapping(incoming)


@overload
def pipeline(
    topic: str,
    *,
    model: type[T],
    name: str | None = None,
    dead_letters: str | None = None,
    start: Literal["earliest", "latest"] = "earliest",
) -> Callable[[Callable[[Incoming[T]], Mapped | Awaitable[Mapped]]], Pipeline[T]]: ...
@overload
def pipeline(
    topic: str,
    *,
    name: str | None = None,
    dead_letters: str | None = None,
    start: Literal["earliest", "latest"] = "earliest",
) -> Callable[[Callable[[Incoming[bytes | None]], Mapped | Awaitable[Mapped]]], Pipeline[bytes | None]]: ...
def pipeline(
    topic: str,
    *,
    model: type[Any] | None = None,
    name: str | None = None,
    dead_letters: str | None = None,
    start: Literal["earliest", "latest"] = "earliest",
) -> Callable[[Callable[[Incoming[Any]], Mapped | Awaitable[Mapped]]], Pipeline[Any]]:
    """Say that a function is the mapping of a topic: ``@pipeline("orders", model=Order)``.

    The arguments are those of ``gasoline.ingest``. The function stays callable. Workers run it by
    ``gasoline.worker([…], pipelines=[…])``, and ``gasoline worker MODULE --pipelines MODULE``.
    """

    def made(mapping: Callable[[Incoming[Any]], Mapped | Awaitable[Mapped]]) -> Pipeline[Any]:
        return Pipeline(topic, mapping, model, name, dead_letters, start)

    return made


class Decoder(Generic[T]):
    """Makes what a mapping gets. ``model`` None: of the bytes as they are."""

    def __init__(self, model: type[T] | None) -> None:
        self._model: Final = model
        self._adapter: Final = None if model is None else TypeAdapter(model)

    def decode(self, named: Named) -> Incoming[Any]:
        """Return a record as a mapping gets it. Raises: ValueError: its value is not of the model."""
        record = named.record
        try:
            time = _EPOCH + timedelta(microseconds=record.time_us)
        except OverflowError:
            raise ValueError(f"its time, {record.time_us // 1000} ms after 1970, is in no calendar") from None
        value = self._decoded(record.value)
        return Incoming(record.topic, record.partition, named.name, record.key, value, dict(record.headers or {}), time)

    def _decoded(self, value: bytes | None) -> Any:
        if self._adapter is None:
            return value
        name = getattr(self._model, "__name__", str(self._model))
        if value is None:
            raise ValueError(f"it has no value (a tombstone), and {name} was wanted. A mapping without `model` gets it")
        try:
            return self._adapter.validate_json(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            at = ".".join(map(str, first["loc"]))
            raise ValueError(f"it does not read as {name}: {at + ': ' if at else ''}{first['msg']}") from error


def commands_of(mapped: Any, incoming: Incoming[Any], namespace: str, by: str) -> list[Asked]:
    """Return the commands that carry out what a mapping returned, with ids that follow from the record's place.

    Raises: DefinitionError: it returned something else. NotSerializable, InvalidTags, ValueError, WorkflowNotFound.
    """
    actions = cast(Sequence[Any], mapped) if isinstance(mapped, list | tuple) else () if mapped is None else (mapped,)
    place = f"{incoming.topic}/{incoming.partition}/{incoming.record}"
    return [_command(action, f"{place}/{number}", namespace, by) for number, action in enumerate(actions)]


def _command(action: Any, place: str, namespace: str, by: str) -> Asked:
    if isinstance(action, Dispatch):
        return _dispatch(cast(Dispatch[Any], action), place, namespace)
    if isinstance(action, Send):
        return _send(action, place, namespace, by)
    raise DefinitionError(
        f"a mapping returns Dispatch(…), Send(…), a list of them, or None to pass the record over, not {action!r}"
    )


def _dispatch(action: Dispatch[Any], place: str, namespace: str) -> DispatchCommand:
    workflow: Any = action.workflow
    if not isinstance(workflow, Workflow):
        raise DefinitionError(f"Dispatch takes a workflow made by @workflow, not {workflow!r}")
    tags = check_tags(action.tags, f"dispatch of {workflow.name!r}")
    payload = workflow.input_codec.encode(action.input, workflow.parameter)
    key = place if action.id is None else check_caller_id("id", action.id)
    return DispatchCommand(workflow_id_from_key(namespace, workflow.name, key), workflow.name, payload, tags, key=key)


def _send(action: Send, place: str, namespace: str, by: str) -> SendSignal | Park:
    signal: Any = action.signal
    if not isinstance(signal, Signal):
        raise DefinitionError(f"Send takes an instance of a class derived from Signal, not {signal!r}")
    if (action.to is None) == (action.workflow is None) or (action.to is not None and action.tags is not None):
        raise ValueError("Send takes `to=` (a workflow id) or a workflow with tags, one of the two")
    kind = type(signal)
    name = kind.__signal_name__
    body = signal_codec(kind).encode(signal, name)
    signal_id = place if action.id is None else check_caller_id("id", action.id)
    if action.to is not None:
        return SendSignal(check_workflow_id(action.to), signal_id, name, body, by_caller=True)
    assert action.workflow is not None
    wanted = check_tags(action.tags, f"signal to {action.workflow.name!r}")
    park_us = duration_us(action.park, "park of a signal")
    if park_us == 0:
        raise ValueError("park of a signal must be longer than nothing")
    stream = parked_id(namespace, action.workflow.name, wanted, signal_id)
    return Park(stream, signal_id, name, body, action.workflow.name, wanted, park_us, by, by_caller=True)


__all__ = ["Action", "Dispatch", "Incoming", "Mapped", "Pipeline", "Send", "pipeline"]
