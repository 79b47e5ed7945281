"""Messages: to whoever subscribes, lost at worst and never sent twice by a replay (semantics.md §9)."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest

from gasoline_es import (
    ActivityContext,
    Gasoline,
    Message,
    Received,
    Subscription,
    WorkflowContext,
    activity,
    workflow,
)
from gasoline_es.core import events as ev
from gasoline_es.core.packets import Packet, decode_packet, encode_packet
from gasoline_es.core.topics import Topics
from gasoline_es.errors import (
    DefinitionError,
    GasolineError,
    InvalidTags,
    LogError,
    LogFailed,
    LogReadOnly,
    NoSpace,
    NotSerializable,
    RecordTooLarge,
)
from gasoline_es.log.port import NewRecord, Section
from gasoline_es.runtime.messages import WAITING_MAX
from tests.engine.harness import Fate, Process, World, kills, soon, types


class Moved(Message, tail_ttl=60):
    x: int


class Left(Message, name="player_left"):
    player: str


class Anything(Message):
    what: Any


@activity
async def step(ctx: ActivityContext, n: int) -> int:
    return n


@workflow
async def walk(ctx: WorkflowContext, steps: int) -> str:
    for x in range(steps):
        await ctx.message(Moved(x=x), topic={"map": "forest", "player": 7})
        await ctx.activity(step, x)
    return "there"


@workflow
async def shout(ctx: WorkflowContext, count: int) -> int:
    await ctx.join_all([ctx.message(Moved(x=x)) for x in range(count)])
    return count


async def take(subscription: Subscription[Any], count: int) -> list[Received[Any]]:
    return [await soon(anext(subscription)) for _ in range(count)]


def xs(messages: list[Received[Any]]) -> list[int]:
    return [one.message.x for one in messages]


def records_of(process: Process, kind: type[Message]) -> list[Packet]:
    """Every message of a kind that is on the log and counts."""
    topics, count = Topics(process.log.namespace), process.log.partition_count
    tail = process.log.tail(topics.messages, topics.message_partition(kind.__message_name__, count))
    return [decode_packet(record.value) for record in tail.poll() if record.value is not None]


# --- sending and subscribing ------------------------------------------------------------------------------------------


async def test_subscriber_gets_what_is_published_to_its_name_and_topic_from_then_on(any_world: World) -> None:
    process = await any_world.process()
    await process.gasoline.message(Moved(x=0), topic={"map": "forest"}, wait=True)
    async with process.gasoline.subscribe(Moved, topic={"map": "forest", "level": 2}) as moves:
        await process.gasoline.message(Left(player="Ann"), topic={"map": "forest", "level": 2})
        await process.gasoline.message(Moved(x=1), topic={"map": "desert", "level": 2})
        await process.gasoline.message(Moved(x=2), topic={"map": "forest", "level": "2", "by": "Ann"})
        await process.gasoline.message(Moved(x=3), topic={"map": "forest"})
        await process.gasoline.message(Moved(x=4), topic={"level": 2, "map": "forest"})
        received = await take(moves, 2)
    assert xs(received) == [2, 4], "the topic is a subset of tags, compared as text"
    assert received[0].topic == {"map": "forest", "level": "2", "by": "Ann"}


async def test_messages_reach_subscribers_in_other_processes_whoever_sends_them(any_world: World) -> None:
    """design §5: they follow the topic of the log."""
    worker = await any_world.worker(walk)
    client = await any_world.process()
    async with client.gasoline.subscribe(Moved, topic={"player": 7}) as moves:
        handle = await worker.gasoline.dispatch(walk, 3)
        assert await soon(handle.output()) == "there"
        assert xs(await take(moves, 3)) == [0, 1, 2]
        await client.gasoline.message(Moved(x=8), topic={"player": 7})
        await worker.gasoline.message(Moved(x=9), topic={"player": 7})
        assert sorted(xs(await take(moves, 2))) == [8, 9]


async def test_every_message_carries_its_ray_its_request_and_the_time_it_was_made(world: World) -> None:
    process = await world.worker(walk)
    ray = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"
    async with process.gasoline.subscribe(Moved) as moves:
        handle = await process.gasoline.dispatch(walk, 1, ray_id=ray)
        (of_body,) = await take(moves, 1)
        (sent,) = [event for event in await handle.history() if isinstance(event.data, ev.MessageSent)]
        assert (of_body.ray_id, of_body.request_id, of_body.time) == (ray, sent.id, sent.time)
        made = world.clock.now_us()
        await process.gasoline.message(Moved(x=1), ray_id=ray)
        await process.gasoline.message(Moved(x=2))
        given, own = await take(moves, 2)
    assert given.ray_id == ray
    assert given.time.timestamp() == pytest.approx(made / 1e6)
    assert own.ray_id == own.request_id != given.request_id


async def test_messages_of_one_client_come_in_the_order_of_the_calls_also_under_gather(any_world: World) -> None:
    process = await any_world.process()
    async with process.gasoline.subscribe(Moved) as moves:
        await asyncio.gather(*(process.gasoline.message(Moved(x=x), wait=x % 3 == 0) for x in range(50)))
        assert xs(await take(moves, 50)) == list(range(50))


async def test_publishing_does_not_wait_and_with_wait_it_is_on_the_log(world: World) -> None:
    process = await world.process()
    await process.gasoline.message(Moved(x=1))
    assert records_of(process, Moved) == [], "the append is yet to come"
    await process.gasoline.message(Moved(x=2), wait=True)
    assert [packet.body for packet in records_of(process, Moved)] == [b'{"x":1}', b'{"x":2}']
    assert [len(sections) for sections in process.log.appended] == [1], "in one append"


async def test_what_is_sent_before_the_log_is_closed_is_published(any_world: World) -> None:
    process, other = await any_world.process(), await any_world.process()
    await process.gasoline.message(Moved(x=1))
    await process.stop()
    topics = other.node.topics
    records_of(other, Moved)
    await other.log.refresh((topics.messages, topics.message_partition("moved", other.log.partition_count)))
    assert [packet.body for packet in records_of(other, Moved)] == [b'{"x":1}']


async def test_message_costs_a_body_one_append_and_many_in_a_join_cost_one(world: World) -> None:
    process = await world.worker(shout)
    handle = await process.gasoline.dispatch(shout, 20)
    assert await soon(handle.output()) == 20
    appends = [sections for sections in process.log.appended if any(s.epoch is not None for s in sections)]
    sent = [
        sum(record.topic.endswith(".messages") for section in sections for record in section.records)
        for sections in appends
    ]
    assert [count for count in sent if count] == [20]


async def test_message_of_a_body_is_in_the_very_section_of_its_event(world: World) -> None:
    """semantics.md §9; the outgoing record is the event's, as a signal's command is."""
    process = await world.worker(walk)
    handle = await process.gasoline.dispatch(walk, 2)
    await soon(handle.output())
    for sections in process.log.appended:
        for section in sections:
            events = [record.value or b"" for record in section.records if record.topic.endswith(".events")]
            sent = sum(b"gasoline.message.sent" in value for value in events)
            assert sum(record.topic.endswith(".messages") for record in section.records) == sent


@pytest.mark.parametrize("fate", ["lost", "unanswered"])
async def test_kill_at_every_append_never_sends_a_bodys_message_twice(fate: Fate) -> None:
    """semantics.md §9: losing one is allowed, delivering one twice on replay is not. Of bodies none is lost either."""
    async for world, number in kills(fate, _walks):
        process = await world.worker(walk)
        handle = await process.gasoline.dispatch(walk, 3, key="one")
        assert await soon(handle.output()) == "there"
        sent = [event for event in await handle.history() if isinstance(event.data, ev.MessageSent)]
        packets = records_of(process, Moved)
        assert [packet.request_id for packet in packets] == [event.id for event in sent], f"killed at append {number}"
        assert [packet.body for packet in packets] == [b'{"x":0}', b'{"x":1}', b'{"x":2}']


async def _walks(process: Process) -> None:
    await process.work(walk)
    handle = await process.gasoline.dispatch(walk, 3, key="one")
    await handle.output()


async def test_replay_after_eviction_sends_nothing(world: World) -> None:
    @workflow
    async def told(ctx: WorkflowContext, n: int) -> int:
        await ctx.message(Moved(x=n))
        await ctx.sleep(3600)
        await ctx.message(Moved(x=n + 1))
        return n

    process = await world.worker(told)
    handle = await process.gasoline.dispatch(told, 1)
    await process.evict()
    assert not process.in_memory(handle.id)
    await process.advance(3600)
    assert await soon(handle.output()) == 1
    assert [packet.body for packet in records_of(process, Moved)] == [b'{"x":1}', b'{"x":2}']


async def test_starting_over_sends_again_and_a_fork_sends_nothing_of_what_it_copies(world: World) -> None:
    process = await world.worker(walk)
    handle = await process.gasoline.dispatch(walk, 2)
    await soon(handle.output())
    forked = await handle.rerun("{4}", fork=True)  # its last activity
    await soon(forked.output())
    assert len(records_of(process, Moved)) == 2
    assert types(await forked.history()).count("message.sent") == 2
    await handle.rerun("{3}")  # its last message
    await soon(handle.output())
    assert [packet.body for packet in records_of(process, Moved)] == [b'{"x":0}', b'{"x":1}', b'{"x":1}']


async def test_mistake_in_the_turn_of_a_message_takes_the_message_back(world: World) -> None:
    @workflow
    async def wrong(ctx: WorkflowContext, n: int) -> None:
        await ctx.join(ctx.message(Moved(x=n)), ctx.checkpoint())

    process = await world.worker(wrong)
    handle = await process.gasoline.dispatch(wrong, 1)
    await process.status(handle.id, "dead")
    assert records_of(process, Moved) == []
    assert "message.sent" not in types(await handle.history())


async def test_message_goes_out_at_once_also_before_an_ephemeral_activity(world: World) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    @activity
    async def long(ctx: ActivityContext, n: int) -> int:
        begun.set()
        await end.wait()
        return n

    @workflow
    async def told(ctx: WorkflowContext, n: int) -> None:
        await ctx.join(ctx.activity(long, n, ephemeral=True), ctx.message(Moved(x=n)))

    process = await world.worker(told)
    async with process.gasoline.subscribe(Moved) as moves:
        handle = await process.gasoline.dispatch(told, 1)
        assert xs(await take(moves, 1)) == [1]
        end.set()
        await soon(handle.output())


async def test_append_without_space_sends_a_bodys_message_once_when_there_is_space(world: World) -> None:
    process = await world.worker(walk)
    process.log.script = {process.log.count + 2: NoSpace}
    async with process.gasoline.subscribe(Moved) as moves:
        handle = await process.gasoline.dispatch(walk, 2)
        assert await soon(handle.output()) == "there"
        assert xs(await take(moves, 2)) == [0, 1]
    assert len(records_of(process, Moved)) == 2


# --- tails ------------------------------------------------------------------------------------------------------------


async def test_tail_is_the_newest_of_a_topic_for_as_long_as_the_kind_says(any_world: World) -> None:
    process = await any_world.process()
    gasoline = process.gasoline
    assert await gasoline.tail(Moved, topic={"map": "forest"}) is None
    await gasoline.message(Moved(x=1), topic={"map": "forest", "player": 1})
    any_world.clock.advance(20)
    await gasoline.message(Moved(x=2), topic={"map": "forest", "player": 2})
    await gasoline.message(Left(player="x"), topic={"map": "forest", "player": 2})
    await gasoline.message(Moved(x=3), topic={"map": "desert"})
    newest = await gasoline.tail(Moved, topic={"map": "forest"})
    assert newest is not None
    assert newest.message == Moved(x=2), "also what was sent just before, without `wait`"
    first = await gasoline.tail(Moved, topic={"player": 1})
    assert first is not None
    assert first.message.x == 1
    any_world.clock.advance(40)
    assert await gasoline.tail(Moved, topic={"player": 1}) is not None, "60 s after it was made"
    any_world.clock.advance(0.000_001)
    assert await gasoline.tail(Moved, topic={"player": 1}) is None
    assert await gasoline.tail(Moved, topic={"map": "forest"}) is not None
    any_world.clock.advance(90)
    assert await gasoline.tail(Moved) is None


async def test_tail_is_there_for_another_process_and_for_one_that_only_reads(any_world: World) -> None:
    worker = await any_world.worker(walk)
    await soon((await worker.gasoline.dispatch(walk, 3)).output())
    await worker.stop()
    async with any_world.reader() as reader:
        newest = await reader.tail(Moved, topic={"player": 7})
        assert newest is not None
        assert newest.message.x == 2
        with pytest.raises(LogReadOnly):
            await reader.message(Moved(x=1))


async def test_reader_of_a_log_can_subscribe(any_world: World) -> None:
    process = await any_world.process()
    async with any_world.reader() as reader, reader.subscribe(Moved) as moves:
        await process.gasoline.message(Moved(x=1))
        assert xs(await take(moves, 1)) == [1]


# --- subscriptions ----------------------------------------------------------------------------------------------------


async def test_leaving_the_block_ends_an_iteration_that_goes_on(world: World) -> None:
    process = await world.process()
    subscription = process.gasoline.subscribe(Moved)
    seen: list[int] = []

    async def follow() -> None:
        seen.extend([received.message.x async for received in subscription])

    async with subscription:
        following = asyncio.create_task(follow())
        await process.gasoline.message(Moved(x=1), wait=True)
        await process.settle()
    await soon(following)
    assert seen == [1]
    with pytest.raises(GasolineError, match="entered before"):
        await subscription.__aenter__()
    assert [one async for one in subscription] == []


async def test_iterating_without_a_block_subscribes_and_is_forgotten_with_the_iterator(world: World) -> None:
    process = await world.process()

    async def first() -> int:
        async for received in process.gasoline.subscribe(Moved):
            return received.message.x
        return 0

    waiting = asyncio.create_task(first())
    await process.settle()
    await process.gasoline.message(Moved(x=5))
    assert await soon(waiting) == 5
    await process.gasoline.message(Moved(x=6), wait=True)
    await process.settle()
    assert not process.node.messages._feeds, "nobody subscribes any more"
    assert not process.node.messages._tails


async def test_subscriber_after_one_that_was_forgotten_gets_what_comes_after(world: World) -> None:
    process = await world.process()
    forgotten = process.gasoline.subscribe(Moved)
    aiter(forgotten)
    await process.gasoline.message(Moved(x=1), wait=True)
    del forgotten
    async with process.gasoline.subscribe(Moved) as moves:
        await process.gasoline.message(Moved(x=2))
        assert xs(await take(moves, 1)) == [2]
    assert not process.node.messages._tails, "whoever leaves is not followed for"


async def test_slow_subscriber_loses_the_oldest_and_is_told_how_many(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    process = await world.process()
    async with process.gasoline.subscribe(Moved, buffer=3) as slow, process.gasoline.subscribe(Moved) as other:
        for x in range(10):
            await process.gasoline.message(Moved(x=x))
        assert xs(await take(other, 10)) == list(range(10))
        assert (slow.lost, other.lost) == (7, 0)
        assert xs(await take(slow, 3)) == [7, 8, 9]
    assert [record.getMessage() for record in caplog.records].count(
        "a subscriber is too slow: its oldest messages are dropped"
    ) == 1


async def test_later_subscriber_gets_nothing_that_was_published_before(world: World) -> None:
    process, other = await world.process(), await world.process()
    async with process.gasoline.subscribe(Moved) as early:
        await other.gasoline.message(Moved(x=1), wait=True)  # not handed out yet
        async with process.gasoline.subscribe(Moved) as late:
            await other.gasoline.message(Moved(x=2), wait=True)
            assert xs(await take(early, 2)) == [1, 2]
            assert xs(await take(late, 1)) == [2]


async def test_closing_the_log_ends_subscriptions_with_an_error_behind_what_came(world: World) -> None:
    process = await world.process()
    async with process.gasoline.subscribe(Moved) as moves:
        await process.gasoline.message(Moved(x=1), wait=True)
        await process.settle()
        await process.stop()
        assert xs(await take(moves, 1)) == [1]
        with pytest.raises(LogError, match="was closed"):
            await soon(anext(moves))


async def test_messages_that_are_none_or_do_not_read_are_passed_and_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody may write to the topic."""
    process = await world.process()
    topics, count = Topics(process.log.namespace), process.log.partition_count
    index = topics.message_partition("moved", count)
    odd = Packet("moved", {}, b'{"y":1}', "r", "q", world.clock.now_us())
    good = encode_packet(Packet("moved", {}, b'{"x":1}', "r", "q", world.clock.now_us()), "default")
    values = [
        b'"text"',
        b"{}",
        good.replace(b'"topic":{}', b'"topic":{"a":1}'),
        encode_packet(odd, "default"),
        None,
        good,
    ]
    async with process.gasoline.subscribe(Moved) as moves:
        for value in values:
            record = NewRecord(topics.messages, index, "moved", value, world.clock.now_us())
            await process.log.append([Section(index, None, [record])])
        await process.gasoline.message(Moved(x=2))
        assert xs(await take(moves, 2)) == [1, 2]
    newest = await process.gasoline.tail(Moved)
    assert newest is not None
    assert newest.message.x == 2
    told = [record.getMessage() for record in caplog.records]
    assert told.count("a record among the messages is none, and is passed") == 1
    assert told.count("a message does not read as its kind, and is passed") == 1


# --- failing ----------------------------------------------------------------------------------------------------------


async def test_lost_message_is_an_error_for_who_waits_and_a_warning_for_who_does_not(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    process = await world.process()
    process.log.script = {1: NoSpace, 3: NoSpace}
    with pytest.raises(NoSpace):
        await process.gasoline.message(Moved(x=1), wait=True)
    await process.gasoline.message(Moved(x=2), wait=True)
    await process.gasoline.message(Moved(x=3))
    await process.settle()
    await process.gasoline.message(Moved(x=4), wait=True)
    assert [packet.body for packet in records_of(process, Moved)] == [b'{"x":2}', b'{"x":4}'], "nothing is sent again"
    lost = [record for record in caplog.records if record.getMessage() == "messages were lost"]
    assert [record.__dict__["messages"] for record in lost] == [1, 1]


async def test_log_that_failed_takes_no_messages_and_ends_subscriptions(world: World) -> None:
    process = await world.process()
    process.log.script = {1: LogFailed}
    async with process.gasoline.subscribe(Moved) as moves:
        with pytest.raises(LogFailed):
            await process.gasoline.message(Moved(x=1), wait=True)
        with pytest.raises(LogFailed):
            await process.gasoline.message(Moved(x=2))
        with pytest.raises(LogFailed):
            await soon(anext(moves))


async def test_sender_waits_for_room_and_keeps_its_turn(world: World) -> None:
    """style.md §9: every queue is bounded."""
    process = await world.process()
    sending = [asyncio.create_task(process.gasoline.message(Moved(x=x))) for x in range(2 * WAITING_MAX + 10)]
    most = 0
    outgoing = process.node.messages.outgoing
    while not all(task.done() for task in sending):
        most = max(most, len(outgoing._open))
        await asyncio.sleep(0)
    await process.settle()
    assert most <= WAITING_MAX
    assert [packet.body for packet in records_of(process, Moved)] == [
        b'{"x":%d}' % x for x in range(2 * WAITING_MAX + 10)
    ]


async def test_message_that_was_cancelled_while_it_waited_for_room_keeps_nobody_out(world: World) -> None:
    process = await world.process()
    first = [asyncio.create_task(process.gasoline.message(Moved(x=x))) for x in range(WAITING_MAX + 2)]
    await asyncio.sleep(0)
    first[-2].cancel()
    await asyncio.gather(*first, return_exceptions=True)
    await process.settle()
    bodies = [packet.body for packet in records_of(process, Moved)]
    assert bodies == [b'{"x":%d}' % x for x in range(WAITING_MAX + 2) if x != WAITING_MAX]


# --- mistakes ---------------------------------------------------------------------------------------------------------


async def test_what_is_wrong_with_a_message_is_said_at_the_call_and_nothing_is_sent(world: World) -> None:
    """Required case B22: bodies of messages too."""
    process = await world.process()
    gasoline = process.gasoline
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    for what in (open, lambda: None, cyclic):
        with pytest.raises(NotSerializable):
            await gasoline.message(Anything(what=what))
    with pytest.raises(RecordTooLarge):
        await gasoline.message(Anything(what="x" * 1_000_000))
    with pytest.raises(InvalidTags, match="topic of message 'moved'"):
        await gasoline.message(Moved(x=1), topic={"map": None})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    with pytest.raises(DefinitionError, match="instance of a class derived from Message"):
        await gasoline.message(Moved)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(DefinitionError, match="give the class, not an instance"):
        gasoline.subscribe(Moved(x=1))  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    with pytest.raises(DefinitionError, match="not a kind of message"):
        await gasoline.tail(int)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="buffer"):
        gasoline.subscribe(Moved, buffer=0)
    with pytest.raises(ValueError, match="ray_id"):
        await gasoline.message(Moved(x=1), ray_id="mine")
    assert process.log.appended == []


async def test_message_of_a_body_that_cannot_be_kept_is_refused_at_the_call_and_recorded_nowhere(world: World) -> None:
    """Required case B22."""

    @workflow
    async def wrong(ctx: WorkflowContext, n: int) -> list[str]:
        refused: list[str] = []
        for what in (open, "x" * 1_000_000):
            try:
                await ctx.message(Anything(what=what))
            except (NotSerializable, RecordTooLarge) as error:
                refused.append(type(error).__name__)
        try:
            await ctx.message(Moved(x=1), topic={"map": [1]})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
        except InvalidTags as error:
            refused.append(type(error).__name__)
        return refused

    process = await world.worker(wrong)
    handle = await process.gasoline.dispatch(wrong, 1)
    assert await soon(handle.output()) == ["NotSerializable", "RecordTooLarge", "InvalidTags"]
    assert types(await handle.history()) == ["workflow.dispatched", "workflow.completed"]
    assert records_of(process, Anything) == []


async def test_largest_message_of_a_body_fits(world: World) -> None:
    @workflow
    async def large(ctx: WorkflowContext, size: int) -> int:
        await ctx.message(Anything(what="x" * size))
        return size

    process = await world.worker(large)
    size = 980_000 - len('{"what":""}') - len("{}")
    assert await soon((await process.gasoline.dispatch(large, size)).output()) == size
    (packet,) = records_of(process, Anything)
    assert len(packet.body) > size


def test_kinds_of_messages_are_named_and_timed_by_their_classes() -> None:
    class GameOver(Message): ...

    class Longer(Moved, tail_ttl=timedelta(hours=1)): ...

    class Same(Moved): ...

    assert (GameOver.__message_name__, GameOver.__tail_ttl_us__) == ("game_over", 90_000_000)
    assert (Left.__message_name__, Moved.__tail_ttl_us__) == ("player_left", 60_000_000)
    assert (Longer.__tail_ttl_us__, Same.__tail_ttl_us__) == (3_600_000_000, 60_000_000)
    with pytest.raises(DefinitionError, match="no name"):
        Message()
    with pytest.raises(DefinitionError, match="is not allowed"):

        class Wrong(Message, name="not a name"): ...  # pyright: ignore[reportUnusedClass]

    for ttl in (-1, float("nan"), "soon"):
        with pytest.raises(DefinitionError, match="tail_ttl"):

            class Wrong2(Message, tail_ttl=ttl): ...  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", ["message", "subscribe", "tail"])
async def test_body_does_not_reach_a_client_for_messages(world: World, verb: str) -> None:
    clients: list[Gasoline] = []

    @workflow
    async def wrong(ctx: WorkflowContext, n: int) -> None:
        given = Moved(x=1) if verb == "message" else Moved
        coroutine = getattr(clients[0], verb)(given)
        await coroutine

    process = await world.worker(wrong)
    clients.append(process.gasoline)
    handle = await process.gasoline.dispatch(wrong, 1)
    await process.status(handle.id, "dead")
    error = (await handle.get()).error
    assert error is not None
    assert "StepMisused" in error.type


async def test_ctx_message_refuses_what_is_no_message(world: World) -> None:
    @workflow
    async def wrong(ctx: WorkflowContext, n: int) -> None:
        with contextlib.suppress(DefinitionError):
            await ctx.message("moved")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    process = await world.worker(wrong)
    handle = await process.gasoline.dispatch(wrong, 1)
    await process.status(handle.id, "dead")
    error = (await handle.get()).error
    assert error is not None
    assert (error.type, "class derived from Message" in error.message) == ("DefinitionError", True)
