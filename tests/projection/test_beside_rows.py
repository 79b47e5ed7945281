"""What stands beside workflows and in sequences, stored as rows at any time, answers as if nothing had been (design §7)."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from gasoline_es.core.announced import Announced, announced_as
from gasoline_es.core.parked import Parked
from gasoline_es.core.parked_events import (
    ParkedData,
    ParkedDiscarded,
    ParkedEvent,
    SignalOffered,
    SignalParked,
    SignalReturned,
    SignalUnparked,
)
from gasoline_es.core.schedule_events import (
    ScheduleData,
    ScheduleEvent,
    ScheduleFired,
    SchedulePaused,
    ScheduleRemoved,
    ScheduleResumed,
    ScheduleSet,
    ScheduleSkipped,
)
from gasoline_es.core.standing import Unreadable
from gasoline_es.core.stored_events import (
    DecisionStored,
    EventStored,
    Stored,
    StoredData,
    StoredEnvelope,
    TrackingStored,
)
from gasoline_es.core.storing import Query
from gasoline_es.core.timetable import Cron, Every
from gasoline_es.log.port import Offset, Record
from projections.kept_feed import Feed
from projections.parked import ParkedView
from projections.registry import RegistryView
from projections.schedules import ScheduleView
from projections.stored import StoredView
from projections.stores.sqlite_connection import connect_memory
from projections.tables import Tables, make_tables
from projections.views import Beside
from projections.workflows import KeptBesideOf

START_US = 1_767_225_600_000_000
IDS = ["a", "b", "c"]
SEQUENCES = ["events", "snapshots"]
KINDS = ["opened", "paid", "closed"]


class Store:
    """Tables in memory, and where each feed stands in them. Another process may read or write them, too."""

    def __init__(self) -> None:
        self.db = connect_memory()
        make_tables(self.db)
        self.tables = Tables(self.db)
        self.stands = 0

    def beside(self) -> Beside:
        return Beside(KeptBesideOf(self.tables.ask, 0))

    def load(self, feed: Feed) -> None:
        self.tables.load(feed, 0, self.stands)

    def save(self, feed: Feed, fate: str) -> None:
        """``fate``: "stored"; "failed"; or "elsewhere": another process that has folded as much was faster."""
        if feed.storable_to <= feed.stored_to:
            return
        changes = feed.changes()
        assert changes.stored_to <= self.stands, "the rows would leave a gap"
        if fate == "failed":
            feed.not_saved()
            return
        if changes.next_offset > self.stands:
            self.tables.write(0, changes)
            self.stands = changes.next_offset
        feed.saved(max(self.stands, changes.next_offset))


@contextmanager
def store() -> Generator[Store]:
    made = Store()
    try:
        yield made
    finally:
        made.db.close()


FATES = st.sampled_from(["stored", "stored", "failed", "died"])


# --- schedules --------------------------------------------------------------------------------------------------------

TIMES = st.none() | st.integers(0, 10**9).map(lambda us: START_US + us)
SETS = st.builds(
    ScheduleSet,
    st.sampled_from(IDS),
    st.just("report"),
    st.sampled_from([b"null", b'{"a": 1.50, "b": "\\u00e4"}', b"[1e5]"]),
    st.dictionaries(st.sampled_from(IDS), st.sampled_from(IDS), max_size=2),
    st.sampled_from([Every(60_000_000, START_US), Cron("0 3 * * *", "Europe/Berlin")]),
    st.sampled_from(["latest", "all", "skip"]),
    st.sampled_from(["allow", "skip"]),
    TIMES,
    st.just("me"),
)
SCHEDULE_FACTS: st.SearchStrategy[ScheduleData] = st.one_of(
    SETS,
    st.just(SchedulePaused("me")),
    st.builds(ScheduleResumed, st.just("me"), TIMES),
    st.builds(ScheduleFired, TIMES, st.sampled_from(IDS), TIMES, st.none()),
    st.builds(
        ScheduleSkipped,
        st.just(START_US),
        st.just(START_US + 5),
        st.integers(1, 9),
        st.booleans(),
        st.just("missed"),
        TIMES,
    ),
    st.just(ScheduleRemoved("me")),
    st.just(Unreadable("gasoline.schedule.moved.v1", "unknown")),
)


@given(
    st.lists(
        st.tuples(st.sampled_from(IDS), st.integers(0, 12).map(bool), SCHEDULE_FACTS) | FATES | st.just("read"),
        max_size=40,
    )
)
def test_schedules_are_the_same_whatever_was_stored_when(script: list[Any]) -> None:
    """Another process reads, and may meet rows that are ahead of what it has folded."""
    with store() as kept:
        fresh, view, reader = ScheduleView(), kept.beside().schedules, kept.beside().schedules
        told: list[tuple[int, ScheduleEvent]] = []
        seqs: dict[str, int] = {}
        for step in script:
            if step in ("died", "read"):
                if step == "died":
                    view = kept.beside().schedules
                    kept.load(view)
                one = view if step == "died" else reader
                for at, event in told[one.next_offset :]:
                    one.apply(at, event)
                assert _schedules(one) == _schedules(fresh)
            elif isinstance(step, str):
                kept.save(view, step)
            else:
                its_id, in_order, data = step
                seqs[its_id] = seqs.get(its_id, 0) + (1 if in_order else 2)
                at = len(told)
                event = ScheduleEvent(its_id, seqs[its_id], START_US + at, its_id, 0, 1, "w", data)
                for one in (fresh, view):
                    one.apply(at, event)
                told.append((at, event))
        assert _schedules(view) == _schedules(fresh)
        kept.save(view, "stored")
        assert not any(one.removed for one in view), "what is over is not in memory"
        for at, event in told[reader.next_offset :]:
            reader.apply(at, event)
        again = kept.beside().schedules
        kept.load(again)
        for one in (view, again, reader):
            assert _schedules(one) == _schedules(fresh)


def _schedules(view: ScheduleView) -> dict[str, Any]:
    """Return all of them, and those that were not removed as one meets them by looking through."""
    found = {its_id: _plain(view.get(its_id)) for its_id in [*IDS, "none"]}
    return found | {f"live {one.id}": _plain(one) for one in view if not one.removed}


def _plain(one: Any) -> Any:
    """Return a state with what JSON holds instead of its texts: callers write the same differently."""
    if hasattr(one, "set"):
        return replace(one, set=replace(one.set, input=to_json(from_json(one.set.input))))
    if isinstance(one, Parked):
        return replace(one, signal=replace(one.signal, body=to_json(from_json(one.signal.body))))
    return one


# --- parked signals ---------------------------------------------------------------------------------------------------

PARKED_FACTS: st.SearchStrategy[ParkedData] = st.one_of(
    st.builds(
        SignalParked,
        st.sampled_from(IDS),
        st.just("paid"),
        st.sampled_from([b"null", b'{"cents": 100}']),
        st.sampled_from(["order", "refund"]),
        st.dictionaries(st.sampled_from(IDS), st.sampled_from(IDS), max_size=2),
        st.just(START_US),
        st.booleans(),
        st.just("me"),
        st.none() | st.just("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ),
    st.builds(SignalOffered, st.sampled_from(IDS)),
    st.builds(SignalReturned, st.sampled_from(IDS), st.just("over")),
    st.builds(SignalUnparked, st.sampled_from(IDS)),
    st.builds(ParkedDiscarded, st.sampled_from(IDS), st.none()),
    st.just(Unreadable("gasoline.signal.moved.v1", "unknown")),
)


@given(
    st.lists(
        st.tuples(st.sampled_from(IDS), st.sampled_from(["next", "next", "next", "first", "gap"]), PARKED_FACTS)
        | FATES,
        max_size=50,
    )
)
def test_parked_signals_are_the_same_whatever_was_stored_when(script: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch, store() as kept:
        patch.setattr("projections.parked.ENDED_REMEMBERED", 2)
        patch.setattr("projections.parked.ENDED_REMEMBERED_US", 3)
        fresh, view = ParkedView(), kept.beside().parked
        told: list[tuple[int, ParkedEvent]] = []
        seqs: dict[str, int] = {}
        offset = 0
        for step in script:
            if step == "died":
                view = kept.beside().parked
                kept.load(view)
                for at, event in told[view.next_offset :]:
                    view.apply(at, event)
            elif isinstance(step, str):
                kept.save(view, step)
            else:
                its_id, order, data = step
                before = seqs.get(its_id, 0)
                seqs[its_id] = {"next": before + 1, "first": 1, "gap": before + 2}[order]
                event = ParkedEvent(its_id, seqs[its_id], START_US + offset, "paid", 0, 1, "w", data)
                for one in (fresh, view):
                    one.apply(offset, event)
                told.append((offset, event))
                offset += 1
        assert _parked(view) == _parked(fresh)
        kept.save(view, "stored")
        again = kept.beside().parked
        kept.load(again)
        assert _parked(again) == _parked(fresh)


def _parked(view: ParkedView) -> Any:
    return (
        {one.id: (view.since(one.id), _plain(one)) for one in view},
        [one.id for one in view.live()],
        list(view._ended.items()),
        {
            (name, tag, value): [one.id for one in view.waiting_for(name, {tag: value})]
            for name in ("order", "refund")
            for tag in IDS
            for value in IDS
        },
    )


# --- sequences --------------------------------------------------------------------------------------------------------

COMMANDS: st.SearchStrategy[tuple[str, Any]] = st.one_of(
    st.tuples(
        st.sampled_from(SEQUENCES),
        st.lists(st.tuples(st.sampled_from(IDS), st.integers(1, 3), st.sampled_from(KINDS)), min_size=1, max_size=4),
    ),
    st.tuples(
        st.just("decisions"),
        st.lists(
            st.tuples(st.sampled_from(KINDS), st.lists(st.sampled_from(IDS), max_size=3).map(tuple)),
            min_size=1,
            max_size=4,
        ),
    ),
    st.tuples(
        st.just("tracking"), st.lists(st.tuples(st.sampled_from(IDS), st.integers(1, 9)), min_size=1, max_size=1)
    ),
)


class Application:
    """What was stored, as records, and whatever can be asked of it."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._ends: dict[str, int] = {}
        self._versions: dict[tuple[str, str], int] = {}
        self._envelope = StoredEnvelope("default", 0, 1, "w")

    def store(self, sequence: str, what: list[Any]) -> None:
        events: list[StoredData] = []
        for one in what:
            match sequence:
                case "decisions":
                    events.append(DecisionStored(one[0], one[1], b'"state":1'))
                case "tracking":
                    events.append(TrackingStored(*one))
                case _:
                    originator, step, kind = one
                    version = self._versions[sequence, originator] = (
                        self._versions.get((sequence, originator), 0) + step
                    )
                    events.append(EventStored(originator, False, version, kind, b'"state":1'))
        first = self._ends.get(sequence, 0) + 1
        self._ends[sequence] = first + len(events) - 1
        ((held, line),) = self._envelope.encode(Stored(sequence, first, START_US, "r", events))
        at = len(self.records)
        self.records.append(Record("default.stored", 0, Offset(at), held.key, line, START_US, place=at * 100))

    def answers(self, view: StoredView) -> Any:
        """Return all that can be asked."""
        found: list[Any] = [view.next_offset, view.unreadable]
        for sequence in [*SEQUENCES, "decisions", "tracking", "none"]:
            last = view.end(sequence)
            found.append(last)
            found.append(view.located(sequence, range(1, last + 1)) if last else None)
            found += [
                view.located(sequence, picked) for picked in (range(1, last + 1, 9), range(2, last + 1, 3)) if picked
            ]
            for start in range(0, last + 2, 2):
                for stop in (None, last // 2, last + 5):
                    found.append(view.of_kinds(sequence, [], start, stop, 3))
                    found.append(view.of_kinds(sequence, ["paid", "closed", "paid", "no"], start, stop, 4))
        for sequence in SEQUENCES:
            for originator in [*IDS, "none"]:
                for above, up_to, newest, limit in (
                    (None, None, False, None),
                    (2, None, False, 2),
                    (None, 4, True, None),
                    (1, 6, True, 1),
                    (1, 6, False, 2),
                ):
                    found.append(
                        view.of_originator(sequence, originator, above, up_to, newest_first=newest, limit=limit)
                    )
                found.append([view.first_known(sequence, originator, (version,)) for version in range(12)])
                found.append(view.first_known(sequence, originator, ()))
        items = [
            (),
            (((), ()),),
            ((("paid",), ()),),
            (((), ("a",)),),
            ((("paid", "opened", "no"), ("b", "a")),),
            (((), ("a", "b", "c")), (("closed",), ())),
            (((), ("a", "none")),),
        ]
        for one in items:
            for after, limit in ((-1, None), (0, None), (3, 1), (5, 2)):
                found.append(view.matching("decisions", Query(one), after, limit))
        found.append([view.tracked(application) for application in [*IDS, "none"]])
        return found


@given(st.lists(COMMANDS | st.sampled_from(["stored", "failed", "died", "read elsewhere"]), max_size=30))
def test_sequences_answer_the_same_whatever_is_stored_when(script: list[Any]) -> None:
    """One process writes and stores; another only reads, and lets go of what the first has stored."""
    with store() as kept:
        application = Application()
        view, reader = kept.beside().stored, kept.beside().stored
        for step in script:
            if isinstance(step, tuple):
                sequence, what = cast(tuple[str, list[Any]], step)
                application.store(sequence, what)
                view.fold(application.records[view.next_offset :])
                continue
            match step:
                case "died":
                    view = kept.beside().stored
                    kept.load(view)
                    view.fold(application.records[view.next_offset :])
                case "read elsewhere":
                    reader.fold(application.records[reader.next_offset :])
                    reader.saved_elsewhere(kept.stands)
                case _:
                    kept.save(view, step)
            assert application.answers(reader) == application.answers(_fresh(application, reader.next_offset))
        assert application.answers(view) == application.answers(_fresh(application, len(application.records)))
        kept.save(view, "stored")
        assert view.unsaved == 0
        assert application.answers(view) == application.answers(_fresh(application, len(application.records)))


def _fresh(application: Application, stop: int) -> StoredView:
    view = StoredView()
    view.fold(application.records[:stop])
    return view


def test_what_is_stored_is_not_in_memory() -> None:
    with store() as kept:
        application, view = Application(), kept.beside().stored
        for number in range(200):
            application.store("events", [(f"{number}", 1, "paid")])
        view.fold(application.records)
        assert view.unsaved == 200
        kept.save(view, "stored")
        assert view.unsaved == 0
        assert not view._sequences
        application.store("events", [("199", 1, "paid")])
        view.fold(application.records[200:])
        assert view.of_originator("events", "199", None, None, newest_first=False, limit=None) == [200, 201]


def test_behind_an_event_that_does_not_read_nothing_is_stored_and_a_newer_version_goes_on_there() -> None:
    """0030: numbers behind it could be wrong."""
    with store() as kept:
        application, view = Application(), kept.beside().stored
        application.store("events", [("a", 1, "paid")])
        application.store("events", [("a", 1, "paid")])
        application.store("events", [("a", 1, "paid")])
        known = application.records[1]
        assert known.value is not None
        application.records[1] = replace(known, value=known.value.replace(b"events.stored.v1", b"events.stored.v2"))
        view.fold(application.records)
        assert view.unreadable is not None
        kept.save(view, "stored")
        assert kept.stands == 1
        newer = kept.beside().stored
        kept.load(newer)
        assert newer.unreadable is None
        application.records[1] = known
        newer.fold(application.records[newer.next_offset :])
        assert application.answers(newer) == application.answers(_fresh(application, 3))


# --- the registry -----------------------------------------------------------------------------------------------------


def test_of_each_worker_the_newest_word_counts_in_whatever_partition_it_was_said() -> None:
    with store() as kept:
        said = Announced("w1", "2026-01-01T00:00:00.000000Z", "1", ("order",), ("charge", "ship"))
        script = [(0, "w1", 1, said.json()), (0, "w2", 2, said.json()), (1, "w1", 3, None), (1, "w3", 3, b"{")]
        for partition, worker, time_us, value in script:
            view = RegistryView(kept=True)
            key = announced_as(worker)
            view.fold([
                Record("default.registry", partition, Offset(0), "inbox/0", b"{}", 0),
                Record("default.registry", partition, Offset(1), key, value, time_us),
            ])  # fmt: skip
            assert (view.next_offset, view.unsaved) == (2, 1)
            kept.tables.write(partition, view.changes())
        (standing, (worker, time_us, problem)) = kept.tables.announced.standing()
        assert standing == ("w2", 2, said)
        assert (worker, time_us) == ("w3", 3)
        assert isinstance(problem, str)
        rows = kept.db.execute("SELECT kind, name, worker FROM definitions ORDER BY 1, 2").fetchall()
        assert rows == [("activity", "charge", "w2"), ("activity", "ship", "w2"), ("workflow", "order", "w2")]
