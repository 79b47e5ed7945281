"""Subscriptions: what is recorded, in order, and what any process records from then on."""

from __future__ import annotations

from collections.abc import Sequence

from eventsourcing.persistence import ListenNotifySubscription

from gasoline_es.persistence.recorders import GasolineApplicationRecorder


class GasolineSubscription(ListenNotifySubscription[GasolineApplicationRecorder]):
    """An iterator of notifications, which blocks where there are no more yet. Raises from it: OperationalError of the log."""

    def __init__(
        self, recorder: GasolineApplicationRecorder, gt: int | None = None, topics: Sequence[str] = ()
    ) -> None:
        super().__init__(recorder=recorder, gt=gt, topics=topics)
        self._recorder.listen(self._has_been_notified)
        self._has_been_notified.set()  # of what came before it listened, and after the first look

    def stop(self) -> None:
        """End it, from any thread."""
        super().stop()
        self._recorder.unlisten(self._has_been_notified)
