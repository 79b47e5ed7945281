"""What the cleaner may remove of events: what the newest mark of a workflow's pruning gives up (design §8, decision 0045)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest

from gasoline_es.core import events as ev
from gasoline_es.core.codec import Envelope
from gasoline_es.core.ids import new_workflow_id
from gasoline_es.core.retention import PRUNED, TOMBSTONE, Retention
from gasoline_es.log.port import Offset, Record
from gasoline_es.testing.log_contract import EVENTS
from tests.log.cleaned import HOUR_US, NOW_US

ONE = new_workflow_id(1, b"12345678", 1)


def record(offset: int, seq: int, data: ev.EventData | None = None, workflow_id: str = ONE, time_us: int = 0) -> Record:
    envelope = Envelope(
        namespace="default", workflow_id=workflow_id, workflow="a", ray_id=workflow_id, partition=0, epoch=1, worker="w"
    )
    value = envelope.encode(seq, time_us, ev.WorkflowWoken("me") if data is None else data)
    return Record(EVENTS, 0, Offset(offset), f"{workflow_id}/{seq}", value, time_us)


def kept(*seqs: int) -> ev.WorkflowPruned:
    return ev.WorkflowPruned("me", seqs, ev.Remains("complete", 1, {}))


def gone(records: Iterable[Record], shown: Iterable[Record] | None = None, now_us: int = 0) -> list[int | None]:
    """The offsets of what may be removed, whatever order it was shown in."""
    records = list(records)
    rules = Retention(now_us)
    for one in records if shown is None else shown:
        rules.observe(one, sealed=True)
    if rules.again():
        for one in records:
            rules.observe(one, sealed=True)
    return [one.offset for one in records if rules.gives_up(one) is not None]


def test_what_lies_before_the_newest_mark_goes_but_for_what_it_keeps() -> None:
    """Of a second life only what its own mark gives up; all of the first one, with its mark."""
    first = [record(seq - 1, seq) for seq in range(1, 5)]
    first.append(record(4, 5, ev.WorkflowPruned("me")))
    assert gone(first[:4]) == []
    assert gone(first) == [0, 1, 2, 3]
    second = [*first, *(record(seq - 1, seq) for seq in range(6, 10))]
    assert gone(second) == [0, 1, 2, 3]
    second += [record(9, 10, kept(6, 9)), record(10, 11)]
    for shown in (second, second[::-1]):
        assert gone(second, shown) == [0, 1, 2, 3, 4, 6, 7]


def test_newest_is_by_offset_where_a_later_life_has_lower_numbers() -> None:
    """decision 0045: numbers begin with 1 again once nobody knows of the former life; its records may be there yet."""
    former = [record(0, 8), record(1, 9, ev.WorkflowPruned("me"))]
    later = [record(2, 1), record(3, 2), record(4, 3), record(5, 4, kept(1, 3)), record(6, 9, workflow_id=ONE)]
    for shown in ([*former, *later], [*later, *former]):
        assert gone([*former, *later], shown) == [0, 1, 3]


def test_a_mark_that_keeps_nothing_goes_once_it_is_old_and_alone_and_not_the_last() -> None:
    """required.md B05."""
    mark, last = record(4, 5, ev.WorkflowPruned("me")), record(9, 1, workflow_id=new_workflow_id(2, b"12345678", 1))
    day_us = 24 * HOUR_US
    assert gone([mark, last], now_us=day_us) == [4]
    assert gone([mark, last], now_us=day_us - 1) == []
    assert gone([mark], now_us=day_us) == [], "the last event of a partition"
    assert gone([record(2, 3), mark, last], now_us=day_us) == [2], "in that cleaning"
    assert gone([record(4, 5, kept(1, 4)), last], now_us=NOW_US) == []


@pytest.mark.parametrize(
    "value",
    [
        b'"gasoline.workflow.pruned.v1"',
        b'{"type":"gasoline.workflow.pruned.v1"',
        b'{"type":"gasoline.workflow.pruned.v1"}',
        b'{"type":"gasoline.workflow.pruned.v1","data":5}',
        b'{"type":"gasoline.workflow.pruned.v1","data":{"keeps":["x"]}}',
        b'{"type":"gasoline.workflow.pruned.v1","data":{"keeps":[99999999999999999999999]}}',
        b'{"type":"gasoline.workflow.pruned.v1","data":{"keeps":7}}',
        b'{"type":"gasoline.activity.completed.v1","data":{"output":"gasoline.workflow.pruned.v1"}}',
        b'\xff"gasoline.workflow.pruned.v1"',
    ],
)
def test_what_is_no_mark_that_reads_gives_up_nothing(value: bytes) -> None:
    """required.md A: whatever a record holds, the cleaning goes on."""
    hostile = Record(EVENTS, 0, Offset(5), f"{ONE}/5", value, 0)
    assert gone([record(0, 1), hostile, record(6, 6)], now_us=NOW_US) == []


@pytest.mark.parametrize("key", [f"{ONE}/{'9' * 5_000}", f"{ONE}/x", f"{ONE}", f"{ONE}/", "/", "\ud800/x"])
def test_keys_that_are_none_of_ours_are_left_alone(key: str) -> None:
    """They have no number, so no mark can say that they go."""
    odd = Record(EVENTS, 0, Offset(0), key, b"{}", 0)
    mark = Record(EVENTS, 0, Offset(3), f"{key.rpartition('/')[0]}/2", record(3, 2, ev.WorkflowPruned("me")).value, 0)
    given = [odd, mark, record(4, 6, ev.WorkflowPruned("me")), record(5, 7)]
    assert 0 not in gone(given)


def test_a_mark_takes_little_memory() -> None:
    """The cleaner of a log of a million workflows that were pruned has a mark of each (docs/performance.md)."""
    count = 5_000
    rules = Retention(NOW_US)
    value = record(0, 13, ev.WorkflowPruned("me")).value
    assert value is not None
    tracemalloc.start()
    for number in range(count):
        one = new_workflow_id(number, number.to_bytes(8, "big"), 1)
        rules.observe(Record(EVENTS, 0, Offset(number), f"{one}/13", value, 10**15), sealed=True)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 260 * count, taken / count


def test_reasons_are_told_apart() -> None:
    """`log compact` shows how many of each."""
    rules: Any = Retention(NOW_US)
    records = [record(0, 1), record(1, 2, ev.WorkflowPruned("me")), record(2, 3)]
    for one in records:
        rules.observe(one, sealed=True)
    assert [rules.gives_up(one) for one in records] == [PRUNED, None, None]
    assert rules.again()
    for one in records[1:]:
        rules.observe(one, sealed=True)
    assert [rules.gives_up(one) for one in records[1:]] == [TOMBSTONE, None]
