"""Gets commands decided: here where this process owns the partition, through the inbox and a reply otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from gasoline_es.core.commands import Asked, Reply, Request, decode_reply, repeated
from gasoline_es.errors import Fenced, LogError, NoOwner
from gasoline_es.log.port import Tail
from gasoline_es.runtime.partition import Partition

if TYPE_CHECKING:
    from gasoline_es.runtime.node import Node

_D = TypeVar("_D", bound=Asked)

LOOK_AT_OWNER_S: Final = 0.2
"""How often a caller that waits for a reply looks whether the partition's owner still lives."""
REPLY_TIMEOUT_S: Final = 30.0


class Calls:
    """The commands of one client, decided in the order of the calls."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._waiting: dict[str, asyncio.Future[Reply]] = {}
        self._tail: Tail | None = None
        self._order = asyncio.Lock()
        self._in_turn = 0
        """How many calls wait for their turn or have it."""

    async def decide(self, command: Asked) -> Reply:
        """Return what became of the command, once that is durable.

        Raises: NoOwner: nobody answered in time; the command is durable and will be decided. LogError: it is not.
        """
        if self._in_turn == 0:
            # Nobody waits for a turn and the partition is ours: there is nothing to wait for, and nobody to overtake.
            partition = self._node.partition_of(command.workflow_id)
            if partition is not None:
                try:
                    return (await _decided(partition, (command,)))[0]
                except Fenced as fenced:
                    (command,) = asked_again((command,), fenced)  # see _answered
        (reply,) = await self.decide_many([command])
        return reply

    def decide_now(self, commands: Sequence[Asked]) -> Sequence[Reply] | None:
        """The same of commands of one partition, in one append, before this returns; None: nothing was done.

        In the event loop's place. Raises: LogError; Fenced: :func:`asked_again` tells how they are asked again.
        """
        partition = self._node.partition_of(commands[0].workflow_id)
        if self._in_turn or partition is None:
            return None
        decided = self._node.decide_now(partition, commands)
        if decided is None:
            return None
        replies, error = decided
        if isinstance(error, Fenced):
            raise _with(error, replies)
        if error is not None:
            raise error
        return replies

    async def decide_prepared(self, prepare: Callable[[], Awaitable[_D | None]]) -> tuple[_D, Reply] | None:
        """Decide what ``prepare`` returns, which is called in this call's turn: what it looks up is as of then.

        None: there was nothing to decide. Raises: like :meth:`decide`.
        """
        self._in_turn += 1
        try:
            async with self._order:
                command = await prepare()
                if command is None:
                    return None
                index = self._node.index_of(command.workflow_id)
                begun = await self._begin(index, (command,))
        finally:
            self._in_turn -= 1
        (reply,) = await self._answered(index, (command,), begun)
        return command, reply

    async def decide_many(self, commands: Sequence[Asked]) -> list[Reply]:
        """Decide the commands in order, those of one partition in one append; returns once all are durable."""
        places: dict[int, list[int]] = {}
        for place, command in enumerate(commands):
            places.setdefault(self._node.index_of(command.workflow_id), []).append(place)
        groups = [(index, [commands[place] for place in group]) for index, group in places.items()]
        begun: list[Awaitable[list[Reply]]] = []
        self._in_turn += 1
        try:
            # A fair lock: what a call waits for here (a partition to be taken) must not let a later one overtake it.
            async with self._order:
                for index, group in groups:
                    begun.append(await self._begin(index, group))
        except BaseException:
            for one in begun:
                asyncio.ensure_future(one).add_done_callback(_leave)
            raise
        finally:
            self._in_turn -= 1
        answers = [self._answered(*group, one) for group, one in zip(groups, begun, strict=True)]
        decided = [await answers[0]] if len(answers) == 1 else await asyncio.gather(*answers)
        replies: dict[int, Reply] = {}
        for at, answered in zip(places.values(), decided, strict=True):
            replies.update(zip(at, answered, strict=True))
        return [replies[place] for place in range(len(commands))]

    async def _begin(self, index: int, commands: Sequence[Asked]) -> Awaitable[list[Reply]]:
        """Decide here, or send to whoever does; what is returned ends when all of it is durable."""
        partition = await self._node.own(index)
        if partition is None:
            return asyncio.gather(*(self._remote(index, command) for command in commands))
        return _decided(partition, commands)

    async def _answered(self, index: int, commands: Sequence[Asked], begun: Awaitable[list[Reply]]) -> list[Reply]:
        while True:
            try:
                return await begun
            except Fenced as fenced:
                # Undecided until the new owner's begin: it answers, and knows the command if it counted (by its id).
                commands = asked_again(commands, fenced)
                begun = await self._begin(index, commands)

    async def _remote(self, index: int, command: Asked) -> Reply:
        node = self._node
        topics, log = node.topics, node.log
        request_id = str(uuid.uuid4())
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if self._tail is None:
            partition = topics.reply_partition(log.incarnation, log.partition_count)
            self._tail = log.tail(topics.replies, partition)
            self._tail.skip()  # replies of before cannot be for this client, whose name is new
            node.on_change(self._read_replies)
        self._waiting[request_id] = reply
        try:
            await node.post(index, Request(request_id, log.incarnation, command), command.workflow_id)
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                while not reply.done():
                    await asyncio.wait((reply,), timeout=LOOK_AT_OWNER_S)
                    if not reply.done():
                        node.check()  # a log that failed here gives no replies any more, however long one waits
                        self._read_replies()
                        # Takes it over if its owner is gone, and decides what is in the inbox. The command is durable
                        # there: an error of taking the partition is none of the command's.
                        with contextlib.suppress(LogError):
                            await node.own(index)
            return reply.result()
        except TimeoutError:
            raise NoOwner(
                f"partition {index} has an owner that did not answer in {REPLY_TIMEOUT_S:g} s; the command {request_id} is "
                f"durable, and is decided once an owner reads it",
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


def _decided(partition: Partition, commands: Sequence[Asked]) -> asyncio.Future[list[Reply]]:
    """Decide all of them before anything else can be decided, so that one append takes them all."""
    future: asyncio.Future[list[Reply]] = asyncio.get_running_loop().create_future()
    if partition.lost:  # since it was handed out: nothing can be decided there, nor read
        future.set_exception(partition.lost)
        return future
    replies = [partition.decide(command) for command in commands]

    def done(error: LogError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(replies)
        elif isinstance(error, Fenced):
            future.set_exception(_with(error, replies))
        else:
            future.set_exception(error)

    partition.when_durable(done)
    return future


def _with(fenced: Fenced, decided: list[Reply]) -> Fenced:
    """Return the error with what was decided, for :func:`asked_again`."""
    return Fenced(fenced.message, **fenced.fields | {"decided": decided})


def asked_again(commands: Sequence[_D], fenced: Fenced) -> Sequence[_D]:
    """Return the commands as they are asked again, after an append of which it is not known whether it counts."""
    decided: list[Reply] | None = fenced.fields.get("decided")
    if decided is None:
        return commands
    return [repeated(command, reply) for command, reply in zip(commands, decided, strict=True)]


def _leave(future: asyncio.Future[list[Reply]]) -> None:
    """Nobody waits for this any more: its error is not to be complained about."""
    if not future.cancelled():
        future.exception()
