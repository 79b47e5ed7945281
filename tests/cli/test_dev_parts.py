"""The parts of `gasoline dev` that only decide: when to reload, what to show, what to keep (decision 0027)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasoline_es import Gasoline
from gasoline_es.cli.dev.changes import Burst, Pause, is_source
from gasoline_es.cli.dev.picture import STEPS_MAX, WITH_STEPS_MAX, Picture
from gasoline_es.cli.dev.process import LINE_CHARACTERS_MAX, LineSplitter
from gasoline_es.cli.dev.reports import LINE_BYTES_MAX, Ready, Refused, Running, UnderWay, read, running, write
from gasoline_es.cli.dev.rows import Scene, count, rows
from gasoline_es.cli.dev.tail import LogTail
from gasoline_es.cli.lines import Line
from gasoline_es.core import events as ev
from gasoline_es.core.events import Event
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Record
from tests.engine.workflows import echo

# --- when to reload ---------------------------------------------------------------------------------------------------


def test_burst_is_over_once_nothing_was_saved_for_a_while() -> None:
    burst = Burst(quiet_s=0.25, longest_s=2.0)
    assert burst.due_in(0.0) is None
    burst.add(10.0, ["a.py", "b.py"])
    assert burst.due_in(10.0) == 0.25
    burst.add(10.2, ["a.py"])
    assert burst.due_in(10.25) == pytest.approx(0.2)
    assert burst.due_in(10.5) == 0.0
    assert burst.take() == ["a.py", "b.py"]
    assert (burst.due_in(10.5), bool(burst), burst.take()) == (None, False, [])


def test_burst_that_goes_on_and_on_is_over_at_last() -> None:
    burst = Burst(quiet_s=0.25, longest_s=2.0)
    for step in range(20):
        burst.add(step * 0.1, ["a.py"])
    assert burst.due_in(1.9) == pytest.approx(0.1)
    assert burst.due_in(2.0) == 0.0
    burst.take()
    burst.add(5.0, ["a.py"])
    assert burst.due_in(5.0) == 0.25


def test_nothing_saved_is_no_burst() -> None:
    burst = Burst()
    burst.add(1.0, [])
    assert burst.due_in(9.0) is None


def test_pauses_grow_until_a_worker_lives_a_while_or_its_code_changes() -> None:
    pause = Pause(first_s=1.0, longest_s=8.0)
    assert [pause.after(0.1) for _ in range(5)] == [1.0, 2.0, 4.0, 8.0, 8.0]
    assert [pause.after(8.0), pause.after(0.1)] == [1.0, 2.0]
    pause.reset()
    assert pause.after(0.1) == 1.0


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("/w/.tox/app/shop.py", True),
        ("/w/.tox/app/shop/orders.pyi", True),
        ("/lib/part.py", True),
        ("/w/.tox/app/shop.pyc", False),
        ("/w/.tox/app/data.json", False),
        ("/w/.tox/app/.venv/x.py", False),
        ("/w/.tox/app/shop/__pycache__/x.py", False),
        ("/w/.tox/app/lib/site-packages/x.py", False),
        ("/w/.tox/app/.#shop.py", False),
        ("/w/.tox/application/shop.py", False),
        ("/elsewhere/x.py", False),
    ],
)
def test_source_counts_wherever_the_watched_directory_lies(path: str, counts: bool) -> None:
    assert is_source(path, ["/w/.tox/app", "/lib"]) is counts


def test_everything_below_the_root_directory_can_be_watched() -> None:
    assert is_source("/shop.py", ["/"])


# --- what the worker's process says -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "report",
    [
        Refused("no\nmodule ünïcode"),
        Ready(("a", "b"), 3),
        Running(),
        Running((UnderWay("id", "{1, 2}", "charge", 2, 77),), 4),
    ],
)
def test_reports_come_back(report: Refused | Ready | Running) -> None:
    line = write(report)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert read(line) == report


@pytest.mark.parametrize("line", [b"nonsense\n", b"{}\n", b"[1]\n", b'{"ready":1}\n', b'{"running":[[1]],"more":0}\n'])
def test_what_is_no_report_is_none(line: bytes) -> None:
    assert read(line) is None


@given(
    st.lists(
        st.builds(
            UnderWay, st.text(max_size=36), st.text(max_size=400), st.text(max_size=80), st.just(1), st.integers(0, 9)
        ),
        max_size=40,
    )
)
def test_attempts_are_told_in_a_line_the_kernel_takes_whole_and_the_others_counted(attempts: list[UnderWay]) -> None:
    told = running(attempts)
    assert len(write(told)) <= LINE_BYTES_MAX
    assert len(told.attempts) + told.more == len(attempts)


def test_lines_end_at_line_feeds_or_when_they_are_too_long_and_lose_nothing() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"one\ntw") == ["one"]
    assert splitter.feed(b"o\r\n\n") == ["two", ""]
    long = b"x" * (2 * LINE_CHARACTERS_MAX + 5)
    parts = [*splitter.feed(long), *splitter.end()]
    assert [len(part) for part in parts] == [LINE_CHARACTERS_MAX, LINE_CHARACTERS_MAX, 5]
    assert (splitter.feed(b"\xff\n"), splitter.end()) == (["\udcff"], [])


# --- what is kept -----------------------------------------------------------------------------------------------------


class Story:
    """Makes events, each the next of its workflow, a microsecond apart."""

    def __init__(self) -> None:
        self._seqs: dict[str, int] = {}
        self._time_us = 0

    def event(self, workflow_id: str, data: Any) -> Event:
        self._seqs[workflow_id] = seq = self._seqs.get(workflow_id, 0) + 1
        self._time_us += 1
        return Event(workflow_id, seq, self._time_us, "order", "ray", 0, 1, "worker", data)


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def picture() -> Picture:
    return Picture()


def dispatched(parent: str | None = None) -> ev.WorkflowDispatched:
    return ev.WorkflowDispatched("order", b"null", {}, parent=parent)


def charged(at: int) -> ev.ActivityCompleted:
    return ev.ActivityCompleted(((at,),), 1, "charge", 1, 0, b"1", b"2")


def failed(kind: str) -> ev.WorkflowFailed:
    return ev.WorkflowFailed(ev.ErrorInfo(kind, "why", "a long traceback"))


def test_what_is_over_is_counted_and_forgotten(picture: Picture, story: Story) -> None:
    for data in (dispatched(), charged(1), ev.WorkflowCompleted(b"1", b"null")):
        picture.add(story.event("w", data))
    assert (dict(picture.lives), dict(picture.dead), picture.steps("w")) == ({}, {}, [])
    assert +picture.counts == {"complete": 1}


def test_what_starts_over_after_its_end_is_there_again_under_its_name(picture: Picture, story: Story) -> None:
    for data in (dispatched(), charged(1), ev.WorkflowCompleted(b"1", b"null")):
        picture.add(story.event("w", data))
    rerun = ev.WorkflowRerun("op", ((1,),), 1, ((2, 3),), (), {})
    life = picture.add(story.event("w", rerun))
    assert (life.summary.name, life.summary.status) == ("order", "running")
    picture.add(story.event("w", charged(1)))
    assert +picture.counts == {"running": 1}
    assert picture.lives["w"].summary.status == "running"


@pytest.mark.parametrize(
    ("end", "counted"),
    [
        (ev.WorkflowCompleted(b"1", b"null"), "complete"),
        (ev.WorkflowCancelled(b"null"), "cancelled"),
        (ev.WorkflowSilenced("op"), "silenced"),
    ],
)
def test_what_starts_over_is_not_counted_any_more_as_what_it_had_ended_as(
    picture: Picture, story: Story, end: ev.EventData, counted: str
) -> None:
    for workflow_id in ("again", "over"):
        for data in (dispatched(), charged(1), end):
            picture.add(story.event(workflow_id, data))
    for data in (dispatched(), ev.WorkflowCompleted(b"1", b"null")):
        picture.add(story.event("other", data))
    picture.add(story.event("again", ev.WorkflowRerun("op", ((1,),), 1, ((2, 3),), (), {})))
    assert +picture.counts == Counter({"running": 1}) + Counter([counted, "complete"])


def test_what_is_pruned_is_counted_no_more_and_another_of_its_id_is(picture: Picture, story: Story) -> None:
    """semantics.md §10."""
    for workflow_id in ("gone", "kept"):
        for data in (dispatched(), ev.WorkflowCancelled(b"null")):
            picture.add(story.event(workflow_id, data))
    picture.add(story.event("kept", ev.WorkflowPruned("op", (1, 2), ev.Remains("cancelled", 5, {}))))
    assert +picture.counts == {"cancelled": 2}
    picture.add(story.event("gone", ev.WorkflowPruned("op")))
    assert +picture.counts == {"cancelled": 1}
    picture.add(story.event("gone", dispatched()))
    assert +picture.counts == {"cancelled": 1, "running": 1}


def test_counts_follow_every_change(picture: Picture, story: Story) -> None:
    for data in (dispatched(), ev.WorkflowSuspended(signals=("paid",)), failed("KeyError"), ev.WorkflowWoken("op")):
        picture.add(story.event("w", data))
        assert sum(picture.counts.values()) == 1
    assert +picture.counts == {"running": 1}


def test_of_each_workflow_the_last_steps_are_kept_and_of_each_step_the_first_event_and_the_last(
    picture: Picture, story: Story
) -> None:
    picture.add(story.event("w", dispatched()))
    for at in range(1, 9):
        for attempt in range(1, 6):
            failure = ev.ActivityFailed(((at,),), 1, "charge", attempt, 0, b"1", ev.ErrorInfo("E", ""), 9)
            picture.add(story.event("w", failure))
    steps = picture.steps("w")
    assert [location for location, _ in steps] == [((6,),), ((7,),), ((8,),)]
    assert len(steps) == STEPS_MAX
    assert [[event.data.attempt for event in events] for _, events in steps] == [[1, 5]] * 3  # type: ignore[union-attr]


def test_steps_are_kept_of_so_many_workflows_only_and_tracebacks_of_none(picture: Picture, story: Story) -> None:
    ids = [f"w{number}" for number in range(WITH_STEPS_MAX + 50)]
    for one in ids:
        picture.add(story.event(one, dispatched()))
        picture.add(story.event(one, charged(1)))
    assert [one for one in ids if picture.steps(one)] == ids[50:]
    picture.add(story.event("w0", failed("KeyError")))
    error = picture.dead["w0"].summary.error
    assert error is not None
    assert (str(error), error.traceback) == ("KeyError: why", "")


@pytest.mark.parametrize(
    ("kind", "mendable"),
    [
        ("HistoryDiverged", True),
        ("LatentHistoryFound", True),
        ("StepMisused", True),
        ("InvalidVersion", True),
        ("NotImplementedError", True),
        ("ValueError", False),
        ("ActivityMaxFailuresReached", False),
    ],
)
def test_what_code_may_mend_is_told_by_the_error(picture: Picture, story: Story, kind: str, mendable: bool) -> None:
    picture.add(story.event("w", dispatched()))
    picture.add(story.event("w", failed(kind)))
    assert list(picture.mendable()) == (["w"] if mendable else [])


def test_what_was_rolled_back_is_not_mended_by_code_until_it_starts_over(picture: Picture, story: Story) -> None:
    rollback = ev.RollbackStarted(((2,),), 1, ev.ErrorInfo("NotImplementedError", ""))
    for data in (dispatched(), rollback, failed("NotImplementedError")):
        picture.add(story.event("w", data))
    assert list(picture.mendable()) == []
    picture.add(story.event("w", ev.WorkflowRerun("op", ((1,),), 1, ((2, 3),), (), {})))
    picture.add(story.event("w", failed("NotImplementedError")))
    assert list(picture.mendable()) == ["w"]


# --- what is shown ----------------------------------------------------------------------------------------------------


def titles(lines: list[Line], depth: int = 0) -> Iterator[str]:
    for line in lines:
        yield "  " * depth + line.title
        yield from titles(line.below, depth + 1)


def shown(picture: Picture, rows_max: int, *under_way: UnderWay, registered: frozenset[str] | None = None) -> list[str]:
    lines = rows(Scene(picture, Running(under_way), 5_000_000, registered), rows_max)
    assert count(lines) <= rows_max
    return list(titles(lines))


def test_sub_workflows_stand_below_their_parents_with_steps_and_attempts(picture: Picture, story: Story) -> None:
    for one, parent in (("a", None), ("b", "a"), ("c", "b"), ("d", None)):
        picture.add(story.event(one, dispatched(parent)))
    picture.add(story.event("a", charged(1)))
    attempt = UnderWay("b", "{3}", "charge", 2, 1_000_000)
    assert shown(picture, 40, attempt) == [
        "order a",
        "  {1} activity charge",
        "  order b",
        "    {3} activity charge",
        "    order c",
        "order d",
    ]
    lines = rows(Scene(picture, Running((attempt,)), 5_000_000), 40)
    assert lines[0].below[1].below[0].rest == "attempt 2 runs for 4 s"


def test_step_that_is_under_way_again_is_shown_once(picture: Picture, story: Story) -> None:
    picture.add(story.event("a", dispatched()))
    failure = ev.ActivityFailed(((1,),), 1, "charge", 1, 0, b"1", ev.ErrorInfo("E", ""), 9)
    picture.add(story.event("a", failure))
    assert shown(picture, 40) == ["order a", "  {1} activity charge"]
    assert shown(picture, 40, UnderWay("a", "{1}", "charge", 2, 0)) == ["order a", "  {1} activity charge"]


def test_who_is_at_work_is_shown_before_who_did_something_last_and_the_others_are_counted(
    picture: Picture, story: Story
) -> None:
    for number in range(100):
        picture.add(story.event(f"w{number:02}", dispatched()))
    assert shown(picture, 5, UnderWay("w00", "{1}", "charge", 1, 0)) == [
        "order w00",
        "order w97",
        "order w98",
        "order w99",
        "… and 96 more workflows",
    ]
    (first, *_) = rows(Scene(picture, Running((UnderWay("w00", "{1}", "charge", 1, 0),)), 5_000_000), 5)
    assert first.rest == "running, {1} activity charge  attempt 1 runs for 5 s"


def test_dead_ones_take_a_part_of_the_rows_the_newest_first(picture: Picture, story: Story) -> None:
    for number in range(20):
        picture.add(story.event(f"w{number:02}", dispatched()))
        picture.add(story.event(f"w{number:02}", failed("KeyError")))
    picture.add(story.event("alive", dispatched()))
    assert shown(picture, 12) == [
        "order w19 dead",
        "order w18 dead",
        "order w17 dead",
        "… and 17 more dead workflows: gasoline workflow list --status dead shows them",
        "order alive",
    ]


def test_workflow_that_the_code_does_not_have_says_so(picture: Picture, story: Story) -> None:
    picture.add(story.event("a", dispatched()))
    (line,) = rows(Scene(picture, Running(), 0, frozenset({"other"})), 9)
    assert line.rest == "running; the code has no workflow of this name"


def test_names_and_ids_of_a_hostile_log_are_escaped(picture: Picture, story: Story) -> None:
    picture.add(story.event("a\x1b[2J\n", ev.WorkflowDispatched("or\rder", b"1", {})))
    picture.add(story.event("a\x1b[2J\n", ev.ActivityCompleted(((1,),), 1, "ch\x9barge", 1, 0, b"1", b"2")))
    told = " ".join(shown(picture, 9, UnderWay("a\x1b[2J\n", "{2}\x07", "x\x1b", 1, 0)))
    assert told.isprintable()


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 30), st.sampled_from(["new", "step", "dead", "sleep"])),
        max_size=120,
    ),
    st.integers(6, 60),
    st.lists(st.integers(0, 30), max_size=8),
)
def test_never_more_rows_than_asked_for_and_everyone_is_shown_or_counted(
    told: list[tuple[int, int, str]], rows_max: int, busy: list[int]
) -> None:
    picture, story = Picture(), Story()
    known: set[int] = set()
    for who, other, what in told:
        if who not in known:
            known.add(who)
            picture.add(story.event(f"w{who}", dispatched(f"w{other}")))
        elif what == "step":
            picture.add(story.event(f"w{who}", charged(other + 1)))
        elif what == "dead":
            picture.add(story.event(f"w{who}", failed("KeyError")))
        elif what == "sleep":
            picture.add(story.event(f"w{who}", ev.WorkflowSuspended(signals=("paid",))))
    lines = shown(picture, rows_max, *(UnderWay(f"w{who}", "{9}", "charge", 1, 0) for who in busy))
    alive = [line for line in lines if line.strip().startswith("order w") and not line.endswith(" dead")]
    (more,) = [int(line.split()[2]) for line in lines if line.startswith("… and") and "dead" not in line] or [0]
    assert len(alive) + more == len(picture.lives)
    assert len(set(alive)) == len(alive)


# --- reading the log --------------------------------------------------------------------------------------------------


async def test_tail_reads_what_is_new_and_nothing_again(tmp_log_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a look follows what changed, not the age of the log."""
    async with Gasoline.open(tmp_log_url) as gasoline:
        for number in range(30):
            await gasoline.dispatch(echo, str(number))
        log = await open_log(tmp_log_url, readonly=True)
        asked: list[Record] = []
        plain = log.read

        def counted(*arguments: Any) -> Iterator[Record]:
            for record in plain(*arguments):
                asked.append(record)
                yield record

        monkeypatch.setattr(log, "read", counted)
        tail = LogTail(log)
        assert sum(map(len, tail.poll())) == len(asked) == 30
        assert list(tail.poll()) == []
        handle = await gasoline.dispatch(echo, "new")
        await asyncio.wait_for(log.changed(), 30)
        (events,) = tail.poll()
        assert [(event.workflow_id, event.type) for event in events] == [(handle.id, "workflow.dispatched")]
        assert len(asked) == 31
        await log.close()


def test_other_commands_load_neither_the_watcher_nor_rich() -> None:
    """Each command loads what it takes: design §2."""
    code = "import sys, gasoline_es.cli.app; print([one for one in ('watchfiles', 'rich.live', 'anyio') if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
