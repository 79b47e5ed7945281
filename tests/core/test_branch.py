"""A branch records what a step decides by itself, and answers it only from what is recorded (semantics §4, design §1)."""

from __future__ import annotations

from typing import Any

import pytest

from gasoline_es.core import branch as branch_module
from gasoline_es.core import events as ev
from gasoline_es.core.branch import PENDING, Branch, WaitListen
from gasoline_es.core.state import WorkflowState
from gasoline_es.core.steps import ListenStep, SleepStep, Step
from tests.replay.world import START_US, World


class Recorder:
    """A branch over a state to which each recorded fact is applied at once, as the runtime does."""

    def __init__(self, *events: ev.EventData) -> None:
        self.state = WorkflowState("id")
        self.recorded: list[ev.EventData] = []
        for data in (ev.WorkflowDispatched("w", b"null", {}), *events):
            self.record(data)
        self.recorded.clear()
        self.branch = Branch(self.state, self.record, (), 1, 0)

    def record(self, data: ev.EventData) -> None:
        self.recorded.append(data)
        self.state.apply(self.state.summary.seq + 1, 0, data, "ray", "w1")


def listen(limit: int | None = None, timeout_us: int | None = None) -> ListenStep:
    return ListenStep(1, "listen", None, 0, decoders={"paid": bytes}, limit=limit, timeout_us=timeout_us)


def received(number: int, signal_id: str | None = None) -> ev.SignalReceived:
    return ev.SignalReceived(signal_id or f"s{number}", "paid", str(number).encode())


def test_fact_that_answers_a_step_is_recorded_by_one_look_and_delivered_by_a_later_one() -> None:
    # In between it becomes durable: the body sees nothing that could still be lost.
    there = Recorder(received(1))
    assert there.branch.take(listen(), 0) is PENDING
    assert there.recorded == [ev.SignalConsumed(((1,),), 1, ("s1",))]
    assert there.branch.look(0) == b"1"
    assert there.branch.wait is None


def test_sleep_of_nothing_is_recorded_and_over_at_once() -> None:
    there = Recorder()
    assert there.branch.take(SleepStep(1, "sleep", None, 0, duration_us=0), 7) is PENDING
    assert there.recorded == [ev.SleepStarted(((1,),), 1, 7), ev.SleepFinished(((1,),), "normal")]
    assert there.branch.look(7) is None


def test_look_that_finds_nothing_new_records_nothing() -> None:
    there = Recorder()
    there.branch.take(listen(timeout_us=10), 0)
    before = list(there.recorded)
    assert [there.branch.look(now_us) for now_us in range(10)] == [PENDING] * 10
    assert there.recorded == before
    there.branch.look(10)
    assert there.recorded[len(before) :] == [ev.SleepFinished(((1,),), "uninterrupted")]


def test_timed_listen_that_got_a_signal_is_one_append_of_both_facts() -> None:
    there = Recorder()
    there.branch.take(listen(timeout_us=10), 0)
    there.record(received(1))
    del there.recorded[:]
    assert there.branch.look(10) is PENDING, "the queue comes before the deadline"
    assert there.recorded == [ev.SleepFinished(((1,),), "interrupted"), ev.SignalConsumed(((2,),), 1, ("s1",))]
    assert there.branch.look(10) == b"1"


@pytest.mark.parametrize(("limit", "taken"), [(None, 1), (1, 1), (3, 3), (5, 5), (100, 5)])
def test_listen_takes_at_most_its_limit(limit: int | None, taken: int) -> None:
    there = Recorder(*[received(number) for number in range(5)])
    there.branch.take(listen(limit), 0)
    (consumed,) = there.recorded
    assert isinstance(consumed, ev.SignalConsumed)
    assert consumed.signal_ids == tuple(f"s{number}" for number in range(taken))


def test_listen_stops_taking_before_its_event_outgrows_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branch_module, "TAKEN_CHARACTERS_MAX", 100)
    there = Recorder(*[received(number, f"{number:02}" + "😀" * 10) for number in range(20)])
    there.branch.take(listen(1_000), 0)
    (consumed,) = there.recorded
    assert isinstance(consumed, ev.SignalConsumed)
    # Each id takes 45 bytes of the line: the third one goes beyond the limit.
    assert len(consumed.signal_ids) == 3
    assert len(there.state.queue) == 17


@pytest.mark.parametrize("value", [SleepStep(1, "sleep", None, 0, until_us=5), listen(timeout_us=5), listen()])
def test_branch_waits_for_one_step_at_a_time(value: Step) -> None:
    there = Recorder()
    there.branch.take(value, 0)
    assert there.branch.wait is not None
    if isinstance(there.branch.wait, WaitListen):
        assert (there.branch.wait.location is None) == (there.branch.wait.sleep is not None)


def test_step_of_no_kind_is_an_error_of_ours() -> None:
    unknown: Any = object()
    with pytest.raises(AssertionError):
        Recorder().branch.take(unknown, 0)
    with pytest.raises(AssertionError, match="nothing was taken"):
        Recorder().branch.look(0)


def test_clock_of_a_branch_is_the_time_of_the_last_event_delivered() -> None:
    async def body(ctx: Any) -> list[str]:
        times = [ctx.now().isoformat()]
        await ctx.sleep(2)
        times.append(ctx.now().isoformat())
        return times

    world = World(body)
    world.dispatch()
    world.stop()
    world.now_us = START_US + 9_000_000
    world.restart()
    assert world.state.output == b'["2026-01-01T00:00:00+00:00","2026-01-01T00:00:09+00:00"]'
