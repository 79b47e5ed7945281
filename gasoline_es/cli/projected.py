"""What ``gasoline projections`` does: loads them from a module, keeps them up, shows how they stand."""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any, Final

from gasoline_es.checking.code import Code, CodeRefused
from gasoline_es.cli import render
from gasoline_es.cli.escape import escape
from gasoline_es.cli.failures import Misuse
from gasoline_es.cli.output import Facts, Output
from gasoline_es.cli.progress import Advance, progress
from gasoline_es.cli.reading import reading
from gasoline_es.cli.settings import Settings
from gasoline_es.cli.stopping import Stopping
from gasoline_es.cli.working import log_to_stderr
from gasoline_es.core.durations import format_time
from gasoline_es.errors import DefinitionError, ExtraMissing, LogError, ProjectionError
from gasoline_es.log.port import Log
from gasoline_es.projecting import tell
from projections.building import OnProgress, rebuild
from projections.comparing import Difference, Verdict, verify
from projections.definition import Projection, check_projections
from projections.known import Undecided, unknown
from projections.parallel import cores
from projections.running import KeptUp, Runner
from projections.stores.opening import open_store
from projections.stores.port import START, AnyStore, Failure, Feed, GenerationInfo, Stop, check_name
from projections.tables import TOPICS
from projections.workflows import NAME, Workflows

COUNTED_MAX: Final = 20_000
"""So many records that are not folded are counted one by one, where the cleaner may have removed some."""


def chosen(module: str | None, names: Sequence[str] | None) -> list[Projection]:
    """Load the projections of a module, only those of these names if any are given; None: the engine's. Raises: Misuse."""
    if module is None:
        return [Workflows()]
    try:
        code = Code.parse(module)
        found = projections_of(code)
    except CodeRefused as refused:
        raise Misuse(str(refused)) from refused
    by_name = {one.name: one for one in found}
    for name in names or ():
        if name not in by_name:
            raise Misuse(f"there is no projection {name!r} in {code.module}: it has {', '.join(sorted(by_name))}")
    return [by_name[name] for name in dict.fromkeys(names)] if names else found


def projections_of(code: Code) -> list[Projection]:
    """Load the projections of a module, or those of them that are named. Raises: CodeRefused."""
    module = code.imported()
    there = {name: value for name, value in vars(module).items() if _is_one(value, module.__name__)}
    if not there:
        raise CodeRefused(f"there is no projection in {code.module}: name the module where @projection stands")
    for name in code.names:
        if name not in there:
            raise CodeRefused(f"there is no projection {name!r} in {code.module}: it has {', '.join(sorted(there))}")
    picked = [there[name] for name in code.names] or list({id(value): value for value in there.values()}.values())
    try:
        return check_projections(picked)
    except DefinitionError as error:
        raise CodeRefused(error.message) from error


def _is_one(value: object, module: str) -> bool:
    # By its type: to ask the value for its class would run code of whatever lies in the module.
    if issubclass(type(value), Projection):
        return True
    # A class that others derive from, and that lacks a name, is none by itself.
    return isinstance(value, type) and issubclass(value, Projection) and value.__module__ == module and bool(value.name)


@contextmanager
def _opened(settings: Settings, url: str | None) -> Generator[tuple[Log, AnyStore]]:
    """Open the log to read it, and the store of its projections. Raises: Misuse: the URL is of no store."""
    with reading(settings, final=True) as opened:
        try:
            store = open_store(opened.log, url)
        except ExtraMissing:
            raise
        except ProjectionError as error:
            raise Misuse(error.message) from error
        with closing(store):
            yield opened.log, store


# --- status -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shown:
    """A generation, how many records it is behind, and why the log does not know where it stands, if so.

    ``behind``: of more than :data:`COUNTED_MAX`, offsets, of which fewer are records where the log was cleaned.
    """

    info: GenerationInfo
    behind: int
    problem: str | None
    failure: Failure | None = None
    """Why nobody goes on with it."""
    partitions: int = 0

    @property
    def stands_still(self) -> bool:
        """Whether somebody has to do something."""
        return bool(self.info.stops or self.failure) or (self.info.current and self.problem is not None)


@dataclass(frozen=True, slots=True)
class Broken:
    """A projection that has no generation which can be shown, and why."""

    projection: str
    problem: str
    failure: Failure | None = None
    stands_still: bool = True


def all_of(log: Log, url: str | None) -> list[Shown | Broken]:
    """Return every generation of every projection in a store."""
    try:
        store = open_store(log, url)
    except ExtraMissing:
        raise
    except ProjectionError as error:
        raise Misuse(error.message) from error
    found: list[Shown | Broken] = []
    with closing(store):
        for name in store.names():
            try:
                found += _shown_of(log, store, name)
            except ProjectionError as error:  # the others are shown all the same
                found.append(Broken(name, error.message))
    return found


def _shown_of(log: Log, store: AnyStore, name: str) -> list[Shown | Broken]:
    """Return the generations of a projection: with the one that is read, or else the newest, why nobody goes on."""
    infos, failure = store.generations(name), store.failure(name)
    if not infos:
        return [] if failure is None else [Broken(name, f"{name} is not built: {_failed(failure)}", failure)]
    failing = next((info for info in infos if info.current), infos[-1])
    return [_shown(log, info, failure if info is failing else None) for info in infos]


def _failed(failure: Failure) -> str:
    return f"it cannot be kept up, since {render.second(failure.time_us)}: {failure.error}"


def _shown(log: Log, info: GenerationInfo, failure: Failure | None) -> Shown:
    try:
        problem = unknown(log, info.meta, info.positions)
    except Undecided:  # a moment's matter, while a partition is taken over
        problem = None
    # Which topics it folds only its code knows: of users' those it has positions in, and the events.
    known = TOPICS if info.meta.projection == NAME else ("events",)
    topics = {*(f"{log.namespace}.{topic}" for topic in known), *(feed.topic for feed in info.positions)}
    feeds = [Feed(topic, partition) for topic in topics for partition in range(log.partition_count)]
    behind = sum(_behind(log, feed, info.positions.get(feed, START).next_offset) for feed in feeds)
    return Shown(info, behind, problem, failure, log.partition_count)


def _behind(log: Log, feed: Feed, start: int) -> int:
    """Return how many records of a feed are not folded. Of many, how many offsets: to count them costs reading them."""
    offsets = max(log.end(feed.topic, feed.partition) - start, 0)
    if not 0 < offsets <= COUNTED_MAX or log.remote:
        return offsets
    try:
        return sum(1 for _ in log.read(feed.topic, feed.partition, start, start + offsets))
    except LogError:  # damage, which others tell of; or the log is being cleaned
        return offsets


def show(found: Sequence[Shown | Broken], output: Output, *, full: bool = False) -> None:
    """Print a line for each generation, then what stands still: for each reason the first place, or all that are (``full``)."""
    if output.json:
        for one in found:
            output.object(_members(one))
        return
    _show_table([one for one in found if isinstance(one, Shown)], output, full=full, alone=len(found))
    if broken := [one for one in found if isinstance(one, Broken)]:
        from rich.text import Text

        for one in broken:
            output.console.print(Text(escape(one.problem), "bold red"))


def _show_table(found: Sequence[Shown], output: Output, *, full: bool, alone: int) -> None:
    if not found:
        if not alone:
            output.console.print("there are no projections")
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("PROJECTION", "GENERATION", "VERSION", "STATE", "BEHIND", "BYTES"):
        table.add_column(column, overflow="fold")
    for one in found:
        meta = one.info.meta
        style = "bold red" if one.stands_still else "green" if one.info.current else "dim"
        size = "" if one.info.size_bytes is None else f"{one.info.size_bytes:,}"
        state = "current" if one.info.current else meta.state
        cells = (escape(meta.projection), f"{meta.generation}", f"{meta.version}")
        table.add_row(*cells, Text(state, style), f"{one.behind:,}", size)
    output.console.print(table)
    for one in found:
        if one.problem is not None:
            told = f"{one.info.meta.projection}, generation {one.info.meta.generation}: {one.problem}"
            output.console.print(Text(escape(told), "bold red" if one.info.current else "dim"))
        name = f"{one.info.meta.projection}, generation {one.info.meta.generation},"
        if one.failure is not None:
            output.console.print(Text(escape(f"{name[:-1]}: {_failed(one.failure)}"), "bold red"))
        for told in _stops(name, one, full=full):
            output.console.print(Text(escape(told), "bold red"))


def _stops(name: str, one: Shown, *, full: bool) -> Iterator[str]:
    """Yield what is told of where a generation stands still: a line for each place, or for each reason of several."""
    reasons: dict[str, list[tuple[Feed, Stop]]] = {}
    for feed, stop in sorted(one.info.stops.items()):
        reasons.setdefault(stop.error, []).append((feed, stop))
    for reason, places in reasons.items():
        lines = [
            f"{stop.event} at offset {stop.offset} of {feed.topic}, partition {feed.partition}, since "
            f"{render.second(stop.time_us)}"
            for feed, stop in places
        ]
        if full or len(places) == 1:
            yield from (f"{name} stands before {line}: {reason}" for line in lines)
        else:
            still = f"stands still in {len(places)} of {one.partitions} partitions"
            yield f"{name} {still}: {reason}; the first: {lines[0]}"


def _kept_failure(failure: Failure | None) -> dict[str, str] | None:
    return None if failure is None else {"error": failure.error, "since": format_time(failure.time_us)}


def _members(one: Shown | Broken) -> dict[str, Any]:
    if isinstance(one, Broken):
        unknown_of_it: dict[str, Any] = dict.fromkeys(("generation", "version", "state", "current", "behind", "bytes"))
        return {"projection": one.projection, **unknown_of_it, "problem": one.problem} | {
            "failing": _kept_failure(one.failure),
            "stopped": [],
        }
    meta = one.info.meta
    return {
        "projection": meta.projection,
        "generation": meta.generation,
        "version": meta.version,
        "state": meta.state,
        "current": one.info.current,
        "behind": one.behind,
        "bytes": one.info.size_bytes,
        "problem": one.problem,
        "failing": _kept_failure(one.failure),
        "stopped": [
            {
                **feed._asdict(),
                "offset": stop.offset,
                "event": stop.event,
                "error": stop.error,
                "since": format_time(stop.time_us),
            }
            for feed, stop in sorted(one.info.stops.items())
        ],
    }


# --- keeping up -------------------------------------------------------------------------------------------------------


def keep_up(
    settings: Settings,
    projections: Sequence[Projection],
    url: str | None,
    output: Output,
    early: Stopping,
    *,
    once: bool,
) -> bool:
    """Keep projections up until a signal, or ``once``; return whether all is folded that there was."""
    with _opened(settings, url) as (log, store):
        log_to_stderr()  # only now: what is refused before is said in one line
        runner = Runner(log, store, projections, tell=tell)
        with early.ending(), _stopped_by_signals(runner), progress("building") as advance:

            def on_step() -> None:
                building = [kept.progress for kept in runner.kept if kept.progress is not None]
                if advance is not None and building:
                    advance(sum(one.done for one in building), sum(one.total for one in building))

            told: list[bool] = []

            def at_end(all_kept: Sequence[KeptUp]) -> None:
                for kept in all_kept:
                    _show_kept(kept, output)
                    told.append(kept.standing == "folding" and not kept.stopped)

            if not once:
                runner.run(on_step)
            else:
                runner.run_once(on_step, at_end=at_end)
    return all(told)


def _show_kept(kept: KeptUp, output: Output) -> None:
    if output.json:
        output.object(
            {
                "projection": kept.projection.name,
                "standing": kept.standing,
                "error": None if kept.error is None else str(kept.error),
                "stopped": [
                    {key: one.fields[key] for key in ("topic", "partition", "offset", "event")}
                    | {"error": one.fields["cause"]}
                    for one in kept.stopped
                ],
            }
        )
        return
    from rich.text import Text

    name = kept.projection.name
    if kept.standing == "folding" and not kept.stopped:
        output.console.print(Text(escape(f"{name} holds all there was"), "green"))
    firsts = {error.cause: error for error in reversed(kept.stopped)}
    for error in reversed(firsts.values()):
        more = sum(other.cause == error.cause for other in kept.stopped) - 1
        told = f"{error.message}. So it is in {render.count(more, 'more partition')}" if more else error.message
        output.console.print(Text(escape(told), "bold red"))
    if kept.standing != "folding":
        known = {"waiting": "another process builds it", "outdated": "newer code has built it"}
        why = known.get(kept.standing, str(kept.error))
        output.console.print(Text(escape(f"{name} is not kept up: {why}"), "bold red"))


@contextmanager
def _stopped_by_signals(runner: Runner) -> Generator[None]:
    """Stop after the chunk it is at; a second signal ends the process, and what is not committed never counts."""
    numbers = (signal.SIGTERM, signal.SIGINT)

    def stop(number: int, frame: FrameType | None) -> None:
        runner.stop()
        for one in numbers:
            signal.signal(one, signal.SIG_DFL)

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _showing(advance: Advance | None) -> OnProgress | None:
    """Return what moves a bar, if somebody sees it."""
    return None if advance is None else lambda now: advance(now.done, now.total)


def rebuild_all(settings: Settings, projections: Sequence[Projection], url: str | None, output: Output) -> None:
    """Build each anew and swap it in. Raises: ProjectionStopped: an event could not be applied."""
    with _opened(settings, url) as (log, store):
        for one in projections:
            with progress(f"building {one.name}") as advance:
                built = rebuild(log, store, one, _showing(advance), jobs=cores(), url=url)
            if output.json:
                output.object(asdict(built))
            else:
                told = f"{built.projection} was built of {render.count(built.records, 'record')}, as generation"
                output.console.print(f"{escape(told)} {built.generation}")


def remove_one(settings: Settings, name: str, url: str | None, output: Output) -> None:
    """Remove a projection. Raises: Misuse: it is the engine's own. ProjectionError: there is none, or it is in use."""
    if name == NAME:
        raise Misuse(f"{NAME!r} is the engine's own projection, and every worker builds it anew")
    with _opened(settings, url) as (_, store):
        try:
            check_name(name)
        except ProjectionError as error:
            raise Misuse(error.message) from error
        if name not in store.names():
            raise ProjectionError(f"there is no projection {name!r} in {store.url}", projection=name, store=store.url)
        with store.building(name, wait=False) as held:
            if not held:
                told = f"projection {name!r} in {store.url} is being built by another process: end that first"
                raise ProjectionError(told, projection=name, store=store.url)
            count = len(store.generations(name))
            store.remove(name)
    if output.json:
        output.object({"projection": name, "generations": count})
    else:
        output.console.print(escape(f"{name} was removed: {render.count(count, 'generation')}"))


# --- verifying --------------------------------------------------------------------------------------------------------


def verify_all(settings: Settings, projections: Sequence[Projection], url: str | None, output: Output) -> bool:
    """Compare each with a fresh fold; return whether all are alike."""
    alike = True
    with _opened(settings, url) as (log, store):
        for one in projections:
            with progress(f"verifying {one.name}") as advance:
                verdict = verify(log, store, one, _showing(advance))
            alike = alike and verdict.difference is None
            _show_verdict(verdict, output)
    return alike


def _show_verdict(verdict: Verdict, output: Output) -> None:
    difference = verdict.difference
    if output.json:
        members = asdict(verdict) | {"difference": None if difference is None else _difference(difference)}
        output.object(members)
        return
    from rich.text import Text

    what = f"{render.count(verdict.records, 'record')}, {render.count(verdict.tables, 'table')}"
    rows = render.count(verdict.rows, "row")
    if verdict.stopped:
        where = render.count(verdict.stopped, "partition")
        told = f"{verdict.projection} stands before an event in {where}: what comes from there on is in neither"
        output.console.print(Text(escape(told), "bold red"))
    if difference is None:
        told = f"{verdict.projection}: {what}, {rows}: all as a fresh fold has it"
        output.console.print(Text(escape(told), "green"))
        return
    output.console.print(Text(escape(f"{verdict.projection}: {difference.reason}"), "bold red"))
    facts = Facts()
    facts.add("table", escape(difference.table))
    if difference.key:
        facts.add("key", _row(difference.key))
    if difference.stored is not None or difference.fresh is not None:  # else it is of the table, as the reason says
        facts.add("stored", _row(difference.stored))
        facts.add("fresh", _row(difference.fresh))
    facts.show(output.console)


def _row(row: Mapping[str, Any] | None) -> str:
    return "no row" if row is None else escape(", ".join(f"{column}={value!r}" for column, value in row.items()))


def _difference(difference: Difference) -> dict[str, Any]:
    return {
        "table": difference.table,
        "key": _plain(difference.key),
        "stored": None if difference.stored is None else _plain(difference.stored),
        "fresh": None if difference.fresh is None else _plain(difference.fresh),
        "reason": difference.reason,
    }


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON has them, and as text what it has not."""
    plain = (str, int, float, bool, type(None))
    return {column: value if type(value) in plain else str(value) for column, value in row.items()}
