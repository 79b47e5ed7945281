"""Programs that tests start, to be killed: ``python -m tests.engine.programs NAME URL …``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Event as EventType
from typing import Any

from gasoline_es import ActivityContext, Gasoline, SignalTo, WorkflowContext, activity, workflow
from gasoline_es.errors import WorkflowFailed
from gasoline_es.log.file import log
from gasoline_es.log.file.disk import Disk
from gasoline_es.log.port import Epoch, NewRecord, Outcome, Section
from gasoline_es.runtime.loop_watch import LoopWatch
from tests.engine import workflows as w


def die_at_append(gasoline: Gasoline, number: int) -> None:
    """End this process by os._exit once its n-th append is durable, before anybody learns so."""
    log: Any = gasoline.log
    append = log.append
    count = 0

    async def counted(sections: Sequence[Section]) -> list[Outcome]:
        nonlocal count
        outcomes: list[Outcome] = await append(sections)
        count += 1
        if count == number:
            os._exit(9)
        return outcomes

    log.append = counted


def kill_at_append(gasoline: Gasoline, number: int) -> None:
    """The same by SIGKILL; only appends with events are counted: what a body rests on."""
    log: Any = gasoline.log
    append = log.append
    count = 0

    async def counted(sections: Sequence[Section]) -> list[Outcome]:
        nonlocal count
        outcomes: list[Outcome] = await append(sections)
        if any(record.topic.endswith(".events") for section in sections for record in section.records):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
        return outcomes

    log.append = counted


async def count_to_three(url: str, dies_at: str, how: str = "exit") -> None:
    async with Gasoline.open(url) as gasoline:
        (kill_at_append if how == "kill" else die_at_append)(gasoline, int(dies_at))
        async with gasoline.worker([w.count_to_three]):
            async for info in gasoline.list(name="count_to_three"):
                await gasoline.handle(info.id, w.count_to_three).output()


async def worker(url: str, stop_limit: str = "30") -> None:
    """Work until SIGTERM."""
    async with Gasoline.open(url) as gasoline:
        print("ready", flush=True)
        await gasoline.run_worker(w.ALL, stop_limit=float(stop_limit), evict_after=0.05)
    print("stopped", flush=True)


async def cleaning_worker(url: str, moment: str) -> None:
    """Work and clean, until SIGKILL at what the cleaner does to its first segment: ``made``, ``written`` or ``replaced``."""
    made, replaced = Disk.create, Disk.rename

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def create(disk: Disk, path: str) -> int:
        fd = made(disk, path)
        if moment == "made" and path.endswith(".jsonl.tmp"):
            die()
        return fd

    def rename(disk: Disk, source: str, target: str) -> None:
        of_segment = source.endswith(".jsonl.tmp")
        if moment == "written" and of_segment:
            die()
        replaced(disk, source, target)
        if moment == "replaced" and of_segment:
            die()

    Disk.create, Disk.rename = create, rename  # type: ignore[method-assign]
    async with Gasoline.open(url) as gasoline:
        await gasoline.run_worker(w.ALL, compact_every=0.001)


@activity
async def fell(ctx: ActivityContext, number: int) -> int:
    return number + 1


@workflow
async def ten_steps(ctx: WorkflowContext, start: int) -> int:
    for _ in range(10):
        start = await ctx.activity(fell, start)
    return start


def bury_soon(silent_after_s: float) -> None:
    """Let this process take others for dead that show no heartbeat for so long, and show its own often enough."""
    defaults = log.open_file_log.__kwdefaults__
    assert defaults is not None
    defaults["silent_after_s"] = silent_after_s
    log._BEAT_S = silent_after_s / 10  # type: ignore[misc]  # pyright: ignore[reportPrivateUsage, reportConstantRedefinition]


@workflow
async def nap_then_name(ctx: WorkflowContext, number: int) -> int:
    await ctx.sleep(0.02)
    return number


@workflow
async def parent_of_eight(ctx: WorkflowContext, slow: bool) -> list[int]:
    """Wait for eight that end at the same moment; ``slow``: look only when they have ended."""
    subs = [await ctx.dispatch(nap_then_name, number) for number in range(8)]
    if slow:
        await ctx.sleep(0.3)
    return await ctx.join_all([sub.output() for sub in subs])


async def gang(url: str, silent_after_s: str) -> None:
    """Be one worker of several until SIGTERM. Who shows no heartbeat for so long, in seconds, loses what it owns."""
    bury_soon(float(silent_after_s))
    async with (
        Gasoline.open(url) as gasoline,
        gasoline.worker([ten_steps, w.notes, parent_of_eight, nap_then_name], evict_after=0.05),
    ):
        print("ready", flush=True)
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        failed = asyncio.ensure_future(gasoline._node.failed.wait())
        await asyncio.wait((failed, asyncio.ensure_future(stop.wait())), return_when=asyncio.FIRST_COMPLETED)
        gasoline._node.check()
    print("stopped", flush=True)


@activity(timeout=600)
async def hold(ctx: ActivityContext, _: None) -> str:
    """Say that it runs, and wait to be let go."""
    print("holding", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    return socket.gethostname()


@workflow
async def held(ctx: WorkflowContext, _: None) -> str:
    return await ctx.activity(hold, None)


async def holder(url: str, name: str, version: str, silent_after_s: str) -> None:
    """Be a worker on a host of that name, which owns the only partition; once replaced, try all that an owner may do."""
    socket.gethostname = lambda: name
    bury_soon(float(silent_after_s))
    async with Gasoline.open(url) as gasoline, gasoline.worker([held], version=int(version)):
        print("ready", flush=True)
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        while (owner := gasoline.log.owner(0)) is None or owner.incarnation != gasoline.log.incarnation:
            await asyncio.sleep(0.01)
        mine = owner
        while owner.incarnation == gasoline.log.incarnation and not stop.is_set():
            await asyncio.sleep(0.01)
            owner = gasoline.log.owner(0)
            assert owner is not None
        if not stop.is_set():
            await try_all(gasoline, mine.epoch)
            await stop.wait()
    print("stopped", flush=True)


async def try_all(gasoline: Gasoline, epoch: Epoch) -> None:
    """Do what an owner does, under an epoch that is over: print what came of it."""
    log, topic = gasoline.log, "default.events"
    log.announce({"worker": {"version": 0, "weight": 1.0}})  # it says that it is there, which gives it nothing back
    for kind in ("gasoline.activity.completed.v1", "gasoline.workflow.completed.v1"):
        record = NewRecord(topic, 0, "late/1", b'{"type":"%b"}' % kind.encode(), 0)
        (outcome,) = await log.append([Section(0, epoch, [record])])
        print(kind, type(outcome).__name__, flush=True)
    await log.release(0)
    owner = log.owner(0)
    assert owner is not None
    print("released" if owner.released else "kept", "by", owner.host, flush=True)


async def unique(url: str) -> None:
    """For each number that comes on standard input, dispatch ten unique workflows at once; print the ids they were given."""
    async with Gasoline.open(url) as gasoline:
        print("ready", flush=True)
        while number := (await asyncio.to_thread(sys.stdin.readline)).strip():
            tags = {"k": number}
            handles = await asyncio.gather(
                *(gasoline.dispatch(w.one_note, None, tags=tags, unique=True) for _ in range(10))
            )
            print(" ".join(handle.id for handle in handles), flush=True)


async def chaos(url: str, workflows: str) -> None:
    """Dispatch, signal and work until every workflow is complete; the same command goes on after a kill."""
    async with Gasoline.open(url) as gasoline, gasoline.worker(w.ALL, evict_after=0.02, max_concurrency=20):
        print("ready", flush=True)
        handles = [await gasoline.dispatch(w.mixture, seed, key=f"mixture-{seed}") for seed in range(int(workflows))]
        for number in range(w.PUSHES):
            for handle in handles:
                if (await handle.get()).status != "complete":
                    await gasoline.signal_many([SignalTo(w.Push(number=number), handle.id, id=f"push-{number}")])
        for handle in handles:
            await handle.output()
    print("complete", flush=True)


async def carry(url: str, workflow_id: str) -> None:
    """Replay a workflow that waits for its last signal, send that, and print all its body saw."""
    from tests.engine import kinds

    async with Gasoline.open(url) as gasoline, gasoline.worker([kinds.carrying]):
        handle = gasoline.handle(workflow_id, kinds.carrying)
        await handle.signal(kinds.Carry(value=kinds.Everything()))
        output = await handle.output()
        for line in kinds.seen:
            print(line)
        kinds.seen.clear()
        kinds.see("output", output)
        print(kinds.seen[0], flush=True)


async def join_twenty(url: str) -> None:
    """Run a join of twenty for each number of them that may finish; say when so many have, and when all have."""
    async with Gasoline.open(url) as gasoline, gasoline.worker([w.join_twenty], max_concurrency=1_000):
        handles = [await gasoline.dispatch(w.join_twenty, k, key=f"join-{k}") for k in range(1, w.JOINED)]
        for finishing, handle in enumerate(handles, start=1):
            while sum(event.type == "activity.completed" for event in await handle.history()) < finishing:
                await asyncio.sleep(0.01)
        print("finished", flush=True)
        for finishing, handle in enumerate(handles, start=1):
            assert await handle.output() == list(range(w.JOINED)), finishing
    print("complete", flush=True)


@activity
async def end_the_process(ctx: ActivityContext, how: str) -> None:
    await asyncio.sleep(0.05)
    match how:
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case _:
            os.abort()


@workflow
async def killing_flow(ctx: WorkflowContext, how: str) -> None:
    await ctx.activity(end_the_process, how)


@activity
async def leave_a_mark(ctx: ActivityContext, given: tuple[str, str]) -> None:
    file, step = given
    await asyncio.sleep(0.01)
    with open(file, "a") as marks:
        marks.write(f"{ctx.workflow_id}:{step}\n")


@workflow
async def innocent_flow(ctx: WorkflowContext, file: str) -> None:
    await ctx.activity(leave_a_mark, (file, "a"))
    await ctx.activity(leave_a_mark, (file, "b"))


async def suicidal(url: str, killer: str) -> None:
    """Work until the killer is dead and all others are complete; unless it ends this process before."""
    async with Gasoline.open(url) as gasoline, gasoline.worker([killing_flow, innocent_flow]):
        async for info in gasoline.list(name="innocent_flow"):
            await gasoline.handle(info.id, innocent_flow).output()
        with contextlib.suppress(WorkflowFailed):
            await gasoline.handle(killer, killing_flow).output()


@activity
async def hold_up(ctx: ActivityContext, _: None) -> None:
    print("held up", flush=True)
    threading.Event().wait()


@workflow
async def greedy_activity(ctx: WorkflowContext, _: None) -> None:
    await ctx.activity(hold_up, None)


@workflow
async def greedy_body(ctx: WorkflowContext, _: None) -> None:
    print("held up", flush=True)
    threading.Event().wait()


@workflow
async def greedy_at_the_end(ctx: WorkflowContext, _: None) -> None:
    print("asleep", flush=True)
    try:
        await ctx.sleep(3600)
    finally:
        print("held up", flush=True)
        threading.Event().wait()


@activity
async def fork_one(ctx: ActivityContext, _: None) -> int | None:
    fork = multiprocessing.get_context("fork")
    lives = fork.Event()
    child = fork.Process(target=_live, args=(lives,), daemon=True)
    child.start()
    await asyncio.to_thread(lives.wait)  # a signal that comes while it is being forked is lost
    child.terminate()
    await asyncio.to_thread(child.join)
    return child.exitcode


def _live(lives: EventType) -> None:
    lives.set()
    time.sleep(20)  # and no longer, if nothing ends it


@workflow
async def forking(ctx: WorkflowContext, _: None) -> int | None:
    return await ctx.activity(fork_one, None)


async def forks(url: str) -> None:
    """Print how a child ended that an activity has forked and terminated."""
    async with Gasoline.open(url) as gasoline:
        worker = gasoline.worker([forking])
        working = asyncio.ensure_future(worker.run())
        await worker.started.wait()
        print(await (await gasoline.dispatch(forking, None)).output(), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        await working


async def held_up(url: str, which: str, stop_limit: str) -> None:
    """Dispatch a workflow that others can run, print its id, then be a worker that stands still."""
    logging.basicConfig()
    defaults = LoopWatch.__init__.__kwdefaults__
    assert defaults is not None
    defaults["after_s"] = 0.3
    async with Gasoline.open(url) as gasoline:
        greedy = {one.name: one for one in (greedy_body, greedy_activity, greedy_at_the_end)}
        worker = gasoline.worker(greedy.values(), stop_limit=float(stop_limit))
        working = asyncio.ensure_future(worker.run())
        await worker.started.wait()
        print((await gasoline.dispatch(w.echo, "waits")).id, flush=True)
        await gasoline.dispatch(greedy[which], None)
        await working


if __name__ == "__main__":
    programs = {
        "count-to-three": count_to_three,
        "worker": worker,
        "cleaning-worker": cleaning_worker,
        "chaos": chaos,
        "gang": gang,
        "holder": holder,
        "unique": unique,
        "carry": carry,
        "join-twenty": join_twenty,
        "suicidal": suicidal,
        "held-up": held_up,
        "forks": forks,
    }
    asyncio.run(programs[sys.argv[1]](*sys.argv[2:]))
