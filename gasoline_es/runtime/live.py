"""A workflow in memory: its state with the decisions not yet durable, its body if it has one, and its envelope."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gasoline_es.core.codec import Envelope
from gasoline_es.core.replay import Run
from gasoline_es.core.state import WorkflowState
from gasoline_es.engine_log import EngineLog

if TYPE_CHECKING:
    from gasoline_es.runtime.partition import Partition

_log = EngineLog(__name__)


class Live:
    """One workflow of an owned partition while it is in memory.

    ``state`` runs ahead of the log: it is the overlay. ``durable_seq`` tells up to which event it is safe. While
    ``blocked_on`` is set, the body is not resumed, no activity starts and nothing is looked at: what it rests on is on
    its way to the log (design §1.1).
    """

    __slots__ = ("blocked_on", "durable_seq", "envelope", "idle", "partition", "run", "state", "suspended_at")

    def __init__(self, partition: Partition, state: WorkflowState, envelope: Envelope) -> None:
        self.partition = partition
        self.state = state
        self.envelope = envelope
        self.run: Run | None = None
        self.durable_seq = state.summary.seq
        self.blocked_on: int | None = None
        self.suspended_at: int | None = None
        """The seq of the ``workflow.suspended`` after whose append it leaves memory, if nothing else comes up."""
        self.idle = False

    @property
    def id(self) -> str:
        return self.state.summary.id

    @property
    def fields(self) -> dict[str, object]:
        """What every log record about it carries."""
        return {"workflow_id": self.id, "workflow": self.state.summary.name, "partition": self.partition.index}

    @property
    def settled(self) -> bool:
        """Whether everything decided about it is durable."""
        return self.durable_seq == self.state.summary.seq

    def drop_run(self) -> None:
        """Close the body, if there is one."""
        run, self.run = self.run, None
        if run is None:
            return
        run.close()
        for complaint in run.complaints:
            _log.warning(
                "a workflow body resisted being closed: %s",
                complaint,
                extra={**self.fields, "complaint": complaint},
            )
