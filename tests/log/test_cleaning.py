"""The cleaner of the file log: what it removes, what it must not touch, and that readers and writers do not notice."""

from __future__ import annotations

from pathlib import Path

from gasoline_es.log.file.log import open_file_log
from gasoline_es.log.port import Appended, Offset
from gasoline_es.testing.log_contract import EVENTS, INBOX, event, numbers, put
from tests.log.cleaned import (
    HOUR_US,
    INDEX,
    NOW_US,
    REGISTRY,
    clean,
    consumed,
    happened,
    keyed,
    life,
    newest,
    offsets,
    problems,
    pruned,
    rules,
    taken,
    tombstone,
)
from tests.log.test_crashes import segment


async def test_older_records_of_a_key_go_and_the_newest_stays_at_its_offset(tmp_path: Path) -> None:
    """design §5: what is kept by key is kept once; offsets never change."""
    await life(tmp_path, [keyed("a", 1), keyed("b", 1)], [keyed("a", 2)], partitions=1)
    await life(tmp_path, [keyed("a", 3)])
    report = await clean(tmp_path)
    assert report.removed == {INDEX: {"superseded": 2}}
    assert report.rewritten == 1
    assert report.bytes_after < report.bytes_before
    log = await open_file_log(str(tmp_path))
    assert offsets(log.read(INDEX, 0)) == [1, 3]
    assert log.end(INDEX, 0) == 4
    assert problems(log) == []
    assert [info.compacted for info in log.info().segments][:2] == [True, False]
    await log.close()


async def test_an_owner_goes_on_above_offsets_that_were_all_cleaned_away(tmp_path: Path) -> None:
    """filelog.md §5: no offset is given twice, though nothing is left that had it."""
    await life(tmp_path, [keyed("a", 1)], [tombstone("a")], partitions=1)
    await life(tmp_path, [event(1)])
    await clean(tmp_path)
    report = await clean(tmp_path)
    assert report.removed == {INDEX: {"tombstone": 1}}
    assert report.emptied == 1
    for _ in range(2):
        log = await open_file_log(str(tmp_path))
        assert list(log.read(INDEX, 0)) == []
        assert log.end(INDEX, 0) == 2
        assert problems(log) == []
        await log.close()
        for path in (tmp_path / "verified").glob("*"):
            path.unlink()
    log = await open_file_log(str(tmp_path))
    assert await put(log, await taken(log), keyed("b", 1)) == Appended({INDEX: Offset(2)})
    assert newest(log.read(INDEX, 0)).keys() == {"b"}
    await log.close()


async def test_a_pruned_workflow_loses_all_but_what_is_named_and_the_rest_keeps_its_offsets(tmp_path: Path) -> None:
    """design §8: the event alone decides."""
    await life(
        tmp_path,
        [happened("one", 1), happened("two", 1), happened("one", 2)],
        [happened("two", 2), happened("one", 3), pruned("one", 4, [1])],
        partitions=1,
    )
    report = await clean(tmp_path)
    assert report.removed == {EVENTS: {"pruned": 2}}
    log = await open_file_log(str(tmp_path))
    assert [(r.offset, r.key) for r in log.read(EVENTS, 0)] == [(0, "one/1"), (1, "two/1"), (3, "two/2"), (5, "one/4")]
    assert [r.key for r in log.read_at(EVENTS, 0, [1, 5])] == ["two/1", "one/4"]
    assert problems(log) == []
    await log.close()


async def test_commands_go_once_their_consumption_is_recorded_and_no_others(tmp_path: Path) -> None:
    """design §5: the inbox is cleaned by the owner's position, never by age."""
    log = await open_file_log(str(tmp_path), partitions=1)
    epoch = await taken(log)
    for number in range(6):
        await put(log, None, event(number, 0, INBOX), event(100 + number, 0, INBOX))
    tail = log.tail(INBOX, 0)
    assert numbers(tail.poll(5)) == [0, 100, 1, 101, 2]
    await put(log, epoch, consumed(tail.position))
    await log.close()
    report = await clean(tmp_path)
    assert report.removed == {INBOX: {"consumed": 5}}
    log = await open_file_log(str(tmp_path))
    assert numbers(log.tail(INBOX, 0).poll()) == [102, 3, 103, 4, 104, 5, 105]
    assert numbers(log.tail(INBOX, 0, tail.position).poll()) == [102, 3, 103, 4, 104, 5, 105]
    assert problems(log) == []
    await log.close()


async def test_a_tombstone_stays_for_its_time_and_while_anything_older_is_left(tmp_path: Path) -> None:
    """required.md B05: its own time is not enough, and nor is it that nothing is left."""
    await life(tmp_path, [keyed("a", 1)], partitions=1)
    await life(tmp_path, [tombstone("a", time_us=NOW_US - HOUR_US)])
    assert (await clean(tmp_path)).removed == {INDEX: {"superseded": 1}}
    assert (await clean(tmp_path)).removed == {}
    log = await open_file_log(str(tmp_path))
    assert log.horizon(INDEX, 0) == 0
    report = await log.compact(rules(tombstones_s=3600))
    assert report.removed == {INDEX: {"tombstone": 1}}
    assert log.horizon(INDEX, 0) == 2
    assert log.horizon(REGISTRY, 0) == 0
    await log.close()


async def test_a_dry_run_says_what_the_real_one_does_and_changes_nothing(tmp_path: Path) -> None:
    await life(tmp_path, *[[keyed("a", number)] for number in range(20)], partitions=1)
    before = segment(tmp_path, 1).read_bytes()
    dry = await clean(tmp_path, dry_run=True)
    assert segment(tmp_path, 1).read_bytes() == before
    real = await clean(tmp_path)
    assert (dry.removed, dry.bytes_after, dry.rewritten) == (real.removed, real.bytes_after, real.rewritten)
    assert segment(tmp_path, 1).stat().st_size < len(before)


async def test_a_tombstone_stays_while_what_it_took_back_is_in_a_segment_that_is_still_written_to(
    tmp_path: Path,
) -> None:
    """required.md B05: nothing older may survive *anywhere*; and segments are not in the order of offsets."""
    one = await open_file_log(str(tmp_path), partitions=2)
    await put(one, await taken(one), keyed("k", 1))
    await one.release(0)
    await life(tmp_path, [tombstone("k")])
    for _ in range(3):
        report = await one.compact(rules())
        assert (report.removed, report.open) == ({}, 1)
        assert newest(one.read(INDEX, 0)) == {}
    await one.close()
    assert (await clean(tmp_path)).removed == {INDEX: {"superseded": 1}}
    assert (await clean(tmp_path)).removed == {INDEX: {"tombstone": 1}}


async def test_what_an_older_segment_holds_goes_before_the_tombstone_in_whatever_order_they_come(
    tmp_path: Path,
) -> None:
    """required.md B05: a value in a segment whose number is higher than that of its tombstone."""
    one = await open_file_log(str(tmp_path), partitions=2, segment_bytes_max=600)
    two = await open_file_log(str(tmp_path), segment_bytes_max=10_000)
    await put(two, await taken(two, 1), event(1, 1), partition=1)  # its segment is made first
    await put(one, await taken(one), keyed("k", 1))
    await one.release(0)
    await put(two, await taken(two), tombstone("k"))
    await one.close()
    await two.close()
    assert [b'"key":"k"' in segment(tmp_path, number).read_bytes() for number in (1, 2)] == [True, True]
    assert (await clean(tmp_path)).removed == {INDEX: {"superseded": 1}}, "and not the tombstone, which comes first"
    assert (await clean(tmp_path)).removed == {INDEX: {"tombstone": 1}}


async def test_the_mark_of_a_pruning_that_keeps_nothing_goes_once_nothing_is_left(tmp_path: Path) -> None:
    """design §8: it is the tombstone of all keys of its workflow; one that keeps something stays with that."""
    await life(tmp_path, [happened("w", 1), happened("x", 1)], [pruned("w", 2, []), pruned("x", 2, [1])], partitions=1)
    assert (await clean(tmp_path)).removed == {EVENTS: {"pruned": 1}}
    young = rules(HOUR_US)
    assert (await clean(tmp_path, young)).removed == {}
    assert (await clean(tmp_path)).removed == {EVENTS: {"tombstone": 1}}
    log = await open_file_log(str(tmp_path))
    assert [record.key for record in log.read(EVENTS, 0)] == ["x/1", "x/2"]
    assert log.horizon(EVENTS, 0) == 3
    await log.close()
