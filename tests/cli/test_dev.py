"""`gasoline dev`: real processes, whose code is saved while they run (decision 0027)."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gasoline_es.checking.code import Code
from tests.cli.developing import Developing, is_alive, save, wait_until
from tests.cli.terminal import invoke

pytestmark = pytest.mark.timeout(240)

HEAD = """
import asyncio, os, signal, sys, time
from gasoline_es import ActivityContext, Signal, WorkflowContext, activity, workflow

class Paid(Signal):
    pass

@activity(max_attempts=1, timeout=600)
async def charge(ctx: ActivityContext, item: None) -> str:
    {charge}

@workflow
async def order(ctx: WorkflowContext, item: None) -> str:
    {order}
"""


def shop(order: str, charge: str = 'return "charged"') -> str:
    return HEAD.format(order=textwrap.indent(order, "    ").strip(), charge=textwrap.indent(charge, "    ").strip())


def wait_for_payment(answer: str) -> str:
    return shop(f'await ctx.activity(charge, None)\nawait ctx.listen(Paid)\nreturn "{answer}"')


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("shop", "package"):  # what tests of other folders have loaded in this process
        monkeypatch.delitem(sys.modules, name, raising=False)
    made = tmp_path / "project"
    made.mkdir()
    return made


# --- reloading --------------------------------------------------------------------------------------------------------


def test_workflow_under_way_goes_on_in_the_code_that_was_saved(folder: Path) -> None:
    """The files are of one length and may be saved in one second: bytecode cannot tell them apart, and is not made."""
    save(folder, "shop.py", wait_for_payment("old"))
    with Developing(folder, "shop") as dev:
        started = dev.until("started")
        assert (started["log"], started["module"], started["watched"]) == ("file:./.gasoline", "shop", [str(folder)])
        first = dev.until("ready", workflows=["order"])
        workflow_id = dev.dispatch("order")
        assert dev.until("dispatched")["id"] == workflow_id
        dev.save("shop.py", wait_for_payment("new"))
        assert dev.until("reload")["files"] == [str(folder / "shop.py")]
        second = dev.until("ready")
        assert second["pid"] != first["pid"]
        dev.signal("paid", workflow_id)
        assert dev.until("completed")["id"] == workflow_id
        assert dev.get(workflow_id)["output"] == "new"
        assert not is_alive(first["pid"])
    assert not list(folder.rglob("__pycache__"))
    assert (folder / ".gasoline" / ".gitignore").read_text() == "*\n"
    assert invoke("--log", f"file:{folder}/.gasoline", "log", "verify").status == 0


def test_code_that_cannot_be_loaded_is_shown_and_waits_for_the_next_save(folder: Path) -> None:
    save(folder, "shop.py", "def broken(:\n")
    with Developing(folder, "shop") as dev:
        assert "SyntaxError" in dev.until("refused")["message"]
        dev.save("shop.py", HEAD.format(order='return "x"', charge="return 1").replace("item: None", "item"))
        refused = dev.until("refused")["message"]
        assert "DefinitionError" in refused
        dev.save("shop.py", "raise SystemExit(3)\n")
        assert "SystemExit: 3" in dev.until("refused")["message"]
        dev.save("shop.py", "import no_such_module\n")
        assert "No module named 'no_such_module'" in dev.until("refused")["message"]
        dev.save("shop.py", 'raise ValueError("\U0001f4a5" * 50_000)\n')  # more than a pipe holds
        assert dev.until("refused")["message"].endswith("\U0001f4a5")
        dev.save("shop.py", wait_for_payment("mended"))
        dev.until("ready", workflows=["order"])
        assert "worker_ended" not in dev.kinds()
        assert "def broken(:" in dev.errors
        assert "gasoline_es/checking" not in dev.errors


def test_burst_of_saves_is_one_reload(folder: Path) -> None:
    save(folder, "shop.py", wait_for_payment("old"))
    with Developing(folder, "shop") as dev:
        dev.until("ready")
        for number in range(20):
            dev.save(f"part_{number}.py", "")
            dev.save("shop.py", wait_for_payment(f"new {number}"))
        dev.until("ready")
        saved = [name for one in dev.told if one["kind"] == "reload" for name in one["files"]]
        assert dev.kinds().count("ready") == 2
        assert str(folder / "shop.py") in saved
        dev.save("part_0.py", "x = 1\n")
        assert dev.until("reload")["files"] == [str(folder / "part_0.py")]
        dev.until("ready")
        assert dev.kinds().count("ready") == 3


def test_only_source_below_the_watched_directories_counts(folder: Path, tmp_path: Path) -> None:
    beside = tmp_path / "library"
    (beside / ".venv").mkdir(parents=True)
    save(folder, "shop.py", wait_for_payment("old"))
    with Developing(folder, "shop", "--watch", str(beside), "--watch", ".") as dev:
        dev.until("ready")
        (folder / "notes.txt").write_text("nothing")
        (beside / ".venv" / "other.py").write_text("")
        save(beside, "part.py", "")
        assert dev.until("reload")["files"] == [str(beside / "part.py")]


# --- what had died ----------------------------------------------------------------------------------------------------


def diverging(dev: Developing) -> str:
    """Let a workflow die because another step stands where one is recorded: it shows once the workflow is woken."""
    dev.until("ready")
    workflow_id = dev.dispatch("order")
    dev.until("dispatched")
    wait_until(lambda: dev.get(workflow_id)["waiting_for"] == "signal paid", "it waits")
    dev.save("shop.py", shop('await ctx.sleep(1)\nawait ctx.listen(Paid)\nreturn "diverged"'))
    dev.until("ready")
    dev.signal("paid", workflow_id)
    dead = dev.until("dead")
    assert dead["id"] == workflow_id
    assert dead["error"]["type"] == "HistoryDiverged"
    assert "ctx.v(2).sleep" in dead["error"]["message"]
    return workflow_id


def test_what_died_of_code_that_did_not_fit_goes_on_once_that_is_mended(folder: Path) -> None:
    save(folder, "shop.py", wait_for_payment("old"))
    with Developing(folder, "shop") as dev:
        workflow_id = diverging(dev)
        dev.save("shop.py", "import nothing_such\n")  # between: it is not forgotten
        dev.until("refused")
        dev.save("shop.py", wait_for_payment("mended"))
        told = [dev.until("woken"), dev.until("completed")]
        assert [one["id"] for one in told] == [workflow_id, workflow_id]
        assert dev.get(workflow_id)["output"] == "mended"
        assert [one["woken"] for one in dev.told if one["kind"] == "ready"] == [0, 0, 1]
        dev.save("shop.py", wait_for_payment("again"))
        dev.until("reload")
        assert dev.until("ready")["woken"] == 0


def test_nothing_is_woken_if_it_is_not_wished(folder: Path) -> None:
    save(folder, "shop.py", wait_for_payment("old"))
    with Developing(folder, "shop", "--no-revive") as dev:
        workflow_id = diverging(dev)
        dev.save("shop.py", wait_for_payment("mended"))
        assert dev.until("ready")["woken"] == 0
        assert dev.get(workflow_id)["status"] == "dead"


def test_what_was_dead_before_it_began_is_left_alone_and_told(folder: Path) -> None:
    save(folder, "shop.py", wait_for_payment("old"))
    with Developing(folder, "shop") as dev:
        workflow_id = diverging(dev)
    with Developing(folder, "shop") as dev:
        assert dev.until("dead_before")["workflows"] == 1
        dev.save("shop.py", wait_for_payment("mended"))
        dev.until("reload")
        assert dev.until("ready")["woken"] == 0
        assert dev.get(workflow_id)["status"] == "dead"


# --- a worker that ends -----------------------------------------------------------------------------------------------


def test_worker_that_dies_by_itself_is_started_again_and_a_save_does_not_wait_for_that(folder: Path) -> None:
    dying = "os.kill(os.getpid(), signal.SIGKILL)"
    save(folder, "shop.py", shop("return await ctx.activity(charge, None)", dying))
    with Developing(folder, "shop") as dev:
        first = dev.until("ready")["pid"]
        workflow_id = dev.dispatch("order")
        ended = dev.until("worker_ended")
        assert (ended["pid"], ended["status"], ended["again_s"]) == (first, -signal.SIGKILL, 1.0)
        assert dev.until("worker_ended")["again_s"] == 2.0
        dev.save("shop.py", shop("return await ctx.activity(charge, None)"))
        dev.until("completed", id=workflow_id)
        assert dev.get(workflow_id)["output"] == "charged"


def test_ctrl_c_lets_running_activities_end_and_what_they_return_counts(folder: Path) -> None:
    (folder / "gate").mkdir()
    waits = 'open("running", "w").close()\nwhile not os.path.exists("gate/open"): await asyncio.sleep(0.01)\nreturn "charged"'
    save(folder, "shop.py", shop("return await ctx.activity(charge, None)", waits))
    with Developing(folder, "shop", "--stop-limit", "60") as dev:
        worker = dev.until("ready")["pid"]
        workflow_id = dev.dispatch("order")
        wait_until((folder / "running").exists, "the activity runs")
        dev.interrupt()
        dev.until("stopping")
        (folder / "gate" / "open").touch()
        dev.until("stopped")
        assert dev.wait() == 0
        assert not is_alive(worker)
        events = invoke("--log", dev.url, "workflow", "history", workflow_id).objects
        # Whether the body goes on before the worker hears of the interrupt is nobody's promise.
        assert "gasoline.activity.completed.v1" in [one["type"] for one in events]


def test_second_ctrl_c_gives_running_activities_up(folder: Path) -> None:
    waits = 'open("running", "w").close()\nawait asyncio.sleep(600)\nreturn "charged"'
    save(folder, "shop.py", shop("return await ctx.activity(charge, None)", waits))
    with Developing(folder, "shop", "--stop-limit", "600") as dev:
        worker = dev.until("ready")["pid"]
        dev.dispatch("order")
        wait_until((folder / "running").exists, "the activity runs")
        dev.interrupt()
        dev.until("stopping")
        dev.interrupt()
        assert dev.wait() == 130
        assert not is_alive(worker)
        assert "ended at the second signal" in dev.errors


def test_worker_that_does_not_stop_in_time_is_killed(folder: Path) -> None:
    """Its event loop is blocked: no signal is heard there."""
    blocks = 'open("running", "w").close()\ntime.sleep(600)\nreturn "charged"'
    save(folder, "shop.py", shop("return await ctx.activity(charge, None)", blocks))
    with Developing(folder, "shop", "--stop-limit", "0") as dev:
        worker = dev.until("ready")["pid"]
        workflow_id = dev.dispatch("order")
        wait_until((folder / "running").exists, "the activity runs")
        dev.save("shop.py", shop("return await ctx.activity(charge, None)"))
        assert dev.until("worker_killed")["pid"] == worker
        dev.until("completed", id=workflow_id)


def test_worker_ends_with_the_command_that_started_it_even_if_that_is_killed(folder: Path) -> None:
    save(folder, "shop.py", wait_for_payment("old"))
    with Developing(folder, "shop") as dev:
        worker = dev.until("ready")["pid"]
        dev.kill()
        wait_until(lambda: not is_alive(worker), "the worker has ended")


# --- which log --------------------------------------------------------------------------------------------------------


def test_log_of_the_environment_is_not_used_and_the_code_meets_the_local_one_there(
    folder: Path, tmp_path: Path
) -> None:
    production = f"file:{tmp_path}/production"
    code = wait_for_payment("old") + '\nprint("the code sees", os.environ["GASOLINE_LOG"])\n'
    save(folder, "shop.py", code)
    with Developing(folder, "shop", json=False, GASOLINE_LOG=production) as dev:
        assert f"GASOLINE_LOG is not used here: --log {production} would name that log" in dev.line()
        while "runs order" not in dev.line():
            pass
        assert "the code sees file:./.gasoline" in dev.errors
    assert not (tmp_path / "production").exists()


@pytest.mark.parametrize("before", [False, True])
def test_log_is_named_by_an_option_before_or_behind_the_command(folder: Path, tmp_path: Path, before: bool) -> None:
    url = f"file:{tmp_path}/named"
    save(folder, "shop.py", wait_for_payment("old"))
    main = "import sys; from gasoline_es.cli import main; sys.argv[1:1] = sys.argv.pop().split(); main()"
    arguments = {"main": main} if before else {}
    last = ["--json", f"--log {url}"] if before else ["--log", url, "--json"]
    with Developing(folder, "shop", *last, json=False, **arguments) as dev:  # type: ignore[arg-type]
        assert dev.until("started")["log"] == url
        dev.until("ready")
    assert not (folder / ".gasoline").exists()
    assert invoke("--log", url, "workflow", "list").status == 0


def test_other_worker_on_the_log_is_told_of_and_a_client_may_use_it_too(folder: Path) -> None:
    save(folder, "shop.py", wait_for_payment("old"))
    with Developing(folder, "shop") as dev:
        worker = dev.until("ready")["pid"]
        with Developing(folder, "shop") as other:
            assert other.until("log_shared")["pid"] == worker
            other.until("ready")
            workflow_id = dev.dispatch("order")
            dev.until("dispatched", id=workflow_id)
            other.until("dispatched", id=workflow_id)
            dev.signal("paid", workflow_id)
            dev.until("completed", id=workflow_id)
            other.until("completed", id=workflow_id)


def test_other_workers_are_told_of_when_they_come_and_when_they_go(folder: Path) -> None:
    """Also while nothing else happens; its own worker is no other, before a reload and after."""
    save(folder, "shop.py", wait_for_payment("old"))
    with Developing(folder, "shop") as dev:
        dev.until("ready")
        with Developing(folder, "shop") as other:
            worker = other.until("ready")["pid"]
            assert dev.until("log_shared")["pid"] == worker
        assert dev.until("log_left")["pid"] == worker
        save(folder, "shop.py", wait_for_payment("new"))
        dev.until("ready")
        dev.until("dispatched", id=dev.dispatch("order"))
        assert [kind for kind in dev.kinds() if kind.startswith("log_")] == ["log_shared", "log_left"]


def test_lines_of_text_are_told_when_piped_and_hostile_text_is_escaped(folder: Path) -> None:
    hostile = 'raise RuntimeError("\\x1b[2J\\rforged\\u202e\\n2026 completed order")'
    save(folder, "shop.py", shop(hostile))
    with Developing(folder, "shop", json=False) as dev:
        lines = [dev.line()]
        while "runs order" not in lines[-1]:
            lines.append(dev.line())
        dev.dispatch("order")
        while "dead order" not in lines[-1]:
            lines.append(dev.line())
        assert r"RuntimeError: \x1b[2J\rforged\u202e\n2026 completed order" in lines[-1]
        assert not any("\x1b" in line or "\u202e" in line for line in lines)


# --- used wrongly -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([":fulfil"], "names no code"),
        (["shop", "--watch", "nowhere"], "--watch 'nowhere' is no directory"),
        (["shop", "--log", "memory:"], "lives inside the process that opened it"),
        (["shop", "--log", "data"], "is not the URL of a log"),
    ],
)
def test_misuse_is_told_and_nothing_is_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    monkeypatch.chdir(folder)
    done = invoke("dev", *arguments)
    assert done.status == 2
    assert told in done.stderr
    assert list(folder.iterdir()) == []


def test_without_the_package_that_watches_it_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    absent: Any = None
    monkeypatch.setitem(sys.modules, "watchfiles", absent)
    done = invoke("dev", "shop")
    assert done.status == 2
    assert 'pip install "gasoline_es[reload]"' in done.stderr
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("nosuch", "there is no module 'nosuch' here"),
        ("shop.nosuch", "there is no module 'shop.nosuch' here"),
        ("package.nosuch:order", "there is no module 'package.nosuch' here"),
        ("package/nosuch.py", "package/nosuch.py cannot be read: there is no such file"),
    ],
)
def test_a_module_that_is_not_there_is_refused_at_the_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, told: str
) -> None:
    """It would wait for a save of nobody knows what; nothing is made, and no package is run to find that out."""
    save(folder, "shop.py", "raise SystemExit(3)\n")
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("raise SystemExit(4)\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.path", [str(folder), *sys.path])
    before = sorted(folder.rglob("*"))
    done = invoke("dev", module)
    assert (done.status, done.stdout) == (2, "")
    assert done.stderr.startswith(f"gasoline: {told}")
    assert done.stderr.count("\n") == 1
    assert sorted(folder.rglob("*")) == before
    for there in ("shop", "package", "shop.py", "os.path", "tests.cli.histories"):
        Code.parse(there).require()


VIEWS = """
import sqlite3

from gasoline_es import Event
from projections import projection
from gasoline_es.events import WorkflowCompleted


def tables(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE done(what TEXT)")


@projection("done", version={version}, setup=tables)
def done(event: Event, db: sqlite3.Connection) -> None:
    if isinstance(event.data, WorkflowCompleted):
        db.execute("INSERT INTO done VALUES (?)", ({shown},))
"""


def rows_of(folder: Path) -> list[str]:
    """Return what stands in the projection's table, of the generation that is current."""
    path = folder / ".gasoline" / "projections" / "default" / "done.sqlite"
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as db:
        return [row for (row,) in db.execute("SELECT what FROM done ORDER BY 1")]


def test_projections_are_kept_up_and_a_new_version_of_them_that_is_saved_is_built(folder: Path) -> None:
    save(folder, "shop.py", shop('return "done"'))
    save(folder, "views.py", VIEWS.format(version=1, shown="'first'"))
    with Developing(folder, "shop", "--projections", "views") as dev:
        dev.until("ready")
        dev.dispatch("order")
        wait_until(lambda: rows_of(folder) == ["first"], "a row of the projection")
        dev.save("views.py", "raise RuntimeError('half written')")
        assert "half written" in dev.until("refused")["message"]
        dev.save("views.py", VIEWS.format(version=2, shown="'second'"))
        dev.until("ready")
        wait_until(lambda: rows_of(folder) == ["second"], "a row of the projection that was saved")
        dev.dispatch("order")
        wait_until(lambda: rows_of(folder) == ["second", "second"], "another row")


def test_a_module_of_projections_that_is_not_there_and_a_store_of_none_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(folder, "shop.py", shop('return "done"'))
    monkeypatch.chdir(folder)
    for options, told in (
        (("--projections", "nowhere"), "there is no module 'nowhere'"),
        (("--store", "sqlite:./views"), "give --projections"),
    ):
        done = invoke("dev", "shop", *options)
        assert done.status == 2
        assert told in done.stderr
    assert os.listdir(folder) == ["shop.py"]
