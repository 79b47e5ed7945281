"""A persistence module for the ``eventsourcing`` package: its applications, projections and decisions on logs of this library.

Chosen by the environment, as any other: ``PERSISTENCE_MODULE=gasoline_es.persistence``, and ``GASOLINE_LOG`` for the URL of the
log. See the guide "Use eventsourcing with gasoline_es".
"""

from gasoline_es.persistence.decisions import GasolineDCBRecorder, GasolineDCBSubscription
from gasoline_es.persistence.factory import GasolineFactory
from gasoline_es.persistence.histories import WorkflowEvent, WorkflowHistory, workflow_histories, workflow_history
from gasoline_es.persistence.recorders import (
    GasolineAggregateRecorder,
    GasolineApplicationRecorder,
    GasolineProcessRecorder,
    GasolineTrackingRecorder,
)
from gasoline_es.persistence.subscriptions import GasolineSubscription

Factory = GasolineFactory
"""The name by which ``eventsourcing`` itself calls such classes."""

__all__ = [
    "Factory",
    "GasolineAggregateRecorder",
    "GasolineApplicationRecorder",
    "GasolineDCBRecorder",
    "GasolineDCBSubscription",
    "GasolineFactory",
    "GasolineProcessRecorder",
    "GasolineSubscription",
    "GasolineTrackingRecorder",
    "WorkflowEvent",
    "WorkflowHistory",
    "workflow_histories",
    "workflow_history",
]
