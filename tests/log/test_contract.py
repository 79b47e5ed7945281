"""Memory and file logs fulfil the contract of every log."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from gasoline_es.log import open_log
from gasoline_es.log.port import Log
from gasoline_es.testing.log_contract import LogContract, Opener

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
