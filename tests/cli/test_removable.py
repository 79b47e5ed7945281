"""`gasoline replay-check --removable`: what is listed can be deleted, and what any history may need is not listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gasoline_es.checking.ledger import Observed, call_sites, judge_sites
from tests.cli.recorded import HEAD, RELEASED, Recorded, by_kind, check, record, release, rewritten
from tests.cli.terminal import invoke

SHIP = RELEASED["ship"]
LABEL = "    await ctx.activity(label, parcel)\n"
NEVER = "    await ctx.listen(Never)\n"
REMOVED = "    await ctx.removed('activity', 'weigh')\n"
INSERTED = "    await ctx.v(2).activity(insure, parcel)\n"
CHECKED = "    if await ctx.check_version(2) >= 2:\n        await ctx.sleep(1)\n"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(tmp_path_factory.mktemp("recorded"))


def sites(recorded: Recorded, path: Path) -> dict[str, Any]:
    """What may go, by call."""
    done = check(recorded, path, "--removable")
    assert done.status == 0
    return {site["call"]: site["removable"] for site in by_kind(done)["site"]}


def ship(*changes: tuple[str, str]) -> str:
    return rewritten(SHIP, *changes)


def test_calls_that_meet_something_recorded_are_needed(recorded: Recorded, tmp_path: Path) -> None:
    weigh = "    await ctx.activity(weigh, parcel)\n"
    path = release(tmp_path, ship=ship((weigh, REMOVED), (LABEL, CHECKED + LABEL)))
    assert sites(recorded, path) == {"ctx.removed('activity', 'weigh')": None, "ctx.check_version(2)": None}
    path = release(tmp_path / "inserted", ship=ship((LABEL, INSERTED + LABEL)))
    assert sites(recorded, path) == {"ctx.v(2)": None}


def test_calls_no_incomplete_history_has_come_to_may_go(recorded: Recorded, tmp_path: Path) -> None:
    behind = ship((NEVER, NEVER + REMOVED + INSERTED + CHECKED))
    path = release(tmp_path, ship=behind)
    found = sites(recorded, path)
    assert found == {"ctx.removed('activity', 'weigh')": "call", "ctx.v(2)": "call", "ctx.check_version(2)": "call"}
    # Deleting all of them leaves a code in which everything replays.
    assert check(recorded, release(tmp_path / "after", ship=SHIP)).status == 0


def test_complete_histories_need_nothing(recorded: Recorded, tmp_path: Path) -> None:
    done = rewritten(RELEASED["done"], ("    weight =", CHECKED + "    weight ="), (LABEL, INSERTED + LABEL))
    assert set(sites(recorded, release(tmp_path, done=done)).values()) == {"call"}


def test_once_a_call_is_gone_only_complete_histories_still_have_what_it_stood_for(tmp_path: Path) -> None:
    """`--incomplete` is what to check with from then on."""
    inserted = rewritten(RELEASED["done"], (LABEL, INSERTED + LABEL))
    first = record(tmp_path / "1", done=inserted, ship=ship((LABEL, INSERTED + LABEL)))
    path = release(tmp_path / "with", done=inserted, ship=ship((LABEL, INSERTED + LABEL)))
    assert [site["removable"] for site in by_kind(check(first, path, "--removable"))["site"]] == [None, "call"]
    without = release(tmp_path / "without", ship=ship((LABEL, INSERTED + LABEL)))
    everything = check(first, without)
    assert (everything.status, [one["name"] for one in by_kind(everything)["diverged"]]) == (1, ["done"])
    rest = check(first, without, "--incomplete")
    assert (rest.status, by_kind(rest)["summary"][0]["histories"], by_kind(rest)["summary"][0]["left_out"]) == (0, 4, 2)


def test_dead_histories_count_as_incomplete(recorded: Recorded, tmp_path: Path) -> None:
    died = rewritten(RELEASED["died"], ("    return await", CHECKED + "    return await"))
    assert sites(recorded, release(tmp_path, died=died)) == {"ctx.check_version(2)": None}


def test_a_history_that_cannot_be_followed_to_its_end_may_need_any_call(recorded: Recorded, tmp_path: Path) -> None:
    behind = REMOVED + NEVER
    inserted = release(tmp_path / "1", ship=ship((LABEL, INSERTED + LABEL), (NEVER, behind)))
    done = check(recorded, inserted, "--removable")
    assert by_kind(done)["summary"][0]["unsure"] == 1
    assert {site["removable"] for site in by_kind(done)["site"]} == {None}
    diverging = release(tmp_path / "2", ship=ship((LABEL, ""), (NEVER, behind)))
    done = check(recorded, diverging, "--removable")
    assert (done.status, by_kind(done)["site"][0]["removable"], done.objects[-1]["unsure"]) == (1, None, 1)


def test_a_version_check_stays_while_its_answers_are_recorded_but_its_old_way_may_go(tmp_path: Path) -> None:
    path = release(tmp_path / "code", ship=ship((LABEL, CHECKED + LABEL)))
    first = record(tmp_path / "1", head=HEAD, ship=ship((LABEL, CHECKED.replace("sleep(1)", "sleep(0)") + LABEL)))
    assert sites(first, path) == {"ctx.check_version(2)": "old_way"}
    later = release(tmp_path / "later", ship=ship((LABEL, CHECKED.replace("(2) >= 2", "(3) >= 2") + LABEL)))
    assert sites(first, later) == {"ctx.check_version(3)": None}


def test_steps_recorded_with_a_higher_version_need_their_mark(tmp_path: Path) -> None:
    marked = ship((LABEL, INSERTED + LABEL))
    first = record(tmp_path / "1", ship=marked)
    assert sites(first, release(tmp_path / "code", ship=marked)) == {"ctx.v(2)": None}
    unmarked = check(first, release(tmp_path / "unmarked", ship=marked.replace("ctx.v(2).", "ctx.")))
    assert (unmarked.status, by_kind(unmarked)["diverged"][0]["location"]) == (1, "{2}")


def test_as_text_the_calls_stand_in_a_table(recorded: Recorded, tmp_path: Path) -> None:
    path = release(tmp_path, ship=ship((NEVER, REMOVED + NEVER + INSERTED)))
    shown = invoke("--log", recorded.url, "replay-check", str(path), "--removable", "--text").stdout
    assert "CALL" in shown
    line = next(line for line in shown.splitlines() if line.startswith("ctx.v(2)"))
    assert line.split()[1:] == [
        f"shop.py:{path.read_text().splitlines().index(INSERTED.rstrip()) + 1}",
        "0",
        "the",
        "call",
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("async def a(ctx):\n    await ctx.v(2).activity(x, y)", [("v", "ctx.v(2)", 2, 2)]),
        ("async def a(c, i):\n    await (\n        c.v(2)\n        .activity(x)\n    )", [("v", "c.v(2)", 3, 4)]),
        ("async def a(ctx):\n    await ctx.v(2).check_version(3)", [("check_version", "ctx.v(2).check_version(3)", 2, 2)]),
        ("async def a(ctx):\n    await ctx.v(2).v(3).sleep(1)", [("v", "ctx.v(2).v(3)", 2, 2)]),
        ("async def a(ctx):\n    async def b(i):\n        await i.removed('run')", [("removed", "i.removed('run')", 3, 3)]),
        ("async def a(ctx):\n    new = ctx.v(2)\n    await new.sleep(1)", []),
        ("async def a(ctx):\n    await ctx.v(2).join(ctx.sleep(1))", []),
        ("files.removed('sleep')\nasync def a(ctx):\n    files.check_version(2)", []),
    ],
)  # fmt: skip
def test_the_calls_are_found_in_the_source(text: str, found: list[tuple[str, str, int, int]]) -> None:
    assert [(site.verb, site.call, site.line, site.line_end) for site in call_sites(text, "a.py")] == found


def test_what_was_met_at_no_known_call_is_held_against_all_of_its_kind_in_the_file() -> None:
    known = call_sites(
        "async def a(ctx):\n    new = ctx.v(3)\n    await ctx.v(2).sleep(1)\n    await ctx.removed('sleep')", "a.py"
    )
    observed = Observed()
    observed.needed["v", "a.py", 2] += 1
    assert [site.removable for site in judge_sites(known, observed)] == [None, "call"]


def test_equal_code_in_two_files_is_told_apart(tmp_path: Path) -> None:
    """Code objects that differ in nothing but their files are equal to Python."""
    marked = ship((LABEL, INSERTED + LABEL))
    first = record(tmp_path / "1", ship=marked)
    for folder in ("one", "two"):
        assert sites(first, release(tmp_path / folder, ship=marked)) == {"ctx.v(2)": None}
