"""How a projection folds one partition: chunk by chunk, each in one transaction of the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gasoline_es.log.port import Record

if TYPE_CHECKING:
    from projections.definition import Projection


class Folding(Protocol):
    """The fold of one partition of a projection, in one generation, by one process.

    Made anew for each generation it is opened in, and whenever another process went on instead. It may keep what it likes
    in memory, as long as that follows the transactions: either of the last two is called after each.
    """

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
    """Gives a projection event after event."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection

    def apply(self, records: Sequence[Record], db: Any) -> None:
        """Let the projection apply each event."""
        read, apply = self._projection.read, self._projection.apply
        record, event = records[0], None
        try:
            for record in records:
                event = None
                if record.value is not None:
                    event = read(record)
                    apply(event, db)
        except Exception as error:
            raise ApplyFailed(record, described(record, event)) from error

    def committed(self) -> None:
        """Keep nothing."""

    def rolled_back(self) -> None:
        """Keep nothing."""


def described(record: Record, event: Any = None) -> str:
    """Return what a person is told of a record: its key, and what kind of event it is."""
    data = getattr(event, "data", None)
    return record.key if data is None else f"{record.key} ({type(data).__name__})"
