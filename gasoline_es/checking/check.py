"""Checks all histories of a source against code, in this process or in several.

Each process reads what it checks itself: events are not sent through pipes, only what was found. Every workflow is in one
share, so a share can be folded and judged alone; a complete workflow is judged as soon as it is, and let go of.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import heapq
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from gasoline_es.checking.code import Code, Workflows, sources
from gasoline_es.checking.histories import Advance, Reader, Share, Source
from gasoline_es.checking.ledger import Observed, call_sites, judge_sites
from gasoline_es.checking.report import Finding, Report
from gasoline_es.checking.verdict import Verdict, judge
from gasoline_es.core import events as ev
from gasoline_es.core.codec import read_fact
from gasoline_es.core.folding import fold_facts
from gasoline_es.core.pruning import left
from gasoline_es.core.state import OVER, WorkflowState
from gasoline_es.orphans import end_with_parent

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""Told how much of how much was read, now and then."""

Candidate = tuple[bytes, str, str]
"""A workflow by the digest of its id, its topic, and its id: the smallest are the sample."""

_POLL_S: Final = 0.1

_LEFT_OUT: Final = Verdict(False)
"""Of a workflow that is over, where only those are asked for that can still run."""
_PRUNES: Final = b'"gasoline.workflow.pruned.v1"'
_SILENCED: Final = Verdict(False)
"""Of a workflow that is silenced: it cannot start over, so nothing takes this back."""


@dataclass(frozen=True, slots=True)
class Wish:
    """How to check. ``sample``: only so many histories, the same ones each time. ``removable``: keep the ledger of calls.

    ``incomplete``: only workflows that can still run; not with ``sample``, which is drawn before it is known who is over.
    """

    sample: int | None = None
    removable: bool = False
    incomplete: bool = False


def check_here(
    workflows: Workflows, source: Source, wish: Wish | None = None, progress: Progress | None = None
) -> Report:
    """Check all histories in this process, one after the other."""
    wish = wish or Wish()
    with source.open() as reader, contextlib.redirect_stdout(sys.stderr):
        shares = reader.shares(1)
        total, done = reader.size(shares) * _passes(wish), 0

        def advance(read: int) -> None:
            nonlocal done
            done += read
            if progress is not None:
                progress(done, total)

        chosen: set[tuple[str, str]] | None = None
        if wish.sample is not None:
            found = (one for share in shares for one in candidates(workflows, reader, share, wish.sample, advance))
            chosen = _smallest(found, wish.sample)
        report = _empty(wish)
        for share in shares:
            report.add(check_share(workflows, reader, share, chosen, wish, advance))
        report.damages = list(dict.fromkeys(reader.damages))
    return _finished(report, workflows)


def check_in_processes(
    code: Code, source: Source, jobs: int, wish: Wish | None = None, progress: Progress | None = None
) -> Report:
    """Check all histories in so many processes, each of which loads the code and reads the source for itself.

    Raises: CodeRefused.
    """
    wish = wish or Wish()
    workflows = code.load()
    with source.open() as reader:
        shares = reader.shares(jobs)
        total = reader.size(shares) * _passes(wish)
    # A fresh interpreter for each: a fork would copy whatever threads and locks this one has.
    processes = multiprocessing.get_context("spawn")
    read = processes.Value("Q", 0)

    def told() -> None:
        if progress is not None:
            progress(read.value, total)

    given = (code, source, read)
    with ProcessPoolExecutor(min(jobs, len(shares)), processes, _begin_worker, given) as pool:
        chosen: set[tuple[str, str]] | None = None
        if wish.sample is not None:
            asked = [pool.submit(_candidates_of_worker, share, wish.sample) for share in shares]
            chosen = _smallest((one for part in _results(asked, told) for one in part), wish.sample)
        report = _empty(wish)
        for part in _results([pool.submit(_check_in_worker, one, chosen, wish) for one in shares], told):
            report.add(part)
    return _finished(report, workflows)


def jobs_for(source: Source) -> int:
    """Return how many processes are worth starting: one for each core, but one for what takes a moment."""
    with source.open() as reader:
        return 1 if reader.is_small() else len(os.sched_getaffinity(0))


def _passes(wish: Wish) -> int:
    return 1 if wish.sample is None else 2


def _empty(wish: Wish) -> Report:
    return Report(observed=Observed() if wish.removable else None, left_out=0 if wish.incomplete else None)


def _finished(report: Report, workflows: Workflows) -> Report:
    report.sort()
    if report.observed is not None:
        # What cannot be read, and what diverges, may need any of them.
        report.observed.unsure += len(report.unreadable) + len(report.damages)
        sites = [site for file, source in sources(workflows).items() for site in call_sites(source, file)]
        report.sites = judge_sites(sites, report.observed)
    return report


def _results(futures: list[Future[T]], told: Callable[[], None]) -> Iterator[T]:
    """Yield what each gave as it comes, telling of the progress meanwhile."""
    pending = set(futures)
    try:
        while pending:
            done, pending = wait(pending, _POLL_S, FIRST_COMPLETED)
            told()
            for future in done:
                yield future.result()
    finally:
        for future in pending:
            future.cancel()


# --- one share --------------------------------------------------------------------------------------------------------


def check_share(
    workflows: Workflows,
    reader: Reader,
    share: Share,
    chosen: Collection[tuple[str, str]] | None,
    wish: Wish,
    advance: Advance,
) -> Report:
    """Check the histories of a share: all, or the chosen ones."""
    fold = _Fold(workflows, chosen, wish)
    for topic, key, raw in reader.lines(share, advance):
        try:
            fold.take(topic, key, raw)
        except ValueError as error:
            reader.damages.append(f"topic {topic}, key {key!r}: {error}")
    if fold.started_over:
        # Which of their events hold is told by the last of them: they are read once more.
        for topic, key, raw in reader.lines(share, _no_progress):
            fold.take_again(topic, key, raw)
    return fold.end()


def _no_progress(_count: int) -> None:
    """The second reading is no part of what was promised."""


class _Fold:
    """Folds the events of many workflows, and judges each once it is complete or nothing more comes."""

    def __init__(self, workflows: Workflows, chosen: Collection[tuple[str, str]] | None, wish: Wish) -> None:
        self._workflows = workflows
        self._chosen = chosen
        self._report = _empty(wish)
        self._topic = ""
        self._states: dict[str, WorkflowState] = {}
        self._topics: dict[str, dict[str, WorkflowState]] = {"": self._states}
        self._elsewhere: set[tuple[str, str]] = set()
        """Workflows that are not of this module."""
        self._complete: dict[tuple[str, str], Verdict] = {}
        """What was found about those that are complete: it holds unless one starts over."""
        self.started_over: dict[tuple[str, str], list[ev.Fact]] = {}
        """The events of workflows that started over, once they are read again."""

    def take(self, topic: str, key: str, raw: bytes) -> None:
        """Fold one event. Raises: ValueError: it is none, and not even its workflow can be told."""
        if topic != self._topic:
            self._topic, self._states = topic, self._topics.setdefault(topic, {})
        workflow_id = key.rpartition("/")[0]
        if _PRUNES in raw and isinstance(read_fact(key, raw)[3], ev.WorkflowPruned):
            self._prune(topic, workflow_id)
            return
        state = self._states.get(workflow_id)
        if state is None and not self._is_wanted(topic, workflow_id):
            if (topic, workflow_id) in self._complete:
                self._start_over(topic, workflow_id)  # nothing else follows a completion
            return
        workflow_id, seq, time_us, data, ray_id, worker = read_fact(key, raw)
        if state is None:
            if isinstance(data, ev.WorkflowDispatched) and data.name not in self._workflows:
                self._report.not_in_module[data.name] += 1
                self._elsewhere.add((topic, workflow_id))
                return
            state = self._states[workflow_id] = WorkflowState(workflow_id)
        if isinstance(data, ev.WorkflowRerun) and data.superseded:
            self._start_over(topic, workflow_id)
            return
        state.apply(seq, time_us, data, ray_id, worker)
        if isinstance(data, ev.WorkflowCompleted | ev.WorkflowCancelled | ev.WorkflowSilenced):
            del self._states[workflow_id]
            self._complete[topic, workflow_id] = self._judge(state)

    def take_again(self, topic: str, key: str, raw: bytes) -> None:
        """Keep an event of a workflow that started over."""
        facts = self.started_over.get((topic, key.rpartition("/")[0]))
        if facts is not None:
            with contextlib.suppress(ValueError):  # it was told of before
                facts.append(read_fact(key, raw))

    def _start_over(self, topic: str, workflow_id: str) -> None:
        """Take back what was found about a workflow, and see that its events are read again."""
        self.started_over[topic, workflow_id] = []
        self._take_back(topic, workflow_id)

    def _prune(self, topic: str, workflow_id: str) -> None:
        """Take back what was found about a workflow: there is nothing of it to replay. Another of its id may follow."""
        self.started_over.pop((topic, workflow_id), None)
        self._elsewhere.discard((topic, workflow_id))
        self._take_back(topic, workflow_id)

    def _take_back(self, topic: str, workflow_id: str) -> None:
        self._states.pop(workflow_id, None)
        verdict, report = self._complete.pop((topic, workflow_id), None), self._report
        if verdict is _LEFT_OUT:
            assert report.left_out is not None
            report.left_out -= 1
        elif verdict is not None:
            report.histories -= 1
            report.replayed -= verdict.replays
            report.partly -= verdict.partly
            for findings in (report.divergences, report.warnings, report.unreadable):
                if verdict.finding in findings:
                    findings.remove(verdict.finding)

    def _is_wanted(self, topic: str, workflow_id: str) -> bool:
        found = (topic, workflow_id)
        if found in self._elsewhere or found in self._complete or found in self.started_over:
            return False
        return self._chosen is None or found in self._chosen

    def end(self) -> Report:
        """Judge what is left."""
        for (_, workflow_id), facts in self.started_over.items():
            there = left(facts, lambda fact: fact)
            self._judge(fold_facts(workflow_id, there.copy))
        for states in self._topics.values():
            while states:
                self._judge(states.popitem()[1])
        return self._report

    def _judge(self, state: WorkflowState) -> Verdict:
        report, name = self._report, state.summary.name
        if state.summary.status == "silenced":
            report.silenced += 1
            return _SILENCED
        if report.left_out is not None and state.summary.status in OVER:
            report.left_out += 1
            return _LEFT_OUT
        report.histories += 1
        if state.dispatched is None:
            why = "its first event is missing" if state.summary.error is None else state.summary.error.message
            finding = Finding("unreadable", state.summary.id, name, "unreadable", "", "", "", "", "", 0, "", why)
            report.found(finding)
            return Verdict(False, finding=finding)
        verdict = judge(self._workflows[name], state, report.observed)
        report.replayed += verdict.replays
        report.partly += verdict.partly
        if verdict.finding is not None:
            report.found(verdict.finding)
        return verdict


# --- samples ----------------------------------------------------------------------------------------------------------


def candidates(workflows: Workflows, reader: Reader, share: Share, count: int, advance: Advance) -> list[Candidate]:
    """Return those workflows of a share that may be in a sample of this size."""

    def found() -> Iterator[Candidate]:
        for topic, key, raw in reader.lines(share, advance):
            if key.endswith("/1"):
                with contextlib.suppress(ValueError):
                    workflow_id, _, _, data, _, _ = read_fact(key, raw)
                    if isinstance(data, ev.WorkflowDispatched) and data.name in workflows:
                        # By a digest, so that a sample is spread over all, and the same each time.
                        yield hashlib.sha256(workflow_id.encode()).digest()[:8], topic, workflow_id

    return heapq.nsmallest(count, found())


def _smallest(found: Iterator[Candidate], count: int) -> set[tuple[str, str]]:
    return {(topic, workflow_id) for _, topic, workflow_id in heapq.nsmallest(count, found)}


# --- in another process -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Worker:
    """What a process keeps from one share to the next."""

    workflows: Workflows
    reader: Reader
    advance: Advance


_workers: list[_Worker] = []
"""This process's, in a process of the pool."""


def _leave(_number: int, _frame: object) -> None:
    os._exit(130)  # silently: whoever started it tells of the interrupt


def _begin_worker(code: Code, source: Source, read: Any) -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, _leave)
    sys.stdout = sys.stderr  # answers come from the first process alone
    workflows = code.load()
    reader = source.open().__enter__()

    def advance(count: int) -> None:
        with read.get_lock():
            read.value += count

    _workers.append(_Worker(workflows, reader, advance))
    # Runs are cycles, many and short-lived; what was loaded up to here stays.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _candidates_of_worker(share: Share, count: int) -> list[Candidate]:
    (worker,) = _workers
    return candidates(worker.workflows, worker.reader, share, count, worker.advance)


def _check_in_worker(share: Share, chosen: Collection[tuple[str, str]] | None, wish: Wish) -> Report:
    (worker,) = _workers
    report = check_share(worker.workflows, worker.reader, share, chosen, wish, worker.advance)
    report.damages = list(worker.reader.damages)
    return report
