"""Errors as data that always fits into a record, whatever they say (design §6; semantics.md §12).

The one place where an error becomes what is recorded, so that no event is kept out of the log by the text of its error: a
body that raises a novel, or a file name that is not UTF-8, is rolled back like any other.
"""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Any, Final, cast

import orjson

from gasoline_es.core import events as ev

ERROR_BYTES_MAX: Final = 100_000
"""An error's message, traceback and details take at most this as JSON, each; a record holds ten times that."""
TYPE_BYTES_MAX: Final = 500
"""The same of the name of its class."""
PACKAGE: Final = __file__.rpartition("core")[0]
"""What the names of this library's own files begin with."""


def error_info(error: BaseException) -> ev.ErrorInfo:
    """Turn an exception into data, with its traceback as text. The message of a group names the first few errors in it.

    Never raises but for an interrupt of the process: what an error's own methods raise is told in its text. Cut to fit
    into a record: ERROR_BYTES_MAX.
    """
    return shortened(ev.ErrorInfo(_type_of(error), _message_of(error), _traceback_of(error)))


def shortened(error: ev.ErrorInfo, bytes_max: int = ERROR_BYTES_MAX) -> ev.ErrorInfo:
    """Cut an error so that it fits into a record, whatever it says. ``bytes_max``: of each of its three long parts."""
    limit = min(bytes_max, ERROR_BYTES_MAX)
    details = error.details if error.details is None or len(error.details) <= limit else None
    return ev.ErrorInfo(
        _cut(error.type, TYPE_BYTES_MAX), _cut(error.message, limit), _cut(error.traceback, limit), details
    )


def _cut(text: str, limit: int) -> str:
    """Cut a text to so many bytes of JSON: a control character takes six of them, other planes' characters four."""
    if len(text) > limit:  # at least a byte each
        text, whole = text[:limit], False
    else:
        whole = True
    # Lone surrogates (from undecodable file names, say) cannot be written as JSON.
    text = text.encode("utf-8", "backslashreplace").decode()
    size = len(orjson.dumps(text))
    if whole and size <= limit:
        return text
    while size > limit - 20 and text:
        text = text[: max(len(text) * (limit - 20) // size, 0)]
        size = len(orjson.dumps(text))
    return f"{text}… (cut)"


def _type_of(error: BaseException) -> str:
    try:
        return str.__str__(type(error).__qualname__)  # a metaclass may give anything
    except Exception:
        return "Exception"


def _message_of(error: BaseException) -> str:
    message = text_of(error)
    if not isinstance(error, BaseExceptionGroup):
        return message
    try:
        errors = cast("BaseExceptionGroup[BaseException]", error).exceptions
        named = [f"{_type_of(one)}: {text_of(one)[:_NAMED_CHARACTERS_MAX]}" for one in errors[:_NAMED_MAX]]
        if len(errors) > len(named):
            named.append(f"and {len(errors) - len(named)} more")
    except Exception as broken:
        named = [f"(its errors cannot be shown: {_type_of(broken)})"]
    return f"{message}: {'; '.join(named)}"


def text_of(error: BaseException) -> str:
    """Return an error's text, whatever its ``__str__`` does."""
    try:
        return str.__str__(str(error))  # not an instance of a subclass, whose methods are somebody's
    except BaseException as broken:  # also a SystemExit: the error is the user's, and must not end the process
        return f"(its text cannot be shown: {_type_of(broken)})"


def traceback_in(error: BaseException) -> TracebackType | None:
    """Return where an error came from, whatever its class makes of ``__traceback__``."""
    found: TracebackType | None = _TRACEBACK.__get__(error)
    return found


def _traceback_of(error: BaseException) -> str:
    try:
        shown = traceback.TracebackException.from_exception(error, limit=-50)
        _keep_users_frames(shown)
        return "".join(shown.format())
    except BaseException as broken:
        return f"(its traceback cannot be shown: {_type_of(broken)})"


def _keep_users_frames(shown: traceback.TracebackException | None) -> None:
    """Leave out the engine's own frames: they are the same for every error, and hide the author's line."""
    while shown is not None:
        kept = [frame for frame in shown.stack if not frame.filename.startswith(PACKAGE)]
        shown.stack = traceback.StackSummary.from_list(kept)
        shown = shown.__cause__ or shown.__context__


_TRACEBACK: Final[Any] = BaseException.__dict__["__traceback__"]
_NAMED_MAX: Final = 3
"""So many errors of a group are named in its message, each by at most so many characters of its text."""
_NAMED_CHARACTERS_MAX: Final = 300
