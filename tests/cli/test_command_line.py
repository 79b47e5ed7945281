"""The shell's side: help, errors in one line, exit statuses, pipes, terminals, a worker beside, and what gets loaded."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gasoline_es import Gasoline
from tests.cli.histories import Order, Story, waiting
from tests.cli.terminal import environment, invoke, plain, run, run_on_terminal

COMMANDS = [
    ("workflow", "list"),
    ("workflow", "get"),
    ("workflow", "history"),
    ("workflow", "dispatch"),
    ("workflow", "wake"),
    ("workflow", "revive"),
    ("workflow", "cancel"),
    ("workflow", "silence"),
    ("workflow", "recover"),
    ("workflow", "rerun"),
    ("workflow", "prune-history"),
    ("signal", "list"),
    ("signal", "get"),
    ("signal", "send"),
    ("registry",),
    ("log", "info"),
    ("log", "verify"),
    ("log", "dump"),
    ("replay-check",),
]


# --- help -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [(), *COMMANDS], ids=" ".join)
def test_the_help_of_each_command_has_an_example_and_fits_into_80_columns(command: tuple[str, ...]) -> None:
    done = invoke(*command, "--help")
    assert (done.status, done.stderr) == (0, "")
    assert "\n  Example" in done.stdout
    assert (
        f"gasoline --log file:./data {' '.join(command)}" in done.stdout
        or f"gasoline {' '.join(command)}" in done.stdout
    )
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert not command or "--json" in done.stdout


@pytest.mark.parametrize("command", [(), ("workflow",), ("signal",), ("log",)], ids=" ".join)
def test_without_a_command_the_help_is_shown_as_a_mistake(command: tuple[str, ...]) -> None:
    done = invoke(*command)
    assert (done.status, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: gasoline")


def test_the_version_is_the_packages(empty_log: str) -> None:
    from importlib.metadata import version

    assert run("--version").stdout == f"gasoline {version('gasoline_es')}\n"


def test_the_documented_keys_are_those_that_are_written(story: Story) -> None:
    shown = invoke("workflow", "list", "--help").stdout.partition("JSON keys:")[2]
    for key in invoke("--log", story.url, "workflow", "list").objects[0]:
        assert key in shown
    shown = invoke("log", "dump", "--help").stdout.partition("JSON keys:")[2]
    for key in invoke("--log", story.url, "log", "dump").objects[0]:
        assert key in shown
    shown = invoke("log", "info", "--help").stdout.partition("JSON,")[2]
    (info,) = invoke("--log", story.url, "log", "info").objects
    for key in (*info, *info["owners"][0], *info["segments"][0]):
        assert key in shown


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "status", "told"),
    [
        (["workflow", "list"], 2, "no log was given: write gasoline --log file:DIRECTORY …, or set GASOLINE_LOG"),
        (["--log", "data", "workflow", "list"], 2, "'data' is not the URL of a log: write file:DIRECTORY"),
        (["--log", "file:", "log", "info"], 2, "'file:' is not the URL of a log"),
        (["--log", "https://host/x", "log", "info"], 2, "is not the URL of a log"),
        (["--log", "memory:", "log", "info"], 2, "lives inside the process that opened it"),
        (["--log", "file:a\0b", "log", "info"], 2, r"'file:a\x00b' cannot be a log"),
        (["--log", "file:/nowhere/at/all", "log", "info"], 1, "there is no log in /nowhere/at/all"),
        (["--log", "URL", "--namespace", "shop", "workflow", "list"], 1, "no namespace 'shop' in file:"),
        (["--log", "URL", "workflow", "get"], 2, "Missing argument 'ID'"),
        (["--log", "URL", "workflow", "lost"], 2, "No such command 'lost'"),
        (["--log", "URL", "workflow", "list", "--statsu", "x"], 2, "No such option: --statsu"),
        (["workflow", "list", "--log", "URL"], 2, "--log stands before the command: gasoline --log URL workflow list …"),
        (["--log", "URL", "workflow", "list", "--status", "tired"], 2, "'--status': 'tired' is not one of 'running'"),
        (["--log", "URL", "workflow", "list", "--tag", "order"], 2, "--tag 'order' is not a tag: write it as --tag key="),
        (["--log", "URL", "workflow", "list", "--tag", "a=1", "--tag", "a=2"], 2, "--tag 'a' was given with two values"),
        (["--log", "URL", "workflow", "list", "--since", "yesterday"], 2, "write an age such as 15m, 2h or 7d"),
        (["--log", "URL", "workflow", "list", "--since", "2026-01-01T00:00:00"], 2, "or a time with its zone such as"),
        (["--log", "URL", "workflow", "list", "--limit", "0"], 2, "for '--limit': 1 is the least there may be. See"),
        (["--log", "URL", "workflow", "list", "--limit", "x"], 2, "for '--limit': a whole number is wanted. See"),
        (["--log", "URL", "dev", "shop", "--stop-limit", "x"], 2, "for '--stop-limit': a number is wanted. See"),
        (["--log", "URL", "workflow", "lst"], 2, "No such command 'lst'. Did you mean 'list'? See gasoline workflow"),
        (["--log", "URL", "log", "dump", "--partition", "4"], 2, "--partition 4 is not one of namespace 'default'"),
        (["--log", "URL", "log", "dump", "--topic", "shop.events"], 2, "names no namespace of"),
    ],
)  # fmt: skip
def test_an_error_is_one_line_on_stderr_that_says_what_to_do(
    story: Story, args: list[str], status: int, told: str
) -> None:
    done = invoke(*[story.url if arg == "URL" else arg for arg in args])
    assert (done.status, done.stdout) == (status, "")
    assert done.stderr.startswith("gasoline: ")
    assert len(done.stderr.splitlines()) == 1
    assert told in done.stderr


def test_a_manifest_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format":99}')
    assert "this version reads format 1" in invoke("--log", f"file:{tmp_path}", "log", "info").stderr
    (tmp_path / "manifest.json").write_text("[\x1b[2J")
    done = invoke("--log", f"file:{tmp_path}", "log", "info")
    assert (done.status, done.stdout) == (1, "")
    assert "is not a log's manifest" in done.stderr
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "manifest.json").mkdir()
    assert "Is a directory" in invoke("--log", f"file:{tmp_path}", "log", "info").stderr


def test_a_mistake_of_its_own_is_one_line_too_unless_asked_for_more(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("lost\x1b")

    monkeypatch.setattr("gasoline_es.cli.listing.find", broken)
    done = invoke("--log", story.url, "workflow", "list")
    assert (done.status, done.stdout) == (1, "")
    assert "a mistake in gasoline itself: KeyError: 'lost\\x1b' (set GASOLINE_TRACEBACK=1" in done.stderr
    with pytest.raises(AssertionError, match="lost"):
        invoke("--log", story.url, "workflow", "list", GASOLINE_TRACEBACK="1")


# --- the log and the form ---------------------------------------------------------------------------------------------


def test_the_log_can_be_named_by_the_environment(story: Story) -> None:
    done = run("workflow", "list", "--limit", "1", GASOLINE_LOG=story.url)
    assert (done.status, done.stderr) == (0, "")
    assert [found["id"] for found in done.objects] == story.ids[-1:]
    assert invoke("--log", story.url, "log", "info", GASOLINE_LOG="file:/nowhere").status == 0
    three = f"file://{story.directory}"
    assert invoke("--log", three, "workflow", "list").status == 0


def test_tables_on_a_terminal_json_with_the_option_or_when_piped(story: Story) -> None:
    get = ["--log", story.url, "workflow", "get", story.fulfil]
    shown = run_on_terminal(*get)
    assert shown.status == 0
    assert plain(shown.stdout).startswith(f"workflow   {story.fulfil}\nname       fulfil\n")
    assert max(map(len, plain(shown.stdout).split("\n"))) <= 80
    as_json = run_on_terminal(*get, "--json")
    assert json.loads(as_json.stdout) == invoke(*get).objects[0] == run(*get).objects[0]


def test_the_history_on_a_narrow_terminal_keeps_within_it(story: Story) -> None:
    shown = plain(run_on_terminal("--log", story.url, "workflow", "history", story.fulfil, columns=50).stdout)
    assert max(map(len, shown.split("\n"))) <= 50
    assert "├── {1.1} activity notify v2" in shown


def test_colours_can_be_switched_off_and_a_poor_locale_loses_nothing(story: Story) -> None:
    args = [sys.executable, "-c", "from gasoline_es.cli import main; main()", "--log", story.url, "workflow"]
    env = environment(PYTHONIOENCODING="ascii", NO_COLOR="1")
    done = subprocess.run([*args, "history", story.hostile, "--text"], capture_output=True, check=True, env=env)
    assert done.stdout.isascii()
    assert b"\\u65e5\\u672c" in done.stdout
    done = subprocess.run([*args, "get", story.hostile, "--json"], capture_output=True, check=True, env=env)
    assert json.loads(done.stdout)["input"].endswith("日本語 \\ end")


def test_verify_shows_its_progress_on_a_terminal_only(story: Story) -> None:
    shown = run_on_terminal("--log", story.url, "log", "verify", stderr=True)
    assert shown.status == 0
    assert "verifying" in shown.stdout
    assert "every byte is as it was written" in shown.stdout
    assert "verifying" not in run_on_terminal("--log", story.url, "log", "verify").stdout


# --- pipes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["--json", "--text"])
def test_a_reader_that_leaves_early_is_no_error_and_nothing_is_said(story: Story, form: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from gasoline_es.cli import main; main()",
            "--log",
            story.url,
            "workflow",
            "list",
            form,
        ],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        os.close(writing)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (141, b"")


# --- beside a worker --------------------------------------------------------------------------------------------------


async def test_everything_works_beside_a_running_worker(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/log"
    async with Gasoline.open(url, partitions=2) as gasoline, gasoline.worker([waiting]):
        handle = await gasoline.dispatch(waiting, Order(order="1"))
        listed = await asyncio.to_thread(run, "--log", url, "workflow", "list")
        assert [found["id"] for found in listed.objects] == [handle.id]
        info = await asyncio.to_thread(run, "--log", url, "log", "info")
        assert {(owner["alive"], owner["pid"]) for owner in info.objects[0]["owners"]} == {(True, os.getpid())}
        assert [segment["closed"] for segment in info.objects[0]["segments"]] == [False]
        verified = await asyncio.to_thread(run, "--log", url, "log", "verify")
        assert (verified.status, verified.objects[-1]["problems"]) == (0, 0)
        # The worker has noticed nothing.
        second = await gasoline.dispatch(waiting, Order(order="2"))
        got = await asyncio.to_thread(run, "--log", url, "workflow", "get", second.id)
        assert got.objects[0]["input"] == {"order": "2", "amount": 0}


# --- what gets loaded -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "absent"),
    [
        (["--help"], ["rich", "orjson", "pydantic", "pydantic_core", "asyncio", "gasoline_es.core", "gasoline_es.log"]),
        (["log", "dump", "--topic", "events"], ["rich", "gasoline_es.engine", "gasoline_es.runtime"]),
        (["registry"], ["rich", "gasoline_es.engine", "gasoline_es.runtime", "gasoline_es.definitions"]),
        (["signal", "list"], ["rich", "gasoline_es.engine", "gasoline_es.client", "gasoline_es.definitions"]),
        (["workflow", "list", "--text"], ["gasoline_es.engine", "gasoline_es.client", "gasoline_es.definitions"]),
    ],
)
def test_a_command_loads_only_what_it_needs(story: Story, args: list[str], absent: list[str]) -> None:
    code = (
        "import sys\nfrom gasoline_es.cli import main\ntry: main()\nexcept SystemExit as end: assert not end.code\n"
        f"print([name for name in {absent!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--log", story.url, *args],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    assert done.stderr == "[]\n"


def test_importing_the_entry_point_loads_nothing() -> None:
    code = "import sys, gasoline_es.cli; print([n for n in ('typer', 'rich', 'asyncio') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert done.stdout == "[]\n"
