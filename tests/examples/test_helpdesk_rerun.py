"""Any ticket of the help desk, started over from any of its lines, comes to the same (semantics.md §4)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from examples.helpdesk import reading, ticket, under_way
from gasoline_es import Gasoline
from gasoline_es.core.folding import superseded_in
from gasoline_es.events import ActivityCompleted, LoopCommitted, SignalConsumed
from tests.examples.helpdesk_runs import lines_of, made_up, summary, written


async def test_tickets_that_start_over_from_any_line_have_the_same_outcome(tmp_path: Path) -> None:
    rng = random.Random(11)
    path, log = written(tmp_path / "desk.jsonl", made_up(rng, 300)), tmp_path / "log"
    summary(path, log)
    lines = lines_of(path)
    under_way.begin()
    async with Gasoline.open(f"file:{log}") as gasoline:
        tickets = [info async for info in gasoline.list(name="ticket", payloads=True)]
        longest = sorted(tickets, key=lambda info: info.events)[-6:]
        async with gasoline.worker([ticket, reading]):
            for info in longest:
                handle = gasoline.handle(info.id, ticket)
                history = await handle.history()
                places = [
                    event.location for event in history if isinstance(event.data, SignalConsumed | ActivityCompleted)
                ]
                committed = [event.location for event in history if isinstance(event.data, LoopCommitted)]
                for place in [rng.choice(places), rng.choice(places), committed[0]]:
                    assert place is not None
                    fork = await handle.rerun(place, fork=True)
                    assert await outcome(gasoline, fork.id) == (info.output, info.state)
                    await handle.rerun(place)
                    assert await outcome(gasoline, info.id) == (info.output, info.state)
                events = await handle.history()
                gone = superseded_in(event.fact for event in events)
                taken = [one for event in events if event.seq not in gone and isinstance(event.data, SignalConsumed)
                         for one in event.data.signal_ids]  # fmt: skip
                mine = [
                    f"{number}" for number, line in enumerate(lines, start=1) if line["ticket"] == info.tags["ticket"]
                ]
                assert len(taken) == len(set(taken)) == len(mine) + 1, "each line once, and that there is no more"


async def outcome(gasoline: Gasoline, workflow_id: str) -> tuple[Any, Any]:
    await gasoline.handle(workflow_id, ticket).output(timeout=30)
    info = await gasoline.get(workflow_id)
    return info.output, info.state
