"""Who may read a log that the library made: payloads lie in it as plain text."""

from __future__ import annotations

from pathlib import Path

from gasoline_es.log.opening import open_log


async def test_a_new_log_directory_is_open_to_its_own_user_only(tmp_path: Path) -> None:
    log = await open_log(f"file:{tmp_path}/new/log")
    await log.acquire(0)
    await log.close()
    made = tmp_path / "new" / "log"
    assert made.stat().st_mode & 0o077 == 0
    assert {path.stat().st_mode & 0o077 for path in made.iterdir() if path.is_dir()} == {0}


async def test_a_directory_that_was_there_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir(mode=0o750)
    log = await open_log(f"file:{tmp_path}/log")
    await log.close()
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o750
