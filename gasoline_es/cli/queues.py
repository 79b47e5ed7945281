"""Signals: which are queued, and what became of one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from gasoline_es.cli import parked, render
from gasoline_es.cli.escape import escape
from gasoline_es.cli.failures import Failure
from gasoline_es.cli.listing import Row, going_on
from gasoline_es.cli.output import Facts, Output, fragment
from gasoline_es.cli.parked import Standing
from gasoline_es.cli.reading import Reading
from gasoline_es.cli.single import history_records, sound_facts
from gasoline_es.core import events as ev
from gasoline_es.core.durations import format_time
from gasoline_es.core.fact_writing import inner
from gasoline_es.core.folding import fold_facts, superseded_in
from gasoline_es.core.ids import check_workflow_id, partition_of
from gasoline_es.core.location import format_location
from gasoline_es.core.state import Status

_WIDE: Final = 110
_BESIDE: Final = 36
"""What the columns of times and statuses take, with what is between all of them."""
_ID_WHOLE: Final = 40
"""Ids of so many characters are not broken on a wide terminal."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which queued signals; all of what is given. Times are of receipt, microseconds UTC, half-open."""

    workflow: str | None = None
    name: str | None = None
    to: str | None = None
    since_us: int | None = None
    until_us: int | None = None


@dataclass(frozen=True, slots=True)
class Queued:
    """A signal that its workflow has not taken yet."""

    id: str
    name: str
    workflow_id: str
    workflow: str
    status: Status
    received_us: int
    sender: str | None
    partition: int


def queued(reading: Reading, wanted: Wanted) -> list[Queued]:
    """Return the queued signals of all partitions that match, oldest first.

    Raises: WorkflowNotFound: ``to`` is no id.
    """
    partitions: Sequence[int] = range(reading.log.partition_count)
    if wanted.to is not None:
        partitions = (partition_of(check_workflow_id(wanted.to), reading.log.partition_count),)
    found: list[Queued] = []
    for partition in partitions:
        having = {
            row.summary.id: row
            for row in going_on(reading, partition)
            if row.queued
            and (wanted.workflow is None or row.summary.name == wanted.workflow)
            and (wanted.to is None or row.summary.id == wanted.to)
        }
        found.extend(one for one in _received(reading, partition, having) if _matches(one, wanted))
    return sorted(found, key=lambda one: (one.received_us, one.id))


def _received(reading: Reading, partition: int, having: dict[str, Row]) -> Iterator[Queued]:
    """Yield the queued signals of these workflows. When each came, and from whom, is told by its event: read again."""
    latest: dict[tuple[str, str], Queued] = {}  # of an id that came again after it was forgotten, the last
    recorded = ((one, record) for one in having.values() for record in history_records(reading, one.summary.id))
    for row, record in recorded:
        event = reading.decode(record)
        if event is None or not isinstance(event.data, ev.SignalReceived):
            continue
        data, summary = event.data, row.summary
        if data.signal_id in row.queued:
            latest[summary.id, data.signal_id] = Queued(
                id=data.signal_id,
                name=data.name,
                workflow_id=summary.id,
                workflow=summary.name,
                status=summary.status,
                received_us=event.time_us,
                sender=data.sender,
                partition=partition,
            )
    yield from latest.values()


def _matches(one: Queued, wanted: Wanted) -> bool:
    return (
        (wanted.name is None or one.name == wanted.name)
        and (wanted.since_us is None or one.received_us >= wanted.since_us)
        and (wanted.until_us is None or one.received_us < wanted.until_us)
    )


def members(one: Queued) -> dict[str, Any]:
    """Return a queued signal as a JSON object."""
    return {
        "id": one.id,
        "name": one.name,
        "workflow_id": one.workflow_id,
        "workflow": one.workflow,
        "status": one.status,
        "received": format_time(one.received_us),
        "sender": one.sender,
        "partition": one.partition,
    }


def _texts(signals: Sequence[Queued]) -> Sequence[list[str]]:
    """Return the texts of the columns whose widths are not known before."""
    return (
        [one.name for one in signals],
        [one.id for one in signals],
        [f"{one.workflow} {one.workflow_id}" for one in signals],
    )


def show(signals: Sequence[Queued], output: Output) -> None:
    """Print one line for each, and how many there are."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    console = output.console
    # Ids are there to be copied: the time is told shortly before one is broken, and a workflow's name stands above its id.
    longest = [max((cell_len(escape(cell)) for cell in cells), default=0) for cells in _texts(signals)]
    wide = console.width >= max(_WIDE, sum(longest) + _BESIDE)
    now_us = time.time_ns() // 1000
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("NAME", "ID", "RECEIVED" if wide else "AGE", "WORKFLOW", "STATUS"):
        whole = min(longest[1], _ID_WHOLE) if column == "ID" and console.width >= _WIDE else None
        table.add_column(column, overflow="fold", min_width=whole)
    for one in signals:
        received = render.second(one.received_us) if wide else render.age(now_us - one.received_us)
        cells = (one.name, one.id, received, f"{one.workflow} {one.workflow_id}")
        table.add_row(*(Text(escape(cell)) for cell in cells), Text(one.status, render.STYLES.get(one.status, "")))
    if signals:
        console.print(table)
    console.print(Text(f"{render.count(len(signals), 'signal')} queued", style="dim"))


# --- one --------------------------------------------------------------------------------------------------------------

Stands = Literal["queued", "taken", "discarded"]


@dataclass(frozen=True, slots=True)
class Found:
    """A signal in one workflow: what it brought, and what became of it."""

    data: ev.SignalReceived
    workflow_id: str
    workflow: str
    received_us: int
    stands: Stands
    ended_us: int | None = None
    location: str | None = None
    was_parked: Standing | None = None
    """As what it waited before, if it did."""


def find(reading: Reading, signal_id: str, to: str | None) -> tuple[list[Found], list[Standing]]:
    """Return what became of a signal, in each workflow that received one with this id, in order of receipt.

    With it, unless ``to`` names a workflow, the parked ones that no workflow has received. Raises: Failure: there is none.
    WorkflowNotFound: ``to`` is no id.
    """
    stands = parked.find(reading, signal_id)
    got = {one.parked.target: one for one in stands if one.parked.status == "delivered"}
    ids = _receivers(reading, signal_id) if to is None else [check_workflow_id(to)]
    found = [
        replace(one, was_parked=got.pop(workflow_id, None))
        for workflow_id in ids
        for one in _in(reading, workflow_id, signal_id)
    ]
    others = (
        [one for one in stands if one.parked.status != "delivered" or one.parked.target in got] if to is None else []
    )
    if not found and not others:
        where = f"namespace {reading.log.namespace!r} of {reading.log.url}" if to is None else f"workflow {to}"
        raise Failure(f"no signal {signal_id!r} was received in {where}: `gasoline signal list` shows what is queued")
    return sorted(found, key=lambda one: (one.received_us, one.workflow_id)), others


def _receivers(reading: Reading, signal_id: str) -> list[str]:
    """Return the workflows that have an event which may have received the signal."""
    try:
        signal_id.encode()
    except UnicodeEncodeError:
        return []  # bytes of the command line that are no UTF-8: no log holds them
    written = inner(signal_id).encode()
    found: dict[str, None] = {}
    for partition in range(reading.log.partition_count):
        for record in reading.records(reading.events_topic, partition):
            if (
                record.value is not None and written in record.value
            ):  # before it is decoded, which takes ten times as long
                found[record.key.rpartition("/")[0]] = None
    return list(found)


def _in(reading: Reading, workflow_id: str, signal_id: str) -> Iterator[Found]:
    facts = list(sound_facts(reading, workflow_id))
    past = superseded_in(facts)
    state = fold_facts(workflow_id, facts.copy)
    found: Found | None = None
    for _, seq, time_us, data, _, _ in facts:
        match data:
            case ev.SignalReceived() if data.signal_id == signal_id:
                found = Found(data, workflow_id, state.summary.name, time_us, "queued")
            case ev.SignalConsumed() if found is not None and signal_id in data.signal_ids and seq not in past:
                found = replace(found, stands="taken", ended_us=time_us, location=format_location(data.location))
            case ev.SignalDiscarded() if found is not None and signal_id in data.signal_ids and seq not in past:
                found = replace(found, stands="discarded", ended_us=time_us)
            case _:
                pass
    if found is not None:
        yield found


def found_members(one: Found) -> dict[str, Any]:
    """Return what became of a signal as a JSON object."""
    return {
        "id": one.data.signal_id,
        "name": one.data.name,
        "workflow_id": one.workflow_id,
        "workflow": one.workflow,
        "stands": one.stands,
        "received": format_time(one.received_us),
        "ended": None if one.ended_us is None else format_time(one.ended_us),
        "location": one.location,
        "sender": one.data.sender,
        "body": fragment(one.data.body),
        **parked.sent_members(one.was_parked),
    }


def show_found(signals: Sequence[Found], output: Output, *, full: bool) -> None:
    """Print each as a block of labelled lines."""
    for number, one in enumerate(signals):
        if number:
            output.console.print()
        facts = Facts()
        facts.add("signal", escape(one.data.signal_id))
        facts.add("name", escape(one.data.name))
        facts.add("workflow", f"{escape(one.workflow)} {escape(one.workflow_id)}")
        if one.was_parked is not None:
            facts.add("parked", render.moment(one.was_parked.parked.parked_us))
        facts.add("received", render.moment(one.received_us))
        stands: str = one.stands
        if one.ended_us is not None:
            at = "" if one.location is None else f" at {one.location}"
            stands += f"{at} {render.moment(one.ended_us)}"
        facts.add("status", stands)
        if one.data.sender is not None:
            facts.add("sender", escape(one.data.sender))
        facts.add("body", render.payload(one.data.body, full=full))
        facts.show(output.console)
