"""What a subscriber holds: the messages of a kind and topic, as they come (semantics.md §9)."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from gasoline_es.core.durations import to_datetime
from gasoline_es.core.packets import Packet
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import GasolineError
from gasoline_es.messages import Message, Received, message_codec
from gasoline_es.runtime.messages import Feed, Messages

M = TypeVar("M", bound=Message)

_log = EngineLog(__name__)


class Subscription(Generic[M]):
    """The messages of one kind and topic that are published from the moment it is entered, one after the other.

        async with gasoline.subscribe(Moved, topic={"map": "forest"}) as moves:
            async for received in moves:
                print(received.message.x)

    Entering the block subscribes, and leaving it ends the iteration wherever it goes on. An ``async for`` over a subscription
    that was not entered enters it. While nobody takes them, ``buffer`` messages wait in memory; then the oldest are
    dropped and counted in :attr:`lost`. A message whose body this code cannot read is passed, with a warning in the log of
    the process. Iterating raises: LogError: the log was closed, failed or is damaged, and nothing more will come.
    """

    def __init__(self, messages: Messages, kind: type[M], topic: dict[str, str], buffer: int) -> None:
        self._messages = messages
        self._kind = kind
        self._topic = topic
        self._buffer = buffer
        self._feed: Feed | None = None
        self._unreadable_told = False

    @property
    def lost(self) -> int:
        """How many messages were dropped because nobody took them in time."""
        return 0 if self._feed is None else self._feed.lost

    async def __aenter__(self) -> Self:
        if self._feed is not None:
            raise GasolineError("this subscription was entered before: make another with `gasoline.subscribe(…)`")
        return self._subscribed()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """End the iteration wherever it goes on, as leaving the block does. Again: nothing. Call it in the event loop."""
        if self._feed is not None:
            self._messages.unsubscribe(self._feed)

    def __aiter__(self) -> Self:
        return self._subscribed()

    async def __anext__(self) -> Received[M]:
        feed = self._subscribed()._feed
        assert feed is not None
        while (packet := await feed.next()) is not None:
            try:
                return received(self._kind, packet)
            except Exception as error:
                if not self._unreadable_told:
                    self._unreadable_told = True
                    _log.warning(
                        "a message does not read as its kind, and is passed",
                        extra={"subject": packet.name, "request_id": packet.request_id, "error": str(error)},
                    )
        raise StopAsyncIteration

    def _subscribed(self) -> Self:
        if self._feed is None:
            self._feed = self._messages.subscribe(self._kind.__message_name__, self._topic, self._buffer)
        return self


def received(kind: type[M], packet: Packet) -> Received[M]:
    """Give a message as subscribers get it. Raises: what decoding the body raises."""
    message: Any = message_codec(kind).decode(packet.body)
    return Received(message, dict(packet.topic), packet.ray_id, packet.request_id, to_datetime(packet.time_us))


__all__ = ["Subscription"]
