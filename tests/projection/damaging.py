"""Damage to a store's files, for tests."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def damage(path: Path, table: str) -> None:
    """Destroy the first page of a table, which opening does not look at."""
    db = sqlite3.connect(path)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    (size,) = db.execute("PRAGMA page_size").fetchone()
    db.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
