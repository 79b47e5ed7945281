"""The engine's own views as a projection, in each store: what people ask of them in SQL, rebuilt, compared (design §7)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from gasoline_es.core import events as ev
from gasoline_es.core.announced import Announced, announced_as
from gasoline_es.core.codec import Envelope
from gasoline_es.core.ids import new_workflow_id
from gasoline_es.core.parked_events import (
    ParkedData,
    ParkedEvent,
    SignalOffered,
    SignalParked,
    SignalUnparked,
    encode_parked_event,
)
from gasoline_es.core.schedule_events import (
    ScheduleData,
    ScheduleEvent,
    ScheduleFired,
    SchedulePaused,
    ScheduleRemoved,
    ScheduleSet,
    encode_schedule_event,
)
from gasoline_es.core.stored_events import (
    DecisionStored,
    EventStored,
    Stored,
    StoredEnvelope,
    TrackingStored,
    embed,
)
from gasoline_es.core.storing import Query
from gasoline_es.core.timetable import Cron, Every
from gasoline_es.log.memory import MemoryLog
from gasoline_es.log.port import Appended, Log, NewRecord, Section
from projections.building import rebuild
from projections.comparing import verify
from projections.parked import ParkedView
from projections.running import Runner
from projections.schedules import ScheduleView
from projections.stored import StoredView
from projections.stores.port import Store
from projections.tables import Tables
from projections.views import Beside
from projections.workflows import NAME, KeptBesideOf, Workflows
from tests.projection.conftest import OpenStore

EVENTS = "default.events"
START_US = 1_767_225_600_000_000
ERROR = ev.ErrorInfo("OSError", "no network", "line 1", b'{"host":"a"}')


class Story:
    """Events of workflows in partition 0 of a log. The n-th is of second n of 2026."""

    def __init__(self, log: Log) -> None:
        assert isinstance(log, MemoryLog)
        self.log = log
        self._seqs: dict[str, int] = {}
        self._count = 0
        self._epoch: Any = None

    async def add(self, *facts: tuple[str, ev.EventData]) -> None:
        if self._epoch is None:
            self._epoch = (await self.log.acquire(0)).epoch
        records: list[NewRecord] = []
        for workflow_id, data in facts:
            seq = self._seqs[workflow_id] = self._seqs.get(workflow_id, 0) + 1
            envelope = Envelope(
                namespace="default",
                workflow_id=workflow_id,
                workflow="fulfil",
                ray_id=workflow_id,
                partition=0,
                epoch=1,
                worker="w",
            )
            at_us = START_US + 1_000_000 * self._count
            self._count += 1
            records.append(NewRecord(EVENTS, 0, f"{workflow_id}/{seq}", envelope.encode(seq, at_us, data), at_us))
        (outcome,) = await self.log.append([Section(0, self._epoch, records)])
        assert isinstance(outcome, Appended)


def ids(count: int) -> list[str]:
    return [new_workflow_id(START_US, bytes([number] * 8), number) for number in range(count)]


def dispatched(**tags: str) -> ev.WorkflowDispatched:
    return ev.WorkflowDispatched("fulfil", b"1", tags)


def rows(store: Store[Any], query: str) -> list[tuple[Any, ...]]:
    with store.snapshot(NAME) as snapshot:
        return [tuple(_told(value) for value in row) for row in snapshot.db.execute(query).fetchall()]


def _told(value: Any) -> Any:
    """What SQLite gives as text, where PostgreSQL has a type for it."""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
    if isinstance(value, (dict, list)):
        return json.dumps(value, separators=(",", ":"))
    return value


async def tell(log: Log) -> Sequence[str]:
    """One that is complete, one that sleeps with signals in its queue, one that is dead, one that runs."""
    story = Story(log)
    done, asleep, dead, runs = workflows = ids(4)
    await story.add(
        (done, dispatched(order="1", region="north")),
        (asleep, dispatched(order="2")),
        (dead, dispatched()),
        (runs, dispatched(order="3")),
        (done, ev.WorkflowCompleted(b"2", b"null")),
        (dead, ev.WorkflowFailed(ERROR)),
        (asleep, ev.SignalReceived("s1", "moved", b"1")),
        (asleep, ev.SignalReceived("s2", "moved", b"1")),
        (asleep, ev.WorkflowSuspended(START_US + 3_600_000_000, ("paid", "cancelled"))),
    )
    return workflows


async def test_sql_shows_workflows_tags_signals_and_what_is_due(log: Log, open_store: OpenStore) -> None:
    """The reference of views: docs/guides/views.md."""
    done, asleep, dead, runs = await tell(log)
    store = open_store()
    rebuild(log, store, Workflows())
    assert rows(store, "SELECT id, name, status, completed, error_type, events FROM workflows ORDER BY created") == [
        (done, "fulfil", "complete", "2026-01-01T00:00:04.000000Z", None, 2),
        (asleep, "fulfil", "sleeping", None, None, 4),
        (dead, "fulfil", "dead", None, "OSError", 2),
        (runs, "fulfil", "running", None, None, 1),
    ]
    assert rows(store, "SELECT tags, waiting_until, waiting_for_signals FROM workflows WHERE status = 'sleeping'") == [
        ('{"order":"2"}', "2026-01-01T01:00:00.000000Z", '["paid","cancelled"]')
    ]
    assert rows(store, "SELECT tag, value, workflow_id FROM tags ORDER BY tag, value") == [
        ("order", "1", done),
        ("order", "2", asleep),
        ("order", "3", runs),
        ("region", "north", done),
    ]
    assert rows(store, "SELECT workflow_id, id, name, received FROM signals ORDER BY place") == [
        (asleep, "s1", "moved", "2026-01-01T00:00:06.000000Z"),
        (asleep, "s2", "moved", "2026-01-01T00:00:07.000000Z"),
    ]
    assert rows(store, "SELECT workflow_id, due FROM wake_queue") == [(asleep, "2026-01-01T01:00:00.000000Z")]
    assert rows(store, "SELECT name, status, count FROM counts ORDER BY status") == [
        ("fulfil", "complete", 1),
        ("fulfil", "dead", 1),
        ("fulfil", "running", 1),
        ("fulfil", "sleeping", 1),
    ]


async def test_sql_shows_what_stands_beside_workflows(log: Log, open_store: OpenStore) -> None:
    """The reference of views: docs/guides/views.md."""
    every, cron = Every(60_000_000, START_US), Cron("0 3 * * *", "Europe/Berlin")
    later_us = START_US + 60_000_000
    schedules: list[tuple[str, str, ScheduleData]] = [
        (
            "s1",
            "nightly",
            ScheduleSet("nightly", "report", b"[1]", {"team": "a"}, every, "all", "skip", later_us, "me"),
        ),
        ("s1", "nightly", ScheduleFired(later_us, "w1", later_us + 60_000_000)),
        ("s2", "gone", ScheduleSet("gone", "report", b"1", {}, every, "all", "skip", None, "me")),
        ("s2", "gone", ScheduleRemoved("me")),
        ("s3", "early", ScheduleSet("early", "report", b'"\\u0000"', {}, cron, "all", "skip", later_us, "me")),
        ("s3", "early", SchedulePaused("me")),
    ]
    parked: list[tuple[str, ParkedData]] = [
        ("p1", SignalParked("m1", "paid", b"{}", "order", {"order": "1"}, later_us, True, "me")),
        ("p2", SignalParked("m2", "paid", b"{}", "order", {"order": "2"}, later_us, True, "me")),
        ("p2", SignalUnparked("w1")),
        ("p3", SignalParked("m3", "paid", b"{}", "order", {}, later_us, True, "me")),
        ("p3", SignalOffered("w2")),
    ]
    records: list[NewRecord] = []
    seqs: dict[str, int] = {}
    for its_id, name, data in schedules:
        seqs[its_id] = seqs.get(its_id, 0) + 1
        event = ScheduleEvent(its_id, seqs[its_id], START_US, name, 0, 1, "w", data)
        records.append(
            NewRecord("default.schedules", 0, f"{its_id}/1", encode_schedule_event(event, "default"), START_US)
        )
    for its_id, fact in parked:
        seqs[its_id] = seqs.get(its_id, 0) + 1
        told = ParkedEvent(its_id, seqs[its_id], START_US, "paid", 0, 1, "w", fact)
        records.append(NewRecord("default.parked", 0, f"{its_id}/1", encode_parked_event(told, "default"), START_US))
    envelope = StoredEnvelope("default", 0, 1, "w")
    originator = "o\0"
    for sequence, number, some in (
        ("events", 1, [EventStored(originator, False, version, "paid", embed(b"1")) for version in (1, 2)]),
        ("decisions", 1, [DecisionStored("moved", ("order:1", "order:2"), embed(b"1"))]),
        ("tracking", 1, [TrackingStored("shop", 7)]),
    ):
        ((held, line),) = envelope.encode(Stored(sequence, number, START_US, "r", some))
        records.append(NewRecord("default.stored", 0, held.key, line, START_US))
    said = Announced("w", "2026-01-01T00:00:00.000000Z", "1.2", ("order",), ("charge",)).json()
    records += [
        NewRecord("default.registry", 0, "inbox/0", b"{}", START_US),
        NewRecord("default.registry", 0, announced_as("w"), said, START_US),
        NewRecord("default.registry", 0, announced_as("x"), said, START_US),
        NewRecord("default.registry", 0, announced_as("x"), None, START_US),
    ]
    assert isinstance(log, MemoryLog)
    epoch = (await log.acquire(0)).epoch
    await log.append([Section(0, epoch, records)])
    store = open_store()
    rebuild(log, store, Workflows())
    minute, two = "2026-01-01T00:01:00.000000Z", "2026-01-01T00:02:00.000000Z"
    assert rows(
        store,
        "SELECT name, workflow, status, tags, cron, next_due, last_due, last_run, fired FROM schedules ORDER BY name",
    ) == [
        ("early", "report", "paused", "{}", "0 3 * * *", None, None, None, 0),
        ("nightly", "report", "active", '{"team":"a"}', None, two, minute, "w1", 1),
    ]
    assert rows(store, "SELECT timezone, interval_us, skipped, created, partition FROM schedules ORDER BY name") == [
        ("Europe/Berlin", None, 0, "2026-01-01T00:00:00.000000Z", 0),
        (None, 60_000_000, 0, "2026-01-01T00:00:00.000000Z", 0),
    ]
    assert rows(
        store, "SELECT id, name, workflow, tags, status, parked, until, target FROM parked_signals ORDER BY id"
    ) == [
        ("m1", "paid", "order", '{"order":"1"}', "parked", "2026-01-01T00:00:00.000000Z", minute, None),
        ("m3", "paid", "order", "{}", "offered", "2026-01-01T00:00:00.000000Z", minute, "w2"),
    ]
    assert rows(store, "SELECT worker, started, library, workflows FROM workers") == [
        ("w", "2026-01-01T00:00:00.000000Z", "1.2", '["order"]')
    ]
    assert rows(store, "SELECT kind, name, worker FROM definitions ORDER BY kind") == [
        ("activity", "charge", "w"),
        ("workflow", "order", "w"),
    ]
    assert verify(log, store, Workflows()).difference is None
    with store.snapshot(NAME) as snapshot:
        tables = Tables(snapshot.db)
        beside = Beside(KeptBesideOf(tables.ask, 0))
        for kept in (beside.schedules, beside.parked, beside.stored):
            tables.load(kept, 0, 99)
            if isinstance(kept, ScheduleView):
                assert [one.status for one in kept] == ["active", "paused"]
                assert [one and one.status for one in map(kept.get, ("s1", "s2", "s4"))] == ["active", "removed", None]
            elif isinstance(kept, ParkedView):
                assert [one.signal.signal_id for one in kept.live()] == ["m1", "m3"]
            elif store.kind != "postgres":
                assert kept.of_originator("events", originator, None, None, newest_first=True, limit=1) == [2]
            if isinstance(kept, StoredView):
                assert kept.of_kinds("events", ["paid"], 1, None, 9) == [1, 2]
                assert kept.matching("decisions", Query(((("moved",), ("order:2", "order:1")),)), 0, None) == [1]
                assert kept.located("events", [1, 2])[2] == [[1, 2]]
                assert kept.tracked("shop") == 7


async def test_a_fold_in_parts_is_the_fold_of_all(log: Log, open_store: OpenStore) -> None:
    """What is over leaves memory after each chunk, and comes back for what is added to it."""
    story, workflows, store = Story(log), ids(3), open_store()
    runner = Runner(log, store, [Workflows()])
    facts: list[tuple[str, ev.EventData]] = [(one, dispatched(order="1")) for one in workflows]
    for number in range(1, 4):
        facts += [(one, ev.ActivityCompleted(((number,),), 1, "charge", 1, 1, b"1", b"2")) for one in workflows]
    facts += [(one, ev.WorkflowCompleted(b"2", b"null")) for one in workflows]
    facts += [(one, ev.WorkflowRerun("somebody", ((2,),), 1, ((3, 5),), (), {"order": "2"})) for one in workflows]
    facts += [(workflows[0], ev.WorkflowCompleted(b"2", b"null")), (workflows[1], ev.WorkflowFailed(ERROR))]
    for fact in facts:
        await story.add(fact)
        while runner.step():
            pass
        verdict = verify(log, store, Workflows())
        assert verdict.difference is None, verdict
    runner.close()
    assert rows(store, "SELECT status, tags FROM workflows ORDER BY id") == [
        ("complete", '{"order":"2"}'),
        ("dead", '{"order":"2"}'),
        ("running", '{"order":"2"}'),
    ]


async def test_texts_that_a_database_cannot_hold_cost_that_text_alone(
    log: Log, open_store: OpenStore, kind: str
) -> None:
    """PostgreSQL has no NUL in a text."""
    story, (one,), store = Story(log), ids(1), open_store()
    await story.add((one, dispatched(order="a\0b")), (one, ev.WorkflowFailed(ev.ErrorInfo("E\0", "m\0", "", None))))
    rebuild(log, store, Workflows())
    nul = "\ufffd" if kind == "postgres" else "\0"
    assert rows(store, "SELECT value FROM tags") == [(f"a{nul}b",)]
    assert rows(store, "SELECT error_message FROM workflows") == [(f"m{nul}",)]
    assert verify(log, store, Workflows()).difference is None


async def test_a_row_that_somebody_changed_is_named(log: Log, open_store: OpenStore, kind: str) -> None:
    workflows = await tell(log)
    store = open_store()
    rebuild(log, store, Workflows())
    generation = store.current(NAME)
    assert generation is not None
    with generation.writing() as write:
        write.db.execute(f"UPDATE workflow_rows SET status = 'complete' WHERE id = '{workflows[3]}'")  # noqa: S608
    generation.close()
    difference = verify(log, store, Workflows()).difference
    assert difference is not None
    assert (difference.table, difference.key) == ("workflow_rows", {"id": workflows[3]})
    assert difference.stored is not None
    assert difference.fresh is not None
    assert (difference.stored["status"], difference.fresh["status"]) == ("complete", "running")
