"""``gasoline replay-check``: what recorded histories would do in the code that is about to be shipped."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gasoline_es.cli.failures import NOT_FOUND, Failure, Misuse
from gasoline_es.cli.progress import progress
from gasoline_es.cli.settings import Settings
from gasoline_es.cli.typed import Json

if TYPE_CHECKING:
    from gasoline_es.checking.code import Code
    from gasoline_es.checking.histories import Source
    from gasoline_es.checking.ledger import CallSite
    from gasoline_es.checking.report import Finding, Report
    from gasoline_es.cli.output import Output

_IDS_SHOWN_MAX: Final = 5


def replay_check(
    context: typer.Context,
    module: Annotated[
        str,
        typer.Argument(
            metavar="MODULE",
            help="The code: shop.orders, shop/orders.py, or shop.orders:fulfil,ship for some of its workflows.",
            show_default=False,
        ),
    ],
    log: Annotated[
        str | None,
        typer.Option("--log", metavar="URL", help="The log, if none was named before.", show_default=False),
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Instead of a log, what `log dump` wrote of its events (.jsonl, .jsonl.gz).",
            show_default=False,
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Only N histories: the same ones each time.", show_default=False),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Processes; without it one for each core, or one for a small log.",
            show_default=False,
        ),
    ] = None,
    removable: Annotated[
        bool,
        typer.Option(
            "--removable", help="Also show which ctx.v, removed and check_version calls nothing needs any more."
        ),
    ] = False,
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="Only histories that can still run: not complete, not cancelled.")
    ] = False,
    json: Json = None,
) -> None:
    """Replay every recorded history in the code of a module, and name those that would diverge in it.

    Nothing is run but the workflows' bodies: no activity, no timer, no signal; nothing is written. Workflows under way
    must come to where they wait, complete ones to their return, dead ones through what is recorded. For each that does
    not, it says where, what is recorded, what the code has, and what to write.

    \b
    Examples:
      gasoline --log file:./data replay-check shop.orders
      gasoline log dump --topic events | gzip > events.jsonl.gz
      gasoline replay-check shop/orders.py --from events.jsonl.gz
      gasoline replay-check shop.orders --removable
      gasoline replay-check shop.orders --incomplete

    Exit status: 0 all replay; 1 some diverge, or cannot be read; 2 used wrongly.

    \b
    JSON, told apart by the key kind:
      diverged, latent, misused, raises, goes_on (it diverges), output_differs,
        output_type, raises_at_end (a warning), unreadable: workflow_id, name,
        status, error, location, recorded, found, file, line, fix, message
      not_in_module: name, histories
      site (with --removable): verb, call, file, line, line_end, needed_by,
        removable ("call", "old_way" or null)
      summary: histories, replayed, partly, diverged, warnings, unreadable,
        not_in_module, silenced, unsure (with --removable), left_out (with
        --incomplete)
    """
    from gasoline_es.checking.check import Wish
    from gasoline_es.checking.code import Code, CodeRefused
    from gasoline_es.cli.output import Output

    settings = context.find_object(Settings)
    assert settings is not None
    if removable and sample is not None:
        raise Misuse("--removable needs every history, so it cannot go with --sample")
    if incomplete and sample is not None:
        raise Misuse("--incomplete needs every history, to know which are over, so it cannot go with --sample")
    if from_ is not None and log is not None:
        raise Misuse("give the histories by --log or by --from, not by both")
    output = Output(json)
    try:
        code = Code.parse(module)
        source = (
            _file(from_, settings)
            if from_ is not None
            else _log(settings if log is None else replace(settings, log=log))
        )
        report = _check(code, source, jobs, Wish(sample, removable, incomplete))
    except CodeRefused as refused:
        raise Misuse(str(refused)) from refused
    _write(report, output)
    if report.damages:
        more = f" (and {len(report.damages) - 1} more)" if len(report.damages) > 1 else ""
        raise Failure(f"{report.damages[0]}{more}. What could be read was checked")
    if not report.ok:
        sys.stdout.flush()
        raise typer.Exit(NOT_FOUND)


def _file(path: Path, settings: Settings) -> Source:
    from gasoline_es.checking.histories import FileSource

    if not path.is_file():
        raise Misuse(f"--from {path}: there is no such file")
    return FileSource(str(path), settings.namespace)


def _log(settings: Settings) -> Source:
    from gasoline_es.checking.histories import LogSource
    from gasoline_es.cli.reading import DEFAULT_NAMESPACE, require_namespace

    namespace = settings.namespace or DEFAULT_NAMESPACE
    require_namespace(settings, namespace)
    return LogSource(settings.url, namespace)


def _check(code: Code, source: Source, jobs: int | None, wish: Any) -> Report:
    from gasoline_es.checking.check import check_here, check_in_processes, jobs_for

    workflows = code.load()  # before anything is read: what is wrong with it should be said at once
    count = jobs_for(source) if jobs is None else jobs
    with progress("replaying") as advance:
        if count == 1:
            return check_here(workflows, source, wish, advance)
        return check_in_processes(code, source, count, wish, advance)


# --- what is shown ----------------------------------------------------------------------------------------------------


def _summary(report: Report) -> dict[str, Any]:
    members: dict[str, Any] = {
        "histories": report.histories,
        "replayed": report.replayed,
        "partly": report.partly,
        "diverged": len(report.divergences),
        "warnings": len(report.warnings),
        "unreadable": len(report.unreadable),
        "not_in_module": report.not_in_module.total(),
        "silenced": report.silenced,
    }
    if report.observed is not None:
        members["unsure"] = report.observed.unsure
    if report.left_out is not None:
        members["left_out"] = report.left_out
    return members


def _write(report: Report, output: Output) -> None:
    if not output.json:
        _show(report, output)
        return
    for finding in (*report.divergences, *report.warnings, *report.unreadable):
        output.object(asdict(finding))
    for name, count in sorted(report.not_in_module.items()):
        output.object({"kind": "not_in_module", "name": name, "histories": count})
    for site in report.sites:
        output.object({"kind": "site", **asdict(site)})
    output.object({"kind": "summary", **_summary(report)})


def _show(report: Report, output: Output) -> None:
    from rich.text import Text

    from gasoline_es.cli.escape import escape
    from gasoline_es.cli.render import count

    console = output.console
    for findings, style in ((report.divergences, "red"), (report.unreadable, "red"), (report.warnings, "yellow")):
        for cause in _causes(findings):
            _show_cause(cause, style, output)
    for name, number in sorted(report.not_in_module.items()):
        console.print(Text(escape(f"not in module: {count_of(number)} of {name}"), "dim"))
    if report.observed is not None:
        _show_sites(report, output)
    told = f"{report.replayed:,} of {count_of(report.histories)} replay"
    if report.partly:
        told += f", {report.partly:,} of them only up to a step that was inserted"
    if report.left_out:
        told += f"; {report.left_out:,} more {'is' if report.left_out == 1 else 'are'} over and left out"
    if report.silenced:
        told += f"; {report.silenced:,} more {'is' if report.silenced == 1 else 'are'} silenced and left out"
    bad = [
        f"{len(findings):,} {what}"
        for findings, what in ((report.divergences, "diverge"), (report.unreadable, "cannot be read"))
        if findings
    ]
    if report.warnings:
        bad.append(count(len(report.warnings), "warning"))
    console.print(Text("; ".join([told, *bad]), "green" if report.ok else "bold red"))


def count_of(number: int) -> str:
    """Say how many histories."""
    return f"{number:,} history" if number == 1 else f"{number:,} histories"


def _causes(findings: list[Finding]) -> list[list[Finding]]:
    """Group what has one cause: one place of the code and of the history, and the same said of it."""
    causes: dict[tuple[object, ...], list[Finding]] = {}
    for one in findings:
        key = (one.kind, one.name, one.file, one.line, one.location, one.recorded if one.fix else one.kind, one.found)
        causes.setdefault(key if one.file else (one.workflow_id,), []).append(one)
    return list(causes.values())


def _show_cause(cause: list[Finding], style: str, output: Output) -> None:
    from rich.text import Text

    from gasoline_es.cli.escape import escape
    from gasoline_es.cli.output import Facts

    first = cause[0]
    head = f"{first.kind}  {first.name}"
    output.console.print(Text(escape(f"{head}, {count_of(len(cause))}" if len(cause) > 1 else head), f"bold {style}"))
    facts = Facts()
    if first.location:
        facts.add("  at", first.location)
    if first.recorded:
        facts.add("  recorded", escape(first.recorded))
    if first.found:
        facts.add("  code has", escape(first.found))
    if first.file:
        facts.add("  in", escape(f"{_from_here(first.file)}:{first.line}"))
    if not first.fix:
        facts.add("  reason", escape(first.message))
    else:
        facts.add("  to mend", escape(first.fix))
    for number, one in enumerate(cause[:_IDS_SHOWN_MAX]):
        facts.add("  " if number else "  workflows", escape(one.workflow_id))
    if len(cause) > _IDS_SHOWN_MAX:
        facts.add("  ", f"… and {len(cause) - _IDS_SHOWN_MAX:,} more; --json names all")
    facts.show(output.console)
    output.console.print()


def _show_sites(report: Report, output: Output) -> None:
    from rich.table import Table
    from rich.text import Text

    from gasoline_es.cli.escape import escape

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("CALL", "PLACE", "NEEDED BY", "MAY GO"):
        table.add_column(column, overflow="fold")
    for site in report.sites:
        table.add_row(
            Text(escape(site.call)),
            Text(escape(f"{Path(site.file).name}:{site.line}")),
            Text(f"{site.needed_by:,}"),
            Text(_may_go(site), "green" if site.removable else "dim"),
        )
    output.console.print(table)
    assert report.observed is not None
    if report.observed.unsure:
        told = f"{count_of(report.observed.unsure)} could not be replayed to where they wait, and may need any of these"
        output.console.print(Text(told, "yellow"))
    output.console.print()


def _may_go(site: CallSite) -> str:
    return {"call": "the call", "old_way": "the way below its version", None: "no"}[site.removable]


def _from_here(file: str) -> str:
    """A file as one names it here: from the current directory, if it is below that."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return file
