"""Clients and workers in processes of their own, on one file log (design §5)."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from gasoline_es import Gasoline, SignalTo
from gasoline_es.errors import KeyReused, WorkflowFailed, WorkflowNotFound
from gasoline_es.events import WorkflowRerun
from tests.engine.harness import PATIENCE_S, World, consumed, soon
from tests.engine.subprocesses import errors, line, program, worker_process
from tests.engine.workflows import Add, Note, count_to_three, echo, nap, notes, one_note


def owned(gasoline: Gasoline) -> list[int]:
    """How many partitions each owner has."""
    owners = [gasoline.log.owner(index) for index in range(gasoline.log.partition_count)]
    return list(Counter(one.incarnation for one in owners if one is not None and not one.released).values())


@pytest.fixture
def url(file_world: World) -> str:
    """A file log, whose histories are looked at when the test has ended."""
    return file_world.url


async def test_client_works_beside_a_worker_process(url: str) -> None:
    """design §5: dispatch, signal, output, get, list, wake through the inbox; each answered once it is decided."""
    async with worker_process(url) as worker:
        assert await line(worker) == "ready"
        async with Gasoline.open(url) as gasoline:
            handle = await soon(gasoline.dispatch(notes, 3, tags={"a": 1}))
            await soon(handle.signal(Note(text="by id")))
            await soon(gasoline.signal(Note(text="by tags"), notes, tags={"a": "1"}))
            assert (await soon(handle.get())).status in ("running", "sleeping")
            assert [info.id async for info in gasoline.list(tags={"a": 1})] == [handle.id]
            (sent,) = await soon(gasoline.signal_many([SignalTo(Note(text="in a batch"), handle.id, id="mine")]))
            assert sent == "mine"
            assert await soon(handle.output()) == ["by id", "by tags", "in a batch"]
            with pytest.raises(WorkflowNotFound):
                await soon(handle.signal(Note()))
            keyed = await soon(gasoline.dispatch(echo, "x", key="k"))
            assert await soon(keyed.output()) == "x"
            with pytest.raises(KeyReused):
                await soon(gasoline.dispatch(echo, "y", key="k"))
            same = await soon(asyncio.gather(*(gasoline.dispatch(nap, 600.0, unique=True) for _ in range(20))))
            assert len({one.id for one in same}) == 1
            await soon(same[0].wake())
            owners = {owner.incarnation for index in range(16) if (owner := gasoline.log.owner(index)) is not None}
            assert len(owners) == 1
            assert gasoline.log.incarnation not in owners
        assert worker.returncode is None


async def test_client_that_owns_partitions_yields_to_a_worker_that_starts_later(url: str) -> None:
    """design §5: a process that drives nothing yields to one that has registered bodies; calls go on meanwhile."""
    async with Gasoline.open(url) as gasoline:
        handles = [await gasoline.dispatch(one_note, None, tags={"n": n}) for n in range(40)]
        async with worker_process(url) as worker:
            assert await line(worker) == "ready"
            for number, handle in enumerate(handles):
                await soon(gasoline.signal(Note(text=str(number)), to=handle.id))
            assert [await soon(handle.output()) for handle in handles] == [str(n) for n in range(40)]


async def test_client_alone_dispatches_and_signals_and_a_later_worker_runs_it(url: str) -> None:
    """design §5: owning is separate from driving."""
    async with Gasoline.open(url) as gasoline:
        handle = await gasoline.dispatch(notes, 2, tags={"a": 1})
        await gasoline.signal_many([SignalTo(Note(text=text), handle.id) for text in "ab"])
        broken = await gasoline.dispatch(nap, 1e300)
    async with worker_process(url) as worker:
        assert await line(worker) == "ready"
        async with Gasoline.open(url) as gasoline:
            assert await soon(gasoline.handle(handle.id, notes).output()) == ["a", "b"]
            with pytest.raises(WorkflowFailed, match="too long"):
                await soon(gasoline.handle(broken.id, nap).output())


async def test_call_is_answered_although_its_worker_was_killed_and_another_started(url: str) -> None:
    """design §5: a dead process's partitions are free at once; the command in the inbox is decided by whoever takes over."""
    async with Gasoline.open(url) as gasoline:
        handle = None
        for life in range(3):
            async with worker_process(url) as worker:
                assert await line(worker) == "ready"
                handle = await soon(gasoline.dispatch(notes, 60, key="all along"))
                await soon(handle.signal(Note(text=f"life {life}")))
                sending = [
                    asyncio.ensure_future(gasoline.signal(Note(text="x"), to=handle.id, id=f"{life} {n}"))
                    for n in range(19)
                ]
                worker.kill()
                await soon(asyncio.gather(*sending))
        async with worker_process(url) as worker:
            assert await line(worker) == "ready"
            assert handle is not None
            output = await soon(handle.output())
            assert output.count("x") == 57
            assert [text for text in output if text != "x"] == ["life 0", "life 1", "life 2"]
            assert len(set(consumed(await handle.history()))) == 60


async def test_rerun_is_done_once_although_its_worker_was_killed_and_another_started(url: str) -> None:
    """semantics.md §4: a command in an inbox is decided once, with its position in one append."""
    async with Gasoline.open(url) as gasoline:
        handle = await gasoline.dispatch(notes, 4)
        for number in range(4):
            await handle.signal(Note(text=f"{number}"))
        for life in range(2):
            async with worker_process(url) as worker:
                assert await line(worker) == "ready"
                assert await soon(handle.output()) == ["0", "1", "2", "3"]
                asking = [asyncio.ensure_future(handle.rerun("{3}", fork)) for fork in (True, True, False)]
                await asyncio.sleep(0.002 * life)
                worker.kill()
                forks = [done.id for done in await soon(asyncio.gather(*asking)) if done.id != handle.id]
            reruns = [event.data for event in await handle.history() if isinstance(event.data, WorkflowRerun)]
            assert [rerun.generation for rerun in reruns] == list(range(1, life + 2))
            assert len(set(forks)) == 2
        async with worker_process(url) as worker:
            assert await line(worker) == "ready"
            async for info in gasoline.list():
                assert await soon(gasoline.handle(info.id, notes).output()) == ["0", "1", "2", "3"]
        assert len([info async for info in gasoline.list()]) == 5


async def test_call_is_answered_by_the_client_itself_when_the_worker_is_gone_for_good(url: str) -> None:
    """design §5: a client takes what nobody owns, and decides the command it left in the inbox."""
    async with Gasoline.open(url) as gasoline:
        async with worker_process(url) as worker:
            assert await line(worker) == "ready"
            first = await soon(gasoline.dispatch(count_to_three, None))
            await soon(first.signal(Add()))
            worker.kill()
            await worker.wait()
        second = await soon(gasoline.dispatch(count_to_three, None))
        for _ in range(2):
            await soon(first.signal(Add()))
        async with gasoline.worker([count_to_three]):
            assert await soon(first.output()) == 3
        assert (await second.get()).status == "running"


async def test_second_worker_shares_the_partitions_and_takes_all_when_the_first_ends(url: str) -> None:
    """semantics.md §8: a worker gives up what others are to drive; at its end all of it, at once."""
    async with worker_process(url) as first:
        assert await line(first) == "ready"
        async with worker_process(url) as second:
            assert await line(second) == "ready"
            async with Gasoline.open(url) as gasoline:
                handle = await soon(gasoline.dispatch(notes, 2))
                await soon(handle.signal(Note(text="first")))
                async with asyncio.timeout(PATIENCE_S):
                    while sorted(owned(gasoline)) != [8, 8]:
                        await asyncio.sleep(0.02)
                first.terminate()
                assert await line(first) == "stopped"
                assert await soon(first.wait()) == 0
                left = [gasoline.log.owner(index) for index in range(16)]
                assert all(one is not None and (one.pid != first.pid or one.released) for one in left)
                await soon(handle.signal(Note(text="second")))
                assert await soon(handle.output(timeout=timedelta(seconds=30))) == ["first", "second"]
                async with asyncio.timeout(PATIENCE_S):  # it takes one after the other
                    while owned(gasoline) != [16]:
                        await asyncio.sleep(0.02)
            second.terminate()
            assert await line(second) == "stopped"
            await soon(second.wait())
            assert await errors(second) == ""


async def test_reader_sees_what_a_worker_process_records_and_leaves_no_trace(url: str) -> None:
    """api.md: readonly opens beside a worker; what is durable is seen."""
    async with Gasoline.open(url) as gasoline:
        handle = await gasoline.dispatch(one_note, None)
        await handle.signal(Note(text="seen"))
    async with worker_process(url) as worker, Gasoline.open(url, readonly=True) as reader:
        assert await line(worker) == "ready"
        assert await soon(reader.handle(handle.id, one_note).output()) == "seen"


@pytest.mark.parametrize("driven", [True, False])
async def test_unique_dispatches_of_five_processes_at_once_give_one_workflow_a_round(url: str, driven: bool) -> None:
    """required.md B15: 50 callers in 5 processes, 20 rounds: one id, one creation event, and nobody sees a conflict."""
    async with AsyncExitStack() as stack:
        if driven:
            worker = await stack.enter_async_context(worker_process(url))
            assert await line(worker) == "ready"
        callers = [await stack.enter_async_context(program("unique", url)) for _ in range(5)]
        for caller in callers:
            assert await line(caller) == "ready"
        ids: list[str] = []
        for number in range(20):
            for caller in callers:
                assert caller.stdin is not None
                caller.stdin.write(b"%d\n" % number)
            answers = [(await line(caller)).split() for caller in callers]
            assert [len(answer) for answer in answers] == [10] * 5
            (one,) = {one for answer in answers for one in answer}
            ids.append(one)
        assert len(set(ids)) == 20
        async with Gasoline.open(url) as gasoline:
            for number, one in enumerate(ids):
                found = [info.id async for info in gasoline.list(tags={"k": number})]
                assert found == [one]
                history = await gasoline.history(one)
                assert [event.type for event in history].count("workflow.dispatched") == 1
