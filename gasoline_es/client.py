"""What one calls outside a workflow: dispatch, signal, ask (api.md, "Outside")."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeVar, get_args, overload

from gasoline_es.core.codec import decode
from gasoline_es.core.commands import Cancel, Dispatch, Park, Recover, Reply, Rerun, SendSignal, Silence, Wake
from gasoline_es.core.decide import not_found, without_output
from gasoline_es.core.durations import duration_us, to_datetime
from gasoline_es.core.events import Event, WorkflowCompleted
from gasoline_es.core.filters import Filters
from gasoline_es.core.ids import (
    check_caller_id,
    check_name,
    check_workflow_id,
    is_workflow_id,
    new_workflow_id,
    slot_of,
    unique_slot,
    workflow_id_from_key,
)
from gasoline_es.core.location import format_location, read_location
from gasoline_es.core.packets import Packet
from gasoline_es.core.parked import parked_id
from gasoline_es.core.repeats import difference_of_inputs
from gasoline_es.core.starting_over import RerunInfo, plan
from gasoline_es.core.state import Status, Summary, WorkflowState
from gasoline_es.core.tags import Tags, canonical, check_tags, matches
from gasoline_es.core.values import parse_json
from gasoline_es.definitions import Workflow
from gasoline_es.errors import (
    DefinitionError,
    KeyReused,
    LogCorrupt,
    WorkflowFailed,
    WorkflowNotFound,
)
from gasoline_es.handles import SignalTo, WorkflowHandle, WorkflowInfo, check_its_name
from gasoline_es.messages import Message, Received, check_message, check_message_kind, message_codec
from gasoline_es.operating import OperationContext, at_work, check_operation, refuse_at_work
from gasoline_es.operations import Operation
from gasoline_es.outside import check_size, raised
from gasoline_es.reviving import Progress, ReviveInfo, check_revival, dead_ones, revive, told
from gasoline_es.runtime.call_span import UNTRACED, CallSpan
from gasoline_es.runtime.histories import fold, history
from gasoline_es.runtime.node import Node, Watch
from gasoline_es.scheduling import Scheduling
from gasoline_es.signals import Signal, signal_codec
from gasoline_es.subscribing import Subscription, received

I = TypeVar("I")  # noqa: E741  # the input, next to O, the output
O = TypeVar("O")  # noqa: E741
M = TypeVar("M", bound=Message)
AnyWorkflow = Workflow[Any, Any]

BUFFER: Final = 1_000
"""So many messages wait for a subscriber, unless it says otherwise."""
_STATUSES: tuple[str, ...] = get_args(Status)
UNIQUE_OR_KEY: Final = "give `unique` or `key`, not both: a key already makes the workflow one of a kind"
_NOBODY = "00000000-0000-7000-8000-000000000000"


@dataclass(frozen=True, slots=True, eq=False)
class _UnderWay:
    """A dispatch that is not decided yet. ``id``: what it gets if it is new. ``decided``: what it got; None: it failed."""

    id: str
    name: str
    tags: Mapping[str, str]
    decided: asyncio.Future[str | None]


@dataclass(frozen=True, slots=True)
class Sent:
    """A signal by its id, and whose queue it is in. None: it is parked; or, unless it was ``created`` now, was before."""

    id: str
    target: str | None
    created: bool = True


class Client(Scheduling):
    """The verbs of a log opened for one namespace. Calls are decided in the order they are made, also under gather."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._undecided: dict[_UnderWay, None] = {}
        """Dispatches under way, in the order of the calls: a signal by tags finds what was dispatched just before it."""
        self._parking_now: dict[str, Park] = {}
        """Signals that are being parked: those sent after them stay behind them."""

    # --- starting -----------------------------------------------------------------------------------------------------

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
        _check_ray_id(ray_id)
        with self._span("dispatch", workflow.name) as span:
            try:
                reply = await self._dispatch(workflow.name, payload, canonical_tags, unique, key, ray_id or "", span)
                workflow_id = reply.id
            except KeyReused as reused:
                await self._check_repeats(reused.workflow_id, key, workflow, payload)
                workflow_id = reused.workflow_id
            span.reached(workflow_id)
        return WorkflowHandle(self, workflow_id, workflow)

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
            found = await self._node.find(command.name, command.tags)
            earlier = None if found is not None else self._dispatching(command.name, command.tags, (), this)
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

    # --- signals ------------------------------------------------------------------------------------------------------

    @overload
    async def signal(self, signal: Signal, *, to: str, id: str | None = None, from_activity: bool = False) -> str: ...
    @overload
    async def signal(
        self,
        signal: Signal,
        workflow: AnyWorkflow,
        *,
        tags: Tags | None = None,
        id: str | None = None,
        park: float | timedelta | None = None,
        graceful_not_found: Literal[False] = False,
        from_activity: bool = False,
    ) -> str: ...
    @overload
    async def signal(
        self,
        signal: Signal,
        workflow: AnyWorkflow,
        *,
        tags: Tags | None = None,
        id: str | None = None,
        park: float | timedelta,
        graceful_not_found: bool,
        from_activity: bool = False,
    ) -> str: ...
    @overload
    async def signal(
        self,
        signal: Signal,
        workflow: AnyWorkflow,
        *,
        tags: Tags | None = None,
        id: str | None = None,
        park: float | timedelta | None = None,
        graceful_not_found: bool,
        from_activity: bool = False,
    ) -> str | None: ...
    async def signal(
        self,
        signal: Signal,
        workflow: AnyWorkflow | None = None,
        *,
        to: str | None = None,
        tags: Tags | None = None,
        id: str | None = None,
        park: float | timedelta | None = None,
        graceful_not_found: bool = False,
        from_activity: bool = False,
    ) -> str | None:
        """Send a signal to a workflow by id (``to=``), or to the oldest incomplete one of a name with these tags.

        Returns the signal's id once it is queued, durably. With the caller's ``id`` a repeat changes nothing.

        ``park`` (seconds, or a timedelta), with a name: where there is no such workflow yet, the signal is parked, durably on
        return: the first one with these tags that is dispatched within that time gets it, once. If none is, the signal is
        discarded, which is recorded. Signals that one client sends with ``park`` reach a workflow in the order in which they
        were sent. A repeat with the caller's ``id`` changes nothing while it is parked, and later: ids are remembered for a
        day, and of 10,000 parked signals at least.

        Raises: ValueError: both ways of addressing were used, or none; ``park`` is no time that can be waited, or goes with
            ``to=``. WorkflowNotFound: none such; with
            ``graceful_not_found`` None is returned instead. NotSerializable, RecordTooLarge: nothing is sent. DefinitionError:
            it is no signal; or an activity or operation of a workflow sends it without saying ``from_activity=True``, as
            the body's ``ctx.signal`` counts once.
        """
        self._writable("signal")
        refuse_at_work("signal", "an `id=`", from_activity=from_activity)
        if (to is None) == (workflow is None) or (to is not None and tags is not None):
            raise ValueError("give `to=` (a workflow id) or a workflow with tags, one of the two")
        park_us = None if park is None else _check_park(park, to)
        if to is not None:
            command = self._signal_command(signal, to, id)
            with self._span("signal", command.name) as span:
                reply = await self._decide(span.carry(command))
                span.reached(to, reply.id)
                return reply.id
        assert workflow is not None
        name = check_name("workflow", workflow.name)
        wanted = check_tags(tags, f"signal to {name!r}")
        # What is wrong with the signal is said before anybody is looked up.
        command = self._signal_command(signal, _NOBODY, id)
        with self._span("signal", command.name) as span:
            checked = span.carry(command)
            parking = None if park_us is None else self._parking(checked, name, wanted, park_us)
            sent = await self._signal_first(
                name, wanted, lambda found: span.carry(self._signal_command(signal, found, id)), parking
            )
            if sent is not None:
                if sent.target is not None:
                    span.reached(sent.target, sent.id)
                return sent.id
            if graceful_not_found:
                return None
            raise _nobody(name, wanted)

    async def _signal_json(
        self,
        name: str,
        body: bytes,
        *,
        to: str | None,
        workflow: str,
        tags: Tags | None,
        caller_id: str | None,
        park: float | timedelta | None = None,
    ) -> Sent:
        """Send a signal by its name, with JSON that nothing is held against: for tools that have no code of it.

        Addressed ``to`` a workflow's id, or else to the first ``workflow`` with these tags.
        """
        self._writable("signal")
        park_us = None if park is None else _check_park(park, to)
        if to is not None:
            command = self._send_command(name, body, to, caller_id)
            return Sent((await self._decide(command)).id, to)
        wanted = check_tags(tags, f"signal to {check_name('workflow', workflow)!r}")
        checked = self._send_command(name, body, _NOBODY, caller_id)
        parking = None if park_us is None else self._parking(checked, workflow, wanted, park_us)
        sent = await self._signal_first(
            workflow, wanted, lambda found: self._send_command(name, body, found, caller_id), parking
        )
        if sent is None:
            raise _nobody(workflow, wanted)
        return sent

    async def _signal_first(
        self, name: str, wanted: dict[str, str], made: Callable[[str], SendSignal], parking: Park | None = None
    ) -> Sent | None:
        """Send a signal to the oldest incomplete workflow that matches when the call has its turn; None: there is none.

        ``parking``: what is asked for instead, where there is none yet, or where the signal would overtake parked ones.
        """
        passed: set[str] = set()
        waiting = False

        async def first_match() -> SendSignal | Park | None:
            nonlocal waiting
            # What is recorded is older than what is not. The signal is decided after the dispatch, as calls keep their order.
            first = await self._node.first(name, wanted, passed)
            found, tags = (None, wanted) if first is None else (first.id, first.tags)
            if found is None and (earlier := self._dispatching(name, wanted, passed)) is not None:
                found, tags = earlier.id, earlier.tags
            if parking is not None and (found is None or await self._stays_behind(parking, tags)):
                waiting = True
                self._parking_now[parking.parked_id] = parking
                return parking
            return None if found is None else made(found)

        try:
            while (decided := await self._calls.decide_prepared(first_match)) is not None:
                command, reply = decided
                if not isinstance(reply.error, WorkflowNotFound):
                    raised(reply)
                    if isinstance(command, Park):
                        return Sent(reply.id, None, reply.created)
                    return Sent(reply.id, command.workflow_id)
                # It completed between the look-up and the send: the next one is the first now.
                passed.add(command.workflow_id)
            return None
        finally:
            if waiting and parking is not None:
                self._parking_now.pop(parking.parked_id, None)

    def _parking(self, signal: SendSignal, workflow: str, wanted: dict[str, str], park_us: int) -> Park:
        """Return the command that parks a signal. Raises: RecordTooLarge."""
        check_size(f"signal {signal.name!r}", signal.body, canonical(wanted).encode())
        namespace = self._node.log.namespace
        return Park(
            parked_id(namespace, workflow, wanted, signal.signal_id),
            signal.signal_id,
            signal.name,
            signal.body,
            workflow,
            wanted,
            park_us,
            self._by,
            signal.by_caller,
            signal.traceparent,
        )

    async def _stays_behind(self, parking: Park, tags: Mapping[str, str]) -> bool:
        """Whether a signal must not go to a workflow with these tags at once: it was parked before, or others are first."""
        if any(matches(tags, one.tags) for one in self._parking_now.values() if one.workflow == parking.workflow):
            return True
        view = await self._node.parked(self._node.index_of(parking.parked_id))
        return view.get(parking.parked_id) is not None or bool(view.waiting_for(parking.workflow, tags))

    async def signal_many(self, signals: Iterable[SignalTo], *, from_activity: bool = False) -> builtins.list[str]:
        """Send many signals, in order, in one append; returns their ids once all are durable.

        All are checked before any is sent. Raises: like ``signal``, for the first that fails; the others are sent.
        """
        self._writable("signal_many")
        refuse_at_work("signal", "an `id=` for each", from_activity=from_activity)
        commands = [self._signal_command(one.signal, one.to, one.id) for one in signals]
        names = {command.name for command in commands}
        with self._span("signal", names.pop() if len(names) == 1 else "many", len(commands)) as span:
            replies = await self._calls.decide_many([span.carry(command) for command in commands])
            return [raised(reply).id for reply in replies]

    def _signal_command(self, signal: Signal, to: str, caller_id: str | None) -> SendSignal:
        if not isinstance(signal, Signal):  # pyright: ignore[reportUnnecessaryIsInstance] -- comes from users
            raise DefinitionError(f"a signal is an instance of a class derived from Signal, not {signal!r}")
        kind = type(signal)
        body = signal_codec(kind).encode(signal, kind.__signal_name__)
        return self._send_command(kind.__signal_name__, body, to, caller_id)

    def _send_command(self, name: str, body: bytes, to: str, caller_id: str | None) -> SendSignal:
        check_size(f"signal {check_name('signal', name)!r}", body)
        check_workflow_id(to)
        if caller_id is not None:
            check_caller_id("signal id", caller_id)
        signal_id = caller_id or new_workflow_id(self._node.clock.now_us(), self._node.entropy(8))
        return SendSignal(to, signal_id, name, body, caller_id is not None)

    # --- messages -----------------------------------------------------------------------------------------------------

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
        _check_ray_id(ray_id)
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

    # --- operations ---------------------------------------------------------------------------------------------------

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
        _check_ray_id(ray_id)
        caller = at_work.get()
        context = OperationContext(
            name=operation.name,
            ray_id=ray_id or (caller.ray_id if caller is not None else self._new_ray_id()),
            workflow_id=None if caller is None else caller.workflow_id,
            workflow_name=None if caller is None else caller.workflow_name,
            _operations=self._node.operations,
        )
        return await self._node.operations.run(operation, input, context)

    def _new_ray_id(self) -> str:
        return new_workflow_id(self._node.clock.now_us(), self._node.entropy(8))

    # --- asking -------------------------------------------------------------------------------------------------------

    def handle(self, workflow_id: str, workflow: Workflow[Any, O]) -> WorkflowHandle[O]:
        """Return a handle for an id. Whether there is such a workflow shows at first use."""
        return WorkflowHandle(self, workflow_id, workflow)

    async def find(self, workflow: Workflow[Any, O], *, tags: Tags | None = None) -> WorkflowHandle[O] | None:
        """Return the oldest incomplete workflow of this name whose tags contain ``tags``, or None."""
        self._outside("find")
        found = await self._node.find(workflow.name, check_tags(tags, f"find {workflow.name!r}"))
        return None if found is None else WorkflowHandle(self, found, workflow)

    async def get(self, workflow_id: str) -> WorkflowInfo:
        """Return where a workflow stands, as of what is durable. Raises: WorkflowNotFound."""
        self._outside("get")
        index = self._index(workflow_id)
        summary = await self._summary(index, workflow_id)
        return self._info(summary, index, await self._state(index, workflow_id))

    async def history(self, workflow_id: str) -> builtins.list[Event]:
        """Return a workflow's events in order. Raises: WorkflowNotFound."""
        self._outside("history")
        index = self._index(workflow_id)
        await self._summary(index, workflow_id)
        views = await self._node.views(index)
        return await history(workflow_id, self._node.log, self._node.topics.events, index, views)

    async def list(
        self,
        *,
        name: str | None = None,
        tags: Tags | None = None,
        status: Status | None = None,
        error: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        payloads: bool = False,
    ) -> AsyncIterator[WorkflowInfo]:
        """Yield workflows in order of creation that match all that is given.

        ``error``: a part of the error's text. ``since``: created at or after it; ``until``: before it. ``payloads``: also
        read the inputs, outputs and states, which costs a read of each history.

        Raises: ValueError: there is no such status, or a time has no zone.

        Raises: LogCorrupt: the log is damaged; all that can be read was yielded before.
        """
        self._outside("list")
        if status is not None and status not in _STATUSES:
            raise ValueError(f"there is no status {status!r}: it is one of {', '.join(_STATUSES)}")
        since_us = None if since is None else _moment_us("since", since)
        until_us = None if until is None else _moment_us("until", until)
        wanted = Filters(name, check_tags(tags, "list"), status, error, since_us, until_us)
        found: builtins.list[tuple[int, str, int, Summary]] = []
        damage: LogCorrupt | None = None
        for index in range(self._node.log.partition_count):
            views, damaged = await self._node.readable(index)
            damage = damage or damaged
            found.extend((s.created_us, s.id, index, s) for s in views.summaries() if wanted.match(s))
        found.sort(key=lambda entry: entry[:2])
        for _, workflow_id, index, summary in found:
            state = await self._state(index, workflow_id) if payloads else None
            yield self._info(summary, index, state)
        if damage is not None:
            raise damage

    async def wake(self, workflow_id: str) -> None:
        """Run a workflow again: a dead one replays what is recorded. A running or complete one is left alone.

        Raises: WorkflowNotFound. GasolineError: it was silenced, or is unreadable.
        """
        self._writable("wake")
        await self._decide(Wake(check_workflow_id(workflow_id), self._by))

    async def cancel(self, workflow_id: str, *, now: bool = False) -> None:
        """End a workflow for good. On return that is durable: from here on it can only end as cancelled.

        Its body is thrown a ``Cancelled`` where it waits, and may clean up with steps of its own before it ends; what it
        returns or raises then changes nothing. What ``on_rollback`` was given does not run. With ``now`` it ends at once and
        does not clean up: for one that is stuck in its clean-up, or whose code is gone. A dead one has no body to clean up,
        and ends at once. Cancelling a workflow again changes nothing, so a call whose answer was lost can be repeated.

        Raises: WorkflowNotFound. GasolineError: it is complete already, or silenced, or unreadable.
        """
        self._writable("cancel")
        await self._decide(Cancel(check_workflow_id(workflow_id), self._by, now))

    async def silence(self, workflow_id: str) -> None:
        """Take a workflow out of sight: it is over as it stands, and will not run again (semantics.md §7).

        Durable on return. Its body has no say, and nothing is undone; activities that run are stopped, and what they give is
        recorded nowhere. It takes no signals, no tags and no unique dispatch find it, and who waits for its output gets
        WorkflowSilenced. Its history stays, with the error it died of. Silencing it again changes nothing, so a call whose
        answer was lost can be repeated. There is no way back but a fork: ``rerun(…, fork=True)``.

        Raises: WorkflowNotFound. GasolineError: it is complete, cancelled or being cancelled, or unreadable.
        """
        self._writable("silence")
        await self._decide(Silence(check_workflow_id(workflow_id), self._by))

    async def recover(self, workflow_id: str) -> None:
        """Let the activities whose final failures a workflow died of run again, from their first attempts.

        Durable on return. What failed and was caught stays as it is, and so does everything else that is recorded.

        Raises: WorkflowNotFound. GasolineError: it is not dead, or it died of something else than an activity's failure,
            or it was rolled back since.
        """
        self._writable("recover")
        await self._decide(Recover(check_workflow_id(workflow_id), self._by))

    async def revive(
        self,
        *,
        name: str | None = None,
        error: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> ReviveInfo:
        """Wake every dead workflow that matches, once what they died of is mended; say which (semantics.md §7).

        ``name``: of the workflow. ``error``: a part of the error's text, as ``list`` takes it; ``""`` is any. ``dry_run``: only
        say which they are. ``progress``: called with how many of how many were asked for, now and then.

        They are woken a hundred at a time, and each hundred is durable before the next. Each is woken as by :meth:`wake`, if
        it still matches when its partition's owner decides: so it may be called beside running workers, and again after
        an error, which leaves those woken that were. A final failure of an activity stays final: see :meth:`recover`.

        Raises: ValueError: neither was given. DefinitionError: that can be no name. NoOwner, LogError: see there.
        """
        wanted = check_revival(name, error)
        if dry_run:
            self._outside("revive")
            return told(await dead_ones(self._node, wanted), dry_run=True)
        self._writable("revive")
        return await revive(self._node, self._calls, self._by, wanted, progress)

    async def rerun(
        self, workflow_id: str, from_location: str, *, fork: bool = False, dry_run: bool = False
    ) -> RerunInfo:
        """Let a workflow start over from a step, in the code of today, whatever became of it since.

        ``from_location``: where the step stands, as its history shows it: ``"{2, 5, 3}"`` or ``"2,5,3"``. What came after the
        step on its branch, and on the branches around it, stays in the history and holds no more; signals that were taken
        by it are queued again, and state and tags are those of before. Steps beside it in a join stay. ``fork``: a new
        workflow starts over so, and this one is left alone. ``dry_run``: only say what would be done.

        Raises: RerunRefused: nothing is recorded there, or it was silenced and this is no fork. WorkflowNotFound; TypeError,
            ValueError: no location. RecordTooLarge: there are too many pieces of history to name. Nothing is recorded.
        """
        start = read_location(from_location)
        check_workflow_id(workflow_id)
        if dry_run:
            facts = [event.fact for event in await self.history(workflow_id)]
            return plan(facts, start, fork=fork).info(workflow_id)
        self._writable("rerun")
        now_us, entropy = self._node.clock.now_us(), self._node.entropy
        rerun_id = new_workflow_id(now_us, entropy(8))
        fork_id = new_workflow_id(now_us, entropy(8), slot_of(workflow_id)) if fork else None
        reply = await self._decide(Rerun(workflow_id, format_location(start), self._by, rerun_id, fork_id))
        assert reply.output is not None
        return RerunInfo.read(reply.output)

    # ------------------------------------------------------------------------------------------------------------------

    async def _output(self, workflow_id: str, name: str, timeout: float | timedelta | None) -> bytes:
        self._outside("output")
        limit_s = None if timeout is None else duration_us(timeout, "timeout of output") / 1e6
        index = self._index(workflow_id)
        watch = self._node.watch(workflow_id)
        try:
            if limit_s is None:
                return await self._ended(index, workflow_id, name, watch)
            limit = asyncio.timeout(limit_s)
            try:
                async with limit:
                    return await self._ended(index, workflow_id, name, watch)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise TimeoutError(await self._why_not_yet(index, workflow_id, limit_s)) from None
        finally:
            self._node.unwatch(workflow_id, watch)

    async def _ended(self, index: int, workflow_id: str, name: str, watch: Watch) -> bytes:
        """Wait until the workflow has completed; return its output. Raises: as ``output``, but for the time."""
        while True:
            watch.changed.clear()
            self._node.check()
            if watch.output is not None:
                return watch.output
            summary = await self._summary(index, workflow_id)
            check_its_name(workflow_id, name, summary.name)
            if summary.status == "complete":
                output = await self._recorded_output(index, workflow_id)
                if output is not None:
                    return output
                continue  # it started over in the meantime
            if summary.status in ("cancelled", "silenced"):
                raise without_output(workflow_id, summary.name, summary.status)
            if summary.status in ("dead", "unreadable"):
                raise _failed(summary)
            await watch.changed.wait()

    async def _why_not_yet(self, index: int, workflow_id: str, limit_s: float) -> str:
        summary = await self._summary(index, workflow_id)
        at = f"{summary.status} since {_at(summary.updated_us)}"
        if (waiting := summary.waiting) is not None and summary.status == "sleeping":
            at += f", waits for {waiting}"
            at += "" if waiting.deadline_us is None else f" until {_at(waiting.deadline_us)}"
        return (
            f"workflow {summary.name!r} {workflow_id} did not complete within {limit_s:g} s: it is {at}; "
            f"{self._who_runs(index, summary.name)}"
        )

    def _who_runs(self, index: int, name: str) -> str:
        node = self._node
        owner = node.log.owner(index)
        if owner is None or not owner.alive:
            return f"no process owns its partition ({index}): start a worker, `gasoline.worker([{name}])`"
        if not owner.mine:
            return f"process {owner.pid} on {owner.host or 'this host'} owns its partition ({index})"
        if node.driver is None:
            return (
                f"this process owns its partition ({index}), but runs no worker: start one, `gasoline.worker([{name}])`"
            )
        if name not in node.driver.registry:
            return f"the worker of this process was not given it: `gasoline.worker([…, {name}])`"
        return "the worker of this process runs it"

    async def _recorded_output(self, index: int, workflow_id: str) -> bytes | None:
        views = await self._node.views(index)
        located = views.located(workflow_id)
        # Its completion is nearly always its last event: the whole history costs as many reads as it has events.
        for last in self._node.log.read_at(self._node.topics.events, index, located.offsets[-1:], located.places[-1:]):
            if last.value is not None and isinstance(data := decode(last.value).data, WorkflowCompleted):
                return data.output
        return (await self._state(index, workflow_id)).output

    def _span(self, verb: str, name: str, count: int | None = None) -> CallSpan:
        tracing = self._node.tracing
        return UNTRACED if tracing is None else tracing.call(verb, name, count)

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

    def _index(self, workflow_id: str) -> int:
        return self._node.index_of(check_workflow_id(workflow_id))

    async def _summary(self, index: int, workflow_id: str) -> Summary:
        summary = (await self._node.views(index)).summary(workflow_id)
        if summary is None:
            raise not_found(workflow_id)
        return summary

    async def _state(self, index: int, workflow_id: str) -> WorkflowState:
        views, _ = await self._node.readable(index)  # damage was told by whoever looked the workflow up
        return fold(workflow_id, self._node.log, self._node.topics.events, index, views)

    def _info(self, summary: Summary, index: int, state: WorkflowState | None) -> WorkflowInfo:
        waiting = summary.waiting
        given = state.dispatched.input if state is not None and state.dispatched is not None else b"null"
        return WorkflowInfo(
            id=summary.id,
            name=summary.name,
            status=summary.status,
            tags=dict(summary.tags),
            input=parse_json(given),
            output=parse_json(state.output) if state is not None and state.output is not None else None,
            state=parse_json(state.document) if state is not None else None,
            error=summary.error,
            created=to_datetime(summary.created_us),
            completed=to_datetime(summary.completed_us) if summary.completed_us is not None else None,
            ray_id=summary.ray_id,
            waiting_for=None if waiting is None else str(waiting),
            waiting_until=to_datetime(waiting.deadline_us) if waiting and waiting.deadline_us is not None else None,
            queued={queued.id: queued.name for queued in state.queue.values()} if state is not None else {},
            partition=index,
            worker=summary.worker,
            events=summary.seq,
        )


def _at(time_us: int) -> str:
    return f"{to_datetime(time_us):%Y-%m-%d %H:%M:%S} UTC"


def _failed(summary: Summary) -> WorkflowFailed:
    return WorkflowFailed(
        f"workflow {summary.name!r} {summary.id} is {summary.status}: {summary.error}",
        workflow_id=summary.id,
        workflow=summary.name,
        error=summary.error,
    )


def _nobody(name: str, wanted: dict[str, str]) -> WorkflowNotFound:
    return WorkflowNotFound(f"no incomplete workflow {name!r} has the tags {wanted}", workflow=name, tags=wanted)


def _check_park(park: float | timedelta, to: str | None) -> int:
    """Return the time in microseconds. Raises: TypeError, ValueError."""
    if to is not None:
        raise ValueError(
            "`park=` goes with a workflow and its tags: nobody can be dispatched later under the id of `to=`"
        )
    park_us = duration_us(park, "park of a signal")
    if park_us == 0:
        raise ValueError("park of a signal must be longer than nothing: leave it out to park nothing")
    return park_us


def _check_ray_id(ray_id: str | None) -> None:
    if ray_id is not None and not is_workflow_id(ray_id):
        raise ValueError(f"ray_id must be a lower-case UUID, not {ray_id!r}")


def _moment_us(name: str, moment: datetime) -> int:
    if moment.tzinfo is None:
        raise ValueError(f"{name}={moment!r} has no time zone: write datetime(…, tzinfo=UTC)")
    return (moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


__all__ = ["Client"]
