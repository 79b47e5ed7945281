"""How many of a run's waits somebody works on: each is counted out once (design §3)."""

from __future__ import annotations

from gasoline_es.core import events as ev
from gasoline_es.core.replay import Run
from gasoline_es.core.state import WorkflowState
from gasoline_es.core.steps import OutputStep
from gasoline_es.core.waits import WaitOutput


def test_an_output_that_comes_before_its_asking_is_over_is_counted_out_once() -> None:
    state = WorkflowState("0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f")
    run = Run(state, lambda _: None)
    step = OutputStep(1, "output", None, 0, "ship", "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a40", bytes.decode)
    wait = WaitOutput(((1,),), step, run)
    run.wait_for(wait)
    assert run.busy == 1
    state.apply(1, 0, ev.OutputReceived(((1,),), 1, "ship", step.workflow_id, b"null"), "ray", "w1")
    run.advance(0, durable_seq=0)  # it is recorded, and not durable yet
    assert (run.busy, wait.over, wait.asked) == (0, False, False)
    run.asked(wait)
    assert run.busy == 0
