"""`gasoline log info`, `verify` and `dump`; damage is named and what is sound is still shown (B02)."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gasoline_es.log import open_log
from tests.cli.histories import PARTITIONS, Story
from tests.cli.terminal import Done, invoke, jq

TOPICS = ("events", "index", "registry", "inbox", "replies")


# --- info -------------------------------------------------------------------------------------------------------------


def test_info_gives_namespaces_owners_and_segments(story: Story) -> None:
    (found,) = invoke("--log", story.url, "log", "info").objects
    assert list(found) == ["url", "log_id", "namespaces", "owners", "segments", "torn", "problems"]
    assert found["url"] == story.url
    assert found["namespaces"] == {"default": PARTITIONS}
    assert found["log_id"] == json.loads((story.directory / "manifest.json").read_text())["log"]
    assert found["owners"]
    assert {owner["released"] for owner in found["owners"]} == {True}
    assert [segment["number"] for segment in found["segments"]] == [1, 2]
    assert sum(segment["records"] for segment in found["segments"]) == len(dump(story).objects)
    assert found["torn"] == []


def test_info_as_text_fits_into_80_columns(story: Story) -> None:
    shown = invoke("--log", story.url, "log", "info", "--text", columns=80).stdout
    assert "segments    2: " in shown
    assert "default, 4 partitions" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_info_shows_the_owners_of_every_namespace_and_partitions_nobody_ever_took(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/two"

    async def make() -> None:
        shop = await open_log(url, namespace="shop", partitions=4)
        stock = await open_log(url, namespace="stock", partitions=2)
        await shop.acquire(0)
        await shop.acquire(1)
        await stock.acquire(1)
        living = [(o["namespace"], o["partition"], o["alive"]) for o in (await info())["owners"]]
        assert living == [("shop", 0, True), ("shop", 1, True), ("stock", 1, True)]
        await shop.close()
        await stock.close()

    async def info() -> Any:
        return (await asyncio.to_thread(invoke, "--log", url, "log", "info")).objects[0]

    asyncio.run(make())
    shown = invoke("--log", url, "log", "info", "--text").stdout
    rows = [line.split() for line in shown.splitlines() if line.startswith(("shop", "stock"))]
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        ("shop", "0-1", "released"),
        ("shop", "2-3", "owned"),
        ("stock", "1", "released"),
        ("stock", "0", "owned"),
    ]
    only = invoke("--log", url, "--namespace", "stock", "log", "info").objects[0]
    assert [owner["namespace"] for owner in only["owners"]] == ["stock"]


def test_info_tells_of_a_torn_tail(torn: Story) -> None:
    (found,) = invoke("--log", torn.url, "log", "info").objects
    assert len(found["torn"]) == 1
    assert "segment 3" in found["torn"][0]
    assert "torn" in invoke("--log", torn.url, "log", "info", "--text").stdout


# --- verify -----------------------------------------------------------------------------------------------------------


def test_verify_passes_a_sound_log_segment_by_segment(story: Story) -> None:
    done = invoke("--log", story.url, "log", "verify")
    assert (done.status, done.stderr) == (0, "")
    *segments, summary = done.objects
    assert [(s["kind"], s["number"], s["closed"]) for s in segments] == [("segment", 1, True), ("segment", 2, True)]
    size = sum(path.stat().st_size for path in (story.directory / "segments").glob("*.jsonl"))
    records = sum(segment["records"] for segment in segments)
    assert summary == {"kind": "summary", "segments": 2, "bytes": size, "records": records, "problems": 0}
    text = invoke("--log", story.url, "log", "verify", "--text")
    assert (text.status, text.stderr) == (0, "")
    assert text.stdout.endswith("every byte is as it was written\n")


def test_verify_takes_a_torn_tail_for_no_damage(torn: Story) -> None:
    done = invoke("--log", torn.url, "log", "verify", "--text")
    assert done.status == 0
    assert "torn, which is no damage: segment 3" in done.stdout


def body(lines: list[bytes]) -> int:
    """A byte of a payload in the middle of the segment."""
    found = [number for number, line in enumerate(lines) if line.startswith(b'{"topic"')]
    return sum(map(len, lines[: found[len(found) // 2]])) + 300


def batch_header(lines: list[bytes]) -> int:
    """A digit of the length that a batch in the middle of the segment declares."""
    found = [number for number, line in enumerate(lines) if line.startswith(b'{"batch"')]
    number = found[len(found) // 2]
    return sum(map(len, lines[:number])) + lines[number].index(b'"bytes":') + 9


def segment_header(lines: list[bytes]) -> int:
    return lines[0].index(b'"writer"') + 12


@pytest.mark.parametrize("place", [body, batch_header, segment_header])
def test_one_flipped_bit_is_named_by_every_command_and_nothing_before_it_is_lost(
    story: Story, tmp_path: Path, place: Callable[[list[bytes]], int]
) -> None:
    broken = copy(story, tmp_path)
    segment = broken.directory / "segments" / "0000000001.jsonl"
    data = bytearray(segment.read_bytes())
    position = place(bytes(data).splitlines(keepends=True))
    data[position] ^= 1
    segment.write_bytes(data)
    (segment.parent / "0000000001.index").unlink(missing_ok=True)
    shutil.rmtree(broken.directory / "projections")  # else little of the log is read to list what there is
    before = contents(broken.directory)

    done = invoke("--log", broken.url, "log", "verify")
    problems = jq('select(.kind == "problem")', done.stdout)
    assert done.status == 1
    assert [problem["segment"] for problem in problems] == [1]
    assert problems[0]["position"] <= position
    named(done, f"segment 1, byte {problems[0]['position']}")
    assert "damaged: segment 1, byte" in invoke("--log", broken.url, "log", "verify", "--text").stdout

    dumped = dump(broken)
    named(dumped, "segment 1", f"byte {problems[0]['position']}")
    assert all(record in dump(story).objects for record in dumped.objects)
    if place is body:
        assert len(dumped.objects) > 10

    listed = invoke("--log", broken.url, "workflow", "list", "--text")
    named(listed, "segment 1")
    assert listed.stdout.startswith("ID")
    for command in ("get", "history"):
        damaged = [invoke("--log", broken.url, "workflow", command, workflow_id) for workflow_id in story.ids]
        assert any(done.status == 1 for done in damaged)
        for done in damaged:
            if done.status:
                named(done, "segment 1")
    info = invoke("--log", broken.url, "log", "info")
    assert info.status == 0
    assert ["segment 1" in problem for problem in info.objects[0]["problems"]] == ([] if place is body else [True])
    assert contents(broken.directory) == before


def test_a_missing_segment_file_ends_in_one_line(story: Story, tmp_path: Path) -> None:
    broken = copy(story, tmp_path)
    (broken.directory / "segments" / "0000000001.jsonl").write_bytes(b"")
    named(invoke("--log", broken.url, "workflow", "list"), "segment 1")
    named(invoke("--log", broken.url, "log", "verify"), "segment 1")


# --- dump -------------------------------------------------------------------------------------------------------------


def dump(story: Story, *args: str) -> Done:
    return invoke("--log", story.url, "log", "dump", *args)


def recorded(story: Story) -> list[dict[str, Any]]:
    paths = sorted((story.directory / "segments").glob("*.jsonl"))
    lines = [json.loads(line) for path in paths for line in path.read_text().split("\n")[:-1]]
    return [line for line in lines if "topic" in line]


def test_dump_gives_every_record_of_the_log(story: Story) -> None:
    done = dump(story)
    assert (done.status, done.stderr) == (0, "")
    assert list(done.objects[0]) == ["topic", "partition", "offset", "key", "time", "headers", "value"]
    compared = ("topic", "partition", "offset", "key", "value")
    expected = [[line.get(name) for name in compared] for line in recorded(story)]
    found = [[record[name] for name in compared] for record in done.objects]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert {record["topic"] for record in done.objects} <= {f"default.{topic}" for topic in TOPICS}
    places = [(TOPICS.index(r["topic"].partition(".")[2]), r["partition"], r["offset"]) for r in done.objects]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("options", "program"),
    [
        (["--topic", "events"], 'select(.topic == "default.events")'),
        (["--topic", "default.index"], 'select(.topic == "default.index")'),
        (["--partition", "1"], "select(.partition == 1)"),
        (["--key", "FULFIL/1"], 'select(.key == "FULFIL/1")'),
        (["--workflow", "FULFIL"], 'select(.key | startswith("FULFIL"))'),
        (["--workflow", "FULFIL", "--topic", "events", "--values"], 'select(.key | startswith("FULFIL/")) | .value'),
        (["--values"], "select(.value != null) | .value"),
        (["--topic", "unheard_of"], "empty"),
    ],
)
def test_dump_gives_what_all_filters_let_through(story: Story, options: list[str], program: str) -> None:
    options = [option.replace("FULFIL", story.fulfil) for option in options]
    everything = dump(story)
    done = dump(story, *options)
    assert (done.status, done.stderr) == (0, "")
    assert done.objects == jq(program.replace("FULFIL", story.fulfil), everything.stdout)


def test_dump_gives_all_namespaces_unless_one_is_named(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/two"

    async def make() -> None:
        for namespace in ("shop", "stock"):
            log = await open_log(url, namespace=namespace, partitions=2)
            await append_one(log, namespace)
            await log.close()

    asyncio.run(make())
    topics = [record["topic"] for record in invoke("--log", url, "log", "dump").objects]
    assert topics == ["shop.events", "stock.events"]
    only = invoke("--log", url, "--namespace", "stock", "log", "dump").objects
    assert [record["topic"] for record in only] == ["stock.events"]
    named(invoke("--log", url, "workflow", "list"), "no namespace 'default'", "it has shop, stock")
    wrong = invoke("--log", url, "--namespace", "stock", "log", "dump", "--topic", "shop.events")
    assert wrong.status == 2


# ----------------------------------------------------------------------------------------------------------------------


async def append_one(log: Any, namespace: str) -> None:
    from gasoline_es.log.port import NewRecord, Section

    owned = await log.acquire(1)
    record = NewRecord(f"{namespace}.events", 1, "key", b'{"big":18446744073709551617}', 1_767_225_600_000_000)
    await log.append([Section(1, owned.epoch, [record])])


@pytest.fixture
def torn(story: Story, tmp_path: Path) -> Story:
    """A copy whose last writer was cut off within a batch."""
    copied = copy(story, tmp_path)

    async def write() -> None:
        log = await open_log(copied.url)
        await append_one(log, "default")
        await log.crash()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]

    asyncio.run(write())
    segment = copied.directory / "segments" / "0000000003.jsonl"
    with segment.open("ab") as file:
        file.write(b'{"batch":99,"prev":"')
    return copied


def copy(story: Story, to: Path) -> Story:
    shutil.copytree(story.directory, to / "copy", symlinks=True)
    return replace(story, directory=to / "copy")


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def named(done: Done, *what: str) -> None:
    """The command failed with one line that names all of this."""
    assert done.status == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("gasoline: ")
    for text in what:
        assert text in done.stderr
