"""What pyright and mypy infer outside workflows: one assertion for each row of api.md."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import assert_type

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import get_tracer_provider
from prometheus_client.registry import Collector

from gasoline_es import (
    Gasoline,
    PruneInfo,
    Received,
    RerunInfo,
    ReviveInfo,
    ScheduleHandle,
    ScheduleInfo,
    SignalTo,
    Subscription,
    SyncGasoline,
    WorkflowHandle,
    WorkflowInfo,
)
from gasoline_es.events import ScheduleEvent
from gasoline_es.metrics import collector
from tests.typing.inside import Left, Order, Paid, Progress, Receipt, count, fulfil, lookup, tick


async def dispatches(gasoline: Gasoline, order: Order) -> None:
    handle = await gasoline.dispatch(fulfil, order)
    assert_type(handle, WorkflowHandle[Receipt])
    assert_type(handle.id, str)
    assert_type(await handle.output(), Receipt)
    assert_type(await handle.output(timeout=5), Receipt)
    assert_type(await handle.output(timeout=timedelta(days=1)), Receipt)
    assert_type(await gasoline.dispatch(fulfil, order, tags={"order": "42"}, unique=True), WorkflowHandle[Receipt])
    assert_type(await gasoline.dispatch(fulfil, order, key="order-42"), WorkflowHandle[Receipt])
    assert_type(await gasoline.dispatch(tick, None), WorkflowHandle[None])


async def handles(gasoline: Gasoline, workflow_id: str) -> None:
    handle = gasoline.handle(workflow_id, fulfil)
    assert_type(handle, WorkflowHandle[Receipt])
    assert_type(await handle.get(), WorkflowInfo)
    gasoline.list(status=(await handle.get()).status)
    assert_type(await handle.rerun("{3}"), WorkflowHandle[Receipt])
    assert_type(await handle.rerun("{3}", fork=True), WorkflowHandle[Receipt])
    assert_type(await gasoline.rerun(workflow_id, "2,5,3", dry_run=True), RerunInfo)
    assert_type(await gasoline.find(fulfil, tags={"order": "42"}), WorkflowHandle[Receipt] | None)
    assert_type(await handle.wake(), None)
    assert_type(await handle.cancel(), None)
    assert_type(await handle.cancel(now=True), None)
    assert_type(await handle.silence(), None)
    assert_type(await handle.recover(), None)
    assert_type(await gasoline.wake(workflow_id), None)
    assert_type(await gasoline.cancel(workflow_id, now=True), None)
    assert_type(await gasoline.silence(workflow_id), None)
    assert_type(await handle.discard_signal("line-7"), None)
    assert_type(await gasoline.discard_signal("line-7", to=workflow_id), None)
    assert_type(await gasoline.discard_signal("line-7", fulfil, tags={"order": "42"}), None)
    assert_type((await gasoline.revive(error="", recover=True)).left, int)
    assert_type(await gasoline.prune_history(age=60, dry_run=True), PruneInfo)
    assert_type(await gasoline.revive(name="fulfil", error="KeyError", dry_run=True), ReviveInfo)
    assert_type((await gasoline.revive(error="", progress=print)).ids, tuple[str, ...])
    assert_type(await gasoline.recover(workflow_id), None)
    async for info in gasoline.list(name="fulfil", tags={"order": "42"}, status="cancelled"):
        assert_type(info, WorkflowInfo)
        assert_type(info.id, str)


async def signals(gasoline: Gasoline, workflow_id: str) -> None:
    assert_type(await gasoline.signal(Paid(amount=9), to=workflow_id), str)
    assert_type(await gasoline.signal(Paid(amount=9), fulfil, tags={"order": "42"}, id="line-7"), str)
    assert_type(await gasoline.signal(Paid(amount=9), fulfil, graceful_not_found=True), str | None)
    assert_type(await gasoline.signal(Paid(amount=9), fulfil, tags={"order": "42"}, park=60), str)
    assert_type(await gasoline.signal(Paid(amount=9), fulfil, park=timedelta(minutes=1), graceful_not_found=True), str)
    assert_type(await gasoline.signal(Paid(amount=9), to=workflow_id, id="line-7", from_activity=True), str)
    assert_type(await gasoline.signal(Paid(amount=9), fulfil, from_activity=True), str)
    assert_type(await gasoline.handle(workflow_id, fulfil).signal(Paid(amount=9), from_activity=True), str)
    assert_type(await gasoline.signal_many([SignalTo(Paid(amount=9), workflow_id)]), list[str])
    assert_type(await gasoline.handle(workflow_id, fulfil).signal(Paid(amount=9)), str)


async def messages(gasoline: Gasoline) -> None:
    assert_type(await gasoline.message(Progress(done=1)), None)
    assert_type(await gasoline.message(Left(), topic={"map": "forest", "level": 2}, wait=True), None)
    assert_type(await gasoline.tail(Progress, topic={"map": "forest"}), Received[Progress] | None)
    subscription = gasoline.subscribe(Progress, topic={"order": 42}, buffer=10)
    assert_type(subscription, Subscription[Progress])
    async with gasoline.subscribe(Progress) as entered:
        assert_type(entered, Subscription[Progress])
        async for received in entered:
            assert_type(received, Received[Progress])
            assert_type(received.message.done, int)
            assert_type(received.topic, Mapping[str, str])
            assert_type(received.time, datetime)
            assert_type((received.ray_id, received.request_id), tuple[str, str])
    assert_type(subscription.lost, int)


async def operations(gasoline: Gasoline, order: Order) -> None:
    assert_type(await gasoline.operation(lookup, order), Receipt)
    assert_type(await gasoline.operation(count, order, ray_id="0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"), int)


async def schedules(gasoline: Gasoline, order: Order) -> None:
    handle = await gasoline.schedule("0 3 * * *", fulfil, order, timezone="Europe/Berlin", missed="all", overlap="skip")
    assert_type(handle, ScheduleHandle[Receipt])
    assert_type(await handle.trigger(), WorkflowHandle[Receipt])
    assert_type(await handle.get(), ScheduleInfo)
    assert_type(await handle.history(), list[ScheduleEvent])
    assert_type(await handle.pause(), None)
    assert_type(await handle.remove(), None)
    assert_type(await gasoline.schedule(900, tick, None, name="poll"), ScheduleHandle[None])
    assert_type(gasoline.schedule_handle("poll", tick), ScheduleHandle[None])
    async for info in gasoline.schedules():
        assert_type(info, ScheduleInfo)


async def opens(order: Order) -> None:
    async with Gasoline.open("memory:") as gasoline:
        assert_type(gasoline, Gasoline)
        async with gasoline.worker([fulfil, tick], metrics_port=0, metrics_host="::1") as worker:
            assert_type(worker.metrics_port, int | None)
            assert_type(collector(gasoline), Collector)
            assert_type(await (await gasoline.dispatch(fulfil, order)).output(), Receipt)


async def traces(workflow_id: str) -> None:
    async with Gasoline.open("memory:", tracing=TracerProvider()) as gasoline:
        for event in await gasoline.history(workflow_id):
            assert_type(event.traceparent, str | None)
    with Gasoline.open_sync("memory:", tracing=get_tracer_provider()) as blocking:
        assert_type(blocking, SyncGasoline)
    Gasoline.open("memory:", tracing=True)
