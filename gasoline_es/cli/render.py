"""Pieces of text: times, durations, counts, payloads and tags, all safe to show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gasoline_es.cli.escape import escape, escape_json
from gasoline_es.core.durations import MICROSECONDS, format_time
from gasoline_es.core.events import ErrorInfo, WorkflowSuspended
from gasoline_es.core.state import Summary

CHARACTERS_MAX: Final = 400
"""So many characters of a payload, an error or tags are shown unless all were asked for."""
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400

STYLES: Final[Mapping[str, str]] = {
    "running": "blue",
    "sleeping": "cyan",
    "complete": "green",
    "cancelled": "yellow",
    "silenced": "dim",
    "dead": "bold red",
    "unreadable": "bold magenta",
}


def moment(us: int) -> str:
    """Write a wall time to the millisecond, in RFC 3339 and UTC: it can be given back as ``--since``."""
    return f"{format_time(us)[:-4]}Z"


def second(us: int) -> str:
    """Write a wall time to the second, in RFC 3339 and UTC."""
    return f"{format_time(us)[:19]}Z"


def duration(us: int) -> str:
    """Write a duration by its two largest parts: ``0.203 s``, ``4 min 7 s``, ``3 d 2 h``."""
    seconds = max(us, 0) / MICROSECONDS
    if seconds < _MINUTE_S:
        return f"{seconds:.3f} s" if seconds < 10 else f"{seconds:.1f} s"
    whole = int(seconds)
    for unit_s, unit, part_s, part in (
        (_DAY_S, "d", _HOUR_S, "h"),
        (_HOUR_S, "h", _MINUTE_S, "min"),
        (_MINUTE_S, "min", 1, "s"),
    ):
        if whole >= unit_s:
            return f"{whole // unit_s} {unit} {whole % unit_s // part_s} {part}"
    raise AssertionError(seconds)


def age(us: int) -> str:
    """Write how long ago something was, in at most four characters: ``12s``, ``3h``, ``17d``."""
    seconds = max(us, 0) // MICROSECONDS
    for unit_s, unit in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "m")):
        if seconds >= unit_s:
            return f"{seconds // unit_s}{unit}"
    return f"{seconds}s"


def count(number: int, noun: str) -> str:
    """Write a number of things: ``1 signal``, ``1,234 signals``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def payload(raw: bytes, *, full: bool) -> str:
    """Show recorded JSON text; cut after a few lines unless ``full``."""
    text = raw.decode(errors="backslashreplace")
    shown, left_out = _cut(text, full)
    return escape_json(shown) + left_out


def tags(given: Mapping[str, str], *, full: bool = False) -> str:
    """Show tags in order of their names; cut unless ``full``."""
    shown, left_out = _cut(" ".join(f"{name}={value}" for name, value in sorted(given.items())), full)
    return escape(shown) + left_out


def error(info: ErrorInfo, *, full: bool = False) -> str:
    """Show an error's type and message on one line; cut unless ``full``."""
    shown, left_out = _cut(str(info), full)
    return escape(shown) + left_out


def _cut(text: str, full: bool) -> tuple[str, str]:
    if full or len(text) <= CHARACTERS_MAX:
        return text, ""
    return text[:CHARACTERS_MAX], f" … ({len(text):,} characters; --full shows all)"


def waiting(suspended: WorkflowSuspended) -> str:
    """Say what wakes a sleeping workflow: ``waits for signal paid until …``."""
    until = "" if suspended.deadline_us is None else f" until {moment(suspended.deadline_us)}"
    what = str(suspended)
    return f"waits{until}" if what == "time" else escape(f"waits for {what}{until}")


def note(summary: Summary) -> str:
    """Say the one thing about a workflow beside its status that an operator looks for."""
    if summary.error is not None:
        return error(summary.error)
    return waiting(summary.waiting) if summary.waiting is not None else ""
