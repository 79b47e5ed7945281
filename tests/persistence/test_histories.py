"""Histories of workflows as applications: one order for each partition, the same for every reader, for ever (decision 0034)."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from eventsourcing.application import Application
from eventsourcing.dispatch import singledispatchmethod
from eventsourcing.persistence import (
    InfrastructureFactoryError,
    Notification,
    OperationalError,
    ProgrammingError,
    StoredEvent,
    Tracking,
)
from eventsourcing.popo import POPOTrackingRecorder
from eventsourcing.projection import ApplicationSubscription, Projection, ProjectionRunner
from eventsourcing.utils import Environment

from gasoline_es import Gasoline
from gasoline_es.clock import VirtualClock
from gasoline_es.core import codec
from gasoline_es.core.events import Event
from gasoline_es.core.retention import Retention
from gasoline_es.core.topics import Topics
from gasoline_es.events import WorkflowCompleted, WorkflowDispatched
from gasoline_es.log.kafka.drivers.port import Feed
from gasoline_es.log.memory import MemoryLog, open_memory_log
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Epoch, NewRecord, Section
from gasoline_es.persistence import (
    WorkflowEvent,
    WorkflowHistory,
    history_reader,
    workflow_histories,
    workflow_history,
)
from gasoline_es.persistence.histories import GasolineHistoryRecorder, HistoryFactory
from tests.engine.harness import PATIENCE_S
from tests.kafka.cluster_of_memory import cluster_for_all
from tests.persistence.history_views import PARTITIONS, Runner, environment, quadruple, run_workflows, runners

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["memory", "file", "kafka"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    match request.param:
        case "memory":
            return f"memory:histories-{uuid4()}"
        case "file":
            return f"file:{tmp_path}/log"
        case _:
            cluster_for_all(monkeypatch)
            return f"kafka://memory:9092?state_dir={tmp_path}"


def histories(url: str) -> list[WorkflowHistory]:
    env = {"GASOLINE_LOG": url}
    return [history(env) for history in workflow_histories(env, "shop")]


def all_of(history: Application[str]) -> list[Notification]:
    """Read an application's notifications, a few at a time, up to the last there is."""
    found: list[Notification] = []
    last = history.recorder.max_notification_id() or 0
    while (found[-1].id if found else 0) < last:
        found += history.recorder.select_notifications(found[-1].id if found else None, 7, inclusive_of_start=not found)
    return found


# --- reading ----------------------------------------------------------------------------------------------------------


def test_each_partition_is_an_application_whose_ids_ascend_and_which_has_every_event_once(url: str) -> None:
    ids = run_workflows(url, 12)

    opened = histories(url)
    found = [all_of(history) for history in opened]

    assert [history.name for history in opened] == [f"shop/{partition}" for partition in range(PARTITIONS)]
    for notifications in found:
        ids_of_one = [one.id for one in notifications]
        assert ids_of_one == sorted(set(ids_of_one))
        if not url.startswith("kafka:"):  # there, ids have gaps
            assert ids_of_one == list(range(1, len(notifications) + 1))
    each = sorted((str(one.originator_id), one.originator_version) for some in found for one in some)
    assert each == sorted((workflow, seq) for workflow in ids for seq in range(1, 5))
    for history in opened:
        history.close()


def test_two_readers_see_one_order_which_stays_when_more_is_written_by_others(url: str) -> None:
    run_workflows(url, 6)
    first = histories(url)
    before = [all_of(history) for history in first]

    run_workflows(url, 6)  # another process, which takes the partitions over
    second = histories(url)

    after = [all_of(history) for history in second]
    assert [some[: len(were)] for some, were in zip(after, before, strict=True)] == before
    assert [all_of(history) for history in first] == after
    assert sum(map(len, after)) == 2 * sum(map(len, before))
    for history in (*first, *second):
        history.close()


async def _pruned(url: str) -> set[str]:
    """Let twelve workflows come to their end, and prune the first six; return those."""
    clock = VirtualClock()
    async with (
        Gasoline.open(url, namespace="shop", partitions=PARTITIONS, clock=clock) as gasoline,
        gasoline.worker([quadruple], prune_after=10) as worker,
    ):
        gone = [await gasoline.dispatch(quadruple, number) for number in range(6)]
        assert [await handle.output() for handle in gone] == [4 * number for number in range(6)]
        clock.advance(20)
        assert worker.pruner is not None
        assert await worker.pruner.look() == 6
        for number in range(6):
            await (await gasoline.dispatch(quadruple, number)).output()
        return {handle.id for handle in gone}


async def _clean(url: str, now_us: int) -> int:
    log = await open_log(url, namespace="shop")
    removed = (await log.compact(Retention(now_us))).removed.get("shop.events", {})
    await log.close()
    return sum(removed.values())


@pytest.mark.parametrize("url", ["memory", "file"], indirect=True)
def test_ids_stay_what_they_are_when_events_of_pruned_workflows_go(url: str) -> None:
    """decision 0045: they have gaps then. Who has come to one goes on behind it, and who waits for the last comes there."""
    gone = asyncio.run(_pruned(url))
    open_before = histories(url)
    before = [all_of(history) for history in open_before]
    day_later_us = VirtualClock().now_us() + 3 * 86_400 * 10**6
    removed = asyncio.run(_clean(url, day_later_us))
    assert removed == 6 * 4
    removed += asyncio.run(_clean(url, day_later_us))
    assert removed > 6 * 4, "some of the marks"
    opened = histories(url)
    for history, also, were in zip(opened, open_before, before, strict=True):
        found = all_of(history)
        ids = {one.id for one in found}
        assert found == [one for one in were if one.id in ids]
        missing = [one for one in were if one.id not in ids]
        assert {str(one.originator_id) for one in missing} <= gone
        assert all_of(also)[-1:] == found[-1:] == were[-1:]
        assert history.recorder.max_notification_id() == also.recorder.max_notification_id()
        for one in missing:
            behind = [other for other in found if other.id > one.id]
            assert list(history.recorder.select_notifications(one.id, 3, inclusive_of_start=False)) == behind[:3]
            (first,) = history.recorder.select_notifications(one.id, 1)
            assert first == behind[0]
    assert sum(map(len, before)) - sum(len(all_of(history)) for history in opened) == removed
    for history in (*opened, *open_before):
        history.close()


def test_on_kafka_ids_are_those_of_the_broker_whoever_reads_and_wherever_copies_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Markers and aborted records leave gaps, at the same places for everybody: also if this machine's copies are lost."""
    cluster = cluster_for_all(monkeypatch)
    begun = set[str]()

    def lose_the_first_answer(transactional_id: str) -> None:
        if transactional_id in owners - begun:
            begun.add(transactional_id)
            cluster.faults[transactional_id] = ["open"]

    owners = {f"shop.{partition}" for partition in range(PARTITIONS)}
    cluster.after_commit = lose_the_first_answer  # behind an owner's begin
    url = f"kafka://memory:9092?state_dir={tmp_path}/here"
    run_workflows(url, 8)
    before = {history.name: all_of(history) for history in histories(url)}
    for history, notifications in before.items():
        partition = int(history.removeprefix("shop/"))
        entries = cluster.entries(Feed("shop.events", partition))
        counted = [
            (at + 1, entry.record.value)
            for at, entry in enumerate(entries)
            if entry.record is not None and entry.transaction.state == "committed"
        ]
        assert [(one.id, one.state) for one in notifications] == counted
        if counted:
            assert counted[-1][0] > len(counted), "there are gaps"
    assert sum(map(len, before.values())) == 8 * 4

    run_workflows(url, 4)
    elsewhere = f"kafka://memory:9092?state_dir={tmp_path}/elsewhere"

    after = {history.name: all_of(history) for history in histories(elsewhere)}
    assert {name: some[: len(before[name])] for name, some in after.items()} == before
    assert sum(map(len, after.values())) == 12 * 4


def test_notifications_are_selected_as_of_any_application(url: str) -> None:
    run_workflows(url, 9)
    some = [
        (history, found) for history in histories(url) if (found := all_of(history))
    ]  # a partition may have got none
    assert some
    for history, every in some:
        recorder = history.recorder
        ids = [one.id for one in every]
        last = ids[-1]
        completed = [one for one in every if one.topic == "workflow.completed"]
        assert recorder.select_notifications(ids[1], 2) == every[1:3]
        assert recorder.select_notifications(ids[0] + 1, 2) == every[1:3], "from the next one there is"
        assert recorder.select_notifications(ids[1], 2, inclusive_of_start=False) == every[2:4]
        assert recorder.select_notifications(None, 10, stop=ids[2]) == every[:3]
        assert recorder.select_notifications(None, 10, stop=ids[3] - 1) == every[:3]
        assert recorder.select_notifications(ids[1], 10, stop=ids[0]) == []
        assert recorder.select_notifications(1, 0) == []
        assert recorder.select_notifications(last + 1, 10) == recorder.select_notifications(last + 5, 10) == []
        assert recorder.select_notifications(1, 100, topics=["workflow.completed", "none"]) == completed
        assert recorder.select_notifications(1, 1, topics=["workflow.completed"]) == completed[:1]
        history.close()


def test_events_are_those_of_the_history_of_a_workflow() -> None:
    url = f"memory:histories-{uuid4()}"
    (workflow_id,) = run_workflows(url, 1)
    (history,) = [one for one in histories(url) if one.recorder.max_notification_id()]

    with ApplicationSubscription(history) as subscription:
        events = [next(subscription) for _ in range(4)]

    tracked = [tracking for _, tracking in events]
    assert tracked == [Tracking(history.name, number) for number in range(1, 5)]
    facts = [event for event, _ in events]
    assert all(isinstance(event, WorkflowEvent) for event in facts)
    assert [(event.originator_id, event.originator_version) for event in facts] == [
        (workflow_id, n) for n in range(1, 5)
    ]
    first, *_, last = facts
    assert isinstance(first, WorkflowEvent)
    assert isinstance(last, WorkflowEvent)
    assert isinstance(first.data, WorkflowDispatched)
    assert isinstance(last.data, WorkflowCompleted)
    assert (first.workflow, first.type, last.type) == ("quadruple", "workflow.dispatched", "workflow.completed")
    assert first.time <= last.time
    stored = history.recorder.select_events(workflow_id)
    assert [(one.originator_id, one.originator_version) for one in stored] == [(workflow_id, n) for n in range(1, 5)]
    assert history.recorder.select_events(workflow_id, gt=1, lte=3, desc=True, limit=1) == [stored[2]]
    assert history.recorder.select_events("other") == []


def test_nothing_is_written_there(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/log"
    run_workflows(url, 1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    history = histories(url)[0]
    all_of(history)

    with pytest.raises(ProgrammingError, match="only workflows write them"):
        history.recorder.insert_events([StoredEvent("a", 1, "t", b"{}")])
    with pytest.raises(ProgrammingError, match="only workflows write them"):
        history.mapper.to_stored_event(object())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    for refused in (
        history.factory.aggregate_recorder,
        history.factory.tracking_recorder,
        history.factory.process_recorder,
    ):
        with pytest.raises(ProgrammingError, match="only workflows write them"):
            refused()
    history.close()

    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_snapshots_of_other_applications_are_no_matter_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IS_SNAPSHOTTING_ENABLED", "y")
    url = f"memory:histories-{uuid4()}"
    run_workflows(url, 1)

    history = histories(url)[0]

    assert history.snapshots is None


def test_a_subscription_hears_of_what_others_write_later(url: str) -> None:
    run_workflows(url, 1)
    opened = histories(url)
    heard: list[str] = []
    done = threading.Semaphore(0)

    def follow(subscription: ApplicationSubscription[str]) -> None:
        for event, _ in subscription:
            assert isinstance(event, WorkflowEvent)
            heard.append(event.originator_id)
            done.release()

    subscriptions = [ApplicationSubscription(history, topics=["workflow.completed"]) for history in opened]
    threads = [threading.Thread(target=follow, args=(one,)) for one in subscriptions]
    for thread in threads:
        thread.start()
    assert done.acquire(timeout=PATIENCE_S)

    ids = run_workflows(url, 3)

    for _ in ids:
        assert done.acquire(timeout=PATIENCE_S)
    assert sorted(heard[1:]) == sorted(ids)
    for subscription in subscriptions:
        subscription.stop()
    for thread in threads:
        thread.join(PATIENCE_S)
    for history in opened:
        history.close()


# --- what is wrong ----------------------------------------------------------------------------------------------------


def test_what_nothing_answers_is_not_read_again_and_other_types_are_not_decoded(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subscription to a rare type looks at each event once, however often the log changes."""
    run_workflows(url, 6)
    decoded, typed = list[bytes](), list[bytes]()
    read, type_of = codec.read, codec.type_of

    def read_it(key: str, value: bytes) -> Event:
        decoded.append(value)
        return read(key, value)

    def type_of_it(value: bytes) -> bytes | None:
        typed.append(value)
        return type_of(value)

    monkeypatch.setattr(history_reader, "read", read_it)
    monkeypatch.setattr(history_reader, "type_of", type_of_it)
    opened = histories(url)
    for _ in range(3):
        for history in opened:
            assert history.recorder.select_notifications(1, 10, topics=["workflow.cancelled"]) == []
    assert (len(decoded), len(typed)) == (0, 6 * 4)
    run_workflows(url, 6)
    for history in opened:
        assert history.recorder.select_notifications(1, 10, topics=["workflow.cancelled"]) == []
        every = all_of(history)
        decoded.clear()
        completed = [one for one in every if one.topic == "workflow.completed"]
        last = every[-1].id if every else 0  # now and then no workflow belongs to a partition
        for start in range(1, last + 2):  # from anywhere, in whatever order, a few at a time
            for limit in (1, 3, 100):
                for stop in (None, start, start + 3):
                    wanted = [one for one in completed if one.id >= start and (stop is None or one.id <= stop)]
                    found = history.recorder.select_notifications(start, limit, stop, ["workflow.completed"])
                    assert found == wanted[:limit]
        assert all(b'"gasoline.workflow.completed.v1"' in one for one in decoded)
        history.close()


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureFactoryError, match="set GASOLINE_LOG to the URL of one"):
        workflow_histories({})
    with pytest.raises(OperationalError, match="no log"):
        workflow_histories({"GASOLINE_LOG": f"file:{tmp_path}/none"})
    url = f"memory:histories-{uuid4()}"
    run_workflows(url, 1)
    with pytest.raises(OperationalError, match="no namespace 'other'"):
        workflow_histories({"GASOLINE_LOG": url}, "other")
    with pytest.raises(OperationalError, match=r"partition 3 is not one of the 3 of namespace 'shop'"):
        workflow_history("shop", 3)({"GASOLINE_LOG": url})
    assert not (tmp_path / "none").exists()


def test_a_closed_application_says_so(url: str) -> None:
    run_workflows(url, 1)
    history = histories(url)[0]
    recorder = history.recorder

    with recorder.subscribe() as subscription:
        if last := recorder.max_notification_id():
            assert last in (one.id for one in subscription)  # which passes over what comes before
        history.close()
        with pytest.raises(OperationalError, match="closed"):
            next(subscription)
    with pytest.raises(OperationalError, match="closed"):
        recorder.max_notification_id()
    with pytest.raises(OperationalError, match="closed"):
        history.factory.application_recorder()


async def put(log: MemoryLog, epoch: Epoch, key: str, value: bytes) -> None:
    await log.append([Section(0, epoch, [NewRecord(Topics("shop").events, 0, key, value, 1)])])


async def test_an_event_that_does_not_read_stops_the_reading_there_and_none_is_left_out() -> None:
    """Of a newer version, say: a projection that passed it over would be wrong from then on, without a word."""
    name = f"histories-{uuid4()}"
    log = await open_memory_log(name, namespace="shop", partitions=1)
    owned = await log.acquire(0)
    line = (
        b'{"specversion":"1.0","id":"w/%d","source":"/gasoline/shop","type":"gasoline.%b","subject":"w",'
        b'"time":"2026-01-01T00:00:00.000000Z","datacontenttype":"application/json","seq":%d,"partition":0,"epoch":1,'
        b'"workflow":"x","rayid":"w","worker":"","data":%b}'
    )
    await put(log, owned.epoch, "w/1", line % (1, b"workflow.woken.v1", 1, b'{"by":"x","cause":"signal"}'))
    await put(log, owned.epoch, "w/2", line % (2, b"workflow.levitated.v1", 2, b"{}"))
    recorder = HistoryFactory(Environment("x", {"GASOLINE_LOG": f"memory:{name}"}), "shop", 0).application_recorder()

    assert [one.originator_version for one in recorder.select_notifications(1, 10)] == [1]
    for topics in ((), ("workflow.woken",)):
        with pytest.raises(
            OperationalError, match=r"event at offset 1 of partition 0 of shop.events does not read.*update"
        ):
            recorder.select_notifications(2, 10, topics=topics)
    await log.close()


# --- projections ------------------------------------------------------------------------------------------------------


class Count(Projection[POPOTrackingRecorder]):
    topics = ("workflow.completed",)

    def __init__(self, view: POPOTrackingRecorder) -> None:
        super().__init__(view)
        self.seen: list[str] = []

    @singledispatchmethod
    def process_event(self, domain_event: object, tracking: Tracking) -> None:
        assert isinstance(domain_event, WorkflowEvent)
        assert isinstance(domain_event.data, WorkflowCompleted)
        self.seen.append(domain_event.originator_id)
        self.view.insert_tracking(tracking)


def expected(url: str) -> list[tuple[str, int, str, int, str]]:
    """Return a row for each event there is, in order."""
    opened = histories(url)
    rows = [
        (history.name, one.id, str(one.originator_id), one.originator_version, one.topic)
        for history in opened
        for one in all_of(history)
    ]
    for history in opened:
        history.close()
    return rows


def wait_for_all(started: Sequence[Runner]) -> None:
    for runner in started:
        last = runner.app.recorder.max_notification_id()
        if last is not None:
            runner.wait(last, timeout=PATIENCE_S)


def test_the_packages_runner_projects_each_event_once_while_a_worker_writes_them(tmp_path: Path) -> None:
    env = environment(str(tmp_path))
    url = env["GASOLINE_LOG"]
    run_workflows(url, 2)

    with ExitStack() as stack:
        started = runners(stack, env)
        run_workflows(url, 10)
        wait_for_all(started)
        view = started[0].projection.view
        assert view.rows() == expected(url)
    with ExitStack() as stack:  # again: it goes on where it was
        run_workflows(url, 1)
        started = runners(stack, env)
        wait_for_all(started)
        assert started[0].projection.view.rows() == expected(url)


def test_a_projection_may_ask_for_some_types_of_events_only() -> None:
    url = f"memory:histories-{uuid4()}"
    ids = run_workflows(url, 4)
    seen: list[str] = []
    for history in workflow_histories({"GASOLINE_LOG": url}, "shop"):
        with ProjectionRunner(
            application_class=history,
            projection_class=Count,
            view_class=POPOTrackingRecorder,
            env={"GASOLINE_LOG": url, "PERSISTENCE_MODULE": "eventsourcing.popo"},
        ) as runner:
            completed = runner.app.recorder.select_notifications(1, 100, topics=Count.topics)
            if completed:
                runner.wait(completed[-1].id, timeout=PATIENCE_S)
                assert isinstance(runner.projection, Count)
                seen += runner.projection.seen
    assert sorted(seen) == sorted(ids)


@contextmanager
def projector(directory: Path) -> Generator[subprocess.Popen[str]]:
    """Run the projection of all partitions in a process of its own, until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.persistence.history_views", str(directory)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "it has ended"
    return line


def test_a_projection_that_is_killed_again_and_again_processes_each_event_once(tmp_path: Path) -> None:
    env = environment(str(tmp_path))
    url = env["GASOLINE_LOG"]
    run_workflows(url, 20)
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draws = random.Random(seed)
    for _ in range(3):
        with projector(tmp_path) as process:
            for _ in range(draws.randrange(1, 15)):
                assert read_line(process)  # one is processed
    with ExitStack() as stack:
        started = runners(stack, env)
        wait_for_all(started)
        view = started[0].projection.view
        assert view.rows() == expected(url)


def test_a_projection_in_another_process_hears_of_what_is_written_here(tmp_path: Path) -> None:
    url = environment(str(tmp_path))["GASOLINE_LOG"]
    run_workflows(url, 1)
    with projector(tmp_path) as process:
        for _ in range(4):
            assert read_line(process)

        ids = run_workflows(url, 3)

        heard = [read_line(process).split()[2:] for _ in range(12)]
        assert sorted(heard) == sorted(
            [workflow, str(seq), kind]
            for workflow in ids
            for seq, kind in enumerate(
                ("workflow.dispatched", "activity.completed", "activity.completed", "workflow.completed"), 1
            )
        )


def test_the_recorder_is_one_of_the_packages() -> None:
    url = f"memory:histories-{uuid4()}"
    run_workflows(url, 1)

    assert isinstance(histories(url)[0].recorder, GasolineHistoryRecorder)
