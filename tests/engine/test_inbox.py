"""What others send through a partition's inbox: all of it is decided, in time, and nothing in it breaks the owner."""

from __future__ import annotations

import asyncio

import pytest

from gasoline_es.core.commands import Request, SendSignal, encode_request
from tests.engine.harness import World, consumed, post, rehandle, soon
from tests.engine.workflows import Note, echo, notes, timed_note

POLL = 4


@pytest.fixture
def small_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gasoline_es.runtime.partition.INBOX_POLL_MAX", POLL)


def sent(workflow_id: str, number: int, name: str = "note") -> bytes:
    body = b'{"text":"%d"}' % number
    return encode_request(Request(f"r{number}", "nobody", SendSignal(workflow_id, f"s{number}", name, body, True)))


# --- backlogs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backlog", [POLL - 1, POLL, 5 * POLL, 5 * POLL + 1])
async def test_backlog_larger_than_a_poll_is_decided_to_its_end_at_take_over(
    any_world: World, backlog: int, small_polls: None
) -> None:
    """design §5 "Order": a take-over consumes the inbox, all of it, before anything else is decided or driven."""
    client = await any_world.process(partitions=1)
    handle = await client.gasoline.dispatch(notes, backlog + 1)
    await client.stop()
    await post(any_world, [sent(handle.id, number) for number in range(backlog)])
    process = await any_world.worker(notes)
    await process.gasoline.signal(Note(text="last"), to=handle.id, id="last")
    texts = await soon(rehandle(process, handle, notes).output())
    assert texts == [*map(str, range(backlog)), "last"]


async def test_backlog_that_arrives_while_a_worker_runs_is_decided_to_its_end(
    any_world: World, small_polls: None
) -> None:
    """design §5: what is left after one poll does not wait until somebody publishes something else."""
    process = await any_world.process(partitions=1)
    await process.work(notes)
    handle = await process.gasoline.dispatch(notes, 5 * POLL)
    await process.settle()
    await post(any_world, [sent(handle.id, number) for number in range(5 * POLL)])
    assert await soon(handle.output()) == [*map(str, range(5 * POLL))]


async def test_signal_behind_a_backlog_meets_a_listen_whose_deadline_passed_before_the_take_over(
    any_world: World, small_polls: None
) -> None:
    """design §5 "Order": a take-over consumes the inbox before it fires timers."""
    process = await any_world.process(partitions=1)
    await process.work(timed_note, notes)
    timed = await process.gasoline.dispatch(timed_note, 100.0)
    other = await process.gasoline.dispatch(notes, 1_000)
    await process.evict()
    await process.stop()
    backlog = [sent(other.id, number) for number in range(5 * POLL)]
    await post(any_world, [*backlog, sent(timed.id, 77)])
    any_world.clock.advance(1_000)
    process = await any_world.worker(timed_note, notes)
    assert await soon(rehandle(process, timed, timed_note).output()) == "77"


async def test_signal_behind_a_backlog_meets_a_listen_before_its_deadline_fires(
    world: World, small_polls: None
) -> None:
    """design §5 "Order": a deadline too consumes the inbox first, to its end, whether or not the log told of news."""
    process = await world.process(partitions=1)

    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    process.log.changed = never  # type: ignore[method-assign]
    await process.work(timed_note, notes)
    timed = await process.gasoline.dispatch(timed_note, 100.0)
    other = await process.gasoline.dispatch(notes, 1_000)
    await process.settle()
    backlog = [sent(other.id, number) for number in range(5 * POLL)]
    await post(world, [*backlog, sent(timed.id, 77)])
    await process.advance(101)
    assert await soon(timed.output()) == "77"


# --- a request that lands in one's own inbox --------------------------------------------------------------------------


async def test_request_posted_to_a_partition_that_is_ones_own_by_then_is_decided(
    any_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """design §5: a process that took the partition while its request was on its way reads that itself."""
    monkeypatch.setattr("gasoline_es.runtime.calls.REPLY_TIMEOUT_S", 5.0)
    owner = await any_world.process(partitions=1)
    handle = await owner.gasoline.dispatch(notes, 2)
    other = await any_world.process()
    other.log.asked.clear()
    other.log.open_gate.clear()
    sending = asyncio.ensure_future(other.gasoline.signal(Note(text="posted"), to=handle.id, id="posted"))
    await soon(other.log.asked.wait())
    await owner.node.release(0)
    await other.log.refresh()  # beyond one machine it hears of that a little later
    assert await other.node.own(0) is not None
    other.log.open_gate.set()
    assert await soon(sending) == "posted"
    await other.gasoline.signal(Note(text="local"), to=handle.id, id="local")
    await other.work(notes)
    assert await soon(rehandle(other, handle, notes).output()) == ["posted", "local"]
    assert consumed(await other.gasoline.history(handle.id)) == ["posted", "local"]


async def test_take_over_whose_caller_gave_up_decides_each_request_once(
    world: World, monkeypatch: pytest.MonkeyPatch, small_polls: None
) -> None:
    """design §5: one owner decides; a second call for the partition joins the take-over that is under way."""
    client = await world.process(partitions=1)
    handle = await client.gasoline.dispatch(notes, 100)
    await client.stop()
    await post(world, [sent(handle.id, number) for number in range(5 * POLL)])
    process = await world.process()
    folding, go = asyncio.Event(), asyncio.Event()
    fold = process.node.viewing._fold

    async def slow(index: int, stop: int | None) -> None:
        folding.set()
        await go.wait()
        await fold(index, stop)

    monkeypatch.setattr(process.node.viewing, "_fold", slow)
    given_up = asyncio.ensure_future(process.node.own(0))
    await soon(folding.wait())
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    second = asyncio.ensure_future(process.node.own(0))
    for _ in range(10):
        await asyncio.sleep(0)
    go.set()
    assert await soon(second) is process.node.partitions[0]
    await process.settle()
    queued = (await process.gasoline.get(handle.id)).queued
    assert list(queued) == [f"s{number}" for number in range(5 * POLL)]
    received = [event.seq for event in await process.gasoline.history(handle.id)]
    assert len(received) == 1 + 5 * POLL


# --- requests no client of this library would send --------------------------------------------------------------------

SOMEBODY = b"0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"


def signal_of(body: bytes, client: bytes = b'"nobody"', request_id: bytes = b'"r"') -> bytes:
    return (
        b'{"command":"signal","workflow_id":"<target>","signal_id":"s","name":"note","body":%b,"by_caller":true,'
        b'"sender":null,"client":%b,"request_id":%b}' % (body, client, request_id)
    )


HOSTILE = {
    "199 deep": signal_of(b"[" * 199 + b"]" * 199),
    "200 deep": signal_of(b"[" * 200 + b"]" * 200),
    "203 deep": signal_of(b"[" * 203 + b"]" * 203),
    "10,000 deep": signal_of(b"[" * 10_000 + b"]" * 10_000),
    "objects 200 deep": signal_of(b'{"a":' * 200 + b"1" + b"}" * 200),
    "client null": signal_of(b'{"text":"x"}', client=b"null"),
    "client an object": signal_of(b'{"text":"x"}', client=b'{"a":1}'),
    "client a surrogate": signal_of(b'{"text":"x"}', client=b'"\\ud800"'),
    "request id null": signal_of(b'{"text":"x"}', request_id=b"null"),
    "request id a number": signal_of(b'{"text":"x"}', request_id=b"12"),
    "wake by a number": b'{"command":"wake","workflow_id":"<target>","by":5,"client":"c","request_id":"r"}',
    "wake by an object": b'{"command":"wake","workflow_id":"<target>","by":{"a":1},"client":"c","request_id":"r"}',
    "yield to a number": b'{"command":"yield","to":5,"workflow_id":9,"client":"c","request_id":"r"}',
    "key an object": (
        b'{"command":"dispatch","workflow_id":"%b","name":"echo","input":"x","tags":{},"unique":"yes","key":{"a":[1]},'
        b'"parent":3,"ray_id":"","client":"c","request_id":"r"}' % SOMEBODY
    ),
    "sender an object": (
        b'{"command":"signal","workflow_id":"<target>","signal_id":"s","name":"other","body":{},"by_caller":1,'
        b'"sender":{"x":1},"client":"c","request_id":"r"}'
    ),
    "an array": b"[1]",
    "null": b"null",
    "no JSON": b'{"command":',
}


@pytest.mark.parametrize("arrives", ["before", "while it runs"])
@pytest.mark.parametrize("hostile", HOSTILE)
async def test_request_that_makes_no_sense_is_refused_and_breaks_nobody(
    world: World, hostile: str, arrives: str
) -> None:
    """design §5: an inbox is open to everybody; the owner goes on, and so does the next one."""
    client = await world.process(partitions=1)
    handle = await client.gasoline.dispatch(notes, 1)
    await client.stop()
    request = HOSTILE[hostile].replace(b"<target>", handle.id.encode())
    if arrives == "before":
        await post(world, [request])
    for _ in range(2):
        process = await world.worker(echo)
        if arrives == "while it runs":
            await post(world, [request])
        assert await soon((await process.gasoline.dispatch(echo, "fine")).output()) == "fine"
        await process.settle()
        assert process.node.failure is None
        await process.stop()
    async with world.reader() as reader:
        assert {info.status for info in [info async for info in reader.list()]} <= {"running", "complete", "sleeping"}
        await reader.history(handle.id)
