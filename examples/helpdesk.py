"""A help desk's event log through durable workflows: one workflow per ticket, every line of the log a signal to it.

    python examples/helpdesk.py examples/helpdesk-sample.jsonl

Kill it at any moment and run the same command again: it goes on where it was, and no line is lost or counted twice. How
far the input was read is on the log too, as the signals to a workflow of its own, ``reading``.

A line is a JSON object with ``ticket``, ``activity``, ``time`` (ISO 8601 with its offset from UTC) and ``resource``, all
text. ``seriousness``, ``customer``, ``product``, ``service_level`` and ``workgroup`` are kept where they are given,
everything else is left out. Empty lines are passed over.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import sys
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from gasoline_es import (
    ActivityContext,
    Break,
    Gasoline,
    Signal,
    SignalTo,
    WorkflowContext,
    WorkflowHandle,
    activity,
    workflow,
)
from gasoline_es.core.events import SignalReceived
from gasoline_es.errors import GasolineError

LINES_AT_ONCE = 500
LINES_UNDER_WAY_MAX = 4 * LINES_AT_ONCE
LINE_BYTES_MAX = 100_000
STALLED_AFTER_S = 60


# --- definitions ------------------------------------------------------------------------------------------------------


class TicketEvent(Signal):
    """One line of the input, as it is sent to its ticket's workflow. The signal's id is the line's number."""

    model_config = ConfigDict(strict=True, frozen=True)

    ticket: str = Field(pattern=r"^[^\x00-\x1f\x7f-\x9f]{1,200}$")
    activity: str = Field(min_length=1)
    time: AwareDatetime
    resource: str
    seriousness: str | None = None
    customer: str | None = None
    product: str | None = None
    service_level: str | None = None
    workgroup: str | None = None


class LastLineRead(Signal):
    """There is no further line of this ticket."""


class Opened(BaseModel):
    ticket: str


class TicketState(BaseModel):
    """What the lines of a ticket so far add up to. ``handlers``: the resources, in order of their first line."""

    events: int = 0
    first: AwareDatetime | None = None
    last: AwareDatetime | None = None
    status: str = ""
    handlers: list[str] = []


class Taken(BaseModel):
    """What a ticket's workflow carries from line to line: how many it has taken. (The rest is the state, see ``fold``.)"""

    lines: int = 0


class Outcome(BaseModel):
    """``first`` and ``last``: the earliest and the latest time; ``status``: the activity of the last line."""

    ticket: str
    events: int
    first: AwareDatetime
    last: AwareDatetime
    duration_s: float
    status: str
    handlers: list[str]


@activity
async def fold(ctx: ActivityContext, event: TicketEvent) -> None:
    state = ctx.state(TicketState)
    state.events += 1
    state.first = event.time if state.first is None else min(state.first, event.time)
    state.last = event.time if state.last is None else max(state.last, event.time)
    state.status = event.activity
    if event.resource not in state.handlers:
        state.handlers.append(event.resource)
    under_way.folded()


@activity
async def sum_up(ctx: ActivityContext, opened: Opened) -> Outcome:
    state = ctx.state(TicketState)
    assert state.first is not None
    assert state.last is not None  # a ticket has at least one line
    return Outcome(
        ticket=opened.ticket,
        events=state.events,
        first=state.first,
        last=state.last,
        duration_s=(state.last - state.first).total_seconds(),
        status=state.status,
        handlers=state.handlers,
    )


@workflow
async def ticket(ctx: WorkflowContext, opened: Opened) -> Outcome:
    """Each line is an iteration of a loop that is committed now and then, so that replay never reads a long ticket whole."""

    async def take_line(ctx: WorkflowContext, taken: Taken) -> Break[Outcome] | None:
        event = await ctx.listen(TicketEvent, LastLineRead)
        if isinstance(event, LastLineRead):
            return Break(await ctx.activity(sum_up, opened))
        await ctx.activity(fold, event)
        taken.lines += 1
        return None

    if await ctx.check_version(2) < 2:
        return await ticket_before_loops(ctx, opened)
    return await ctx.loop(take_line, Taken())


async def ticket_before_loops(ctx: WorkflowContext, opened: Opened) -> Outcome:
    """The first release's body, for tickets that were open when the loop came. Delete it when none of them is left."""
    while isinstance(event := await ctx.listen(TicketEvent, LastLineRead), TicketEvent):
        await ctx.activity(fold, event)
    return await ctx.activity(sum_up, opened)


class ReadTo(Signal):
    """Every line up to this one is on the log, as a signal to its ticket. The signal's id is the line's number."""

    line: int


class Input(BaseModel):
    digest: str
    lines: int


@workflow
async def reading(ctx: WorkflowContext, given: Input) -> int:
    """Keeps how far the input was read."""
    line = 0
    while line < given.lines:
        line = (await ctx.listen(ReadTo)).line
    return line


class UnderWay:
    """The lines that this process has sent and that are not folded yet: bounded, so that memory is."""

    def begin(self) -> None:
        self._room = asyncio.Semaphore(LINES_UNDER_WAY_MAX)

    async def make_room(self, lines: int) -> None:
        try:
            async with asyncio.timeout(STALLED_AFTER_S):
                for _ in range(lines):
                    await self._room.acquire()
        except TimeoutError:
            fail(
                f"no ticket has got on for {STALLED_AFTER_S} s; `gasoline --log file:DIR workflow list` shows how they stand"
            )

    def folded(self) -> None:
        self._room.release()


under_way = UnderWay()


# --- the input --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Survey:
    """What the first pass finds. ``last_line``: ticket → number of its last line, tickets in order of their first."""

    digest: str
    lines: int
    events: int
    last_line: dict[str, int]


def survey(path: Path) -> Survey:
    """Read the input once, so that a bad line is told before anything is recorded."""
    digest = hashlib.sha256()
    lines = events = 0
    last_line: dict[str, int] = {}
    for lines, raw in raw_lines(path):
        digest.update(raw)
        if (event := parsed(path, lines, raw)) is not None:
            events += 1
            last_line[event.ticket] = lines
    return Survey(digest.hexdigest(), max(last_line.values(), default=0), events, last_line)


def events_of(path: Path, found: Survey, after: int) -> Iterator[tuple[int, TicketEvent]]:
    """Read the input again, from the line after ``after`` on, as far as the first pass came."""
    for line, raw in islice(raw_lines(path), after, found.lines):
        event = parsed(path, line, raw)
        if event is not None:
            yield line, event


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            line = 0
            while raw := file.readline(LINE_BYTES_MAX + 1):
                line += 1
                if len(raw) > LINE_BYTES_MAX:
                    fail(f"{path}:{line}: the line is longer than {LINE_BYTES_MAX:,} bytes")
                yield line, raw
    except (OSError, EOFError, zlib.error) as error:
        fail(f"{path}: cannot be read: {error}")


def parsed(path: Path, line: int, raw: bytes) -> TicketEvent | None:
    try:
        return TicketEvent.model_validate_json(raw) if raw.strip() else None
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" if problem["loc"] else problem["msg"]
            for problem in error.errors(include_url=False, include_input=False)
        ]
        fail(f"{path}:{line}: {'; '.join(problems)}")


def fail(message: str) -> NoReturn:
    print(f"helpdesk: {message}", file=sys.stderr)
    raise typer.Exit(1)


# --- main -------------------------------------------------------------------------------------------------------------


async def run(path: Path, found: Survey, log: str, progress: Progress) -> list[Outcome]:
    """Bring every line to its ticket, and wait for the tickets to end. Returns their outcomes, by their first lines."""
    under_way.begin()
    lines_read = progress.add_task("lines read", total=found.lines)
    tickets_ended = progress.add_task("tickets ended", total=len(found.last_line))
    async with Gasoline.open(log) as gasoline, gasoline.worker([ticket, reading]):
        digest = found.digest
        reader = await gasoline.dispatch(
            reading, Input(digest=digest, lines=found.lines), key=digest, tags={"input": digest}
        )
        async for line in feed(gasoline, reader, path, found):
            progress.update(lines_read, completed=line)
        outcomes: dict[str, Outcome] = {}
        async for info in gasoline.list(name=ticket.name, tags={"input": digest}):
            outcome = await gasoline.handle(info.id, ticket).output()
            outcomes[outcome.ticket] = outcome
            progress.advance(tickets_ended)
    return [outcomes[name] for name in found.last_line]


async def feed(gasoline: Gasoline, reader: WorkflowHandle[int], path: Path, found: Survey) -> AsyncIterator[int]:
    """Send the lines that are not on the log yet; yield how far they are, after each part of them."""
    received = [event.data for event in await reader.history() if isinstance(event.data, SignalReceived)]
    line = int(received[-1].signal_id) if received else 0
    yield line
    events = events_of(path, found, line)
    ids: dict[str, str] = {}
    repeated = True  # the first part may have been sent before, by a process that was killed then
    while part := list(islice(events, LINES_AT_ONCE)):
        if not repeated:
            await under_way.make_room(len(part))
        repeated = False
        await open_tickets(gasoline, found, ids, [event.ticket for _, event in part])
        signals: list[SignalTo] = []
        for line, event in part:
            signals.append(SignalTo(event, ids[event.ticket], id=str(line)))
            if line == found.last_line[event.ticket]:
                signals.append(SignalTo(LastLineRead(), ids.pop(event.ticket), id="end"))
        await gasoline.signal_many(signals)
        await reader.signal(ReadTo(line=line), id=str(line))
        yield line


async def open_tickets(gasoline: Gasoline, found: Survey, ids: dict[str, str], names: list[str]) -> None:
    """See that there is a workflow for each of the tickets. The key finds the one that another process has made."""
    names = [name for name in dict.fromkeys(names) if name not in ids]
    handles = await asyncio.gather(
        *(
            gasoline.dispatch(
                ticket,
                Opened(ticket=name),
                key=f"{found.digest}/{name}",
                tags={"ticket": name, "input": found.digest},
            )
            for name in names
        )
    )
    ids.update((name, handle.id) for name, handle in zip(names, handles, strict=True))


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    # Not by `duration_s`: times a million, a float of some decades is a microsecond off now and then.
    durations_us = sorted((outcome.last - outcome.first) // timedelta(microseconds=1) for outcome in outcomes)
    return {
        "tickets": len(outcomes),
        "events": sum(outcome.events for outcome in outcomes),
        "by_status": dict(Counter(outcome.status for outcome in outcomes).most_common()),
        "duration_p50_s": percentile_s(durations_us, 50),
        "duration_p90_s": percentile_s(durations_us, 90),
    }


def percentile_s(ordered_us: list[int], percent: int) -> float | None:
    """Interpolate linearly between the closest ranks, in whole numbers as long as possible. None: there are none."""
    if not ordered_us:
        return None
    rank, rest = divmod((len(ordered_us) - 1) * percent, 100)
    low, high = ordered_us[rank], ordered_us[min(rank + 1, len(ordered_us) - 1)]
    return (low * (100 - rest) + high * rest) / 100_000_000


def show(figures: dict[str, Any], wall_s: float) -> None:
    table = Table("tickets by last activity", Column("", justify="right"))
    for status, tickets in figures["by_status"].items():
        table.add_row(escape(status), f"{tickets:,}")
    console = Console()
    console.print(f"{figures['tickets']:,} tickets, {figures['events']:,} events")
    console.print(table)
    for name, key in (("median duration", "duration_p50_s"), ("90th percentile", "duration_p90_s")):
        if figures[key] is not None:
            console.print(f"{name:<16} {timedelta(seconds=round(figures[key]))}")
    console.print(f"{'wall time':<16} {wall_s:.1f} s")


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT", exists=True, dir_okay=False, help="The event log of tickets: .jsonl or .jsonl.gz."
        ),
    ],
    log: Annotated[
        str,
        typer.Option(
            metavar="file:DIR",
            help="Where everything is recorded. By default a folder in the current one that is called like the input: "
            "helpdesk-log for helpdesk.jsonl.gz.",
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """Run a help desk's event log through durable workflows, and print what it adds up to.

    Killed at any moment and started again with the same command, it goes on where it was. After its end it answers
    from the log.
    """
    started = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    on_terminal = Console(stderr=True)
    try:
        found = survey(path)
        log = log or f"file:{path.name.removesuffix('.gz').removesuffix('.jsonl')}-log"
        with Progress(*columns, console=on_terminal, disable=not on_terminal.is_terminal) as progress:
            outcomes = asyncio.run(run(path, found, log, progress))
    except GasolineError as error:
        fail(f"{type(error).__name__}: {error}")
    figures = summary(outcomes)
    if as_json:
        print(json.dumps(figures, indent=1, ensure_ascii=False))
    else:
        show(figures, time.monotonic() - started)


# --- run --------------------------------------------------------------------------------------------------------------

if __name__ == "__main__":
    app()
