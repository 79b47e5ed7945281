"""The engine's own log records: making one never changes what the engine does (docs/guides/logging.md).

Handlers, filters and record factories are the user's: a handler that sends records to a server raises when that is away.
The engine says what happens in the midst of what it has to do (an append failed, so its callers are told), and whatever is
raised by that would come between. A body's and an activity's own records are not made here: those are the user's code.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Mapping
from typing import ClassVar, Final

_FRAMES: Final = 3
"""From where logging looks for its caller: the record is of whoever called the method here."""


class EngineLog:
    """A logger whose calls never raise, but for an interrupt of the process. The first that fails is told on standard error."""

    __slots__ = ("_logger",)

    told: ClassVar[bool] = False
    """Whether this process has told that making a record failed."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def info(self, message: str, *given: object, extra: Mapping[str, object] | None = None) -> None:
        self._make(logging.INFO, message, given, extra)

    def warning(
        self, message: str, *given: object, extra: Mapping[str, object] | None = None, exc_info: object = None
    ) -> None:
        self._make(logging.WARNING, message, given, extra, exc_info)

    def error(
        self, message: str, *given: object, extra: Mapping[str, object] | None = None, exc_info: object = None
    ) -> None:
        self._make(logging.ERROR, message, given, extra, exc_info)

    def exception(self, message: str, *given: object, extra: Mapping[str, object] | None = None) -> None:
        """Tell of the error that is being handled, too."""
        self._make(logging.ERROR, message, given, extra, True)

    def critical(self, message: str, *given: object, extra: Mapping[str, object] | None = None) -> None:
        self._make(logging.CRITICAL, message, given, extra)

    def _make(
        self,
        level: int,
        message: str,
        given: tuple[object, ...],
        extra: Mapping[str, object] | None,
        exc_info: object = None,
    ) -> None:
        try:
            self._logger.log(level, message, *given, extra=extra, exc_info=exc_info, stacklevel=_FRAMES)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] -- whatever it is
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a CancelledError would end the task that logs
            _tell(message, error)


def _tell(message: str, error: BaseException) -> None:
    """Say once that records are lost, where logging itself says so of its handlers."""
    if EngineLog.told or not logging.raiseExceptions:
        return
    EngineLog.told = True
    with contextlib.suppress(Exception):  # there is nobody left to tell
        sys.stderr.write(
            f"gasoline_es: logging raised {type(error).__name__} at {message!r}: this record may be lost, and more; that is "
            f"said once. Mend the handler or filter that raises\n"
        )
