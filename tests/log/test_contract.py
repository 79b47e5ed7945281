"""Memory and file logs fulfil the contract of every log."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from gasoline_es.log import open_log
from gasoline_es.log.port import Appended, Log
from gasoline_es.testing.log_contract import EVENTS, LogContract, Opener, event, numbers, put

_names = itertools.count()


class TestMemoryLog(LogContract):
    """`memory:NAME`."""

    @pytest.fixture
    def opener(self) -> Opener:
        name = f"contract-{next(_names)}"

        async def opener(**options: object) -> Log:
            return await open_log(f"memory:{name}", **options)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

        return opener


class TestFileLog(LogContract):
    """`file:DIRECTORY`."""

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        async def opener(**options: object) -> Log:
            return await open_log(f"file:{tmp_path}/log", **options)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

        return opener


class TestFileLogOfSmallSegments(TestFileLog):
    """`file:DIRECTORY`, every few batches in another segment."""

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        async def opener(**options: object) -> Log:
            return await open_log(f"file:{tmp_path}/log", segment_bytes_max=900, **options)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

        return opener


class TestFileLogWithASlowDisk(TestFileLog):
    """`file:DIRECTORY` where every append is synced in the writer's thread, as on a disk whose syncs take long."""

    @pytest.fixture(autouse=True)
    def slow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gasoline_es.log.file.log._INLINE_SYNC_S", 0.0)

    async def test_a_cancelled_append_is_finished_before_the_next(self, opener: Opener) -> None:
        log = await opener()
        owned = await log.acquire(0)
        for number in range(20):
            waiting = asyncio.create_task(put(log, owned.epoch, event(number)))
            await asyncio.sleep(0)
            if number % 2:
                waiting.cancel()
            await asyncio.wait([waiting])
        assert isinstance(await put(log, owned.epoch, event(20)), Appended)
        assert numbers(log.read(EVENTS, 0)) == list(range(21))
        await log.close()
