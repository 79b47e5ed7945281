"""`gasoline workflow history` of branches, races and loops: nested by location, and readable however long (§2, §4)."""

from __future__ import annotations

import pytest

from gasoline_es.cli.output import Output
from gasoline_es.cli.tree import fold, show
from gasoline_es.core import events as ev
from gasoline_es.core.events import Event, EventData
from gasoline_es.core.location import Location
from tests.cli.flows import Flows, tell
from tests.cli.terminal import invoke, jq, settled


@pytest.fixture(scope="session")
def flows(tmp_path_factory: pytest.TempPathFactory) -> Flows:
    """A log that nobody may change."""
    return tell(tmp_path_factory.mktemp("flows") / "log")


def tree(flows: Flows, workflow_id: str, *options: str) -> str:
    done = invoke("--log", f"file:{flows.directory}", "workflow", "history", workflow_id, "--text", *options)
    assert (done.status, done.stderr) == (0, "")
    return settled(done.stdout)


def test_history_shows_branches_and_races_with_what_happened_in_them(flows: Flows) -> None:
    assert tree(flows, flows.branching) == BRANCHING


def test_history_of_a_loop_shows_its_last_iterations_and_counts_the_others(flows: Flows) -> None:
    assert tree(flows, flows.looped) == LOOPED


def test_history_of_a_waiting_loop_tells_what_replay_has_forgotten_and_what_not(flows: Flows) -> None:
    assert tree(flows, flows.waiting) == WAITING


def test_history_shows_every_iteration_and_every_commit_when_asked_to(flows: Flows) -> None:
    lines = tree(flows, flows.looped, "--full").splitlines()
    assert [f"{{1, {number}}} iteration  forgotten by replay" in "\n".join(lines) for number in range(1, 11)] == 10 * [
        True
    ]
    loop = lines[lines.index(next(line for line in lines if "{1} loop" in line)) :]
    assert loop[:10] == [
        "├── {1} loop  over after 10 iterations <time>",
        "│   ├── started  <time>",
        '│   │   └── state:  {"rounds":0}',
        "│   ├── committed up to iteration 4  <time>",
        '│   │   └── state:  {"rounds":4}',
        "│   ├── committed up to iteration 8  <time>",
        '│   │   └── state:  {"rounds":8}',
        "│   ├── committed up to iteration 10  <time>",
        '│   │   └── state:  {"rounds":9}',
        "│   ├── output:  9",
    ]


def test_history_as_json_gives_what_is_below_a_step_by_its_location(flows: Flows) -> None:
    text = invoke("--log", f"file:{flows.directory}", "workflow", "history", flows.branching).stdout
    below = jq('select(.data.location // "" | startswith("{4, ")) | [.data.location, .type]', text)
    assert sorted(below) == [
        ["{4, 1, 1}", "gasoline.sleep.started.v1"],
        ["{4, 2, 1, 1}", "gasoline.activity.completed.v1"],
        ["{4, 2, 1}", "gasoline.branch.opened.v1"],
    ]
    assert jq('select(.type == "gasoline.race.decided.v1") | .data.winner', text) == [1, None]
    text = invoke("--log", f"file:{flows.directory}", "workflow", "history", flows.looped).stdout
    commits = jq(
        'select(.type == "gasoline.loop.committed.v1") | [.data.location, .data.iteration, .data.output]', text
    )
    assert [commit for commit in commits if commit[0] == "{1}"] == [
        ["{1}", 0, None], ["{1}", 4, None], ["{1}", 8, None], ["{1}", 10, 9],
    ]  # fmt: skip


def test_history_of_a_loop_of_any_length_takes_a_few_lines() -> None:
    """What ten thousand iterations recorded, with the workflow suspended in each."""
    loop: Location = ((1,),)
    told: list[EventData] = [ev.WorkflowDispatched("sync", b"1", {}), ev.LoopCommitted(loop, 1, 0, b'{"n":0}')]
    for number in range(1, 10_001):
        told.append(ev.WorkflowSuspended(signals=("round",)))
        told.append(ev.ActivityCompleted((*loop, (number,), (1,)), 1, "weigh", 1, 0, b"1", b"1"))
        if number % 20 == 0:
            told.append(ev.LoopCommitted(loop, 1, number, b'{"n":1}'))
    events = [Event("id", seq, 0, "sync", "ray", 0, 1, "worker", data) for seq, data in enumerate(told, start=1)]
    (step,) = fold(events).root.steps.values()
    assert step.count() == len(told) - 1
    assert len(step.steps) == 10_000
    # Each suspension stands behind the iteration before it, the first one in the loop itself.
    assert [len(below.after) for below in list(step.steps.values())[:3]] == [1, 1, 1]


def test_a_step_of_a_join_that_is_not_answered_yet_is_shown_in_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[EventData] = [
        ev.WorkflowDispatched("sync", b"1", {}),
        ev.StepPlaced(((1,),), 1, "activity", "weigh"),
        ev.StepPlaced(((2,),), 1, "listen"),
        ev.ActivityCompleted(((1,),), 1, "weigh", 1, 0, b"1", b"3"),
        ev.WorkflowSuspended(signals=("round",)),
    ]
    events = [Event("id", seq, 0, "sync", "ray", 0, 1, "worker", data) for seq, data in enumerate(told, start=1)]
    show(events, Output(False), full=False)
    assert settled(capsys.readouterr().out).splitlines()[3:] == [
        "├── {1} activity weigh  <time>, took <s>",
        "│   ├── input:  1",
        "│   └── output:  3",
        "└── {2} listen  since <time>",
        "    └── suspended  <time>, waits for signal round",
    ]


def test_steps_that_have_to_do_with_other_workflows_tell_which(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[EventData] = [
        ev.WorkflowDispatched("sync", b"1", {}),
        ev.WorkflowSpawned(((1,),), 1, "01a2", "ship", {"order": "42"}),
        ev.WorkflowSpawned(((2,),), 2, "01a3", "ship", {}, unique=True, created=False),
        ev.SignalSent(((3,),), 1, "s-1", "paid", b'{"amount":9}', "01a2"),
        ev.SignalSent(((4,),), 1, "s-2", "paid", b'{"amount":9}', None),
        ev.OutputReceived(((5,),), 1, "01a2", "ship", b'"shipped"'),
        ev.OutputReceived(((6,),), 1, "01a9", "ship", error=ev.ErrorInfo("WorkflowNotFound", "no\x1b[31m such")),
        ev.MessageSent(((7,),), 1, "moved", {"map": "a\x1b[31m"}, b'{"x":1}'),
        ev.MessageSent(((8,),), 2, "moved", {}, b'{"x":2}'),
    ]
    events = [Event("id", seq, 0, "sync", "ray", 0, 1, "worker", data) for seq, data in enumerate(told, start=1)]
    show(events, Output(False), full=False)
    assert settled(capsys.readouterr().out).splitlines()[3:] == [
        "├── {1} dispatch ship  <time>",
        "│   ├── id:  01a2",
        "│   └── tags:  order=42",
        "├── {2} dispatch ship v2  <time>, which was there",
        "│   └── id:  01a3",
        "├── {3} signal paid  <time>",
        "│   ├── to:  01a2",
        "│   ├── id:  s-1",
        '│   └── body:  {"amount":9}',
        "├── {4} signal paid  there was nobody to take it",
        "│   ├── id:  s-2",
        '│   └── body:  {"amount":9}',
        "├── {5} output ship  <time>",
        "│   ├── of:  01a2",
        '│   └── output:  "shipped"',
        "├── {6} output ship  <time>",
        "│   ├── of:  01a9",
        "│   └── error:  WorkflowNotFound: no\\x1b[31m such",
        "├── {7} message moved  <time>",
        "│   ├── topic:  map=a\\x1b[31m",
        '│   └── body:  {"x":1}',
        "└── {8} message moved v2  <time>",
        '    └── body:  {"x":2}',
    ]


def test_a_race_that_was_cancelled_is_not_one_that_failed(capsys: pytest.CaptureFixture[str]) -> None:
    """semantics.md §12: a race in which all ended and one was cancelled gives the cancel."""
    told: list[EventData] = [
        ev.WorkflowDispatched("sync", b"1", {}),
        ev.BranchOpened(((1,),), 1, "race"),
        ev.WorkflowCancelRequested("operator"),
        ev.StepInterrupted(((1,), (1,), (1,)), 1, "listen"),
        ev.StepInterrupted(((1,), (2,), (1,)), 1, "sleep"),
        ev.RaceDecided(((1,),), None, b"null"),
    ]
    events = [Event("id", seq, 0, "sync", "ray", 0, 1, "worker", data) for seq, data in enumerate(told, start=1)]
    show(events, Output(False), full=False)
    assert "{1} race  cancelled <time>" in settled(capsys.readouterr().out)


def test_changed_tags_and_the_answers_of_version_checks_are_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[EventData] = [
        ev.WorkflowDispatched("sync", b"1", {"order": "42"}),
        ev.VersionChecked(((1,),), 2, 1),
        ev.WorkflowTagsUpdated({"order": "42", "stage": "packed\x1b[31m"}),
        ev.ActivityCompleted(((2,),), 1, "pack", 1, 0, b"1", b"3"),
        ev.WorkflowTagsUpdated({}),
    ]
    events = [Event("id", seq, 0, "sync", "ray", 0, 1, "worker", data) for seq, data in enumerate(told, start=1)]
    show(events, Output(False), full=False)
    assert settled(capsys.readouterr().out).splitlines()[4:] == [
        "├── {1} check_version answers 1 v2  <time>",
        "├── tags  <time>",
        "│   └── now:  order=42 stage=packed\\x1b[31m",
        "├── {2} activity pack  <time>, took <s>",
        "│   ├── input:  1",
        "│   └── output:  3",
        "└── tags  <time>",
        "    └── now:  none",
    ]


def test_a_damaged_history_whose_loop_has_no_start_is_shown_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[EventData] = [
        ev.RaceDecided(((1,),), 0, b"1"),
        ev.LoopCommitted(((2,),), 1, 7, b"null"),
        ev.SleepStarted(((3,), (1,), (1,)), 1, 5),
    ]
    events = [Event("id", seq, 0, "sync", "ray", 0, 1, "worker", data) for seq, data in enumerate(told, start=1)]
    for full in (False, True):
        show(events, Output(False), full=full)
    shown = capsys.readouterr().out
    assert "{2} loop  7 iterations committed" in shown
    assert "{3, 1, 1} sleep" in shown


BRANCHING = """\
branching <id>  complete
├── dispatched  <time>
│   └── input:  "tea"
├── {1} closure  <time>
│   └── {1, 1} activity weigh  <time>, took <s>
│       ├── input:  "tea"
│       └── output:  3
├── {2} run label  <time>
│   └── {2, 1} activity weigh  <time>, took <s>
│       ├── input:  "tea"
│       └── output:  3
├── {3} activity weigh v2  <time>, took <s>
│   ├── input:  "tea"
│   └── output:  3
├── {4} race  competitor 1 won <time>
│   ├── started  <time>
│   ├── value:  3
│   ├── {4, 1} competitor 0  lost
│   │   └── {4, 1, 1} sleep  until <time>
│   │       └── started  <time>
│   └── {4, 2} competitor 1  won
│       └── {4, 2, 1} run label  <time>
│           └── {4, 2, 1, 1} activity weigh  <time>, took <s>
│               ├── input:  "tea"
│               └── output:  3
├── {5} race  every competitor failed <time>
│   ├── started  <time>
│   ├── {5, 1} competitor 0
│   │   └── {5, 1, 1} activity ask  failed for good after 1 attempt
│   │       ├── attempt 1 failed  ConnectionError: North is closed
│   │       │   └── <time>, after <s>; no more
│   │       └── input:  "North"
│   └── {5, 2} competitor 1
│       └── {5, 2, 1} activity ask  failed for good after 1 attempt
│           ├── attempt 1 failed  ConnectionError: South is closed
│           │   └── <time>, after <s>; no more
│           └── input:  "South"
└── completed  <time>
    └── output:  3"""

LOOPED = """\
looping <id>  complete
├── dispatched  <time>
│   └── input:  9
├── {1} loop  over after 10 iterations <time>
│   ├── started  <time>
│   ├── state:  {"rounds":9}
│   ├── output:  9
│   ├── {1, 1} … {1, 7}  7 iterations, 7 events, forgotten by replay; --full shows them
│   ├── {1, 8} iteration  forgotten by replay
│   │   └── {1, 8, 1} listen  took 1 signal <time>
│   │       └── signal round  received <time>
│   │           ├── id:  round-7
│   │           └── body:  {"number":7}
│   ├── {1, 9} iteration  forgotten by replay
│   │   └── {1, 9, 1} listen  took 1 signal <time>
│   │       └── signal round  received <time>
│   │           ├── id:  round-8
│   │           └── body:  {"number":8}
│   └── {1, 10} iteration  forgotten by replay
│       └── {1, 10, 1} loop  over after 1 iteration <time>
│           ├── started  <time>
│           ├── output:  null
│           └── {1, 10, 1, 1} iteration  forgotten by replay
│               └── {1, 10, 1, 1, 1} sleep  until <time>
│                   ├── started  <time>
│                   └── normal: over  <time>
└── completed  <time>
    └── output:  9"""

WAITING = """\
looping <id>  sleeping
├── dispatched  <time>
│   └── input:  1000
└── {1} loop  4 iterations committed <time>
    ├── started  <time>
    ├── state:  {"rounds":4}
    ├── {1, 1} … {1, 4}  4 iterations, 8 events, forgotten by replay; --full shows them
    ├── {1, 5} iteration
    │   └── {1, 5, 1} listen  took 1 signal <time>
    │       └── signal round  received <time>
    │           ├── id:  round-4
    │           └── body:  {"number":4}
    ├── suspended  <time>, waits for signal round
    ├── {1, 6} iteration
    │   └── {1, 6, 1} listen  took 1 signal <time>
    │       └── signal round  received <time>
    │           ├── id:  round-5
    │           └── body:  {"number":5}
    ├── suspended  <time>, waits for signal round
    ├── {1, 7} iteration
    │   └── {1, 7, 1} listen  took 1 signal <time>
    │       └── signal round  received <time>
    │           ├── id:  round-6
    │           └── body:  {"number":6}
    └── suspended  <time>, waits for signal round"""
