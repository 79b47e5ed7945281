"""`gasoline workflow wake`, `cancel`, `silence` and `recover`: what an operator does with one workflow."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import ActivityContext, Gasoline, Workflow, WorkflowContext, activity, workflow
from gasoline_es.cli.settings import whoever
from gasoline_es.errors import Cancelled, WorkflowCancelled, WorkflowFailed
from tests.cli.terminal import invoke, run, settled
from tests.engine.subprocesses import line, worker_process
from tests.engine.workflows import cancellable

bank = {"open": True}


@activity(max_attempts=1)
async def charge(ctx: ActivityContext, order: int) -> str:
    if not bank["open"]:
        raise ConnectionError("the bank is closed")
    return f"charged {order}"


@activity
async def refund(ctx: ActivityContext, order: int) -> None: ...


@workflow
async def fulfil(ctx: WorkflowContext, order: int) -> str:
    return await ctx.activity(charge, order)


@workflow
async def wait_and_refund(ctx: WorkflowContext, order: int) -> None:
    try:
        await ctx.sleep(3600)
    except Cancelled:
        await ctx.activity(refund, order)
        raise


@workflow
async def broken(ctx: WorkflowContext, order: int) -> None:
    raise ValueError("no such order")


@workflow
async def parent(ctx: WorkflowContext, order: int) -> None:
    child = await ctx.dispatch(broken, order)
    await child.output()


WORKFLOWS = (fulfil, wait_and_refund, broken)


@dataclass
class Shop:
    """A log with a workflow in each state an operator may meet."""

    url: str
    complete: str
    dead: str
    wrong: str
    waiting: str

    def act(self, verb: str, workflow_id: str, *options: str) -> dict[str, str]:
        done = invoke("--log", self.url, "workflow", verb, workflow_id, *options)
        assert (done.status, done.stderr) == (0, "")
        (told,) = done.objects
        return dict(told)

    def refused(self, verb: str, workflow_id: str) -> str:
        done = invoke("--log", self.url, "workflow", verb, workflow_id)
        assert (done.status, done.stdout) == (1, "")
        return done.stderr

    def work(self, workflow_id: str) -> str:
        """Let a worker run until the workflow has ended; say how."""

        async def go() -> str:
            async with Gasoline.open(self.url) as gasoline, gasoline.worker(WORKFLOWS):
                try:
                    return str(
                        await gasoline.handle(workflow_id, await self._definition(gasoline, workflow_id)).output()
                    )
                except (WorkflowCancelled, WorkflowFailed) as error:
                    return type(error).__name__

        return asyncio.run(asyncio.wait_for(go(), 30))

    async def _definition(self, gasoline: Gasoline, workflow_id: str) -> Workflow[Any, Any]:
        name = (await gasoline.get(workflow_id)).name
        return next(one for one in WORKFLOWS if one.name == name)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return asyncio.run(opened(f"file:{tmp_path}/log"))


async def opened(url: str) -> Shop:
    async with Gasoline.open(url, partitions=2) as gasoline, gasoline.worker(WORKFLOWS, evict_after=0):
        bank["open"] = True
        complete = await gasoline.dispatch(fulfil, 1)
        await complete.output()
        bank["open"] = False
        dead = await gasoline.dispatch(fulfil, 2)
        with pytest.raises(WorkflowFailed):
            await dead.output()
        bank["open"] = True
        wrong = await gasoline.dispatch(broken, 3)
        with pytest.raises(WorkflowFailed):
            await wrong.output()
        waiting = await gasoline.dispatch(wait_and_refund, 4)
        while (await waiting.get()).status != "sleeping":
            await asyncio.sleep(0.01)
    return Shop(url, complete.id, dead.id, wrong.id, waiting.id)


def test_cancel_is_durable_and_a_worker_that_comes_cleans_up(shop: Shop) -> None:
    """semantics.md §12."""
    assert shop.act("cancel", shop.waiting) == {"id": shop.waiting, "name": "wait_and_refund", "status": "running"}
    assert shop.act("cancel", shop.waiting)["status"] == "running"
    assert shop.work(shop.waiting) == "WorkflowCancelled"
    listed = invoke("--log", shop.url, "workflow", "list", "--status", "cancelled").objects
    assert [found["id"] for found in listed] == [shop.waiting]
    assert listed[0]["completed"] is not None


async def test_get_tells_that_the_workflow_which_one_waits_for_is_dead(tmp_path: Path) -> None:
    """semantics.md §4: who waits for a dead workflow goes on waiting."""
    url = f"file:{tmp_path}/log"
    async with Gasoline.open(url, partitions=2) as gasoline, gasoline.worker([parent, broken], evict_after=0):
        handle = await gasoline.dispatch(parent, 3)
        while (await handle.get()).status != "sleeping" or not [w async for w in gasoline.list(status="dead")]:
            await asyncio.sleep(0.01)
    shown = (await asyncio.to_thread(invoke, "--log", url, "workflow", "get", handle.id, "--text")).stdout
    status, of = (line.split(maxsplit=1) for line in settled(shown, parent=handle.id).splitlines()[2:4])
    assert (status[0], of[0]) == ("status", "of")
    assert status[1].startswith("sleeping, waits for output of <id>")
    assert of[1] == "<id> broken, dead: ValueError: no such order"


def test_cancel_now_ends_it_at_once(shop: Shop) -> None:
    """semantics.md §12: no worker is needed."""
    assert shop.act("cancel", shop.waiting, "--now")["status"] == "cancelled"
    assert shop.act("cancel", shop.dead)["status"] == "cancelled"


def test_silence_takes_it_out_of_sight_for_good(shop: Shop) -> None:
    """semantics.md §7: no worker is needed; a second one changes nothing; a fork is the only way back."""
    assert shop.act("silence", shop.wrong) == {"id": shop.wrong, "name": "broken", "status": "silenced"}
    assert shop.act("silence", shop.wrong)["status"] == "silenced"
    assert shop.wrong not in [
        one["id"] for one in invoke("--log", shop.url, "workflow", "list", "--status", "dead").objects
    ]
    (listed,) = invoke(
        "--log", shop.url, "workflow", "list", "--status", "silenced", "--error", "no such order"
    ).objects
    assert listed["id"] == shop.wrong
    for verb in ("wake", "recover"):
        assert "was silenced, so it will not run again" in shop.refused(verb, shop.wrong)
    shop.act("silence", shop.waiting)
    refused = invoke("--log", shop.url, "workflow", "rerun", shop.waiting, "--from", "1", "--dry-run")
    assert (refused.status, refused.stdout) == (1, "")
    assert "start over in a new one, as a fork of it" in refused.stderr
    forked = invoke("--log", shop.url, "workflow", "rerun", shop.waiting, "--from", "1", "--fork")
    assert forked.status == 0, forked.stderr
    assert forked.objects[0]["id"] != shop.waiting


def test_history_shows_who_silenced_it(shop: Shop) -> None:
    shop.act("silence", shop.waiting)
    done = invoke("--log", shop.url, "workflow", "history", shop.waiting, "--text")
    assert told(done.stdout, waiting=shop.waiting) == SILENCED


def test_recover_lets_the_failed_activity_run_again(shop: Shop) -> None:
    """semantics.md §7."""
    assert shop.act("recover", shop.dead) == {"id": shop.dead, "name": "fulfil", "status": "running"}
    assert shop.work(shop.dead) == "charged 2"


def test_wake_runs_a_dead_one_again_and_leaves_a_complete_one_alone(shop: Shop) -> None:
    """semantics.md §7: what is recorded as final stays so."""
    assert shop.act("wake", shop.dead)["status"] == "running"
    assert shop.work(shop.dead) == "WorkflowFailed"
    assert shop.act("wake", shop.complete)["status"] == "complete"


@pytest.mark.parametrize(
    ("verb", "which", "why"),
    [
        ("cancel", "complete", "is complete: there is nothing left to cancel"),
        ("recover", "complete", "is complete. Only a dead workflow can be recovered"),
        ("recover", "wrong", "did not die of an activity's failure, but of ValueError: no such order"),
        ("silence", "complete", "is complete: it does not run any more"),
        ("wake", "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f", "was not found in namespace 'default'"),
        ("cancel", "../../etc", "workflow"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_line(shop: Shop, verb: str, which: str, why: str) -> None:
    stderr = shop.refused(verb, vars(shop).get(which, which))
    assert why in stderr
    assert stderr.count("\n") == 1


@pytest.mark.parametrize("verb", ["wake", "cancel", "silence", "recover"])
def test_log_that_is_not_there_is_not_made(tmp_path: Path, verb: str) -> None:
    done = invoke("--log", f"file:{tmp_path}/typo", "workflow", verb, "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f")
    assert done.status == 1
    assert "there is no log in" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_text_is_one_line_with_the_status(shop: Shop) -> None:
    done = invoke("--log", shop.url, "workflow", "cancel", shop.waiting, "--now", "--text")
    assert done.stdout == f"wait_and_refund {shop.waiting}  cancelled\n"


def told(text: str, **names: str) -> str:
    return re.sub(r"by \S+ \(client \S+\)", "by <who>", settled(text, **names)) + "\n"


def deciders(shop: Shop, workflow_id: str) -> list[str]:
    events = run("--log", shop.url, "workflow", "history", workflow_id).objects
    return [re.sub(r"\(client \S+\)$", "(client)", event["data"]["by"]) for event in events if "by" in event["data"]]


def test_history_says_who_decided_and_why(shop: Shop) -> None:
    """Whoever runs the process, unless told otherwise; the process itself can be found in the log."""
    shop.act("wake", shop.wrong)
    shop.work(shop.wrong)
    for options, environment in (
        (("--operator", "ana@example.org"), "somebody else"),
        (("--reason", "INC-81: paid twice, läuft"), "ana@example.org"),
        (("--operator", "", "--reason", "no name"), "somebody else"),
    ):
        done = invoke("--log", shop.url, *options, "workflow", "wake", shop.wrong, GASOLINE_OPERATOR=environment)
        assert (done.status, done.stderr) == (0, "")
        shop.work(shop.wrong)
    invoke("--log", shop.url, "--reason", "never paid", "workflow", "silence", shop.wrong)
    me = whoever()
    assert "@" in me
    assert deciders(shop, shop.wrong) == [
        f"{me} (client)",
        "ana@example.org (client)",
        "ana@example.org: INC-81: paid twice, läuft (client)",
        ": no name (client)",
        f"{me}: never paid (client)",
    ]


@pytest.mark.parametrize("options", [("--operator", "x" * 201), ("--reason", "a\x1b[31mb"), ("--operator", "a\nb")])
def test_what_no_event_can_hold_is_refused(shop: Shop, options: tuple[str, str]) -> None:
    done = invoke("--log", shop.url, *options, "workflow", "wake", shop.wrong)
    assert done.status == 2
    assert "--operator and --reason are recorded" in done.stderr
    assert "is not allowed" in done.stderr
    assert deciders(shop, shop.wrong) == []


def test_history_shows_where_the_cancel_came_and_what_cleaned_up(shop: Shop) -> None:
    shop.act("cancel", shop.waiting)
    shop.work(shop.waiting)
    done = invoke("--log", shop.url, "workflow", "history", shop.waiting, "--text")
    assert told(done.stdout, waiting=shop.waiting) == CANCELLED


def test_history_shows_the_recovery_between_the_attempts(shop: Shop) -> None:
    shop.act("recover", shop.dead)
    shop.work(shop.dead)
    done = invoke("--log", shop.url, "workflow", "history", shop.dead, "--text")
    assert told(done.stdout, dead=shop.dead) == RECOVERED


async def test_cancel_beside_a_worker_process_is_decided_there(tmp_path: Path) -> None:
    """design §5: through the inbox, answered when it is decided."""
    url = f"file:{tmp_path}/log"
    async with Gasoline.open(url) as gasoline:
        handle = await gasoline.dispatch(cancellable, 1)
        async with worker_process(url) as worker:
            assert await line(worker) == "ready"
            done = await asyncio.to_thread(run, "--log", url, "workflow", "cancel", handle.id)
            assert (done.status, done.stderr) == (0, "")
            with pytest.raises(WorkflowCancelled):
                await handle.output(timeout=30)


CANCELLED = """\
wait_and_refund <waiting>  cancelled
├── dispatched  <time>
│   └── input:  4
├── {1} sleep  cancelled <time>
│   ├── started  <time>
│   ├── suspended  <time>, waits until <time>
│   └── cancel requested  <time> by <who>
├── {2} activity refund  <time>, took <s>
│   ├── input:  4
│   └── output:  null
└── cancelled  <time>
"""
SILENCED = """\
wait_and_refund <waiting>  silenced
├── dispatched  <time>
│   └── input:  4
├── {1} sleep  until <time>
│   ├── started  <time>
│   └── suspended  <time>, waits until <time>
└── silenced  <time> by <who>
"""
RECOVERED = """\
fulfil <dead>  complete
├── dispatched  <time>
│   └── input:  2
├── {1} activity charge  <time>, took <s>
│   ├── attempt 1 failed  ConnectionError: the bank is closed
│   │   └── <time>, after <s>; no more
│   ├── recovered  <time> by <who>
│   ├── input:  2
│   └── output:  "charged 2"
├── failed  ActivityMaxFailuresReached: activity 'charge' at {1} failed with ConnectionError: the bank is closed
│   └── <time>
└── completed  <time>
    └── output:  "charged 2"
"""
