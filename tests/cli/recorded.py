"""Histories of one release of a shop's code, made by the engine; and other releases of it to replay them in."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gasoline_es import Gasoline
from gasoline_es.checking.code import Code
from gasoline_es.errors import WorkflowFailed
from tests.cli.terminal import Done, invoke

HEAD = """
import pathlib

from pydantic import BaseModel

from gasoline_es import ActivityContext, Break, NotRetryable, Signal, WorkflowContext, activity, workflow


class Arrived(Signal): ...
class Lost(Signal): ...
class Never(Signal): ...


class State(BaseModel):
    n: int = 0


def called() -> None:
    pathlib.Path(__file__).with_name("called").touch()


@activity
async def weigh(ctx: ActivityContext, parcel: str) -> int:
    called()
    return 3


@activity
async def label(ctx: ActivityContext, parcel: str) -> str:
    called()
    return f"label of {parcel}"


@activity
async def insure(ctx: ActivityContext, parcel: str) -> str:
    called()
    return "insured"


@activity
async def refuse(ctx: ActivityContext, parcel: str) -> str:
    called()
    raise NotRetryable("the scales are broken")


@workflow
async def inner(ctx: WorkflowContext, parcel: str) -> str:
    return await ctx.activity(label, parcel)


@workflow
async def other(ctx: WorkflowContext, parcel: str) -> str:
    return await ctx.activity(label, parcel)


async def packing(ctx: WorkflowContext) -> str:
    await ctx.activity(weigh, "box")
    return "packed"


async def counting(ctx: WorkflowContext, state: State) -> Break[int] | None:
    state.n += 1
    if state.n < 10:
        await ctx.activity(label, str(state.n))
    await ctx.activity(weigh, str(state.n))
    if state.n == 45:
        await ctx.listen(Never)
        return Break(state.n)
    return None
"""

RELEASED = {
    "ship": '''
@workflow
async def ship(ctx: WorkflowContext, parcel: str) -> str:
    await ctx.activity(weigh, parcel)
    await ctx.activity(label, parcel)
    await ctx.listen(Arrived)
    await ctx.sleep(0)
    await ctx.listen(Never)
    return "arrived"
''',
    "flow": '''
@workflow
async def flow(ctx: WorkflowContext, parcel: str) -> str:
    await ctx.closure(packing)
    await ctx.join(ctx.activity(weigh, parcel), ctx.activity(label, parcel))
    await ctx.race(ctx.activity(insure, parcel), ctx.sleep(3600))
    await ctx.run(inner, parcel)
    sub = await ctx.dispatch(inner, parcel)
    await sub.output()
    await ctx.listen(Never)
    return "arrived"
''',
    "looped": '''
@workflow
async def looped(ctx: WorkflowContext, parcel: str) -> int:
    return await ctx.loop(counting, State(), commit_interval=20)
''',
    "done": '''
@workflow
async def done(ctx: WorkflowContext, parcel: str) -> str:
    weight = await ctx.activity(weigh, parcel)
    await ctx.activity(label, parcel)
    return f"{weight} kg"
''',
    "died": '''
@workflow
async def died(ctx: WorkflowContext, parcel: str) -> str:
    await ctx.activity(weigh, parcel)
    return await ctx.activity(refuse, parcel)
''',
}  # fmt: skip


@dataclass(frozen=True)
class Recorded:
    """A finished log, its events as a file, and the ids of what is in it by name."""

    directory: Path
    events: Path
    ids: dict[str, str]

    @property
    def url(self) -> str:
        return f"file:{self.directory}"


def release(
    folder: Path,
    *,
    head: str = HEAD,
    without: tuple[str, ...] = (),
    changed: Mapping[str, str] | None = None,
    **more: str,
) -> Path:
    """Write a release of the code: as it was, but for the bodies that changed."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "shop.py"
    bodies = {**RELEASED, **(changed or {}), **more}
    path.write_text(head + "".join(body for name, body in bodies.items() if name not in without))
    return path


def record(folder: Path, *, head: str = HEAD, **changed: str) -> Recorded:
    """Run a release and keep what it recorded."""
    code = Code(str(release(folder / "released", head=head, changed=changed))).load()
    ids = asyncio.run(_run(f"file:{folder}/log", code, "{5}" if changed else "{4}"))
    assert (folder / "released" / "called").exists()
    events = folder / "events.jsonl"
    events.write_text(invoke("--log", f"file:{folder}/log", "log", "dump", "--topic", "events").stdout)
    return Recorded(folder / "log", events, ids)


async def _run(url: str, code: Any, slept: str) -> dict[str, str]:
    async with Gasoline.open(url, partitions=4) as gasoline, gasoline.worker(list(code.values())):
        handles = {name: await gasoline.dispatch(code[name], "parcel 1") for name in RELEASED}
        arrived = code["ship"].fn.__globals__["Arrived"]
        await gasoline.signal(arrived(), to=handles["ship"].id)
        await handles["done"].output(timeout=20)
        with contextlib.suppress(WorkflowFailed):
            await handles["died"].output(timeout=20)
        for name, where in (("ship", slept), ("flow", "{7}"), ("looped", "{1, 45, 1}")):
            async with asyncio.timeout(20):
                while not any(
                    event.location == where and event.type != "sleep.started"
                    for event in await gasoline.history(handles[name].id)
                ):
                    await asyncio.sleep(0.002)
    return {name: handle.id for name, handle in handles.items()}


def check(recorded: Recorded, path: Path, *args: str) -> Done:
    """Check a release against the log."""
    done = invoke("--log", recorded.url, "replay-check", str(path), *args)
    assert not path.with_name("called").exists()
    return done


def by_kind(done: Done) -> dict[str, list[Any]]:
    """What a check wrote, by kind."""
    found: dict[str, list[Any]] = {}
    for one in done.objects:
        found.setdefault(one["kind"], []).append(one)
    return found


def rewritten(text: str, *changes: tuple[str, str]) -> str:
    """Change a source, every change once."""
    for old, new in changes:
        assert text.count(old) == 1, (old, text)
        text = text.replace(old, new)
    return text


def dumped(events: Path) -> list[Any]:
    """The records of an exported file."""
    return [json.loads(line) for line in events.read_text().splitlines()]
