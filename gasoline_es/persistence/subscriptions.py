"""Subscriptions: what is recorded, in order, and what any process records from then on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, TypeVar

from eventsourcing.persistence import ApplicationRecorder, ListenNotifySubscription

from gasoline_es.persistence.lease import Leased

R = TypeVar("R", bound=ApplicationRecorder)


class Listening:
    """What a subscription of the package needs to hear of news at once. A base that comes before the package's own class."""

    _has_been_notified: threading.Event
    _has_been_stopped: bool
    _listens_to: Leased[Any] | None = None

    def _listen(self, recorder: object) -> None:
        """Hear of what this recorder has, from here on. It was looked at once already, maybe before that."""
        assert isinstance(recorder, Leased)
        self._listens_to = recorder
        recorder.listen(self._has_been_notified)
        self._has_been_notified.set()
        if self._has_been_stopped:  # by its own thread, which began before this, and met an error
            recorder.unlisten(self._has_been_notified)

    def stop(self) -> None:
        """End it, from any thread."""
        super().stop()  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue,reportUnknownMemberType] -- the package's
        if self._listens_to is not None:
            self._listens_to.unlisten(self._has_been_notified)


class GasolineSubscription(Listening, ListenNotifySubscription[R]):
    """An iterator of notifications, which blocks where there are no more yet. Raises from it: OperationalError of the log."""

    def __init__(self, recorder: R, gt: int | None = None, topics: Sequence[str] = ()) -> None:
        super().__init__(recorder=recorder, gt=gt, topics=topics)
        self._listen(recorder)
