"""What the command line says when it cannot do what was asked: one line on stderr, and a status."""

from __future__ import annotations

import os
import re
from typing import Final

from gasoline_es.cli.escape import escape
from gasoline_es.errors import GasolineError

NOT_FOUND: Final = 1
"""Not found, refused, or damaged."""
USED_WRONGLY: Final = 2
BROKEN_PIPE: Final = 141
"""Whoever read the output left early: what a shell shows for a process that SIGPIPE ended."""
TRACEBACK_VARIABLE: Final = "GASOLINE_TRACEBACK"
_PYDANTIC: Final = (
    (re.compile(": Value error, "), ": "),
    (re.compile("Input should be a valid integer(, .*)?"), "a whole number is wanted"),
    (re.compile("Input should be a valid number(, .*)?"), "a number is wanted"),
    (re.compile("Input should be greater than or equal to ([0-9]+)"), r"\1 is the least there may be"),
)
"""What typer has from pydantic, which it may check values with, and what to say instead."""


class Failure(Exception):
    """Ends a command with one line that names what, where and what to do, and an exit status."""

    def __init__(self, message: str, status: int = NOT_FOUND) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class Misuse(Failure):
    """The command line cannot mean anything as it was written."""

    def __init__(self, message: str) -> None:
        super().__init__(message, USED_WRONGLY)


def explain(error: Exception) -> tuple[str, int]:
    """Return the line for stderr, safe to print, and the exit status.

    Raises: the error itself, if it is a mistake of this program and GASOLINE_TRACEBACK is set.
    """
    if isinstance(error, Failure):
        return escape(f"gasoline: {error.message}"), error.status
    if isinstance(error, GasolineError):
        return escape(f"gasoline: {error.message}"), NOT_FOUND
    if isinstance(error, OSError):
        where = f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else ""
        return escape(f"gasoline: {error.strerror or error}{where}"), NOT_FOUND
    usage = _usage(error)
    if usage is not None:
        return usage, USED_WRONGLY
    if os.environ.get(TRACEBACK_VARIABLE):
        raise error
    told = f"a mistake in gasoline itself: {type(error).__name__}: {error}"
    return escape(f"gasoline: {told} (set {TRACEBACK_VARIABLE}=1 to see where)"), NOT_FOUND


def _usage(error: Exception) -> str | None:
    """Return what to say for an error of the parser. Its classes are typer's own or click's, as typer's version has it."""
    told = getattr(error, "format_message", None)
    if told is None:
        return None
    context = getattr(error, "ctx", None)
    path = str(context.command_path) if context is not None else "gasoline"
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(told())
    option = getattr(error, "option_name", None)
    if option in ("--log", "--namespace"):
        value = "URL" if option == "--log" else "NAME"
        return f"gasoline: {option} stands before the command: gasoline {option} {value} {path.partition(' ')[2]} …"
    message = str(told()).replace("\n\t", " ").rstrip(".")
    for pattern, plain in _PYDANTIC:
        message = pattern.sub(plain, message)
    end = "" if message.endswith("?") else "."
    return escape(f"gasoline: {message}{end} See {path} --help")
