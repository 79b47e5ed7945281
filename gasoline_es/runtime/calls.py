"""Gets commands decided: here where this process owns the partition, through the inbox and a reply otherwise."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Final

from gasoline_es.core.commands import Dispatch, Reply, Request, SendSignal, Wake, decode_reply
from gasoline_es.errors import Fenced, LogError, NoOwner
from gasoline_es.log.port import Tail
from gasoline_es.runtime.node import Node
from gasoline_es.runtime.partition import Partition

Decidable = Dispatch | SendSignal | Wake

LOOK_AT_OWNER_S: Final = 0.2
"""How often a caller that waits for a reply looks whether the partition's owner still lives."""
REPLY_TIMEOUT_S: Final = 30.0


class Calls:
    """The commands of one client, decided in the order of the calls."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._waiting: dict[str, asyncio.Future[Reply]] = {}
        self._tail: Tail | None = None

    async def decide(self, command: Decidable) -> Reply:
        """Return what became of the command, once that is durable.

        Raises: NoOwner: nobody answered in time; the command is durable and will be decided. LogError: it is not.
        """
        (reply,) = await self._decide_in(self._node.index_of(command.workflow_id), [command])
        return reply

    async def decide_many(self, commands: Sequence[Decidable]) -> list[Reply]:
        """Decide the commands in order, those of one partition in one append; returns once all are durable."""
        places: dict[int, list[int]] = {}
        for place, command in enumerate(commands):
            places.setdefault(self._node.index_of(command.workflow_id), []).append(place)
        decided = await asyncio.gather(
            *(self._decide_in(index, [commands[place] for place in group]) for index, group in places.items())
        )
        replies: dict[int, Reply] = {}
        for group, answers in zip(places.values(), decided, strict=True):
            replies.update(zip(group, answers, strict=True))
        return [replies[place] for place in range(len(commands))]

    async def _decide_in(self, index: int, commands: Sequence[Decidable]) -> list[Reply]:
        while True:
            partition = await self._node.own(index)
            if partition is None:
                return await asyncio.gather(*(self._remote(index, command) for command in commands))
            try:
                return await _decided(partition, commands)
            except Fenced:
                # Undecided until the new owner's begin: it answers, and knows the command if it counted (by its id).
                continue

    async def _remote(self, index: int, command: Decidable) -> Reply:
        node = self._node
        topics, log = node.topics, node.log
        request_id = str(uuid.uuid4())
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if self._tail is None:
            partition = topics.reply_partition(log.incarnation, log.partition_count)
            self._tail = log.tail(topics.replies, partition)
            node.on_change(self._read_replies)
        self._waiting[request_id] = reply
        try:
            await node.post(index, Request(request_id, log.incarnation, command), command.workflow_id)
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                while not reply.done():
                    await asyncio.wait((reply,), timeout=LOOK_AT_OWNER_S)
                    if not reply.done():
                        self._read_replies()
                        await node.own(index)  # takes it over if its owner is gone, and decides what is in the inbox
            return reply.result()
        except TimeoutError:
            raise NoOwner(
                f"partition {index} has an owner that does not answer; the command {request_id} is durable and will be "
                f"decided",
                command_id=request_id,
            ) from None
        finally:
            self._waiting.pop(request_id, None)

    def _read_replies(self) -> None:
        if self._tail is None or not self._waiting:
            return
        for record in self._tail.poll():
            if record.key != self._node.log.incarnation or record.value is None:
                continue
            request_id, reply = decode_reply(record.value)
            waiting = self._waiting.get(request_id)
            if waiting is not None and not waiting.done():
                waiting.set_result(reply)


async def _decided(partition: Partition, commands: Sequence[Decidable]) -> list[Reply]:
    """Decide all of them before anything else can be decided, so that one append takes them all."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: LogError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    replies = [partition.decide(command) for command in commands]
    partition.when_durable(done)
    await future
    return replies
