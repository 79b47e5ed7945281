"""The history of any ticket, read with the command line, and with jq alone from the log's segments (filelog.md §1, §5)."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.examples.helpdesk_runs import Line, lines_of, made_up, summary, written
from tests.examples.test_helpdesk_kills import killed, segment_bytes

TICKET_BY_JQ = r"""
# In: all segments' text, in order of their numbers. Out: the ticket's lines, in the order its workflow took them.
[split("\n")[] | fromjson?] as $lines                                    # what a kill has torn is no JSON
| [$lines[] | .sections[]? | select(.begin)] as $begins
| [
    $lines[]
    | select(.topic == "default.events" and .value != null)
    | . as $record
    | select(
        all(                                                             # not void: no later epoch begins at or below
          $begins[] | select(.partition == $record.partition and .epoch > $record.value.epoch);
          .begin.offsets[$record.topic] // 0 | . > $record.offset
        )
      )
    | .value
  ] as $events
| ($events[] | select(.type == "gasoline.workflow.dispatched.v1" and .data.tags.ticket == $ticket) | .subject) as $id
| [$events[] | select(.subject == $id)]
| sort_by(.seq)
| (map(select(.type == "gasoline.signal.received.v1") | {key: .data.signal_id, value: .data.body}) | from_entries) as $bodies
| .[]
| select(.type == "gasoline.signal.consumed.v1")
| .data.signal_ids[]
| $bodies[.]
| select(.activity)
"""


def by_jq(log: Path, ticket: str) -> list[Line]:
    jq = pytest.importorskip("jq")
    segments = sorted((log / "segments").glob("*.jsonl"))
    text = "".join(segment.read_bytes().decode(errors="replace") + "\n" for segment in segments)
    return jq.compile(TICKET_BY_JQ, args={"ticket": ticket}).input_value(text).all()


def comparable(line: Line) -> tuple[Any, ...]:
    return (line["ticket"], line["activity"], datetime.fromisoformat(line["time"]), line["resource"], line["customer"])


def lines_by_ticket(lines: list[Line]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for line in lines:
        found.setdefault(line["ticket"], []).append(comparable(line))
    return found


def test_jq_alone_rebuilds_any_ticket_of_a_log_that_was_killed_on_the_way(tmp_path: Path) -> None:
    lines = made_up(random.Random(8), 400)
    path = written(tmp_path / "desk.jsonl", lines)
    summary(path, tmp_path / "whole")
    rng = random.Random(random.getrandbits(32))
    for _ in range(3):
        killed(path, tmp_path / "log", rng, 3 * segment_bytes(tmp_path / "whole"))
    summary(path, tmp_path / "log")
    wanted = lines_by_ticket(lines)
    for ticket in rng.sample(sorted(wanted), 3):
        assert [comparable(line) for line in by_jq(tmp_path / "log", ticket)] == wanted[ticket]


def test_the_command_line_shows_the_history_of_any_ticket(tmp_path: Path) -> None:
    lines = lines_of(made := written(tmp_path / "desk.jsonl", made_up(random.Random(9), 100)))
    summary(made, tmp_path / "log")
    listed = gasoline(tmp_path / "log", "workflow", "list", "--name", "ticket")
    ids = {one["tags"]["ticket"]: one["id"] for one in listed}
    lines_of_ticket = lines_by_ticket(lines)
    assert ids.keys() == lines_of_ticket.keys()
    for ticket in random.sample(sorted(ids), 4):
        history = gasoline(tmp_path / "log", "workflow", "history", ids[ticket])
        assert [event["seq"] for event in history] == list(range(1, len(history) + 1))
        bodies = {
            e["data"]["signal_id"]: e["data"]["body"] for e in history if e["type"] == "gasoline.signal.received.v1"
        }
        taken = [id for e in history if e["type"] == "gasoline.signal.consumed.v1" for id in e["data"]["signal_ids"]]
        assert [comparable(bodies[id]) for id in taken if id != "end"] == lines_of_ticket[ticket]


def gasoline(log: Path, *arguments: str) -> list[Any]:
    code = "from gasoline_es.cli import main; main()"
    command = [sys.executable, "-c", code, "--log", f"file:{log}", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=60, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]
