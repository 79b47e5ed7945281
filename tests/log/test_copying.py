"""Copies of logs made of records: any histories, any partitions, ended anywhere (0040)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gasoline_es.core.commands import Request, SendSignal, encode_request
from gasoline_es.core.ids import new_workflow_id, partition_of
from gasoline_es.core.packets import Packet, encode_packet
from gasoline_es.core.stored_events import EventStored, Stored, StoredEnvelope, TrackingStored, embed
from gasoline_es.core.topics import Topics
from gasoline_es.errors import CopyRefused, NoSpace
from gasoline_es.log import copying
from gasoline_es.log.copying import copy_between, copy_log
from gasoline_es.log.memory import MemoryLog, open_memory_log
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Appended, Log, NewRecord, Position, Section

TOPICS = Topics("default")
_numbers = itertools.count()


@dataclass(frozen=True)
class Written:
    """A record of a workflow: an event, a change of the index or a command in its inbox. ``gap_us``: since the one before."""

    slot: int
    kind: str
    gap_us: int


WRITTEN = st.builds(
    Written,
    st.sampled_from([0, 1, 100, 1365, 2048, 4095]),
    st.sampled_from(["events", "events", "schedules", "parked", "index", "gone", "inbox"]),
    st.sampled_from([0, 1, 999, 1_000_000]),
)


def id_at(slot: int) -> str:
    return new_workflow_id(0, b"\0" * 8, slot)


async def fill(log: Log, history: list[Written], consumed: int) -> None:
    """Write a history; every partition's inbox was consumed up to ``consumed`` commands."""
    owned = {p: await log.acquire(p) for p in range(log.partition_count)}
    seqs: dict[tuple[str, int], int] = {}
    now_us = 1_767_225_600_000_000
    for number, one in enumerate(history):
        now_us += one.gap_us
        its, home = id_at(one.slot), partition_of(id_at(one.slot), log.partition_count)
        if one.kind == "inbox":
            command = encode_request(Request(f"r{number}", "c", SendSignal(its, f"s{number}", "note", b"{}", True)))
            section = Section(home, None, [NewRecord(TOPICS.inbox, home, its, command, now_us)])
        elif one.kind in ("index", "gone"):
            value = None if one.kind == "gone" else b'{"n":%d}' % number
            section = Section(home, owned[home].epoch, [NewRecord(TOPICS.index, home, its, value, now_us)])
        else:
            seq = seqs[one.kind, one.slot] = seqs.get((one.kind, one.slot), 0) + 1
            record = NewRecord(f"default.{one.kind}", home, f"{its}/{seq}", b'{"number":%d}' % number, now_us)
            section = Section(home, owned[home].epoch, [record])
        assert isinstance((await log.append([section]))[0], Appended)
    for p, its_own in owned.items():
        tail = log.tail(TOPICS.inbox, p)
        if consumed and tail.poll(consumed):
            value = b'{"count":%d}' % tail.position["count"]
            await log.append([Section(p, its_own.epoch, [NewRecord(TOPICS.registry, p, f"inbox/{p}", value, now_us)])])
        await log.release(p)


def state_of(log: MemoryLog, consumed: int = 0) -> dict[str, Any]:
    """What a log says of each workflow, wherever it lies."""
    found: dict[str, Any] = {}
    for name in ("events", "schedules", "parked"):
        for p in range(log.partition_count):
            for record in log.read(f"default.{name}", p):
                its = record.key.partition("/")[0]
                assert partition_of(its, log.partition_count) == p
                found.setdefault(f"{name} {its}", []).append((record.key, record.value, record.time_us))
    for p in range(log.partition_count):
        standing = {record.key: record.value for record in log.read(TOPICS.index, p)}
        found |= {f"index {key}": value for key, value in standing.items() if value is not None}
        for record in log.tail(TOPICS.inbox, p, Position({"count": consumed_of(log, p, consumed)})).poll():
            assert partition_of(record.key, log.partition_count) == p
            found.setdefault(f"inbox {record.key}", []).append((record.value, record.time_us))
    return found


def consumed_of(log: MemoryLog, partition: int, consumed: int) -> int:
    return min(consumed, log.tail(TOPICS.inbox, partition).waiting())


class Ends(Exception):
    pass


@given(
    st.lists(WRITTEN, max_size=25),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 3),
    st.lists(st.integers(1, 20), max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_any_history_ended_anywhere_comes_over_as_it_was(
    history: list[Written], before: int, after: int, consumed: int, deaths: list[int]
) -> None:
    asyncio.run(_copy_dying(history, before, after, consumed, deaths))


async def _copy_dying(history: list[Written], before: int, after: int, consumed: int, deaths: list[int]) -> None:
    number = next(_numbers)
    source, target = f"memory:copied-{number}", f"memory:copy-{number}"
    log = await open_memory_log(source.removeprefix("memory:"), partitions=before)
    await fill(log, history, consumed)
    expected = state_of(log, consumed)
    await log.close()
    for dies_at in deaths:
        await _die_at(source, target, after, dies_at)
    copied = await copy_log(source, target, partitions=after)
    made = await open_memory_log(target.removeprefix("memory:"))
    assert state_of(made) == expected
    if not copied.again:
        indexed = sum(name.startswith("index ") for name in expected)
        others = sum(len(one) for name, one in expected.items() if not name.startswith("index "))
        assert sum(topic.records for topic in copied.topics.values()) == indexed + others
    await made.close()


async def _die_at(source: str, target: str, after: int, number: int) -> None:
    """End in the middle of a copy: one append is lost in even cases, and unanswered in odd ones."""
    logs = [
        await open_memory_log(source.removeprefix("memory:")),
        await open_memory_log(target.removeprefix("memory:"), partitions=after),
    ]
    left = [number // 2]

    def dying(log: MemoryLog) -> None:
        append = log.append

        async def one(sections: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and number % 2 == 0:
                raise Ends
            outcomes = await append(sections)
            if left[0] == 0:
                raise Ends
            return outcomes

        log.append = one  # type: ignore[method-assign]

    for log in logs:
        dying(log)

    @asynccontextmanager
    async def again() -> AsyncGenerator[Log]:
        yield logs[1]

    with suppress(Ends):
        await copy_between(logs[0], logs[1], again)
    for log in logs:
        log.crash()


async def test_what_lies_in_many_partitions_is_merged_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """How things stood at a time is a fold up to the first event that is younger: the order of time is kept."""
    monkeypatch.setattr(copying, "_READ_RECORDS", 16)
    source, target = await open_memory_log("merged-from", partitions=8), "memory:merged-to"
    await fill(source, [Written(slot * 37 % 4096, "events", 5) for slot in range(400)], 0)
    await source.close()
    await copy_log("memory:merged-from", target, partitions=2)
    log = await open_memory_log("merged-to")
    for p in range(2):
        times = [record.time_us for record in log.read(TOPICS.events, p)]
        assert len(times) > 100
        assert times == sorted(times)


async def store(log: Log, *events: Any) -> None:
    owned = await log.acquire(0)
    envelope = StoredEnvelope("default", 0, owned.epoch, "w")
    for number, event in enumerate(events, 1):
        sequence = "tracking" if isinstance(event, TrackingStored) else "events"
        for held, line in envelope.encode(Stored(sequence, number, 1_767_225_600_000_000, "r", [event])):
            await log.append([Section(0, owned.epoch, [NewRecord(TOPICS.stored, 0, held.key, line, held.time_us)])])
    await log.close()


async def test_what_applications_stored_comes_over_to_one_partition_only(tmp_path: Any) -> None:
    source = f"file:{tmp_path}/old"
    await store(await open_log(source, partitions=1), EventStored("a", False, 1, "t", embed(b"{}")))
    with pytest.raises(CopyRefused, match=r"such have one partition: .*--partitions 1\) or say none, not 16"):
        await copy_log(source, f"file:{tmp_path}/one", partitions=16)
    await copy_log(source, f"file:{tmp_path}/one")  # where the refusal has made nothing that would stay as it is
    old, new = await open_log(source, readonly=True), await open_log(f"file:{tmp_path}/one", readonly=True)
    (there,), (here,) = list(old.read(TOPICS.stored, 0)), list(new.read(TOPICS.stored, 0))
    assert (there.key, there.value) == (here.key, here.value)
    await old.close()
    await new.close()


async def test_numbers_of_histories_that_would_change_are_refused(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0034: the number of an event in its partition's history is its offset and one more."""
    source = f"file:{tmp_path}/old"
    await store(await open_log(source, partitions=1), TrackingStored("default/0", 7))
    monkeypatch.setattr(MemoryLog, "remote", True)
    with pytest.raises(CopyRefused, match=r"'tracking/1' of stored .* 'default/0'.* they get others at the new place"):
        await copy_log(source, "memory:tracked", partitions=1)
    monkeypatch.undo()
    await copy_log(source, f"file:{tmp_path}/one", partitions=1)  # here they stay what they are


async def test_messages_come_over_that_have_not_expired_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source = await open_memory_log("messages-from", partitions=3)
    now_us = copying.SystemClock().now_us()

    def message(number: int, time_us: int) -> NewRecord:
        packet = Packet(f"moved_{number % 5}", {}, b"%d" % number, "ray", f"id{number}", time_us)
        partition = TOPICS.message_partition(packet.name, 3)
        return NewRecord(TOPICS.messages, partition, packet.name, encode_packet(packet, "default"), time_us)

    records = [message(number, now_us - number * 600_000_000) for number in range(10)]
    await source.append([Section(0, None, records)])
    await source.close()
    target = await open_memory_log("messages-to", partitions=2)
    await target.close()
    copies = copying._Copying._open_new
    monkeypatch.setattr(copying._Copying, "_open_new", _ends)
    with pytest.raises(Ends):
        await copy_log("memory:messages-from", "memory:messages-to")
    monkeypatch.setattr(copying._Copying, "_open_new", copies)
    await copy_log("memory:messages-from", "memory:messages-to")
    target = await open_memory_log("messages-to")
    found = [one.value for p in range(2) for one in target.tail(TOPICS.messages, p).poll()]
    assert sorted(found) == sorted(one.value for one in records[:6] if one.value is not None)  # type: ignore[type-var]


async def _ends(self: Any) -> None:
    raise Ends


async def test_a_record_about_no_workflow_is_named_and_the_log_can_be_opened_again(tmp_path: Any) -> None:
    source = await open_memory_log("odd-from", partitions=2)
    owned = await source.acquire(1)
    await source.append([Section(1, owned.epoch, [NewRecord(TOPICS.events, 1, "x/1", b"{}", 1)])])
    await source.close()
    with pytest.raises(CopyRefused, match=r"record 'x/1' of events is about no workflow.* offset 0 of partition 1"):
        await copy_log("memory:odd-from", "memory:odd-to")
    await copying.reopen("memory:odd-from")


async def test_no_space_at_the_new_place_is_told_as_it_is() -> None:
    source, target = await open_memory_log("full-from", partitions=1), await open_memory_log("full-to", partitions=1)
    target.fail_next(NoSpace)

    @asynccontextmanager
    async def again() -> AsyncGenerator[Log]:
        yield target

    with pytest.raises(NoSpace):
        await copy_between(source, target, again)
