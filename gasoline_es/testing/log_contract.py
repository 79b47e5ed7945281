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
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from gasoline_es.errors import Fenced, LogError, LogReadOnly, PartitionOwned, RecordTooLarge
from gasoline_es.log.port import (
    ABOUT_BYTES_MAX,
    RECORD_BYTES_MAX,
    Appended,
    Epoch,
    Log,
    NewRecord,
    Offset,
    Outcome,
    Position,
    Record,
    Section,
)

Opener = Callable[..., Awaitable[Log]]
EVENTS = "default.events"
INDEX = "default.index"
INBOX = "default.inbox"


def event(number: int, partition: int = 0, topic: str = EVENTS, value: bytes | None = None) -> NewRecord:
    """Return a record that can be told apart from others by its number."""
    return NewRecord(topic, partition, f"workflow/{number}", value or b'{"number":%d}' % number, 1_000_000 + number)


def numbers(records: Sequence[Record] | Any) -> list[int]:
    """Return the numbers of records made by :func:`event`."""
    return [int(record.key.rpartition("/")[2]) for record in records]


async def put(log: Log, epoch: Epoch | None, *records: NewRecord, partition: int = 0) -> Outcome:
    """Append one section; return its outcome."""
    (outcome,) = await log.append([Section(partition, epoch, records)])
    return outcome


async def soon(check: Callable[[], bool], log: Log, timeout_s: float = 5.0) -> None:
    """Wait until ``check`` holds, looking whenever the log says that something changed."""
    async with asyncio.timeout(timeout_s):
        while not check():
            await log.changed()


class LogContract:
    """What any log promises (design.md §6, the log port)."""

    async def crash(self, log: Log) -> None:
        """Make a handle go away as the end of its process would."""
        result = log.crash()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]
        if result is not None:
            await result

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
        read = list(log.read(EVENTS, 3))
        assert [(r.topic, r.partition, r.key, r.value, r.time_us) for r in read] == [
            (r.topic, r.partition, r.key, r.value, r.time_us) for r in records
        ]
        assert [dict(r.headers or {}) for r in read] == [dict(r.headers or {}) for r in records]
        assert [r.offset for r in read] == [0, 1, 2, 3]
        await log.close()

    async def test_offsets_of_each_topic_are_dense_and_given_by_the_outcome(self, opener: Opener) -> None:
        log = await opener()
        owned = await log.acquire(0)
        first = await put(log, owned.epoch, event(1), event(2, topic=INDEX), event(3))
        second = await put(log, owned.epoch, event(4), event(5, topic=INDEX))
        assert (first, second) == (
            Appended({EVENTS: Offset(0), INDEX: Offset(0)}),
            Appended({EVENTS: Offset(2), INDEX: Offset(1)}),
        )
        assert numbers(log.read(EVENTS, 0)) == [1, 3, 4]
        assert numbers(log.read(INDEX, 0)) == [2, 5]
        assert (log.end(EVENTS, 0), log.end(INDEX, 0), log.end(EVENTS, 1)) == (3, 2, 0)
        await log.close()

    async def test_read_keeps_to_its_range_as_of_the_call(self, opener: Opener) -> None:
        log = await opener()
        owned = await log.acquire(0)
        for start in range(0, 40, 4):
            await put(log, owned.epoch, *[event(i) for i in range(start, start + 4)])
        reading = log.read(EVENTS, 0, 3)
        await put(log, owned.epoch, event(40))
        assert numbers(reading) == list(range(3, 40))
        assert numbers(log.read(EVENTS, 0, 5, 9)) == [5, 6, 7, 8]
        assert numbers(log.read(EVENTS, 0, 41)) == numbers(log.read(EVENTS, 0, 7, 7)) == []
        assert numbers(log.read(EVENTS, 0, 39, 1000)) == [39, 40]
        await log.close()

    async def test_read_at_returns_exactly_the_offsets_asked_for(self, opener: Opener) -> None:
        log = await opener()
        owned = await log.acquire(0)
        for start in range(0, 200, 20):
            await put(log, owned.epoch, *[event(i) for i in range(start, start + 20)])
        assert numbers(log.read_at(EVENTS, 0, [0, 7, 8, 150, 199])) == [0, 7, 8, 150, 199]
        assert log.read_at(EVENTS, 0, []) == []
        with pytest.raises(LogError):
            log.read_at(EVENTS, 0, [5, 200])
        await log.close()

    async def test_a_place_saves_a_search_and_a_wrong_one_costs_one(self, opener: Opener) -> None:
        log = await opener()
        owned = await log.acquire(0)
        places: list[int] = []
        for start in range(0, 30, 3):
            outcome = await put(log, owned.epoch, *[event(i) for i in range(start, start + 3)])
            assert isinstance(outcome, Appended)
            places += [outcome.place] * 3
        assert [record.place for record in log.read(EVENTS, 0)] == places
        wanted = [0, 4, 5, 17, 29]
        for told in (
            [places[i] for i in wanted],
            [0] * 5,
            [places[29]] * 5,
            [2**62 + 7, 1, *[places[i] + 1 for i in wanted[2:]]],
        ):
            assert numbers(log.read_at(EVENTS, 0, wanted, told)) == wanted
        with pytest.raises(LogError):
            log.read_at(EVENTS, 0, [5, 30], [places[5], places[29]])
        await log.close()

    async def test_a_section_may_write_to_several_topics_and_partitions(self, opener: Opener) -> None:
        log = await opener()
        owned = await log.acquire(2)
        await put(log, owned.epoch, event(1, 2), event(2, 9, INBOX), event(3, 1, INBOX), partition=2)
        assert numbers(log.read(EVENTS, 2)) == [1]
        assert numbers(log.tail(INBOX, 9).poll()) == [2]
        (record,) = log.tail(INBOX, 1).poll()
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
        assert (numbers(log.read(EVENTS, 0)), numbers(log.read(EVENTS, 1))) == ([1], [4])
        assert numbers(log.tail(INBOX, 4).poll()) == [3]
        await log.close()

    async def test_concurrent_appends_are_served_one_after_the_other(self, opener: Opener) -> None:
        log = await opener()
        owned = await log.acquire(0)
        outcomes = await asyncio.gather(*[put(log, owned.epoch, event(i), event(i)) for i in range(50)])
        firsts = [outcome.offsets[EVENTS] for outcome in outcomes if isinstance(outcome, Appended)]
        assert sorted(firsts) == list(range(0, 100, 2))
        read = numbers(log.read(EVENTS, 0))
        assert [read[first : first + 2] for first in firsts] == [[i, i] for i in range(50)]
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
            assert numbers(log.read(EVENTS, 0)) == numbers(other.read(EVENTS, 0)) == [1, 2, 3, 5]
            assert numbers(other.tail(INBOX, 1).poll()) == [4]
            with pytest.raises(RecordTooLarge):
                log.append_now([Section(0, owned.epoch, [event(6, value=b'"%b"' % (b"x" * RECORD_BYTES_MAX))])])
            (fenced,) = log.append_now([Section(0, Epoch(owned.epoch + 1), [event(6)])])
            assert isinstance(fenced, Fenced)
            assert log.end(EVENTS, 0) == 4
        await log.close()
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
        assert (log.end(EVENTS, 0), log.tail(INBOX, 5).poll()) == (0, [])
        near = b'"%b"' % (b"x" * (RECORD_BYTES_MAX - 300))
        assert isinstance(await put(log, owned.epoch, event(4, value=near)), Appended)
        (record,) = log.read(EVENTS, 0)
        assert record.value == near
        await log.close()

    async def test_two_sections_for_one_partition_and_epoch_are_a_mistake(self, opener: Opener) -> None:
        log = await opener()
        owned = await log.acquire(0)
        with pytest.raises(ValueError, match="same partition"):
            await log.append([Section(0, owned.epoch, [event(1)]), Section(0, owned.epoch, [event(2)])])
        assert log.end(EVENTS, 0) == 0
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
            await put(log, None, event(number, 0, topic))
        for number, topic in enumerate(topics):
            (record,) = log.tail(topic, 0).poll()
            assert (record.topic, numbers([record])) == (topic, [number])
        await log.close()

    # --- owning -------------------------------------------------------------------------------------------------------

    async def test_a_partition_has_one_owner_at_a_time(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        assert one.owner(0) is None
        owned = await one.acquire(0)
        assert (owned.partition, dict(owned.ends)) == (0, {})
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
        owner = two.owner(0)
        assert owner is not None
        assert owner.released
        taken = await two.acquire(0)
        assert taken.epoch > owned.epoch
        assert dict(taken.ends) == {EVENTS: 2, INDEX: 1}
        assert await put(two, taken.epoch, event(4)) == Appended({EVENTS: Offset(2)})
        assert isinstance(await put(one, owned.epoch, event(5)), Fenced)
        assert numbers(one.read(EVENTS, 0)) == numbers(two.read(EVENTS, 0)) == [1, 2, 4]
        await one.release(0)  # not owned any more: does nothing
        assert numbers(one.read(EVENTS, 0)) == [1, 2, 4]
        await one.close()
        await two.close()

    async def test_a_dead_owners_partition_is_free_at_once(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        owned = await one.acquire(0)
        await put(one, owned.epoch, event(1))
        await self.crash(one)
        owner = two.owner(0)
        assert owner is not None
        taken = await two.acquire(0)
        assert dict(taken.ends) == {EVENTS: 1}
        await put(two, taken.epoch, event(2))
        assert numbers(two.read(EVENTS, 0)) == [1, 2]
        await two.close()

    async def test_what_a_process_tells_about_itself_is_seen_by_all_while_it_lives(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        assert one.members() == two.members() == []
        one.announce({"version": 1})
        two.announce({"version": 2, "weight": 0.5})
        assert {member.incarnation: (dict(member.about), member.mine) for member in one.members()} == {
            one.incarnation: ({"version": 1}, True),
            two.incarnation: ({"version": 2, "weight": 0.5}, False),
        }
        names = sorted((one.incarnation, two.incarnation))
        assert [member.incarnation for member in one.members()] == names
        assert [member.incarnation for member in two.members()] == names
        one.announce({"version": 3})
        assert {member.incarnation: member.about["version"] for member in two.members()} == {
            one.incarnation: 3,
            two.incarnation: 2,
        }
        two.announce(None)
        assert [member.incarnation for member in one.members()] == [one.incarnation]
        two.announce({})
        await self.crash(one)
        assert [member.incarnation for member in two.members()] == [two.incarnation]
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

    async def test_a_log_reopened_has_everything_that_was_appended(self, opener: Opener) -> None:
        keep = await opener()  # a memory log lives as long as somebody has it open
        for number in range(4):
            log = await opener()
            owned = await log.acquire(0)
            assert dict(owned.ends) == ({EVENTS: number} if number else {})
            await put(log, owned.epoch, event(number), event(number, 1, INBOX))
            await (log.close() if number % 2 else self.crash(log))
        assert numbers(keep.read(EVENTS, 0)) == numbers(keep.tail(INBOX, 1).poll()) == [0, 1, 2, 3]
        await keep.close()

    async def test_partitions_are_owned_independently(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        first, second = await one.acquire(0), await two.acquire(1)
        await put(one, first.epoch, event(1))
        await put(two, second.epoch, event(2, 1), partition=1)
        await one.release(0)
        third = await two.acquire(0)
        await put(two, third.epoch, event(3))
        assert numbers(one.read(EVENTS, 0)) == [1, 3]
        assert numbers(one.read(EVENTS, 1)) == [2]
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
                seen += numbers(tail.poll())
        seen += numbers(tail.poll())
        assert sorted(seen) == list(range(20))
        assert [n for n in seen if n % 3] == [n for n in range(20) if n % 3]
        assert [n for n in seen if n % 3 == 0] == [n for n in range(20) if n % 3 == 0]
        assert tail.poll() == []
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
            seen += numbers(tail.poll(max_records=2))
            position = tail.position
        tail = other.tail(INBOX, 0, position)
        while records := tail.poll(max_records=7):
            seen += numbers(records)
        assert sorted(seen) == list(range(90))
        assert other.tail(INBOX, 0, tail.position).poll() == []
        assert numbers(other.tail(INBOX, 0, Position({})).poll()) == numbers(other.tail(INBOX, 0).poll())
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
        assert numbers(two.tail(INBOX, 7).poll()) == [1, 3]
        await one.close()
        await two.close()

    # --- the newest ---------------------------------------------------------------------------------------------------

    async def test_the_newest_record_is_the_one_of_the_latest_time_that_is_wanted(self, opener: Opener) -> None:
        one, two = await opener(), await opener()

        def newest(since: int, *wanted: int) -> int | None:
            found = two.newest(INBOX, 3, 1_000_000 + since, lambda record: numbers([record])[0] in wanted)
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
                assert again.newest(INBOX, 1, 1_000_030, lambda record: True) is None
            await again.close()
        with pytest.raises(LogError):
            again.newest(INBOX, 1, 0, lambda record: True)

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def test_changed_returns_for_what_others_append_and_not_for_ones_own(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        async with asyncio.timeout(2):
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
        assert numbers(tail.poll()) == [3], "it is there all the same"
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
        await two.acquire(0)
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

        waiting = asyncio.create_task(soon(released, two))
        await asyncio.sleep(0)
        await one.release(0)
        await waiting
        taken = await one.acquire(0)
        assert taken.epoch > owned.epoch

        def dead() -> bool:
            owner = two.owner(0)
            return owner is not None and not owner.alive

        waiting = asyncio.create_task(soon(dead, two))
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
        assert tail.poll() == []
        await put(one, None, event(3, 0, INBOX))
        await put(two, None, event(4, 0, INBOX))
        assert sorted(numbers(tail.poll())) == [3, 4]
        again = one.tail(INBOX, 0, tail.position)
        assert again.poll() == [], "its position holds what it skipped"
        await one.close()
        await two.close()

    async def test_a_tail_tells_how_many_records_it_has_yet_to_give(self, opener: Opener) -> None:
        one, two = await opener(), await opener()
        tail = two.tail(INBOX, 0)
        assert tail.waiting() == 0
        await put(one, None, *(event(number, 0, INBOX) for number in range(3)), event(9, 1, INBOX))
        await put(two, None, event(3, 0, INBOX))
        assert tail.waiting() == 4
        assert tail.waiting() == 4, "to ask takes nothing"
        assert len(tail.poll(2)) == 2
        assert tail.waiting() == 2
        again = one.tail(INBOX, 0, tail.position)
        assert again.waiting() == 2
        assert (len(tail.poll()), len(again.poll())) == (2, 2)
        assert (tail.waiting(), again.waiting()) == (0, 0)
        await put(one, None, event(4, 0, INBOX))
        tail.skip()
        assert (tail.waiting(), again.waiting()) == (0, 1)
        await one.close()
        await two.close()

    async def test_a_cancelled_wait_for_changes_leaves_nothing_behind(self, opener: Opener) -> None:
        log, other = await opener(), await opener()
        await log.changed()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await soon(lambda: False, log, timeout_s=0.01)
        await put(other, None, event(1, 0, INBOX))
        async with asyncio.timeout(2):
            await log.changed()
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
        assert (numbers(reader.read(EVENTS, 0)), numbers(tail.poll())) == ([1], [2])
        assert (reader.writable, reader.log_id) == (False, log.log_id)
        with pytest.raises(LogReadOnly):
            await put(reader, None, event(1, 0, INBOX))
        with pytest.raises(LogReadOnly):
            await reader.acquire(1)
        await put(log, owned.epoch, event(3))
        assert numbers(reader.read(EVENTS, 0)) == [1, 3]
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
        assert numbers(bank.tail("bank.inbox", 0).poll()) == [2]
        assert numbers(bank.read("bank.events", 0)) == numbers(shop.read("bank.events", 0)) == [3]
        assert numbers(bank.read("shop.events", 0)) == [1]
        await shop.close()
        await bank.close()

    async def test_info_names_the_owners(self, opener: Opener) -> None:
        log = await opener()
        await log.acquire(2)
        info = log.info()
        assert info.namespaces["default"] == log.partition_count
        assert [(owner.partition, owner.mine) for owner in info.owners] == [(2, True)]
        await log.close()
