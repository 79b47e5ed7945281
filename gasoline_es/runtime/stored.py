"""The sequences of an owned partition: decided from what is durable and what is on its way to the log (design §4, §5)."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from gasoline_es.core.commands import Reply
from gasoline_es.core.ports import StoredView
from gasoline_es.core.stored_events import TRACKING, DecisionStored, EventStored, Stored
from gasoline_es.core.storing import Condition, Store, conflict, versions_of
from gasoline_es.errors import GasolineError, RecordTooLarge

if TYPE_CHECKING:
    from gasoline_es.runtime.partition import Partition


class StoredEvents:
    """All sequences of one partition. The view holds durable facts only; what is decided here runs ahead of it."""

    def __init__(self, partition: Partition, view: StoredView) -> None:
        self._partition = partition
        self.view = view
        """What is durable."""
        self._ends: dict[str, int] = {}
        """The number of the last event decided in each sequence, where that is ahead of the view or was."""
        self._versions: dict[tuple[str, str], set[int]] = {}
        """The versions that are decided and not durable, by sequence and originator."""
        self._tracked: dict[str, int] = {}
        self._decisions: deque[tuple[str, int, DecisionStored]] = deque()
        """The same, of decisions: sequence and number."""

    # --- what is known: see core.storing.Known ------------------------------------------------------------------------

    def first_known(self, sequence: str, originator: str, versions: Collection[int]) -> int | None:
        ahead = self._versions.get((sequence, originator))
        for version in () if ahead is None else ahead.intersection(versions):
            return version
        return self.view.first_known(sequence, originator, versions)

    def tracked(self, application: str) -> int | None:
        ahead = self._tracked.get(application)
        return self.view.tracked(application) if ahead is None else ahead

    def matching(self, sequence: str, condition: Condition) -> int | None:
        for found in self.view.matching(sequence, condition.query, condition.after, 1):
            return found
        for at, seq, data in self._decisions:
            if at == sequence and seq > condition.after and condition.query.matches(data.type, data.tags):
                return seq
        return None

    # --- deciding -----------------------------------------------------------------------------------------------------

    def decide(self, command: Store) -> Reply:
        """Decide a command now. The reply may be told once it is durable."""
        if self.view.unreadable is not None:
            return Reply(error=GasolineError(f"nothing can be stored here: {self.view.unreadable}"))
        if command.at and self._is_there(command):
            return Reply(command.store_id, position=command.at)
        versions = versions_of(command.events)
        refused = conflict(command, self, versions)
        if refused is not None:
            return Reply(error=refused)
        now_us, stored = self._partition.now_us(), list[Stored]()
        first = self._end(command.first_in) + 1
        if command.events:
            stored.append(Stored(command.sequence, first, now_us, command.store_id, command.events))
        if command.tracking is not None:
            seq = self._end(TRACKING) + 1
            stored.append(Stored(TRACKING, seq, now_us, command.store_id, (command.tracking,)))
        try:
            self._partition.store(stored)
        except RecordTooLarge as error:
            return Reply(error=error)
        for originator, new in versions.items():
            stream = (command.sequence, originator)
            ahead = self._versions.get(stream)
            if ahead is None:
                self._versions[stream] = set(new)
            else:
                ahead.update(new)
        for one in stored:
            self._ahead(one)
        return Reply(command.store_id, position=first)

    def _end(self, sequence: str) -> int:
        return self._ends.get(sequence) or self.view.end(sequence)

    def _ahead(self, stored: Stored) -> None:
        sequence, first, _, _, events = stored
        self._ends[sequence] = first + len(events) - 1
        for seq, data in enumerate(events, first):
            if isinstance(data, EventStored):
                break  # records hold events of one kind
            if isinstance(data, DecisionStored):
                self._decisions.append((sequence, seq, data))
            else:
                self._tracked[data.application] = data.notification_id

    def _is_there(self, command: Store) -> bool:
        """Whether this very command was decided by the owner before, and counts: its events lie where that one put them."""
        if command.at > self.view.end(command.first_in):
            return False
        return self._partition.stored_at(command.first_in, command.at).request == command.store_id

    # --- what stands beside workflows: see Partition ------------------------------------------------------------------

    def durable(self, stored: Sequence[Stored], first_offset: int, place: int) -> None:
        """Fold what has become durable."""
        for offset, one in enumerate(stored, first_offset):
            self.view.apply(offset, place, one)
            sequence, _, _, _, events = one
            for originator, versions in versions_of(events).items():
                ahead = self._versions[sequence, originator]
                ahead.difference_update(versions)
                if not ahead:
                    del self._versions[sequence, originator]
            for data in events:
                if isinstance(data, EventStored):
                    break
                if isinstance(data, DecisionStored):
                    self._decisions.popleft()
                elif self._tracked.get(data.application) == data.notification_id:
                    del self._tracked[data.application]

    def roll_back(self) -> None:
        """Forget what is not durable: it did not happen."""
        self._ends.clear()
        self._versions.clear()
        self._tracked.clear()
        self._decisions.clear()

    def arm_all(self) -> None:
        """Nothing here is due at any time."""

    def disarm_all(self) -> None:
        """Nothing here is due at any time."""
