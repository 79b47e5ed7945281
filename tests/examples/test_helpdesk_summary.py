"""What the main example prints (issue 1/6, point 7): equal to a plain computation over the same input."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import resource
import tempfile
import time
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.progress import Progress, TaskID

from gasoline_es import Gasoline, SignalTo
from tests.examples.helpdesk_runs import (
    SAMPLE,
    as_printed,
    check_every_line_is_recorded_once,
    expected,
    lines_of,
    made_up,
    run,
    summary,
    written,
)

helpdesk = import_module("examples.helpdesk")
"""By name, because beside this file `examples` means its own folder to pyright."""

FULL_RUN_S_MAX = 60
"""Generous, for a loaded machine. The figure that counts is measured for docs/performance.md."""
FULL_RUN_CPU_S_MAX = 20
"""What a loaded machine does not stretch much."""


async def test_the_sample_comes_to_what_a_plain_computation_gives(tmp_path: Path) -> None:
    lines = lines_of(SAMPLE)
    assert summary(SAMPLE, tmp_path / "log") == as_printed(expected(lines))
    await check_every_line_is_recorded_once(tmp_path / "log", lines)


def test_the_sample_has_the_shapes_that_the_example_is_about() -> None:
    lines = lines_of(SAMPLE)
    of: dict[str, list[str]] = {}
    for line in lines:
        of.setdefault(line["ticket"], []).append(line["activity"])
    assert any("Closed" not in activities for activities in of.values())
    assert any(activities.count("Closed") > 1 for activities in of.values())
    assert any("Closed" in activities[:-1] and activities[-1] != "Closed" for activities in of.values())


@pytest.mark.timeout(400)
def test_the_real_log_comes_to_the_expected_figures_in_time(shared: Path, tmp_path: Path) -> None:
    wanted = (shared / "data" / "helpdesk.expected.json").read_text()
    started, cpu_before_s = time.monotonic(), cpu_s_of_children()
    printed = summary(shared / "data" / "helpdesk.jsonl.gz", tmp_path / "log", timeout_s=200)
    wall_s, cpu_s = time.monotonic() - started, cpu_s_of_children() - cpu_before_s
    assert printed == wanted + "\n"
    assert wall_s < FULL_RUN_S_MAX or cpu_s < FULL_RUN_CPU_S_MAX, f"{wall_s:.1f} s, of it {cpu_s:.1f} s of work"
    assert summary(shared / "data" / "helpdesk.jsonl.gz", tmp_path / "log") == printed


def test_running_again_after_the_end_prints_the_same_from_the_log(tmp_path: Path) -> None:
    first = summary(SAMPLE, tmp_path / "log")
    size = log_bytes(tmp_path / "log")
    assert summary(SAMPLE, tmp_path / "log") == first
    # What it writes then is that it took the partitions and gave them back; no event of any workflow.
    assert log_bytes(tmp_path / "log") - size < 20_000


def test_a_person_gets_a_table_with_the_wall_time(tmp_path: Path) -> None:
    done = run(SAMPLE, tmp_path / "log")
    assert done.returncode == 0
    assert done.stderr == ""  # the progress bar is for terminals
    assert "45 tickets, 245 events" in done.stdout
    assert "wall time" in done.stdout
    assert "90th percentile" in done.stdout


def test_plain_and_packed_input_are_the_same_input(tmp_path: Path) -> None:
    lines = made_up(random.Random(1), 300)
    plain = summary(written(tmp_path / "desk.jsonl", lines), tmp_path / "log")
    size = log_bytes(tmp_path / "log")
    assert summary(written(tmp_path / "desk.jsonl.gz", lines), tmp_path / "log") == plain == as_printed(expected(lines))
    assert log_bytes(tmp_path / "log") - size < 20_000


def test_a_changed_input_on_the_same_log_is_another_input(tmp_path: Path) -> None:
    lines = made_up(random.Random(2), 200)
    path = tmp_path / "desk.jsonl"
    assert summary(written(path, lines), tmp_path / "log") == as_printed(expected(lines))
    lines = [*lines, {**lines[0], "activity": "Reopened"}]
    assert summary(written(path, lines), tmp_path / "log") == as_printed(expected(lines))


def test_the_log_is_called_like_the_input_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path / "desk.jsonl.gz", made_up(random.Random(3), 20))
    helpdesk.app([str(path), "--json"], standalone_mode=False)
    assert (tmp_path / "desk-log" / "manifest.json").is_file()


# --- any other file ---------------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12)
TICKETS = (
    st.sampled_from(["A", "B", "c/ü", " ", "票", "é", "e\N{COMBINING ACUTE ACCENT}", '"', "\\", "e" * 200]) | NAMES
)
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
TIMES = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=ZONES).map(datetime.isoformat)  # noqa: DTZ001
LINES = st.fixed_dictionaries(
    {
        "ticket": TICKETS,
        "activity": st.sampled_from(["Closed", "Opened", "[bold]"]) | NAMES,
        "time": TIMES,
        "resource": NAMES,
    },
    optional={"customer": st.none() | st.text(st.characters(exclude_categories=["Cs"])), "unknown": st.integers()},
)


def in_process(path: Path, log: str) -> str:
    found = helpdesk.survey(path)
    outcomes = asyncio.run(helpdesk.run(path, found, log, Progress(disable=True)))
    return as_printed(helpdesk.summary(outcomes))


def closed(time: str) -> dict[str, str]:
    return {"ticket": "A", "activity": "Closed", "time": time, "resource": "0"}


@settings(max_examples=40)
@example(
    lines=[closed("1988-01-01T00:00:00.000007+00:00"), closed("2124-03-01T00:00:00+00:00")], on_disk=False, packed=False
)
@given(lines=st.lists(LINES, max_size=40), on_disk=st.booleans(), packed=st.booleans())
def test_any_lines_come_to_what_a_plain_computation_gives(lines: list[Any], on_disk: bool, packed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder) / ("desk.jsonl.gz" if packed else "desk.jsonl"), lines)
        assert in_process(path, f"file:{folder}/log" if on_disk else "memory:") == as_printed(expected(lines))


@pytest.mark.parametrize("count", [1, 499, 500, 501, 3_000])
async def test_files_longer_than_one_part_come_out_whole(count: int, tmp_path: Path) -> None:
    lines = made_up(random.Random(count), count)
    path = written(tmp_path / "desk.jsonl", lines)
    assert summary(path, tmp_path / "log") == as_printed(expected(lines))
    await check_every_line_is_recorded_once(tmp_path / "log", lines)


async def test_one_ticket_with_more_lines_than_may_be_under_way_comes_out_whole(tmp_path: Path) -> None:
    lines = [{**line, "ticket": "the only one"} for line in made_up(random.Random(4), 2_600)]
    path = written(tmp_path / "desk.jsonl", lines)
    assert summary(path, tmp_path / "log") == as_printed(expected(lines))
    await check_every_line_is_recorded_once(tmp_path / "log", lines)


def test_empty_lines_are_passed_over_and_an_empty_file_has_no_tickets(tmp_path: Path) -> None:
    lines = made_up(random.Random(5), 50)
    path = written(tmp_path / "desk.jsonl", lines)
    path.write_bytes(b"\n" + path.read_bytes().replace(b"\n", b"\n \r\n") + b"\n\n")
    assert summary(path, tmp_path / "log") == as_printed(expected(lines))
    path.write_bytes(b"")
    assert summary(path, tmp_path / "log") == as_printed(expected([]))
    assert "0 tickets, 0 events" in run(path, tmp_path / "log").stdout


class StopAt(Progress):
    """Ends the run once so many lines were read, as an operator's Ctrl-C would."""

    line = 1_000

    def update(self, task_id: TaskID, *arguments: Any, **fields: Any) -> None:
        if fields["completed"] >= self.line:
            raise KeyboardInterrupt


def test_a_restart_sends_only_what_is_not_on_the_log_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = made_up(random.Random(6), 2_200)
    path = written(tmp_path / "desk.jsonl", lines)
    found = helpdesk.survey(path)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(helpdesk.run(path, found, f"file:{tmp_path}/log", StopAt(disable=True)))
    sent: list[str | None] = []
    signal_many = Gasoline.signal_many

    async def noted(self: Gasoline, signals: Iterable[SignalTo]) -> list[str]:
        batch = list(signals)
        sent.extend(one.id for one in batch if one.id != "end")
        return await signal_many(self, batch)

    monkeypatch.setattr(Gasoline, "signal_many", noted)
    assert in_process(path, f"file:{tmp_path}/log") == as_printed(expected(lines))
    assert sent == [str(number) for number in range(1_001, 2_201)]


# --- bad input --------------------------------------------------------------------------------------------------------

GOOD = {"ticket": "A", "activity": "Opened", "time": "2024-01-02T03:04:05+00:00", "resource": "Ana"}


def bad(**changes: Any) -> bytes:
    return json.dumps({name: value for name, value in {**GOOD, **changes}.items() if value is not None}).encode()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"{", "Invalid JSON"),
        (b"ticket,activity", "Invalid JSON"),
        (b'["A"]', "Input should be an object"),
        (b"\xff", "Invalid JSON"),
        (bad() + bad(), "Invalid JSON"),
        (bad(ticket=None), "ticket: Field required"),
        (bad(activity=None, time=None), "activity: Field required; time: Field required"),
        (bad(resource=None), "resource: Field required"),
        (bad(resource=7), "resource: Input should be a valid string"),
        (bad(ticket=""), "ticket: String should match pattern"),
        (bad(ticket="a\nb"), "ticket: String should match pattern"),
        (bad(ticket="\ud800"), "Invalid JSON"),
        (bad(time="yesterday"), "time: Input should be a valid datetime"),
        (bad(time="2024-02-30T00:00:00+00:00"), "time: Input should be a valid datetime"),
        (bad(time="2024-01-02T03:04:05"), "time: Input should have timezone info"),
        (bad(time=1704164645), "time: Input should be a valid datetime"),
        (bad(customer="x" * 200_000), "longer than 100,000 bytes"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_bad_line_is_told_with_its_number_before_anything_is_recorded(
    line: bytes, told: str, packed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / ("desk.jsonl.gz" if packed else "desk.jsonl")
    content = b"\n".join([json.dumps(GOOD).encode(), b"", line, b"also bad"])
    path.write_bytes(gzip.compress(content) if packed else content)
    code = helpdesk.app([str(path), "--log", f"file:{tmp_path}/log"], standalone_mode=False)
    error = capsys.readouterr().err
    assert error.startswith(f"helpdesk: {path}:3: ")
    assert told in error
    assert error.count("\n") == 1
    assert code == 1
    assert not (tmp_path / "log").exists()


PACKED = gzip.compress(b"{}" * 5_000, mtime=0)


@pytest.mark.parametrize("content", [b"no gzip at all", PACKED[:-20], PACKED[:5]], ids=["none", "cut", "head"])
def test_a_packed_file_that_cannot_be_unpacked_is_told(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "desk.jsonl.gz"
    path.write_bytes(content)
    done = run(path, tmp_path / "log")
    assert done.returncode == 1
    assert done.stderr.startswith(f"helpdesk: {path}")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "log").exists()


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    done = run(tmp_path / "desk.jsonl", tmp_path / "log")
    assert done.returncode == 2
    assert "does not exist" in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / "log").exists()


def cpu_s_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def log_bytes(log: Path) -> int:
    return sum(path.stat().st_size for path in (log / "segments").glob("*.jsonl"))
