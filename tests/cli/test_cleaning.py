"""`gasoline log compact`, and `log verify` with a checkpoint: what they say, and with which status."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gasoline_es.log import copying
from tests.cli.histories import Story
from tests.cli.terminal import Done, invoke
from tests.log.cleaned import keyed, life


@pytest.fixture
def copied(story: Story, tmp_path: Path) -> Path:
    """A copy of a log in which something has happened."""
    shutil.copytree(story.directory, tmp_path / "log")
    return tmp_path / "log"


def test_what_is_listed_is_the_same_after_a_cleaning_and_the_log_is_sound(copied: Path) -> None:
    url = f"file:{copied}"
    listed = invoke("--log", url, "workflow", "list").stdout
    dry = invoke("--log", url, "log", "compact", "--dry-run").objects[0]
    done = invoke("--log", url, "log", "compact").objects[0]
    assert dry["removed"] == done["removed"] != {}
    assert (dry["dry_run"], done["dry_run"], done["by"]) == (True, False, "log")
    assert done["rewritten"] > 0
    assert invoke("--log", url, "workflow", "list").stdout == listed
    assert invoke("--log", url, "log", "verify").status == 0
    assert invoke("--log", url, "log", "compact").objects[0]["removed"] == {}


def test_as_text_it_says_what_went_and_why(copied: Path) -> None:
    shown = invoke("--log", f"file:{copied}", "log", "compact", "--text", columns=80).stdout
    assert "a newer one of its key" in shown
    assert "are gone" in shown
    again = invoke("--log", f"file:{copied}", "log", "compact", "--dry-run", "--text", columns=80).stdout
    assert "0 records would go; nothing was changed" in again


def test_one_that_finds_another_at_work_says_so_and_fails(copied: Path) -> None:
    with open(copied / "compaction.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = invoke("--log", f"file:{copied}", "log", "compact")
    assert done.status == 1
    assert done.objects[0]["by"] == "another"
    assert "another process is cleaning" in done.stderr


def test_a_log_is_held_to_a_checkpoint(copied: Path, tmp_path: Path) -> None:
    url, checkpoint = f"file:{copied}", str(tmp_path / "monday.json")
    assert invoke("--log", url, "log", "verify", "--checkpoint", checkpoint).status == 0
    invoke("--log", url, "log", "compact")
    assert invoke("--log", url, "log", "verify", "--against", checkpoint).status == 0
    asyncio.run(life(tmp_path / "other", [keyed("a", 1)], partitions=1))
    other = invoke("--log", f"file:{tmp_path}/other", "log", "verify", "--against", checkpoint)
    assert (other.status, "this is a checkpoint of log" in other.stderr) == (1, True)
    for path in copied.glob("segments/0000000002.*"):
        path.unlink()
    shutil.rmtree(copied / "verified", ignore_errors=True)
    gone = invoke("--log", url, "log", "verify", "--against", checkpoint)
    assert gone.status == 1
    assert any(problem["kind"] == "problem" and problem["segment"] == 2 for problem in gone.objects)
    missing = invoke("--log", url, "log", "verify", "--against", str(tmp_path / "none.json"))
    assert (missing.status, "none.json" in missing.stderr) == (1, True)


def test_a_log_that_is_being_copied_is_not_cleaned(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """decision 0040: each record is compared, at both places; what went in between would seem to be lost."""
    monkeypatch.setattr(copying, "_TURN", 1)
    old, new = f"file:{copied}", f"file:{tmp_path}/new"
    told: dict[str, Done] = {}

    def on_progress(doing: str, done: int, total: int) -> None:
        if doing not in told:
            with ThreadPoolExecutor(1) as others:
                told[doing] = others.submit(
                    invoke, "--log", old if doing == "copying" else new, "log", "compact"
                ).result()

    result = asyncio.run(copying.copy_log(old, new, progress=on_progress))
    assert result.topics["events"].records > 30
    assert told.keys() == {"copying", "checking"}
    assert [one.status for one in told.values()] == [1, 1]
    assert "is being moved to" in told["copying"].stderr
    assert "is not whole yet" in told["checking"].stderr
    assert invoke("--log", new, "log", "compact").status == 0
    assert invoke("--log", old, "log", "compact").status == 0, "what is left there is nobody's concern"
    assert invoke("--log", new, "log", "verify").status == 0
