"""Where a topic of a partition ends, by what counts for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from gasoline_es.errors import NoOwner
from gasoline_es.log.port import Log

TAKING_LIMIT_S: Final = 20.0
"""A process that takes a partition over and freezes in the middle of it is taken for dead before this time is over."""
LOOK_AT_TAKER_S: Final = 0.005


async def decided_end(
    log: Log, topic: str, partition: int, monotonic: Callable[[], float] = time.monotonic, *, current: bool = False
) -> int:
    """Return where a topic of a partition ends. Waits for whoever is about to take it over: that moment tells.

    Without that, what was acknowledged long ago could seem not to be there. ``current``: who calls has refreshed the log, of
    many partitions at once, say. Raises: NoOwner: whoever takes it does not come to it, by the time that ``monotonic`` tells.
    """
    if not current:
        await log.refresh((topic, partition))
    until = monotonic() + TAKING_LIMIT_S
    end = log.end(topic, partition)
    while log.undecided(topic, partition) and log.damage is None:
        if monotonic() > until:
            raise NoOwner(
                f"partition {partition} is being taken over, and whoever does has not begun in {TAKING_LIMIT_S:g} s; until "
                f"then it is not known what counts there. Try again",
                command_id="",
            )
        await asyncio.sleep(LOOK_AT_TAKER_S)
        end = log.end(topic, partition)
    return end
