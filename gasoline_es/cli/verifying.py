"""``log verify``: every published byte, with a progress bar while somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from gasoline_es.cli.failures import Failure
from gasoline_es.cli.output import Output, make_console
from gasoline_es.cli.reading import namespaces, reading
from gasoline_es.cli.render import count
from gasoline_es.cli.settings import Settings
from gasoline_es.log.port import Problem, SegmentInfo


def verify_log(
    settings: Settings, output: Output, *, checkpoint: Path | None = None, against: Path | None = None
) -> None:
    """Check the log and write what was found. Raises: Failure that names the first place if there is damage.

    ``checkpoint``: where to write a digest of the log, if it is sound. ``against``: one that it is held to.
    """
    before = None if against is None else against.read_bytes()
    names = [settings.namespace] if settings.namespace is not None else list(namespaces(settings))
    problems: list[Problem] = []
    segments: list[SegmentInfo] = []
    # Segments belong to the log and not to a namespace: one look covers all.
    with reading(settings, namespace=names[0] if names else None) as opened:
        info = opened.log.info()
        with _progress(sum(segment.bytes for segment in info.segments)) as advance:
            for found in opened.log.verify():
                if isinstance(found, Problem):
                    problems.append(found)
                    if output.json:
                        output.object({"kind": "problem", **asdict(found)})
                else:
                    segments.append(found)
                    advance(found.bytes)
                    if output.json:
                        output.object({"kind": "segment", **asdict(found)})
        for problem in () if before is None else opened.log.against(before):
            problems.append(problem)
            if output.json:
                output.object({"kind": "problem", **asdict(problem)})
        if checkpoint is not None and not problems:
            _store(checkpoint, opened.log.checkpoint())
        _write_summary(output, segments, problems, info.torn)
    if problems:
        more = f" (and {count(len(problems) - 1, 'other place')})" if len(problems) > 1 else ""
        raise Failure(
            f"{info.url} is damaged: {_place(problems[0])}{more}. It takes no writes; what is sound can still be read: "
            "restore the file from a copy"
        )


def _store(path: Path, data: bytes) -> None:
    """Write a digest. One that is cut off fails its own check."""
    path.write_bytes(data)


def _write_summary(output: Output, segments: list[SegmentInfo], problems: list[Problem], torn: Sequence[str]) -> None:
    size = sum(segment.bytes for segment in segments)
    records = sum(segment.records for segment in segments)
    if output.json:
        totals = {"segments": len(segments), "bytes": size, "records": records, "problems": len(problems)}
        output.object({"kind": "summary", **totals})
        return
    from rich.text import Text

    from gasoline_es.cli.escape import escape

    for problem in problems:
        output.console.print(Text(escape(f"damaged: {_place(problem)}"), "red"))
    for tail in torn:
        output.console.print(Text(escape(f"torn, which is no damage: {tail}"), "yellow"))
    told = f"{count(len(segments), 'segment')}, {count(size, 'byte')}, {count(records, 'record')}"
    verdict = count(len(problems), "problem") if problems else "every byte is as it was written"
    output.console.print(Text(f"{told}: {verdict}", "bold red" if problems else "green"))


def _place(problem: Problem) -> str:
    if problem.segment is None:
        return problem.reason
    return f"segment {problem.segment}, byte {problem.position}: {problem.reason}"


@contextmanager
def _progress(total: int) -> Generator[Callable[[int], None]]:
    """Show a bar on standard error while the block lasts, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=make_console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=max(total, 1))
        yield lambda size: progress.advance(task, size)
