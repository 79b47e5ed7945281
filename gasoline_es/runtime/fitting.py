"""What fits into a record: anything else is refused before something is recorded, and errors are cut, also for log lines."""

from __future__ import annotations

import orjson

from gasoline_es.core import events as ev
from gasoline_es.errors import RecordTooLarge
from gasoline_es.log.port import RECORD_BYTES_MAX

LINE_BYTES_SPARE = 1_000
"""What a record's line holds beside its value: topic, partition, offset, key and time, generously."""


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


LOGGED_CHARACTERS_MAX = 500


def in_a_line(error: ev.ErrorInfo) -> str:
    """Show an error in a log line: cut, and with nothing in it that could forge a line or move a cursor."""
    text = str(error)
    cut = text[:LOGGED_CHARACTERS_MAX]
    shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in cut)
    return shown if len(cut) == len(text) else f"{shown}… (cut)"


ERROR_BYTES_MAX = 100_000
"""An error's message, traceback and details take at most this as JSON, each: an error must always fit into a record."""
ERROR_BYTES_LEAST = 1_000
"""Where there is less room than that, an error is left out."""


def shortened(error: ev.ErrorInfo, bytes_max: int = ERROR_BYTES_MAX) -> ev.ErrorInfo:
    """Cut an error so that it fits into a record, whatever it says. ``bytes_max``: of each of its three long parts."""
    limit = min(bytes_max, ERROR_BYTES_MAX)
    details = error.details if error.details is None or len(error.details) <= limit else None
    return ev.ErrorInfo(_cut(error.type, 500), _cut(error.message, limit), _cut(error.traceback, limit), details)


def _cut(text: str, limit: int) -> str:
    """Cut a text to so many bytes of JSON: a control character takes six of them, other planes' characters four."""
    # Lone surrogates (from undecodable file names, say) cannot be written as JSON.
    text = text.encode("utf-8", "backslashreplace").decode()
    size = len(orjson.dumps(text))
    if size <= limit:
        return text
    kept = text[:limit]
    while (size := len(orjson.dumps(kept))) > limit - 20:
        kept = kept[: len(kept) * (limit - 20) // size]
    return f"{kept}… (cut)"
