"""A workflow seen from outside: a handle to act on it, and where it stands (api.md, "Outside")."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gasoline_es.core.events import ErrorInfo, Event
from gasoline_es.core.state import Status
from gasoline_es.definitions import Workflow
from gasoline_es.errors import DefinitionError
from gasoline_es.signals import Signal

if TYPE_CHECKING:
    from gasoline_es.client import Client

O = TypeVar("O")  # noqa: E741  # the output


@dataclass(frozen=True, slots=True)
class WorkflowInfo:
    """Where a workflow stands. Payloads are plain JSON values; ``handle.output()`` gives the declared type.

    From ``list`` the payloads (``input``, ``output``, ``state``) are None unless asked for. ``waiting_for`` and
    ``waiting_until`` are set while it sleeps. Times are aware datetimes in UTC.
    """

    id: str
    name: str
    status: Status
    tags: dict[str, str]
    input: Any
    output: Any
    state: Any
    error: ErrorInfo | None
    created: datetime
    completed: datetime | None
    ray_id: str
    waiting_for: str | None
    waiting_until: datetime | None
    queued: dict[str, str]
    partition: int
    worker: str
    events: int


@dataclass(frozen=True, slots=True)
class SignalTo:
    """A signal and where it goes, for ``signal_many``. ``id``: the caller's own, so that a repeat is recognised."""

    signal: Signal
    to: str
    id: str | None = None


class WorkflowHandle(Generic[O]):
    """A workflow by id, with the type of its output. Making one asks nothing: WorkflowNotFound comes at first use."""

    __slots__ = ("_client", "_definition", "id")

    def __init__(self, client: Client, workflow_id: str, definition: Workflow[Any, O]) -> None:
        self.id = workflow_id
        self._client = client
        self._definition = definition

    def __repr__(self) -> str:
        return f"<workflow {self._definition.name} {self.id}>"

    async def output(self, timeout: float | timedelta | None = None) -> O:
        """Wait until the workflow has completed; return its output.

        Raises: WorkflowFailed: it is dead (waking it may mend that). WorkflowCancelled, WorkflowSilenced: it ended without an
            output, by somebody's wish.
            TimeoutError: not within ``timeout`` seconds; it says what the workflow waits for, and whether anybody runs it.
            WorkflowNotFound. DefinitionError: the id belongs to a workflow of another name.
        """
        raw = await self._client._output(self.id, self._definition.name, timeout)  # pyright: ignore[reportPrivateUsage]
        output: O = self._definition.output_codec.decode(raw)
        return output

    async def signal(self, signal: Signal, *, id: str | None = None, from_activity: bool = False) -> str:
        """Send a signal; returns its id once it is queued, durably. With the caller's ``id`` a repeat changes nothing.

        Raises: WorkflowNotFound: no such workflow, or it is over. RecordTooLarge, NotSerializable: nothing is sent.
            DefinitionError: see ``gasoline.signal``, also for ``from_activity``.
        """
        return await self._client.signal(signal, to=self.id, id=id, from_activity=from_activity)

    async def discard_signal(self, signal_id: str) -> None:
        """Take a signal out of its queue, before a listen gets it: see ``gasoline.discard_signal``.

        Raises: SignalNotFound: it received none of that id. GasolineError: a listen took it already. WorkflowNotFound.
        """
        await self._client.discard_signal(signal_id, to=self.id)

    async def get(self, *, as_of: datetime | int | None = None) -> WorkflowInfo:
        """Return where it stands, or stood at a time or behind the event of that number (``Gasoline.get``).

        Raises: WorkflowNotFound. DefinitionError: the id belongs to another name. ValueError: as of ``Gasoline.get``.
        """
        info = await self._client.get(self.id, as_of=as_of)
        check_its_name(self.id, self._definition.name, info.name)
        return info

    async def history(self) -> builtins.list[Event]:
        """Return all its events in order. Raises: WorkflowNotFound."""
        return await self._client.history(self.id)

    async def wake(self) -> None:
        """Run it again: a dead workflow replays what is recorded and goes on from there. Raises: WorkflowNotFound."""
        await self._client.wake(self.id)

    async def cancel(self, *, now: bool = False) -> None:
        """End it for good: see ``gasoline.cancel``. ``output()`` waits for that, and raises WorkflowCancelled."""
        await self._client.cancel(self.id, now=now)

    async def silence(self) -> None:
        """Take it out of sight, for good: see ``gasoline.silence``. ``output()`` raises WorkflowSilenced."""
        await self._client.silence(self.id)

    async def recover(self) -> None:
        """Let the activity that it died of run again, from its first attempt: see ``gasoline.recover``."""
        await self._client.recover(self.id)

    async def rerun(self, from_location: str, fork: bool = False) -> WorkflowHandle[O]:
        """Let it start over from a step, in the code of today; returns the handle of the workflow that goes on.

        See ``Gasoline.rerun``. With ``fork`` that is a new workflow, and this one is left alone.
        """
        done = await self._client.rerun(self.id, from_location, fork=fork)
        return WorkflowHandle(self._client, done.id, self._definition)


def check_its_name(workflow_id: str, asked: str, name: str) -> None:
    """Refuse an id with the wrong definition: its values would be read as what they are not. Raises: DefinitionError."""
    if name not in (asked, ""):
        raise DefinitionError(
            f"workflow {workflow_id} is a {name!r}, and its handle was made for {asked!r}: give `gasoline.handle(…)` the "
            f"definition of {name!r}"
        )
