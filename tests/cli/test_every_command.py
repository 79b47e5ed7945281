"""Required cases B23 and B24 for every command and each of its parameters, as the application itself lists them."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import Gasoline
from gasoline_es.core.announced import Announced, announced_as
from gasoline_es.log import open_log
from gasoline_es.log.port import NewRecord, Section
from tests.cli.commands import COMMANDS, NEVER_RUN, TEXTS, Command, ordinary
from tests.cli.histories import HOSTILE, Noted, Order, Story, waiting
from tests.cli.terminal import Done, invoke, run_each_on_terminal
from tests.cli.test_hostile import CONTROL, everything, forge, harmless
from tests.engine.test_hostile_names import only_a_log

UNKNOWN = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"
NAMES = ["../../x", "..\\x", "/etc/passwd", "a\0b", ".", "", ".lock", "x" * 300, "default/../x", "\udcff"]
RUN = {name: command for name, command in COMMANDS.items() if command.words not in NEVER_RUN}


def test_the_commands_are_read_from_the_application() -> None:
    assert {"workflow get", "workflow dispatch", "signal send", "registry", "worker list", "replay-check"} <= set(RUN)
    assert len(TEXTS) > 40


# --- B24: what is shown -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forged(story: Story, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The log with hostile text wherever text can stand: also where this library would never write it."""
    made = replace(story, directory=forge(
        story,
        tmp_path_factory.mktemp("forged"),
        data={"name": HOSTILE, "input": HOSTILE, "tags": {HOSTILE: HOSTILE}, "unique": False, "key": HOSTILE},
        workflow=HOSTILE,
    ).directory)  # fmt: skip
    asyncio.run(_add_a_signal_and_a_worker(made))
    return made


async def _add_a_signal_and_a_worker(story: Story) -> None:
    async with Gasoline.open(story.url) as gasoline:
        await gasoline.handle(story.waiting, waiting).signal(Noted(text=HOSTILE), id="hostile-1")
    log = await open_log(story.url)
    owned = await log.acquire(0)
    said = Announced(HOSTILE, HOSTILE, HOSTILE, (HOSTILE,), (HOSTILE,))
    record = NewRecord("default.registry", 0, announced_as(HOSTILE), said.json(), 1_767_225_600_000_000)
    await log.append([Section(0, owned.epoch, [record])])
    await log.close()


def copies(story: Story, under: Path) -> Iterator[str]:
    """Yield URLs of copies of a log, each for one command: it may change what it is given."""
    number = 0
    while True:
        number += 1
        shutil.copytree(story.directory, under / f"{number}", symlinks=True)
        yield f"file:{under}/{number}"


def settings_of(story: Story, command: Command) -> dict[str, str]:
    given = ordinary(story, story.hostile)
    if command.words in (("signal", "get"), ("signal", "discard")):
        given["id"] = "hostile-1"
    return given


def assert_shown_safely(done: Done, call: object) -> None:
    text = harmless(done.stdout) + harmless(done.stderr)
    assert not any(line.startswith("forged") for line in text.split("\n")), (call, text)
    assert "a mistake in gasoline itself" not in text, (call, text)


def test_every_command_shows_hostile_text_as_escapes_on_a_terminal(forged: Story, tmp_path: Path) -> None:
    """required.md B24: with each of its flags too; human output has no control character but the command line's own."""
    urls = copies(forged, tmp_path)
    calls: list[list[str]] = []
    for command in RUN.values():
        plain_call = command.typed(settings_of(forged, command))
        flags = [one.option for one in command.parameters if one.option is not None and not one.takes]
        for flag in (None, *flags):
            words = len(command.words)
            extra = [] if flag is None else [flag]
            calls.append(["--log", next(urls), *plain_call[:words], *extra, *plain_call[words:]])
    shown = dict(zip(map(tuple, calls), run_each_on_terminal(calls), strict=True))
    for call, done in shown.items():
        assert_shown_safely(done, call)
        assert done.status in (0, 1), (call, done.stdout)
    seen = {tuple(call[2:5]) for call, done in shown.items() if "[31mred" in done.stdout}
    for words in (("workflow", "list"), ("workflow", "get"), ("workflow", "history"), ("registry",), ("signal", "get")):
        assert any(one[: len(words)] == words for one in seen), f"{words} shows nothing of it: the log is too tame"


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():  # pyright: ignore[reportUnknownVariableType]
            yield from texts_in(name)
            yield from texts_in(inner)
    elif isinstance(value, list):
        for inner in value:  # pyright: ignore[reportUnknownVariableType]
            yield from texts_in(inner)


@pytest.mark.parametrize("name", [name for name, command in RUN.items() if command.json])
def test_every_command_gives_json_that_is_valid_and_exact(forged: Story, tmp_path: Path, name: str) -> None:
    """required.md B24: JSON stays valid and gives the exact string back."""
    command = RUN[name]
    url = next(copies(forged, tmp_path))
    call = command.typed(settings_of(forged, command))
    extra = {"registry": ["--all"], "log dump": ["--values"], "signal get": []}.get(name, [])
    done = invoke("--log", url, *command.words, *extra, "--json", *call[len(command.words) :])
    assert CONTROL.search(done.stdout) is None
    assert done.status in (0, 1), done.stderr
    found = list(texts_in(done.objects))
    if name in ("workflow list", "workflow get", "workflow history", "registry", "log dump", "signal get"):
        assert HOSTILE in found
    harmless(done.stderr)


def test_a_hostile_host_is_shown_as_escapes(story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """required.md B24: what a worker says of itself is text of others, too."""
    url = next(copies(story, tmp_path))
    host = "\x1b[2J\r\nforged\x9b1m\u202e"
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    calls = [
        ["--log", url, *words] for words in (["worker", "list"], ["registry"], ["log", "info"], ["workflow", "list"])
    ]

    async def look() -> tuple[list[Done], Done]:
        async with Gasoline.open(url) as gasoline, gasoline.worker([waiting]):
            await gasoline.dispatch(waiting, Order(order="1"))
            shown = await asyncio.to_thread(run_each_on_terminal, calls)
            return shown, await asyncio.to_thread(invoke, "--log", url, "worker", "list", "--json")

    shown, listed = asyncio.run(look())
    for call, done in zip(calls, shown, strict=True):
        assert done.status == 0, (call, done.stdout)
        assert_shown_safely(done, call)
    assert r"\x1b[2J\r\nforged\x9b1m\u202e" in shown[0].stdout
    assert listed.objects[0]["host"] == host


def test_every_command_answers_hostile_arguments_with_escapes(story: Story, tmp_path: Path) -> None:
    """required.md B24: passed as an argument; what is refused is said in one line."""
    urls = copies(story, tmp_path)
    calls: list[list[str]] = []
    for name, parameter in TEXTS:
        command = COMMANDS[name]
        text = f"{HOSTILE}={HOSTILE}" if parameter == "tag" else HOSTILE
        calls.append(["--log", next(urls), *command.typed(settings_of(story, command), parameter, text)])
        if parameter in ("input", "body"):
            calls.append(
                ["--log", next(urls), *command.typed(settings_of(story, command), parameter, json.dumps(HOSTILE))]
            )
    for call, done in zip(calls, run_each_on_terminal(calls), strict=True):
        assert_shown_safely(done, call)
        if done.status:
            assert done.status in (1, 2), (call, done)
            assert done.stdout == "", call
            assert len(done.stderr.splitlines()) == 1, (call, done.stderr)
            assert done.stderr.startswith("gasoline: "), (call, done.stderr)


WITH_AN_ID = [
    name for name, command in RUN.items() if any(p.name == "id" and p.option is None for p in command.parameters)
]


@pytest.mark.parametrize("name", WITH_AN_ID)
@pytest.mark.parametrize("form", ["--json", "--text"])
def test_every_command_says_an_unknown_id_on_stderr_and_fails(
    story: Story, tmp_path: Path, name: str, form: str
) -> None:
    """required.md B24: an unknown id goes to stderr with a non-zero exit code."""
    command, url = RUN[name], next(copies(story, tmp_path))
    call = command.typed({**settings_of(story, command), "id": UNKNOWN})
    done = invoke("--log", url, *command.words, form, *call[len(command.words) :])
    assert (done.status, done.stdout) == (1, "")
    assert len(harmless(done.stderr).splitlines()) == 1
    assert UNKNOWN in done.stderr


def test_a_signal_for_an_unknown_id_is_refused_on_stderr(story: Story, tmp_path: Path) -> None:
    done = invoke("--log", next(copies(story, tmp_path)), "signal", "send", "paid", "{}", "--to", UNKNOWN)
    assert (done.status, done.stdout) == (1, "")
    assert UNKNOWN in done.stderr


# --- B23: what is given -----------------------------------------------------------------------------------------------


@pytest.fixture
def surrounded(story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    """A copy of the log with sentinels on all sides of it and of the working directory; afterwards they are as they were.

    Commands may change the log: there nothing may stand then that does not belong to one.
    """
    copied = replace(story, directory=tmp_path / "a" / "b" / "log")
    shutil.copytree(story.directory, copied.directory, symlinks=True)
    for name in ("x", "x.jsonl", ".lock", "passwd", "a/x", "a/.lock", "a/b/x", "a/b/.lock", "a/b/passwd"):
        (tmp_path / name).write_text("sentinel")
    monkeypatch.chdir(tmp_path / "a" / "b")
    before = around(tmp_path, copied.directory)
    yield copied
    assert around(tmp_path, copied.directory) == before
    only_a_log(copied.directory)


def around(directory: Path, log: Path) -> dict[str, tuple[int, int, bytes]]:
    found = {path: seen for path, seen in everything(directory).items() if not Path(path).is_relative_to(log)}
    assert found
    return found


@pytest.mark.parametrize("one_of", [3, pytest.param(1, marks=pytest.mark.soak, id="every name")])
@pytest.mark.parametrize("name", sorted({name for name, _ in TEXTS}))
def test_no_command_makes_a_path_of_what_it_is_given(surrounded: Story, name: str, one_of: int) -> None:
    """required.md B23: every command, each of its parameters; refused, not found, or taken as data.

    Each parameter gets one of three names, each another third; the soak gives each of them all.
    """
    command = COMMANDS[name]
    for number, (of, parameter) in enumerate(TEXTS):
        if of != name:
            continue
        for text in NAMES[number % one_of :: one_of]:
            for value in (f"order={text}", f"{text}=42") if parameter == "tag" else (text,):
                call = command.typed(settings_of(surrounded, command), parameter, value)
                done = invoke("--log", surrounded.url, *call)
                assert done.status in (0, 1, 2), call
                harmless(done.stderr)
                assert CONTROL.search(done.stdout) is None
                assert "a mistake in gasoline itself" not in done.stderr, (call, done.stderr)
                if parameter == "id" and command.words not in (("signal", "send"), ("signal", "get")):
                    assert (done.status, done.stdout) == (1, ""), call
                if parameter == "name":
                    assert (done.status, done.stdout) == (2, ""), call


def test_tags_and_keys_given_to_a_command_are_data_kept_exactly(surrounded: Story) -> None:
    """required.md B23: tag values are stored and returned exactly, never a path."""
    for text in NAMES:
        done = invoke("--log", surrounded.url, "workflow", "dispatch", "waiting", "null", "--tag", f"order={text}")
        if text == "\udcff":
            assert (done.status, done.stdout) == (1, "")
            continue
        (made,) = done.objects
        (got,) = invoke("--log", surrounded.url, "workflow", "get", made["id"]).objects
        assert got["tags"] == {"order": text}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_command_takes_a_hostile_url_for_a_log(surrounded: Story, name: str) -> None:
    """required.md B23: a log is named by a URL; what is none is refused, and nothing is made."""
    command = COMMANDS[name]
    for text in ("../../x", "..\\x", "/etc/passwd", ".", ".lock", "x" * 300, "a\0b"):
        done = invoke("--log", text, *command.typed(settings_of(surrounded, command)))
        assert done.status in (1, 2), (text, done)
        assert done.stdout == ""
        assert len(harmless(done.stderr).splitlines()) == 1
