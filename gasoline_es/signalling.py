"""Sending signals from outside (api.md, "Outside"; semantics.md §5)."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal, overload

from gasoline_es.core.commands import Discard, DiscardParked, Park, Reply, SendSignal
from gasoline_es.core.durations import duration_us
from gasoline_es.core.ids import (
    check_caller_id,
    check_name,
    check_workflow_id,
    new_workflow_id,
)
from gasoline_es.core.parked import parked_id
from gasoline_es.core.tags import Tags, canonical, check_tags, matches
from gasoline_es.definitions import Workflow
from gasoline_es.dispatching import Dispatching
from gasoline_es.errors import (
    DefinitionError,
    WorkflowNotFound,
)
from gasoline_es.handles import SignalTo
from gasoline_es.operating import refuse_at_work
from gasoline_es.outside import check_size, raised
from gasoline_es.runtime.node import Node
from gasoline_es.signals import Signal, signal_codec

AnyWorkflow = Workflow[Any, Any]

_NOBODY: Final = "00000000-0000-7000-8000-000000000000"


@dataclass(frozen=True, slots=True)
class Sent:
    """A signal by its id, and whose queue it was put in.

    None: it ``stands`` "parked", by this call if ``created``; or is "delivered" since it was parked before.
    """

    id: str
    target: str | None
    stands: Literal["parked", "delivered"] | None = None
    created: bool = True


class Signalling(Dispatching):
    """Sends signals, after whatever the same client has dispatched before."""

    def __init__(self, node: Node, operator: str = "") -> None:
        super().__init__(node, operator)
        self._parking_now: dict[str, Park] = {}
        """Signals that are being parked: those sent after them stay behind them."""

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
        day, and of 10,000 parked signals at least. It returns the id if a workflow gets or got the signal, and raises if
        nobody does.

        Raises: ValueError: both ways of addressing were used, or none; ``park`` is no time that can be waited, or goes with
            ``to=``. WorkflowNotFound: none such; with ``graceful_not_found`` None is returned instead. SignalDiscarded: one
            with this ``id`` was parked before, and no workflow came in time (a GasolineError: what is recorded of it makes no
            sense); nothing is sent. NotSerializable, RecordTooLarge: nothing is sent. DefinitionError: it is no signal; or an
            activity or operation of a workflow sends it without saying ``from_activity=True``, as the body's ``ctx.signal``
            counts once.
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
            command = span.carry(command)
            parking = None if park_us is None else self._parking(command, name, wanted, park_us)
            sent = await self._signal_first(name, wanted, command, parking)
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
        command = self._send_command(name, body, _NOBODY, caller_id)
        parking = None if park_us is None else self._parking(command, workflow, wanted, park_us)
        sent = await self._signal_first(workflow, wanted, command, parking)
        if sent is None:
            raise _nobody(workflow, wanted)
        return sent

    async def _signal_first(
        self, name: str, wanted: dict[str, str], signal: SendSignal, parking: Park | None = None
    ) -> Sent | None:
        """Send a signal to the oldest incomplete workflow that matches when the call has its turn; None: there is none.

        ``signal``: for nobody yet. ``parking``: what is asked for instead, where there is none yet, or where the signal would
        overtake parked ones.
        """
        passed: set[str] = set()
        waiting = False

        async def first_match() -> SendSignal | Park | None:
            nonlocal waiting
            # What is recorded is older than what is not. The signal is decided after the dispatch, as calls keep their order.
            # Looked at first: while the views are asked, one may be decided in a partition that was passed already.
            earlier = self._dispatching(name, wanted, passed)
            first = await self._node.viewing.first(name, wanted, passed)
            found, tags = (None, wanted) if first is None else (first.id, first.tags)
            if found is None and earlier is not None:
                found, tags = earlier.id, earlier.tags
            if parking is not None and (found is None or await self._stays_behind(parking, tags)):
                waiting = True
                self._parking_now[parking.parked_id] = parking
                return parking
            return None if found is None else replace(signal, workflow_id=found)

        try:
            while (decided := await self._calls.decide_prepared(first_match)) is not None:
                command, reply = decided
                if not isinstance(reply.error, WorkflowNotFound):
                    raised(reply)
                    if isinstance(command, Park):
                        return Sent(reply.id, None, reply.stands or "parked", reply.created)
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
        view = await self._node.viewing.parked(self._node.index_of(parking.parked_id))
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

    @overload
    async def discard_signal(self, signal_id: str, *, to: str) -> None: ...
    @overload
    async def discard_signal(self, signal_id: str, workflow: AnyWorkflow, *, tags: Tags | None = None) -> None: ...
    async def discard_signal(
        self,
        signal_id: str,
        workflow: AnyWorkflow | None = None,
        *,
        to: str | None = None,
        tags: Tags | None = None,
    ) -> None:
        """Take away a signal that nobody has taken yet: of a workflow's queue (``to=``), or one that is parked.

        A parked one is addressed as it was sent: by the workflow and exactly the tags. Durable on return: no listen and no
        replay gets the signal, also after a ``rerun``. Its id stays known, so that a repeat of the sender's does not bring it
        back. A workflow that is dead stays so: see ``wake``. Discarding a signal again changes nothing, so a call whose
        answer was lost can be repeated.

        Raises: ValueError: both ways of addressing were used, or none; that is no id. WorkflowNotFound: ``to`` is no
            workflow. SignalNotFound: no such signal came there, or is parked. GasolineError: a listen has taken it already,
            and what is recorded stays: mend the code and wake the workflow, or ``rerun`` it; or a workflow has got the parked
            one meanwhile, whose id is said; or what is recorded of it makes no sense. InvalidTags.
        """
        self._writable("discard_signal")
        if (to is None) == (workflow is None) or (to is not None and tags is not None):
            raise ValueError(
                "give `to=` (a workflow id), or the workflow and the tags with which the signal was parked, one of the two"
            )
        check_caller_id("signal id", signal_id)
        if to is not None:
            await self._discard(signal_id, to)
            return
        assert workflow is not None
        name = check_name("workflow", workflow.name)
        await self._discard_parked(signal_id, name, check_tags(tags, f"a signal parked for {name!r}"))

    async def _discard(self, signal_id: str, to: str) -> Reply:
        return await self._decide(Discard(check_workflow_id(to), signal_id, self._by))

    async def _discard_parked(self, signal_id: str, workflow: str, tags: dict[str, str]) -> Reply:
        """Discard a parked signal by the name that it waits for: for tools, too, that have no code of it."""
        stream = parked_id(self._node.log.namespace, workflow, tags, signal_id)
        return await self._decide(DiscardParked(stream, signal_id, workflow, self._by))

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
