"""What an activity tells besides its result: tags, committed with it, and heartbeats (semantics.md §4, §6)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from gasoline_es import ActivityContext, Backoff, WorkflowContext, activity, workflow
from gasoline_es.core import events as ev
from gasoline_es.errors import InvalidTags, NotSerializable, RecordTooLarge
from tests.engine.harness import World, failures, soon, types


@activity(max_attempts=2, backoff=Backoff(base=0, doublings=0))
async def move(ctx: ActivityContext, place: str) -> str:
    await ctx.update_tags({"place": place})
    if place == "nowhere":
        raise RuntimeError("no such place")
    return place


@activity
def move_in_a_thread(ctx: ActivityContext, place: str) -> None:
    ctx.update_tags({"place": place})


@workflow
async def travel(ctx: WorkflowContext, places: list[str]) -> list[dict[str, str]]:
    seen = [dict(ctx.tags)]
    for place in places:
        await ctx.catch(ctx.activity(move, place))
        seen.append(dict(ctx.tags))
    await ctx.activity(move_in_a_thread, "home")
    seen.append(dict(ctx.tags))
    await ctx.sleep(10)
    return seen


async def test_tags_change_with_the_result_and_a_replay_sees_those_of_the_time(any_world: World) -> None:
    """semantics.md §4: the new object replaces the old one; dropped with a failed attempt."""
    process = await any_world.worker(travel)
    handle = await process.gasoline.dispatch(travel, ["sea", "nowhere"], tags={"who": "ann"})
    await process.until(handle.id, lambda history: types(history).count("sleep.started") == 1)
    assert (await handle.get()).tags == {"place": "home"}
    assert await process.gasoline.find(travel, tags={"place": "home"}) is not None
    for gone in ({"place": "sea"}, {"who": "ann"}):
        assert await process.gasoline.find(travel, tags=gone) is None
    await process.kill()
    process = await any_world.worker(travel)
    found = await process.gasoline.find(travel, tags={"place": "home"})
    assert found is not None, "the index is folded from the log"
    await process.advance(20)
    seen = await soon(process.gasoline.handle(handle.id, travel).output())
    assert seen == [{"who": "ann"}, {"place": "sea"}, {"place": "sea"}, {"place": "home"}]
    assert types(await process.gasoline.history(handle.id)).count("workflow.tags_updated") == 2
    assert await process.gasoline.find(travel, tags={"place": "home"}) is None, "complete"


async def test_oldest_match_comes_first_also_after_tags_were_changed(any_world: World) -> None:
    """semantics.md §5."""
    process = await any_world.worker(travel)
    first = await process.gasoline.dispatch(travel, [], tags={"place": "home"})
    any_world.clock.advance(1)
    second = await process.gasoline.dispatch(travel, [], tags={"place": "home"})
    for handle in (second, first):
        await process.until(handle.id, lambda history: types(history).count("sleep.started") == 1)
    found = await process.gasoline.find(travel, tags={"place": "home"})
    assert found is not None
    assert found.id == first.id


def test_tags_that_cannot_be_are_refused_at_the_call() -> None:
    bad: Any = {"a": ["list"]}
    with pytest.raises(InvalidTags, match="update_tags in activity"):
        ActivityContext().update_tags(bad)


@activity
async def advance(ctx: ActivityContext, stage: str) -> None:
    await ctx.update_tags({**ctx.tags, "stage": stage})


@activity
def tag_wrongly(ctx: ActivityContext, reason: str) -> None:
    wrong: Any = {"reason": [reason]}
    ctx.update_tags(wrong)


@workflow
async def stages(ctx: WorkflowContext, reason: str) -> dict[str, str]:
    await ctx.activity(advance, "packed")
    await ctx.activity(advance, "sent")
    await ctx.catch(ctx.activity(tag_wrongly, reason))
    return dict(ctx.tags)


async def test_activity_sees_the_tags_of_its_workflow_and_can_keep_the_others(world: World) -> None:
    """api.md, "Inside an activity"; what is no tag is a mistake in the code, and not tried again."""
    process = await world.worker(stages)
    handle = await process.gasoline.dispatch(stages, "late", tags={"order": 7, "stage": "new"})
    assert await soon(handle.output()) == {"order": "7", "stage": "sent"}
    (failed,) = [event.data for event in await handle.history() if isinstance(event.data, ev.ActivityFailed)]
    assert (failed.attempt, failed.final, failed.error.type) == (1, True, "InvalidTags")


beats: list[Any] = []
release = threading.Event()


@activity(max_attempts=3, timeout=60, heartbeat_timeout=0.05, backoff=Backoff(base=0, doublings=0))
async def crawl(ctx: ActivityContext, steps: int) -> int:
    beats.append(ctx.last_heartbeat)
    done = ctx.last_heartbeat or 0
    while done < steps:
        done += 1
        ctx.heartbeat(done)
        await asyncio.sleep(0.005)
        if done in (2, 4):
            await asyncio.sleep(30)  # it hangs
    return done


@workflow
async def crawls(ctx: WorkflowContext, steps: int) -> int:
    return await ctx.activity(crawl, steps)


async def test_attempt_that_falls_silent_is_tried_again_from_its_last_heartbeat(world: World) -> None:
    """api.md: ``heartbeat_timeout=`` on the definition, ``ctx.heartbeat``, ``ctx.last_heartbeat``."""
    beats.clear()
    process = await world.worker(crawls)
    handle = await process.gasoline.dispatch(crawls, 5)
    while not (await handle.get()).events >= 4:
        await asyncio.sleep(0.01)
        await process.advance(1)
    assert await soon(handle.output()) == 5
    assert beats == [None, 2, 4]
    failed = failures(await handle.history())
    assert [one.heartbeat for one in failed] == [b"2", b"4"]
    assert all("gave no heartbeat for 0.05 s" in str(one.error) for one in failed)


def test_heartbeat_that_cannot_be_kept_is_refused() -> None:
    ctx = ActivityContext()
    with pytest.raises(NotSerializable):
        ctx.heartbeat(object())
    with pytest.raises(RecordTooLarge, match="heartbeat"):
        ctx.heartbeat("x" * 20_000)
    ctx.heartbeat({"page": 3})
    assert ActivityContext(heartbeat_json=b'{"page":3}').last_heartbeat == {"page": 3}
    assert ev.ActivityFailed.TYPE == "activity.failed"
