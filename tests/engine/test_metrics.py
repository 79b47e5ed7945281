"""What a process says of itself: counts and gauges, through real workflows (design 0025)."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gasoline_es import (
    ActivityContext,
    Gasoline,
    Message,
    NotRetryable,
    Signal,
    WorkflowContext,
    activity,
    workflow,
)
from gasoline_es.core import events as ev
from gasoline_es.errors import DefinitionError, Fenced, GasolineError, LogFailed, NoSpace
from gasoline_es.metrics import METRICS, NodeCollector, collector
from gasoline_es.runtime.recording import ERRORS_MAX, OTHER, WORKFLOWS_MAX, Histogram, Names, Recording
from projections.views import PartitionViews
from tests.engine.harness import Process, World, soon, when

ROOT = Path(__file__).resolve().parents[2]


class Metrics:
    """One scrape, read back from the text that Prometheus gets."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._values = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        return self._values.get((f"gasoline_{name}", tuple(sorted(labels.items()))))

    def labelled(self, name: str) -> dict[tuple[str, ...], float]:
        """Every value of a metric, by the values of its labels in order of their names."""
        return {
            tuple(value for _, value in labels): given
            for (full, labels), given in self._values.items()
            if full == f"gasoline_{name}"
        }


def scrape(source: Process | Gasoline) -> Metrics:
    registry = CollectorRegistry()
    registry.register(collector(source.gasoline if isinstance(source, Process) else source))
    return Metrics(generate_latest(registry).decode())


class Word(Signal):
    text: str = ""


class Moved(Message):
    x: int = 0


class Unheard(Signal):
    pass


@activity(max_attempts=2)
async def work(ctx: ActivityContext, how: str) -> str:
    if how == "later" and ctx.attempt == 1:
        raise OSError("not now")
    if how == "never":
        raise NotRetryable("no")
    return how


@workflow
async def order(ctx: WorkflowContext, how: str) -> str:
    if how == "mistake":
        raise KeyError(how)
    if how == "listen":
        await ctx.listen(Word)
    return await ctx.activity(work, how)


async def test_lives_and_ends_of_workflows_are_counted_by_name(world: World) -> None:
    process = await world.worker(order)
    first, second, *_ = [
        await process.gasoline.dispatch(order, how) for how in ("listen", "listen", "well", "later", "never", "mistake")
    ]
    await process.settle()
    await process.advance(60)
    await first.signal(Word())
    await second.cancel()
    await process.settle()
    found = scrape(process)
    assert found("workflows_dispatched_total", workflow="order") == 6
    assert found("workflows_completed_total", workflow="order") == 3
    assert found("workflows_died_total", workflow="order", error="KeyError") == 1
    assert found("workflows_died_total", workflow="order", error="ActivityFailed") == 1
    assert found("workflows_cancelled_total", workflow="order") == 1
    assert found("workflows", workflow="order", status="dead") == 2
    assert found("workflows", workflow="order", status="running") is None
    assert found("steps_recorded_total") == 7, "five outcomes of attempts, a listen, and one that was interrupted"
    assert found("events_recorded_total", type="workflow.dispatched") == 6
    dead = [one.id async for one in process.gasoline.list(status="dead")]
    await process.gasoline.handle(dead[0], order).silence()
    await process.gasoline.handle(dead[1], order).wake()
    await process.settle()
    found = scrape(process)
    assert found("workflows_silenced_total", workflow="order") == 1
    assert found("workflows", workflow="order", status="dead") == 1
    assert sum(found.labelled("workflows_died_total").values()) == 3


async def test_attempts_are_counted_by_outcome_with_what_they_took(world: World) -> None:
    @activity(max_attempts=1, timeout=0.01)
    async def slow(ctx: ActivityContext, _: None) -> None:
        await asyncio.Event().wait()

    @workflow
    async def waits(ctx: WorkflowContext, how: str) -> None:
        await (ctx.activity(slow, None) if how == "slow" else ctx.activity(work, how))

    process = await world.worker(waits)
    for how in ("well", "later", "never", "slow"):
        await process.gasoline.dispatch(waits, how)
    await process.settle()
    await process.advance(60)
    await when(lambda: scrape(process)("activity_duration_seconds_count", activity="slow", outcome="timed_out") == 1)
    found = scrape(process)
    assert found.labelled("activity_duration_seconds_count") == {
        ("work", "completed"): 2,
        ("work", "failed"): 2,
        ("slow", "timed_out"): 1,
    }
    took = found("activity_duration_seconds_sum", activity="slow", outcome="timed_out")
    assert took is not None
    assert took >= 0.01
    assert found("activity_duration_seconds_bucket", activity="slow", outcome="timed_out", le="0.005") == 0
    assert found("activity_duration_seconds_bucket", activity="slow", outcome="timed_out", le="+Inf") == 1


async def test_what_is_given_up_as_a_worker_stops_is_counted(world: World) -> None:
    began = asyncio.Event()

    @activity
    async def endless(ctx: ActivityContext, _: None) -> None:
        began.set()
        await asyncio.Event().wait()

    @workflow
    async def never(ctx: WorkflowContext, _: None) -> None:
        await ctx.activity(endless, None)

    process = await world.worker(never)
    await process.gasoline.dispatch(never, None)
    await soon(began.wait())
    assert scrape(process)("attempts_running") == 1
    assert process.worker is not None
    await process.worker.stop(0)
    found = scrape(process)
    assert found("activity_duration_seconds_count", activity="endless", outcome="given_up") == 1
    assert found("attempts_running") == 0


async def test_attempts_that_wait_for_their_turn_are_shown_with_their_age(world: World) -> None:
    gate = asyncio.Event()

    @activity
    async def held(ctx: ActivityContext, _: None) -> None:
        await gate.wait()

    @activity(max_concurrency=1)
    async def one_by_one(ctx: ActivityContext, _: None) -> None:
        await gate.wait()

    @workflow
    async def both(ctx: WorkflowContext, _: None) -> None:
        await ctx.join(ctx.activity(held, None), ctx.activity(one_by_one, None))

    process = await world.worker(both, max_concurrency=4)
    for _ in range(3):
        await process.gasoline.dispatch(both, None)
    await process.settle()
    world.clock.advance(7)
    found = scrape(process)
    assert (found("attempts_running"), found("attempts_limit"), found("attempts_waiting")) == (4, 4, 2)
    assert found("attempt_waiting_longest_seconds") == 7
    gate.set()
    await process.settle()
    found = scrape(process)
    assert (found("attempts_running"), found("attempts_waiting")) == (0, 0)
    assert found("attempt_waiting_longest_seconds") == 0


async def test_queued_signals_are_shown_by_name_with_the_age_of_the_oldest(any_world: World) -> None:
    process = await any_world.worker(order)
    handle = await process.gasoline.dispatch(order, "listen")
    await process.settle()
    assert scrape(process)("signal_queued_longest_seconds") == 0
    await handle.signal(Unheard())
    any_world.clock.advance(30)
    await handle.signal(Unheard())
    any_world.clock.advance(10)
    found = scrape(process)
    assert found("signals_queued", signal="unheard") == 2
    assert found("signal_queued_longest_seconds") == 40
    assert found("signals_received_total", signal="unheard") == 2
    await process.stop()
    again = await any_world.worker(order)
    found = scrape(again)
    assert found("signals_queued", signal="unheard") == 2, "folded from the log"
    assert found("signals_received_total", signal="unheard") is None, "counts begin with the process"
    await again.gasoline.handle(handle.id, order).signal(Word())
    await again.settle()
    found = scrape(again)
    assert found.labelled("signals_queued") == {}, "it is complete: they are discarded"
    assert found("signal_queued_longest_seconds") == 0


@pytest.mark.parametrize("how", ["silence", "cancel"])
async def test_signals_of_a_workflow_that_was_ended_are_queued_no_more(world: World, how: str) -> None:
    process = await world.worker(order)
    handle = await process.gasoline.dispatch(order, "listen")
    await handle.signal(Unheard())
    await process.settle()
    assert scrape(process)("signals_queued", signal="unheard") == 1
    await (handle.silence() if how == "silence" else handle.cancel())
    await process.settle()
    assert scrape(process).labelled("signals_queued") == {}


async def test_names_that_nobody_runs_wait_for_code_with_their_age(world: World) -> None:
    @workflow
    async def known(ctx: WorkflowContext, _: None) -> None:
        await ctx.listen(Word)

    process = await world.worker(known)
    await process.gasoline.dispatch(known, None)
    world.clock.advance(3)
    await process.gasoline.dispatch(order, "well")
    await process.settle()
    world.clock.advance(5)
    found = scrape(process)
    assert found.labelled("workflows_waiting_for_code") == {("order",): 1}
    assert found("waiting_for_code_longest_seconds") == 5
    assert found("workflow_running_longest_seconds", workflow="known") == 8
    await process.evict()
    found = scrape(process)
    assert found("workflows", workflow="known", status="sleeping") == 1
    assert found("workflow_running_longest_seconds", workflow="known") is None
    client = await world.process()
    assert scrape(client)("partitions_owned") == 0
    assert scrape(client).labelled("workflows") == {}, "a process tells of what it owns, so that all of them add up"


async def test_appends_are_measured_and_failures_counted_by_error(world: World) -> None:
    process = await world.worker(order)
    before = scrape(process)
    await (await process.gasoline.dispatch(order, "well")).output()
    found = scrape(process)
    appends = process.log.count
    assert found("append_duration_seconds_count") == found("append_records_count") == appends
    grown = (found("append_bytes_total") or 0) - (before("append_bytes_total") or 0)
    values = [r.value or b"" for sections in process.log.appended for s in sections for r in s.records]
    assert 0 < grown <= sum(map(len, values))
    assert (found("append_records_sum") or 0) >= 4
    assert found("append_sections_bucket", le="1.0") == appends
    process.log.script[process.log.count + 1] = NoSpace
    with pytest.raises(NoSpace):
        await process.gasoline.dispatch(order, "well")
    assert scrape(process).labelled("sections_failed_total") == {("NoSpace",): 1}
    assert scrape(process)("partitions_lost_total") == 0
    process.log.script[process.log.count + 1] = Fenced
    await process.gasoline.dispatch(
        order, "well", key="1"
    )  # decided again, by the partition's next owner: this process
    found = scrape(process)
    assert found("sections_failed_total", error="Fenced") == 1
    assert found("partitions_lost_total") == 1
    assert found("partitions_taken_total", former="none") == 17
    assert found("log_failed") == 0


async def test_failed_log_is_shown(world: World) -> None:
    process = await world.worker(order)
    process.log.script[process.log.count + 1] = LogFailed
    with pytest.raises(LogFailed):
        await process.gasoline.dispatch(order, "well")
    found = scrape(process)
    assert (found("log_failed"), found("partitions_owned"), found("event_loop_answers")) == (1, 0, 1)
    assert found("sections_failed_total", error="LogFailed") == 1


async def test_partitions_tell_where_they_came_from_and_went(any_world: World) -> None:
    first = await any_world.worker(order)
    assert scrape(first).labelled("partitions_taken_total") == {("none",): 16}
    await first.kill()
    second = await any_world.worker(order)
    found = scrape(second)
    assert found.labelled("partitions_taken_total") == {("dead",): 16}
    assert (found("partitions"), found("partitions_owned"), found("partitions_awaited")) == (16, 16, 0)
    third = await any_world.worker(order, version=7)
    await when(lambda: scrape(third)("partitions_owned") == 1)
    await when(lambda: scrape(second)("partitions_given_up_total", reason="version") == 1)
    assert scrape(third)("partitions_taken_total", former="released") == 1
    await when(lambda: scrape(third)("partitions_awaited") == 15)


async def test_pressure_shows_in_the_weight_and_in_why_partitions_went(world: World) -> None:
    process = await world.worker(order)
    other = await world.worker(order)
    assert process.worker is not None
    sharing = process.worker._rebalancing
    assert sharing is not None
    await when(lambda: scrape(other)("partitions_owned") == 8)
    await when(lambda: scrape(process)("partitions_given_up_total", reason="share") == 8)
    for now_s in (0.0, 6.0):
        sharing.pressed(1.5, now_s)
    found = scrape(process)
    assert (found("worker_weight"), found("event_loop_late_seconds")) == (0.5, 1.5)
    await when(lambda: (scrape(process)("partitions_given_up_total", reason="pressure") or 0) > 0)


async def test_lags_of_a_partition_are_shown(any_world: World) -> None:
    process = await any_world.worker(order)
    found = scrape(process)
    assert found.labelled("inbox_waiting_records") == {(str(index),): 0 for index in range(16)}
    assert found.labelled("events_unfolded") == {(str(index),): 0 for index in range(16)}
    await process.gasoline.dispatch(order, "listen")
    tally = {index: process.node.partitions[index].views for index in range(16)}
    (index,) = (index for index, views in tally.items() if views.next_offset)
    process.node.viewing._views[index].next_offset = 0
    assert scrape(process)("events_unfolded", partition=str(index)) == 1
    process.node.viewing._views[index].next_offset = 1


async def test_lost_and_dropped_messages_are_counted(world: World) -> None:
    process = await world.process()
    async with process.gasoline.subscribe(Moved, buffer=1) as moved:
        for x in range(3):
            await process.gasoline.message(Moved(x=x), wait=True)
        await process.settle()
        assert (await soon(anext(moved))).message.x == 2
    assert scrape(process)("messages_dropped_total") == 2
    process.log.script[process.log.count + 1] = NoSpace
    with pytest.raises(NoSpace):
        await process.gasoline.message(Moved(), wait=True)
    assert scrape(process)("messages_lost_total") == 1


# --- bounds -----------------------------------------------------------------------------------------------------------


async def test_names_beyond_the_limit_count_together(world: World) -> None:
    @workflow
    async def fails(ctx: WorkflowContext, number: int) -> None:
        raise type(f"Error{number}", (Exception,), {})("no")

    process = await world.worker(fails)
    for number in range(ERRORS_MAX + 5):
        await process.gasoline.dispatch(fails, number)
    await process.settle()
    died = scrape(process).labelled("workflows_died_total")
    assert len(died) == ERRORS_MAX + 1
    assert died[OTHER, "fails"] == 5


def test_names_are_bounded_but_those_a_worker_registered_are_always_told_apart() -> None:
    names = Names(2)
    assert [names.bounded(name) for name in ("a", "b", "c", "a")] == ["a", "b", OTHER, "a"]
    names.admit(["c"])
    assert [names.bounded(name) for name in ("c", "d")] == ["c", OTHER]
    assert len(names.bounded("x" * 1_000)) <= 100
    long = Names(1)
    assert long.bounded("\udc80" + "y" * 1_000) == "?" + "y" * 99
    assert WORKFLOWS_MAX == 100


def test_histogram_counts_each_value_under_the_first_bound_that_holds_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert (histogram.counts, histogram.total) == ([2, 2, 1], 7.5)
    copied = histogram.copy()
    histogram.observe(1)
    assert (copied.counts, copied.total) == ([2, 2, 1], 7.5)


def test_views_tally_without_going_through_workflows_also_of_odd_histories() -> None:
    """The counts follow whatever is folded: names that change, signals that come twice, events that are missing."""
    views = PartitionViews()
    offset = 0

    def put(workflow_id: str, seq: int, data: Any) -> None:
        nonlocal offset
        views.apply(offset, 0, workflow_id, seq, offset, data, "ray", "worker")
        offset += 1

    put("a", 1, ev.WorkflowDispatched("one", b"null", {}))
    put("a", 2, ev.SignalReceived("s", "word", b"{}", ""))
    put("a", 3, ev.SignalReceived("s", "word", b"{}", ""))
    put("a", 4, ev.WorkflowDispatched("two", b"null", {}))
    put("b", 7, ev.SignalReceived("s", "word", b"{}", ""))
    tally = views.tally()
    assert tally.standing == {("two", "running"): 1, ("", "unreadable"): 1}
    assert (tally.queued, tally.queued_since) == ({"word": 2}, 2)
    assert tally.running_since == {"one": 0}
    put("a", 5, ev.WorkflowSuspended(None, ("word",)))
    tally = views.tally()
    assert tally.running_since == {}
    assert tally.standing == {("two", "sleeping"): 1, ("", "unreadable"): 1}


def test_a_recording_is_cheap_to_make_and_empty() -> None:
    recording = Recording()
    assert (recording.events.total(), recording.append_bytes, recording.weight) == (0, 0, 1.0)


# --- scraping ---------------------------------------------------------------------------------------------------------


async def in_a_thread(function: Callable[[], Any]) -> Any:
    return await soon(asyncio.get_running_loop().run_in_executor(None, function))


async def test_scrape_from_another_thread_sees_what_is_true_on_the_loop(world: World) -> None:
    process = await world.worker(order)
    await process.gasoline.dispatch(order, "mistake")
    await process.settle()
    found = await in_a_thread(lambda: scrape(process))
    assert found("workflows", workflow="order", status="dead") == 1
    assert found("event_loop_answers") == 1


async def test_scrape_while_the_loop_stands_still_gives_what_the_last_one_had(world: World) -> None:
    process = await world.worker(order)
    await process.gasoline.dispatch(order, "mistake")
    await process.settle()
    registry = CollectorRegistry()
    registry.register(NodeCollector(process.node, limit_s=0.01))
    texts: list[str] = []
    thread = threading.Thread(target=lambda: texts.append(generate_latest(registry).decode()))
    thread.start()
    thread.join()  # which is what stands still: the loop's own thread waits
    assert Metrics(texts[0])("event_loop_answers") == 0
    assert Metrics(texts[0]).labelled("workflows") == {}, "nothing was ever read"
    assert Metrics(generate_latest(registry).decode())("event_loop_answers") == 1
    again = threading.Thread(target=lambda: texts.append(generate_latest(registry).decode()))
    again.start()
    again.join()
    late = Metrics(texts[1])
    assert (late("event_loop_answers"), late("workflows", workflow="order", status="dead")) == (0, 1)


def test_blocking_client_is_collected_from_its_callers_thread(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    with Gasoline.open_sync(f"file:{tmp_path}/log") as gasoline:
        registry.register(collector(gasoline))
        gasoline.dispatch(order, "well")
        found = Metrics(generate_latest(registry).decode())
        assert found("workflows_dispatched_total", workflow="order") == 1
        assert found("workflows_waiting_for_code", workflow="order") == 1
    closed = Metrics(generate_latest(registry).decode())
    assert (closed("event_loop_answers"), closed("workflows_dispatched_total", workflow="order")) == (0, 1)


async def test_closed_log_keeps_its_counts_and_has_no_gauges_that_others_have_by_now(world: World) -> None:
    """Whoever owns the partitions next tells how their workflows stand: added up, none counts twice."""
    process = await world.worker(order)
    registry = CollectorRegistry()
    registry.register(collector(process.gasoline))
    await process.gasoline.dispatch(order, "listen")
    await process.settle()
    before = Metrics(generate_latest(registry).decode())
    assert (before("workflows", workflow="order", status="running"), before("partitions_owned")) == (1, 16)
    await process.stop()
    closed = Metrics(generate_latest(registry).decode())
    assert closed("workflows_dispatched_total", workflow="order") == 1
    assert (closed.labelled("workflows"), closed("partitions_owned"), closed("log_failed")) == ({}, 0, 1)
    assert closed("event_loop_answers") == 1


async def test_forked_process_tells_nothing_of_its_parent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    process = await world.worker(order)
    registry = CollectorRegistry()
    registry.register(collector(process.gasoline))
    assert Metrics(generate_latest(registry).decode())("partitions_owned") == 16
    monkeypatch.setattr("gasoline_es.metrics.os.getpid", lambda: -1)
    found = Metrics(generate_latest(registry).decode())
    assert (found("event_loop_answers"), found("partitions_owned")) == (0, None)


async def test_scrape_goes_through_no_workflow(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    process = await world.worker(order)
    for _ in range(3):
        await process.gasoline.dispatch(order, "mistake")
    await process.settle()

    def walked(*_: Any) -> Any:
        raise AssertionError("a scrape looked at workflows one by one")

    for name in ("matching", "summary", "running", "signalled", "queued", "find"):
        monkeypatch.setattr(PartitionViews, name, walked)
    found = scrape(process)
    monkeypatch.undo()
    assert found("workflows", workflow="order", status="dead") == 3


async def test_collector_is_refused_twice_in_one_registry(world: World) -> None:
    process = await world.process()
    registry = CollectorRegistry()
    registry.register(collector(process.gasoline))
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(collector(process.gasoline))


def test_every_metric_has_a_name_help_and_labels_as_prometheus_wants_them() -> None:
    names = [one.name for one in METRICS]
    assert len(names) == len(set(names))
    for one in METRICS:
        assert re.fullmatch(r"gasoline_[a-z_]+", one.name)
        assert one.name.endswith("_total") == (one.kind == "counter")
        assert one.help.endswith(".")
        assert one.name.endswith("_seconds") or "_seconds" not in one.name


# --- served by a worker -----------------------------------------------------------------------------------------------


def fetch(port: int) -> Metrics:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return Metrics(answer.read().decode())


async def test_worker_serves_its_metrics_at_a_port_and_stops_with_it(world: World) -> None:
    process = await world.process()
    worker = await process.work(order, metrics_port=0)
    port = worker.metrics_port
    assert port
    await process.gasoline.dispatch(order, "mistake")
    await process.settle()
    found = await in_a_thread(lambda: fetch(port))
    assert found("workflows_died_total", workflow="order", error="KeyError") == 1
    assert "process_resident_memory_bytes" in found.text
    await process.stop()
    with socket.socket() as refused:
        assert refused.connect_ex(("127.0.0.1", port)) != 0


async def test_worker_without_a_port_serves_nothing(world: World) -> None:
    process = await world.process()
    assert (await process.work(order)).metrics_port is None


async def test_port_in_use_is_an_error_before_anything_is_taken(world: World) -> None:
    process = await world.process()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            GasolineError, match=rf"metrics cannot be served at 127.0.0.1:{port}: .*in use.*--metrics-port"
        ):
            await process.work(order, metrics_port=port)
    assert process.node.partitions == {}
    assert process.node.driver is None
    await process.work(order, metrics_port=0)  # nothing is left of the first one


@pytest.mark.parametrize("port", [-1, 65_536, True, "9464"])
async def test_what_is_no_port_is_refused(world: World, port: Any) -> None:
    process = await world.process()
    with pytest.raises(DefinitionError, match="metrics_port is a port"):
        process.gasoline.worker([order], metrics_port=port)


def test_without_the_extra_the_error_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import asyncio; from gasoline_es import Gasoline, GasolineError\n"
        "async def main():\n"
        "    async with Gasoline.open('memory:') as gasoline:\n"
        "        try: gasoline.worker([], metrics_port=0)\n"
        "        except GasolineError as error: print(error)\n"
        "asyncio.run(main())\n"
        "try: import gasoline_es.metrics\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    said = 'metrics need the package prometheus-client. Install it with: pip install "gasoline_es[metrics]"'
    assert done.stdout.splitlines() == [said, said]
