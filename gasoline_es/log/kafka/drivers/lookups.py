"""What both client libraries do alike: offsets are looked up by one admin that all readers share, and a poll can be woken."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gasoline_es.log.kafka.drivers.port import Admin, BrokerError, Driver, Feed, OffsetGone, Reader

SLICE_S: Final = 0.05
"""Neither library can be woken in a poll: it waits in slices."""
LOOKUP_S: Final = 5.0
END: Final = -1
BEGIN: Final = -2


class OffsetAdmin(Admin):
    """An admin that readers ask, too."""

    @abstractmethod
    def offsets(self, specs: Mapping[Feed, int], timeout_s: float, *, committed: bool = False) -> dict[Feed, int]:
        """Return the offset of each feed that its spec asks for: END, BEGIN, else by time in ms; -1: there is none.

        ``committed``: an end is before the first open transaction. Raises: BrokerError.
        """


class LookingUp(Reader):
    """A reader's look-ups, by an admin, and its wake-up."""

    def __init__(self, admin: Callable[[], OffsetAdmin]) -> None:
        self._admin = admin
        self._woken = threading.Event()

    def ends(self, feeds: Sequence[Feed], timeout_s: float) -> Mapping[Feed, int]:
        """Return the high watermarks (see the port)."""
        return self._admin().offsets(dict.fromkeys(feeds, END), timeout_s)

    def stable_ends(self, feeds: Sequence[Feed], timeout_s: float) -> Mapping[Feed, int]:
        """Return the last stable offsets (see the port)."""
        return self._admin().offsets(dict.fromkeys(feeds, END), timeout_s, committed=True)

    def begins(self, feeds: Sequence[Feed], timeout_s: float) -> Mapping[Feed, int]:
        """Return the first offsets that the broker still has (see the port)."""
        return self._admin().offsets(dict.fromkeys(feeds, BEGIN), timeout_s)

    def since(self, feeds: Mapping[Feed, int], timeout_s: float) -> Mapping[Feed, int]:
        """Return the first offsets at or after these times (see the port)."""
        found = self._admin().offsets(feeds, timeout_s)
        none = [feed for feed, offset in found.items() if offset < 0]
        return {**found, **self.ends(none, timeout_s)}

    def wake(self) -> None:
        """Let a poll that waits return soon (see the port)."""
        self._woken.set()

    def _gone(self, feed: Feed, offset: int) -> BrokerError:
        """Return what a poll raises where the broker has nothing at an offset."""
        try:
            begin, end = self.begins([feed], LOOKUP_S)[feed], self.ends([feed], LOOKUP_S)[feed]
        except BrokerError as failed:
            return failed
        return OffsetGone(
            f"topic {feed.topic!r}, partition {feed.partition}, is to be read from offset {offset}, and the broker has "
            f"{begin} to {end}",
            topic=feed.topic,
            partition=feed.partition,
            offset=offset,
            begin=begin,
            end=end,
        )


class SharingDriver(Driver):
    """A driver whose readers share an admin."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: OffsetAdmin | None = None

    @abstractmethod
    def admin(self) -> OffsetAdmin:
        """Make an admin (see the port)."""

    def _shared_admin(self) -> OffsetAdmin:
        """Return the one that all readers look offsets up by."""
        with self._lock:
            if self._shared is None:
                self._shared = self.admin()
            return self._shared

    def close(self) -> None:
        """Let go of what its readers share (see the port)."""
        with self._lock:
            shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()
