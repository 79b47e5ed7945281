"""Durable workflows as a fold over an append-only log.

What a user needs is here; nothing else is public. The engine and the client load when first asked for, so that
importing definitions stays cheap and never touches Kafka or the terminal.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gasoline_es.activity_context import ActivityContext
from gasoline_es.context import WorkflowContext
from gasoline_es.core.retry import Backoff
from gasoline_es.definitions import Activity, Prune, Workflow, activity, workflow
from gasoline_es.errors import NotRetryable
from gasoline_es.signals import Signal
from gasoline_es.verbs import Step

if TYPE_CHECKING:
    from gasoline_es.client import WorkflowHandle, WorkflowInfo
    from gasoline_es.engine import Gasoline

__all__ = [
    "Activity",
    "ActivityContext",
    "Backoff",
    "Gasoline",
    "NotRetryable",
    "Prune",
    "Signal",
    "Step",
    "Workflow",
    "WorkflowContext",
    "WorkflowHandle",
    "WorkflowInfo",
    "activity",
    "workflow",
]

_LAZY = {
    "Gasoline": "gasoline_es.engine",
    "WorkflowHandle": "gasoline_es.client",
    "WorkflowInfo": "gasoline_es.client",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value  # found directly from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
