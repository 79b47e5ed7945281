"""Folds the partitions of a generation that is being built in several processes, each with a share of them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

from gasoline_es.errors import ProjectionStopped
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Log
from gasoline_es.orphans import end_with_parent
from gasoline_es.shadowing import is_found_anew
from projections.definition import Projection
from projections.generation_fold import GenerationFold
from projections.stores.opening import open_store
from projections.stores.port import Meta

_POLL_S: Final = 0.2
RECORDS_WORTH_IT: Final = 50_000
"""So many records take longer to fold than another process takes to start."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one process folds, and where it finds it. ``store``: the URL, None for the one that lies with the log."""

    log: str
    namespace: str
    store: str | None
    meta: Meta
    projection: Projection
    partitions: Sequence[int]


def shares(log: Log, store: str | None, meta: Meta, projection: Projection, jobs: int) -> list[Share]:
    """Return a share for each of so many processes; none if others cannot open the log, or be given the projection."""
    if jobs < 2 or not log.url.startswith("file:") or not is_found_anew():
        return []
    try:
        pickle.dumps(projection)
    except Exception:  # of a function within a function, say: whatever it raises, it can be folded here
        return []
    partitions = range(log.partition_count)
    found = [Share(log.url, log.namespace, store, meta, projection, partitions[n::jobs]) for n in range(jobs)]
    return [one for one in found if one.partitions]


def cores() -> int:
    """Return how many processes can work at a time."""
    return len(os.sched_getaffinity(0))


def fold_all(given: Sequence[Share], on_poll: Callable[[], None]) -> int | None:
    """Fold all shares to where the log ends now, as far as events can be applied, each in a process of its own.

    What one has left that dies, or cannot load the projection, is for the caller to fold. Returns how many records were folded;
    None: one has died, and nobody knows.
    """
    folded = 0
    # A fresh interpreter for each: a fork would copy whatever threads and locks this one has.
    processes = multiprocessing.get_context("spawn")
    with suppress(BrokenProcessPool), ExitStack() as pools:
        # A pool for each: of one for all, whichever process is up first may take every share.
        made = [ProcessPoolExecutor(1, processes, initializer=end_with_parent) for _ in given]
        pending = {pools.enter_context(pool).submit(fold_share, share) for pool, share in zip(made, given, strict=True)}
        while pending:
            done, pending = wait(pending, _POLL_S, FIRST_EXCEPTION)
            on_poll()
            for future in done:
                folded += future.result()
        return folded
    return None


def fold_share(share: Share) -> int:
    """Fold a share to where the log ends now, and return how many records that were.

    What cannot be applied is left, for whoever made the generation to tell.
    """
    return asyncio.run(_fold_share(share))


async def _fold_share(share: Share) -> int:
    log = await open_log(share.log, namespace=share.namespace, readonly=True, final=True)
    told: list[ProjectionStopped] = []
    generation = open_store(log, share.store).again(share.meta)
    fold = GenerationFold(share.projection, generation, log, told.append)
    try:
        # What comes from now on is not waited for: under load it does not end.
        fold.fold_to(fold.ends(share.partitions))
        return fold.folded
    finally:
        fold.close()
        await log.close()
