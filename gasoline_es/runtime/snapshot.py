"""One look at how a process does: the counts it keeps, and what is true just now. For :mod:`gasoline_es.metrics`.

Taken on the event loop, so that nothing changes meanwhile; what is taken may be read anywhere. Its cost follows the number
of partitions and of different names, never that of workflows.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from gasoline_es.core.state import Status
from gasoline_es.errors import LogError
from gasoline_es.runtime.node import Node
from gasoline_es.runtime.recording import STEPS, Histogram

STANDING: tuple[Status, ...] = ("running", "sleeping", "dead", "unreadable")
"""Where workflows stand that are not over."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counts since the log was opened; gauges as of now, over the partitions this process owns. Ages are in seconds."""

    events: Mapping[str, int]
    steps: int
    dispatched: Mapping[str, int]
    completed: Mapping[str, int]
    cancelled: Mapping[str, int]
    silenced: Mapping[str, int]
    pruned: Mapping[str, int]
    died: Mapping[tuple[str, str], int]
    received: Mapping[str, int]
    attempts: Mapping[tuple[str, str], Histogram]
    append_s: Histogram
    append_records: Histogram
    append_sections: Histogram
    append_bytes: int
    sections_failed: Mapping[str, int]
    taken: Mapping[str, int]
    given_up: Mapping[str, int]
    lost: int
    ingested: Mapping[str, int]
    dead_letters: Mapping[str, int]
    cleaned_bytes: int
    messages_lost: int
    messages_dropped: int

    standing: Mapping[tuple[str, str], int]
    running_s: Mapping[str, float]
    waits_for_code: Mapping[str, int]
    waits_for_code_s: float
    queued: Mapping[str, int]
    queued_s: float
    in_memory: int
    attempts_running: int
    attempts_waiting: int
    attempts_waiting_s: float
    attempts_limit: int
    sent: Mapping[str, int]
    unfolded: Mapping[str, int]
    projections_behind: Mapping[str, int]
    ingest_lag: Mapping[tuple[str, str], int]
    partitions: int
    owned: int
    waits_for: int
    weight: float
    late_s: float
    cleaned_s: float
    failed: bool


def snapshot_from(node: Node, limit_s: float) -> Snapshot | None:
    """Take a snapshot from any thread; None: the event loop did not come to it within the limit, or has ended."""
    try:
        if asyncio.get_running_loop() is node.loop:
            return snapshot(node)
    except RuntimeError:
        pass
    taken: Future[Snapshot] = Future()

    def take() -> None:
        if taken.set_running_or_notify_cancel():
            try:
                taken.set_result(snapshot(node))
            except Exception as error:  # whoever asked hears of it; the engine goes on
                taken.set_exception(error)

    try:
        node.loop.call_soon_threadsafe(take)
        return taken.result(limit_s)
    except TimeoutError:
        taken.cancel()
        return None
    except RuntimeError:  # the loop is closed
        return None


def snapshot(node: Node) -> Snapshot:
    """Take a snapshot, on the event loop."""
    recording, driver = node.recording, node.driver
    standing: Counter[tuple[str, str]] = Counter()
    queued: Counter[str] = Counter()
    waits: Counter[str] = Counter()
    since: dict[str, int] = {}
    waits_since: list[int] = []
    queued_since: list[int] = []
    names, signals = recording.workflows.bounded, recording.signals.bounded
    for partition in node.partitions.values():
        tally = partition.views.tally()
        for (name, status), count in tally.standing.items():
            if status in STANDING:
                standing[names(name), status] += count
                if status == "running" and (driver is None or driver.registry.get(name) is None):
                    waits[names(name)] += count
                    waits_since.append(tally.running_since[name])
        for name, since_us in tally.running_since.items():
            shown = names(name)
            since[shown] = min(since_us, since.get(shown, since_us))
        for name, count in tally.queued.items():
            queued[signals(name)] += count
        if tally.queued_since is not None:
            queued_since.append(tally.queued_since)
    turns = None if driver is None else driver.runner.turns
    sent, unfolded, projections_behind = _lags(node)
    now_us = node.clock.now_us()

    def age(since_us: int | None) -> float:
        return 0.0 if since_us is None else max(now_us - since_us, 0) / 1e6

    return Snapshot(
        events={kind.TYPE: count for kind, count in recording.events.items()},  # type: ignore[attr-defined]
        steps=sum(count for kind, count in recording.events.items() if kind in STEPS),
        dispatched=dict(recording.dispatched),
        completed=dict(recording.completed),
        cancelled=dict(recording.cancelled),
        silenced=dict(recording.silenced),
        pruned=dict(recording.pruned),
        died=dict(recording.died),
        received=dict(recording.received),
        attempts={key: took.copy() for key, took in recording.attempts.items()},
        append_s=recording.append_s.copy(),
        append_records=recording.append_records.copy(),
        append_sections=recording.append_sections.copy(),
        append_bytes=recording.append_bytes,
        sections_failed=dict(recording.sections_failed),
        taken=dict(recording.taken),
        given_up=dict(recording.given_up),
        lost=recording.lost,
        ingested=dict(recording.ingested),
        dead_letters=dict(recording.dead_letters),
        cleaned_bytes=recording.cleaned_bytes,
        messages_lost=node.messages.outgoing.lost,
        messages_dropped=node.messages.dropped,
        standing=standing,
        running_s={name: age(since_us) for name, since_us in since.items()},
        waits_for_code=waits,
        waits_for_code_s=age(min(waits_since, default=None)),
        queued=queued,
        queued_s=age(min(queued_since, default=None)),
        in_memory=sum(len(partition.lives) for partition in node.partitions.values()),
        attempts_running=0 if turns is None else turns.running,
        attempts_waiting=0 if turns is None else turns.waiting,
        attempts_waiting_s=0.0 if turns is None else age(turns.waits_since_us),
        attempts_limit=0 if turns is None else turns.limit,
        sent=sent,
        unfolded=unfolded,
        projections_behind=projections_behind,
        ingest_lag={(name, str(number)): lag for (name, number), lag in recording.ingest_lag.items()},
        partitions=node.log.partition_count,
        owned=len(node.partitions),
        waits_for=recording.waits_for,
        weight=recording.weight,
        late_s=recording.late_s,
        cleaned_s=(recording.cleaned_us or 0) / 1e6,
        failed=node.failure is not None,
    )


def _lags(node: Node) -> tuple[Mapping[str, int], Mapping[str, int], Mapping[str, int]]:
    """Return what is not consumed and not folded, by partition, and by how much projections are behind.

    Nothing of a log that cannot be read any more.
    """
    try:
        sent = {str(index): partition.sent for index, partition in node.partitions.items()}
        return sent, {str(index): count for index, count in node.viewing.behind()}, node.projections_behind()
    except LogError:
        return {}, {}, {}
