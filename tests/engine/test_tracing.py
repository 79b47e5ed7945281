"""OpenTelemetry spans, linked across dispatch, signal and activity by ``traceparent`` (design §4, docs/design/0026)."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from gasoline_es import (
    ActivityContext,
    Backoff,
    Gasoline,
    NotRetryable,
    OperationContext,
    Signal,
    SignalTo,
    WorkflowContext,
    activity,
    operation,
    workflow,
)
from gasoline_es.core.commands import Dispatch, Request, SendSignal, encode_request
from gasoline_es.errors import LogError, NoSpace, WorkflowFailed, WorkflowNotFound
from gasoline_es.events import Event
from gasoline_es.runtime.tracing import LINKS_MAX, Tracing
from tests.engine.harness import Process, World, has, kills, post, rehandle, soon


class Paid(Signal):
    cents: int = 0


class Spans:
    """A provider of the SDK, and what it has exported."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("tests")

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.exporter.get_finished_spans()]

    def all(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.all(name)
        return span


def told(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def context_of(span: ReadableSpan) -> SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def id_of(span: ReadableSpan) -> int:
    return context_of(span).span_id


def trace_of(span: ReadableSpan) -> int:
    return context_of(span).trace_id


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def named(span: ReadableSpan) -> str:
    """The traceparent that names a span."""
    return f"00-{trace_of(span):032x}-{id_of(span):016x}-{context_of(span).trace_flags:02x}"


def traceparents(history: Sequence[Event]) -> dict[str, str | None]:
    return {event.type: event.traceparent for event in history}


@pytest.fixture
def spans() -> Spans:
    return Spans()


async def traced(world: World, spans: Spans | None, *workflows: Any, **settings: Any) -> Process:
    """Start a process that makes spans, if it is given any; with a worker, if it is given workflows."""
    process = await world.process()
    process.node.tracing = None if spans is None else Tracing(spans.provider, "default")
    if workflows:
        await process.work(*workflows, **settings)
    return process


# --- definitions ------------------------------------------------------------------------------------------------------

current: list[int] = []
"""The ids of the spans that were current where user code ran."""


def note_current() -> None:
    current.append(trace.get_current_span().get_span_context().span_id)


@pytest.fixture(autouse=True)
def nothing_noted() -> Iterator[None]:
    current.clear()
    yield
    assert not trace.get_current_span().get_span_context().is_valid, "a test leaves no span current"


@operation
async def look_up(ctx: OperationContext, number: int) -> int:
    note_current()
    return number


@activity
async def charge(ctx: ActivityContext, cents: int) -> int:
    note_current()
    await asyncio.sleep(0)
    note_current()
    return await ctx.operation(look_up, cents)


@activity
def print_label(ctx: ActivityContext, cents: int) -> str:
    note_current()
    return threading.current_thread().name


@workflow
async def fulfil(ctx: WorkflowContext, cents: int) -> int:
    return await ctx.activity(charge, cents)


@workflow
async def label(ctx: WorkflowContext, cents: int) -> str:
    return await ctx.activity(print_label, cents)


@workflow
async def paid_twice(ctx: WorkflowContext, _: None) -> int:
    first = await ctx.activity(charge, 1)
    signal = await ctx.listen(Paid)
    more = await ctx.listen_n(Paid, limit=1_000, timeout=3600)
    return await ctx.activity(charge, first + signal.cents + sum(one.cents for one in more))


@workflow
async def pays(ctx: WorkflowContext, to: str) -> int:
    await ctx.signal(Paid(cents=1), to=to)
    part = await ctx.dispatch(fulfil, 7)
    return await part.output()


@workflow
async def waits_for_pay(ctx: WorkflowContext, _: None) -> int:
    return await ctx.activity(charge, (await ctx.listen(Paid)).cents)


# --- one process ------------------------------------------------------------------------------------------------------


async def test_dispatch_activity_and_workflow_are_linked_across_one_trace(spans: Spans) -> None:
    """The dispatch is the parent of the attempts and of the workflow's span, and a child of the caller's."""
    async with Gasoline.open("memory:", tracing=spans.provider) as gasoline, gasoline.worker([fulfil]):
        with spans.tracer.start_as_current_span("request"):
            handle = await gasoline.dispatch(fulfil, 5)
        assert await soon(handle.output()) == 5
        history = await handle.history()
    request, dispatch = spans.one("request"), spans.one("dispatch fulfil")
    attempt, whole = spans.one("activity charge"), spans.one("workflow fulfil")
    assert sorted(spans.names) == ["activity charge", "dispatch fulfil", "request", "workflow fulfil"]
    assert {trace_of(span) for span in (request, dispatch, attempt, whole)} == {trace_of(request)}
    assert parent_of(dispatch) == id_of(request)
    assert parent_of(attempt) == parent_of(whole) == id_of(dispatch)
    assert traceparents(history) == {
        "workflow.dispatched": named(dispatch),
        "activity.completed": None,
        "workflow.completed": None,
    }
    assert current == [id_of(attempt)] * 3  # in the activity, after it awaited something, and in its operation
    assert (dispatch.kind, attempt.kind, whole.kind) == (SpanKind.PRODUCER, SpanKind.INTERNAL, SpanKind.CONSUMER)
    assert {span.status.status_code for span in (dispatch, attempt, whole)} == {StatusCode.UNSET}
    assert whole.start_time == history[0].time_us * 1_000
    assert whole.end_time == history[-1].time_us * 1_000


async def test_spans_say_what_they_are_about(spans: Spans) -> None:
    async with (
        Gasoline.open("memory:", namespace="shop", tracing=spans.provider) as gasoline,
        gasoline.worker([fulfil]),
    ):
        handle = await gasoline.dispatch(fulfil, 5)
        await soon(handle.output())
    of_it = {"gasoline.namespace": "shop", "gasoline.workflow.id": handle.id}
    named_too = {**of_it, "gasoline.workflow.name": "fulfil", "gasoline.ray_id": handle.id}
    assert told(spans.one("dispatch fulfil")) == {
        **of_it,
        "messaging.system": "gasoline_es",
        "messaging.operation.name": "dispatch",
        "messaging.operation.type": "send",
        "messaging.destination.name": "fulfil",
    }
    assert told(spans.one("activity charge")) == {
        **named_too,
        "gasoline.activity.name": "charge",
        "gasoline.activity.location": "{1}",
        "gasoline.activity.attempt": 1,
    }
    assert told(spans.one("workflow fulfil")) == {
        **named_too,
        "messaging.system": "gasoline_es",
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.destination.name": "fulfil",
        "gasoline.workflow.status": "complete",
    }
    scope = spans.one("workflow fulfil").instrumentation_scope
    assert scope is not None
    assert (scope.name, scope.version) == ("gasoline_es", "0.1.0")


async def test_activity_in_a_thread_has_its_span_as_the_current_one(spans: Spans) -> None:
    async with Gasoline.open("memory:", tracing=spans.provider) as gasoline, gasoline.worker([label]):
        handle = await gasoline.dispatch(label, 5)
        assert await soon(handle.output()) != "MainThread"
    assert current == [id_of(spans.one("activity print_label"))]


async def test_activity_sees_its_own_span_and_nothing_of_whoever_started_it(spans: Spans) -> None:
    """Its task begins in a copy of the context of whatever let the workflow go on: another request's, say."""
    seen: list[object] = []

    @activity
    async def look(ctx: ActivityContext, _: None) -> None:
        seen.append(baggage.get_baggage("user"))
        note_current()

    @workflow
    async def looks(ctx: WorkflowContext, _: None) -> None:
        await ctx.activity(look, None)

    async with Gasoline.open("memory:", tracing=spans.provider) as gasoline, gasoline.worker([looks]):
        token = context.attach(baggage.set_baggage("user", "alice"))
        try:
            handle = await gasoline.dispatch(looks, None)
        finally:
            context.detach(token)
        await soon(handle.output())
    assert seen == [None]
    assert current == [id_of(spans.one("activity look"))]


async def test_client_in_an_activity_dispatches_below_the_activity(spans: Spans) -> None:
    """An HTTP client that is instrumented sees the same current span as this client does."""
    async with Gasoline.open("memory:", tracing=spans.provider) as gasoline:

        @activity
        async def hand_over(ctx: ActivityContext, cents: int) -> str:
            with spans.tracer.start_as_current_span("POST /orders"):
                pass
            return (await gasoline.dispatch(fulfil, cents, key=ctx.idempotency_key, from_activity=True)).id

        @workflow
        async def hands_over(ctx: WorkflowContext, cents: int) -> str:
            return await ctx.activity(hand_over, cents)

        async with gasoline.worker([hands_over, fulfil]):
            handle = await gasoline.dispatch(hands_over, 3)
            await soon(gasoline.handle(await soon(handle.output()), fulfil).output())
    attempt = spans.one("activity hand_over")
    assert parent_of(spans.one("POST /orders")) == parent_of(spans.one("dispatch fulfil")) == id_of(attempt)
    assert len({trace_of(span) for span in spans.exporter.get_finished_spans()}) == 1


async def test_the_blocking_client_takes_the_span_that_is_current_in_its_caller(spans: Spans) -> None:
    """The verbs run on another thread, in the caller's context."""

    def request() -> tuple[str, str]:
        with Gasoline.open_sync("memory:blocking-traced", tracing=spans.provider) as blocking:
            with spans.tracer.start_as_current_span("request"):
                handle = blocking.dispatch(fulfil, 5)
            history = handle.history()
        assert history[0].traceparent is not None
        return handle.id, history[0].traceparent

    async with Gasoline.open("memory:blocking-traced"):
        _, traceparent = await asyncio.to_thread(request)
    dispatch = spans.one("dispatch fulfil")
    assert parent_of(dispatch) == id_of(spans.one("request"))
    assert traceparent == named(dispatch)


# --- processes --------------------------------------------------------------------------------------------------------


async def test_worker_in_another_process_goes_on_with_the_clients_trace(any_world: World, spans: Spans) -> None:
    """The command carries the traceparent through the inbox; the worker's own provider makes the rest."""
    at_work = Spans()
    worker = await traced(any_world, at_work, fulfil)
    client = await traced(any_world, spans)
    with spans.tracer.start_as_current_span("request"):
        handle = await soon(client.gasoline.dispatch(fulfil, 5))
    await soon(handle.output())
    await worker.settle()  # the client may read what is durable before the worker knows that it is
    assert spans.names == ["dispatch fulfil", "request"]
    assert at_work.names == ["activity charge", "workflow fulfil"]
    dispatch = spans.one("dispatch fulfil")
    for span in at_work.exporter.get_finished_spans():
        assert (trace_of(span), parent_of(span)) == (trace_of(dispatch), id_of(dispatch))
        assert span.parent is not None
        assert span.parent.is_remote


async def test_worker_without_spans_hands_the_trace_on(world: World, spans: Spans) -> None:
    """What is recorded goes on to sub-workflows and signals, whether or not this worker makes spans."""
    worker = await traced(world, None, pays, fulfil, waits_for_pay)
    waiter = await worker.gasoline.dispatch(waits_for_pay, None)
    client = await traced(world, spans)
    handle = await soon(client.gasoline.dispatch(pays, waiter.id))
    assert await soon(handle.output()) == 7
    await soon(rehandle(client, waiter, waits_for_pay).output())
    dispatch = named(spans.one("dispatch pays"))
    async for info in client.gasoline.list(name="fulfil"):
        assert (await client.gasoline.history(info.id))[0].traceparent == dispatch
    assert traceparents(await client.gasoline.history(waiter.id))["signal.received"] == dispatch
    assert (await client.gasoline.history(waiter.id))[0].traceparent is None
    assert spans.names == ["dispatch pays"]


# --- signals and other workflows --------------------------------------------------------------------------------------


async def test_attempt_is_linked_to_the_signals_taken_directly_before_it(world: World, spans: Spans) -> None:
    process = await traced(world, spans, paid_twice)
    handle = await process.gasoline.dispatch(paid_twice, None)
    await process.settle()
    with spans.tracer.start_as_current_span("request"):
        for cents in (1, 2):
            await handle.signal(Paid(cents=cents))
            await process.settle()
    assert await soon(handle.output()) == 4
    request, sent = spans.one("request"), spans.all("signal paid")
    assert [parent_of(span) for span in sent] == [id_of(request)] * 2
    assert {span.kind for span in sent} == {SpanKind.PRODUCER}
    first, second = spans.all("activity charge")
    assert first.links == ()
    assert [link.context.span_id for link in second.links] == [id_of(sent[1]), id_of(sent[0])]
    assert trace_of(first) == trace_of(second) == trace_of(spans.one("dispatch paid_twice")) != trace_of(request)
    received = [event for event in await handle.history() if event.type == "signal.received"]
    assert [event.traceparent for event in received] == [named(span) for span in sent]
    assert told(sent[0]) == {
        "gasoline.namespace": "default",
        "gasoline.workflow.id": handle.id,
        "messaging.system": "gasoline_es",
        "messaging.operation.name": "signal",
        "messaging.operation.type": "send",
        "messaging.destination.name": "paid",
        "messaging.message.id": received[0].data.signal_id,  # type: ignore[union-attr]
    }


async def test_parked_signal_keeps_its_trace_until_a_workflow_comes(any_world: World, spans: Spans) -> None:
    """Also through another partition, and after the process that sent it is gone."""
    client = await traced(any_world, spans)
    await client.gasoline.signal(Paid(), waits_for_pay, tags={"order": "42"}, park=60)
    sent = spans.one("signal paid")
    await client.kill()
    worker = await traced(any_world, None, waits_for_pay)
    handle = await worker.gasoline.dispatch(waits_for_pay, None, tags={"order": "42"})
    history = await soon(worker.until(handle.id, has("signal.received")))
    assert traceparents(history)["signal.received"] == named(sent)


async def test_signals_of_a_batch_share_a_span_and_links_are_bounded(world: World, spans: Spans) -> None:
    process = await traced(world, spans, paid_twice)
    handle = await process.gasoline.dispatch(paid_twice, None)
    await process.settle()
    many = [SignalTo(Paid(cents=1), handle.id) for _ in range(LINKS_MAX + 50)]
    await process.gasoline.signal_many(many)
    assert await soon(handle.output()) == 1 + len(many)
    sent = spans.one("signal paid")
    assert told(sent)["messaging.batch.message_count"] == len(many)
    links = spans.all("activity charge")[1].links
    assert [link.context.span_id for link in links] == [id_of(sent)] * LINKS_MAX


async def test_sub_workflow_and_signal_of_a_body_share_its_trace(world: World, spans: Spans) -> None:
    process = await traced(world, spans, pays, fulfil, waits_for_pay)
    waiter = await process.gasoline.dispatch(waits_for_pay, None)
    handle = await process.gasoline.dispatch(pays, waiter.id)
    assert await soon(handle.output()) == 7
    await soon(waiter.output())
    first, second = spans.one("dispatch waits_for_pay"), spans.one("dispatch pays")
    assert trace_of(first) != trace_of(second)
    below = spans.one("workflow fulfil")
    assert (trace_of(below), parent_of(below)) == (trace_of(second), id_of(second))
    (linked,) = [span for span in spans.all("activity charge") if span.links]
    assert trace_of(linked) == trace_of(first)
    assert [link.context.span_id for link in linked.links] == [id_of(second)]
    assert spans.all("dispatch fulfil") == spans.all("signal paid") == []  # a body's own steps make no spans


async def test_signal_that_nobody_takes_is_an_error_of_its_span(world: World, spans: Spans) -> None:
    process = await traced(world, spans)
    with pytest.raises(WorkflowNotFound):
        await process.gasoline.signal(Paid(), fulfil)
    assert await process.gasoline.signal(Paid(), fulfil, graceful_not_found=True) is None
    failed, graceful = spans.all("signal paid")
    assert failed.status.status_code is StatusCode.ERROR
    assert told(failed)["error.type"] == "WorkflowNotFound"
    assert [event.name for event in failed.events] == ["exception"]
    assert graceful.status.status_code is StatusCode.UNSET


async def test_repeat_with_a_key_is_a_span_of_its_own_and_changes_no_trace(world: World, spans: Spans) -> None:
    process = await traced(world, spans)
    handle = await process.gasoline.dispatch(fulfil, 5, key="k")
    again = await process.gasoline.dispatch(fulfil, 5, key="k")
    first, second = spans.all("dispatch fulfil")
    assert told(first)["gasoline.workflow.id"] == told(second)["gasoline.workflow.id"] == handle.id == again.id
    (dispatched,) = await handle.history()
    assert dispatched.traceparent == named(first)


# --- failures ---------------------------------------------------------------------------------------------------------


@activity(max_attempts=3, backoff=Backoff(base=0.001, doublings=1))
async def fails_twice(ctx: ActivityContext, _: None) -> int:
    if ctx.attempt < 3:
        raise ValueError(f"no, {ctx.attempt}")
    return ctx.attempt


@activity
def refuses(ctx: ActivityContext, _: None) -> int:
    raise NotRetryable("never")


@activity(timeout=0.001, max_attempts=1)
async def takes_long(ctx: ActivityContext, _: None) -> None:
    await asyncio.get_running_loop().create_future()


@workflow
async def failing(ctx: WorkflowContext, how: str) -> None:
    match how:
        case "twice":
            await ctx.activity(fails_twice, None)
        case "refuses":
            await ctx.activity(refuses, None)
        case _:
            await ctx.activity(takes_long, None)


async def test_each_attempt_is_a_span_and_a_failed_one_tells_its_error(spans: Spans) -> None:
    async with Gasoline.open("memory:", tracing=spans.provider) as gasoline, gasoline.worker([failing]):
        await soon((await gasoline.dispatch(failing, "twice")).output())
    attempts = spans.all("activity fails_twice")
    assert [told(span)["gasoline.activity.attempt"] for span in attempts] == [1, 2, 3]
    assert [span.status.status_code for span in attempts] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert attempts[1].status.description == "ValueError: no, 2"
    assert told(attempts[1])["error.type"] == "ValueError"
    (raised,) = attempts[1].events
    assert raised.name == "exception"
    attributes = dict(raised.attributes or {})
    assert (attributes["exception.type"], attributes["exception.message"]) == ("ValueError", "no, 2")
    assert "in fails_twice" in str(attributes["exception.stacktrace"])
    assert {parent_of(span) for span in attempts} == {id_of(spans.one("dispatch failing"))}
    assert spans.one("workflow failing").status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("how", "name", "error"),
    [("refuses", "activity refuses", "NotRetryable"), ("long", "activity takes_long", "TimeoutError")],
)
async def test_workflow_that_dies_ends_its_span_as_dead(spans: Spans, how: str, name: str, error: str) -> None:
    async with Gasoline.open("memory:", tracing=spans.provider) as gasoline, gasoline.worker([failing]):
        with pytest.raises(WorkflowFailed):
            await soon((await gasoline.dispatch(failing, how)).output())
    assert told(spans.one(name))["error.type"] == error
    whole = spans.one("workflow failing")
    assert told(whole)["gasoline.workflow.status"] == "dead"
    assert whole.status.status_code is StatusCode.ERROR


async def test_whole_workflow_has_a_span_for_each_time_it_ends(world: World, spans: Spans) -> None:
    """One that is dead and woken ends again; operators' ends count as its body's do."""
    process = await traced(world, spans, failing, waits_for_pay)
    dead = await process.gasoline.dispatch(failing, "refuses")
    await process.status(dead.id, "dead")
    await dead.wake()
    await process.settle()
    assert [told(span)["gasoline.workflow.status"] for span in spans.all("workflow failing")] == ["dead", "dead"]
    await dead.silence()
    cancelled = await process.gasoline.dispatch(waits_for_pay, None)
    await process.settle()
    await cancelled.cancel()
    await process.settle()
    assert told(spans.all("workflow failing")[-1])["gasoline.workflow.status"] == "silenced"
    assert told(spans.one("workflow waits_for_pay"))["gasoline.workflow.status"] == "cancelled"


async def test_attempt_that_nobody_waits_for_any_more_ends_its_span(world: World, spans: Spans) -> None:
    @activity
    async def never(ctx: ActivityContext, _: None) -> None:
        await asyncio.get_running_loop().create_future()

    @workflow
    async def racing(ctx: WorkflowContext, _: None) -> int:
        winner = await ctx.race(ctx.activity(charge, 1), ctx.activity(never, None))
        return winner[0]

    process = await traced(world, spans, racing)
    assert await soon((await process.gasoline.dispatch(racing, None)).output()) == 0
    assert told(spans.one("activity never"))["gasoline.activity.given_up"] is True
    assert spans.one("activity never").status.status_code is StatusCode.UNSET


# --- what makes no spans ----------------------------------------------------------------------------------------------


async def test_replay_makes_no_spans(any_world: World, spans: Spans) -> None:
    first = await traced(any_world, spans, paid_twice)
    handle = await first.gasoline.dispatch(paid_twice, None)
    await first.until(handle.id, lambda events: any(event.type == "activity.completed" for event in events))
    await first.kill()
    assert spans.names == ["dispatch paid_twice", "activity charge"]
    later = Spans()
    second = await traced(any_world, later, paid_twice)
    await second.settle()
    assert later.names == []
    again = rehandle(second, handle, paid_twice)
    for _ in range(2):
        await again.signal(Paid(cents=1))
    await soon(again.output())
    assert later.names.count("activity charge") == 1
    attempt = later.one("activity charge")
    assert told(attempt)["gasoline.activity.location"] != "{1}"
    assert parent_of(attempt) == id_of(spans.one("dispatch paid_twice"))
    assert [link.context.span_id for link in attempt.links] == [
        id_of(span) for span in reversed(later.all("signal paid"))
    ]
    third = await traced(any_world, silent := Spans(), paid_twice)
    await third.settle()
    assert silent.names == []


async def test_end_of_a_workflow_has_one_span_or_none_whenever_its_owner_dies(spans: Spans) -> None:
    """Whoever comes next finds the end in the log, and writes nothing for it: a trace may lack a span, and doubles none."""
    found: list[int] = []

    async def life(process: Process) -> None:
        process.node.tracing = Tracing(spans.provider, "default")
        await process.work(fulfil)
        await (await process.gasoline.dispatch(fulfil, 1, key="k")).output()

    async for world, _ in kills("unanswered", life):
        following = await traced(world, spans, fulfil)
        handle = await following.gasoline.dispatch(fulfil, 1, key="k")
        await soon(handle.output())
        await following.settle()
        found.append(len(spans.all("workflow fulfil")))
        assert {parent_of(span) for span in spans.all("activity charge")} <= {
            id_of(span) for span in spans.all("dispatch fulfil")
        } | {int(str((await handle.history())[0].traceparent).split("-")[2], 16)}
        spans.exporter.clear()
    assert set(found) == {0, 1}
    assert found[-1] == 1  # of the process that lived


async def test_nothing_is_recorded_where_there_is_no_sdk() -> None:
    """The API alone makes no spans: then there is nothing to name."""
    async with Gasoline.open("memory:", tracing=trace.NoOpTracerProvider()) as gasoline, gasoline.worker([fulfil]):
        handle = await gasoline.dispatch(fulfil, 5)
        assert await soon(handle.output()) == 5
        assert set(traceparents(await handle.history()).values()) == {None}


async def test_sampler_of_the_client_decides_for_the_whole_trace(world: World) -> None:
    client_spans, worker_spans = Spans(ParentBased(ALWAYS_OFF)), Spans()
    worker = await traced(world, worker_spans, fulfil)
    client = await traced(world, client_spans)
    handle = await soon(client.gasoline.dispatch(fulfil, 5))
    await soon(handle.output())
    await worker.settle()
    traceparent = (await client.gasoline.history(handle.id))[0].traceparent
    assert traceparent is not None
    assert int(traceparent.rpartition("-")[2], 16) & 1 == 0  # the flag "sampled"
    assert client_spans.names == worker_spans.names == []
    assert len(current) == 3


# --- dispatched without a trace ---------------------------------------------------------------------------------------


async def test_workflow_dispatched_without_a_trace_gets_one_where_it_is_decided(any_world: World, spans: Spans) -> None:
    """All that happens to it is one trace so, on whatever workers."""
    worker = await traced(any_world, spans, fulfil)
    client = await traced(any_world, None)
    handle = await soon(client.gasoline.dispatch(fulfil, 5))
    await soon(handle.output())
    await worker.settle()  # the client may read what is durable before the worker knows that it is
    dispatch = spans.one("dispatch fulfil")
    assert parent_of(dispatch) is None
    assert told(dispatch)["gasoline.workflow.id"] == handle.id
    assert (await client.gasoline.history(handle.id))[0].traceparent == named(dispatch)
    for name in ("activity charge", "workflow fulfil"):
        assert parent_of(spans.one(name)) == id_of(dispatch)
    before = len(spans.names)
    await soon(client.gasoline.dispatch(fulfil, 6, key="k"))
    await soon(client.gasoline.dispatch(fulfil, 6, key="k"))
    await worker.settle()
    assert spans.names[before:].count("dispatch fulfil") == 1  # a repeat dispatches nothing


async def test_trace_of_a_dispatch_that_was_not_recorded_is_never_seen(world: World, spans: Spans) -> None:
    process = await traced(world, spans)
    command = Dispatch("0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f", "fulfil", b"5")
    partition = await process.node.own(process.node.index_of(command.workflow_id))
    assert partition is not None
    process.log.script = {process.log.count + 1: NoSpace}
    outcomes: list[LogError | None] = []
    partition.decide(command)
    partition.when_durable(outcomes.append)
    await soon(process.log.refused.wait())
    await process.settle()
    assert [type(one) for one in outcomes] == [NoSpace]
    assert spans.names == []
    partition.decide(command)
    await process.settle()
    assert (await process.gasoline.history(command.workflow_id))[0].traceparent == named(spans.one("dispatch fulfil"))


async def test_workflow_that_was_decided_without_a_trace_has_attempts_that_are_roots(
    world: World, spans: Spans
) -> None:
    """Nothing is recorded that they could hang on; they name the workflow and its ray id."""
    first = await traced(world, None)
    handle = await first.gasoline.dispatch(failing, "twice")
    await first.stop()
    process = await traced(world, spans, failing)
    await process.settle()
    for _ in range(2):
        await process.advance(1.0)
    await soon(rehandle(process, handle, failing).output())
    attempts = spans.all("activity fails_twice")
    assert [parent_of(span) for span in attempts] == [None] * 3
    assert {told(span)["gasoline.ray_id"] for span in attempts} == {handle.id}


# --- hostile and broken -----------------------------------------------------------------------------------------------


async def test_unreadable_traceparent_in_the_inbox_is_dropped_before_anything_is_recorded(world: World) -> None:
    """W3C Trace Context: who cannot read it goes on without. The dispatch and the signal count."""
    client = await world.process(partitions=1)
    await client.gasoline.find(fulfil)
    await client.stop()
    workflow_id = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"
    hostile = '00-x","data":{}}\n{"a":"'
    sent = [
        Dispatch(workflow_id, "waits_for_pay", b"null"),
        SendSignal(workflow_id, "s1", "paid", b'{"cents":3}', True),
    ]
    requests = [
        json.dumps({**json.loads(encode_request(Request("r", "nobody", command))), "traceparent": hostile}).encode()
        for command in sent
    ]
    await post(world, requests)
    process = await world.worker(waits_for_pay)
    handle = process.gasoline.handle(workflow_id, waits_for_pay)
    assert await soon(handle.output()) == 3
    assert set(traceparents(await handle.history()).values()) == {None}


class Broken(SpanProcessor, Sampler):
    """Raises wherever it is asked."""

    def __init__(self, where: str) -> None:
        self.where = where

    def _raise(self, where: str) -> None:
        if where == self.where:
            raise RuntimeError(f"broken in {where}")

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self._raise("on_start")

    def on_end(self, span: Any) -> None:
        self._raise("on_end")

    def should_sample(self, *given: Any, **named: Any) -> SamplingResult:
        self._raise("should_sample")
        return ParentBased(ALWAYS_OFF).should_sample(*given, **named)

    def get_description(self) -> str:
        return "broken"

    def attach(self, _: object) -> None:
        self._raise("attach")


EVERY = "every method"


class Cracked:
    """A span of the SDK, one or all of whose methods raise."""

    def __init__(self, span: Any, where: str) -> None:
        self._span = span
        self._where = where

    def __getattr__(self, name: str) -> Any:
        def raises(*given: object, **named: object) -> None:
            raise RuntimeError(f"broken in {name}")

        return raises if self._where in (name, EVERY) else getattr(self._span, name)


class CrackedProvider:
    """Gives such spans."""

    def __init__(self, where: str) -> None:
        self._tracer = TracerProvider().get_tracer("cracked")
        self._where = where

    def get_tracer(self, *given: Any) -> Any:
        return self

    def start_span(self, *given: Any) -> Any:
        return Cracked(self._tracer.start_span(*given), self._where)


@activity
def weigh(ctx: ActivityContext, cents: int) -> int:
    return cents


@activity
async def refuse(ctx: ActivityContext, cents: int) -> int:
    raise NotRetryable("not today")


@workflow
async def weighs(ctx: WorkflowContext, cents: int) -> int:
    return await ctx.activity(weigh, cents)


@workflow
async def refused(ctx: WorkflowContext, cents: int) -> int:
    paid = await ctx.listen(Paid)
    part = await ctx.dispatch(weighs, cents + paid.cents)
    return await ctx.activity(refuse, await part.output())


BROKEN_IN = ("on_start", "on_end", "should_sample")
CRACKED_IN = ("get_span_context", "set_attribute", "add_event", "set_status", "record_exception", "end", EVERY)


@pytest.mark.parametrize("where", [*BROKEN_IN, *CRACKED_IN, "attach"])
async def test_tracer_that_raises_costs_spans_and_nothing_else(
    where: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dispatches, signals, one to nobody, activities: in a thread, failing, given up; and a workflow that dies."""
    started = asyncio.Event()

    @activity
    async def never_ends(ctx: ActivityContext, _: None) -> None:
        started.set()
        await asyncio.Event().wait()

    @workflow
    async def endless(ctx: WorkflowContext, _: None) -> None:
        await ctx.activity(never_ends, None)

    broken = Broken(where)
    provider: Any = TracerProvider(sampler=broken if where == "should_sample" else None)
    provider.add_span_processor(broken)
    if where in CRACKED_IN:
        provider = CrackedProvider(where)
    if where == "attach":
        monkeypatch.setattr(context, "attach", broken.attach)
    with caplog.at_level(logging.WARNING):
        async with (
            Gasoline.open("memory:", tracing=provider) as gasoline,
            gasoline.worker([fulfil, weighs, refused, endless], stop_limit=0),
        ):
            for cents in range(3):
                assert await soon((await gasoline.dispatch(fulfil, cents)).output()) == cents
            with pytest.raises(WorkflowNotFound):
                await gasoline.signal(Paid(), refused, tags={"of": "nobody"})
            handle = await gasoline.dispatch(refused, 1, tags={"of": "somebody"})
            assert await gasoline.signal(Paid(cents=2), refused, tags={"of": "somebody"}) is not None
            with pytest.raises(WorkflowFailed, match="not today"):
                await soon(handle.output())
            await gasoline.dispatch(endless, None)
            await soon(started.wait())
            assert await soon((await gasoline.dispatch(weighs, 5)).output()) == 5
    said = sorted(record.msg for record in caplog.records)
    assert said == [
        "activities were still running at the limit and were given up",
        "the tracer failed, and spans are lost; this is said once",
        "workflow %s %s died: %s",
    ]


class NoProvider:
    """Gives a tracer that gives ``span`` where a span is asked for; an exception is raised there."""

    def __init__(self, span: Any) -> None:
        self._span = span

    def get_tracer(self, *given: Any) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        if isinstance(self._span, BaseException):
            raise self._span
        return self._start_span

    def _start_span(self, *given: object, **named: object) -> Any:
        return self._span


class Lies:
    """A span whose ids are none."""

    is_valid = True
    trace_id, span_id, trace_flags = -5, 1 << 200, 1

    def get_span_context(self) -> Any:
        return self


@pytest.mark.parametrize("span", [None, 5, object(), Lies(), RuntimeError("away"), asyncio.CancelledError()])
async def test_tracer_whose_spans_are_none_costs_spans_and_nothing_else(span: Any) -> None:
    """Already looking up what a span can do runs the user's code."""
    provider: Any = NoProvider(span)
    async with Gasoline.open("memory:", tracing=provider) as gasoline, gasoline.worker([fulfil, weighs, refused]):
        for cents in range(3):
            assert await soon((await gasoline.dispatch(fulfil, cents)).output()) == cents
        handle = await gasoline.dispatch(refused, 1)
        await handle.signal(Paid(cents=2))
        with pytest.raises(WorkflowFailed, match="not today"):
            await soon(handle.output())
        assert set(traceparents(await handle.history()).values()) == {None}


async def test_error_that_no_exporter_could_send_is_cut_and_made_readable(world: World, spans: Spans) -> None:
    @activity
    async def shouts(ctx: ActivityContext, _: None) -> None:
        raise NotRetryable("\udcff" + "x" * 200_000)

    @workflow
    async def shouting(ctx: WorkflowContext, _: None) -> None:
        await ctx.activity(shouts, None)

    process = await traced(world, spans, shouting)
    handle = await process.gasoline.dispatch(shouting, None)
    await process.status(handle.id, "dead")
    span = spans.one("activity shouts")
    text = f"{span.status.description}{dict(span.events[0].attributes or {})}"
    assert len(text.encode()) < 40_000


# --- asking for it ----------------------------------------------------------------------------------------------------


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("verb", ["open", "open_sync"])
def test_without_the_extra_asking_says_what_to_install(verb: str) -> None:
    done = python(
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from gasoline_es import Gasoline\n"
        "from gasoline_es.errors import GasolineError\n"
        "Gasoline.open('memory:')\n"
        f"try: Gasoline.{verb}('memory:', tracing=True)\n"
        "except GasolineError as error: print(error)"
    )
    assert done.stderr == ""
    assert "pip install gasoline_es[otel]" in done.stdout


def test_nothing_of_opentelemetry_is_loaded_unless_it_is_asked_for() -> None:
    done = python(
        "import asyncio, sys\n"
        "from gasoline_es import Gasoline, workflow, WorkflowContext\n"
        "@workflow\n"
        "async def order(ctx: WorkflowContext, n: int) -> int: return n\n"
        "async def main() -> None:\n"
        "    async with Gasoline.open('memory:') as gasoline, gasoline.worker([order]):\n"
        "        await (await gasoline.dispatch(order, 1)).output()\n"
        "asyncio.run(main())\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_true_is_the_global_provider_also_one_that_is_set_later() -> None:
    done = python(
        "import asyncio\n"
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.trace.export import SimpleSpanProcessor\n"
        "from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter\n"
        "from gasoline_es import Gasoline, workflow, WorkflowContext\n"
        "@workflow\n"
        "async def order(ctx: WorkflowContext, n: int) -> int: return n\n"
        "async def main() -> None:\n"
        "    async with Gasoline.open('memory:', tracing=True) as gasoline, gasoline.worker([order]):\n"
        "        exporter, provider = InMemorySpanExporter(), TracerProvider()\n"
        "        provider.add_span_processor(SimpleSpanProcessor(exporter))\n"
        "        trace.set_tracer_provider(provider)\n"
        "        await (await gasoline.dispatch(order, 1)).output()\n"
        "    print(sorted(span.name for span in exporter.get_finished_spans()))\n"
        "asyncio.run(main())"
    )
    assert (done.stdout, done.stderr) == ("['dispatch order', 'workflow order']\n", "")


@pytest.mark.parametrize("odd", [None, 1, "yes", trace.NoOpTracer()])
def test_what_is_no_tracer_provider_is_refused_at_the_call(odd: Any) -> None:
    with pytest.raises(TypeError, match=r"tracing=.* is no tracer provider"):
        Gasoline.open("memory:", tracing=odd)
