"""An operator's hand on workflows (api.md, "Outside"; semantics.md §7)."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

from gasoline_es.asking import Asking
from gasoline_es.core.commands import Cancel, Recover, Rerun, Silence, Wake
from gasoline_es.core.durations import duration_us
from gasoline_es.core.ids import (
    check_caller_id,
    check_name,
    check_workflow_id,
    new_workflow_id,
    slot_of,
)
from gasoline_es.core.location import format_location, read_location
from gasoline_es.core.ports import Prunable
from gasoline_es.core.starting_over import RerunInfo, plan
from gasoline_es.pruning import PruneInfo, prune_history
from gasoline_es.reviving import Progress, ReviveInfo, check_revival, dead_ones, fit, revive, told


class Steering(Asking):
    """Wakes, ends and restarts workflows."""

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
        recover: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> ReviveInfo:
        """Wake every dead workflow that matches, once what they died of is mended; say which (semantics.md §7).

        ``name``: of the workflow. ``error``: a part of the error's text, as ``list`` takes it; ``""`` is any. ``recover``:
        those that died of an activity's final failure are recovered, as by :meth:`recover`, and the others left alone.
        ``dry_run``: only say which they are. ``progress``: called with how many of how many were asked for, now and then.

        They are woken a hundred at a time, and each hundred is durable before the next. Each is woken as by :meth:`wake`, if
        it still matches when its partition's owner decides: so it may be called beside running workers, and again after
        an error, which leaves those woken that were. Without ``recover`` a final failure of an activity stays final: one that
        died of it dies again, as long as its code does not catch it, and the answer's ``final`` counts them.

        Raises: ValueError: neither was given. DefinitionError: that can be no name. NoOwner, LogError: see there.
        """
        wanted = check_revival(name, error)
        if dry_run:
            self._outside("revive")
            matching = await dead_ones(self._node, wanted)
            would = fit(matching, recover=recover)
            return told(would, dry_run=True, left=len(matching) - len(would))
        self._writable("revive")
        return await revive(self._node, self._calls, self._by, wanted, progress, recover=recover)

    async def prune_history(
        self,
        *,
        age: float | timedelta,
        name: str | None = None,
        reason: str | None = None,
        archive: str | None = None,
        dry_run: bool = False,
    ) -> PruneInfo:
        """Prune the histories of workflows that ended so long ago, whatever their definitions say; say how many (§10).

        Only those that are complete or cancelled: the dead and the silenced keep theirs. Input, state, output or error and tags
        stay, and ``output()`` still answers. What is given up is out of every view when this returns, and is removed from the
        log when that is cleaned. ``age``: seconds since the end. ``name``: of the workflow. ``reason``: why, for the event.
        ``archive``: a directory; each history is durable in files there before it is given up (docs/guides/pruning.md).
        ``dry_run``: only say how many; nothing is archived. Called again, it finds none of them. A hundred at a time, each
        durable before the next.

        Raises: ValueError, TypeError: that is no age, or the reason is too long. DefinitionError: that can be no name.
            ExtraMissing: an archive needs ``pip install "gasoline_es[archive]"``. NoOwner, LogError, RecordTooLarge, also
            NoSpace of the archive: those of the times before are pruned.
        """
        age_us = duration_us(age, "age")
        if name is not None:
            check_name("workflow", name)
        if reason is not None:
            check_caller_id("reason", reason)
        wanted = Prunable(self._node.clock.now_us() - age_us, name, by_rule=False)
        if dry_run:
            self._outside("prune_history")
        else:
            self._writable("prune_history")
        if archive is None or dry_run:
            return await prune_history(self._node, self._calls, self._by, wanted, reason, dry_run=dry_run)
        from gasoline_es.log.archive import Archive  # zstandard is loaded where it is asked for

        with closing(Archive(archive, self._node.log.incarnation)) as archiving:
            return await prune_history(self._node, self._calls, self._by, wanted, reason, archiving, dry_run=False)

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
