"""Reads histories from the log: what the replay of a workflow needs, or all that ever happened to it.

A loop forgets its iterations (semantics.md §4). The views tell where the events lie that are left, and how many are not;
whoever wants to see the others reads the partition's events from the workflow's first to its last.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from typing import Final

from gasoline_es.core import events as ev
from gasoline_es.core.codec import read, read_fact
from gasoline_es.core.folding import fold_facts
from gasoline_es.core.ports import Located, Views
from gasoline_es.core.pruning import fold_remains
from gasoline_es.core.state import WorkflowState, refold
from gasoline_es.errors import LogError
from gasoline_es.log.port import Log, Record

SCAN_CHUNK: Final = 1_000
"""So many records of a partition are looked through before others have a turn."""


async def history(workflow_id: str, log: Log, topic: str, partition: int, views: Views) -> list[ev.Event]:
    """Read all events of a workflow, those too that its loops have forgotten.

    Raises: LogError where the log does not hold them.
    """
    located = views.located(workflow_id)
    if not located.forgotten:
        return [read(record.key, value) for record, value in _listed(log, topic, partition, located)]
    events: list[ev.Event] = []
    passed = log.read(topic, partition, located.first, located.last + 1)
    while chunk := list(islice(passed, SCAN_CHUNK)):
        events += [read(record.key, value) for record, value in _of(workflow_id, chunk)]
        await asyncio.sleep(0)
    _require_all(workflow_id, located, len(events))
    return events


async def records_of(workflow_id: str, log: Log, topic: str, partition: int, views: Views) -> AsyncIterator[Record]:
    """Yield the records of all events of a workflow, also those that its loops have forgotten; others have turns meanwhile.

    Raises: LogError where the log does not hold them.
    """
    located = views.located(workflow_id)
    if not located.forgotten:
        for at in range(0, len(located.offsets), SCAN_CHUNK):
            some = slice(at, at + SCAN_CHUNK)
            for record in log.read_at(topic, partition, located.offsets[some], located.places[some]):
                yield record
            await asyncio.sleep(0)
        return
    count = 0
    passed = log.read(topic, partition, located.first, located.last + 1)
    while chunk := list(islice(passed, SCAN_CHUNK)):
        for record, _ in _of(workflow_id, chunk):
            count += 1
            yield record
        await asyncio.sleep(0)
    _require_all(workflow_id, located, count)


async def values_of(subject: str, log: Log, topic: str, partition: int) -> list[bytes]:
    """Read the values of all records whose keys begin with ``subject/``, by looking through the whole partition."""
    values: list[bytes] = []
    records = log.read(topic, partition)
    while chunk := list(islice(records, SCAN_CHUNK)):
        values += [value for _, value in _of(subject, chunk)]
        await asyncio.sleep(0)
    return values


def fold(workflow_id: str, log: Log, topic: str, partition: int, views: Views) -> WorkflowState:
    """Fold what is recorded of a workflow; what its loops have forgotten is not read for it.

    Raises: LogError where the log does not hold it. AssertionError: it is not what the views have folded.
    """
    located = views.located(workflow_id)
    summary = views.summary(workflow_id)
    if summary is None:
        return begun_after(workflow_id, views.pruned_seq(workflow_id))
    if summary.pruned == "history":
        return fold_remains(summary, list(_facts(_listed(log, topic, partition, located))))
    if located.forgotten and not located.whole:
        count = located.before + located.count
        if count != summary.seq:
            raise AssertionError(f"{count} events of workflow {workflow_id} are accounted for, of {summary.seq}")
        state = refold(summary, _expected(located, _facts(_listed(log, topic, partition, located))))
    else:
        state = fold_facts(workflow_id, lambda: facts_of(workflow_id, log, topic, partition, views))
    if summary.seq != state.summary.seq:
        raise AssertionError(f"the history of {workflow_id} is incomplete: {state.summary.seq} events of {summary.seq}")
    return state


def begun_after(workflow_id: str, seq: int) -> WorkflowState:
    """Return the state of a workflow that is to begin, after the event ``seq`` pruned one of the same id; 0: there was none."""
    state = WorkflowState(workflow_id)
    state.summary.seq = seq
    if seq:
        state.summary.pruned = "all"
    return state


def facts_of(workflow_id: str, log: Log, topic: str, partition: int, views: Views) -> Iterator[ev.Fact]:
    """Read all that happened to a workflow, that too which its loops have forgotten; nobody has a turn meanwhile.

    Raises: LogError where the log does not hold it.
    """
    located = views.located(workflow_id)
    if located.forgotten:
        return _scanned(workflow_id, log, topic, partition, located)
    return _facts(_listed(log, topic, partition, located))


def recall(state: WorkflowState, log: Log, topic: str, partition: int, views: Views) -> None:
    """Let a workflow's state know the ids of its signals again. Raises: LogError where the log does not hold them."""
    received = views.received(state.summary.id)
    records = log.read_at(topic, partition, received.offsets, received.places)
    facts = _facts((record, record.value) for record in records if record.value is not None)
    signals = ((data.signal_id, time_us) for _, _, time_us, data, _, _ in facts if isinstance(data, ev.SignalReceived))
    state.recall(signals, received.forgotten_us)


def _listed(log: Log, topic: str, partition: int, located: Located) -> Iterator[tuple[Record, bytes]]:
    for record in log.read_at(topic, partition, located.offsets, located.places):
        if record.value is not None:
            yield record, record.value


def _scanned(workflow_id: str, log: Log, topic: str, partition: int, located: Located) -> Iterator[ev.Fact]:
    count = 0
    for fact in _facts(_of(workflow_id, log.read(topic, partition, located.first, located.last + 1))):
        count += 1
        yield fact
    _require_all(workflow_id, located, count)


def _of(workflow_id: str, records: Iterable[Record]) -> Iterator[tuple[Record, bytes]]:
    prefix = f"{workflow_id}/"
    for record in records:
        if record.value is not None and record.key.startswith(prefix):
            yield record, record.value


def _require_all(workflow_id: str, located: Located, count: int) -> None:
    if count != located.count:
        raise LogError(f"the log holds {count} events of workflow {workflow_id}, of {located.count} that were recorded")


def _facts(records: Iterable[tuple[Record, bytes]]) -> Iterator[ev.Fact]:
    for record, value in records:
        yield read_fact(record.key, value)


def _expected(located: Located, facts: Iterable[ev.Fact]) -> Iterator[tuple[int, int, ev.EventData]]:
    """Yield the facts, each of which must be the one that the views say lies there."""
    for expected, (workflow_id, seq, time_us, data, _, _) in zip(located.seqs, facts, strict=True):
        if seq != expected:
            raise AssertionError(f"event {seq} of workflow {workflow_id} lies where event {expected} is to be")
        yield seq, time_us, data
