"""Starting workflows from outside (api.md, "Outside"; semantics.md §6)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from gasoline_es.asking import Asking
from gasoline_es.core.commands import Dispatch, Reply
from gasoline_es.core.ids import (
    check_caller_id,
    check_name,
    new_workflow_id,
    unique_slot,
    workflow_id_from_key,
)
from gasoline_es.core.repeats import difference_of_inputs
from gasoline_es.core.tags import Tags, canonical, check_tags
from gasoline_es.definitions import Workflow
from gasoline_es.errors import (
    DefinitionError,
    KeyReused,
)
from gasoline_es.handles import WorkflowHandle
from gasoline_es.operating import refuse_at_work
from gasoline_es.outside import check_ray_id, check_size, raised
from gasoline_es.runtime.call_span import UNTRACED, CallSpan
from gasoline_es.runtime.node import Node

if TYPE_CHECKING:
    from gasoline_es.client import Client

I = TypeVar("I")  # noqa: E741  # the input, next to O, the output
O = TypeVar("O")  # noqa: E741
AnyWorkflow = Workflow[Any, Any]

UNIQUE_OR_KEY: Final = "give `unique` or `key`, not both: a key already makes the workflow one of a kind"


@dataclass(frozen=True, slots=True, eq=False)
class _UnderWay:
    """A dispatch that is not decided yet. ``id``: what it gets if it is new. ``decided``: what it got; None: it failed."""

    id: str
    name: str
    tags: Mapping[str, str]
    decided: asyncio.Future[str | None]


class Dispatching(Asking):
    """Starts workflows. Calls are decided in the order they are made, also under gather."""

    def __init__(self, node: Node, operator: str = "") -> None:
        super().__init__(node, operator)
        self._undecided: dict[_UnderWay, None] = {}
        """Dispatches under way, in the order of the calls: a signal by tags finds what was dispatched just before it."""

    async def dispatch(
        self,
        workflow: Workflow[I, O],
        input: I,
        *,
        tags: Tags | None = None,
        unique: bool = False,
        key: str | None = None,
        ray_id: str | None = None,
        from_activity: bool = False,
    ) -> WorkflowHandle[O]:
        """Start a workflow; it is durable on return.

        ``unique``: if an incomplete workflow of this name has all these tags, its handle is returned instead.
        ``key``: the caller's own name for this one workflow: the same key with the same input gives the same workflow,
        complete or not, so a call can be repeated safely. The recorded input is compared as today's code reads it: one of
        before a field with a default was added is the same as one that has the default there. ``from_activity``: an activity or
        operation of a workflow does it on purpose; otherwise it is refused there, as the body's ``ctx.dispatch`` counts once.

        Raises: NotSerializable, InvalidTags, RecordTooLarge, ValueError (an unusable key): nothing is recorded.
            DefinitionError: it is no workflow, or called in an activity. KeyReused: the key belongs to another input. NoOwner,
            LogError: see there.
        """
        self._writable("dispatch")
        refuse_at_work("dispatch", "a `key=`", from_activity=from_activity)
        if not isinstance(workflow, Workflow):  # pyright: ignore[reportUnnecessaryIsInstance] -- comes from users
            raise DefinitionError(f"dispatch takes a workflow made by @workflow, not {workflow!r}")
        if unique and key is not None:
            raise ValueError(UNIQUE_OR_KEY)
        canonical_tags = check_tags(tags, f"dispatch of {workflow.name!r}")
        payload = workflow.input_codec.encode(input, workflow.parameter)
        check_size("the input", payload, canonical(canonical_tags).encode() if canonical_tags else b"")
        check_ray_id(ray_id)
        with self._span("dispatch", workflow.name) as span:
            try:
                reply = await self._dispatch(workflow.name, payload, canonical_tags, unique, key, ray_id or "", span)
                workflow_id = reply.id
            except KeyReused as reused:
                await self._check_repeats(reused.workflow_id, key, workflow, payload)
                workflow_id = reused.workflow_id
            span.reached(workflow_id)
        return WorkflowHandle(cast("Client", self), workflow_id, workflow)

    async def _dispatch_json(
        self, name: str, payload: bytes, tags: Tags | None, *, unique: bool = False, key: str | None = None
    ) -> Reply:
        """Start a workflow by its name, with JSON that nothing is held against: for tools that have no code of it."""
        self._writable("dispatch")
        if unique and key is not None:
            raise ValueError(UNIQUE_OR_KEY)
        canonical_tags = check_tags(tags, f"dispatch of {check_name('workflow', name)!r}")
        check_size("the input", payload, canonical(canonical_tags).encode() if canonical_tags else b"")
        return await self._dispatch(name, payload, canonical_tags, unique, key, "")

    async def _dispatch(
        self,
        name: str,
        payload: bytes,
        tags: dict[str, str],
        unique: bool,
        key: str | None,
        ray_id: str,
        span: CallSpan = UNTRACED,
    ) -> Reply:
        workflow_id = self._new_id(name, tags, unique, key)
        command = span.carry(Dispatch(workflow_id, name, payload, tags, unique, key, None, ray_id))
        this = _UnderWay(workflow_id, name, tags, self._loop.create_future())
        self._undecided[this] = None
        try:
            reply = await (self._decide_unique(command, this) if unique else self._decide(command))
            this.decided.set_result(reply.id)
            return reply
        finally:
            del self._undecided[this]
            if not this.decided.done():
                this.decided.set_result(None)

    async def _decide_unique(self, command: Dispatch, this: _UnderWay) -> Reply:
        """Dispatch, unless an incomplete workflow matches when this call has its turn, in whatever partition."""
        found: str | None = None
        earlier: _UnderWay | None = None

        async def unless_there() -> Dispatch | None:
            nonlocal found, earlier
            # Looked at first: while the views are asked, one of them may be decided in a partition that was passed already.
            under_way = self._dispatching(command.name, command.tags, (), this)
            found = await self._node.viewing.find(command.name, command.tags)
            earlier = None if found is not None else under_way
            return command if found is None and earlier is None else None

        while True:
            decided = await self._calls.decide_prepared(unless_there)
            if decided is not None:
                return raised(decided[1])
            if earlier is not None:
                # Whoever owns the partition may know of another one: only its answer says which, and that it is durable.
                found = await asyncio.shield(earlier.decided)
            if found is not None:
                return Reply(found)

    async def _check_repeats(self, workflow_id: str, key: str | None, workflow: AnyWorkflow, payload: bytes) -> None:
        """Let the dispatch pass if its input is the recorded one as today's code reads that. Raises: KeyReused."""
        state = await self._state(self._index(workflow_id), workflow_id)
        recorded = b"null" if state.dispatched is None else state.dispatched.input
        differs = difference_of_inputs(recorded, payload, workflow.input_codec, workflow.parameter)
        if differs is not None:
            raise KeyReused(
                f"the key {key!r} belongs to workflow {workflow_id} of {workflow.name!r}, which was dispatched with "
                f"another input: {differs}. Use another key for another input",
                workflow_id=workflow_id,
                key=key or "",
            ) from None

    def _new_id(self, name: str, tags: dict[str, str], unique: bool, key: str | None) -> str:
        if key is not None:
            return workflow_id_from_key(self._node.log.namespace, name, check_caller_id("key", key))
        slot = unique_slot(name, canonical(tags)) if unique else None
        return new_workflow_id(self._node.clock.now_us(), self._node.entropy(8), slot)

    def _dispatching(
        self, name: str, tags: Mapping[str, str], passed: Iterable[str], before: _UnderWay | None = None
    ) -> _UnderWay | None:
        """Return the first match among this client's own dispatches under way (design §5), of those before ``before``."""
        for one in self._undecided:
            if one is before:
                return None
            if one.name == name and one.id not in passed and tags.items() <= one.tags.items():
                return one
        return None
