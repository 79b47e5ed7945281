"""Text made to do harm: shown, it does none (B24); given, it reaches no file outside the log (B23)."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gasoline_es.core.ids import partition_of
from tests.cli.histories import HOSTILE, Story, append
from tests.cli.terminal import invoke, plain, run, run_on_terminal

# C0 but the line feed, DEL, C1, separators, bidi controls, zero width and tags: nothing a terminal acts upon.
CONTROL = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e0fff]"
)


def harmless(shown: str) -> str:
    """The text without the command line's own styles, in which no control character is left."""
    text = plain(shown)
    assert CONTROL.search(text) is None, ascii(text)
    return text


# --- B24 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 400])
def test_list_on_a_terminal_shows_hostile_text_as_escapes_one_row_for_each_workflow(story: Story, columns: int) -> None:
    done = run_on_terminal("--log", story.url, "workflow", "list", columns=columns)
    assert (done.status, done.stderr) == (0, "")
    rows = harmless(done.stdout).split("\n")
    below = [row for row in rows[1:-2] if row.startswith("    ")]  # the tags of the dead, where they have no room
    assert [row[:36] for row in rows[1:-2] if row not in below] == story.ids
    assert rows[-2:] == ["5 workflows: 2 sleeping, 1 complete, 2 dead", ""]
    assert "\x1b[" in done.stdout  # its own styles are there
    if columns == 400:
        shown = "\n".join(rows)
        assert r"\x1b[31mred\x1b[0m\x1b[2J\x1b]0;title\x07\r\nforged  row\tx\x9b1m\x85\x7f\x00 \u202egnp" in shown
        assert "[red]markup[/red] :smile: 日本語" in shown


@pytest.mark.parametrize(
    "command",
    [
        ("workflow", "revive", "--error", "", "--dry-run"),
        ("signal", "list"),
        ("registry",),
    ],
)
def test_what_an_operator_looks_at_shows_hostile_text_as_escapes(story: Story, command: tuple[str, ...]) -> None:
    done = run_on_terminal("--log", story.url, *command, columns=400)
    assert (done.status, done.stderr) == (0, "")
    text = harmless(done.stdout)
    assert not any(line.startswith("forged") for line in text.split("\n"))
    assert text.strip() != ""


@pytest.mark.parametrize("command", ["get", "history"])
@pytest.mark.parametrize("columns", [40, 1000])
def test_one_workflow_on_a_terminal_shows_hostile_text_as_escapes(story: Story, command: str, columns: int) -> None:
    done = run_on_terminal("--log", story.url, "workflow", command, story.hostile, "--full", columns=columns)
    assert (done.status, done.stderr) == (0, "")
    text = harmless(done.stdout)
    assert not any(line.startswith("forged") for line in text.split("\n"))
    if columns == 1000:
        assert r"NotRetryable: \x1b[31mred\x1b[0m\x1b[2J" in text
        assert r'"\u001b[31mred\u001b[0m\u001b[2J\u001b]0;title\u0007\r\nforged  row\tx\u009b1m\u0085\u007f' in text
        assert text.count("[red]markup[/red] :smile: 日本語") >= 4


def test_every_other_command_on_a_terminal_shows_no_control_character_of_the_log(story: Story) -> None:
    harmless(run_on_terminal("--log", story.url, "log", "info").stdout)
    harmless(run_on_terminal("--log", story.url, "log", "dump").stdout)
    harmless(run_on_terminal("--log", story.url, "workflow", "history", story.hostile, "--json").stdout)


def test_json_is_valid_and_gives_the_exact_text_back(story: Story) -> None:
    listed = invoke("--log", story.url, "workflow", "list", "--name", "hostile")
    (found,) = listed.objects
    assert found["tags"] == {"text": HOSTILE, HOSTILE: "1"}
    assert HOSTILE in found["error"]["message"]
    got = invoke("--log", story.url, "workflow", "get", story.hostile)
    assert got.objects[0]["input"] == HOSTILE
    history = invoke("--log", story.url, "workflow", "history", story.hostile)
    assert history.objects[0]["data"]["input"] == HOSTILE
    assert next(e["data"]["error"] for e in history.objects if "error" in e["data"])["message"] == HOSTILE
    dumped = invoke("--log", story.url, "log", "dump", "--workflow", story.hostile, "--topic", "events", "--values")
    assert dumped.objects == history.objects
    for done in (listed, got, history, dumped):
        assert CONTROL.search(done.stdout) is None


def test_a_text_that_draws_a_tree_cannot_forge_a_line_of_the_tree(tmp_path: Path, story: Story) -> None:
    text = " ".join(["├── completed │ └── output"] * 20)
    forged = forge(story, tmp_path, data={"name": "forged", "input": text, "tags": {"t": text}, "unique": False})
    for columns in range(40, 60):
        shown = invoke("--log", forged.url, "workflow", "history", forged.waiting, "--text", columns=columns).stdout
        assert "── completed" not in re.sub(r"\\u\w{4}\S* completed", "", shown)
        assert shown.count("├") + shown.count("└") == 3
    (event,) = invoke("--log", forged.url, "workflow", "history", forged.waiting, "--json").objects
    assert event["data"]["input"] == text


def test_names_and_ids_that_no_library_would_write_are_escaped_too(tmp_path: Path, story: Story) -> None:
    forged = forge(
        story, tmp_path, data={"name": HOSTILE, "input": None, "tags": {}, "unique": False}, workflow=HOSTILE
    )
    for args in (["list"], ["get", forged.waiting], ["history", forged.waiting]):
        done = run_on_terminal("--log", forged.url, "workflow", *args)
        assert done.status == 0
        assert r"\x1b[31mred" in harmless(done.stdout)


def test_an_event_of_a_newer_version_is_shown_as_unreadable(tmp_path: Path, story: Story) -> None:
    forged = forge(story, tmp_path, data={"any": HOSTILE}, kind="gasoline.workflow.\x1b[2Jdreamt.v1")
    (found,) = invoke("--log", forged.url, "workflow", "list", "--status", "unreadable").objects
    assert found["id"] == forged.waiting
    done = run_on_terminal("--log", forged.url, "workflow", "history", forged.waiting)
    assert r"unreadable  event 1 of type gasoline.workflow.\x1b[2Jdreamt.v1" in " ".join(
        harmless(done.stdout).split("\n")
    )


@pytest.mark.parametrize("value", [b'{"no":"event"}', b"[]", b'{"subject":1}', b"7"])
def test_a_record_that_is_no_event_is_named_and_the_rest_is_shown(tmp_path: Path, story: Story, value: bytes) -> None:
    copied = replace(story, directory=tmp_path / "copy")
    shutil.copytree(story.directory, copied.directory, symlinks=True)
    append(copied.directory, partition_of(story.fulfil, 4), f"{story.fulfil}/99", value)
    done = invoke("--log", copied.url, "workflow", "list")
    assert done.status == 1
    assert [found["id"] for found in done.objects] == story.ids
    assert re.fullmatch(r"gasoline: topic default\.events, partition \d, offset \d+: .*\n", done.stderr)
    got = invoke("--log", copied.url, "workflow", "get", story.fulfil, "--text")
    assert got.status == 1
    assert "output     " in got.stdout


@pytest.mark.parametrize("args", [["get"], ["history"], ["get", "--text"], ["history", "--json"]])
def test_an_unknown_id_goes_to_stderr_as_one_harmless_line_and_fails(story: Story, args: list[str]) -> None:
    unknown = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"
    for workflow_id in (unknown, unknown.upper(), HOSTILE, "\udcff"):
        done = invoke("--log", story.url, "workflow", *args, "--", workflow_id)
        assert (done.status, done.stdout) == (1, "")
        assert len(harmless(done.stderr).splitlines()) == 1


def test_hostile_arguments_of_a_real_process_are_escaped_on_stderr(story: Story) -> None:
    text = HOSTILE.replace("\x00", "")
    done = run_on_terminal("--log", story.url, "workflow", "get", text, stderr=True)
    assert done.status == 1
    assert r"no workflow has the id '\x1b[31mred" in harmless(done.stdout)
    done = run_on_terminal("--log", f"file:{text}", "workflow", "list", stderr=True)
    assert done.status == 1
    assert len(harmless(done.stdout).splitlines()) == 1


# --- B23 --------------------------------------------------------------------------------------------------------------

NAMES = ["../../x", "..\\x", "/etc/passwd", "a\0b", ".", "", ".lock", "x" * 300, "default/../x", "\udcff"]


@pytest.fixture
def guarded(story: Story, tmp_path: Path) -> Iterator[Story]:
    """A copy of the log with sentinels around it; nothing may be there afterwards that was not before, nor changed."""
    copied = replace(story, directory=tmp_path / "a" / "b" / "log")
    shutil.copytree(story.directory, copied.directory, symlinks=True)
    for name in ("x", "x.jsonl", ".lock", "0", "passwd", "a/x", "a/b/x", "a/b/.lock", "a/b/log/x"):
        (tmp_path / name).write_text("sentinel")
    before = everything(tmp_path)
    yield copied
    assert everything(tmp_path) == before


def everything(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    found: dict[str, tuple[int, int, bytes]] = {}
    for path in sorted(directory.rglob("*")):
        if "projections" in path.relative_to(directory).parts:
            continue  # who reads a SQLite database notes that in a file beside it, for as long as it is read
        stat = path.lstat()
        found[str(path)] = (stat.st_mode, stat.st_mtime_ns, path.read_bytes() if path.is_file() else b"")
    return found


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_hostile_ids_names_and_topics_are_refused_or_not_found(guarded: Story, name: str) -> None:
    log = ["--log", guarded.url]
    for args in (
        ["workflow", "get", "--", name],
        ["workflow", "history", "--", name],
        ["log", "dump", "--workflow", name],
        ["workflow", "list", "--name", name],
    ):
        done = invoke(*log, *args)
        assert (done.status, done.stdout) in ((1, ""), (2, "")), args
        assert len(harmless(done.stderr).splitlines()) == 1
    for args in (
        ["workflow", "list", "--tag", f"order={name}"],
        ["workflow", "list", "--tag", f"{name}=42"],
        ["workflow", "list", "--error", f"{name}!"],
        ["log", "dump", "--key", name],
        ["log", "dump", "--topic", f"default.{name}"],
    ):
        done = invoke(*log, *args)
        assert (done.status, done.stdout) == (0, ""), args
    done = invoke(*log, "log", "dump", "--topic", name)
    assert done.stdout == ""
    assert done.status in (0, 2)
    if name:
        for args in (["workflow", "list"], ["log", "info"], ["log", "verify"], ["log", "dump"]):
            done = invoke(*log, "--namespace", name, *args)
            assert (done.status, done.stdout) == (2, ""), args
            assert len(harmless(done.stderr).splitlines()) == 1


def test_no_command_changes_anything_in_or_around_the_log(guarded: Story) -> None:
    log = ["--log", guarded.url]
    for args in (["workflow", "list"], ["workflow", "get", guarded.fulfil], ["workflow", "history", guarded.fulfil]):
        assert invoke(*log, *args).status == 0
    for args in (["info"], ["verify"], ["dump"]):
        assert invoke(*log, "log", *args).status == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_can_be_looked_at(guarded: Story) -> None:
    for path in guarded.directory.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert run("--log", guarded.url, "workflow", "list").status == 0
    finally:
        for path in guarded.directory.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)


# ----------------------------------------------------------------------------------------------------------------------


def forge(
    story: Story,
    to: Path,
    data: dict[str, object],
    *,
    kind: str = "gasoline.workflow.dispatched.v1",
    workflow: str = "forged",
) -> Story:
    """Make a copy of the log with one more workflow, whose first event somebody else wrote; ``waiting`` is its id."""
    copied = replace(story, directory=to / "forged", waiting="0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f")
    shutil.copytree(story.directory, copied.directory, symlinks=True)
    event = {
        "specversion": "1.0",
        "id": f"{copied.waiting}/1",
        "source": "/gasoline/default",
        "type": kind,
        "subject": copied.waiting,
        "time": "2026-01-01T00:00:00.000000Z",
        "seq": 1,
        "partition": 2,
        "epoch": 1,
        "workflow": workflow,
        "rayid": copied.waiting,
        "worker": "forger",
        "data": data,
    }
    value = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    append(copied.directory, partition_of(copied.waiting, 4), f"{copied.waiting}/1", value)
    return copied
