"""`gasoline replay-check`: what would diverge is found, the advice mends it, and nothing is done (semantics.md §3, §4)."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import Gasoline
from tests.cli.histories import Order, waiting
from tests.cli.mixed import Go, mixed, sub
from tests.cli.recorded import HEAD, RELEASED, Recorded, by_kind, check, dumped, record, release, rewritten
from tests.cli.terminal import invoke, plain, run, run_on_terminal

SHIP, FLOW, DONE, DIED, LOOPED = (RELEASED[name] for name in ("ship", "flow", "done", "died", "looped"))
WEIGH = "    await ctx.activity(weigh, parcel)\n"
LABEL = "    await ctx.activity(label, parcel)\n"
JOIN = "    await ctx.join(ctx.activity(weigh, parcel), ctx.activity(label, parcel))\n"
RACE = "    await ctx.race(ctx.activity(insure, parcel), ctx.sleep(3600))\n"
ARRIVED = "    await ctx.listen(Arrived)\n"


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A log that nobody may change."""
    return record(tmp_path_factory.mktemp("recorded"))


@dataclass(frozen=True)
class Planted:
    """A change of a workflow's body (or of the head) that old histories do not survive, and the change as advised."""

    name: str
    body: str
    at: str
    recorded: str
    found: str
    fix: str
    mended: str
    kind: str = "diverged"
    head: str = HEAD
    mended_head: str = HEAD


PLANTED = {
    "a renamed activity": Planted(
        "ship", SHIP, "{2}", "activity 'label' at {2}", "activity 'print_label'", "@activity(name='label')", SHIP,
        head=rewritten(HEAD, ("@activity\nasync def label", "@activity(name='print_label')\nasync def label")),
    ),
    "a removed step": Planted(
        "ship", rewritten(SHIP, (WEIGH, "")), "{1}", "activity 'weigh' at {1}", "activity 'label'",
        "await ctx.removed('activity', 'weigh')", rewritten(SHIP, (WEIGH, "    await ctx.removed('activity', 'weigh')\n")),
    ),
    "an inserted step": Planted(
        "ship", rewritten(SHIP, (LABEL, "    await ctx.activity(insure, parcel)\n" + LABEL)), "{2}",
        "activity 'label' at {2}", "activity 'insure'", "ctx.v(2).activity(…)",
        rewritten(SHIP, (LABEL, "    await ctx.v(2).activity(insure, parcel)\n" + LABEL)),
    ),
    "reordered steps": Planted(
        "ship", rewritten(SHIP, (WEIGH + LABEL, LABEL + WEIGH)), "{1}", "activity 'weigh' at {1}", "activity 'label'",
        "ctx.check_version(2) >= 2",
        rewritten(SHIP, (WEIGH + LABEL, "    if await ctx.check_version(2) >= 2:\n    " + LABEL + "    " + WEIGH
                         + "    else:\n    " + WEIGH + "    " + LABEL)),
    ),
    "another kind of step": Planted(
        "ship", rewritten(SHIP, (WEIGH, "    await ctx.sleep(1)\n")), "{1}", "activity 'weigh' at {1}", "sleep",
        "await ctx.v(2).sleep(…)",
        rewritten(SHIP, (WEIGH, "    await ctx.removed('activity', 'weigh')\n    await ctx.v(2).sleep(1)\n")),
    ),
    "other names of signals": Planted(
        "ship", rewritten(SHIP, (ARRIVED, "    await ctx.listen(Lost)\n")), "{3}", "signal 'arrived'", "listen for lost",
        "Listen for 'arrived' here again", rewritten(SHIP, (ARRIVED, "    await ctx.listen(Lost, Arrived)\n")),
    ),
    "an activity's output that no longer reads": Planted(
        "ship", SHIP, "{1}", "output of 'weigh'", "ctx.activity", "a default or a validator that reads the old form", SHIP,
        head=rewritten(HEAD, ("-> int:\n    called()\n    return 3", "-> list[int]:\n    called()\n    return [3]")),
        mended_head=rewritten(HEAD, (") -> int:\n    called()", ") -> list[int] | int:\n    called()")),
    ),
    "an input that no longer reads": Planted(
        "ship", rewritten(SHIP, ("parcel: str", "parcel: State")), "{}", "the input", "workflow ship",
        "a default or a validator that reads the old form", rewritten(SHIP, ("parcel: str", "parcel: State | str")),
    ),
    "a version taken back": Planted(
        "died", rewritten(DIED, (WEIGH, "    await ctx.sleep(0)\n" + WEIGH)), "{1}", "activity 'weigh' at {1}", "sleep",
        "ctx.v(2).sleep(…)", rewritten(DIED, (WEIGH, "    await ctx.v(2).sleep(0)\n" + WEIGH)),
    ),
    "a closure that became its steps": Planted(
        "flow", rewritten(FLOW, ("    await ctx.closure(packing)\n", "    await packing(ctx)\n")), "{1}", "closure at {1}",
        "activity 'weigh'", "await ctx.removed('join')",
        rewritten(FLOW, ("    await ctx.closure(packing)\n",
                         "    await ctx.removed('join')\n    await ctx.v(2).activity(weigh, 'box')\n")),
    ),
    "a join in another order": Planted(
        "flow", rewritten(FLOW, (JOIN, "    await ctx.join(ctx.activity(label, parcel), ctx.activity(weigh, parcel))\n")),
        "{2}", "activity 'weigh' at {2}", "activity 'label'", "ctx.check_version(2) >= 2",
        rewritten(FLOW, (JOIN, "    if await ctx.check_version(2) >= 2:\n        await ctx.join(ctx.activity(label, parcel), "
                         "ctx.activity(weigh, parcel))\n    else:\n    " + JOIN)),
    ),
    "a race in another order": Planted(
        "flow", rewritten(FLOW, (RACE, "    await ctx.race(ctx.sleep(3600), ctx.activity(insure, parcel))\n")), "{4, 1, 1}",
        "activity 'insure' at {4, 1, 1}", "sleep", "ctx.check_version(2) >= 2", FLOW,
    ),
    "a race that became a step": Planted(
        "flow", rewritten(FLOW, (RACE, "    await ctx.activity(insure, parcel)\n")), "{4}", "race at {4}",
        "activity 'insure'", "await ctx.removed('race')",
        rewritten(FLOW, (RACE, "    await ctx.removed('race')\n    await ctx.v(2).activity(insure, parcel)\n")),
    ),
    "another workflow run inline": Planted(
        "flow", rewritten(FLOW, ("ctx.run(inner,", "ctx.run(other,")), "{5}", "run 'inner' at {5}", "run 'other'",
        "await ctx.removed('run', 'inner')",
        rewritten(FLOW, ("    await ctx.run(inner, parcel)\n",
                         "    await ctx.removed('run', 'inner')\n    await ctx.v(2).run(other, parcel)\n")),
    ),
    "another workflow dispatched": Planted(
        "flow", rewritten(FLOW, ("ctx.dispatch(inner,", "ctx.dispatch(other,")), "{6}", "dispatch 'inner' at {6}",
        "dispatch 'other'", "await ctx.removed('dispatch', 'inner')", FLOW,
    ),
    "a step of the iteration under way": Planted(
        "looped", LOOPED, "{1, 41, 1}", "activity 'weigh' at {1, 41, 1}", "activity 'insure'", "await ctx.v(2).activity(…)",
        LOOPED,
        head=rewritten(HEAD, ("weigh, str(state.n)", "insure, str(state.n)")),
        mended_head=rewritten(HEAD, ("    await ctx.activity(weigh, str(state.n))\n",
                                     "    await ctx.removed('activity', 'weigh')\n    await ctx.v(2).activity(insure, '')\n")),
    ),
    "a deleted tail": Planted(
        "done", rewritten(DONE, (LABEL, "")), "{2}", "activity 'label' at {2}", "the return",
        "await ctx.removed('activity', 'label')", rewritten(DONE, (LABEL, "    await ctx.removed('activity', 'label')\n")),
        kind="latent",
    ),
    "a step behind a recorded return": Planted(
        "done", rewritten(DONE, ("    return", "    await ctx.activity(insure, parcel)\n    return")), "{3}", "the return",
        "activity 'insure'", "ctx.v(2).activity(…)",
        rewritten(DONE, ("    return", "    await ctx.v(2).activity(insure, parcel)\n    return")), kind="goes_on",
    ),
    "an error where the history goes on": Planted(
        "ship", rewritten(SHIP, (LABEL, "    assert parcel == 'parcel 2'\n" + LABEL)), "", "", "", "", SHIP, kind="raises",
    ),
    "a step that is never awaited": Planted(
        "ship", rewritten(SHIP, (LABEL, LABEL.replace("await ", ""))), "", "", "", "", SHIP, kind="misused",
    ),
}  # fmt: skip


# --- what is found ----------------------------------------------------------------------------------------------------


def test_a_log_replays_in_the_code_that_wrote_it(recorded: Recorded, tmp_path: Path) -> None:
    done = check(recorded, release(tmp_path))
    assert (done.status, done.stderr) == (0, "")
    (summary,) = done.objects
    assert summary == {
        "kind": "summary", "histories": 6, "replayed": 6, "partly": 0, "diverged": 0, "warnings": 0, "unreadable": 0,
        "not_in_module": 0,
        "silenced": 0,
    }  # fmt: skip


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_a_planted_divergence_is_found_and_the_advice_mends_it(
    recorded: Recorded, tmp_path: Path, planted: Planted
) -> None:
    path = release(tmp_path / "wrong", head=planted.head, changed={planted.name: planted.body})
    done = check(recorded, path)
    assert done.status == 1
    (found,) = [one for one in by_kind(done)[planted.kind] if one["name"] == planted.name]
    assert found["workflow_id"] == recorded.ids[planted.name]
    assert found["location"] == planted.at
    assert found["recorded"] == planted.recorded
    assert planted.found in found["found"]
    assert planted.fix in found["fix"]
    assert found["file"] == str(path)
    assert 1 <= found["line"] <= len(path.read_text().splitlines())

    right = release(tmp_path / "right", head=planted.mended_head, changed={planted.name: planted.mended})
    mended = check(recorded, right)
    assert (mended.status, by_kind(mended)["summary"][0]["diverged"]) == (0, 0)


def test_a_step_only_iterations_that_are_forgotten_had_may_change(recorded: Recorded, tmp_path: Path) -> None:
    # The engine replays from the last commit too.
    head = rewritten(HEAD, ("    if state.n < 10:\n        await ctx.activity(label, str(state.n))\n", ""))
    assert check(recorded, release(tmp_path, head=head)).status == 0


def test_new_steps_beyond_the_end_of_a_history_under_way_are_no_divergence(recorded: Recorded, tmp_path: Path) -> None:
    longer = rewritten(SHIP, ("    await ctx.listen(Never)\n", "    await ctx.activity(insure, parcel)\n"))
    done = check(recorded, release(tmp_path, ship=longer))
    assert (done.status, done.objects[-1]["partly"]) == (0, 0)


def test_what_lies_behind_an_inserted_step_is_told_to_be_unchecked(recorded: Recorded, tmp_path: Path) -> None:
    inserted = rewritten(SHIP, (LABEL, "    await ctx.v(2).activity(insure, parcel)\n" + LABEL))
    done = check(recorded, release(tmp_path, ship=inserted))
    assert (done.status, done.objects[-1]["partly"]) == (0, 1)


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ([('{weight} kg"', '{weight} pounds"')], "output_differs", '"3 pounds"'),
        ([("-> str", "-> int"), ('f"{weight} kg"', "weight")], "output_type", "does not read as the type"),
    ],
)
def test_another_output_of_a_complete_workflow_is_a_warning(
    recorded: Recorded, tmp_path: Path, changes: list[tuple[str, str]], kind: str, said: str
) -> None:
    changed = rewritten(DONE, *changes)
    done = check(recorded, release(tmp_path, done=changed))
    assert done.status == 0
    (found,) = by_kind(done)[kind]
    assert (found["workflow_id"], found["recorded"]) == (recorded.ids["done"], '"3 kg"')
    assert said in found["message"]


def test_an_output_that_says_the_same_in_another_form_is_no_warning(recorded: Recorded, tmp_path: Path) -> None:
    same = rewritten(DONE, ("-> str", "-> str | None"))
    assert by_kind(check(recorded, release(tmp_path, done=same))).keys() == {"summary"}


def test_an_error_at_the_end_of_a_history_under_way_is_a_warning(recorded: Recorded, tmp_path: Path) -> None:
    raising = rewritten(SHIP, ("    await ctx.listen(Never)\n", "    raise ValueError(parcel)\n"))
    done = check(recorded, release(tmp_path, ship=raising))
    (found,) = by_kind(done)["raises_at_end"]
    assert (done.status, found["error"], found["message"]) == (0, "ValueError", "ValueError: parcel 1")


def test_a_dead_workflow_is_replayed_through_what_is_recorded(recorded: Recorded, tmp_path: Path) -> None:
    goes_on = rewritten(
        DIED, ("    return await", "    await ctx.catch(ctx.activity(refuse, parcel))\n    return await")
    )
    done = check(recorded, release(tmp_path / "1", died=goes_on))
    assert done.status == 0
    other = rewritten(DIED, ("refuse", "insure"))
    (found,) = by_kind(check(recorded, release(tmp_path / "2", died=other)))["diverged"]
    assert (found["location"], found["status"]) == ("{2}", "dead")


def test_histories_of_other_workflows_are_counted_by_name(recorded: Recorded, tmp_path: Path) -> None:
    done = check(recorded, release(tmp_path, without=("ship", "looped")))
    assert done.status == 0
    found = by_kind(done)
    assert [(one["name"], one["histories"]) for one in found["not_in_module"]] == [("looped", 1), ("ship", 1)]
    assert (found["summary"][0]["histories"], found["summary"][0]["not_in_module"]) == (4, 2)


def test_an_unreadable_history_is_named_and_fails(recorded: Recorded, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    text = recorded.events.read_text().replace("gasoline.sleep.started.v1", "gasoline.sleep.started.v2")
    events.write_text(text)
    done = invoke("replay-check", str(release(tmp_path)), "--from", str(events))
    (found, *_) = by_kind(done)["unreadable"]
    assert done.status == 1
    assert found["workflow_id"] in recorded.ids.values()
    assert "written by a newer version" in found["message"]
    gone = [
        line
        for line in recorded.events.read_text().splitlines(keepends=True)
        if f'{recorded.ids["ship"]}/2"' not in line
    ]
    events.write_text("".join(gone))
    (found,) = by_kind(invoke("replay-check", str(release(tmp_path)), "--from", str(events)))["unreadable"]
    assert (found["workflow_id"], "events are missing" in found["message"]) == (recorded.ids["ship"], True)


# --- how it is asked --------------------------------------------------------------------------------------------------


def test_an_exported_file_gives_what_the_log_gives(recorded: Recorded, tmp_path: Path) -> None:
    path = release(tmp_path, ship=PLANTED["a removed step"].body)
    by_log = check(recorded, path)
    packed = tmp_path / "events.jsonl.gz"
    packed.write_bytes(gzip.compress(recorded.events.read_bytes()))
    values = tmp_path / "values.jsonl"
    values.write_text(invoke("--log", recorded.url, "log", "dump", "--topic", "events", "--values").stdout)
    everything = tmp_path / "everything.jsonl"
    everything.write_text(invoke("--log", recorded.url, "log", "dump").stdout)
    respelled = tmp_path / "respelled.jsonl"
    respelled.write_text("".join(json.dumps(one) + "\n\n" for one in dumped(recorded.events)))
    for events in (recorded.events, packed, values, everything, respelled):
        done = invoke("replay-check", str(path), "--from", str(events))
        assert (done.status, done.objects) == (1, by_log.objects)


def test_as_many_processes_as_wanted_give_the_same(recorded: Recorded, tmp_path: Path) -> None:
    path = release(tmp_path, ship=PLANTED["a removed step"].body, done=PLANTED["a deleted tail"].body)
    one = check(recorded, path, "--jobs", "1", "--removable")
    assert len(by_kind(one)) == 3
    for asked in (("--log", recorded.url), ("--from", str(recorded.events))):
        two = run("replay-check", str(path), *asked, "--jobs", "2", "--removable")
        assert (two.status, two.stderr, two.objects) == (1, "", one.objects)
    assert not path.with_name("called").exists()


def test_a_sample_is_the_same_each_time_and_of_this_module(recorded: Recorded, tmp_path: Path) -> None:
    path = release(tmp_path, without=("ship",))
    sampled = [check(recorded, path, "--sample", "2").objects for _ in range(2)]
    assert sampled[0] == sampled[1]
    assert (sampled[0][-1]["histories"], sampled[0][-1]["replayed"]) == (2, 2)
    two = run("--log", recorded.url, "replay-check", str(path), "--sample", "2", "--jobs", "2")
    assert two.objects == sampled[0]
    assert check(recorded, path, "--sample", "100").objects[-1]["histories"] == 5


def test_a_module_may_be_named_as_it_is_imported_and_by_workflows(recorded: Recorded, tmp_path: Path) -> None:
    path = release(tmp_path, ship=PLANTED["a removed step"].body)
    done = run("--log", recorded.url, "replay-check", "shop:done", PYTHONPATH=f"{tmp_path}:{':'.join(sys.path)}")
    assert (done.status, done.stderr, done.objects[-1]["histories"]) == (0, "", 1)
    only = check(recorded, path.with_name("shop.py"), "--json")
    assert only.status == 1
    chosen = invoke("replay-check", f"{path}:done,flow", "--log", recorded.url)
    assert (chosen.status, chosen.objects[-1]["histories"]) == (0, 2)


@pytest.mark.parametrize(
    ("module", "options", "told"),
    [
        ("no.such.module", [], "there is no module 'no.such.module' here or among what is installed"),
        ("not a name", [], "'not a name' is no module"),
        ("FOLDER/none.py", [], "none.py cannot be read: No such file or directory"),
        ("FOLDER/broken.py", [], "broken.py cannot be loaded: NameError: name 'nothing' is not defined"),
        ("FOLDER/empty.py", [], "there is no workflow in"),
        ("FOLDER/twice.py", [], "two workflows have the name 'ship'"),
        ("FOLDER/shop.py:lost", [], "there is no workflow 'lost' in"),
        ("FOLDER/shop.py:", [], "names no code"),
        ("FOLDER/shop.py", ["--log", "URL", "--from", "EVENTS"], "give the histories by --log or by --from, not by both"),
        ("FOLDER/shop.py", ["--from", "FOLDER/nothing.jsonl"], "there is no such file"),
        ("FOLDER/shop.py", ["--log", "URL", "--sample", "1", "--removable"], "cannot go with --sample"),
        ("FOLDER/shop.py", ["--log", "URL", "--sample", "1", "--incomplete"], "cannot go with --sample"),
        ("FOLDER/shop.py", ["--log", "URL", "--jobs", "0"], "--jobs"),
        ("FOLDER/shop.py", [], "no log was given"),
    ],
)  # fmt: skip
def test_misuse_is_one_line_and_status_2(
    recorded: Recorded, tmp_path: Path, module: str, options: list[str], told: str
) -> None:
    release(tmp_path)
    (tmp_path / "broken.py").write_text("nothing\n")
    (tmp_path / "empty.py").write_text("x = 1\n")
    (tmp_path / "twice.py").write_text(HEAD + SHIP + "old = ship\n" + SHIP)

    def filled(text: str) -> str:
        return (
            text.replace("FOLDER", str(tmp_path)).replace("URL", recorded.url).replace("EVENTS", str(recorded.events))
        )

    if not options and module != "FOLDER/shop.py":
        options = ["--log", "URL"]
    done = invoke("replay-check", filled(module), *map(filled, options))
    assert (done.status, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert told in done.stderr


def test_what_is_no_record_in_a_file_is_named_and_the_rest_is_checked(recorded: Recorded, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    events.write_bytes(b'{"topic":\n' + recorded.events.read_bytes())
    done = invoke("replay-check", str(release(tmp_path)), "--from", str(events))
    assert (done.status, done.objects[-1]["replayed"]) == (1, 6)
    assert "events.jsonl, line 1: it is no record" in done.stderr
    torn = tmp_path / "torn.jsonl.gz"
    torn.write_bytes(gzip.compress(recorded.events.read_bytes())[:-30])
    assert "torn.jsonl.gz, line" in invoke("replay-check", str(release(tmp_path)), "--from", str(torn)).stderr


# --- how it answers ---------------------------------------------------------------------------------------------------


def test_every_finding_is_one_object_with_the_documented_keys(recorded: Recorded, tmp_path: Path) -> None:
    path = release(tmp_path, ship=PLANTED["a removed step"].body, without=("looped",))
    done = check(recorded, path, "--json", "--removable")
    found = by_kind(done)
    assert list(found["diverged"][0]) == [
        "kind", "workflow_id", "name", "status", "error", "location", "recorded", "found", "file", "line", "fix", "message",
    ]  # fmt: skip
    assert found["diverged"][0]["error"] == "HistoryDiverged"
    shown = invoke("replay-check", "--help").stdout.partition("JSON,")[2]
    for one in done.objects:
        for key in one:
            assert key in shown


def test_text_groups_what_has_one_cause(recorded: Recorded, tmp_path: Path) -> None:
    path = release(tmp_path, ship=PLANTED["a removed step"].body, without=("looped",))
    events = tmp_path / "events.jsonl"
    text = recorded.events.read_text()
    events.write_text(
        "".join(text.replace(recorded.ids["ship"], recorded.ids["ship"][:-2] + f"{n:02x}") for n in range(8))
    )
    done = invoke("replay-check", str(path), "--from", str(events), "--text")
    assert done.status == 1
    assert done.stdout.count("diverged  ship, 8 histories") == 1
    assert "at         {1}" in done.stdout
    assert "code has   activity 'label'" in done.stdout
    assert "… and 3 more; --json names all" in done.stdout
    assert "not in module: 1 history of looped" in done.stdout or "looped" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_a_terminal_sees_the_progress_and_a_verdict(recorded: Recorded, tmp_path: Path) -> None:
    shown = run_on_terminal("--log", recorded.url, "replay-check", str(release(tmp_path)), stderr=True)
    assert shown.status == 0
    assert "replaying" in plain(shown.stdout)
    assert "6 of 6 histories replay" in plain(shown.stdout)


# --- that nothing is done ---------------------------------------------------------------------------------------------


def test_nothing_is_written_and_a_log_that_cannot_be_written_will_do(recorded: Recorded, tmp_path: Path) -> None:
    copied = tmp_path / "log"
    shutil.copytree(recorded.directory, copied, symlinks=True)
    path = release(tmp_path / "code")
    before = contents(tmp_path)
    places = [copied, *copied.rglob("*"), path, path.parent]
    for place in places:
        place.chmod(0o555 if place.is_dir() else 0o444)
    try:
        assert invoke("--log", f"file:{copied}", "replay-check", str(path)).status == 0
    finally:
        for place in places:
            place.chmod(0o755 if place.is_dir() else 0o644)
    assert contents(tmp_path) == before


def test_what_the_code_prints_does_not_get_among_the_answers(recorded: Recorded, tmp_path: Path) -> None:
    path = release(
        tmp_path, done=rewritten(DONE, (LABEL, "    print('noise')\n" + LABEL)), head=HEAD + "print('loading')\n"
    )
    done = run("--log", recorded.url, "replay-check", str(path))
    assert (done.status, len(done.objects)) == (0, 1)
    assert "noise" in done.stderr


async def test_it_works_beside_a_running_worker(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("from tests.cli.histories import waiting\n")
    url = f"file:{tmp_path}/log"
    async with Gasoline.open(url, partitions=2) as gasoline, gasoline.worker([waiting]):
        await gasoline.dispatch(waiting, Order(order="1"))
        done = await asyncio.to_thread(run, "--log", url, "replay-check", str(tmp_path / "code.py"))
        assert (done.status, done.stderr, done.objects[-1]["replayed"]) == (0, "", 1)
        await gasoline.dispatch(waiting, Order(order="2"))
        done = await asyncio.to_thread(run, "--log", url, "replay-check", str(tmp_path / "code.py"))
        assert done.objects[-1]["replayed"] == 2


def contents(folder: Path) -> dict[str, Any]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


async def test_whatever_the_engine_recorded_by_any_moment_replays_in_its_own_code(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/log"
    async with Gasoline.open(url, partitions=2) as gasoline, gasoline.worker([mixed, sub]):
        first = random.randrange(1_000_000)
        handles = [await gasoline.dispatch(mixed, number) for number in range(first, first + 60)]
        for handle in handles[::3]:
            await gasoline.signal(Go(), mixed, graceful_not_found=True)
            await handle.get()
        await asyncio.sleep(random.random())  # stopped anywhere
    done = await asyncio.to_thread(invoke, "--log", url, "replay-check", "tests.cli.mixed", "--removable")
    summary = done.objects[-1]
    assert (done.status, summary["partly"], summary["unsure"], summary["warnings"]) == (0, 0, 0, 0), (first, done)
    assert summary["replayed"] == summary["histories"] >= 60
