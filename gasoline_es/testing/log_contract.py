"""The contract every log fulfils, as tests to inherit: ``class TestMyLog(LogContract)`` with an ``opener`` fixture.

::

    class TestMemoryLog(LogContract):
        @pytest.fixture
        def opener(self) -> Opener:
            return lambda **options: open_log("memory:some-name-of-this-test", **options)

Every call of the opener is another handle on the same log. What a process's death means is told by ``crash``, which a test
class overrides for its kind of log.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from gasoline_es.core.retention import SUPERSEDED, Retention
from gasoline_es.errors import Fenced, LogError, LogReadOnly, PartitionOwned, RecordTooLarge
from gasoline_es.log.port import (
    ABOUT_BYTES_MAX,
    CONSUMED,
    RECORD_BYTES_MAX,
    Appended,
    Compaction,
    Epoch,
    Log,
    Named,
    NamingTail,
    NewRecord,
    Offset,
    Outcome,
    Ownership,
    Position,
    Record,
    Rules,
    Section,
    Source,
    Tail,
)

Opener = Callable[..., Awaitable[Log]]
EVENTS = "default.events"
INDEX = "default.index"
INBOX = "default.inbox"
TIME_US = 1_000_000_000


def event(number: int, partition: int = 0, topic: str = EVENTS, value: bytes | None = None) -> NewRecord:
    """Return a record that can be told apart from others by its number."""
    return NewRecord(
        topic, partition, f"workflow/{number}", value or b'{"number":%d}' % number, TIME_US + 1_000 * number
    )


def numbers(records: Sequence[Record] | Any) -> list[int]:
    """Return the numbers of records made by :func:`event`."""
    return [int(record.key.rpartition("/")[2]) for record in records]


async def put(log: Log, epoch: Epoch | None, *records: NewRecord, partition: int = 0) -> Outcome:
    """Append one section; return its outcome."""
    (outcome,) = await log.append([Section(partition, epoch, records)])
    return outcome


async def read_all(log: Log, topic: str, partition: int, start: int = 0, stop: int | None = None) -> list[Record]:
    """Return what a single-writer topic has as of now."""
    await log.refresh((topic, partition))
    return list(log.read(topic, partition, start, stop))


async def ends(log: Log, *feeds: tuple[str, int]) -> list[int]:
    """Return where single-writer topics end as of now."""
    await log.refresh(*feeds)
    return [log.end(*feed) for feed in feeds]


async def offsets(log: Log, topic: str = EVENTS, partition: int = 0) -> list[int]:
    """Return the offsets that a single-writer topic has as of now."""
    return [offset for record in await read_all(log, topic, partition) if (offset := record.offset) is not None]


async def sent_all(log: Log, topic: str, partition: int, position: Position | None = None) -> list[Record]:
    """Return what a many-writer topic has as of now."""
    return await polled(log, log.tail(topic, partition, position), topic, partition)


async def polled(log: Log, tail: Tail, topic: str, partition: int, max_records: int = 10_000) -> list[Record]:
    """Return what a tail has as of now."""
    await log.refresh((topic, partition))
    return tail.poll(max_records)


async def given(source: Source, count: int, max_records: int = 10_000, timeout_s: float = 10.0) -> list[Named]:
    """Return so many records of a source that has that many, or more if they come together."""
    found: list[Named] = []
    async with asyncio.timeout(timeout_s):
        while len(found) < count:
            found += await source.poll(max_records)
    return found


async def soon(check: Callable[[], bool], log: Log, timeout_s: float = 5.0) -> None:
    """Wait until ``check`` holds, looking whenever the log says that something changed."""
    async with asyncio.timeout(timeout_s):
        while not check():
            await log.changed()


def _names(log: Log) -> list[str]:
    return [member.incarnation for member in log.members()]


class LogContract:
    """What any log promises (design.md §6, the log port)."""

    dense = True
    """Whether the offsets of a single-writer topic have no holes, as long as nothing is compacted."""
    cleans = True
    """Whether it removes by itself what rules give up; else whoever keeps it does, by the policies of its topics."""
    time_unit_us = 1
    """Times are kept so exactly; and from 1970 on, if that is not to the microsecond."""
    topics_are_data = True
    """Whether a topic may have any name at all."""
    wait_s = 5.0
    """What a process hears of others comes within this time; on a log that is not remote at once."""

    async def crash(self, log: Log) -> None:
        """Make a handle go away as the end of its process would."""
        result = log.crash()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]
        if result is not None:
            await result

    def _time_kept(self, time_us: int) -> int:
        return time_us if self.time_unit_us == 1 else max(time_us // self.time_unit_us * self.time_unit_us, 0)

    async def _heard(self, check: Callable[[], bool], log: Log) -> None:
        """See that ``check`` holds: at once, or on a remote log soon."""
        if log.remote:
            await log.refresh()
            await soon(check, log, self.wait_s)
        assert check()

    async def _taken_over(self, log: Log, partition: int) -> Ownership:
        """Take a partition whose owner has died."""
        assert log.owner(partition) is not None

        def free() -> bool:
            owner = log.owner(partition)
            return owner is not None and not owner.alive

        if log.remote:  # others learn of it by its silence
            await soon(free, log, self.wait_s)
        return await log.acquire(partition)

    # --- appending and reading ----------------------------------------------------------------------------------------

    async def test_appended_records_are_read_back_exactly(self, opener: Opener) -> None:
        log = await opener()
        owned = await log.acquire(3)
        records = [
            NewRecord(EVENTS, 3, 'key with "quotes", \\ and ünïcode\n\x00\x7f', b'{"a": [1, 2.50, 1e400]}', 17),
            NewRecord(EVENTS, 3, "", None, 0),
            NewRecord(EVENTS, 3, "h", b'"text"', -5, {"traceparent": "00-ab", "value": 'x","value":1'}),
            NewRecord(EVENTS, 3, '","time":1,"value":{}', b'{"key":"x","time":5,"value":18446744073709551617}', 2**53),
        ]
        outcome = await put(log, owned.epoch, *records, partition=3)
        assert outcome == Appended({EVENTS: Offset(0)})
        read = await read_all(log, EVENTS, 3)
        assert [(r.topic, r.partition, r.key, r.value, r.time_us) for r in read] == [
            (r.topic, r.partition, r.key, r.value, self._time_kept(r.time_us)) for r in records
        ]
        assert [dict(r.headers or {}) for r in read] == [dict(r.headers or {}) for r in records]
        assert [r.offset for r in read] == [0, 1, 2, 3]
        await log.close()

    async def test_offsets_of_each_topic_ascend_and_are_given_by_the_outcome(self, opener: Opener) -> None:
        log = await opener()
        owned = await log.acquire(0)
        first = await put(log, owned.epoch, event(1), event(2, topic=INDEX), event(3))
        second = await put(log, owned.epoch, event(4), event(5, topic=INDEX))
        assert first == Appended({EVENTS: Offset(0), INDEX: Offset(0)})
        assert isinstance(second, Appended)
        if self.dense:
            assert second == Appended({EVENTS: Offset(2), INDEX: Offset(1)})
        at = await offsets(log)
        assert at[:2] == [0, 1], "those of one section lie side by side"
        assert (at[2], (await offsets(log, INDEX))[1]) == (second.offsets[EVENTS], second.offsets[INDEX])
        assert numbers(await read_all(log, EVENTS, 0)) == [1, 3, 4]
        assert numbers(await read_all(log, INDEX, 0)) == [2, 5]
        index_end = second.offsets[INDEX] + 1
        assert await ends(log, (EVENTS, 0), (INDEX, 0), (EVENTS, 1)) == [second.offsets[EVENTS] + 1, index_end, 0]
        await log.close()

    async def test_read_keeps_to_its_range_as_of_the_call(self, opener: Opener) -> None:
        log = await opener()
        owned = await log.acquire(0)
        for start in range(0, 40, 4):
            await put(log, owned.epoch, *[event(i) for i in range(start, start + 4)])
        at = await offsets(log)
        reading = log.read(EVENTS, 0, at[3])
        await put(log, owned.epoch, event(40))
        assert numbers(reading) == list(range(3, 40))
        at = await offsets(log)
        assert numbers(await read_all(log, EVENTS, 0, at[5], at[9])) == [5, 6, 7, 8]
        assert numbers(await read_all(log, EVENTS, 0, at[40] + 1)) == []
        assert numbers(await read_all(log, EVENTS, 0, at[7], at[7])) == []
        assert numbers(await read_all(log, EVENTS, 0, at[39], 1000)) == [39, 40]
        await log.close()

    async def test_read_at_returns_exactly_the_offsets_asked_for(self, opener: Opener) -> None:
        log = await opener()
        owned = await log.acquire(0)
        for start in range(0, 200, 20):
            await put(log, owned.epoch, *[event(i) for i in range(start, start + 20)])
        at = await offsets(log)
        assert numbers(log.read_at(EVENTS, 0, [at[i] for i in (0, 7, 8, 150, 199)])) == [0, 7, 8, 150, 199]
        assert log.read_at(EVENTS, 0, []) == []
        with pytest.raises(LogError):
            log.read_at(EVENTS, 0, [at[5], at[199] + 1])
        await log.close()

    async def test_a_place_saves_a_search_and_a_wrong_one_costs_one(self, opener: Opener) -> None:
        log = await opener()
        owned = await log.acquire(0)
        places: list[int] = []
        for start in range(0, 30, 3):
            outcome = await put(log, owned.epoch, *[event(i) for i in range(start, start + 3)])
            assert isinstance(outcome, Appended)
            places += [outcome.place] * 3
        assert [record.place for record in await read_all(log, EVENTS, 0)] == places
        at = await offsets(log)
        wanted = [0, 4, 5, 17, 29]
        for told in (
            [places[i] for i in wanted],
            [0] * 5,
            [places[29]] * 5,
            [2**62 + 7, 1, *[places[i] + 1 for i in wanted[2:]]],
        ):
            assert numbers(log.read_at(EVENTS, 0, [at[i] for i in wanted], told)) == wanted
        with pytest.raises(LogError):
            log.read_at(EVENTS, 0, [at[5], at[29] + 1], [places[5], places[29]])
        await log.close()

    async def test_a_section_may_write_to_several_topics_and_partitions(self, opener: Opener) -> None:
        log = await opener()
        owned = await log.acquire(2)
        await put(log, owned.epoch, event(1, 2), event(2, 9, INBOX), event(3, 1, INBOX), partition=2)
        assert numbers(await read_all(log, EVENTS, 2)) == [1]
        assert numbers(await sent_all(log, INBOX, 9)) == [2]
        (record,) = await sent_all(log, INBOX, 1)
        assert (record.offset, record.key) == (None, "workflow/3")
        await log.close()

    async def test_sections_of_one_append_have_outcomes_of_their_own(self, opener: Opener) -> None:
        log = await opener()
        one, two = await log.acquire(0), await log.acquire(1)
        outcomes = await log.append(
            [
                Section(0, one.epoch, [event(1)]),
                Section(1, Epoch(two.epoch + 5), [event(2, 1)]),
                Section(4, None, [event(3, 4, INBOX)]),
                Section(1, two.epoch, [event(4, 1)]),
            ]
        )
        assert [type(outcome) for outcome in outcomes] == [Appended, Fenced, Appended, Appended]
        assert (numbers(await read_all(log, EVENTS, 0)), numbers(await read_all(log, EVENTS, 1))) == ([1], [4])
        assert numbers(await sent_all(log, INBOX, 4)) == [3]
        await log.close()

    async def test_concurrent_appends_are_served_one_after_the_other(self, opener: Opener) -> None:
        log = await opener()
        owned = await log.acquire(0)
        outcomes = await asyncio.gather(*[put(log, owned.epoch, event(i), event(i)) for i in range(50)])
        firsts = [outcome.offsets[EVENTS] for outcome in outcomes if isinstance(outcome, Appended)]
        assert len(set(firsts)) == 50
        if self.dense:
            assert sorted(firsts) == list(range(0, 100, 2))
        at = {record.offset: number for record in await read_all(log, EVENTS, 0) for number in numbers([record])}
        assert [[at[Offset(first)], at[Offset(first + 1)]] for first in firsts] == [[i, i] for i in range(50)]
        await log.close()

    async def test_what_is_appended_before_the_call_returns_counts_as_what_is_awaited_does(
        self, opener: Opener
    ) -> None:
        log, other = await opener(), await opener()
        owned = await log.acquire(0)
        await put(log, owned.epoch, event(1))
        if log.ready:
            assert log.append_now(
                [Section(0, owned.epoch, [event(2), event(3)]), Section(1, None, [event(4, 1, INBOX)])]
            ) == [
                Appended({EVENTS: Offset(1)}),
                Appended({}),
            ]
            await put(log, owned.epoch, event(5))
            assert numbers(await read_all(log, EVENTS, 0)) == numbers(await read_all(other, EVENTS, 0)) == [1, 2, 3, 5]
            assert numbers(await sent_all(other, INBOX, 1)) == [4]
            with pytest.raises(RecordTooLarge):
                log.append_now([Section(0, owned.epoch, [event(6, value=b'"%b"' % (b"x" * RECORD_BYTES_MAX))])])
            (fenced,) = log.append_now([Section(0, Epoch(owned.epoch + 1), [event(6)])])
            assert isinstance(fenced, Fenced)
            assert log.end(EVENTS, 0) == 4
        await log.close()
        if not log.remote:
            with pytest.raises(LogError):
                log.append_now([Section(0, owned.epoch, [event(6)])])
        await other.close()

    async def test_a_record_at_the_limit_is_taken_and_one_beyond_refused_before_anything_is_written(
        self, opener: Opener
    ) -> None:
        log = await opener()
        owned = await log.acquire(0)
        with pytest.raises(RecordTooLarge):
            await log.append(
                [
                    Section(5, None, [event(1, 5, INBOX)]),
                    Section(0, owned.epoch, [event(2), event(3, value=b'"%b"' % (b"x" * RECORD_BYTES_MAX))]),
                ]
            )
        assert (await ends(log, (EVENTS, 0)), await sent_all(log, INBOX, 5)) == ([0], [])
        near = b'"%b"' % (b"x" * (RECORD_BYTES_MAX - 300))
        assert isinstance(await put(log, owned.epoch, event(4, value=near)), Appended)
        (record,) = await read_all(log, EVENTS, 0)
        assert record.value == near
        await log.close()

    async def test_two_sections_for_one_partition_and_epoch_are_a_mistake(self, opener: Opener) -> None:
        log = await opener()
        owned = await log.acquire(0)
        with pytest.raises(ValueError, match="same partition"):
            await log.append([Section(0, owned.epoch, [event(1)]), Section(0, owned.epoch, [event(2)])])
        assert await ends(log, (EVENTS, 0)) == [0]
        await log.close()

    async def test_a_value_with_a_line_feed_is_a_mistake(self, opener: Opener) -> None:
        log = await opener()
        with pytest.raises(ValueError, match="line feed"):
            await put(log, None, event(1, 0, INBOX, b'{\n"a":1}'))
        await log.close()

    async def test_topics_are_data(self, opener: Opener) -> None:
        """required.md B23."""
        log = await opener()
        topics = ["../../x", "..\\x", "/etc/passwd", "a\0b", ".", "", ".lock", "t" * 300, 'x"y']
        for number, topic in enumerate(topics):
            if not self.topics_are_data:
                with pytest.raises(LogError, match=r"cannot be the name|is not there"):
                    await put(log, None, event(number, 0, topic))
                continue
            await put(log, None, event(number, 0, topic))
        if not self.topics_are_data:
            await log.close()
            return
        for number, topic in enumerate(topics):
            (record,) = await sent_all(log, topic, 0)
            assert (record.topic, numbers([record])) == (topic, [number])
        await log.close()

    # --- owning -------------------------------------------------------------------------------------------------------

    async def test_a_partition_has_one_owner_at_a_time(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        assert one.owner(0) is None
        owned = await one.acquire(0)
        assert (owned.partition, dict(owned.ends)) == (0, {})
        await two.refresh()
        owner = two.owner(0)
        assert owner is not None
        assert (owner.epoch, owner.incarnation, owner.alive, owner.mine, owner.released) == (
            owned.epoch,
            one.incarnation,
            True,
            False,
            False,
        )
        mine = one.owner(0)
        assert mine is not None
        assert mine.mine
        with pytest.raises(PartitionOwned) as caught:
            await two.acquire(0)
        assert (caught.value.partition, caught.value.owner) == (0, one.incarnation)
        await one.close()
        await two.close()

    async def test_acquiring_what_one_owns_changes_nothing(self, opener: Opener) -> None:
        log = await opener()
        owned = await log.acquire(0)
        await put(log, owned.epoch, event(1))
        again = await log.acquire(0)
        assert (again.epoch, dict(again.ends)) == (owned.epoch, {EVENTS: 1})
        await log.close()

    async def test_a_released_partition_is_taken_where_it_was_left(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        owned = await one.acquire(0)
        await put(one, owned.epoch, event(1), event(2), event(3, topic=INDEX))
        await one.release(0)
        await two.refresh()
        owner = two.owner(0)
        assert owner is not None
        assert owner.released
        taken = await two.acquire(0)
        assert taken.epoch > owned.epoch
        assert dict(taken.ends) == {EVENTS: 2, INDEX: 1}
        outcome = await put(two, taken.epoch, event(4))
        assert isinstance(outcome, Appended)
        if self.dense:
            assert outcome == Appended({EVENTS: Offset(2)})
        assert isinstance(await put(one, owned.epoch, event(5)), Fenced)
        assert numbers(await read_all(one, EVENTS, 0)) == numbers(await read_all(two, EVENTS, 0)) == [1, 2, 4]
        await one.release(0)  # not owned any more: does nothing
        assert numbers(await read_all(one, EVENTS, 0)) == [1, 2, 4]
        await one.close()
        await two.close()

    async def test_a_dead_owners_partition_is_free(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        owned = await one.acquire(0)
        await put(one, owned.epoch, event(1))
        await self.crash(one)
        taken = await self._taken_over(two, 0)
        assert dict(taken.ends) == {EVENTS: 1}
        await put(two, taken.epoch, event(2))
        assert numbers(await read_all(two, EVENTS, 0)) == [1, 2]
        await two.close()

    async def test_what_a_process_tells_about_itself_is_seen_by_all_while_it_lives(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        assert one.members() == two.members() == []
        one.announce({"version": 1})
        two.announce({"version": 2, "weight": 0.5})
        both = {
            one.incarnation: ({"version": 1}, True),
            two.incarnation: ({"version": 2, "weight": 0.5}, False),
        }
        await self._heard(lambda: {m.incarnation: (dict(m.about), m.mine) for m in one.members()} == both, one)
        names = sorted((one.incarnation, two.incarnation))
        assert _names(one) == names
        await self._heard(lambda: _names(two) == names, two)
        one.announce({"version": 3})
        versions = {one.incarnation: 3, two.incarnation: 2}
        await self._heard(lambda: {m.incarnation: m.about["version"] for m in two.members()} == versions, two)
        two.announce(None)
        await self._heard(lambda: _names(one) == [one.incarnation], one)
        two.announce({})
        await self.crash(one)
        await self._heard(lambda: _names(two) == [two.incarnation], two)
        await two.close()
        last = await opener()
        assert last.members() == []
        await last.close()

    async def test_what_a_process_tells_about_itself_is_short(self, opener: Opener) -> None:
        log = await opener()
        log.announce({"text": "x" * (ABOUT_BYTES_MAX - 11)})
        with pytest.raises(ValueError, match="256 bytes"):
            log.announce({"text": "x" * (ABOUT_BYTES_MAX - 10)})
        assert len(log.members()) == 1
        await log.close()

    async def test_who_has_it_open_for_writing_is_seen_by_the_others(self, opener: Opener) -> None:
        """Whoever copies a log elsewhere has to know that nobody works there (docs/design/0040)."""
        one, two, reader = await opener(), await opener(), await opener(readonly=True)
        await two.shown()
        await one.refresh()
        await reader.refresh()
        assert [other.incarnation for other in one.others()] == [two.incarnation]
        assert two.incarnation in [other.incarnation for other in reader.others()]
        assert not any(other.mine for other in one.others())
        await two.close()
        await one.refresh()
        assert one.others() == []
        await one.close()
        await reader.close()

    async def test_a_log_reopened_has_everything_that_was_appended(self, opener: Opener) -> None:
        keep = await opener()  # a memory log lives as long as somebody has it open
        for number in range(4):
            log = await opener()
            owned = await (self._taken_over(log, 0) if number else log.acquire(0))
            assert list(owned.ends) == ([EVENTS] if number else [])
            await put(log, owned.epoch, event(number), event(number, 1, INBOX))
            await (log.close() if number % 2 else self.crash(log))
        assert numbers(await read_all(keep, EVENTS, 0)) == numbers(await sent_all(keep, INBOX, 1)) == [0, 1, 2, 3]
        await keep.close()

    async def test_partitions_are_owned_independently(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        first, second = await one.acquire(0), await two.acquire(1)
        await put(one, first.epoch, event(1))
        await put(two, second.epoch, event(2, 1), partition=1)
        await one.release(0)
        third = await two.acquire(0)
        await put(two, third.epoch, event(3))
        assert numbers(await read_all(one, EVENTS, 0)) == [1, 3]
        assert numbers(await read_all(one, EVENTS, 1)) == [2]
        await one.close()
        await two.close()

    async def test_a_partition_that_does_not_exist_is_refused(self, opener: Opener) -> None:
        log = await opener()
        for partition in (-1, log.partition_count):
            with pytest.raises(LogError):
                await log.acquire(partition)
            with pytest.raises(LogError):
                log.owner(partition)
        await log.close()

    # --- tails --------------------------------------------------------------------------------------------------------

    async def test_a_tail_sees_every_writers_records_once_and_in_order(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        tail = one.tail(INBOX, 5)
        assert tail.poll() == []
        seen: list[int] = []
        for number in range(20):
            await put(one if number % 3 else two, None, event(number, 5, INBOX), event(100 + number, 6, INBOX))
            if number % 4 == 0:
                seen += numbers(await polled(one, tail, INBOX, 5))
        seen += numbers(await polled(one, tail, INBOX, 5))
        assert sorted(seen) == list(range(20))
        assert [n for n in seen if n % 3] == [n for n in range(20) if n % 3]
        assert [n for n in seen if n % 3 == 0] == [n for n in range(20) if n % 3 == 0]
        assert await polled(one, tail, INBOX, 5) == []
        await one.close()
        await two.close()

    async def test_a_tail_goes_on_from_a_stored_position(self, opener: Opener) -> None:
        log = await opener()
        other = await opener()
        position: Position | None = None
        seen: list[int] = []
        for number in range(30):
            await put(log if number % 2 else other, None, *[event(number * 3 + i, 0, INBOX) for i in range(3)])
            tail = other.tail(INBOX, 0, position)
            seen += numbers(await polled(other, tail, INBOX, 0, max_records=2))
            position = tail.position
        tail = other.tail(INBOX, 0, position)
        while records := await polled(other, tail, INBOX, 0, max_records=7):
            seen += numbers(records)
        assert sorted(seen) == list(range(90))
        assert await sent_all(other, INBOX, 0, tail.position) == []
        assert numbers(await sent_all(other, INBOX, 0, Position({}))) == numbers(await sent_all(other, INBOX, 0))
        await log.close()
        await other.close()

    async def test_a_tail_skips_what_a_fenced_owner_sends(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        owned = await one.acquire(0)
        await put(one, owned.epoch, event(1, 7, INBOX))
        await one.release(0)
        taken = await two.acquire(0)
        assert isinstance(await put(one, owned.epoch, event(2, 7, INBOX)), Fenced)
        await put(two, taken.epoch, event(3, 7, INBOX))
        assert numbers(await sent_all(two, INBOX, 7)) == [1, 3]
        await one.close()
        await two.close()

    # --- the newest ---------------------------------------------------------------------------------------------------

    async def test_the_newest_record_is_the_one_of_the_latest_time_that_is_wanted(self, opener: Opener) -> None:
        one, two = await opener(), await opener()

        def newest(since: int, *wanted: int) -> int | None:
            found = two.newest(INBOX, 3, TIME_US + 1_000 * since, lambda record: numbers([record])[0] in wanted)
            return None if found is None else numbers([found])[0]

        assert newest(0, 1) is None
        for number in range(40):
            await put(two if number % 3 else one, None, event(number, 3, INBOX), event(100 + number, 4, INBOX))
        assert newest(0, *range(100)) == 39
        assert newest(0, 5, 11, 17) == 17
        assert newest(17, 5, 11, 17) == 17
        assert newest(18, 5, 11, 17) is None
        assert newest(0, 139) is None, "it is in another partition"
        await self.crash(one)
        await put(two, None, event(40, 3, INBOX))
        assert (newest(0, 39), newest(0, *range(100)), newest(41, *range(100))) == (39, 40, None)
        await two.close()

    async def test_the_newest_record_is_one_that_counts(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        owned = await one.acquire(0)
        await put(one, owned.epoch, event(1, 7, INBOX), event(2, 0, INBOX))
        await one.release(0)
        taken = await two.acquire(0)
        assert isinstance(await put(one, owned.epoch, event(3, 7, INBOX)), Fenced)
        for log in (one, two):
            for partition, expected in ((7, [1]), (0, [2])):
                found = log.newest(INBOX, partition, 0, lambda record: True)
                assert found is not None
                assert numbers([found]) == expected
        await put(two, taken.epoch, event(4, 7, INBOX))
        found = one.newest(INBOX, 7, 0, lambda record: True)
        assert found is not None
        assert numbers([found]) == [4]
        await one.close()
        await two.close()

    async def test_the_newest_record_is_found_in_a_log_opened_again_and_for_reading(self, opener: Opener) -> None:
        log = await opener()
        for number in range(30):
            await put(log, None, event(number, number % 2, INBOX))
        await log.close()
        for options in ({"readonly": True}, {}):
            again = await opener(**options)
            for _ in range(2):
                found = again.newest(INBOX, 1, 0, lambda record: True)
                assert found is not None
                assert numbers([found]) == [29]
                assert again.newest(INBOX, 1, TIME_US + 30_000, lambda record: True) is None
            await again.close()
        with pytest.raises(LogError):
            again.newest(INBOX, 1, 0, lambda record: True)

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def test_changed_returns_for_what_others_append_and_not_for_ones_own(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        async with asyncio.timeout(self.wait_s):
            await one.changed()
        tail = one.tail(INBOX, 0)
        for number in range(3):
            found: list[int] = []

            def arrived(found: list[int] = found) -> bool:
                found += numbers(tail.poll())
                return bool(found)

            waiting = asyncio.create_task(soon(arrived, one))
            await asyncio.sleep(0)
            await put(two, None, event(number, 0, INBOX))
            await waiting
            assert found == [number]
        await put(one, None, event(3, 0, INBOX))
        assert numbers(await polled(one, tail, INBOX, 0)) == [3], "it is there all the same"
        await one.close()
        await two.close()

    async def test_a_section_without_records_writes_nothing_and_tells_whether_its_owner_still_is_one(
        self, opener: Opener
    ) -> None:
        one, two = await opener(), await opener()
        taken = await one.acquire(0)
        before = one.info()
        (outcome,) = await one.append([Section(0, taken.epoch, [])])
        assert isinstance(outcome, Appended)
        assert [segment.batches for segment in one.info().segments] == [segment.batches for segment in before.segments]
        await one.release(0)
        _ = await two.acquire(0)
        (outcome,) = await one.append([Section(0, taken.epoch, [])])
        assert isinstance(outcome, Fenced)
        await one.close()
        await two.close()

    async def test_changed_returns_when_an_owner_changes(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        owned = await one.acquire(0)
        await two.changed()

        def released() -> bool:
            owner = two.owner(0)
            return owner is not None and owner.released

        waiting = asyncio.create_task(soon(released, two, self.wait_s))
        await asyncio.sleep(0)
        await one.release(0)
        await waiting
        taken = await one.acquire(0)
        assert taken.epoch > owned.epoch

        def dead() -> bool:
            owner = two.owner(0)
            return owner is not None and not owner.alive

        waiting = asyncio.create_task(soon(dead, two, self.wait_s))
        await asyncio.sleep(0)
        await self.crash(one)
        await waiting
        await two.close()

    async def test_a_tail_that_skips_sees_only_what_comes_after(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        for number in range(3):
            await put(one, None, event(number, 0, INBOX))
        tail = two.tail(INBOX, 0)
        tail.skip()
        assert await polled(two, tail, INBOX, 0) == []
        await put(one, None, event(3, 0, INBOX))
        await put(two, None, event(4, 0, INBOX))
        assert sorted(numbers(await polled(two, tail, INBOX, 0))) == [3, 4]
        again = one.tail(INBOX, 0, tail.position)
        assert await polled(one, again, INBOX, 0) == [], "its position holds what it skipped"
        await one.close()
        await two.close()

    async def test_a_tail_that_names_its_records_names_each_the_same_for_every_reader(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        tail = one.tail(INBOX, 0)
        if not isinstance(tail, NamingTail):
            await one.close()
            await two.close()
            pytest.skip("records of this log are named by its sources alone")
        for number in range(12):
            writer = two if number % 3 else one
            await put(
                writer, None, event(number, 0, INBOX), event(100 + number, 1, INBOX), event(number + 20, 0, INBOX)
            )
        named = tail.poll_named(100)
        by_name = {one.name: one.record for one in named}
        assert len(by_name) == len(named) == 24
        assert numbers(by_name.values()) == numbers(one.tail(INBOX, 0).poll()), (
            "they are what a poll gives, in its order"
        )
        assert tail.poll_named(100) == []
        other, few = two.tail(INBOX, 0), list[Named]()
        assert isinstance(other, NamingTail)
        few += other.poll_named(5)  # in the middle of what was written together
        again = one.tail(INBOX, 0, other.position)
        assert isinstance(again, NamingTail)
        few += again.poll_named(100)
        assert {one.name: one.record for one in few} == by_name, "wherever reading begins, and whoever reads"
        assert len(few) == 24
        await one.close()
        await two.close()

    # --- sources ------------------------------------------------------------------------------------------------------

    async def test_a_source_gives_every_writers_records_once_with_names_that_stay(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        for number in range(10):
            await put(two if number % 3 else one, None, event(number, 0, INBOX), event(100 + number, 1, INBOX))
        source = await two.source(INBOX, 0)
        whole = await given(source, 10)
        assert sorted(numbers(named.record for named in whole)) == list(range(10))
        assert [n for n in numbers(named.record for named in whole) if n % 3] == [n for n in range(10) if n % 3]
        assert len({named.name for named in whole}) == 10
        assert await source.poll(100) == []
        await put(one, None, event(10, 0, INBOX))
        whole += await given(source, 1)
        await source.close()
        position: Position | None = None
        singly = list[Named]()
        for _ in range(11):
            one_at_a_time = await one.source(INBOX, 0, position)
            singly += await given(one_at_a_time, 1, 1)
            position = one_at_a_time.position
            await one_at_a_time.close()
        assert {named.name: named.record for named in singly} == {named.name: named.record for named in whole}
        assert len(singly) == 11
        await one.close()
        await two.close()

    async def test_a_source_skips_and_tells_how_many_records_it_has_yet_to_give(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        for number in range(5):
            await put(one, None, event(number, 0, INBOX))
        source = await two.source(INBOX, 0)
        assert await source.waiting() >= 5
        assert len(await given(source, 2, 1)) == 2
        assert await source.waiting() >= 3
        await source.skip()
        assert await source.waiting() == 0
        assert await source.poll(100) == []
        await put(one, None, event(5, 0, INBOX))
        assert await source.waiting() >= 1
        assert numbers(named.record for named in await given(source, 1)) == [5]
        after = await two.source(INBOX, 0, source.position)
        assert await after.poll(100) == []
        await source.close()
        await after.close()
        await one.close()
        await two.close()

    async def test_a_source_gives_nothing_that_a_fenced_owner_sends(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        owned = await one.acquire(0)
        assert isinstance(await put(one, owned.epoch, event(1), event(2, 3, INBOX)), Appended)
        await one.release(0)
        await two.refresh()
        await two.acquire(0)
        assert isinstance(await put(one, owned.epoch, event(3), event(4, 3, INBOX)), Fenced)
        await put(two, None, event(5, 3, INBOX))
        source = await one.source(INBOX, 3)
        assert numbers(named.record for named in await given(source, 2)) == [2, 5]
        await source.close()
        await one.close()
        await two.close()

    async def test_a_source_of_a_position_that_is_none_is_refused(self, opener: Opener) -> None:
        log = await opener()
        with pytest.raises(LogError):
            await log.source(
                INBOX, 0, Position({"offset": "x", "count": -1, "at": {"7": [1, 0]}, "finished": [[1, 9]]})
            )
        await log.close()
        with pytest.raises(LogError, match="closed"):
            await log.source(INBOX, 0)

    async def test_a_tail_tells_how_many_records_it_has_yet_to_give(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        tail = two.tail(INBOX, 0)
        assert tail.waiting() == 0
        await put(one, None, *(event(number, 0, INBOX) for number in range(3)), event(9, 1, INBOX))
        await put(two, None, event(3, 0, INBOX))
        await two.refresh((INBOX, 0))
        assert tail.waiting() == 4
        assert tail.waiting() == 4, "to ask takes nothing"
        assert len(tail.poll(2)) == 2
        assert tail.waiting() == 2
        again = one.tail(INBOX, 0, tail.position)
        await one.refresh((INBOX, 0))
        assert again.waiting() == 2
        assert (len(tail.poll()), len(again.poll())) == (2, 2)
        assert (tail.waiting(), again.waiting()) == (0, 0)
        await put(one, None, event(4, 0, INBOX))
        await one.refresh((INBOX, 0))
        tail.skip()
        assert (tail.waiting(), again.waiting()) == (0, 1)
        await one.close()
        await two.close()

    async def test_a_cancelled_wait_for_changes_leaves_nothing_behind(self, opener: Opener) -> None:
        log, other = await opener(), await opener()
        tail = log.tail(INBOX, 0)  # of a remote log only what is read is heard of
        await log.refresh((INBOX, 0))
        await log.changed()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await soon(lambda: False, log, timeout_s=0.01)
        await put(other, None, event(1, 0, INBOX))
        async with asyncio.timeout(self.wait_s):
            await log.changed()
        assert numbers(await polled(log, tail, INBOX, 0)) == [1]
        await log.close()
        await other.close()

    # --- opening and closing ------------------------------------------------------------------------------------------

    async def test_a_closed_log_refuses_use_and_close_may_be_repeated(self, opener: Opener) -> None:
        log = await opener()
        await log.acquire(0)
        await log.close()
        await log.close()
        with pytest.raises(LogError):
            await put(log, None, event(1, 0, INBOX))
        with pytest.raises(LogError):
            log.end(EVENTS, 0)

    async def test_closing_frees_every_partition(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        for partition in range(3):
            await one.acquire(partition)
        await one.close()
        for partition in range(3):
            await two.acquire(partition)
        await two.close()

    async def test_a_log_opened_for_reading_sees_a_living_writer_and_writes_nothing(self, opener: Opener) -> None:
        log = await opener()
        reader = await opener(readonly=True)
        owned = await log.acquire(0)
        tail = reader.tail(INBOX, 1)
        await put(log, owned.epoch, event(1), event(2, 1, INBOX))
        assert (numbers(await read_all(reader, EVENTS, 0)), numbers(await polled(reader, tail, INBOX, 1))) == ([1], [2])
        assert (reader.writable, reader.log_id) == (False, log.log_id)
        with pytest.raises(LogReadOnly):
            await put(reader, None, event(1, 0, INBOX))
        with pytest.raises(LogReadOnly):
            await reader.acquire(1)
        await put(log, owned.epoch, event(3))
        assert numbers(await read_all(reader, EVENTS, 0)) == [1, 3]
        await reader.close()
        await log.close()

    async def test_the_partition_count_is_fixed_when_a_namespace_is_created(self, opener: Opener) -> None:
        one = await opener(namespace="shop-2", partitions=3)
        two = await opener(namespace="shop-2")
        assert (one.partition_count, two.partition_count) == (3, 3)
        with pytest.raises(LogError, match="3 partitions"):
            await opener(namespace="shop-2", partitions=4)
        await one.close()
        await two.close()

    @pytest.mark.parametrize("namespace", ["", "../x", "Shop", "a_b", "a.b", "a\0", "x" * 65, "é"])
    async def test_a_namespace_that_is_no_plain_name_is_refused(self, opener: Opener, namespace: str) -> None:
        with pytest.raises(LogError):
            await opener(namespace=namespace)

    async def test_namespaces_of_one_log_do_not_mix(self, opener: Opener) -> None:
        shop = await opener(namespace="shop")
        bank = await opener(namespace="bank")
        mine, theirs = await shop.acquire(0), await bank.acquire(0)
        await put(shop, mine.epoch, event(1, topic="shop.events"), event(2, topic="bank.inbox"))
        await put(bank, theirs.epoch, event(3, topic="bank.events"))
        assert numbers(await sent_all(bank, "bank.inbox", 0)) == [2]
        assert numbers(await read_all(bank, "bank.events", 0)) == numbers(await read_all(shop, "bank.events", 0)) == [3]
        assert numbers(await read_all(bank, "shop.events", 0)) == [1]
        await shop.close()
        await bank.close()

    async def test_info_names_the_owners(self, opener: Opener) -> None:
        log = await opener()
        await log.acquire(2)
        await log.refresh()
        info = log.info()
        assert info.namespaces["default"] == log.partition_count
        assert [(owner.partition, owner.mine) for owner in info.owners] == [(2, True)]
        await log.close()

    # --- cleaning -----------------------------------------------------------------------------------------------------

    async def _cleaned(self, opener: Opener, rules: Rules, *, dry_run: bool = False) -> Compaction:
        log = await opener()
        report = await log.compact(rules, dry_run=dry_run)
        await log.close()
        assert report.by == ("log" if self.cleans else "broker")
        return report

    async def test_cleaning_removes_what_rules_give_up_and_moves_nothing(self, opener: Opener) -> None:
        log = await opener()
        owned = await log.acquire(0)
        for number in range(10):
            await put(log, owned.epoch, NewRecord(INDEX, 0, f"k{number % 3}", b"%d" % number, TIME_US), event(number))
        at, places = await offsets(log, INDEX), [record.place for record in await read_all(log, INDEX, 0)]
        last = (await ends(log, (INDEX, 0)))[0]
        await log.close()
        dry = await self._cleaned(opener, Retention(TIME_US), dry_run=True)
        report = await self._cleaned(opener, Retention(TIME_US))
        assert dry.removed == report.removed == ({INDEX: {SUPERSEDED: 7}} if self.cleans else {})
        log = await opener()
        assert await ends(log, (INDEX, 0)) == [last]
        assert numbers(await read_all(log, EVENTS, 0)) == list(range(10))
        if self.cleans:
            assert await offsets(log, INDEX) == at[7:]
            assert [record.value for record in log.read_at(INDEX, 0, at[7:], places[7:])] == [b"7", b"8", b"9"]
            with pytest.raises(LogError):
                log.read_at(INDEX, 0, at[6:7], places[6:7])
        owned = await log.acquire(0)
        outcome = await put(log, owned.epoch, NewRecord(INDEX, 0, "k0", b"10", TIME_US))
        assert isinstance(outcome, Appended)
        assert outcome.offsets[INDEX] >= last
        assert (await self._cleaned(opener, Retention(TIME_US))).removed.get(EVENTS) is None
        await log.close()

    async def test_offsets_are_not_given_again_though_all_that_had_them_is_gone(self, opener: Opener) -> None:
        log = await opener()
        owned = await log.acquire(0)
        await put(log, owned.epoch, NewRecord(INDEX, 0, "k", b"1", TIME_US), NewRecord(INDEX, 0, "k", None, TIME_US))
        (end,) = await ends(log, (INDEX, 0))
        await log.close()
        for _ in range(2):
            await self._cleaned(opener, Retention(TIME_US, tombstones_s=0.0))
        log = await opener()
        if self.cleans:
            assert await read_all(log, INDEX, 0) == []
            assert log.horizon(INDEX, 0) == end
        assert await ends(log, (INDEX, 0)) == [end]
        owned = await log.acquire(0)
        outcome = await put(log, owned.epoch, NewRecord(INDEX, 0, "k", b"2", TIME_US))
        assert isinstance(outcome, Appended)
        assert outcome.offsets[INDEX] >= end
        await log.close()

    async def test_commands_that_an_owner_has_consumed_go_and_tails_stay_where_they_are(self, opener: Opener) -> None:
        log = await opener()
        owned = await log.acquire(0)
        for number in range(8):
            await put(log, None, event(number, 0, INBOX))
        if log.remote or not self.cleans:
            await log.close()
            return
        tail = log.tail(INBOX, 0)
        assert numbers(tail.poll(5)) == [0, 1, 2, 3, 4]
        value = json.dumps(tail.position).encode()
        await put(log, owned.epoch, NewRecord("default.registry", 0, "inbox/0", value, TIME_US))
        await log.close()
        report = await self._cleaned(opener, Retention(TIME_US))
        assert report.removed == {INBOX: {CONSUMED: 5}}
        log = await opener()
        for position in (None, tail.position):
            again, beside = log.tail(INBOX, 0, position), log.tail(INBOX, 0, tail.position)
            assert again.waiting() == 3
            assert isinstance(again, NamingTail)
            assert isinstance(beside, NamingTail)
            assert [named.name for named in again.poll_named(2)] == [named.name for named in beside.poll_named(2)]
            assert numbers(again.poll()) == [7]
        await log.close()
