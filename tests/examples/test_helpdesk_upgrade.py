"""A run that the example's first release began, before there were loops, ends under today's code (semantics.md §3)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import Event, Gasoline
from gasoline_es.events import LoopCommitted, SignalConsumed, VersionChecked, WorkflowCompleted
from tests.examples.helpdesk_runs import (
    as_printed,
    check_every_line_is_recorded_once,
    expected,
    lines_of,
    recorded,
    summary,
    written,
)

BEFORE_LOOPS = Path(__file__).with_name("recorded") / "helpdesk-before-loops.tar.gz"
"""``desk.jsonl``, 80 lines of 23 tickets, and the log of a run over it that was killed half-way."""


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    shutil.unpack_archive(BEFORE_LOOPS, tmp_path)
    return tmp_path


async def tickets(log: Path) -> dict[str, list[Event]]:
    """Ticket → its whole history."""
    async with Gasoline.open(f"file:{log}", readonly=True) as gasoline:
        return {info.tags["ticket"]: await gasoline.history(info.id) async for info in gasoline.list(name="ticket")}


def facts(events: list[Event], kind: type[Any]) -> list[Event]:
    return [event for event in events if isinstance(event.data, kind)]


async def test_a_run_begun_before_there_were_loops_ends_with_the_same_summary(unpacked: Path) -> None:
    lines = lines_of(unpacked / "desk.jsonl")
    log = unpacked / "helpdesk-log"
    before = await recorded(log)
    folded = sum(of.folded for of in before.values())
    assert 0 < folded < len(lines)
    assert any(len(of.consumed) > of.folded for of in before.values()), "a ticket in the middle of a line"
    assert summary(unpacked / "desk.jsonl", log) == as_printed(expected(lines))
    await check_every_line_is_recorded_once(log, lines)


async def test_its_tickets_keep_to_the_old_way_and_keep_every_event(unpacked: Path) -> None:
    log = unpacked / "helpdesk-log"
    before = await tickets(log)
    begun = {name for name, events in before.items() if facts(events, SignalConsumed)}
    assert len(begun) > 0
    summary(unpacked / "desk.jsonl", log)
    for name, events in (await tickets(log)).items():
        assert events[: len(before[name])] == before[name]
        assert len(facts(events, WorkflowCompleted)) == 1
        checked = [(event.location, event.data.value) for event in events if isinstance(event.data, VersionChecked)]
        if facts(before[name], WorkflowCompleted):
            assert checked == []
        elif name in begun:
            assert checked == [("{0.1}", 1)]
            assert facts(events, LoopCommitted) == []
        else:
            assert checked == [("{1}", 2)]
            assert [event.location for event in facts(events, LoopCommitted)] == ["{2}", "{2}"]


async def test_a_log_of_today_is_looped(tmp_path: Path, unpacked: Path) -> None:
    lines = [{**line, "ticket": "the only one"} for line in lines_of(unpacked / "desk.jsonl")]
    path = written(tmp_path / "one.jsonl", lines)
    assert summary(path, tmp_path / "log") == as_printed(expected(lines))
    (events,) = (await tickets(tmp_path / "log")).values()
    commits = [event.data for event in events if isinstance(event.data, LoopCommitted)]
    assert [(commit.iteration, commit.state) for commit in commits] == [
        (number, b'{"lines":%d}' % min(number, 80)) for number in (0, 20, 40, 60, 80, 81)
    ]
    assert [commit.output is not None for commit in commits] == [False] * 5 + [True]
