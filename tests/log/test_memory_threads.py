"""Handles of one memory log on event loops of several threads (design §6: the log port)."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gasoline_es.errors import PartitionOwned
from gasoline_es.log.memory import MemoryStore, open_memory_log
from gasoline_es.log.port import Appended, NewRecord, Section


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns as often as the interpreter can let them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


async def test_change_by_another_thread_is_heard_of_whenever_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between the look for changes and the wait for the next one."""
    log = await open_memory_log("heard")
    await log.changed()
    loop = asyncio.get_running_loop()
    create = loop.create_future

    def changed_meanwhile() -> asyncio.Future[Any]:
        thread = threading.Thread(target=log.wake)
        thread.start()
        thread.join()
        return create()

    monkeypatch.setattr(loop, "create_future", changed_meanwhile)
    waiting = asyncio.ensure_future(log.changed())
    for _ in range(3):
        await asyncio.sleep(0)
    monkeypatch.undo()
    assert waiting.done()
    await log.close()


def test_partition_is_taken_by_one_of_many_threads_and_no_record_is_lost(hasty: None) -> None:
    for number in range(20):
        name = f"threads-{number}"
        ready = threading.Barrier(4)

        async def life(name: str = name, ready: threading.Barrier = ready) -> tuple[int, MemoryStore]:
            log = await open_memory_log(name, partitions=8)
            ready.wait()
            taken = 0
            for partition in range(8):
                try:
                    owned = await log.acquire(partition)
                except PartitionOwned:
                    continue
                taken += 1
                records = [NewRecord("default.events", partition, "k", b"1", 0) for _ in range(3)]
                (outcome,) = await log.append([Section(partition, owned.epoch, records)])
                assert isinstance(outcome, Appended)
            (outcome,) = await log.append([Section(0, None, [NewRecord("default.inbox", 0, "k", b"1", 0)])])
            assert isinstance(outcome, Appended)
            ready.wait()
            await log.close()
            return taken, log.store

        with ThreadPoolExecutor(4) as pool:
            lives = [future.result(60) for future in [pool.submit(lambda: asyncio.run(life())) for _ in range(4)]]
        assert sum(taken for taken, _ in lives) == 8
        (store,) = {id(store): store for _, store in lives}.values()
        assert len(store.shared["default.inbox", 0]) == 4
        assert [len(store.owned["default.events", partition]) for partition in range(8)] == [3] * 8
