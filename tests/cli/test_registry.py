"""`gasoline registry`: who lives, what it has registered, and which names wait for nobody."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import ActivityContext, Gasoline, WorkflowContext, activity, workflow
from tests.cli.terminal import invoke
from tests.engine.subprocesses import line, worker_process


@activity
async def weigh(ctx: ActivityContext, parcel: str) -> int:
    return 3


@workflow
async def ship(ctx: WorkflowContext, parcel: str) -> int:
    await ctx.sleep(3600)
    return await ctx.activity(weigh, parcel)


@workflow
async def bill(ctx: WorkflowContext, parcel: str) -> None:
    await ctx.sleep(3600)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file:{tmp_path}/log"


def seen(url: str, *options: str) -> dict[str, list[Any]]:
    done = invoke("--log", url, "registry", *options)
    assert (done.status, done.stderr) == (0, "")
    found: dict[str, list[Any]] = {"worker": [], "workflow": [], "activity": []}
    for one in done.objects:
        found[one.pop("kind")].append(one)
    return found


async def test_registry_shows_the_worker_its_definitions_and_what_waits_for_nobody(url: str) -> None:
    """semantics.md §7, §11: a name that nobody alive has registered waits, shown and counted."""
    async with Gasoline.open(url, partitions=2) as gasoline, gasoline.worker([ship]):
        await gasoline.dispatch(ship, "box")
        for parcel in ("box", "bag"):
            await gasoline.dispatch(bill, parcel)
        while not (found := await asyncio.to_thread(seen, url))["worker"]:
            await asyncio.sleep(0.05)
        (worker,) = found["worker"]
        assert (worker["alive"], worker["owns"], worker["workflows"], worker["activities"]) == (
            True,
            2,
            ["ship"],
            ["weigh"],
        )
        assert worker["worker"] == gasoline.log.incarnation
        assert worker["pid"] > 0
        assert worker["library"] == version("gasoline_es"), "not that of the worker's code"
        assert found["workflow"] == [
            {"name": "bill", "workers": [], "waiting": 2, "stranded": True},
            {"name": "ship", "workers": [worker["worker"]], "waiting": 1, "stranded": False},
        ]
        assert found["activity"] == [{"name": "weigh", "workers": [worker["worker"]]}]
        shown = (await asyncio.to_thread(invoke, "--log", url, "registry", "--text", columns=160)).stdout
        assert "2 workflows wait for a worker that runs bill" in shown
        assert shown.split()[:3] == ["WORKER", "STARTED", "LIBRARY"]
        assert shown.splitlines()[-1] == "1 worker alive"
    stopped = await asyncio.to_thread(seen, url)
    assert (stopped["worker"], stopped["activity"]) == ([], [])
    assert [(one["name"], one["waiting"], one["stranded"]) for one in stopped["workflow"]] == [
        ("bill", 2, True),
        ("ship", 1, True),
    ]
    text = (await asyncio.to_thread(invoke, "--log", url, "registry", "--text")).stdout
    assert text.splitlines()[-1] == "no worker is alive"


async def test_worker_that_was_killed_lives_no_more_and_is_shown_if_asked_for(url: str) -> None:
    """design §5: whether one lives is told by what it owns, not by what it said."""
    async with Gasoline.open(url, partitions=2) as gasoline:
        await gasoline.dispatch(bill, "box")
    async with worker_process(url) as process:
        assert await line(process) == "ready"
        while not (alive := (await asyncio.to_thread(seen, url))["worker"]):
            await asyncio.sleep(0.05)
        process.kill()
        await process.wait()
    assert (await asyncio.to_thread(seen, url))["worker"] == []
    (gone,) = (await asyncio.to_thread(seen, url, "--all"))["worker"]
    assert (gone["worker"], gone["alive"], gone["owns"]) == (alive[0]["worker"], False, 0)


async def test_process_that_only_calls_is_no_worker(url: str) -> None:
    async with Gasoline.open(url, partitions=2) as gasoline:
        await gasoline.dispatch(bill, "box")
        assert (await asyncio.to_thread(seen, url))["worker"] == []
