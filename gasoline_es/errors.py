"""Every error a user can meet, as one tree under :class:`GasolineError`.

Each error carries its fields, says whether trying the same thing again can help (``retryable``), and its message names
what happened, where, and what to do. Waiting and eviction are not errors and never appear here (semantics.md §4); the one
thing ever thrown into a workflow's body is a cancel, which derives from ``BaseException`` (:class:`Cancelled`).
"""

from __future__ import annotations

from typing import Any, ClassVar, Self


class GasolineError(Exception):
    """The root of every error raised by this library."""

    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields

    def __getattr__(self, name: str) -> Any:
        # Only called when normal look-up fails: the fields given at the raise are attributes of the error.
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.fields))


def _rebuild(kind: type[GasolineError], message: str, fields: dict[str, Any]) -> GasolineError:
    return kind(message, **fields)


# --- definitions and values -------------------------------------------------------------------------------------------


class DefinitionError(GasolineError):
    """A workflow, activity or signal is defined or called in a way that can never work."""


class ExtraMissing(GasolineError, ImportError):
    """Something was asked for that needs a package which only an extra installs; the message has the command."""


class PackageShadowed(GasolineError, ImportError):
    """A module of the user's is found where this library's own package is meant. Fields: ``file``."""


class NotSerializable(GasolineError):
    """A value cannot be kept exactly. Fields: ``path`` (as ``order.items[3]``) and ``type``."""


class InvalidTags(GasolineError):
    """A tag value is not a scalar (str, int, float, bool), or a tag name is not a string."""


class RecordTooLarge(GasolineError):
    """A record would exceed the limit of 1,000,000 bytes. Raised before anything is recorded."""


class TopicRefused(GasolineError):
    """A topic of others is of no use: not there, closed to this process, the library's own, or it takes too little.

    Fields: ``topic``. Ends a run that emits there before anything is recorded: once the topic is as it should be, wake the
    workflow. Entering ``gasoline.ingest(…)`` raises it for the topic that is read and that of dead letters.
    """


# --- replay -----------------------------------------------------------------------------------------------------------


class ReplayError(GasolineError):
    """The code and the recorded history do not fit together. The history is left as it is."""


class HistoryDiverged(ReplayError):
    """A step differs from the one recorded at its place (semantics.md §3).

    Fields: ``location``, ``recorded``, ``attempted``, ``file``, ``line``, ``fix``.
    """


class LatentHistoryFound(ReplayError):
    """A body returned while recorded steps remain (semantics.md §3). Fields: ``locations``, ``recorded``, ``fix``."""


class InvalidVersion(ReplayError):
    """``ctx.v(0)``, or a version below 1."""


class StepMisused(GasolineError):
    """A body did something that cannot be replayed: a foreign await, a forgotten step, a use of asyncio."""


# --- outcomes ---------------------------------------------------------------------------------------------------------


class ActivityFailed(GasolineError):
    """An activity failed for good. Fields: ``activity``, ``location``, ``attempts``, ``error``."""


class ActivityMaxFailuresReached(ActivityFailed):
    """An activity failed ``max_attempts`` times (semantics.md §4)."""


class OperationTimedOut(GasolineError):
    """An operation took longer than its timeout. Fields: ``operation``, ``timeout`` (seconds)."""

    retryable = True


class WorkflowFailed(GasolineError):
    """The workflow is dead. Fields: ``workflow_id``, ``workflow``, ``error``."""


class WorkflowNotFound(GasolineError):
    """No such workflow, or no incomplete one that matches."""


class SignalDiscarded(GasolineError):
    """A parked signal is sent again that was discarded: nobody has it, and nobody gets it under that id.

    No workflow came for it in time, or somebody took it away.

    Fields: ``signal_id``, ``signal`` and ``workflow`` (names).
    """


class SignalNotFound(GasolineError):
    """No such signal was received there, or is parked. Fields: ``signal_id``, and ``workflow_id`` or ``workflow`` (a name)."""


class ScheduleNotFound(GasolineError):
    """No such schedule, or it was removed. Field: ``schedule`` (its name)."""


class ScheduleExists(GasolineError):
    """Another schedule has the name that this one would get. Field: ``schedule`` (its name)."""


class StoreConflict(GasolineError):
    """Events were not stored: one of their versions is there already, or what they must not be stored after.

    Fields: ``originator`` and ``version``; or ``application`` and ``notification_id``; or ``position``.
    """


class KeyReused(GasolineError):
    """A dispatch used a ``key`` that belongs to a workflow with another input. Fields: ``workflow_id``, ``key``."""


class RerunRefused(GasolineError):
    """A workflow cannot start over from there. Fields: ``workflow_id``, ``location``, ``near`` (places with steps)."""


class NoOwner(GasolineError):
    """No process answers for the partition yet; the command is durable and will be decided. Field: ``command_id``."""

    retryable = True


class WorkflowCancelled(GasolineError):
    """The workflow was cancelled: it has no output, and never will have. Fields: ``workflow_id``, ``workflow``."""


class WorkflowSilenced(GasolineError):
    """An operator silenced the workflow: it has no output, and never will have. Fields: ``workflow_id``, ``workflow``."""


class Cancelled(BaseException):
    """Thrown into the body of a workflow that was cancelled, where it waits. Made by the engine only.

    Let it pass, or clean up and raise it again: whatever the body does now, its workflow ends as cancelled.
    """

    def __new__(cls, *args: Any) -> Self:
        raise TypeError("Cancelled is made by the engine; to cancel a workflow, call `handle.cancel()`")

    @classmethod
    def _made(cls) -> Self:
        """Make one. For the engine."""
        return BaseException.__new__(cls)


class NotRetryable(Exception):
    """Raise it in an activity to stop its retries at once: ``raise NotRetryable("the card has expired", card.last4)``.

    What follows the message is kept as the ``details`` of the recorded error, a JSON list.
    """

    def __init__(self, message: str = "", *details: Any) -> None:
        super().__init__(message, *details)
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return self.message


# --- projections ------------------------------------------------------------------------------------------------------


class ProjectionError(GasolineError):
    """Something is wrong with a projection or with the store it is in. Fields: ``projection``, ``store``."""


class ProjectionNotBuilt(ProjectionError):
    """A projection cannot be read yet: nobody has folded it, or it is being built. Fields: ``projection``, ``store``."""

    retryable = True


class GenerationDamaged(ProjectionError):
    """What is stored of a projection can be relied on by nobody: a damaged file, or one that is missing. It is built anew.

    Nothing of the log is lost. Fields: ``projection``, ``store``.
    """


class ProjectionStopped(ProjectionError):
    """A projection could not apply an event, and stands before it in that partition until it can.

    Fields: ``projection``, ``topic``, ``partition``, ``offset``, ``event``, ``cause``.
    """

    retryable = True


class Superseded(ProjectionError):
    """A write to a generation of a projection was refused: another has taken its place. Nothing of it counts.

    Open the current one and fold on from where that stands. Fields: ``projection``, ``generation``.
    """

    retryable = True


class PositionMoved(ProjectionError):
    """A write was refused: somebody else has folded that partition on. Nothing of it counts.

    Fields: ``projection``, ``generation``, ``topic``, ``partition``, ``stored`` and ``expected`` (offsets).
    """

    retryable = True


# --- the log ----------------------------------------------------------------------------------------------------------


class LogError(GasolineError):
    """Something is wrong with the log itself."""


class LogCorrupt(LogError):
    """Bytes that were complete are not what was written. Fields: ``segment``, ``position`` (byte), ``reason``."""


class LogFailed(LogError):
    """A sync failed: this handle takes no further append, for good, until the log is reopened."""


class NoSpace(LogError):
    """The disk is full. None of the append's records is visible, then or later; the log goes on once there is space."""

    retryable = True


class Fenced(LogError):
    """Another owner has taken the partition. The section's fate is decided by that owner's begin. Field: ``partition``."""


class PartitionOwned(LogError):
    """The partition has a living owner. Fields: ``partition``, ``owner`` (incarnation), ``epoch``."""

    retryable = True


class AppendUnknown(LogError):
    """Whether the append happened is not known yet; it is settled by reading back before the next append."""


class CopyRefused(LogError):
    """A log cannot be copied as things are: somebody works there, the new place holds something else, a record differs.

    Fields: ``url``, or ``topic``, ``partition`` and ``key`` of a record.
    """


class LogMoved(LogError):
    """The namespace goes on in another log, or its copy here is not whole; the message says which, and what to do.

    Fields: ``url``, ``namespace``, ``other`` (the other log) and ``state`` (``leaving``, ``left`` or ``arriving``).
    """


class HorizonMoved(LogError):
    """While records were read, a tombstone was removed that takes back some which were given before it could be.

    What was made of them may hold what was taken back: throw it away, and read again from the start. Fields: ``topic``,
    ``partition`` and ``horizon`` (the offset below which tombstones are gone).
    """

    retryable = True


class LogReadOnly(LogError):
    """The log was opened for reading, or is damaged and takes no writes until an operator acts."""
