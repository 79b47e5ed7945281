"""``gasoline.ingest``: records of other programs' topics start workflows and signal them (design §6)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from gasoline_es.core.error_info import error_info
from gasoline_es.core.topics import TOPIC_CHARACTERS_MAX
from gasoline_es.errors import DefinitionError
from gasoline_es.log.port import Named
from gasoline_es.pipelines import Decoder, Incoming, Pipeline, commands_of
from gasoline_es.runtime.ingesting import Ingesting, Led
from gasoline_es.runtime.node import Node

T = TypeVar("T")


class Ingestion(Generic[T]):
    """Reads a topic while the ``async with`` block lasts. Made by ``gasoline.ingest(…)``."""

    def __init__(self, node: Node, pipeline: Pipeline[T], by: str) -> None:
        topic, mapping, start = pipeline.topic, pipeline.mapping, pipeline.start
        self._mapping: Final = mapping
        self._decoder: Final = Decoder(pipeline.model)
        self._namespace: Final = node.log.namespace
        self._by: Final = by
        letters = f"{topic}.dead-letter" if pipeline.dead_letters is None else pipeline.dead_letters
        for what, one in (("topic", topic), ("dead_letters", letters)):
            _check_topic(what, one, self._namespace)
        if letters == topic:
            raise DefinitionError(f"dead letters of topic {topic!r} cannot go to that topic: they would be read again")
        name = topic if pipeline.name is None else pipeline.name
        if not name or len(name) > TOPIC_CHARACTERS_MAX or "/" in name:
            raise DefinitionError(f"name={name!r}: 1 to {TOPIC_CHARACTERS_MAX} characters without '/'")
        if start not in ("earliest", "latest"):
            raise DefinitionError(f"start={start!r}: write 'earliest' or 'latest'")
        if not callable(mapping):
            raise DefinitionError(f"a mapping is a function of a record, not {mapping!r}")
        past_lost = pipeline.past_lost
        self._ingesting: Final = Ingesting(node, name, topic, letters, self._map_all, start, past_lost=past_lost)

    async def begin(self) -> None:
        """Read from now on. Raises: DefinitionError, TopicRefused: as entering does."""
        await self._ingesting.start()

    async def end(self) -> None:
        """Read no more; what was decided still counts."""
        await self._ingesting.stop()

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end()

    async def _map_all(self, batch: Sequence[Named]) -> Sequence[Led]:
        if inspect.iscoroutinefunction(self._mapping):
            return [await self._led(self._map(named)) for named in batch]
        mapped = await asyncio.to_thread(lambda: [self._map(named) for named in batch])
        return [await self._led(one) for one in mapped]

    def _map(self, named: Named) -> Led | _Awaited:
        try:
            incoming = self._decoder.decode(named)
            mapped = self._mapping(incoming)
            if inspect.isawaitable(mapped):  # of an `async def`, or of what calls one
                return _Awaited(incoming, mapped)
            return commands_of(mapped, incoming, self._namespace, self._by), None
        except BaseException as error:  # also a SystemExit: a record must not end the process
            return (), error_info(error)

    async def _led(self, mapped: Led | _Awaited) -> Led:
        if not isinstance(mapped, _Awaited):
            return mapped
        try:
            return commands_of(await mapped.answer, mapped.incoming, self._namespace, self._by), None
        except (KeyboardInterrupt, GeneratorExit):
            raise  # on the loop these are no record's
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            return (), error_info(error)


@dataclass(frozen=True, slots=True)
class _Awaited:
    """What a mapping gave for a record, to be awaited on the loop."""

    incoming: Incoming[Any]
    answer: Awaitable[object]


def _check_topic(what: str, topic: str, namespace: str) -> None:
    if not isinstance(topic, str) or not 1 <= len(topic) <= TOPIC_CHARACTERS_MAX:  # pyright: ignore[reportUnnecessaryIsInstance] -- comes from users
        raise DefinitionError(f"{what}={topic!r}: a topic's name has 1 to {TOPIC_CHARACTERS_MAX} characters")
    if topic.startswith(f"{namespace}."):
        raise DefinitionError(
            f"{what}={topic!r} begins as the topics of namespace {namespace!r} do, which are the engine's own: take a topic "
            f"of another name, or open another namespace"
        )
