"""The verbs that ask: handles, where workflows stand, their histories and outputs (api.md, "Outside")."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

from gasoline_es.core.codec import decode
from gasoline_es.core.decide import not_found, without_output
from gasoline_es.core.durations import deadline_us, duration_us, to_datetime
from gasoline_es.core.events import Event, Fact, WorkflowCompleted
from gasoline_es.core.filters import Filters
from gasoline_es.core.folding import beyond, facts_until, fold_facts
from gasoline_es.core.ids import (
    check_workflow_id,
)
from gasoline_es.core.ports import Views
from gasoline_es.core.state import Status, Summary, WorkflowState, created
from gasoline_es.core.tags import Tags, check_tags
from gasoline_es.core.values import parse_json
from gasoline_es.definitions import Workflow
from gasoline_es.errors import LogCorrupt, LogError, WorkflowFailed, WorkflowNotFound
from gasoline_es.handles import WorkflowHandle, WorkflowInfo, check_its_name
from gasoline_es.outside import Outside
from gasoline_es.runtime.histories import facts_of, fold, history
from gasoline_es.runtime.watching import Watch

if TYPE_CHECKING:
    from gasoline_es.client import Client

O = TypeVar("O")  # noqa: E741

_STATUSES: tuple[str, ...] = get_args(Status)
LIST_CHUNK = 100
"""So many workflows of a list are yielded before the event loop gets a turn."""


class Asking(Outside):
    """Looks, and changes nothing."""

    def handle(self, workflow_id: str, workflow: Workflow[Any, O]) -> WorkflowHandle[O]:
        """Return a handle for an id. Whether there is such a workflow shows at first use."""
        return WorkflowHandle(cast("Client", self), workflow_id, workflow)

    async def find(self, workflow: Workflow[Any, O], *, tags: Tags | None = None) -> WorkflowHandle[O] | None:
        """Return the oldest incomplete workflow of this name whose tags contain ``tags``, or None."""
        self._outside("find")
        found = await self._node.viewing.find(workflow.name, check_tags(tags, f"find {workflow.name!r}"))
        return None if found is None else WorkflowHandle(cast("Client", self), found, workflow)

    async def get(self, workflow_id: str, *, as_of: datetime | int | None = None) -> WorkflowInfo:
        """Return where a workflow stands, as of what is durable.

        ``as_of``: where it stood at that time, by what it had recorded before its first event that is younger; or behind
        its event of that number, from 1. That costs a read of its history. Of a time that is to come it is where it stands now.

        Raises: WorkflowNotFound: there is none, or it was dispatched later. ValueError: a time has no zone, or it has no event
            of that number.
        """
        self._outside("get")
        index = self._index(workflow_id)
        summary = await self._summary(index, workflow_id)
        if as_of is None:
            state = await self._state(index, workflow_id)
            # Of one whose history is pruned, the whole error is only there.
            return self._info(summary if summary.pruned is None else state.summary, index, state)
        state = await self._state_as_of(index, workflow_id, as_of)
        return self._info(state.summary, index, state)

    async def history(self, workflow_id: str) -> builtins.list[Event]:
        """Return a workflow's events in order. Raises: WorkflowNotFound."""
        self._outside("history")
        index = self._index(workflow_id)
        lost: tuple[Any, LogError] | None = None
        while True:
            await self._summary(index, workflow_id)
            views = await self._node.viewing.views(index)
            stands = _life_of(views, workflow_id)
            if lost is not None and stands == lost[0]:
                raise lost[1]
            try:
                return await history(workflow_id, self._node.log, self._node.topics.events, index, views)
            except LogCorrupt:
                raise
            except LogError as error:  # it was pruned meanwhile, and the log cleaned; or records are lost
                lost = stands, error

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
        limit: int | None = None,
        after: str | None = None,
        as_of: datetime | None = None,
    ) -> AsyncIterator[WorkflowInfo]:
        """Yield workflows in order of creation that match all that is given.

        ``error``: a part of the error's text. ``since``: created at or after it; ``until``: before it. ``payloads``: also
        read the inputs, outputs and states, which costs a read of each history. ``limit``: the first so many in that order,
        which are the oldest (`gasoline workflow list --limit` shows the newest). ``after``: only those behind this one in that
        order, the last of the page before. ``as_of``: as they stood at that time, by the events of each partition before the
        first one that is younger. The log is folded from its start for it, and in memory are 400 bytes, tags and error of
        each workflow that was there and matches by name, creation and ``after``.

        Raises: ValueError: there is no such status, a time has no zone, a limit below 1, or payloads of another time.
            WorkflowNotFound: there is no workflow ``after``. LogCorrupt: the log is damaged; all that can be read was yielded
            before.
        """
        self._outside("list")
        if status is not None and status not in _STATUSES:
            raise ValueError(f"there is no status {status!r}: it is one of {', '.join(_STATUSES)}")
        since_us = None if since is None else _moment_us("since", since)
        until_us = None if until is None else _moment_us("until", until)
        as_of_us = None if as_of is None else _moment_us("as_of", as_of)
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ValueError(f"limit={limit!r}: it is a number of workflows, from 1 up, or None for all")
        if payloads and as_of is not None:
            raise ValueError("payloads=True with as_of: `get(id, as_of=…)` gives those of one workflow at another time")
        behind = None if after is None else created(await self._summary(self._index(after), after))
        wanted = Filters(name, check_tags(tags, "list"), status, error, since_us, until_us, behind)
        parts: builtins.list[Iterator[Summary]] = []
        damage: LogCorrupt | None = None
        await asyncio.sleep(0)  # who asks again and again would else keep all others from their turns
        current = await self._node.viewing.asked()
        for index in range(self._node.log.partition_count):
            if as_of_us is None:
                views, damaged = await self._node.viewing.readable(index, current)
                damage = damage or damaged
                parts.append(views.matching(wanted))
            else:
                past = await self._node.viewing.matching_as_of(index, as_of_us, wanted, current)
                views, _ = await self._node.viewing.readable(index, current)
                parts.append(_unpruned(past, views, as_of_us, wanted))
        for number, summary in enumerate(islice(merge(*parts, key=created), limit), start=1):
            index = self._node.index_of(summary.id)
            state = await self._state(index, summary.id) if payloads else None
            yield self._info(summary, index, state)
            if number % LIST_CHUNK == 0:
                await asyncio.sleep(0)
        if damage is not None:
            raise damage

    async def counts(self, *, name: str | None = None) -> dict[str, dict[Status, int]]:
        """Return how many workflows of each name stand where: name → status → how many, by name; without going through them.

        Raises: LogCorrupt: the log is damaged.
        """
        self._outside("counts")
        found: dict[str, dict[Status, int]] = {}
        current = await self._node.viewing.asked()
        for index in range(self._node.log.partition_count):
            for (one, status), count in (await self._node.viewing.counted(index, current)).tally().standing.items():
                if name is None or one == name:
                    standing = found.setdefault(one, {})
                    standing[status] = standing.get(status, 0) + count
        return {one: dict(sorted(found[one].items())) for one in sorted(found)}

    # ------------------------------------------------------------------------------------------------------------------

    async def _output(self, workflow_id: str, name: str, timeout: float | timedelta | None) -> bytes:
        self._outside("output")
        limit_s = None if timeout is None else duration_us(timeout, "timeout of output") / 1e6
        index = self._index(workflow_id)
        watch = self._node.watches.add(workflow_id)
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
            self._node.watches.discard(workflow_id, watch)

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
        views = await self._node.viewing.views(index)
        located = views.located(workflow_id)
        # Its completion is nearly always its last event: the whole history costs as many reads as it has events.
        for last in self._node.log.read_at(self._node.topics.events, index, located.offsets[-1:], located.places[-1:]):
            if last.value is not None and isinstance(data := decode(last.value).data, WorkflowCompleted):
                return data.output
        return (await self._state(index, workflow_id)).output

    def _index(self, workflow_id: str) -> int:
        return self._node.index_of(check_workflow_id(workflow_id))

    async def _summary(self, index: int, workflow_id: str) -> Summary:
        summary = (await self._node.viewing.views(index)).summary(workflow_id)
        if summary is None:
            raise not_found(workflow_id)
        return summary

    async def _state(self, index: int, workflow_id: str) -> WorkflowState:
        views, _ = await self._node.viewing.readable(index)  # damage was told by whoever looked the workflow up
        return fold(workflow_id, self._node.log, self._node.topics.events, index, views)

    async def _state_as_of(self, index: int, workflow_id: str, as_of: datetime | int) -> WorkflowState:
        moment_us = _moment_us("as_of", as_of) if isinstance(as_of, datetime) else None
        events = None if isinstance(as_of, datetime) else as_of
        if not isinstance(as_of, datetime) and (type(as_of) is not int or as_of < 1):
            raise ValueError(f"as_of={as_of!r}: it is a time with a zone, or the number of an event, from 1 up")
        views, _ = await self._node.viewing.readable(index)
        log, topic = self._node.log, self._node.topics.events
        summary, before = views.summary(workflow_id), views.located(workflow_id).before
        if summary is not None and summary.pruned is not None:
            return self._remains_as_of(index, summary, views, as_of)
        until = None if events is None else max(events - before, 0)

        def facts() -> Iterator[Fact]:
            return facts_until(facts_of(workflow_id, log, topic, index, views), moment_us=moment_us, events=until)

        state = fold_facts(workflow_id, facts)
        if events is not None and (why := beyond(workflow_id, events, state.summary.seq)) is not None:
            raise ValueError(f"as_of={as_of}: {why}")
        if not state.summary.seq:
            raise WorkflowNotFound(f"workflow {workflow_id} was dispatched later than {as_of}", workflow_id=workflow_id)
        return state

    def _remains_as_of(self, index: int, summary: Summary, views: Views, as_of: datetime | int) -> WorkflowState:
        """Return how a workflow stood whose history is pruned, which is known from its end on. Raises: ValueError."""
        ended = views.located(summary.id).seqs[-2:-1] if isinstance(as_of, int) else ()
        assert summary.completed_us is not None
        known = _moment_us("as_of", as_of) >= summary.completed_us if isinstance(as_of, datetime) else False
        if not known and not (isinstance(as_of, int) and ended and ended[0] <= as_of <= summary.seq):
            raise ValueError(
                f"as_of={as_of}: the history of workflow {summary.id} was pruned: how it stood before its end at "
                f"{_at(summary.completed_us)} is not known any more"
            )
        return fold(summary.id, self._node.log, self._node.topics.events, index, views)

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


def _unpruned(past: Iterator[Summary], views: Views, moment_us: int, wanted: Filters) -> Iterator[Summary]:
    """Yield those of a time, but for those that were pruned since: of these, those that were over and of which is left how.

    So it is whether or not the log was cleaned meanwhile.
    """

    def is_whole(one: Summary) -> bool:
        now = views.summary(one.id)
        return now is not None and now.pruned is None and now.created_us <= moment_us

    over = (
        one
        for one in views.matching(wanted)
        if one.pruned is not None and one.completed_us is not None and one.completed_us <= moment_us
    )
    yield from merge(filter(is_whole, past), over, key=created)


def _life_of(views: Views, workflow_id: str) -> tuple[Any, ...]:
    """Return what is another once a workflow was pruned, or one of the same id began."""
    summary = views.summary(workflow_id)
    return () if summary is None else (summary.pruned, views.located(workflow_id).first)


def _at(time_us: int) -> str:
    return f"{to_datetime(time_us):%Y-%m-%d %H:%M:%S} UTC"


def _failed(summary: Summary) -> WorkflowFailed:
    return WorkflowFailed(
        f"workflow {summary.name!r} {summary.id} is {summary.status}: {summary.error}",
        workflow_id=summary.id,
        workflow=summary.name,
        error=summary.error,
    )


def _moment_us(name: str, moment: datetime) -> int:
    if not isinstance(moment, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"{name}={moment!r} is no time: write datetime(…, tzinfo=UTC)")
    if moment.tzinfo is None:
        raise ValueError(f"{name}={moment!r} has no time zone: write datetime(…, tzinfo=UTC)")
    return deadline_us(moment, name)
