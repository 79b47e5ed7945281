"""What is over leaves memory once its row is stored, and nobody can tell (design §7).

Any events, stored at any moments, by anybody: what the views answer is what views answer that have everything in memory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import astuple
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gasoline_es.core import events as ev
from gasoline_es.core.filters import Filters
from gasoline_es.core.ports import Prunable
from gasoline_es.core.state import Summary
from projections.views import Changes, PartitionViews
from projections.workflow_rows import WorkflowRow
from projections.workflow_table import WorkflowTable, make_tables

IDS = [f"019b76da-a800-7000-8d15-d0285acd44{number:02x}" for number in range(4)]
NAMES = ["fulfil", "ship"]
TAGS: list[dict[str, str]] = [{}, {"order": "1"}, {"order": "2", "region": "north"}]
SIGNALS = ["paid", "moved"]
ERROR = ev.ErrorInfo("OSError", "no network", "line 1\nline 2", b'{"host":"a"}')

Made = tuple[int, Callable[[int, int], ev.EventData]]
"""Of which workflow, and the event: from its seq and a number that no other event has."""

Step = tuple[str, Any]


def at(number: int) -> tuple[tuple[int, ...], ...]:
    return ((number,),)


def in_loop(number: int, iteration: int) -> tuple[tuple[int, ...], ...]:
    return ((1,), (iteration,), (number,))


FACTS: list[Callable[[int, int], ev.EventData]] = [
    lambda seq, n: ev.ActivityCompleted(at(seq), 1, "charge", 1, 1, b"1", b"2"),
    lambda seq, n: ev.ActivityCompleted(in_loop(seq, 1), 1, "charge", 1, 1, b"1", b"2", b"3"),
    lambda seq, n: ev.ActivityFailed(at(seq), 1, "charge", 1, 1, b"1", ERROR, retry_us=5),
    lambda seq, n: ev.SleepStarted(at(seq), 1, 50),
    lambda seq, n: ev.SignalReceived(f"s{n}", SIGNALS[n % 2], b"1"),
    lambda seq, n: ev.SignalReceived(f"s{n}", SIGNALS[n % 2], b"1"),
    lambda seq, n: ev.SignalConsumed(at(seq), 1, (f"s{n - 1}",)),
    lambda seq, n: ev.SignalDiscarded((f"s{n - 1}", f"s{n - 2}")),
    lambda seq, n: ev.LoopCommitted(((1,),), 1, 0, b"null", None),
    lambda seq, n: ev.LoopCommitted(((1,),), 1, 1, b"null", None),
    lambda seq, n: ev.WorkflowSuspended(1_000 - n),
    lambda seq, n: ev.WorkflowSuspended(None, ("paid",)),
    lambda seq, n: ev.WorkflowSuspended(2_000 + n, ("paid", "moved"), retry=True, outputs=(IDS[0],)),
    lambda seq, n: ev.WorkflowTagsUpdated(TAGS[n % 3]),
    lambda seq, n: ev.WorkflowCompleted(b"1", b"null"),
    lambda seq, n: ev.WorkflowCompleted(b"1", b"null"),
    lambda seq, n: ev.WorkflowCancelled(b"null", ERROR),
    lambda seq, n: ev.WorkflowSilenced("somebody"),
    lambda seq, n: ev.WorkflowFailed(ERROR, failures=(at(2),)),
    lambda seq, n: ev.WorkflowWoken("somebody"),
    lambda seq, n: ev.WorkflowRerun("somebody", at(1), 1, (), (), TAGS[1], ((f"s{n - 3}", "paid"),)),
    lambda seq, n: ev.Unreadable("gasoline.later.v1", "it is newer"),
]

events = st.tuples(st.sampled_from(range(len(IDS))), st.sampled_from(range(len(FACTS))))
steps = st.one_of(
    events.map(lambda made: ("event", made)),
    events.map(lambda made: ("event", made)),
    st.integers(0, 3).map(lambda count: ("rows", count)),
    st.sampled_from([("save", None), ("stored", None), ("failed", None), ("restart", None), ("read", None)]),
)


class Store:
    """The rows of one partition in SQLite, and where they stand."""

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:")
        make_tables(self.db)
        self.table = WorkflowTable(self.db)
        self.next_offset = 0

    def get(self, workflow_id: str) -> WorkflowRow | None:
        return self.table.get(workflow_id)

    def matching(self, wanted: Filters) -> Iterator[Summary]:
        return self.table.matching(3, wanted)

    def prunable(self, wanted: Prunable, after: tuple[int, str], limit: int) -> list[Summary]:
        return self.table.prunable(3, wanted, after, limit)

    def store(self, changes: Changes) -> int:
        if changes.next_offset > self.next_offset:
            self.table.write(3, changes.rows, changes.counts)
            self.next_offset = changes.next_offset
        return self.next_offset

    def views(self) -> PartitionViews:
        views = PartitionViews(self)
        views.load(self.next_offset, self.table.counts(3), self.table.going_on(3))
        return views


def told(views: PartitionViews, *, counts: bool = True) -> dict[str, Any]:
    """All that views answer."""
    found: dict[str, Any] = {}
    for workflow_id in IDS:
        summary = views.summary(workflow_id)
        if summary is None:
            continue
        located = views.located(workflow_id)
        found[workflow_id] = {
            "summary": told_of(summary),
            "located": [list(part) if hasattr(part, "__len__") else part for part in astuple(located)],
            "received": None
            if located.whole
            else [list(part) if hasattr(part, "__len__") else part for part in astuple(views.received(workflow_id))],
            "queued": list(views.queued(workflow_id).items()),
        }
    found["running"] = sorted(views.running())
    found["signalled"] = sorted(views.signalled())
    found["deadlines"] = dict(views.deadlines())
    for name in NAMES:
        for tags in TAGS:
            found[f"find {name} {tags}"] = list(views.find(name, tags))
    for wanted in (
        Filters(),
        Filters(name="ship"),
        Filters(status="dead"),
        Filters(tags=TAGS[1]),
        Filters(error="network"),
        Filters(since_us=3, until_us=9),
    ):
        found[f"matching {wanted}"] = [told_of(one) for one in views.matching(wanted)]
    if counts:
        tally = views.tally()
        found["tally"] = (tally.standing, tally.running_since, tally.queued, tally.queued_since)
    return found


def told_of(summary: Summary) -> dict[str, Any]:
    return {name: getattr(summary, name) for name in Summary.__slots__}


class Recorded:
    """What is on the log, in order of offset."""

    def __init__(self) -> None:
        self.facts: list[tuple[str, int, int, ev.EventData]] = []
        self.tagged_at: dict[str, int] = {}
        """The offset of the event by which a workflow has the tags that it has."""
        self._seqs: dict[str, int] = {}

    def add(self, workflow: int, fact: int) -> None:
        workflow_id, number = IDS[workflow], len(self.facts) + 1
        seq = self._seqs[workflow_id] = self._seqs.get(workflow_id, 0) + 1
        if seq == 1:
            data: ev.EventData = ev.WorkflowDispatched(NAMES[workflow % 2], b"1", TAGS[workflow % 3])
        else:
            data = FACTS[fact](seq, number)
        if isinstance(data, ev.WorkflowDispatched | ev.WorkflowRerun | ev.WorkflowTagsUpdated):
            self.tagged_at[workflow_id] = len(self.facts)
        self.facts.append((workflow_id, seq, number, data))

    def fold(self, views: PartitionViews) -> None:
        """Let views fold what they have not seen."""
        for offset, (workflow_id, seq, time_us, data) in list(enumerate(self.facts))[views.next_offset :]:
            views.apply(offset, 7 * offset, workflow_id, seq, time_us, data, workflow_id, "worker")
            assert (views.next_offset, views.last_place) == (offset + 1, 7 * offset)


@settings(max_examples=400)
@given(st.lists(steps, min_size=1, max_size=60))
def test_views_answer_the_same_whatever_is_stored_when(script: list[Step]) -> None:
    """One process folds as events come and stores; it may be restarted, also in the middle of storing."""
    recorded, everything, store = Recorded(), PartitionViews(), Store()
    views, changes = store.views(), None
    for kind, what in script:
        if kind == "event":
            recorded.add(*what)
            recorded.fold(everything)
            recorded.fold(views)
        elif kind == "save" and changes is None:
            changes = views.changes()
        elif kind == "rows" and changes is not None:
            changes.make(what)
        elif kind == "stored" and changes is not None:
            changes.make(1_000)
            stands = store.store(changes)
            views.saved(stands)
            changes = None
        elif kind == "failed" and changes is not None:
            views.not_saved()
            changes = None
        elif kind == "restart":
            views, changes = store.views(), None
            recorded.fold(views)
        assert told(views) == told(everything)
    views = store.views()
    recorded.fold(views)
    assert told(views) == told(everything)


class Tagged:
    """What views tell of tags, to whoever looks after something that waits for them."""

    def __init__(self, views: PartitionViews) -> None:
        self._told: set[tuple[str, str]] = set()
        self._since = views.next_offset
        views.on_tagged = lambda name, tags: self._told.add((name, str(tags)))

    def check(self, views: PartitionViews, recorded: Recorded, everything: PartitionViews) -> None:
        """Whatever was given tags since the last time, and is found by them now, was told of."""
        for name in NAMES:
            for workflow_id in everything.find(name, {}):
                if recorded.tagged_at[workflow_id] >= self._since:
                    summary = everything.summary(workflow_id)
                    assert summary is not None
                    assert (name, str(summary.tags)) in self._told
        self._told.clear()
        self._since = views.next_offset


@settings(max_examples=400)
@given(st.lists(steps, min_size=1, max_size=60))
@example([("event", (0, 0)), ("event", (0, 14)), ("event", (0, 10)), ("stored", None), ("restart", None)])
@example(
    # What is over leaves memory, and starts over where the reader has not looked yet.
    [("event", (0, 0)), ("event", (0, 14)), ("stored", None), ("restart", None), ("event", (0, 20)), ("stored", None)]
)
def test_a_process_that_reads_answers_the_same_whatever_another_stores(script: list[Step]) -> None:
    """The reader folds at its own pace: the store may be behind it or ahead of it."""
    recorded, everything, store = Recorded(), PartitionViews(), Store()
    owner, reader = store.views(), store.views()
    tagged = Tagged(reader)
    for kind, what in script:
        if kind == "event":
            recorded.add(*what)
            recorded.fold(everything)
            recorded.fold(owner)
        elif kind == "stored":
            changes = owner.changes()
            changes.make(1_000)
            owner.saved(store.store(changes))
        elif kind == "save":
            reader.saved_elsewhere(store.next_offset)
        elif kind == "failed":  # it takes over, and stores by itself
            recorded.fold(reader)
            if reader.drifted:
                reader = store.views()
                tagged = Tagged(reader)
                recorded.fold(reader)
            changes = reader.changes()
            changes.make(1_000)
            reader.saved(store.store(changes))
            assert told(reader) == told(everything)
        elif kind == "restart":
            reader = store.views()
            tagged = Tagged(reader)
        elif kind == "read":
            recorded.fold(reader)
            tagged.check(reader, recorded, everything)
            assert told(reader, counts=not reader.drifted) == told(everything, counts=not reader.drifted)
    recorded.fold(reader)
    tagged.check(reader, recorded, everything)
    assert told(reader, counts=not reader.drifted) == told(everything, counts=not reader.drifted)


def test_what_is_over_leaves_memory_and_comes_back_for_an_event() -> None:
    recorded, store = Recorded(), Store()
    views = store.views()
    for workflow in range(3):
        recorded.add(workflow, 0)
    recorded.add(0, 14)
    recorded.add(1, 10)
    recorded.fold(views)
    assert [one.id for one in views.in_memory()] == IDS[:3]
    changes = views.changes()
    changes.make(1_000)
    views.saved(store.store(changes))
    assert [one.id for one in views.in_memory()] == IDS[1:3]
    assert [one.id for one in store.views().in_memory()] == IDS[1:3]
    recorded.add(0, 20)  # it starts over
    recorded.fold(views)
    summary = views.summary(IDS[0])
    assert summary is not None
    assert (summary.status, summary.seq) == ("running", 3)
    assert list(views.find("fulfil", TAGS[1])) == [IDS[0]]


def test_a_row_of_many_signals_is_packed_and_made_in_a_turn_of_its_own() -> None:
    """Others have a turn after so many bytes; what is many is no JSON, and comes back."""
    store, count = Store(), 20_000
    views = store.views()
    dispatched = [(workflow_id, ev.WorkflowDispatched("fulfil", b"1", {})) for workflow_id in IDS]
    looped: list[ev.EventData] = [ev.LoopCommitted(((1,),), 1, 0, b"null", None)]
    looped += [ev.SignalReceived(f"s{number}", "paid", b"1") for number in range(count)]
    looped.append(ev.SignalConsumed(in_loop(1, 1), 1, tuple(f"s{number}" for number in range(count))))
    looped.append(ev.LoopCommitted(((1,),), 1, 1, b"null", None))
    offset = 0
    for workflow_id, data in [*dispatched, *((workflow_id, data) for data in looped for workflow_id in IDS[:2])]:
        summary = views.summary(workflow_id)
        views.apply(offset, 7 * offset, workflow_id, 1 + (summary.seq if summary else 0), 1, data, workflow_id, "w")
        offset += 1
    changes = views.changes()
    made: list[int] = []
    while changes:
        changes.make(100)
        made.append(len(changes.rows))
    assert made == [1, 2, 4], "the two with many signals in a turn of their own each"
    store.table.write(3, changes.rows, changes.counts)
    assert store.db.execute("SELECT max(length(more)), max(length(positions)) FROM workflow_rows").fetchone() < (
        400,
        24 * count + 200,
    )
    row = store.get(IDS[0])
    assert row is not None
    assert row.events.positions == changes.rows[0].events.positions
    again = PartitionViews(store)
    again.load(offset, changes.counts, [row])
    assert len(again.received(IDS[0]).offsets) == count + 2
    assert again.received(IDS[0]) == views.received(IDS[0])
    assert again.located(IDS[0]) == views.located(IDS[0])
