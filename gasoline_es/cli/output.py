"""Where answers go: tables on a terminal, one JSON object a line with ``--json`` or when piped (api.md)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson

from gasoline_es.cli.escape import escape_json

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH_PIPED: Final = 120
"""Columns of text that goes elsewhere than to a terminal, unless COLUMNS says otherwise."""


class Output:
    """Standard output in the form that was asked for. ``json`` says which; None given: text exactly on a terminal."""

    def __init__(self, as_json: bool | None) -> None:
        self.json: Final = not sys.stdout.isatty() if as_json is None else as_json
        self.json_wanted: Final = as_json is True
        """Whether ``--json`` was given: for what is as useful in a pipe as it is on a terminal."""
        self._console: Console | None = None

    def object(self, members: Mapping[str, Any]) -> None:
        """Write one JSON object as a line. Values may be ``orjson.Fragment``: JSON text taken over as it is."""
        self.raw(orjson.dumps(members))

    def raw(self, line: bytes) -> None:
        """Write JSON text as a line, in UTF-8 whatever the locale."""
        text = line.decode()
        safe = escape_json(text)
        sys.stdout.buffer.write((line if safe is text else safe.encode()) + b"\n")

    @property
    def console(self) -> Console:
        """For text: prints renderables; plain strings are never read as markup, nor highlighted."""
        if self._console is None:
            self._console = make_console(stderr=False)
        return self._console


def make_console(*, stderr: bool) -> Console:
    """Return a console on standard output or error that takes what it prints literally."""
    from rich.console import Console

    class QuietConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # for whoever handles it for JSON too; rich would exit here

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _WIDTH_PIPED
    return QuietConsole(file=stream, width=width, markup=False, emoji=False, highlight=False)


class Facts:
    """Labelled lines: a label stands in a column of its own, so that no value can look like another line."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, str, str]] = []

    def add(self, label: str, value: str, style: str = "") -> None:
        """Add a line. An empty label goes on with the one above."""
        self._lines.append((label, value, style))

    def show(self, console: Console) -> None:
        """Print the lines, values that are too long folded within their column."""
        from rich.text import Text

        indent = max(len(label) for label, _, _ in self._lines) + 2
        for label, value, style in self._lines:
            head = Text(label.ljust(indent), "bold")
            for part in Text(value, style).wrap(console, max(console.width - indent, 10), overflow="fold") or [Text()]:
                part.rstrip()
                console.print(head.append(part), overflow="fold")
                head = Text(" " * indent)


def fragment(raw: bytes | None) -> Any:
    """Return recorded JSON text as a value of an object to write; None is null."""
    return None if raw is None else orjson.Fragment(raw)
