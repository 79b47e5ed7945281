"""A branch records what a step decides by itself, and answers it only from what is recorded (semantics §4, design §1)."""

from __future__ import annotations

from typing import Any

import pytest

from gasoline_es.core import branch as branch_module
from gasoline_es.core import events as ev
from gasoline_es.core.branch import Branch
from gasoline_es.core.location import Location
from gasoline_es.core.state import WorkflowState
from gasoline_es.core.steps import ListenStep, SleepStep, Step
from gasoline_es.core.waits import WaitListen, WaitSleep
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

    def wait_for(self, step: Step, now_us: int) -> Any:
        """Place a step, and decide it as far as that can be done at once."""
        wait = self.branch.wait_for(step, NOBODY, now_us, joined=False)
        if isinstance(wait, WaitSleep | WaitListen):
            self.branch.decide(wait, now_us)
        return wait


NOBODY: Any = None


def listen(limit: int | None = None, timeout_us: int | None = None) -> ListenStep:
    return ListenStep(1, "listen", None, 0, decoders={"paid": bytes}, limit=limit, timeout_us=timeout_us)


def received(number: int, signal_id: str | None = None) -> ev.SignalReceived:
    return ev.SignalReceived(signal_id or f"s{number}", "paid", str(number).encode())


def test_fact_that_answers_a_step_is_recorded_first_and_delivered_later() -> None:
    # In between it becomes durable: the body sees nothing that could still be lost.
    there = Recorder(received(1))
    wait = there.branch.wait_for(listen(), NOBODY, 0, joined=False)
    assert isinstance(wait, WaitListen)
    assert there.branch.answered(wait) is None
    there.branch.decide(wait, 0)
    assert there.recorded == [ev.SignalConsumed(((1,),), 1, ("s1",))]
    assert there.branch.answered(wait) == 3
    assert there.branch.deliver(wait) == b"1"


def test_sleep_of_nothing_is_recorded_and_over_at_once() -> None:
    there = Recorder()
    wait = there.wait_for(SleepStep(1, "sleep", None, 0, duration_us=0), 7)
    assert there.recorded == [ev.SleepStarted(((1,),), 1, 7), ev.SleepFinished(((1,),), "normal")]
    assert there.branch.deliver(wait) is None


def test_look_that_finds_nothing_new_records_nothing() -> None:
    there = Recorder()
    wait = there.wait_for(listen(timeout_us=10), 0)
    before = list(there.recorded)
    for now_us in range(10):
        there.branch.decide(wait, now_us)
    assert there.recorded == before
    assert there.branch.answered(wait) is None
    there.branch.decide(wait, 10)
    there.branch.decide(wait, 11)
    assert there.recorded[len(before) :] == [ev.SleepFinished(((1,),), "uninterrupted")]


@pytest.mark.parametrize(("joined", "taken_at"), [(False, ((2,),)), (True, ((1,), (1,)))])
def test_timed_listen_that_got_a_signal_is_one_append_of_both_facts(joined: bool, taken_at: Location) -> None:
    """In a join its neighbour may stand at the next location, so the signals go below its own."""
    there = Recorder()
    wait = there.branch.wait_for(listen(timeout_us=10), NOBODY, 0, joined=joined)
    assert isinstance(wait, WaitListen)
    there.record(received(1))
    del there.recorded[:]
    there.branch.decide(wait, 10)  # the queue comes before the deadline
    assert there.recorded == [ev.SleepFinished(((1,),), "interrupted"), ev.SignalConsumed(taken_at, 1, ("s1",))]
    assert there.branch.deliver(wait) == b"1"


@pytest.mark.parametrize(("limit", "taken"), [(None, 1), (1, 1), (3, 3), (5, 5), (100, 5)])
def test_listen_takes_at_most_its_limit(limit: int | None, taken: int) -> None:
    there = Recorder(*[received(number) for number in range(5)])
    there.wait_for(listen(limit), 0)
    (consumed,) = there.recorded
    assert isinstance(consumed, ev.SignalConsumed)
    assert consumed.signal_ids == tuple(f"s{number}" for number in range(taken))


def test_listen_stops_taking_before_its_event_outgrows_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branch_module, "TAKEN_CHARACTERS_MAX", 100)
    there = Recorder(*[received(number, f"{number:02}" + "😀" * 10) for number in range(20)])
    there.wait_for(listen(1_000), 0)
    (consumed,) = there.recorded
    assert isinstance(consumed, ev.SignalConsumed)
    # Each id takes 45 bytes of the line: the third one goes beyond the limit.
    assert len(consumed.signal_ids) == 3
    assert len(there.state.queue) == 17


def test_step_of_no_kind_is_an_error_of_ours() -> None:
    unknown: Any = object()
    with pytest.raises(AssertionError):
        Recorder().wait_for(unknown, 0)


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
