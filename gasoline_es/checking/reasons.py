"""What the errors of a replay say, taken apart: place, what is recorded, what the code has, what to write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from gasoline_es.core.history import Entry, History, RemovedEntry, SignalsEntry, VersionEntry, sleep_of
from gasoline_es.core.location import parse_location
from gasoline_es.core.strand import place_of
from gasoline_es.definitions import Workflow
from gasoline_es.errors import GasolineError, HistoryDiverged, LatentHistoryFound

_UNCHANGED: Final = "Nothing was changed in the history"
_READ_THE_OLD_FORM: Final = "Give the type a default or a validator that reads the old form."


@dataclass(frozen=True, slots=True)
class Place:
    """Where the error arose: in the history, and in the code."""

    location: str
    found: str
    file: str
    line: int
    message: str


def placed(error: BaseException | None, definition: Workflow[Any, Any]) -> Place:
    """Say where an error arose, and what the code has there."""
    fields = error.fields if isinstance(error, GasolineError) else {}
    message = error.message if isinstance(error, GasolineError) else f"{type(error).__name__}: {error}"
    if isinstance(error, HistoryDiverged):
        return Place(fields["location"], fields["attempted"], fields["file"], fields["line"], message)
    if isinstance(error, LatentHistoryFound):
        return Place(fields["locations"][0], "the return", definition.file, definition.line, message)
    file, line = str(fields.get("file", "")), int(fields.get("line", 0))
    if not file and error is not None:
        file, line = place_of(error)
    return Place(str(fields.get("location", "")), "", file or definition.file, line or definition.line, message)


def recorded(error: BaseException | None) -> str:
    """Say what is recorded where the code differs."""
    if isinstance(error, HistoryDiverged):
        return str(error.fields["recorded"])
    if isinstance(error, LatentHistoryFound):
        return "; ".join(error.fields["recorded"])
    return ""


def advice(error: BaseException | None, history: History) -> str:
    """Say what to write, as the error's own message does."""
    if isinstance(error, LatentHistoryFound):
        lines: list[str] = []
        before: Entry | None = None
        for text in error.fields["locations"]:
            entry = history.at(parse_location(text))
            # A timed listen has two places, and one `removed` passes both.
            sleep = sleep_of(before)
            taken = isinstance(entry, SignalsEntry) and sleep is not None and sleep.outcome == "interrupted"
            if entry is not None and not taken:
                lines.append(f"`{_put_back(entry)}`")
            before = entry
        return f"Put the steps back, or write {', '.join(lines)} where each was deleted."
    if not isinstance(error, HistoryDiverged):
        return ""
    fix = str(error.fields["fix"])
    if fix == "the type":
        return _READ_THE_OLD_FORM
    if fix.startswith("ctx."):
        # The short form, which names a verb: the sentence about it stands behind the place in the message.
        _, _, told = error.message.partition(f"{error.fields['file']}:{error.fields['line']}")
        told = told.partition(_UNCHANGED)[0].partition(". ")[2]
        return told.strip() or fix
    return fix


def _put_back(entry: Entry) -> str:
    if isinstance(entry, VersionEntry):
        return "await ctx.check_version(…)"
    kind, name = entry.removable, entry.name
    if isinstance(entry, RemovedEntry):
        kind, name = entry.removed_kind, entry.removed_name
    return f"await ctx.removed({kind!r}{f', {name!r}' if name is not None else ''})"
