"""What all verbs that one calls outside a workflow share: where they may be called, and how they get decided."""

from __future__ import annotations

import asyncio

from gasoline_es.core.commands import Asked, Reply
from gasoline_es.core.guard import check_outside_body
from gasoline_es.core.ids import is_workflow_id, new_workflow_id
from gasoline_es.errors import GasolineError, LogReadOnly
from gasoline_es.log.port import RECORD_BYTES_MAX
from gasoline_es.runtime.call_span import UNTRACED, CallSpan
from gasoline_es.runtime.calls import Calls
from gasoline_es.runtime.fitting import LINE_BYTES_SPARE, too_large
from gasoline_es.runtime.node import Node


class Outside:
    """A log opened for one namespace, before its verbs."""

    def __init__(self, node: Node, operator: str = "") -> None:
        self._node = node
        self._operator = operator
        self._calls = Calls(node)
        self._loop = asyncio.get_running_loop()

    @property
    def _by(self) -> str:
        client = f"client {self._node.log.incarnation}"
        return f"{self._operator} ({client})" if self._operator else client

    async def _decide(self, command: Asked) -> Reply:
        return raised(await self._calls.decide(command))

    def _span(self, verb: str, name: str, count: int | None = None) -> CallSpan:
        tracing = self._node.tracing
        return UNTRACED if tracing is None else tracing.call(verb, name, count)

    def _new_ray_id(self) -> str:
        return new_workflow_id(self._node.clock.now_us(), self._node.entropy(8))

    def _outside(self, verb: str) -> None:
        check_outside_body(
            f"call `gasoline.{verb}(…)` in an activity, `await ctx.activity(…)`, or outside the workflow"
        )
        if asyncio.get_running_loop() is not self._loop:
            # It would wait for ever for what only the other loop can tell it.
            raise GasolineError(
                f"`gasoline.{verb}(…)` was called on another event loop than the one the log was opened on. Await it there; "
                f"from another thread: `asyncio.run_coroutine_threadsafe(gasoline.{verb}(…), loop).result()`, where `loop` is "
                f"the loop it was opened on. For code that is not async there is `Gasoline.open_sync(…)`"
            )

    def _writable(self, verb: str) -> None:
        self._outside(verb)
        self._node.check()
        if not self._node.log.writable:
            raise LogReadOnly(
                f"`{verb}` needs a log opened for writing; this one is opened to read: {self._node.log.url}"
            )


def raised(reply: Reply) -> Reply:
    """Return the reply. Raises: the error that it holds instead, if it does."""
    if reply.error is not None:
        raise reply.error
    return reply


def check_size(what: str, *parts: bytes) -> None:
    """Refuse at the call what could not be recorded. Raises: RecordTooLarge."""
    size = sum(map(len, parts))
    if size > RECORD_BYTES_MAX - 2 * LINE_BYTES_SPARE:
        raise too_large(what, size)


def check_ray_id(ray_id: str | None) -> None:
    """Raises: ValueError: that is no ray id."""
    if ray_id is not None and not is_workflow_id(ray_id):
        raise ValueError(f"ray_id must be a lower-case UUID, not {ray_id!r}")
