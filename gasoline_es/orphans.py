"""Processes that were started to help end with the one that they help, however that ends."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import wait


def end_with_parent() -> None:
    """Let this process, which ``multiprocessing`` has started, end at once when the one that started it has ended.

    A pool's processes wait for more work, and nothing tells them that whoever gives it was killed. What such a process has not
    committed never counts, so it may end anywhere.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), name="gasoline-orphans", daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
