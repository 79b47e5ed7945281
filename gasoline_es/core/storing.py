"""Storing events in sequences: the command, how it travels, and whether it may be done (design §1, §5). Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar, Final, Protocol, cast

from gasoline_es.core.events import fact
from gasoline_es.core.ids import check_name
from gasoline_es.core.stored_events import (
    DECISIONS,
    TRACKING,
    TYPES,
    DecisionStored,
    EventStored,
    StoredData,
    TrackingStored,
    check_payload,
)
from gasoline_es.errors import StoreConflict

INTEGER_MAX: Final = (1 << 63) - 1
"""Versions and notification ids are kept as signed integers of 64 bits."""


@dataclass(frozen=True, slots=True)
class Query:
    """Which decisions: those that match one of the items, or all if there is none.

    An item is (types, tags). It matches a decision of one of these types, or of any if none is given, that has all these tags.
    """

    items: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()

    def matches(self, kind: str, tags: Iterable[str]) -> bool:
        """Whether it is about a decision of this type with these tags."""
        if not self.items:
            return True
        having = frozenset(tags)
        return any((not types or kind in types) and having.issuperset(wanted) for types, wanted in self.items)


@dataclass(frozen=True, slots=True)
class Condition:
    """Store only if no decision that matches ``query`` has a higher number than ``after``."""

    query: Query
    after: int = 0


@fact
class Store:
    """Store events at the end of a sequence, and how far somebody else's were processed: all of it or nothing.

    ``store_id``: the caller's, a UUID that is new for each time. ``at``: the number that the first of it was given by an owner
    that was replaced before it knew whether that counts; 0: there was none. If it is found there, that was this command.
    """

    TYPE: ClassVar[str] = "store"
    store_id: str
    sequence: str
    events: Sequence[EventStored | DecisionStored] = ()
    tracking: TrackingStored | None = None
    condition: Condition | None = None
    at: int = 0

    @property
    def workflow_id(self) -> str:
        """Which partition decides it: namespaces with sequences have one."""
        return self.store_id

    @property
    def size(self) -> int:
        """How many bytes its payloads have."""
        return sum(map(len, map(_payload, self.events)))

    @property
    def first_in(self) -> str:
        """The sequence in which the first of it is numbered."""
        return self.sequence if self.events else TRACKING


class Known(Protocol):
    """What is stored so far, with what is decided and not durable yet."""

    def first_known(self, sequence: str, originator: str, versions: Collection[int], /) -> int | None:
        """Return one of these versions that is there, None if none is."""
        ...

    def tracked(self, application: str, /) -> int | None: ...

    def matching(self, sequence: str, condition: Condition, /) -> int | None:
        """Return the number of a decision that breaks the condition, None if there is none."""
        ...


def conflict(command: Store, known: Known, versions: Mapping[str, Sequence[int]]) -> StoreConflict | None:
    """Return why this may not be stored, if something is there that it must not be stored beside.

    ``versions``: of each originator among the events, see :func:`versions_of`.
    """
    tracking = command.tracking
    if tracking is not None:
        so_far = known.tracked(tracking.application)
        if so_far is not None and so_far >= tracking.notification_id:
            return StoreConflict(
                f"notification {tracking.notification_id} of {tracking.application!r} is not stored as processed: "
                f"{so_far} was before",
                application=tracking.application,
                notification_id=tracking.notification_id,
            )
    if command.condition is not None:
        found = known.matching(command.sequence, command.condition)
        if found is not None:
            return StoreConflict(
                f"nothing is appended: decision {found} matches the condition, and comes after {command.condition.after}",
                position=found,
            )
    for originator, new in versions.items():
        once = set(new)
        if len(once) < len(new):
            twice = next(version for at, version in enumerate(new) if version in new[:at])
            return _known(command.sequence, originator, twice, "twice among the events to store")
        there = known.first_known(command.sequence, originator, once)
        if there is not None:
            return _known(command.sequence, originator, there, "stored already")
    return None


def versions_of(events: Sequence[StoredData]) -> dict[str, list[int]]:
    """Return the versions of each originator among events, in order."""
    if not events or not isinstance(events[0], EventStored):
        return {}  # what is stored together is all of one kind
    if len(events) == 1:
        return {events[0].originator: [events[0].version]}
    found: dict[str, list[int]] = {}
    for originator, run in groupby(cast(Sequence[EventStored], events), _originator):
        found.setdefault(originator, []).extend([event.version for event in run])
    return found


_originator = attrgetter("originator")
_payload = attrgetter("payload")


def _known(sequence: str, originator: str, version: int, how: str) -> StoreConflict:
    return StoreConflict(
        f"version {version} of {originator} is {how}, in the sequence {sequence!r}",
        originator=originator,
        version=version,
    )


def checked(command: Store) -> Store:
    """Return the command, if all of it can be kept. Raises: ValueError, TypeError; DefinitionError: the sequence's name."""
    check_name("sequence", command.sequence)
    if command.sequence == TRACKING:
        raise ValueError(f"a sequence of events cannot be called {TRACKING!r}")
    if not command.events and command.tracking is None:
        raise ValueError("there is nothing to store")
    texts = set[object]()
    if command.events:
        kind = DecisionStored if command.sequence == DECISIONS else EventStored
        for other in {*map(type, command.events)} - {kind}:
            raise TypeError(f"a record of {TYPES.get(other)} in the sequence {command.sequence!r}")
        # By columns, not event by event: there may be many.
        if kind is EventStored:
            originators, uuids, versions, topics, _ = zip(*command.events, strict=True)
            texts.update(originators, topics)
            if {*map(type, uuids)} != {bool}:
                raise TypeError("uuid must be a truth value")
            if {*map(type, versions)} != {int} or min(versions) < -INTEGER_MAX or max(versions) > INTEGER_MAX:
                for version in versions:
                    _check_integer("originator_version", version)
        else:
            types, tags, _ = zip(*command.events, strict=True)
            texts.update(types, *tags)
    _check_texts(*texts)
    if command.tracking is not None:
        _check_texts(command.tracking.application)
        _check_integer("notification_id", command.tracking.notification_id)
    if command.condition is not None:
        _check_integer("after", command.condition.after)
        for types, tags in command.condition.query.items:
            _check_texts(*types, *tags)
    _check_integer("at", command.at)
    if command.at < 0:
        raise ValueError(f"at {command.at}")
    return command


def _check_texts(*texts: object) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{text!r} is no text")
        text.encode()  # a lone surrogate is no text that a record could hold


def _check_integer(what: str, number: object) -> None:
    if type(number) is not int or not -INTEGER_MAX <= number <= INTEGER_MAX:
        raise ValueError(f"{what} must be an integer of 64 bits, not {number!r}")


# --- on its way through an inbox --------------------------------------------------------------------------------------


def store_members(command: Store) -> dict[str, Any]:
    """Return the members that a request has for it. States travel as texts: no parser may touch them."""
    members: dict[str, Any] = {"store_id": command.store_id, "sequence": command.sequence, "at": command.at}
    members["events"] = [_event_members(event) for event in command.events]
    if command.tracking is not None:
        members["tracking"] = (command.tracking.application, command.tracking.notification_id)
    if command.condition is not None:
        members["condition"] = (command.condition.query.items, command.condition.after)
    return members


def read_store(members: dict[str, Any]) -> Store:
    """Read what :func:`store_members` wrote. Raises: KeyError, TypeError, ValueError, DefinitionError."""
    tracking, condition = members.get("tracking"), members.get("condition")
    events = [_read_event(event) for event in members["events"]]
    return checked(
        Store(
            members["store_id"],
            members["sequence"],
            events,
            None if tracking is None else TrackingStored(*tracking),
            None if condition is None else _read_condition(*condition),
            members["at"],
        )
    )


def _event_members(event: StoredData) -> tuple[object, ...]:
    if isinstance(event, EventStored):
        return (event.originator, event.uuid, event.version, event.topic, event.payload.decode())
    assert isinstance(event, DecisionStored)
    return (event.type, event.tags, event.payload.decode())


def _read_event(members: list[Any]) -> EventStored | DecisionStored:
    payload = check_payload(members[-1].encode())
    if len(members) == 3:
        return DecisionStored(members[0], tuple(members[1]), payload)
    originator, uuid, version, topic, _ = members
    return EventStored(originator, uuid, version, topic, payload)


def _read_condition(items: list[Any], after: int) -> Condition:
    return Condition(Query(tuple((tuple(types), tuple(tags)) for types, tags in items)), after)
