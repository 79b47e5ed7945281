"""The facts a workflow's history is made of, as ``handle.history()`` gives them: for ``isinstance`` and ``match``.

    for event in await handle.history():
        match event.data:
            case ActivityCompleted(name=name, output=output):
                ...

Payloads are JSON text (bytes), times microseconds since 1970 in UTC; ``event.time`` and ``event.location`` are for people.
"""

from gasoline_es.core.events import (
    ActivityCompleted,
    ActivityFailed,
    BranchOpened,
    ErrorInfo,
    Event,
    EventData,
    LoopCommitted,
    OutputReceived,
    RaceDecided,
    SignalConsumed,
    SignalDiscarded,
    SignalReceived,
    SignalSent,
    SleepFinished,
    SleepStarted,
    StepPlaced,
    StepRemoved,
    Unreadable,
    VersionChecked,
    WaiterAdded,
    WorkflowCompleted,
    WorkflowDispatched,
    WorkflowFailed,
    WorkflowSpawned,
    WorkflowSuspended,
    WorkflowTagsUpdated,
    WorkflowWoken,
)

__all__ = [
    "ActivityCompleted",
    "ActivityFailed",
    "BranchOpened",
    "ErrorInfo",
    "Event",
    "EventData",
    "LoopCommitted",
    "OutputReceived",
    "RaceDecided",
    "SignalConsumed",
    "SignalDiscarded",
    "SignalReceived",
    "SignalSent",
    "SleepFinished",
    "SleepStarted",
    "StepPlaced",
    "StepRemoved",
    "Unreadable",
    "VersionChecked",
    "WaiterAdded",
    "WorkflowCompleted",
    "WorkflowDispatched",
    "WorkflowFailed",
    "WorkflowSpawned",
    "WorkflowSuspended",
    "WorkflowTagsUpdated",
    "WorkflowWoken",
]
