"""Messages and operations from outside (api.md, "Outside"; semantics.md §9)."""

from __future__ import annotations

from typing import Final, TypeVar

from gasoline_es.core.ids import (
    new_workflow_id,
)
from gasoline_es.core.packets import Packet
from gasoline_es.core.tags import Tags, canonical, check_tags
from gasoline_es.messages import Message, Received, check_message, check_message_kind, message_codec
from gasoline_es.operating import OperationContext, at_work, check_operation
from gasoline_es.operations import Operation
from gasoline_es.outside import Outside, check_ray_id, check_size
from gasoline_es.subscribing import Subscription, received

I = TypeVar("I")  # noqa: E741  # the input, next to O, the output
O = TypeVar("O")  # noqa: E741
M = TypeVar("M", bound=Message)

BUFFER: Final = 1_000
"""So many messages wait for a subscriber, unless it says otherwise."""


class Messaging(Outside):
    """Sends and gives messages, and calls operations: nothing of it is a workflow's."""

    async def message(
        self, message: Message, *, topic: Tags | None = None, wait: bool = False, ray_id: str | None = None
    ) -> None:
        """Send a message to whoever subscribes to its kind and to a part of its topic; nobody need be there.

        It goes out with the next append, and one that fails loses it. ``wait``: return once it is durable and published. It
        is never sent twice by one call. ``ray_id``: of the chain it belongs to; its request's own id unless given.

        Raises: DefinitionError, NotSerializable, InvalidTags, RecordTooLarge, ValueError: nothing is sent. LogError: it is
            not sent; with ``wait`` also for an append that failed, of which it may have been part.
        """
        self._writable("message")
        kind = type(check_message(message, "gasoline.message"))
        name = kind.__message_name__
        tags = check_tags(topic, f"the topic of message {name!r}")
        body = message_codec(kind).encode(message, name)
        check_size(f"message {name!r}", body, canonical(tags).encode())
        check_ray_id(ray_id)
        now_us = self._node.clock.now_us()
        request_id = new_workflow_id(now_us, self._node.entropy(8))
        packet = Packet(name, tags, body, ray_id or request_id, request_id, now_us)
        await self._node.messages.outgoing.send(packet, wait=wait)

    def subscribe(self, kind: type[M], *, topic: Tags | None = None, buffer: int = BUFFER) -> Subscription[M]:
        """Give the messages of a kind whose topics contain these tags, as they come: see :class:`Subscription`.

        ``buffer``: so many wait in memory for who iterates, before the oldest are dropped.

        Raises: DefinitionError: that is no kind. InvalidTags. ValueError: ``buffer`` is no whole number of at least 1.
        """
        self._outside("subscribe")
        check_message_kind(kind, "gasoline.subscribe")
        if type(buffer) is not int or buffer < 1:
            raise ValueError(f"buffer is {buffer!r}; write a whole number of messages, at least 1")
        tags = check_tags(topic, f"the topic of {kind.__message_name__!r}")
        return Subscription(self._node.messages, kind, tags, buffer)

    async def tail(self, kind: type[M], *, topic: Tags | None = None) -> Received[M] | None:
        """Give the newest message of a kind whose topic contains these tags, for ``tail_ttl`` of the kind after it was made.

        None: there is none. What this client sent before is seen. Reads the log backwards from its end, to that message or as
        far as the time goes.

        Raises: DefinitionError: that is no kind. InvalidTags. LogError. What decoding raises if the message does not read as
            the kind.
        """
        self._outside("tail")
        self._node.check()
        name = check_message_kind(kind, "gasoline.tail").__message_name__
        tags = check_tags(topic, f"the topic of {name!r}")
        packet = await self._node.messages.newest(name, tags, kind.__tail_ttl_us__)
        return None if packet is None else received(kind, packet)

    async def operation(self, operation: Operation[I, O], input: I, *, ray_id: str | None = None) -> O:
        """Call an operation in this process, under its timeout. Nothing of it is recorded, or tried again.

        It gets a copy of ``input``, and gives a copy of its output, as they come back from JSON. ``ray_id``: of the chain it
        belongs to; within an activity or operation that one's, else a new one.

        Raises: DefinitionError: it is no operation. NotSerializable: the input or output is not what it declares.
            OperationTimedOut. What the operation raises, as it is.
        """
        self._outside("operation")
        self._node.check()
        check_operation(operation, "gasoline.operation")
        check_ray_id(ray_id)
        caller = at_work.get()
        context = OperationContext(
            name=operation.name,
            ray_id=ray_id or (caller.ray_id if caller is not None else self._new_ray_id()),
            workflow_id=None if caller is None else caller.workflow_id,
            workflow_name=None if caller is None else caller.workflow_name,
            _operations=self._node.operations,
        )
        return await self._node.operations.run(operation, input, context)
