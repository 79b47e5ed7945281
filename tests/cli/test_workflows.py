"""`gasoline workflow list`, `get` and `history`: rows, blocks and trees for people, exact JSON for programs."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gasoline_es import ActivityContext, Gasoline, WorkflowContext, activity, workflow
from tests.cli.histories import HOSTILE, Story
from tests.cli.terminal import invoke, jq, settled
from tests.projection.damaging import damage

LIST_KEYS = [
    "id", "name", "status", "tags", "error", "created", "completed", "ray_id", "waiting_for", "waiting_until",
    "queued", "partition", "worker", "events",
]  # fmt: skip


def names(story: Story, *args: str) -> list[str]:
    done = invoke("--log", story.url, "workflow", "list", *args)
    assert (done.status, done.stderr) == (0, "")
    return [found["name"] for found in done.objects]


# --- list -------------------------------------------------------------------------------------------------------------


def test_list_gives_one_object_for_each_workflow_in_order_of_creation(story: Story) -> None:
    done = invoke("--log", story.url, "workflow", "list")
    assert [found["id"] for found in done.objects] == story.ids
    assert all(list(found) == LIST_KEYS for found in done.objects)
    fulfil, doomed, _, waiting, doubtful = done.objects
    assert (fulfil["status"], fulfil["tags"], fulfil["error"]) == ("complete", {"order": "42", "rush": "true"}, None)
    assert datetime.fromisoformat(fulfil["created"]) < datetime.fromisoformat(fulfil["completed"])
    assert doomed["error"]["type"] == "ActivityMaxFailuresReached"
    assert "Traceback" in doomed["error"]["traceback"]
    assert (waiting["waiting_for"], waiting["waiting_until"]) == ("signal cancelled", None)
    assert waiting["queued"] == {"early": "paid"}
    assert doubtful["waiting_for"] == "retry"
    assert datetime.fromisoformat(doubtful["waiting_until"]) > datetime.now(UTC)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--name", "fulfil"], ["fulfil"]),
        (["--name", "nobody"], []),
        (["--tag", "order=42"], ["fulfil"]),
        (["--tag", "order=42", "--tag", "rush=true"], ["fulfil"]),
        (["--tag", "order=42", "--tag", "rush=false"], []),
        (["--tag", "order=4"], []),
        (["--tag", f"text={HOSTILE}"], ["hostile"]),
        (["--tag", f"{HOSTILE}=1"], ["hostile"]),
        (["--status", "dead"], ["doomed", "hostile"]),
        (["--status", "running"], []),
        (["--status", "dead", "--error", "lorry"], ["doomed"]),
        (["--error", "\x1b[31mred"], ["hostile"]),
        (["--error", "lorr."], []),
        (["--since", "1h"], ["fulfil", "doomed", "hostile", "waiting", "doubtful"]),
        (["--since", "9999-01-01T00:00:00Z"], []),
        (["--until", "9999-01-01T00:00:00Z"], ["fulfil", "doomed", "hostile", "waiting", "doubtful"]),
        (["--until", "1d"], []),
        (["--since", "999999999d"], ["fulfil", "doomed", "hostile", "waiting", "doubtful"]),
        (["--older-than", "999999999d"], []),
        (["--older-than", "1d"], []),
        (["--older-than", "0s", "--until", "2020-01-01T00:00:00Z"], []),
        (["--limit", "2"], ["waiting", "doubtful"]),
        (["--limit", "1", "--status", "dead"], ["hostile"]),
        (["--as-of", "0s"], ["fulfil", "doomed", "hostile", "waiting", "doubtful"]),
        (["--as-of", "1d"], []),
    ],
)
def test_list_shows_what_matches_all_filters(story: Story, options: list[str], found: list[str]) -> None:
    assert names(story, *options) == found


def test_list_takes_back_the_time_it_wrote_as_since(story: Story) -> None:
    created = invoke("--log", story.url, "workflow", "list", "--name", "waiting").objects[0]["created"]
    assert names(story, "--since", created) == ["waiting", "doubtful"]
    assert names(story, "--until", created) == ["fulfil", "doomed", "hostile"]
    later = datetime.fromisoformat(created) + timedelta(microseconds=1)
    assert names(story, "--since", later.isoformat()) == ["doubtful"]


def test_pages_follow_each_other(story: Story) -> None:
    """`--after` goes on behind the last of the page before; without it `--limit` shows the newest."""
    assert names(story, "--limit", "2", "--after", story.ids[0]) == ["doomed", "hostile"]
    assert names(story, "--limit", "2", "--after", story.ids[2]) == ["waiting", "doubtful"]
    assert names(story, "--after", story.ids[2], "--status", "dead") == []
    assert names(story, "--after", story.ids[4]) == []
    done = invoke("--log", story.url, "workflow", "list", "--after", "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f")
    assert (done.status, done.stdout) == (1, "")
    assert "was not found in namespace 'default'" in done.stderr


def test_list_and_get_show_what_stood_at_a_time(story: Story) -> None:
    """Time travel: every time at which something was recorded gives what the client says of it, to the microsecond."""
    events = [one for each in story.ids for one in invoke("--log", story.url, "workflow", "history", each).objects]
    before = datetime.fromisoformat(min(one["time"] for one in events)) - timedelta(microseconds=1)
    moments = sorted({one["time"] for one in events})

    async def asked() -> list[list[dict[str, object]]]:
        async with Gasoline.open(story.url, readonly=True) as gasoline:
            return [
                [
                    {"id": one.id, "status": one.status, "events": one.events, "queued": one.queued}
                    async for one in gasoline.list(as_of=datetime.fromisoformat(moment))
                ]
                for moment in moments
            ]

    stood = asyncio.run(asked())
    assert len({json.dumps([{**one, "queued": {}} for one in found]) for found in stood}) > len(story.ids)
    for moment, found in zip(moments[:: max(1, len(moments) // 8)], stood[:: max(1, len(moments) // 8)], strict=True):
        listed = invoke("--log", story.url, "workflow", "list", "--as-of", moment).objects
        assert [(one["id"], one["status"], one["events"]) for one in listed] == [
            (one["id"], one["status"], one["events"]) for one in found
        ]
    assert names(story, "--as-of", before.isoformat()) == []
    dispatched = next(one["time"] for one in events if one["subject"] == story.waiting)
    (then,) = invoke("--log", story.url, "workflow", "get", story.waiting, "--as-of", dispatched).objects
    assert (then["status"], then["queued"]) == ("running", {})
    done = invoke("--log", story.url, "workflow", "get", story.waiting, "--as-of", before.isoformat())
    assert (done.status, done.stdout) == (1, "")
    assert f"workflow {story.waiting} was dispatched later than " in done.stderr


def test_get_shows_a_workflow_behind_the_event_of_a_number(story: Story) -> None:
    history = invoke("--log", story.url, "workflow", "history", story.fulfil).objects
    shown = [
        invoke("--log", story.url, "workflow", "get", story.fulfil, "--as-of", str(one["seq"])).objects[0]
        for one in history
    ]
    assert [one["events"] for one in shown] == [one["seq"] for one in history]
    assert [one["output"] for one in shown] == [None] * (len(history) - 1) + ["receipt 42"]
    text = invoke("--log", story.url, "workflow", "get", story.fulfil, "--as-of", "1", "--text").stdout
    assert re.search("^status +running$", text, re.MULTILINE)
    beyond = invoke("--log", story.url, "workflow", "get", story.fulfil, "--as-of", str(len(history) + 1))
    assert (beyond.status, beyond.stdout) == (1, "")
    assert f"has {len(history)} events so far, and none of the number {len(history) + 1}" in beyond.stderr
    for wrong, why in (("0", "events are numbered from 1"), ("noon", "--as-of 'noon' is no time")):
        done = invoke("--log", story.url, "workflow", "get", story.fulfil, "--as-of", wrong)
        assert (done.status, done.stdout) == (2, "")
        assert why in done.stderr


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--as-of", "yesterday"], "--as-of 'yesterday' is no time"),
        (["--until", "yesterday"], "--until 'yesterday' is no time"),
        (["--older-than", "2026-01-01T00:00:00Z"], "--older-than '2026-01-01T00:00:00Z' is no age"),
        (["--since", "1h", "--older-than", "2h"], "nothing is made since a time and before an earlier one"),
    ],
)
def test_time_that_is_none_or_holds_nothing_is_used_wrongly(story: Story, options: list[str], why: str) -> None:
    done = invoke("--log", story.url, "workflow", "list", *options)
    assert (done.status, done.stdout) == (2, "")
    assert why in done.stderr


@pytest.mark.parametrize("columns", [38, 80, 250])
def test_list_as_text_keeps_one_whole_id_and_one_row_for_each_workflow(story: Story, columns: int) -> None:
    done = invoke("--log", story.url, "workflow", "list", "--text", columns=columns)
    lines = done.stdout.splitlines()
    rows = [line for line in lines if not line.startswith("    ")]
    assert [row[:36] for row in rows[1:6]] == story.ids
    assert "order=43" in "".join(line.strip() for line in lines[2:4]), "the tags of a dead one are whole"
    assert len(rows) == 7 if columns >= 80 else len(rows) >= 7
    assert max(len(line) for line in lines) <= columns
    if columns == 80:
        assert (
            re.sub(" [0-9]+[sm] +", " <age> ", settled(rows[1])) == "<id>  fulfil    complete  <age> order=42 rush=tr…"
        )
        assert rows[-1] == "5 workflows: 2 sleeping, 1 complete, 2 dead"
    if columns == 250:
        assert "waits for retry until" in rows[5]
        assert rows[2].endswith("the last time with RuntimeError: the lorry broke down with 43 · order=43")


def test_list_shows_the_tags_of_a_dead_one_whole_however_long_they_are(tmp_path: Path) -> None:
    """By them one finds what it belongs to; what a line has no room for stands below it."""
    given = {f"customer-{number}": "x" * 60 for number in range(6)}

    @workflow(name="doomed")
    async def doomed(ctx: WorkflowContext, _: None) -> None:
        raise RuntimeError("the lorry broke down")

    async def died() -> str:
        async with Gasoline.open(f"file:{tmp_path}/log") as gasoline, gasoline.worker([doomed]):
            handle = await gasoline.dispatch(doomed, None, tags=given)
            while (await handle.get()).status != "dead":
                await asyncio.sleep(0.01)
            return handle.id

    workflow_id = asyncio.run(died())
    for columns in (50, 80, 160):
        shown = invoke(
            "--log", f"file:{tmp_path}/log", "workflow", "list", "--text", columns=columns
        ).stdout.splitlines()
        assert shown[1].startswith(workflow_id)
        assert max(map(len, shown)) <= columns
        below = "".join(line.strip() for line in shown[2:-1])
        assert below.replace(" ", "") == "".join(f"{name}={value}" for name, value in given.items())


def test_list_of_an_empty_log_is_empty(empty_log: str) -> None:
    assert invoke("--log", empty_log, "workflow", "list").stdout == ""
    assert invoke("--log", empty_log, "workflow", "list", "--text").stdout.splitlines()[-1] == "0 workflows"


# --- get --------------------------------------------------------------------------------------------------------------


def test_get_gives_all_that_list_gives_and_the_payloads(story: Story) -> None:
    (found,) = invoke("--log", story.url, "workflow", "get", story.fulfil).objects
    listed = invoke("--log", story.url, "workflow", "list", "--name", "fulfil").objects[0]
    payloads = {"input": {"order": "42", "amount": 7}, "output": "receipt 42", "state": {"charged": 7}}
    assert found == listed | payloads
    (waiting,) = invoke("--log", story.url, "workflow", "get", story.waiting).objects
    assert waiting["queued"] == {"early": "paid"}
    assert waiting["output"] is None
    assert waiting["state"] is None


def test_get_as_text_shows_a_labelled_line_for_each_fact(story: Story) -> None:
    done = invoke("--log", story.url, "workflow", "get", story.fulfil, "--text")
    lines = settled(done.stdout, fulfil=story.fulfil).splitlines()
    (worker,) = invoke("--log", story.url, "workflow", "list", "--name", "fulfil").objects
    assert lines == [
        "workflow   <fulfil>",
        "name       fulfil",
        "status     complete",
        "tags       order=42 rush=true",
        "created    <time>",
        "completed  <time>, after <s>",
        f"events     {worker['events']} in partition {worker['partition']}, the last by {worker['worker']}",
        'input      {"order":"42","amount":7}',
        'state      {"charged":7}',
        'output     "receipt 42"',
    ]


def test_get_as_text_shows_queued_signals_errors_and_when_asked_the_traceback(story: Story) -> None:
    waiting = invoke("--log", story.url, "workflow", "get", story.waiting, "--text").stdout
    assert "status    sleeping, waits for signal cancelled" in waiting
    assert 'queued    paid early {"amount":1}' in waiting
    doomed = invoke("--log", story.url, "workflow", "get", story.doomed, "--text").stdout
    assert "RuntimeError: the lorry broke down" in " ".join(doomed.split())
    assert "lines; --full shows them" in doomed
    assert "await ctx.activity(ship, order)" not in doomed
    full = invoke("--log", story.url, "workflow", "get", story.doomed, "--text", "--full").stdout
    assert "await ctx.activity(ship, order)" in full


# --- history ----------------------------------------------------------------------------------------------------------

FULFIL = """\
fulfil <fulfil>  complete
├── dispatched  <time>
│   ├── tags:  order=42 rush=true
│   ├── key:  order-42
│   └── input:  {"order":"42","amount":7}
├── {1} activity charge  <time>, took <s>
│   ├── attempt 1 failed  ConnectionError: no route to the bank
│   │   └── <time>, after <s>; next <s> later
│   ├── attempt 2  succeeded <time> after <s>
│   ├── input:  {"order":"42","amount":7}
│   ├── output:  "receipt 42"
│   └── state:  {"charged":7}
├── {1.1} activity notify v2  <time>, took <s>
│   ├── input:  {"order":"42","amount":7}
│   └── output:  null
├── {2} sleep  until <time>
│   ├── started  <time>
│   └── normal: over  <time>
├── {3} listen  took 1 signal <time>
│   └── signal paid  received <time>
│       ├── id:  payment-1
│       └── body:  {"amount":7}
├── {4} listen with a timeout  until <time>
│   ├── started  <time>
│   └── uninterrupted: ran out  <time>
├── {5} removed activity old_mail  <time>
├── {6} check_version answers 2  <time>
├── {7} listen with a timeout  until <time>
│   ├── started  <time>
│   ├── suspended  <time>, waits for signal paid until <time>
│   └── interrupted: a signal came  <time>
├── {8} listen  took 1 signal <time>
│   └── signal paid  received <time>
│       ├── id:  payment-2
│       └── body:  {"amount":8}
├── 1 signal discarded  <time>
│   └── signal noted  received <time>
│       ├── id:  note-1
│       └── body:  {"text":"left over"}
└── completed  <time>
    ├── output:  "receipt 42"
    └── state:  {"charged":7}"""

DOOMED = """\
doomed <doomed>  dead
├── dispatched  <time>
│   ├── tags:  order=43
│   └── input:  {"order":"43","amount":0}
├── {1} activity ship  failed for good after 2 attempts
│   ├── attempt 1 failed  RuntimeError: the lorry broke down with 43
│   │   └── <time>, after <s>; next <s> later
│   ├── attempt 2 failed  RuntimeError: the lorry broke down with 43
│   │   └── <time>, after <s>; no more
│   └── input:  {"order":"43","amount":0}
├── failed  ActivityMaxFailuresReached: activity 'ship' at {1} failed 2 times, the last time with RuntimeError: the
│   lorry broke down with 43
│   └── <time>
├── woken  <time> by <who>
└── failed  ActivityMaxFailuresReached: activity 'ship' at {1} failed 2 times, the last time with RuntimeError: the
    lorry broke down with 43
    └── <time>"""

WAITING = """\
waiting <waiting>  sleeping
├── dispatched  <time>
│   ├── tags:  order=44
│   └── input:  {"order":"44","amount":0}
├── suspended  <time>, waits for signal cancelled
└── 1 signal not taken
    └── signal paid  received <time>
        ├── id:  early
        └── body:  {"amount":1}"""

DOUBTFUL = """\
doubtful <doubtful>  sleeping
├── dispatched  <time>
│   └── input:  "is it there?"
└── {1} activity doubt  1 attempt failed, another is to come
    ├── attempt 1 failed  TimeoutError: is it there?
    │   └── <time>, after <s>; next <hour> later
    ├── suspended  <time>, waits for retry until <time>
    └── input:  "is it there?\""""


def tree(story: Story, workflow_id: str) -> str:
    done = invoke("--log", story.url, "workflow", "history", workflow_id, "--text")
    assert (done.status, done.stderr) == (0, "")
    ids = {name: getattr(story, name) for name in ("fulfil", "doomed", "hostile", "waiting", "doubtful")}
    return settled(done.stdout, **ids)


def test_history_shows_every_kind_of_step_and_what_happened_between_as_a_tree(story: Story) -> None:
    assert tree(story, story.fulfil) == FULFIL


def test_history_shows_failed_attempts_death_and_waking(story: Story) -> None:
    woken = next(
        event["data"]["by"]
        for event in invoke("--log", story.url, "workflow", "history", story.doomed).objects
        if event["type"] == "gasoline.workflow.woken.v1"
    )
    assert tree(story, story.doomed).replace(woken, "<who>") == DOOMED


def test_history_shows_signals_that_nobody_took(story: Story) -> None:
    assert tree(story, story.waiting) == WAITING


def test_history_shows_a_step_that_is_still_to_be_tried_again(story: Story) -> None:
    shown = tree(story, story.doubtful)
    before, _, rest = shown.partition("; next ")
    assert f"{before}; next <hour>{rest[rest.index(' later') :]}" == DOUBTFUL


def test_history_as_text_shows_tracebacks_and_long_payloads_when_asked_to(story: Story) -> None:
    short = invoke("--log", story.url, "workflow", "history", story.doomed, "--text").stdout
    full = invoke("--log", story.url, "workflow", "history", story.doomed, "--text", "--full").stdout
    assert "raise RuntimeError" not in short
    assert "raise RuntimeError" in full


def test_history_as_json_is_the_events_as_recorded(story: Story) -> None:
    done = invoke("--log", story.url, "workflow", "history", story.fulfil, "--json")
    segments = sorted((story.directory / "segments").glob("*.jsonl"))
    lines = [json.loads(line) for segment in segments for line in segment.read_text().split("\n")[:-1]]
    recorded = [line["value"] for line in lines if line.get("key", "").startswith(f"{story.fulfil}/")]
    assert done.objects == recorded
    assert [event["seq"] for event in done.objects] == list(range(1, len(recorded) + 1))
    assert {event["specversion"] for event in done.objects} == {"1.0"}


def test_history_as_json_can_be_read_by_jq_alone(story: Story) -> None:
    text = invoke("--log", story.url, "workflow", "history", story.fulfil).stdout
    taken = jq('select(.type == "gasoline.signal.received.v1") | .data.body', text)
    assert taken == [{"amount": 7}, {"text": "left over"}, {"amount": 8}]
    failed = jq('select(.data.error) | "\\(.data.location) \\(.data.error.message)"', text)
    assert failed == ["{1} no route to the bank"]


# --- damaged views ----------------------------------------------------------------------------------------------------


@workflow
async def greet(ctx: WorkflowContext, number: int) -> int:
    return await ctx.activity(answer, number)


@activity
async def answer(ctx: ActivityContext, number: int) -> int:
    return number


@pytest.mark.parametrize("table", ["gasoline_positions", "gasoline_meta", "workflow_rows"])
def test_damage_of_the_stored_views_costs_a_fold_and_nothing_else(table: str, tmp_path: Path) -> None:
    """A page that opening does not look at, too: all is shown as it was, from the log."""
    url = f"file:{tmp_path}/log"

    async def run() -> str:
        async with Gasoline.open(url, partitions=2) as gasoline, gasoline.worker([greet]):
            handles = [await gasoline.dispatch(greet, number) for number in range(30)]
            for handle in handles:
                await handle.output(timeout=20)
            return handles[0].id

    def shown() -> list[tuple[int, str, str]]:
        commands = (["list"], ["list", "--name", "greet", "--limit", "3"], ["get", one], ["history", one])
        done = [invoke("--log", url, "workflow", *command) for command in commands]
        done.append(invoke("--log", url, "registry"))
        return [(one.status, one.stdout, one.stderr) for one in done]

    one = asyncio.run(run())
    before = shown()
    assert all(status == 0 for status, _, _ in before)
    damage(tmp_path / "log/projections/default/workflows.sqlite", table)
    assert shown() == before
    done = invoke("--log", url, "projections", "verify")
    assert done.status == 1
    assert "mistake in gasoline" not in done.stderr
