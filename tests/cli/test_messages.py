"""Messages on the command line: in dumps, in histories, and in the code that is about to be shipped (semantics.md §3, §9)."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from gasoline_es import Gasoline, Message, Workflow, WorkflowContext, workflow
from gasoline_es.testing import replay_check
from tests.cli.terminal import invoke, jq

names = itertools.count()


class Moved(Message):
    x: int


class Stopped(Message): ...


@workflow
async def walk(ctx: WorkflowContext, steps: int) -> str:
    for x in range(steps):
        await ctx.message(Moved(x=x), topic={"map": "forest"})
    if steps == 0:
        await ctx.sleep(3600)
    return "there"


@workflow(name="walk")
async def walk_and_stop(ctx: WorkflowContext, steps: int) -> str:
    await walk.fn(ctx, steps)
    await ctx.message(Stopped())
    return "there"


@workflow(name="walk")
async def walk_and_stop_from_now_on(ctx: WorkflowContext, steps: int) -> str:
    await walk.fn(ctx, steps)
    await ctx.v(2).message(Stopped())
    return "there"


@workflow(name="walk")
async def walk_silently(ctx: WorkflowContext, steps: int) -> str:
    for _ in range(steps):
        await ctx.removed("message", "moved")
    if steps == 0:
        await ctx.sleep(3600)
    return "there"


async def walked(url: str) -> None:
    async with Gasoline.open(url) as gasoline, gasoline.worker([walk]):
        for steps in (2, 3):
            await (await gasoline.dispatch(walk, steps, key=str(steps))).output()
        await gasoline.dispatch(walk, 0)
        await gasoline.message(Moved(x=9), topic={"map": "desert"}, wait=True)


def test_dump_gives_every_message_whoever_sent_it(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/log"
    asyncio.run(walked(url))
    done = invoke("--log", url, "log", "dump", "--topic", "messages")
    assert (done.status, done.stderr) == (0, "")
    # An owner that writes to the partition of its own number gives its record an offset, which means nothing there.
    assert [(found["topic"], found["key"], found["offset"]) for found in done.objects] == [
        ("default.messages", "moved", None)
    ] * 6
    assert sorted(jq(".value.data.body.x", done.stdout)) == [0, 0, 1, 1, 2, 9]
    assert {value["type"] for value in jq(".value", done.stdout)} == {"gasoline.message.v1"}
    everything = invoke("--log", url, "log", "dump").objects
    assert sum(found["topic"] == "default.messages" for found in everything) == 6


@pytest.mark.parametrize(
    ("code", "problems", "found"),
    [
        (walk, 0, ""),
        (walk_and_stop, 2, "message 'stopped'"),
        (walk_and_stop_from_now_on, 0, ""),
        (walk_silently, 0, ""),
    ],
)
async def test_changed_messages_are_held_against_histories(code: Workflow[int, str], problems: int, found: str) -> None:
    url = f"memory:check-messages-{next(names)}"
    async with Gasoline.open(url) as gasoline:
        async with gasoline.worker([walk]):
            for steps in (2, 3):
                await (await gasoline.dispatch(walk, steps)).output()
            await gasoline.dispatch(walk, 0)
        report = replay_check([code], url)
        assert report.histories == 3
        assert [finding.found for finding in report.divergences] == [found] * problems, str(report)
        assert all("ctx.v(2).message(…)" in finding.fix for finding in report.divergences)
        newest = await gasoline.tail(Moved)
        assert newest is not None
        assert newest.message.x == 2, "a check sends nothing"
