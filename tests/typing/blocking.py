"""What pyright and mypy infer of the client that blocks: one assertion for each verb (api.md, "Outside")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import assert_type

from gasoline_es import (
    Event,
    Gasoline,
    Received,
    RerunInfo,
    ScheduleInfo,
    SignalTo,
    SyncGasoline,
    SyncScheduleHandle,
    SyncSubscription,
    SyncWorkflowHandle,
    WorkflowInfo,
)
from gasoline_es.events import ScheduleEvent
from tests.typing.inside import Left, Order, Paid, Progress, Receipt, fulfil, tick


def dispatches(gasoline: SyncGasoline, order: Order) -> None:
    handle = gasoline.dispatch(fulfil, order)
    assert_type(handle, SyncWorkflowHandle[Receipt])
    assert_type(handle.id, str)
    assert_type(handle.output(), Receipt)
    assert_type(handle.output(timeout=5), Receipt)
    assert_type(handle.output(timeout=timedelta(days=1)), Receipt)
    tagged = gasoline.dispatch(fulfil, order, tags={"order": "42"}, unique=True)
    assert_type(tagged, SyncWorkflowHandle[Receipt])
    assert_type(gasoline.dispatch(fulfil, order, key="order-42"), SyncWorkflowHandle[Receipt])
    assert_type(gasoline.dispatch(tick, None), SyncWorkflowHandle[None])


def handles(gasoline: SyncGasoline, workflow_id: str) -> None:
    handle = gasoline.handle(workflow_id, fulfil)
    assert_type(handle, SyncWorkflowHandle[Receipt])
    assert_type(handle.get(), WorkflowInfo)
    assert_type(handle.history(), list[Event])
    assert_type(handle.signal(Paid(amount=9), id="line-7"), str)
    assert_type(handle.wake(), None)
    assert_type(handle.cancel(), None)
    assert_type(handle.cancel(now=True), None)
    assert_type(handle.discard_signal("line-7"), None)
    assert_type(handle.recover(), None)
    assert_type(handle.rerun("{3}"), SyncWorkflowHandle[Receipt])
    assert_type(handle.rerun("{3}", fork=True), SyncWorkflowHandle[Receipt])


def asks(gasoline: SyncGasoline, workflow_id: str) -> None:
    assert_type(gasoline.find(fulfil, tags={"order": "42"}), SyncWorkflowHandle[Receipt] | None)
    assert_type(gasoline.get(workflow_id), WorkflowInfo)
    assert_type(gasoline.history(workflow_id), list[Event])
    assert_type(gasoline.wake(workflow_id), None)
    assert_type(gasoline.cancel(workflow_id, now=True), None)
    assert_type(gasoline.recover(workflow_id), None)
    assert_type(gasoline.rerun(workflow_id, "2,5,3", dry_run=True), RerunInfo)
    infos = gasoline.list(name="fulfil", tags={"order": "42"}, status="cancelled")
    assert_type(infos, Iterator[WorkflowInfo])
    for info in infos:
        assert_type(info, WorkflowInfo)


def signals(gasoline: SyncGasoline, workflow_id: str) -> None:
    assert_type(gasoline.discard_signal("line-7", to=workflow_id), None)
    assert_type(gasoline.discard_signal("line-7", fulfil, tags={"order": "42"}), None)
    assert_type(gasoline.signal(Paid(amount=9), to=workflow_id), str)
    assert_type(gasoline.signal(Paid(amount=9), fulfil, tags={"order": "42"}, id="line-7"), str)
    assert_type(gasoline.signal(Paid(amount=9), fulfil, graceful_not_found=True), str | None)
    assert_type(gasoline.signal(Paid(amount=9), fulfil, tags={"order": "42"}, park=60), str)
    assert_type(gasoline.signal(Paid(amount=9), fulfil, park=timedelta(minutes=1), graceful_not_found=True), str)
    assert_type(gasoline.signal_many([SignalTo(Paid(amount=9), workflow_id)]), list[str])


def messages(gasoline: SyncGasoline) -> None:
    assert_type(gasoline.message(Left(), topic={"map": "forest", "level": 2}, wait=True), None)
    assert_type(gasoline.tail(Progress, topic={"map": "forest"}), Received[Progress] | None)
    subscription = gasoline.subscribe(Progress, topic={"order": 42}, buffer=10, timeout=timedelta(seconds=1))
    assert_type(subscription, SyncSubscription[Progress])
    with gasoline.subscribe(Progress, timeout=0.5) as entered:
        assert_type(entered, SyncSubscription[Progress])
        for received in entered:
            assert_type(received, Received[Progress])
            assert_type(received.message.done, int)
            assert_type(received.topic, Mapping[str, str])
            assert_type(received.time, datetime)
        assert_type(next(entered), Received[Progress])
    assert_type((subscription.lost, subscription.closed), tuple[int, bool])
    assert_type(subscription.close(), None)


def opens() -> None:
    with Gasoline.open_sync("memory:", namespace="shop", partitions=4, readonly=False) as gasoline:
        assert_type(gasoline, SyncGasoline)
        assert_type(gasoline.close(), None)


def mistakes(gasoline: SyncGasoline, order: Order) -> None:
    gasoline.dispatch(fulfil, "order")  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    gasoline.dispatch(fulfil)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    gasoline.dispatch(fulfil, order, tag="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    gasoline.get()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    gasoline.signal(order, to="x")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    gasoline.subscribe(Order)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    gasoline.worker([fulfil])  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def schedules(gasoline: SyncGasoline, order: Order) -> None:
    handle = gasoline.schedule("0 3 * * *", fulfil, order, timezone="Europe/Berlin", missed="all", overlap="skip")
    assert_type(handle, SyncScheduleHandle[Receipt])
    assert_type(handle.name, str)
    assert_type(handle.trigger(), SyncWorkflowHandle[Receipt])
    assert_type(handle.get(), ScheduleInfo)
    assert_type(handle.pause(), None)
    assert_type(handle.history(), list[ScheduleEvent])
    assert_type(gasoline.schedule(timedelta(hours=1), tick, None), SyncScheduleHandle[None])
    assert_type(gasoline.schedule_handle("nightly", fulfil), SyncScheduleHandle[Receipt])
    assert_type(gasoline.schedules(), Iterator[ScheduleInfo])
