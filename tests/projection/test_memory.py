"""Projections of a log in memory go with it."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

from gasoline_es.log.memory import open_memory_log
from projections.stores.memory import MemoryStore
from tests.projection.counting import built, counted


def directory_of(store: MemoryStore) -> Path:
    return Path(store.url.removeprefix("sqlite:"))


async def test_what_is_folded_lives_as_long_as_a_handle_of_its_log() -> None:
    log = await open_memory_log(f"projections-{os.getpid()}-{id(sys)}", partitions=2)
    other = await open_memory_log(f"projections-{os.getpid()}-{id(sys)}", partitions=2)
    built(MemoryStore(log), up_to=1).close()
    folder = directory_of(MemoryStore(other))
    await log.close()
    del log
    gc.collect()
    assert counted(MemoryStore(other)) == (2, 1)
    await other.close()
    del other
    gc.collect()
    assert not folder.exists()


async def test_logs_and_namespaces_have_nothing_in_common() -> None:
    log, other = await open_memory_log(partitions=2), await open_memory_log(partitions=2)
    built(MemoryStore(log), up_to=1).close()
    assert list(MemoryStore(log)) == ["counts"]
    assert list(MemoryStore(other)) == []
    await log.close()
    await other.close()
