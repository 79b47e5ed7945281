"""Parked signals: which wait for a workflow, and what became of one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gasoline_es.cli import render
from gasoline_es.cli.escape import escape
from gasoline_es.cli.output import Facts, Output, fragment
from gasoline_es.cli.reading import Reading
from gasoline_es.core.durations import format_time
from gasoline_es.core.parked import Parked, fold_parked
from gasoline_es.core.parked_events import SignalParked, decode_parked_event


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which of those that wait; all of what is given. Times are of parking, microseconds UTC, half-open."""

    workflow: str | None = None
    name: str | None = None
    since_us: int | None = None
    until_us: int | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """A parked signal: as it was ``given``, also when it is over, and where it stands. Parked anew, it is as it was last."""

    given: SignalParked
    parked: Parked
    partition: int

    @property
    def stands(self) -> str:
        """In a word; on its way to a workflow it is in nobody's queue yet, so still parked."""
        return "parked" if self.parked.live else self.parked.status

    @property
    def ended_us(self) -> int | None:
        """When it was over, if it is."""
        return None if self.parked.ended is None else self.parked.ended.ended_us


def waiting(reading: Reading, wanted: Wanted) -> list[Standing]:
    """Return those of all partitions that wait and match, in order of parking."""
    found = [
        one
        for one in _all(reading)
        if one.parked.live
        and (wanted.workflow is None or one.given.workflow == wanted.workflow)
        and (wanted.name is None or one.given.name == wanted.name)
        and (wanted.since_us is None or one.parked.parked_us >= wanted.since_us)
        and (wanted.until_us is None or one.parked.parked_us < wanted.until_us)
    ]
    return sorted(found, key=lambda one: one.parked.parked_us)


def find(reading: Reading, signal_id: str) -> list[Standing]:
    """Return what became of a signal wherever it was parked, in order of parking."""
    found = [one for one in _all(reading) if one.given.signal_id == signal_id]
    return sorted(found, key=lambda one: one.parked.parked_us)


def _all(reading: Reading) -> Iterator[Standing]:
    """Yield all that the log tells of, also those that ended so long ago that a repeat would be parked anew."""
    topic = reading.topics.parked
    for partition in range(reading.log.partition_count):
        stands, given = dict[str, Parked](), dict[str, SignalParked]()
        for record in reading.records(topic, partition):
            if record.value is None or record.offset is None:
                continue
            try:
                event = decode_parked_event(record.value)
            except ValueError as error:
                reading.note(f"topic {topic}, partition {partition}, offset {record.offset}: {error}")
                continue
            if isinstance(event.data, SignalParked):
                given[event.parked_id] = event.data
            stands[event.parked_id] = fold_parked(stands.get(event.parked_id), event)
        for parked in stands.values():
            yield Standing(given.get(parked.id, parked.signal), parked, partition)


def members(one: Standing) -> dict[str, Any]:
    """Return one that waits as a JSON object."""
    return {
        "id": one.given.signal_id,
        "name": one.given.name,
        "workflow": one.given.workflow,
        **sent_members(one),
        "partition": one.partition,
    }


def sent_members(one: Standing | None) -> dict[str, Any]:
    """Return what is known of a signal because it was parked; of one that was not, nothing."""
    return {
        "tags": None if one is None else dict(one.given.tags),
        "parked": None if one is None else format_time(one.parked.parked_us),
        "until": None if one is None else format_time(one.given.until_us),
    }


def found_members(one: Standing) -> dict[str, Any]:
    """Return what became of one that no workflow has received, as of one that was."""
    return {
        "id": one.given.signal_id,
        "name": one.given.name,
        "workflow_id": one.parked.target,
        "workflow": one.given.workflow,
        "stands": one.stands,
        "received": None,
        "ended": None if one.ended_us is None else format_time(one.ended_us),
        "location": None,
        "sender": None,
        "body": fragment(one.given.body),
        **sent_members(one),
    }


def show(signals: Sequence[Standing], output: Output) -> None:
    """Print one line for each, and how many there are."""
    from rich.table import Table
    from rich.text import Text

    now_us = time.time_ns() // 1000
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("NAME", "ID", "AGE", "FOR", "UNTIL"):
        table.add_column(column, overflow="fold")
    for one in signals:
        tags = render.tags(one.given.tags, full=True) if one.given.tags else ""
        age = render.age(now_us - one.parked.parked_us)
        cells = (one.given.name, one.given.signal_id, age, f"{one.given.workflow} {tags}".rstrip())
        until = render.second(one.given.until_us)
        table.add_row(*(Text(escape(cell)) for cell in (*cells, until)))
    if signals:
        output.console.print(table)
    output.console.print(Text(f"{render.count(len(signals), 'signal')} parked", style="dim"))


def show_found(one: Standing, output: Output, *, full: bool) -> None:
    """Print one that no workflow has received as a block of labelled lines."""
    facts = Facts()
    facts.add("signal", escape(one.given.signal_id))
    facts.add("name", escape(one.given.name))
    facts.add("for", escape(one.given.workflow))
    if one.given.tags:
        facts.add("tags", render.tags(one.given.tags, full=full))
    facts.add("parked", f"{render.moment(one.parked.parked_us)} until {render.moment(one.given.until_us)}")
    ended = "" if one.ended_us is None else f" {render.moment(one.ended_us)}"
    facts.add("status", f"{one.stands}{ended}")
    if one.parked.problem is not None:
        facts.add("problem", escape(one.parked.problem), "red")
    facts.add("body", render.payload(one.given.body, full=full))
    facts.show(output.console)
