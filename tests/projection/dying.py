"""Processes that are killed where a store, a runner or a projection comes past a point."""

from __future__ import annotations

import os
import signal

from projections.stores.port import Reach


def dies_at(point: str, times: int = 1) -> Reach:
    """Return what is told of points, and kills its process when it is told of this one for so many times."""
    left = times

    def reach(at: str) -> None:
        nonlocal left
        if at == point:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    return reach
