"""`gasoline log copy` and `log reopen`: what they say, and with which status (0040)."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gasoline_es import Gasoline
from gasoline_es.log import copying
from gasoline_es.log.opening import open_log
from tests.cli.histories import PARTITIONS, Story
from tests.cli.terminal import environment, invoke, run_each_on_terminal
from tests.engine.workflows import echo


@pytest.fixture
def url(story: Story, tmp_path: Path) -> str:
    """The log with everything in it, of this test's own."""
    shutil.copytree(story.directory, tmp_path / "old", symlinks=True)
    return f"file:{tmp_path}/old"


def events(url: str) -> list[dict[str, object]]:
    dumped = invoke("--log", url, "log", "dump", "--topic", "events", "--values").objects
    return sorted(dumped, key=lambda one: str(one["id"]))


def test_a_log_is_moved_and_the_old_place_closed(url: str, tmp_path: Path) -> None:
    new = f"file:{tmp_path}/new"
    done = invoke("log", "copy", url, new, "--partitions", "7", "--json")
    assert (done.status, done.stderr) == (0, "")
    (told,) = done.objects
    assert list(told) == ["source", "target", "namespace", "partitions", "topics", "again"]
    assert (told["partitions"], told["again"]) == ([PARTITIONS, 7], False)
    assert told["topics"]["events"]["records"] == len(events(url)) == len(events(new))
    assert events(new) == events(url)
    refused = invoke("--log", url, "workflow", "dispatch", "fulfil", "null")
    assert refused.status == 1
    assert f"was moved to {new} at" in refused.stderr
    assert invoke("--log", url, "workflow", "list").status == 0, "it can be looked at"
    assert invoke("log", "copy", url, new).objects[0]["again"]
    listed = [invoke("--log", one, "workflow", "list", "--json").objects for one in (new, url)]
    here, there = ({one["id"]: one | {"partition": None} for one in found} for found in listed)
    assert here == there


def test_what_is_said_on_a_terminal_fits_into_80_columns(url: str, tmp_path: Path) -> None:
    new = f"file:{tmp_path}/new"
    first, again = run_each_on_terminal([["log", "copy", url, new], ["log", "copy", url, new]])
    assert first.status == again.status == 0
    assert "all is copied, and was read again there: it goes on at the new place" in first.stdout.replace("\r\n", " ")
    assert "all of it had been copied before" in again.stdout


def test_a_copy_that_was_broken_off_is_given_up(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = f"file:{tmp_path}/new"
    monkeypatch.setattr(copying._Copying, "_open_new", _no_more)
    assert invoke("log", "copy", url, new).status == 1
    closed = invoke("--log", url, "workflow", "dispatch", "fulfil", "null")
    assert (closed.status, "`gasoline log reopen`" in closed.stderr) == (1, True)
    half = invoke("--log", new, "workflow", "dispatch", "fulfil", "null")
    assert (half.status, "is a copy of" in half.stderr) == (1, True)
    assert invoke("--log", url, "log", "reopen", "--json").objects == [{"url": url, "namespace": "default"}]
    assert invoke("--log", url, "log", "reopen").status == 1
    monkeypatch.undo()
    assert invoke("log", "copy", url, new).status == 0


async def _no_more(self: object) -> None:
    raise OSError("the machine is switched off")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["log", "copy", "memory:a", "file:b"], 2, "'memory:a' is not the URL of a log that lasts"),
        (["log", "copy", "file:a", "file://host/b"], 1, "names a host"),
        (["--namespace", "other", "log", "copy", "kafka://h:1/shop", "file:b"], 1, "two namespaces are named"),
        (["log", "copy", "file:a", "file:b", "--partitions", "0"], 2, "partitions"),
        (["log", "copy", "file:a"], 2, "TO"),
        (["log", "reopen"], 2, "no log was given"),
        (["--log", "memory:a", "log", "reopen"], 2, "not the URL of a log that lasts"),
    ],
)
def test_what_cannot_be_meant_is_said(
    arguments: list[str], status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = invoke(*arguments)
    assert done.status == status, done.stderr
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing is made"


def test_a_log_that_is_worked_on_is_refused(url: str, tmp_path: Path) -> None:
    async def beside() -> str:
        async with Gasoline.open(url):
            return (await asyncio.to_thread(invoke, "log", "copy", url, f"file:{tmp_path}/new")).stderr

    assert "is open for writing elsewhere (process " in asyncio.run(beside())


@pytest.mark.soak
def test_killed_at_any_time_and_run_again_it_comes_to_its_end(tmp_path: Path) -> None:
    old, new = f"file:{tmp_path}/old", f"file:{tmp_path}/new"

    async def fill() -> None:
        async with Gasoline.open(old, partitions=8) as gasoline, gasoline.worker([echo]):
            handles = [await gasoline.dispatch(echo, f"{n}", key=f"{n}") for n in range(1_500)]
            for handle in handles:
                await handle.output()

    asyncio.run(fill())
    before = events(old)
    slow = "from gasoline_es.log import copying; copying._APPEND_RECORDS = 50; from gasoline_es.cli import main; main()"
    command = [sys.executable, "-c", slow, "log", "copy", old, new, "--partitions", "5", "--json"]
    chance, killed = random.Random(4), 0
    while True:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        time.sleep(0.3 + chance.random() * (1 + killed / 10))  # whatever it is at then
        if process.poll() is not None:
            out, err = process.communicate()
            assert process.returncode == 0, err
            break
        process.kill()
        process.communicate()
        killed += 1
    assert killed > 2
    assert json.loads(out)["partitions"] == [8, 5]
    assert events(new) == before

    async def listed() -> int:
        log = await open_log(new)
        await log.close()
        async with Gasoline.open(new) as gasoline:
            return len([info async for info in gasoline.list() if info.status == "complete"])

    assert asyncio.run(listed()) == 1_500
