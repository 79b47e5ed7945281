"""What several threads want to store at the same time is stored in one append, with one sync, by whichever comes first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from gasoline_es.core.storing import Store
from gasoline_es.errors import GasolineError, LogError

BYTES_AT_ONCE: Final = 256 * 1024
"""More than that, in sum, may take longer to write than it takes to hand it over to the loop's thread."""

Result = int | Store | GasolineError
"""The number of the first event that was stored; how the command is to be asked on the loop; or why nothing was stored."""
StoreNow = Callable[[Sequence[Store]], Sequence[Result]]
InPlace = Callable[[Callable[[StoreNow], None]], object]
"""Does something in the loop's place, with what stores there; or does nothing, if that cannot be had."""


class _Wanted:
    """A command, and what came of it."""

    __slots__ = ("command", "result", "size")

    def __init__(self, command: Store) -> None:
        self.command: Final = command
        self.size: Final = command.size
        self.result: Result | None = None


class StoredTogether:
    """The commands of all threads that wait for their turn. One for a journal."""

    def __init__(self) -> None:
        self._waiting: Final[dict[_Wanted, None]] = {}
        """In the order in which they came. Changed without a lock, by single operations."""
        self._turn: Final = threading.RLock()
        """Re-entrant: a signal's handler, or a finaliser, may store something within a call of the same thread."""
        self._storing = False
        """Whether that very thread is in the loop's place."""

    def store(self, command: Store, in_place: InPlace) -> Result:
        """Store it, alone or with others, if the loop's place can be had; else return the command.

        Raises: what ``in_place`` raises, and whatever is thrown into this thread. Others hear nothing of that.
        """
        wanted = _Wanted(command)
        self._waiting[wanted] = None
        try:
            with self._turn:
                while wanted.result is None:
                    if self._storing:
                        return command  # within a call of this thread, whose command waits, too: that comes first
                    self._do(self._first(), in_place)
                return wanted.result
        finally:
            self._waiting.pop(wanted, None)

    def _first(self) -> list[_Wanted]:
        """Return the first ones of which nothing has come, as many as may go together, and always one."""
        first, size = list[_Wanted](), 0
        for wanted in list(self._waiting):
            if wanted.result is not None:
                continue
            size += wanted.size
            if first and size > BYTES_AT_ONCE:
                break
            first.append(wanted)
        return first

    def _do(self, batch: Sequence[_Wanted], in_place: InPlace) -> None:
        """See to it that something has come of each."""
        begun = False

        def deed(store_now: StoreNow) -> None:
            nonlocal begun
            left = [one for one in batch if one.result is None]  # see _turn: some may have been stored since
            if not left:
                return
            begun = self._storing = True
            try:
                for wanted, result in zip(left, store_now([one.command for one in left]), strict=True):
                    wanted.result = result
            finally:
                self._storing = False

        try:
            in_place(deed)
        finally:
            for wanted in batch:
                if wanted.result is None:
                    wanted.result = LogError(_BROKEN_OFF) if begun else wanted.command


_BROKEN_OFF: Final = (
    "another thread was interrupted while it stored this together with its own: it may have been recorded. Look before it is "
    "repeated"
)
