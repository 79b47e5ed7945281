"""Messages: fire-and-forget packets to whoever subscribes to their name and topic (semantics.md §9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from pydantic import BaseModel

from gasoline_es.core.durations import duration_us
from gasoline_es.core.values import Codec
from gasoline_es.errors import DefinitionError
from gasoline_es.kinds import body_codec, is_parametrized, wire_name

if TYPE_CHECKING:
    from pydantic import ConfigDict
    from typing_extensions import Unpack

M = TypeVar("M", bound="Message", covariant=True)

TAIL_TTL: Final = 90.0
"""Seconds for which the newest message of a topic can be read after it was sent, unless its kind says otherwise."""


class Message(BaseModel):
    """Derive a kind of message from it: a pydantic model whose fields are the message's body.

        class Moved(Message, tail_ttl=90):
            x: int

        class Left(Message, name="player_left"): ...

    The wire name is the class's name in snake case (``moved``), or the class keyword ``name``: it is the subject that is
    subscribed to, so a renamed class needs ``name=`` with the old one. ``tail_ttl`` (seconds or a timedelta, 90 unless
    told, a kind derived from another has that one's): for so long after it was sent the newest message of a topic can be
    read with ``gasoline.tail``. Raises: DefinitionError at the class when the name is not ``[a-z0-9_]+`` or the time is
    none.
    """

    __message_name__: ClassVar[str]
    __tail_ttl_us__: ClassVar[int] = int(TAIL_TTL * 1_000_000)

    if TYPE_CHECKING:

        def __init_subclass__(
            cls, *, name: str | None = None, tail_ttl: float | timedelta = TAIL_TTL, **kwargs: Unpack[ConfigDict]
        ) -> None: ...

    else:

        def __init_subclass__(
            cls, *, name: str | None = None, tail_ttl: float | timedelta | None = None, **kwargs: Any
        ) -> None:
            super().__init_subclass__(**kwargs)

        def __new__(cls, *args: Any, **kwargs: Any) -> Message:
            if cls is Message:
                raise DefinitionError(
                    "Message itself cannot be sent: it has no name. Derive a kind from it, `class Moved(Message): x: int`, "
                    "and send `Moved(x=1)`."
                )
            return super().__new__(cls)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        # Here and not in __init_subclass__: see Signal.
        super().__pydantic_init_subclass__()
        if is_parametrized(cls):
            return
        cls.__message_name__ = wire_name(cls, Message, kwargs.get("name"))
        tail_ttl = kwargs.get("tail_ttl")
        if tail_ttl is not None:
            try:
                cls.__tail_ttl_us__ = duration_us(tail_ttl, "tail_ttl")
            except (ValueError, TypeError) as error:
                raise DefinitionError(f"message {cls.__module__}.{cls.__qualname__}: {error}.") from error


@dataclass(frozen=True, slots=True)
class Received(Generic[M]):
    """A message as it comes to a subscriber, with what it carries besides its body.

    ``topic``: all tags it was sent with, in their text form. ``ray_id``: of the chain it belongs to. ``request_id``: of the
    very call that sent it; of a step of a body it is the id of its event, ``<workflow id>/<seq>``. ``time``: when it was
    made (UTC), by its sender's clock.
    """

    message: M
    topic: Mapping[str, str]
    ray_id: str
    request_id: str
    time: datetime


def check_message_kind(kind: object, call: str) -> type[Message]:
    """Give ``kind`` back if it is a class derived from Message. ``call``: how it is asked for. Raises: DefinitionError."""
    if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message:
        return kind
    if kind is Message:
        fix = f"Message itself has no name; give the kind, as in `{call}(Moved)`"
    elif isinstance(kind, Message):
        fix = f"give the class, not an instance: `{call}({type(kind).__name__})`"
    elif isinstance(kind, type):
        fix = f"derive it from Message: `class {kind.__name__}(Message): …`"
    else:
        fix = f"give a class derived from gasoline_es.Message, as in `{call}(Moved)`"
    raise DefinitionError(f"{kind!r} is not a kind of message; {fix}.")


def check_message(message: object, call: str) -> Message:
    """Give ``message`` back if it is an instance of a kind. ``call``: how it is sent. Raises: DefinitionError."""
    if isinstance(message, Message):
        return message
    raise DefinitionError(
        f"`{call}(…)` was given {message!r:.200}; give an instance of a class derived from Message, as in "
        f"`{call}(Moved(x=1))`."
    )


def message_codec(kind: type[Message]) -> Codec[Any]:
    """Give the codec of a kind's bodies."""
    return body_codec(kind, "message", kind.__message_name__)
