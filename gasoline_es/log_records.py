"""Says in a log record which workflow made it, and leaves out what a body only repeats: :class:`WorkflowLogFilter`."""

from __future__ import annotations

import logging
from typing import Final

from gasoline_es.activity_context import ActivityContext
from gasoline_es.core.guard import body_told
from gasoline_es.operating import OperationContext, at_work

_OURS: Final = "gasoline_es"


class WorkflowLogFilter(logging.Filter):
    """Add it to a handler: ``handler.addFilter(WorkflowLogFilter())``. Records then say which workflow made them.

    In a body: ``workflow_id``, ``workflow``, and ``location``, that of the last step passed (not there before the first). In an
    activity these (``location`` is its own) and ``activity`` and ``attempt``, from 1. In an operation ``operation``, and
    ``workflow_id`` and ``workflow`` where an activity called it. A field that the record has already stays. What is made
    elsewhere passes as it is, and so do the library's own records, which carry these fields by themselves.

    A body runs again whenever it is replayed, and would write its lines again. The filter drops a record where the history
    proves that it was made before; where it proves nothing, as after a kill, the line is written again rather than never.
    ``replayed`` True: none is dropped, and those have ``replayed`` True.

    It looks at the context in which it is called. Behind a ``QueueHandler`` that is the listener's thread: there the filter
    goes to the ``QueueHandler``.
    """

    def __init__(self, *, replayed: bool = False) -> None:
        super().__init__()
        self._replayed = replayed

    def filter(self, record: logging.LogRecord) -> bool:
        """Complete a record; False: it was made before."""
        name = record.name
        if name.startswith(_OURS) and (len(name) == len(_OURS) or name[len(_OURS)] == "."):
            return True
        fields = record.__dict__
        told = body_told()
        if told is not None:
            if told.again:
                if not self._replayed:
                    return False
                fields.setdefault("replayed", True)
            fields.setdefault("workflow_id", told.workflow_id)
            fields.setdefault("workflow", told.workflow)
            if told.location:
                fields.setdefault("location", told.location)
            return True
        work = at_work.get()
        if work is not None:
            _complete(fields, work)
        return True


def _complete(fields: dict[str, object], work: ActivityContext | OperationContext) -> None:
    if work.workflow_id is not None:
        fields.setdefault("workflow_id", work.workflow_id)
        fields.setdefault("workflow", work.workflow_name)
    if isinstance(work, ActivityContext):
        fields.setdefault("location", work.location)
        fields.setdefault("activity", work.name)
        fields.setdefault("attempt", work.attempt)
    else:
        fields.setdefault("operation", work.name)


__all__ = ["WorkflowLogFilter"]
