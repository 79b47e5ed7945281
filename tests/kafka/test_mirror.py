"""The copies of a log on a disk that is full, or in a place that cannot be: the error says what to do."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gasoline_es.errors import LogError
from gasoline_es.log.kafka.drivers.port import Feed
from gasoline_es.log.kafka.mirror import Mirror
from gasoline_es.log.port import Offset, Record

FEED = Feed("shop.events", 0)


def test_a_full_disk_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect

    def small(name: str, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(name, **options)
        connection.execute("PRAGMA max_page_count=20")
        return connection

    monkeypatch.setattr(sqlite3, "connect", small)
    with closing(Mirror(tmp_path / "mirror.sqlite")) as mirror:
        record = Record("shop.events", 0, Offset(0), "key", b"x" * 500_000, 1)
        with pytest.raises(LogError, match="full"):
            mirror.add({FEED: ([record], 0, 1)})
        assert mirror.position(FEED) == 0
        mirror.add({FEED: ([Record("shop.events", 0, Offset(0), "key", b"1", 1)], 0, 1)})
        assert mirror.position(FEED) == 1


def test_a_place_that_cannot_be_is_an_error_that_says_so() -> None:
    with pytest.raises(LogError, match="state_dir"):
        Mirror(Path("a\0b") / "mirror.sqlite")
