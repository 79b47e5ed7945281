"""Schedules seen from outside: making one, a handle to act on it, and where it stands (api.md, "Outside")."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from gasoline_es.core.commands import ChangeSchedule, Reply, ScheduleVerb, SetSchedule
from gasoline_es.core.ids import check_name, new_workflow_id, slot_of
from gasoline_es.core.schedule_events import (
    MISSED,
    OVERLAPS,
    Missed,
    Overlap,
    ScheduleEvent,
    decode_schedule_event,
)
from gasoline_es.core.schedule_info import ScheduleInfo, info_of
from gasoline_es.core.schedules import DUE_TAG, SCHEDULE_TAG, Schedule, run_tags, schedule_id
from gasoline_es.core.tags import Tags, canonical, check_tags
from gasoline_es.core.timetable import check_cron, check_interval
from gasoline_es.core.values import parse_json
from gasoline_es.definitions import Workflow
from gasoline_es.errors import DefinitionError, InvalidTags, ScheduleNotFound
from gasoline_es.handles import WorkflowHandle
from gasoline_es.operating import at_work
from gasoline_es.outside import Outside, check_size
from gasoline_es.runtime.histories import values_of

if TYPE_CHECKING:
    from gasoline_es.client import Client

I = TypeVar("I")  # noqa: E741  # the input, next to O, the output
O = TypeVar("O")  # noqa: E741


class ScheduleHandle(Generic[O]):
    """A schedule by name, with the type of its workflows' output. Making one asks nothing: ScheduleNotFound comes at use."""

    __slots__ = ("_client", "_definition", "name")

    def __init__(self, client: Client, name: str, definition: Workflow[Any, O]) -> None:
        self.name = name
        self._client = client
        self._definition = definition

    def __repr__(self) -> str:
        return f"<schedule {self.name}>"

    async def get(self) -> ScheduleInfo:
        """Return where it stands, as of what is durable. Raises: ScheduleNotFound."""
        return await self._client._get_schedule(self.name)  # pyright: ignore[reportPrivateUsage]

    async def pause(self) -> None:
        """Let it start nothing until it is resumed; durable on return. Raises: ScheduleNotFound."""
        await self._client._change_schedule("pause", self.name)  # pyright: ignore[reportPrivateUsage]

    async def resume(self) -> None:
        """Let it go on with the next time that comes: those that passed are not made up for. Raises: ScheduleNotFound."""
        await self._client._change_schedule("resume", self.name)  # pyright: ignore[reportPrivateUsage]

    async def trigger(self) -> WorkflowHandle[O]:
        """Start a workflow of it now, also while it is paused or another one runs; its own times stay as they are.

        Durable on return, and started once, whatever dies when. Raises: ScheduleNotFound. DefinitionError: it has another
        workflow than the handle; or called in an activity of a workflow.
        """
        reply = await self._client._trigger(self.name, self._definition)  # pyright: ignore[reportPrivateUsage]
        return WorkflowHandle(self._client, reply.id, self._definition)

    async def remove(self) -> None:
        """End it, for good; what it started goes on. One that is removed already stays so. Raises: ScheduleNotFound."""
        await self._client._change_schedule("remove", self.name)  # pyright: ignore[reportPrivateUsage]

    async def history(self) -> builtins.list[ScheduleEvent]:
        """Return all its events, in order; of those of that name before it too. Raises: ScheduleNotFound."""
        return await self._client._schedule_history(self.name)  # pyright: ignore[reportPrivateUsage]


class Scheduling(Outside):
    """The verbs about schedules."""

    async def schedule(
        self,
        when: str | float | timedelta,
        workflow: Workflow[I, O],
        input: I,
        *,
        name: str | None = None,
        tags: Tags | None = None,
        timezone: str = "UTC",
        missed: Missed = "latest",
        overlap: Overlap = "allow",
    ) -> ScheduleHandle[O]:
        """Start a workflow again and again, from now on; durable on return.

        ``when``: a cron expression (five fields, or six with seconds first), on the clocks of ``timezone``; or an interval of
        at least a second, counted from now. ``name``: of the schedule, the workflow's own unless given; a name has one
        schedule. The same call again changes nothing, so it can be made at every start of a program. With other arguments it
        changes the schedule if it names it, and is refused if it does not.

        Every workflow that it starts has ``tags``, and two more: ``schedule``, its name, and ``scheduled_for``, the time it was
        due at. One is started for each time, whatever dies when. ``missed``: of the times that passed while no process could
        start anything, the ``latest`` one counts, or ``all`` do, in order, or those of the last minute only (``skip``).
        ``overlap``: ``skip`` starts nothing while one that it started runs or sleeps.

        Raises: ValueError, TypeError: no time, time zone, or rule. ScheduleExists: another schedule has the name.
            DefinitionError, NotSerializable, InvalidTags, RecordTooLarge: as ``dispatch``. Nothing is recorded.
        """
        self._writable("schedule")
        if not isinstance(workflow, Workflow):  # pyright: ignore[reportUnnecessaryIsInstance] -- comes from users
            raise DefinitionError(f"schedule takes a workflow made by @workflow, not {workflow!r}")
        payload = workflow.input_codec.encode(input, workflow.parameter)
        own_name = workflow.name if name is None else name
        await self._set_schedule(
            when, workflow.name, payload, own_name, tags, timezone, missed, overlap, replace=name is not None
        )
        return ScheduleHandle(cast("Client", self), own_name, workflow)

    async def _set_schedule(
        self,
        when: str | float | timedelta,
        workflow: str,
        payload: bytes,
        name: str,
        tags: Tags | None,
        timezone: str,
        missed: Missed,
        overlap: Overlap,
        *,
        replace: bool,
    ) -> Reply:
        """Make or change a schedule of a workflow's name, with JSON that nothing is held against."""
        check_name("schedule", name)
        cron = check_cron(when, timezone) if isinstance(when, str) else None
        interval_us = None if isinstance(when, str) else check_interval(when)
        if cron is None and timezone != "UTC":
            raise ValueError(f"timezone={timezone!r} is about a cron expression: an interval has no clock")
        if missed not in MISSED:
            raise ValueError(f"missed is {missed!r}; it is one of {', '.join(MISSED)}")
        if overlap not in OVERLAPS:
            raise ValueError(f"overlap is {overlap!r}; it is one of {', '.join(OVERLAPS)}")
        checked = check_tags(tags, f"schedule {name!r}")
        for own in (SCHEDULE_TAG, DUE_TAG):
            if own in checked:
                raise InvalidTags(
                    f"schedule {name!r}: the tag {own!r} is set by the schedule itself", what="schedule", tag=own
                )
        check_size("the input", payload, canonical(run_tags(name, checked, 0)).encode())
        command = SetSchedule(
            schedule_id=schedule_id(self._node.log.namespace, name),
            name=name,
            workflow=check_name("workflow", workflow),
            input=payload,
            tags=checked,
            cron=None if cron is None else cron.expression,
            timezone="UTC" if cron is None else cron.timezone,
            interval_us=interval_us,
            missed=missed,
            overlap=overlap,
            by=self._by,
            replace=replace,
        )
        return await self._decide(command)

    def schedule_handle(self, name: str, workflow: Workflow[Any, O]) -> ScheduleHandle[O]:
        """Return a handle for the schedule of a name. Whether there is one shows at first use."""
        return ScheduleHandle(cast("Client", self), check_name("schedule", name), workflow)

    async def schedules(self) -> AsyncIterator[ScheduleInfo]:
        """Yield all schedules that were not removed, in order of their names, as of what is durable."""
        self._outside("schedules")
        found: builtins.list[ScheduleInfo] = []
        current = await self._node.viewing.asked(beside=True)
        for index in range(self._node.log.partition_count):
            view = await self._node.viewing.schedules(index, current)
            found += [_info(schedule, index) for schedule in view if not schedule.removed]
        for info in sorted(found, key=lambda info: (info.name, info.id)):
            yield info

    async def _get_schedule(self, name: str) -> ScheduleInfo:
        """Return where the schedule of a name stands, as of what is durable. Raises: ScheduleNotFound."""
        self._outside("get")
        schedule, index = await self._found_schedule(name)
        if schedule.removed:
            raise _no_schedule(name)
        return _info(schedule, index)

    async def _schedule_history(self, name: str) -> builtins.list[ScheduleEvent]:
        """Return all events of the schedule of a name, in order, also if it was removed. Raises: ScheduleNotFound."""
        self._outside("history")
        schedule, index = await self._found_schedule(name)
        values = await values_of(schedule.id, self._node.log, self._node.topics.schedules, index)
        return [decode_schedule_event(value) for value in values]

    async def _found_schedule(self, name: str) -> tuple[Schedule, int]:
        its_id = schedule_id(self._node.log.namespace, check_name("schedule", name))
        index = self._node.index_of(its_id)
        schedule = (await self._node.viewing.schedules(index)).get(its_id)
        if schedule is None:
            raise _no_schedule(name)
        return schedule, index

    async def _change_schedule(self, verb: ScheduleVerb, name: str) -> Reply:
        self._writable(verb)
        its_id = schedule_id(self._node.log.namespace, check_name("schedule", name))
        run_id = new_workflow_id(self._node.clock.now_us(), self._node.entropy(8), slot_of(its_id))
        return await self._decide(ChangeSchedule(its_id, verb, self._by, name, run_id if verb == "trigger" else ""))

    async def _trigger(self, name: str, workflow: Workflow[Any, Any]) -> Reply:
        self._writable("trigger")
        if (work := at_work.get()) is not None and work.workflow_id is not None:
            raise DefinitionError(
                f"schedule {name!r} is triggered by code that works for workflow {work.workflow_id}: an attempt that is "
                f"repeated would do it again. Dispatch the workflow in the body, `await ctx.dispatch(…)`, or trigger it outside"
            )
        info = await self._get_schedule(name)
        if info.workflow != workflow.name:
            raise DefinitionError(
                f"schedule {name!r} starts workflow {info.workflow!r}, and its handle was made for {workflow.name!r}"
            )
        return await self._change_schedule("trigger", name)


def _info(schedule: Schedule, index: int) -> ScheduleInfo:
    return info_of(schedule, index, parse_json(schedule.set.input))


def _no_schedule(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"there is no schedule {name!r}", schedule=name)
