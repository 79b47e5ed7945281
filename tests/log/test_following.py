"""How a change of the log's files is noticed (the follower): soon, and never missed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gasoline_es.log.file.follower import Follower

SOON_S = 5.0


def _follower(directory: Path) -> Follower:
    for name in ("segments", "epochs"):
        (directory / name).mkdir()
    return Follower(str(directory), lambda name: name == "0000000001.end", lambda: False)


async def _told(follower: Follower) -> None:
    async with asyncio.timeout(SOON_S):
        await follower.changed()


async def _not_told(follower: Follower) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await follower.changed()


async def test_a_published_end_of_somebody_else_is_told_and_ones_own_is_not(tmp_path: Path) -> None:
    follower = _follower(tmp_path)
    try:
        await _told(follower)  # the first call returns at once
        (tmp_path / "segments" / "0000000001.end").write_bytes(b"own")
        (tmp_path / "segments" / "0000000002.jsonl").write_bytes(b"not published yet")
        await _not_told(follower)
        other = tmp_path / "segments" / "0000000002.end"
        other.write_bytes(b"made")
        await _told(follower)
        await _not_told(follower)
        with other.open("r+b") as file:
            file.write(b"more")
        await _told(follower)
        (tmp_path / "new").write_bytes(b"again")
        (tmp_path / "new").replace(other)
        await _told(follower)
    finally:
        follower.close()


async def test_epochs_are_told_in_directories_made_later_whatever_their_names(tmp_path: Path) -> None:
    follower = _follower(tmp_path)
    try:
        await _told(follower)
        for namespace in ("default", "shop0123456789"):
            directory = tmp_path / "epochs" / namespace
            for part in (directory, directory / "3"):
                part.mkdir()
                await _told(follower)
            for epoch in (1, 2):
                (directory / "3" / f"{epoch:010d}").write_bytes(b"mine")
                await _told(follower)
            await asyncio.sleep(0.01)
    finally:
        follower.close()


async def test_what_is_made_in_a_directory_before_it_is_watched_is_told_with_it(tmp_path: Path) -> None:
    follower = _follower(tmp_path)
    try:
        await _told(follower)
        directory = tmp_path / "epochs" / "default" / "3"
        directory.mkdir(parents=True)
        (directory / "0000000001").write_bytes(b"mine")
        await _told(follower)
        await asyncio.sleep(0.01)
        await _not_told(follower)
        (directory / "0000000002").write_bytes(b"mine")
        await _told(follower)
    finally:
        follower.close()


async def test_more_changes_than_the_kernel_keeps_are_told_as_one(tmp_path: Path) -> None:
    follower = _follower(tmp_path)
    kept = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if kept > 100_000:
        pytest.skip("the kernel keeps more changes than are quickly made")
    try:
        await _told(follower)
        for number in range(kept + 10):
            (tmp_path / "segments" / f"{number}.index").touch()
        await _told(follower)
    finally:
        follower.close()


async def test_that_changes_cannot_be_told_any_more_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = _follower(tmp_path)
    try:
        await _told(follower)

        def no_more(self: object, directory: str) -> None:
            raise OSError(28, "the limit of watches was reached", directory)

        monkeypatch.setattr(Follower, "_watch", no_more)
        (tmp_path / "epochs" / "default").mkdir()
        with pytest.raises(OSError, match="the limit of watches"):
            await _told(follower)
    finally:
        follower.close()
