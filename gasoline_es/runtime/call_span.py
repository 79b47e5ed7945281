"""The span of a client's call, as a client sees it: without OpenTelemetry, so that nothing of that is loaded unasked."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self, TypeVar

from gasoline_es.core.commands import Dispatch, SendSignal

C = TypeVar("C", Dispatch, SendSignal)


class CallSpan:
    """No span: nobody asked for any. What there is else is in ``runtime.tracing``."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The call is over, with this error if it failed."""

    def carry(self, command: C) -> C:
        """Return the command with the span's ``traceparent``."""
        return command

    def reached(self, workflow_id: str, signal_id: str | None = None) -> None:
        """Tell which workflow the call came to, by which signal."""


UNTRACED: Final = CallSpan()
