"""Tickets of the help desk that start over from any of their lines come to the same summary (semantics.md §4)."""

from __future__ import annotations

import random
from pathlib import Path

from gasoline_es import Gasoline
from gasoline_es.core.folding import superseded_in
from gasoline_es.events import ActivityCompleted, LoopCommitted, SignalConsumed, WorkflowRerun
from tests.examples.helpdesk_runs import made_up, summary, written


async def test_tickets_that_start_over_from_any_line_come_to_the_same_summary(tmp_path: Path) -> None:
    rng = random.Random(11)
    path, log = written(tmp_path / "desk.jsonl", made_up(rng, 300)), tmp_path / "log"
    told = summary(path, log)
    chosen = await start_over(log, rng)
    assert summary(path, log) == told
    async with Gasoline.open(f"file:{log}", readonly=True) as gasoline:
        for workflow_id in chosen:
            assert (await gasoline.get(workflow_id)).status == "complete"
            events = await gasoline.history(workflow_id)
            superseded = superseded_in(event.fact for event in events)
            assert superseded
            held = [event.data for event in events if event.seq not in superseded]
            taken = [one for data in held if isinstance(data, SignalConsumed) for one in data.signal_ids]
            received = [event.data.signal_id for event in events if event.type == "signal.received"]  # type: ignore[union-attr]
            assert taken == received, "each line once, in their order"


async def start_over(log: Path, rng: random.Random) -> list[str]:
    """Let the tickets with the most lines start over, twice each, while nobody runs them: from a line, or from the start."""
    async with Gasoline.open(f"file:{log}") as gasoline:
        tickets = [info async for info in gasoline.list(name="ticket")]
        chosen = [info.id for info in sorted(tickets, key=lambda info: info.events)[-8:]]
        for number, workflow_id in enumerate(chosen):
            events = await gasoline.history(workflow_id)
            steps = [event for event in events if isinstance(event.data, SignalConsumed | ActivityCompleted)]
            loop = next(event for event in events if isinstance(event.data, LoopCommitted))
            first = rng.choice(steps[len(steps) // 2 :])
            for event in (first, loop if number % 2 else rng.choice(steps[: len(steps) // 2])):
                assert event.location is not None
                await gasoline.rerun(workflow_id, event.location)
            assert sum(isinstance(event.data, WorkflowRerun) for event in await gasoline.history(workflow_id)) == 2
    return chosen
