"""`gasoline workflow prune-history`, and how pruned workflows are shown (semantics.md §10)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gasoline_es import ActivityContext, Gasoline, Prune, WorkflowContext, activity, workflow
from gasoline_es.clock import VirtualClock
from gasoline_es.testing import replay_check
from tests.cli.terminal import invoke


@activity
async def measure(ctx: ActivityContext, metres: int) -> int:
    return metres * 100


@workflow
async def survey(ctx: WorkflowContext, metres: int) -> int:
    return await ctx.activity(measure, metres)


@workflow(prune=Prune.NONE)
async def archive(ctx: WorkflowContext, metres: int) -> int:
    return await ctx.activity(measure, metres)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A log with a complete ``survey``, two complete ``archive``, and one that was pruned; a long time ago."""

    async def recorded() -> str:
        url, clock = f"file:{tmp_path}/log", VirtualClock()
        async with (
            Gasoline.open(url, partitions=2, clock=clock) as gasoline,
            gasoline.worker([survey, archive], prune_after=10) as worker,
        ):
            await (await gasoline.dispatch(survey, 3, key="gone")).output()
            clock.advance(20)
            assert worker.pruner is not None
            assert await worker.pruner.look() == 1
            await (await gasoline.dispatch(survey, 4)).output()
            for metres in (5, 6):
                await (await gasoline.dispatch(archive, metres)).output()
        return url

    return asyncio.run(recorded())


def names(url: str) -> list[str]:
    return sorted(one["name"] for one in invoke("--log", url, "workflow", "list").objects)


def test_what_is_pruned_is_not_shown(url: str) -> None:
    """semantics.md §10."""
    assert names(url) == ["archive", "archive", "survey"]
    as_of = invoke("--log", url, "workflow", "list", "--as-of", "2026-01-01T00:00:10Z")
    assert (as_of.status, as_of.objects) == (0, [])


def test_dry_run_counts_what_the_run_does_and_a_second_run_finds_none(url: str) -> None:
    """semantics.md §10, §11."""
    told = {"workflows": 2, "names": {"archive": 2}, "events": 2}
    command = ("--log", url, "workflow", "prune-history", "--name", "archive", "--older-than", "7d")
    would = invoke(*command, "--dry-run")
    assert (would.status, would.stderr) == (0, "")
    assert would.objects == [{"dry_run": True, **told}]
    did = invoke(*command)
    assert (did.status, did.stderr) == (0, "")
    assert did.objects == [{"dry_run": False, **told}]
    assert invoke(*command).objects == [{"dry_run": False, "workflows": 0, "names": {}, "events": 0}]
    assert names(url) == ["archive", "archive", "survey"]
    assert invoke(*command, "--text").stdout.split() == ["pruned", "0", "workflows,", "0", "events"]


def test_pruned_history_shows_what_is_left(url: str) -> None:
    """semantics.md §10: the output is there, the steps are not."""
    invoke("--log", url, "workflow", "prune-history", "--older-than", "7d")
    one = next(one for one in invoke("--log", url, "workflow", "list").objects if one["name"] == "survey")
    got = invoke("--log", url, "workflow", "get", one["id"])
    assert (got.status, got.objects[0]["output"], got.objects[0]["status"]) == (0, 400, "complete")
    history = invoke("--log", url, "workflow", "history", one["id"])
    assert (history.status, history.stderr) == (0, "")
    types = [event["type"].removeprefix("gasoline.workflow.") for event in history.objects]
    assert types == ["dispatched.v1", "completed.v1", "pruned.v1"]
    text = invoke("--log", url, "workflow", "history", one["id"], "--text").stdout
    assert "history pruned" in text
    assert "measure" not in text
    before = invoke("--log", url, "workflow", "get", one["id"], "--as-of", "1")
    assert before.status != 0
    assert "was pruned" in before.stderr
    rerun = invoke("--log", url, "workflow", "rerun", one["id"], "--from", "1", "--dry-run")
    assert rerun.status != 0
    assert "its history was pruned" in rerun.stderr


def test_it_must_be_said_which(url: str) -> None:
    """api.md: nobody gives up everything by leaving something out."""
    done = invoke("--log", url, "workflow", "prune-history")
    assert done.status == 2
    assert "--older-than" in done.stderr
    assert invoke("--log", url, "workflow", "prune-history", "--older-than", "soon").status == 2


def test_pruned_histories_are_no_finding_of_a_replay_check(url: str) -> None:
    """semantics.md §3, §10: what is left of a pruned workflow is not replayed; what was not pruned is."""
    assert replay_check([survey, archive], url).histories == 3
    invoke("--log", url, "workflow", "prune-history", "--name", "archive")
    report = replay_check([survey, archive], url)
    assert (report.ok, report.histories, report.replayed, report.warnings) == (True, 1, 1, [])


def test_log_compact_removes_what_was_pruned_and_nobody_is_told_otherwise(url: str) -> None:
    """design §8: lists, histories and the stored views are as before; the log is sound, and holds what is left."""
    invoke("--log", url, "workflow", "prune-history", "--name", "survey")
    listed = invoke("--log", url, "workflow", "list").objects
    histories = [invoke("--log", url, "workflow", "history", one["id"]).objects for one in listed]
    dump = ("--log", url, "log", "dump", "--topic", "events")
    before = invoke(*dump).objects
    would = invoke("--log", url, "log", "compact", "--dry-run").objects[0]
    done = invoke("--log", url, "log", "compact").objects[0]
    assert done["removed"] == would["removed"]
    assert done["removed"]["default.events"]["pruned"] == 4
    assert invoke("--log", url, "log", "verify").status == 0
    assert invoke("--log", url, "workflow", "list").objects == listed
    assert [invoke("--log", url, "workflow", "history", one["id"]).objects for one in listed] == histories
    left = invoke(*dump)
    assert left.status == 0
    assert [one for one in before if one in left.objects] == left.objects
    verified = invoke("--log", url, "projections", "verify")
    assert (verified.status, verified.stderr) == (0, "")
    assert invoke("--log", url, "projections", "rebuild").status == 0
    assert invoke("--log", url, "workflow", "list").objects == listed
    told = invoke("--log", url, "log", "compact", "--text", columns=80).stdout
    assert "its workflow was pruned" not in told


def test_archived_histories_are_shown_from_their_files(url: str, tmp_path: Path) -> None:
    """docs/design/0046: as they were, also once nothing of them is on the log; what is cut off is said."""
    directory = f"{tmp_path}/archive"
    ids = [one["id"] for one in invoke("--log", url, "workflow", "list", "--name", "archive").objects]
    before = [invoke("--log", url, "workflow", "history", one).stdout for one in ids]
    command = ("--log", url, "workflow", "prune-history", "--name", "archive", "--archive", directory)
    assert invoke(*command, "--dry-run").objects[0]["workflows"] == 2
    assert not Path(directory).exists()
    assert invoke(*command).objects[0]["workflows"] == 2
    shown = [invoke("workflow", "history", one, "--archive", directory) for one in ids]
    assert [(one.status, one.stderr) for one in shown] == [(0, "")] * 2
    assert [one.stdout for one in shown] == before
    assert "measure" in invoke("workflow", "history", ids[0], "--archive", directory, "--text").stdout
    (file,) = Path(directory).iterdir()
    with file.open("ab") as torn:
        torn.write(file.read_bytes()[:20])
    said = invoke("workflow", "history", ids[0], "--archive", directory)
    assert (said.status, said.stdout) == (0, before[0])
    assert "is cut off" in said.stderr
    unknown = invoke("workflow", "history", "01890000-0000-7000-8000-000000000000", "--archive", directory)
    assert unknown.status == 1
    assert "was not found in the archive" in unknown.stderr
    nowhere = invoke("workflow", "history", ids[0], "--archive", f"{tmp_path}/nowhere")
    assert (nowhere.status, "cannot be read" in nowhere.stderr) == (1, True)


def test_worker_that_archives_has_to_prune(url: str, tmp_path: Path) -> None:
    done = invoke("--log", url, "worker", "tests.engine.workflows", "--archive", str(tmp_path / "archive"))
    assert (done.status, "give --prune-after" in done.stderr) == (2, True)
