"""Durable workflows as a fold over an append-only log.

What ``__all__`` lists is public, nothing else. Every name loads when it is first asked for: importing the package costs
next to nothing, ``from gasoline_es import activity`` what pydantic costs, and only the engine knows logs and threads.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gasoline_es.lazy import lazily

if TYPE_CHECKING:
    from gasoline_es.activity_context import ActivityContext
    from gasoline_es.context import WorkflowContext
    from gasoline_es.core.events import Event
    from gasoline_es.core.retry import Backoff
    from gasoline_es.core.schedule_info import ScheduleInfo
    from gasoline_es.core.starting_over import RerunInfo
    from gasoline_es.core.steps import Break
    from gasoline_es.definitions import Activity, Prune, Workflow, activity, workflow
    from gasoline_es.engine import Gasoline
    from gasoline_es.errors import (
        ActivityFailed,
        Cancelled,
        GasolineError,
        NotRetryable,
        OperationTimedOut,
        WorkflowCancelled,
        WorkflowFailed,
        WorkflowNotFound,
        WorkflowSilenced,
    )
    from gasoline_es.handles import SignalTo, WorkflowHandle, WorkflowInfo
    from gasoline_es.log_records import WorkflowLogFilter
    from gasoline_es.messages import Message, Received
    from gasoline_es.operating import OperationContext
    from gasoline_es.operations import Operation, operation
    from gasoline_es.outcomes import Failed, Ok
    from gasoline_es.pruning import PruneInfo
    from gasoline_es.reviving import ReviveInfo
    from gasoline_es.scheduling import ScheduleHandle
    from gasoline_es.sending import SubWorkflow
    from gasoline_es.signals import Signal
    from gasoline_es.subscribing import Subscription
    from gasoline_es.sync import SyncGasoline, SyncScheduleHandle, SyncSubscription, SyncWorkflowHandle
    from gasoline_es.verbs import Step

__all__ = [
    "Activity",
    "ActivityContext",
    "ActivityFailed",
    "Backoff",
    "Break",
    "Cancelled",
    "Event",
    "Failed",
    "Gasoline",
    "GasolineError",
    "Message",
    "NotRetryable",
    "Ok",
    "Operation",
    "OperationContext",
    "OperationTimedOut",
    "Prune",
    "PruneInfo",
    "Received",
    "RerunInfo",
    "ReviveInfo",
    "ScheduleHandle",
    "ScheduleInfo",
    "Signal",
    "SignalTo",
    "Step",
    "SubWorkflow",
    "Subscription",
    "SyncGasoline",
    "SyncScheduleHandle",
    "SyncSubscription",
    "SyncWorkflowHandle",
    "Workflow",
    "WorkflowCancelled",
    "WorkflowContext",
    "WorkflowFailed",
    "WorkflowHandle",
    "WorkflowInfo",
    "WorkflowLogFilter",
    "WorkflowNotFound",
    "WorkflowSilenced",
    "activity",
    "operation",
    "workflow",
]

_MODULES = {
    "Activity": "definitions",
    "ActivityContext": "activity_context",
    "ActivityFailed": "errors",
    "Backoff": "core.retry",
    "Break": "core.steps",
    "Cancelled": "errors",
    "Event": "core.events",
    "Failed": "outcomes",
    "Gasoline": "engine",
    "GasolineError": "errors",
    "Message": "messages",
    "NotRetryable": "errors",
    "Ok": "outcomes",
    "Operation": "operations",
    "OperationContext": "operating",
    "OperationTimedOut": "errors",
    "Prune": "definitions",
    "PruneInfo": "pruning",
    "Received": "messages",
    "RerunInfo": "core.starting_over",
    "ReviveInfo": "reviving",
    "ScheduleHandle": "scheduling",
    "ScheduleInfo": "core.schedule_info",
    "Signal": "signals",
    "SignalTo": "handles",
    "Step": "verbs",
    "SubWorkflow": "sending",
    "Subscription": "subscribing",
    "SyncGasoline": "sync",
    "SyncScheduleHandle": "sync",
    "SyncSubscription": "sync",
    "SyncWorkflowHandle": "sync",
    "Workflow": "definitions",
    "WorkflowCancelled": "errors",
    "WorkflowContext": "context",
    "WorkflowFailed": "errors",
    "WorkflowHandle": "handles",
    "WorkflowInfo": "handles",
    "WorkflowLogFilter": "log_records",
    "WorkflowNotFound": "errors",
    "WorkflowSilenced": "errors",
    "activity": "definitions",
    "operation": "operations",
    "workflow": "definitions",
}
"""Where each public name lives; a test holds it equal to ``__all__`` and to the imports above."""


if "projections" in sys.modules:  # also by a script of the user's that has this name, and is being imported just now
    from gasoline_es.shadowing import check_package as _check_package

    _check_package()

__getattr__, __dir__ = lazily(globals(), _MODULES)
