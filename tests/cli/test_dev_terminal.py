"""`gasoline dev` on a terminal: the live tree, what stands above it, and Ctrl-C from the keyboard (decision 0027)."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from gasoline_es import Gasoline, WorkflowContext, workflow
from tests.cli.developing import OnTerminal, save, wait_until
from tests.cli.terminal import invoke
from tests.cli.test_dev import shop, wait_for_payment

pytestmark = pytest.mark.timeout(240)

# What the tree itself writes: styles, and moves within its own lines.
_OWN = re.compile(r"\x1b\[(?:[0-9;]*m|2K|1A|\?25[lh])")


PARENT = """
@workflow
async def parcel(ctx: WorkflowContext, item: None) -> str:
    return await (await ctx.dispatch(order, None)).output()
"""


def dispatch(dev: OnTerminal, name: str = "order") -> str:
    (made,) = invoke("--log", dev.url, "workflow", "dispatch", name, "null").objects
    return str(made["id"])


def test_tree_shows_what_is_under_way_what_waits_and_what_is_dead(tmp_path: Path) -> None:
    """An activity with its attempt and time, a sleep with its end, a death with its error and what to do."""
    gate = 'while not os.path.exists("gate"): await asyncio.sleep(0.01)\nreturn "y"'
    code = shop("await ctx.activity(charge, None)\nawait ctx.listen(Paid, timeout=900)\nraise KeyError(item)", gate)
    save(tmp_path, "shop.py", code)
    with OnTerminal(tmp_path, "shop") as dev:
        dev.until(r"worker \d+ runs order")
        workflow_id = dispatch(dev)
        dev.until(rf"dispatched order {workflow_id}")
        dev.until(rf"order {workflow_id}  running\s+└── \{{1}} activity charge  attempt 1 runs for 1 s")
        (tmp_path / "gate").touch()
        dev.until(rf"order {workflow_id}  sleeping, waits for signal paid until \S+Z")
        dev.until(r"└── \{2} listen with a timeout  until")
        assert invoke("--log", dev.url, "signal", "send", "paid", "{}", "--to", workflow_id).status == 0
        dev.until(rf"dead order {workflow_id}: KeyError: None")
        dev.until(rf"workflow wake {workflow_id}")
        dev.until(rf"order {workflow_id} dead  KeyError: None")
        dev.until(r"1 dead")


def test_reload_is_shown_and_code_that_is_refused_with_its_error(tmp_path: Path) -> None:
    save(tmp_path, "shop.py", wait_for_payment("old"))
    with OnTerminal(tmp_path, "shop") as dev:
        dev.until(r"worker \d+ runs order")
        so_far = len(dev.text)
        save(tmp_path, "shop.py", "def broken(:\n")
        dev.until(r"saved: \S*shop\.py", so_far)
        dev.until(r"gasoline dev shop  shop cannot be loaded: SyntaxError", so_far)
        so_far = len(dev.text)
        save(tmp_path, "shop.py", wait_for_payment("new"))
        dev.until(r"gasoline dev shop  worker \d+ runs order", so_far)


def test_what_the_worker_writes_stands_above_the_tree_and_cannot_garble_it(tmp_path: Path) -> None:
    """required.md B24: no control character but the tree's own, in what is printed, logged, and recorded."""
    hostile = '"\\x1b[2J\\x1b]0;title\\x07\\rforged\\u202e\\x9b31m"'
    prints = f'print({hostile}, flush=True)\nprint("no end " * 2000, end="", flush=True)\nraise ValueError({hostile})'
    save(tmp_path, "shop.py", shop("return await ctx.activity(charge, None)", prints))
    with OnTerminal(tmp_path, "shop") as dev:
        dev.until(r"worker \d+ runs order")
        workflow_id = dispatch(dev)
        dev.until(rf"dead order {workflow_id}")
        dev.until(rf"order {workflow_id} dead")
        dev.until("no end no end")
        dev.type("\x03")
        assert dev.wait() == 0
        assert r"\x1b[2J\x1b]0;title\x07" in dev.text
        foreign = set(re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", _OWN.sub("", dev.raw).replace("\r\n", "\n")))
        assert foreign - {"\r"} == set()


def test_ctrl_c_of_the_keyboard_reaches_the_command_alone_and_the_worker_stops_cleanly(tmp_path: Path) -> None:
    """The worker would otherwise take it, and the command's own request, for two, and give up what runs."""
    gate = 'open("running", "w").close()\nwhile not os.path.exists("gate"): await asyncio.sleep(0.01)\nreturn "y"'
    save(tmp_path, "shop.py", shop("return await ctx.activity(charge, None)", gate))
    with OnTerminal(tmp_path, "shop", "--stop-limit", "60") as dev:
        dev.until(r"worker \d+ runs order")
        workflow_id = dispatch(dev)
        wait_until((tmp_path / "running").exists, "the activity runs")
        dev.type("\x03")
        dev.until("stopping: running activities may end")
        dev.until("waiting for running activities")
        (tmp_path / "gate").touch()
        assert dev.wait() == 0
        assert "stopped" in dev.text
        assert "\x1b[?25h" in dev.raw  # the cursor is shown again
    events = invoke("--log", dev.url, "workflow", "history", workflow_id).objects
    assert "gasoline.activity.completed.v1" in [one["type"] for one in events]


def test_many_workflows_take_no_more_rows_than_there_are(tmp_path: Path) -> None:
    save(tmp_path, "shop.py", wait_for_payment("old"))
    with OnTerminal(tmp_path, "shop", rows=12) as dev:
        dev.until(r"worker \d+ runs order")
        for _ in range(12):
            dispatch(dev)
        dev.until(r"12 running|12 sleeping")
        dev.until(r"… and \d+ more workflows")
        for drawn in re.findall(r"(?:\x1b\[2K\x1b\[1A)+", dev.raw):
            assert drawn.count("\x1b[1A") < 12


def test_flood_of_what_happens_and_is_written_does_not_hold_up_the_tree_or_ctrl_c(tmp_path: Path) -> None:
    """Each print above a live tree draws it again: what comes between two drawings is printed at once, and partly counted."""
    save(tmp_path, "shop.py", shop('print("line " * 10, flush=True)\nreturn "done"'))
    with OnTerminal(tmp_path, "shop") as dev:
        dev.until(r"worker \d+ runs order")

        async def dispatch_many() -> None:
            async with Gasoline.open(dev.url) as gasoline:
                await asyncio.gather(*(gasoline.dispatch(order, None) for _ in range(3_000)))

        asyncio.run(dispatch_many())
        dev.until(r"… and [\d,]+ more\n")
        dev.until(r"3,000 complete")
        dev.type("\x03")
        assert dev.wait() == 0


@workflow
async def order(ctx: WorkflowContext, item: None) -> str:
    """What a client knows of the code that is developed."""
    raise NotImplementedError


def test_sub_workflows_stand_below_their_parents(tmp_path: Path) -> None:
    save(tmp_path, "shop.py", wait_for_payment("old") + PARENT)
    with OnTerminal(tmp_path, "shop") as dev:
        dev.until(r"worker \d+ runs order, parcel")
        workflow_id = dispatch(dev, "parcel")
        steps = r"├── [^\n]+\n├── [^\n]+\n"
        dev.until(rf"parcel {workflow_id}  sleeping, waits for output of \S+\n{steps}└── order \S+  sleeping")
