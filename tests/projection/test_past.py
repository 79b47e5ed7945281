"""A list of another time: what of it is in memory (docs/guides/views.md)."""

from __future__ import annotations

from hashlib import sha256

from gasoline_es.core import events as ev
from gasoline_es.core.codec import Envelope
from gasoline_es.core.filters import Filters
from gasoline_es.core.ids import new_workflow_id
from gasoline_es.log.port import Offset, Record
from projections.past import PastView

START_US = 1_767_225_600_000_000


def records(count: int) -> list[Record]:
    """Return two events of each of so many workflows, every other one called "rare"."""
    found: list[Record] = []
    for number in range(count):
        workflow_id = new_workflow_id(START_US + number, sha256(b"%d" % number).digest()[:8], 0)
        name = "rare" if number % 2 else "often"
        envelope = Envelope(
            namespace="default",
            workflow_id=workflow_id,
            workflow=name,
            ray_id=workflow_id,
            partition=0,
            epoch=1,
            worker="w",
        )
        dispatched = ev.WorkflowDispatched(name, b"null", {})
        facts: list[ev.EventData] = [dispatched, ev.WorkflowCompleted(b"1", b"null")]
        for seq, data in enumerate(facts, 1):
            at = len(found)
            value = envelope.encode(seq, START_US + at, data)
            found.append(Record("default.events", 0, Offset(at), f"{workflow_id}/{seq}", value, START_US + at))
    return found


def test_only_what_may_match_is_in_memory() -> None:
    told = records(20)
    for wanted, count in (
        (Filters(), 20),
        (Filters(name="rare"), 10),
        (Filters(since_us=START_US + 30), 5),
        (Filters(until_us=START_US + 10), 5),
        (Filters(status="running"), 20),
    ):
        past = PastView(wanted)
        assert past.fold_until(told, START_US + 1_000)
        assert len(past._summaries) == count
        assert len(list(past.matching())) == (0 if wanted.status else count)


def test_what_came_later_is_not_seen() -> None:
    past = PastView(Filters(name="often"))
    assert not past.fold_until(records(3), START_US + 4)
    assert [(one.status, one.seq) for one in past.matching()] == [("complete", 2), ("running", 1)]
