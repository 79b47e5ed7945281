"""A bar on standard error while something long goes on, if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

Advance = Callable[[int, int], None]
"""Told how much of how much is done."""


@contextmanager
def progress(doing: str) -> Generator[Advance | None]:
    """Show a bar for as long as the block lasts; None where nobody would see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from gasoline_es.cli.output import make_console

    columns = (TextColumn(doing), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=make_console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=max(total, 1))
