"""What fits into a record: anything else is refused before something is recorded. And what goes into a log line."""

from __future__ import annotations

from gasoline_es.core import events as ev
from gasoline_es.errors import RecordTooLarge
from gasoline_es.log.port import RECORD_BYTES_MAX

LINE_BYTES_SPARE = 1_000
"""What a record's line holds beside its value: topic, partition, offset, key and time, generously."""
ERROR_BYTES_LEAST = 1_000
"""Where there is less room than that, an error is left out."""
LOGGED_CHARACTERS_MAX = 500


def require_fit(what: str, value: bytes) -> None:
    """Refuse what a record cannot hold. Raises: RecordTooLarge."""
    if len(value) > RECORD_BYTES_MAX - LINE_BYTES_SPARE:
        raise too_large(what, len(value))


def too_large(what: str, size: int, limit: int = RECORD_BYTES_MAX) -> RecordTooLarge:
    """Return the error for an event beyond the limit of a record, or for what takes too much of one."""
    return RecordTooLarge(
        f"{what} takes {size:,} bytes, more than a record may have ({limit:,}). Keep the data elsewhere and "
        f"pass a reference to it",
        size=size,
    )


def in_a_line(error: ev.ErrorInfo) -> str:
    """Show an error in a log line: cut, and with nothing in it that could forge a line or move a cursor."""
    text = str(error)
    cut = text[:LOGGED_CHARACTERS_MAX]
    shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in cut)
    return shown if len(cut) == len(text) else f"{shown}… (cut)"
