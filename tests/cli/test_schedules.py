"""`gasoline schedule …`: schedules seen, made and changed by hand, without a worker or beside one."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from gasoline_es import Gasoline, WorkflowContext, workflow
from gasoline_es.core.durations import format_time
from gasoline_es.core.ids import partition_of
from gasoline_es.core.schedule_events import ScheduleEvent, SchedulePaused, ScheduleSet, encode_schedule_event
from gasoline_es.core.schedules import schedule_id
from gasoline_es.core.timetable import Cron
from gasoline_es.log import open_log
from gasoline_es.log.port import NewRecord, Section
from tests.cli.terminal import Done, invoke, jq, plain, run, run_on_terminal


@workflow
async def report(ctx: WorkflowContext, of: str) -> str:
    return of


@pytest.fixture
def url(tmp_path: Path) -> str:
    """One schedule of a program, and one that was made by hand."""
    url = f"file:{tmp_path}/log"

    async def made() -> None:
        async with Gasoline.open(url, partitions=2) as gasoline:
            await gasoline.schedule(
                "0 3 * * *", report, "sales", name="nightly", timezone="Europe/Berlin", tags={"a": 1}
            )

    asyncio.run(made())
    done = schedule(url, "set", "poll", "fetch", "--every", "15m", "--overlap", "skip")
    assert (done.status, done.stderr) == (0, "")
    return url


def schedule(url: str, *arguments: str) -> Done:
    return invoke("--log", url, "schedule", *arguments)


def test_a_dump_of_a_log_has_its_schedules_and_parked_signals(url: str) -> None:
    """docs/operations.md: every record."""
    sent = invoke("--log", url, "signal", "send", "paid", "{}", "--workflow", "report", "--tag", "a=1", "--park", "60s")
    assert (sent.status, sent.stderr) == (0, "")
    dumped = invoke("--log", url, "log", "dump").objects
    (info,) = invoke("--log", url, "log", "info").objects
    assert len(dumped) == sum(segment["records"] for segment in info["segments"])
    assert {"default.schedules", "default.parked"} <= {record["topic"] for record in dumped}


def test_list_shows_all_in_order_of_their_names(url: str) -> None:
    nightly, poll = schedule(url, "list").objects
    assert [nightly["name"], poll["name"]] == ["nightly", "poll"]
    assert (nightly["when"], nightly["timezone"], nightly["status"]) == ("0 3 * * *", "Europe/Berlin", "active")
    assert (poll["when"], poll["timezone"], poll["overlap"], poll["workflow"]) == (
        "every 15 min",
        None,
        "skip",
        "fetch",
    )
    assert "input" not in nightly
    text = schedule(url, "list", "--text").stdout
    assert re.search(r"nightly +active +\d{4}-\d\d-\d\dT0[12]:00:00Z +0 3 \* \* \* \(Europe/Berlin\) +report", text)
    assert text.endswith("2 schedules\n")


def test_get_shows_all_of_one(url: str) -> None:
    (nightly,) = schedule(url, "get", "nightly").objects
    assert (nightly["input"], nightly["tags"], nightly["fired"]) == ("sales", {"a": "1"}, 0)
    text = schedule(url, "get", "nightly", "--text").stdout
    for line in ("schedule  nightly", "status    active", 'input     "sales"', "tags      a=1", "passed    0 times"):
        assert line in text


def test_set_changes_the_one_that_is_there(url: str) -> None:
    (changed,) = schedule(url, "set", "poll", "fetch", '{"a":1}', "--cron", "*/5 * * * *", "--tag", "x=y").objects
    assert (changed["when"], changed["input"], changed["tags"]) == ("*/5 * * * *", {"a": 1}, {"x": "y"})
    assert [one["type"] for one in schedule(url, "history", "poll").objects] == ["schedule.set", "schedule.set"]


def test_it_is_paused_triggered_resumed_and_removed_by_hand(url: str) -> None:
    assert schedule(url, "pause", "nightly").objects[0]["status"] == "paused"
    (triggered,) = schedule(url, "trigger", "nightly").objects
    (run_,) = invoke("--log", url, "workflow", "list", "--tag", "schedule=nightly").objects
    assert triggered == {"id": run_["id"], "name": "report", "schedule": "nightly"}
    (nightly,) = schedule(url, "get", "nightly").objects
    assert (nightly["fired"], nightly["last_run"]) == (1, run_["id"])
    assert run_["tags"]["a"] == "1"
    assert schedule(url, "resume", "nightly").objects[0]["status"] == "active"
    assert schedule(url, "remove", "nightly").objects[0]["status"] == "removed"
    assert [one["name"] for one in schedule(url, "list").objects] == ["poll"]
    done = schedule(url, "get", "nightly")
    assert (done.status, done.stdout) == (1, "")
    assert "`gasoline schedule history` shows it" in done.stderr
    history = schedule(url, "history", "nightly", "--text").stdout.split("\n")
    assert [line.split("Z  ")[1].split()[0] for line in history[:-1]] == [
        "set:",
        "paused",
        "started",
        "resumed",
        "removed",
    ]
    told = invoke("--log", url, "workflow", "history", run_["id"], "--text").stdout
    assert f"schedule:  {nightly['id']}" in told


def test_trigger_says_what_was_started(url: str) -> None:
    shown = schedule(url, "trigger", "nightly", "--text").stdout
    (run_,) = invoke("--log", url, "workflow", "list", "--tag", "schedule=nightly").objects
    assert shown == f"report {run_['id']} started by nightly\n"


def test_beside_a_worker_the_worker_decides(url: str) -> None:
    async def beside() -> str:
        async with Gasoline.open(url) as gasoline, gasoline.worker([report]):
            done = await asyncio.to_thread(run, "--log", url, "schedule", "trigger", "nightly")
            assert (done.status, done.stderr) == (0, "")
            return await gasoline.handle(done.objects[0]["id"], report).output(timeout=30)

    assert asyncio.run(beside()) == "sales"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("set", "x", "fetch"), "say when"),
        (("set", "x", "fetch", "--cron", "* * * * *", "--every", "5m"), "say when"),
        (("set", "x", "fetch", "--every", "5"), "no length of time"),
        (("set", "x", "fetch", "--every", "0s"), "no length of time"),
        (("set", "x", "fetch", "--cron", "often"), "no cron expression"),
        (("set", "x", "fetch", "--cron", "* * * * *", "--timezone", "../x"), "no time zone"),
        (("set", "x", "fetch", "--every", "5m", "--missed", "some"), "one of latest, all, skip"),
        (("set", "x", "fetch", "--every", "5m", "--overlap", "some"), "one of allow, skip"),
        (("set", "../x", "fetch", "--every", "5m"), "not allowed"),
        (("set", "x", "../fetch", "--every", "5m"), "not allowed"),
        (("set", "x", "fetch", "{", "--every", "5m"), "no JSON"),
        (("pause", "../../x"), "not allowed"),
        (("get", "\x1b[31m"), "not allowed"),
    ],
)
def test_what_cannot_be_meant_is_said_in_one_line_with_status_2(
    url: str, arguments: tuple[str, ...], told: str
) -> None:
    done = schedule(url, *arguments)
    assert (done.status, done.stdout) == (2, "")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert len(schedule(url, "list").objects) == 2


@pytest.mark.parametrize("verb", ["get", "history", "pause", "resume", "trigger", "remove"])
def test_what_is_not_there_is_said_with_status_1(url: str, verb: str) -> None:
    done = schedule(url, verb, "unknown")
    assert (done.status, done.stdout) == (1, "")
    assert "there is no schedule 'unknown'" in done.stderr


def test_no_log_is_made_by_a_typing_mistake(tmp_path: Path) -> None:
    done = schedule(f"file:{tmp_path}/lgo", "set", "x", "fetch", "--every", "5m")
    assert done.status == 1
    assert list(tmp_path.iterdir()) == []


# --- text made to do harm ---------------------------------------------------------------------------------------------

EVIL = "\x1b[2J\r\nforged\x9b1m\u202e"


def wrote(url: str, *events: ScheduleEvent) -> None:
    """Put events of a schedule on the log, as a program that means harm could."""

    async def appended() -> None:
        log = await open_log(url)
        partition = partition_of(events[0].schedule_id, log.partition_count)
        ownership = await log.acquire(partition)
        records = [
            NewRecord(
                "default.schedules", partition, f"{one.schedule_id}/{one.seq}", encode_schedule_event(one, "default"), 0
            )
            for one in events
        ]
        await log.append([Section(partition, ownership.epoch, records)])
        await log.release(partition)
        await log.close()

    asyncio.run(appended())


def evil_schedule() -> ScheduleEvent:
    data = ScheduleSet(EVIL, EVIL, b'"\\u001b[2J"', {EVIL: EVIL}, Cron(EVIL, EVIL), "all", "skip", 0, EVIL)
    return ScheduleEvent(schedule_id("default", "evil"), 1, 0, EVIL, 0, 1, EVIL, data)


@pytest.mark.parametrize("verb", [("list",), ("get", "evil"), ("history", "evil")])
def test_hostile_text_is_shown_as_escapes_and_given_back_exactly_as_json(url: str, verb: tuple[str, ...]) -> None:
    """required.md B24."""
    wrote(url, evil_schedule())
    done = run_on_terminal("--log", url, "schedule", *verb, columns=300)
    assert done.status == 0
    shown = plain(done.stdout)
    assert not any(character in shown for character in "\x1b\r\x9b\u202e")
    assert not any(line.startswith("forged") for line in shown.split("\n"))
    piped = run("--log", url, "schedule", *verb)
    evil = next(one for one in jq(".", piped.stdout) if one.get("when", EVIL) == EVIL)
    assert (evil.get("data") or evil)["workflow"] == EVIL


def test_what_makes_no_sense_is_unreadable_and_can_be_removed(url: str) -> None:
    broken = ScheduleEvent(schedule_id("default", "broken"), 7, 0, "broken", 0, 1, "w", SchedulePaused("me"))
    wrote(url, broken)
    (shown,) = schedule(url, "get", "broken").objects
    assert (shown["status"], shown["created"]) == ("unreadable", format_time(0))
    assert "its first event is number 7" in shown["problem"]
    assert "cannot be used" in schedule(url, "pause", "broken").stderr
    assert schedule(url, "remove", "broken").status == 0
    assert schedule(url, "set", "broken", "fetch", "--every", "5m").objects[0]["status"] == "active"
