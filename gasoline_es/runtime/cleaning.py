"""Cleans the log now and then, beside a worker's work: in a thread, slowly, and one process at a time (design §8, 0050)."""

from __future__ import annotations

import asyncio
from typing import Final

from gasoline_es.core.retention import Retention
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import LogError
from gasoline_es.runtime.node import Node

_log = EngineLog(__name__)

BYTES_PER_S: Final = 10 * 1024 * 1024
"""It reads and writes no more than that: workflows go first. By hand there is no bound unless one is given."""
GAIN_MIN: Final = 0.2
"""A segment of which less would go is left alone: it would be written anew, over and over, for little."""
LOOK_FIRST_S: Final = 60.0
"""The first cleaning comes so long after the start, or sooner if asked for: a worker that never lives for long cleans, too."""


class Cleaning:
    """Cleans the log each ``every_us``, from :meth:`go_on` on, and counts what went in the node's recording."""

    def __init__(self, node: Node, every_us: int) -> None:
        if every_us <= 0:
            raise ValueError("compact_every must be longer than nothing")
        self._node = node
        self.every_s: Final = every_us / 1e6

    async def go_on(self) -> None:
        """Clean now and then, until cancelled, or until it shows that this log cleans itself."""
        wait_s = min(self.every_s, LOOK_FIRST_S)
        while True:
            await asyncio.sleep(wait_s)
            if not await self.clean():
                return
            wait_s = self.every_s

    async def clean(self) -> bool:
        """Clean once; whether to come again. What fails is logged, and tried again. Cancelled: it stops at what it is at.

        Nothing that goes wrong here is the engine's concern: the cleaner has a view of the log of its own, and a segment is
        as it was until another one that is whole takes its place.
        """
        node = self._node
        url = node.log.url
        now_us = node.clock.now_us()
        try:
            report = await node.log.compact(Retention(now_us), bytes_per_s=BYTES_PER_S, gain_min=GAIN_MIN)
        except (LogError, OSError) as error:
            if node.failure is not None:
                return False
            _log.warning("the log was not cleaned to the end: %s", error, extra={"error": str(error)})
            return True
        except Exception as error:
            _log.error("the cleaner stumbled over the log", exc_info=error, extra={"error": repr(error)})
            return True
        if report.by == "broker":
            _log.warning(
                "compact_every does nothing on %s: its brokers clean it by themselves", url, extra={"url": url}
            )
            return False
        if report.by == "another":
            return True  # it does what would be done here
        freed = max(report.bytes_before - report.bytes_after, 0)
        records = sum(sum(reasons.values()) for reasons in report.removed.values())
        node.recording.cleaned_bytes += freed
        node.recording.cleaned_us = now_us
        if records:
            _log.info(
                "the log was cleaned: %d records, %d bytes less",
                records,
                freed,
                extra={"records": records, "bytes": freed, "segments": report.rewritten},
            )
        return True
