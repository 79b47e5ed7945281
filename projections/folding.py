"""How a projection folds one partition: chunk by chunk, each in one transaction of the store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol, get_args

from gasoline_es.core.codec import type_of
from gasoline_es.core.events import EventData, Unreadable
from gasoline_es.errors import DefinitionError
from gasoline_es.log.port import Record

if TYPE_CHECKING:
    from projections.definition import Projection


class Folding(Protocol):
    """The fold of one partition of a projection, in one generation, by one process.

    Made anew for each generation it is opened in, and whenever another process went on instead. It may keep what it likes
    in memory, as long as that follows the transactions: either of the last two is called after each.
    """

    def prepare(self, records: Sequence[Record]) -> None:
        """Do for these records what needs no write lock: :meth:`apply` follows with the same ones, or :meth:`rolled_back`."""

    def apply(self, records: Sequence[Record], db: Any) -> None:
        """Change the tables by these records, of one topic, in order of offset, within a transaction of the store.

        Whatever is raised undoes all of it. ``ApplyFailed`` says at which record; anything else, and the runner looks for it
        by trying fewer.
        """

    def committed(self) -> None:
        """The transaction of the last :meth:`apply` counts."""

    def rolled_back(self) -> None:
        """It does not: neither its tables nor its position moved. The same records come again."""


class ApplyFailed(Exception):
    """A record could not be applied, for its ``__cause__``. ``event``: what is known of it."""

    def __init__(self, record: Record, event: str) -> None:
        super().__init__(record, event)
        self.record = record
        self.event = event


class EachEvent:
    """Gives a projection event after event, but for those of the types that it does not want."""

    def __init__(self, projection: Projection, unwanted: Collection[bytes] = ()) -> None:
        self._projection = projection
        self._unwanted = frozenset(unwanted)

    def prepare(self, records: Sequence[Record]) -> None:
        """Do nothing."""

    def apply(self, records: Sequence[Record], db: Any) -> None:
        """Let the projection apply each event."""
        read, apply, unwanted = self._projection.read, self._projection.apply, self._unwanted
        record, event = records[0], None
        try:
            for record in records:
                event = None
                if record.value is not None and not (unwanted and type_of(record.value) in unwanted):
                    event = read(record)
                    if not unwanted or _type_by(event) not in unwanted:
                        apply(event, db)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            # Whatever else it is, an exit or a cancel too, it is this event's: others are folded all the same.
            raise ApplyFailed(record, described(record, event)) from error

    def committed(self) -> None:
        """Keep nothing."""

    def rolled_back(self) -> None:
        """Keep nothing."""


def _type_by(event: Any) -> bytes:
    """Return the type of an event that was decoded."""
    return str(getattr(getattr(event, "data", None), "TYPE", "")).encode()


def unwanted_types(only: Collection[type[EventData]]) -> frozenset[bytes]:
    """Return the types of all events but these, as they stand on the log; none if all are wanted.

    Raises: DefinitionError: one is no kind of event.
    """
    kinds = set(get_args(EventData))
    unknown = [one for one in only if not (isinstance(one, type) and one in kinds)]  # pyright: ignore[reportUnnecessaryIsInstance]
    if unknown:
        raise DefinitionError(f"`only=` names kinds of events, from gasoline_es.events, and {unknown[0]!r} is none")
    if not only:
        return frozenset()
    return frozenset(kind.TYPE.encode() for kind in kinds - set(only) - {Unreadable})


def described(record: Record, event: Any = None) -> str:
    """Return what a person is told of a record: its key, and what kind of event it is."""
    data = getattr(event, "data", None)
    return record.key if data is None else f"{record.key} ({type(data).__name__})"
