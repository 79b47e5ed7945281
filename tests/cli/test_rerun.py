"""`gasoline workflow rerun`, and how a history shows what holds no more (api.md, semantics.md §4)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import ActivityContext, Gasoline, Signal, WorkflowContext, activity, workflow
from gasoline_es.checking.check import Wish, check_here
from gasoline_es.checking.code import by_name_of
from gasoline_es.checking.histories import LogSource
from tests.cli.terminal import Done, invoke, run_on_terminal, settled


class Paid(Signal):
    amount: int


@activity
async def ship(ctx: ActivityContext, order: int) -> str:
    return f"shipped {order}"


@activity
async def label(ctx: ActivityContext, order: int) -> str:
    return f"label {order}"


@workflow
async def fulfil(ctx: WorkflowContext, order: int) -> str:
    paid = await ctx.listen(Paid)

    async def pack(inner: WorkflowContext) -> str:
        await inner.activity(label, order)
        return await inner.activity(ship, order)

    shipped, _ = await ctx.join(ctx.closure(pack), ctx.closure(pack))
    return f"{shipped} for {paid.amount}"


@workflow(name="fulfil")
async def fulfil_without_a_label(ctx: WorkflowContext, order: int) -> str:
    paid = await ctx.listen(Paid)
    return f"{await ctx.activity(ship, order)} for {paid.amount}"


@dataclass
class Shop:
    """A log with a complete workflow in it."""

    url: str
    id: str

    def rerun(self, *args: str) -> Done:
        return invoke("--log", self.url, "workflow", "rerun", *args)

    def get(self, workflow_id: str) -> Any:
        (found,) = invoke("--log", self.url, "workflow", "get", workflow_id).objects
        return found

    def work(self, workflow_id: str) -> str:
        """Run a worker until the workflow is complete."""

        async def until_complete() -> str:
            async with Gasoline.open(self.url) as gasoline, gasoline.worker([fulfil]):
                return await gasoline.handle(workflow_id, fulfil).output(30)

        return asyncio.run(until_complete())


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    url = f"file:{tmp_path}/log"

    async def sell() -> str:
        async with Gasoline.open(url, partitions=2) as gasoline, gasoline.worker([fulfil]):
            handle = await gasoline.dispatch(fulfil, 7)
            await handle.signal(Paid(amount=3), id="pay")
            assert await handle.output(30) == "shipped 7 for 3"
            return handle.id

    return Shop(url, asyncio.run(sell()))


def test_rerun_tells_what_it_did_and_a_worker_does_the_rest(shop: Shop) -> None:
    (planned,) = shop.rerun(shop.id, "--from", "{1}", "--dry-run").objects
    assert shop.get(shop.id)["status"] == "complete", "a dry run changes nothing"
    (done,) = shop.rerun(shop.id, "--from", "1").objects
    assert done == planned
    assert list(done) == ["id", "start", "generation", "events", "signals", "beside"]
    assert (done["id"], done["start"], done["generation"], done["signals"]) == (shop.id, "{1}", 1, ["pay"])
    assert done["events"] == 8
    found = shop.get(shop.id)
    assert (found["status"], found["queued"], found["output"]) == ("running", {"pay": "paid"}, None)
    (listed,) = invoke("--log", shop.url, "workflow", "list").objects
    assert (listed["status"], listed["queued"]) == ("running", {"pay": "paid"})
    assert shop.work(shop.id) == "shipped 7 for 3"


def test_fork_tells_the_new_id_and_leaves_the_old_one_alone(shop: Shop) -> None:
    before = shop.get(shop.id)
    (done,) = shop.rerun(shop.id, "--from", "{2, 2}", "--fork").objects
    assert done["beside"] == ["{3}"]
    assert shop.get(shop.id) == before
    assert shop.work(done["id"]) == "shipped 7 for 3"
    text = invoke("--log", shop.url, "workflow", "history", done["id"], "--text").stdout
    assert f"fork of:  {shop.id}" in text


def test_rerun_says_it_in_a_sentence(shop: Shop) -> None:
    said = shop.rerun(shop.id, "--from", "{2, 2}", "--text").stdout
    assert said == (
        f"workflow {shop.id} starts over from {{2, 2}}, generation 1: 2 events superseded, {{3}} beside it stays\n"
    )
    said = shop.rerun(shop.id, "--from", "{1}", "--dry-run", "--text").stdout
    assert "would start over from {1}, generation 2:" in said
    assert "1 signal queued again" in said
    said = shop.rerun(shop.id, "--from", "{1}", "--fork", "--text").stdout
    assert said.startswith(f"a fork of workflow {shop.id} starts over as ")


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (
            ["ID", "--from", "{9}"],
            1,
            "gasoline: nothing is recorded at {9}, so nothing can start over from there: near",
        ),
        (["ID", "--from", "{1,"], 2, "gasoline: --from '{1,' is no location: write it as \"{2, 5, 3}\" or 2,5,3"),
        (["ID"], 2, "--from"),
        (["nonsense", "--from", "1"], 1, "no workflow has the id"),
        (["00000000-0000-7000-8000-000000000000", "--from", "1"], 1, "was not found in namespace 'default'"),
    ],
)
def test_rerun_that_cannot_be_is_refused_in_a_line(shop: Shop, args: list[str], status: int, said: str) -> None:
    before = invoke("--log", shop.url, "workflow", "history", shop.id).stdout
    for more in ([], ["--dry-run"], ["--fork"]):
        done = shop.rerun(*[shop.id if arg == "ID" else arg for arg in args], *more)
        assert (done.status, done.stdout) == (status, "")
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
    assert invoke("--log", shop.url, "workflow", "history", shop.id).stdout == before


def test_history_shows_what_holds_no_more_behind_the_rest_and_dim(shop: Shop) -> None:
    assert shop.rerun(shop.id, "--from", "{2, 2}").status == 0
    shop.work(shop.id)
    done = invoke("--log", shop.url, "workflow", "history", shop.id, "--text")
    assert (done.status, done.stderr) == (0, "")
    shown = settled(done.stdout)
    assert shown[shown.index("├── rerun 1") :].split("by ")[0] == "├── rerun 1 from {2, 2}  <time> "
    assert shown[shown.index("└── superseded") :] == SUPERSEDED.rstrip()
    assert shown.count("{2, 2} activity ship") == 2
    on_terminal = run_on_terminal("--log", shop.url, "workflow", "history", shop.id).stdout
    (line,) = [line for line in on_terminal.splitlines() if "superseded by rerun 1" in line]
    assert "\x1b[2m" in line, "dim"


SUPERSEDED = """\
└── superseded by rerun 1  2 events
    ├── {2} branch
    │   └── {2, 2} activity ship  <time>, took <s>
    │       ├── input:  7
    │       └── output:  "shipped 7"
    └── completed  <time>
        └── output:  "shipped 7 for 3"
"""


def test_replay_check_leaves_out_a_workflow_that_started_over_only_once_it_is_over_again(shop: Shop) -> None:
    def left_out() -> tuple[int, int | None]:
        report = check_here(by_name_of([fulfil]), LogSource(shop.url, "default"), Wish(incomplete=True))
        assert report.ok
        return report.histories, report.left_out

    assert left_out() == (0, 1)
    assert shop.rerun(shop.id, "--from", "{2, 2}").status == 0
    assert left_out() == (1, 0)
    shop.work(shop.id)
    assert left_out() == (0, 1)


def test_replay_check_replays_what_holds(shop: Shop) -> None:
    """A divergence behind the step that was started over from is none; before it, it is."""
    workflows, source = by_name_of([fulfil_without_a_label]), LogSource(shop.url, "default")
    assert not check_here(workflows, source).ok
    assert shop.rerun(shop.id, "--from", "{3}").status == 0
    assert shop.rerun(shop.id, "--from", "{2}").status == 0
    report = check_here(workflows, source)
    assert (report.histories, report.replayed, report.ok) == (1, 1, True)
    shop.work(shop.id)
    assert shop.rerun(shop.id, "--from", "{3, 2}", "--fork").status == 0
    report = check_here(workflows, source)
    assert (report.histories, report.replayed, len(report.divergences)) == (2, 0, 2)
    report = check_here(by_name_of([fulfil]), source)
    assert (report.histories, report.replayed, report.ok) == (2, 2, True)
