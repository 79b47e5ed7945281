"""Carries out the steps that reach others: signals, dispatches, waiting for outputs, emitted records (semantics.md §4).

Each runs as a task until its outcome is decided, however often the log is busy or full meanwhile. What may happen twice is
made so that it counts once: a dispatch has an id that follows from its place in the history, a signal goes out in the very
append that records it, and to ask for an output again changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, assert_never

from gasoline_es.core import events as ev
from gasoline_es.core.commands import AwaitOutput, Dispatch, SendSignal
from gasoline_es.core.emitted import partition_by_key
from gasoline_es.core.error_info import shortened
from gasoline_es.core.ids import derived_workflow_id, new_workflow_id, unique_slot
from gasoline_es.core.location import format_location
from gasoline_es.core.steps import DispatchStep, EmitStep, SignalStep
from gasoline_es.core.tags import canonical
from gasoline_es.core.waits import WaitOutput, WaitSend
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import (
    KeyReused,
    LogError,
    NoOwner,
    TopicRefused,
    WorkflowCancelled,
    WorkflowNotFound,
    WorkflowSilenced,
)
from gasoline_es.runtime.calls import Calls
from gasoline_es.runtime.live import Live

if TYPE_CHECKING:
    from gasoline_es.runtime.node import Node

_log = EngineLog(__name__)

AGAIN_S: Final = 0.1
AGAIN_MAX_S: Final = 5.0


class Sends:
    """``settled`` is called when a workflow's wait needs nothing more done for it; ``refused``, when that ends its run."""

    def __init__(
        self,
        node: Node,
        settled: Callable[[Live], None],
        refused: Callable[[Live, TopicRefused], None],
        broke: Callable[[Exception], None],
    ) -> None:
        self._node = node
        self._calls = Calls(node)
        self._settled = settled
        self._refused = refused
        self._broke = broke
        self._emitting: dict[Live, asyncio.Task[None]] = {}
        """The newest task of each workflow that emits: the next one goes on behind it, so records keep the body's order."""
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, live: Live, wait: WaitSend | WaitOutput) -> None:
        """Carry out a step. If its workflow leaves memory meanwhile, nothing comes of it: its next run starts it anew."""
        emits = isinstance(wait.step, EmitStep)
        before = self._emitting.get(live) if emits else None
        work = self._carry_out(live, wait) if before is None else self._behind(before, live, wait)
        task = asyncio.get_running_loop().create_task(work, name=f"gasoline-{wait.step.verb}")
        self._tasks.add(task)
        if emits:
            self._emitting[live] = task
            task.add_done_callback(lambda done: self._emitted(live, done))
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Give up what is under way."""
        for task in self._tasks:
            task.cancel()

    async def _behind(self, before: asyncio.Task[None], live: Live, wait: WaitSend | WaitOutput) -> None:
        await asyncio.wait((before,))
        await self._carry_out(live, wait)

    def _emitted(self, live: Live, task: asyncio.Task[None]) -> None:
        if self._emitting.get(live) is task:
            del self._emitting[live]

    async def _carry_out(self, live: Live, wait: WaitSend | WaitOutput) -> None:
        pause_s = AGAIN_S
        try:
            while self._wanted(live, wait):
                try:
                    await self._once(live, wait)
                    return
                except (LogError, NoOwner) as error:
                    _log.info(
                        "`ctx.%s` of workflow %s is tried again: %s",
                        wait.step.verb,
                        live.id,
                        error,
                        extra={**live.fields, "location": format_location(wait.location), "error": str(error)},
                    )
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, AGAIN_MAX_S)
        except Exception as error:
            # Nobody waits for this task: an error must not be lost while the workflow stands still.
            self._broke(error)

    def _wanted(self, live: Live, wait: WaitSend | WaitOutput) -> bool:
        return not wait.over and self._takes_answer(live, wait)

    def _takes_answer(self, live: Live, wait: WaitSend | WaitOutput) -> bool:
        """Whether an answer may be recorded: the workflow is here, and neither it nor the step is over."""
        there = live.run is not None and not live.partition.lost
        return there and live.state.summary.incomplete and live.state.history.open_at(wait.location)

    async def _once(self, live: Live, wait: WaitSend | WaitOutput) -> None:
        if isinstance(wait, WaitOutput):
            await self._ask_for_output(live, wait)
            return
        step = wait.step
        match step:
            case SignalStep():
                await self._signal(live, wait, step)
            case DispatchStep():
                await self._dispatch(live, wait, step)
            case EmitStep():
                await self._emit(live, wait, step)
            case _:
                assert_never(step)

    async def _signal(self, live: Live, wait: WaitSend, step: SignalStep) -> None:
        target = await self._node.viewing.find(step.workflow, step.tags) if step.to is None else step.to
        summary = None if target is None else await self._node.viewing.look_up(target)
        if not self._wanted(live, wait):
            return
        there = summary is not None and summary.incomplete
        if target is not None and not there and step.to is None:
            raise LogError("it completed since it was looked up")  # the next one is the first now
        signal_id = new_workflow_id(self._node.clock.now_us(), self._node.entropy(8))
        received = target if there else None
        sent = ev.SignalSent(wait.location, step.version, signal_id, step.name, step.body, received)
        live.partition.record(live, sent)
        if received is not None:
            traceparent = live.state.traceparent
            live.partition.tell(
                SendSignal(received, signal_id, step.name, step.body, sender=live.id, traceparent=traceparent)
            )

    async def _dispatch(self, live: Live, wait: WaitSend, step: DispatchStep) -> None:
        slot = unique_slot(step.name, canonical(step.tags)) if step.unique else None
        generation = live.state.generation_at(wait.location)
        place = (live.id, format_location(wait.location), *((f"g{generation}",) if generation else ()))
        workflow_id = derived_workflow_id(slot, "spawned", *place)
        found = await self._node.viewing.find(step.name, step.tags) if step.unique else None
        created = False
        if found is None:
            summary = live.state.summary
            command = Dispatch(
                workflow_id,
                step.name,
                step.input,
                step.tags,
                step.unique,
                parent=summary.id,
                ray_id=summary.ray_id,
                traceparent=live.state.traceparent,
            )
            reply = await self._calls.decide(command)
            # An id of this place in the history is there already only because this very step made it before a crash.
            if reply.error is not None and not isinstance(reply.error, KeyReused):
                raise reply.error
            found = reply.id or workflow_id
            created = found == workflow_id
        # Also when a race was decided without it meanwhile: it was started, and the history says so.
        if self._takes_answer(live, wait):
            spawned = ev.WorkflowSpawned(wait.location, step.version, found, step.name, step.tags, step.unique, created)
            live.partition.record(live, spawned)

    async def _emit(self, live: Live, wait: WaitSend, step: EmitStep) -> None:
        try:
            partitions = await self._node.log.partitions_of(step.topic)
        except TopicRefused as error:
            if self._wanted(live, wait):
                self._refused(live, error)
            return
        if self._wanted(live, wait):
            partition = partition_by_key(step.key, partitions)
            emitted = ev.RecordEmitted(wait.location, step.version, step.topic, step.key, step.value, partition)
            live.partition.emit(live, emitted)

    async def _ask_for_output(self, live: Live, wait: WaitOutput) -> None:
        step = wait.step
        at = format_location(wait.location)
        generation = live.state.generation_at(wait.location)
        reply = await self._calls.decide(AwaitOutput(step.workflow_id, live.id, at, step.version, generation))
        if not self._wanted(live, wait):
            return
        if reply.error is None and reply.output is None:
            assert live.run is not None
            live.run.asked(wait)
            self._settled(live)
            return
        error: ev.ErrorInfo | None = None
        if reply.error is not None:
            if not isinstance(reply.error, WorkflowNotFound | WorkflowCancelled | WorkflowSilenced):
                raise reply.error
            error = shortened(ev.ErrorInfo(type(reply.error).__name__, reply.error.message))
        received = ev.OutputReceived(wait.location, step.version, step.workflow_id, step.name, reply.output, error)
        live.partition.record(live, received)
