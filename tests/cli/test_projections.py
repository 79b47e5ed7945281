"""`gasoline projections …`: how they stand, kept up, built anew, compared (docs/operations.md, "Projections")."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from pathlib import Path

import pytest

from gasoline_es.log import open_log
from gasoline_es.log.port import Log
from tests.cli.terminal import environment, invoke, plain, run_on_terminal
from tests.engine.harness import soon
from tests.projection.orders import append_orders

_COMMAND = [sys.executable, "-c", "from gasoline_es.cli import main; main()"]
ROOT = Path(__file__).resolve().parents[2]

VIEWS = """
import os
from projections.definition import Projection, projection
from tests.projection.orders import apply_order, make_tables

VERSION = int(os.environ.get("VIEWS_VERSION", "1"))

@projection("turnover", version=VERSION, setup=make_tables)
def turnover(event, db):
    if getattr(event.data, "input", b"") == os.environ.get("VIEWS_REFUSE", "").encode():
        raise RuntimeError("it is no price")
    apply_order(event, db)

class Other(Projection):
    name = "other"

    def setup(self, db):
        db.execute("CREATE TABLE counted(partition INTEGER, seq INTEGER)")

    def apply(self, event, db):
        db.execute("INSERT INTO counted VALUES (?, ?)", (event.partition, event.seq))
"""


@pytest.fixture
def views(tmp_path: Path) -> str:
    path = tmp_path / "views_of_orders.py"
    path.write_text(VIEWS)
    return str(path)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A log with three orders in one partition and one in the other."""

    async def fill() -> None:
        log: Log = await open_log(f"file:{tmp_path}/log", partitions=2)
        await append_orders(log, 5, 7, 9)
        await append_orders(log, 100, partition=1, first=10)
        await log.close()

    asyncio.run(fill())
    return f"file:{tmp_path}/log"


def table(tmp_path: Path, statement: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(tmp_path / "log" / "projections" / "default" / "turnover.sqlite") as db:
        found = db.execute(statement).fetchall()
    db.close()
    return found


def test_projections_are_folded_once_shown_verified_and_rebuilt(url: str, views: str, tmp_path: Path) -> None:
    assert invoke("--log", url, "projections", "status").objects == []
    ran = invoke("--log", url, "projections", "run", views, "--once")
    assert (ran.status, ran.objects) == (
        0,
        [
            {"projection": "turnover", "standing": "folding", "error": None, "stopped": []},
            {"projection": "other", "standing": "folding", "error": None, "stopped": []},
        ],
    )
    assert table(tmp_path, "SELECT * FROM turnover ORDER BY partition") == [(0, 3, 21), (1, 1, 100)]
    shown = {one["projection"]: one for one in invoke("--log", url, "projections", "status").objects}
    assert sorted(shown) == ["other", "turnover"]
    size = shown["turnover"].pop("bytes")
    assert size > 0
    assert shown["turnover"] == {
        "projection": "turnover",
        "generation": 1,
        "version": 1,
        "state": "live",
        "current": True,
        "behind": 0,
        "problem": None,
        "failing": None,
        "stopped": [],
    }
    verified = invoke("--log", url, "projections", "verify", views, "turnover")
    assert (verified.status, verified.objects) == (
        0,
        [
            {
                "projection": "turnover",
                "generation": 1,
                "records": 4,
                "tables": 2,
                "rows": 6,
                "difference": None,
                "stopped": 0,
            }
        ],
    )
    rebuilt = invoke("--log", url, "projections", "rebuild", f"{views}:turnover")
    assert (rebuilt.status, rebuilt.objects) == (0, [{"projection": "turnover", "generation": 2, "records": 4}])


def test_a_difference_is_named_and_fails(url: str, views: str, tmp_path: Path) -> None:
    assert invoke("--log", url, "projections", "run", views, "--once").status == 0
    table(tmp_path, "UPDATE turnover SET cents = 22 WHERE partition = 0")
    done = invoke("--log", url, "projections", "verify", views)
    assert done.status == 1
    turnover, other = done.objects
    assert turnover["difference"] == {
        "table": "turnover",
        "key": {"partition": 0},
        "stored": {"partition": 0, "orders": 3, "cents": 22},
        "fresh": {"partition": 0, "orders": 3, "cents": 21},
        "reason": "the rows differ",
    }
    assert other["difference"] is None
    shown = plain(run_on_terminal("--log", url, "projections", "verify", views, "turnover", columns=120).stdout)
    assert "turnover: the rows differ" in shown
    assert "partition=0, orders=3, cents=22" in shown
    assert "partition=0, orders=3, cents=21" in shown


@pytest.mark.parametrize(
    ("statement", "table_name", "stored", "fresh", "reason"),
    [
        ("DELETE FROM turnover WHERE partition = 0", "turnover", None, 21, "only a fresh fold has the row"),
        ("INSERT INTO turnover VALUES (7, 1, 3)", "turnover", 3, None, "only the store has the row"),
        ("CREATE TABLE more(x)", "more", None, None, "only the store has the table"),
        ("DROP TABLE seen", "seen", None, None, "only a fresh fold makes the table"),
        (
            "ALTER TABLE seen ADD COLUMN more",
            "seen",
            None,
            None,
            "its columns are workflow, seq, kind, more in the store, and workflow, seq, kind in a fresh fold",
        ),
        ("UPDATE turnover SET cents = 'much' WHERE partition = 0", "turnover", "much", 21, "the rows differ"),
    ],
)
def test_each_kind_of_difference_is_found(
    statement: str,
    table_name: str,
    stored: object,
    fresh: object,
    reason: str,
    url: str,
    views: str,
    tmp_path: Path,
) -> None:
    assert invoke("--log", url, "projections", "run", views, "turnover", "--once").status == 0
    table(tmp_path, statement)
    done = invoke("--log", url, "projections", "verify", views, "turnover")
    assert done.status == 1
    found = done.objects[0]["difference"]
    assert found["table"] == table_name
    assert found["reason"].startswith(reason)
    assert (found["stored"] and found["stored"]["cents"], found["fresh"] and found["fresh"]["cents"]) == (stored, fresh)


def test_what_stands_still_is_shown_and_fails(url: str, views: str) -> None:
    ran = invoke("--log", url, "projections", "run", views, "turnover", "--once", VIEWS_REFUSE="7")
    assert ran.status == 1
    (stopped,) = ran.objects[0]["stopped"]
    raised = "RuntimeError: it is no price (views_of_orders.py:11)"
    assert (stopped["partition"], stopped["offset"], stopped["error"]) == (0, 1, raised)
    done = invoke("--log", url, "projections", "status")
    assert done.status == 1
    (one,) = done.objects
    assert one["behind"] == 2
    assert one["stopped"][0]["event"].endswith("(WorkflowDispatched)")
    shown = plain(run_on_terminal("--log", url, "projections", "status", columns=300).stdout)
    assert "turnover, generation 1, stands before" in shown
    assert raised in shown
    verified = invoke("--log", url, "projections", "verify", views, "turnover")
    assert (verified.status, verified.objects[0]["stopped"]) == (0, 1)
    rebuilt = invoke("--log", url, "projections", "rebuild", views, "turnover", VIEWS_REFUSE="7")
    assert rebuilt.status == 0, "there is nothing that the old one had applied"
    assert invoke("--log", url, "projections", "run", views, "turnover", "--once").status == 0
    refused = invoke("--log", url, "projections", "rebuild", views, "turnover", VIEWS_REFUSE="7")
    assert (refused.status, refused.stdout) == (1, "")
    assert "it is no price" in refused.stderr
    assert invoke("--log", url, "projections", "verify", views, "turnover").status == 0


def test_a_newer_version_is_compared_with_nothing_older(url: str, views: str) -> None:
    assert invoke("--log", url, "projections", "run", views, "--once").status == 0
    done = invoke("--log", url, "projections", "verify", views, "turnover", VIEWS_VERSION="2")
    assert done.status == 1
    assert "was built by version 1, and this code has version 2" in done.stderr
    assert invoke("--log", url, "projections", "run", views, "turnover", "--once", VIEWS_VERSION="2").status == 0
    outdated = invoke("--log", url, "projections", "run", views, "turnover", "--once")
    assert (outdated.status, outdated.objects[0]["standing"]) == (1, "outdated")


def test_another_store_is_named_by_its_url(url: str, views: str, tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/elsewhere"
    assert invoke("--log", url, "projections", "run", views, "--once", "--store", store).status == 0
    assert (tmp_path / "elsewhere" / "default" / "turnover.sqlite").is_symlink()
    assert invoke("--log", url, "projections", "status").objects == []
    assert len(invoke("--log", url, "projections", "status", GASOLINE_PROJECTIONS_STORE=store).objects) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "tests.cli.flows"], "there is no projection in tests.cli.flows"),
        (["verify", "no.such.module"], "there is no module 'no.such.module'"),
        (["status", "--store", "mysql://x"], "is not the URL of a store for projections"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], told: str, url: str) -> None:
    done = invoke("--log", url, "projections", *words)
    assert (done.status, done.stdout) == (2, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_name_that_the_module_lacks_is_refused(url: str, views: str) -> None:
    done = invoke("--log", url, "projections", "rebuild", views, "nobody")
    assert (done.status, done.stdout) == (2, "")
    assert "there is no projection 'nobody'" in done.stderr
    assert "other, turnover" in done.stderr


async def test_projections_are_kept_up_until_sigterm(url: str, views: str, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(*_COMMAND, "--log", url, "projections", "run", views),
        cwd=ROOT,
        env=environment(),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        for _ in range(2):
            line = await soon(process.stderr.readline())
            assert b"a projection was built" in line, line
        log = await open_log(url)
        await append_orders(log, 1000, first=20)
        while table(tmp_path, "SELECT cents FROM turnover WHERE partition = 0") != [(1021,)]:
            await asyncio.sleep(0.02)
        await log.close()
        os.kill(process.pid, signal.SIGTERM)
        assert await soon(process.wait()) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_worker_of_the_command_line_keeps_projections_up(url: str, views: str, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(*_COMMAND, "--log", url, "worker", "tests.engine.workflows", "--projections", f"{views}:turnover"),
        cwd=ROOT,
        env=environment(),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        while b"a projection was built: 'turnover', of 4 records" not in await soon(process.stderr.readline()):
            pass
        assert table(tmp_path, "SELECT sum(cents) FROM turnover") == [(121,)]
        os.kill(process.pid, signal.SIGTERM)
        assert await soon(process.wait()) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_a_damaged_projection_is_shown_beside_the_others(url: str, views: str, tmp_path: Path) -> None:
    assert invoke("--log", url, "projections", "run", views, "--once").status == 0
    (tmp_path / "log" / "projections" / "default" / "other.1.sqlite").write_bytes(b"no database" * 1_000)
    done = invoke("--log", url, "projections", "status")
    assert done.status == 1
    other, turnover = done.objects
    assert (other["projection"], other["generation"]) == ("other", None)
    assert "other.1.sqlite" in other["problem"]
    assert (turnover["projection"], turnover["problem"]) == ("turnover", None)
    shown = plain(run_on_terminal("--log", url, "projections", "status", columns=200).stdout)
    assert "turnover" in shown
    assert "other.1.sqlite" in shown
    assert invoke("--log", url, "projections", "run", views, "--once").status == 0
    assert invoke("--log", url, "projections", "status").status == 0


def test_code_that_is_hidden_by_a_module_of_its_name_is_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "projections.py").touch()
    monkeypatch.chdir(tmp_path)
    done = invoke("--log", url, "projections", "run", "projections", "--once")
    assert (done.status, done.stdout) == (2, "")
    assert "projections.py cannot be loaded as 'projections', which is another module (" in done.stderr
    assert done.stderr.endswith("give it another name\n")


BROKEN = """
from projections.definition import Projection
from tests.projection.orders import make_tables

class Nowhere(Projection):
    name = "nowhere"

    def setup(self, db):
        make_tables(db)

    def apply(self, event, db):
        db.execute("INSERT INTO nowhere VALUES (1)")

class Unmade(Projection):
    name = "unmade"

    def setup(self, db):
        raise SystemExit(3)

    def apply(self, event, db):
        pass

class Closes(Projection):
    name = "closes"

    def setup(self, db):
        make_tables(db)

    def apply(self, event, db):
        db.close()
"""


@pytest.fixture
def broken(tmp_path: Path) -> str:
    path = tmp_path / "views_that_break.py"
    path.write_text(BROKEN)
    return str(path)


def test_a_reason_that_meets_several_partitions_is_told_once(
    url: str, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    ran = invoke("--log", url, "projections", "run", broken, "nowhere", "--once", "--text")
    assert ran.status == 1
    printed = " ".join(ran.stdout.split())
    reason = "OperationalError: no such table: nowhere (views_that_break.py:12)"
    assert printed.count(reason) == 1
    assert "in 1 more partition" in printed
    assert caplog.text.count("a projection could not apply an event") == 1
    assert 'views_that_break.py", line 12, in apply' in caplog.text, "the traceback"
    (built,) = (record for record in caplog.records if "was built" in record.message)
    assert (built.levelname, built.__dict__["stopped"]) == ("WARNING", 2)
    assert "in 2 partitions it stands before an event" in built.message
    shown = plain(run_on_terminal("--log", url, "projections", "status", columns=300).stdout)
    assert f"nowhere, generation 1, stands still in 2 of 2 partitions: {reason}; the first:" in shown
    every = plain(run_on_terminal("--log", url, "projections", "status", "--full", columns=300).stdout)
    assert every.count("nowhere, generation 1, stands before") == 2
    verified = invoke("--log", url, "projections", "verify", broken, "nowhere", "--text")
    assert "nowhere stands before an event in 2 partitions" in verified.stdout


@pytest.mark.parametrize(("name", "told"), [("unmade", "raised SystemExit(3)"), ("closes", "closed database")])
def test_what_cannot_be_kept_up_is_shown_until_it_goes_on(name: str, told: str, url: str, broken: str) -> None:
    assert invoke("--log", url, "projections", "run", broken, name, "--once").status == 1
    done = invoke("--log", url, "projections", "status")
    assert done.status == 1
    (one,) = done.objects
    assert (one["projection"], one["stopped"]) == (name, [])
    assert told in one["failing"]["error"]
    shown = plain(run_on_terminal("--log", url, "projections", "status", columns=300).stdout)
    assert told in shown
    path = Path(broken)
    path.write_text(BROKEN.replace("raise SystemExit(3)", "make_tables(db)").replace("db.close()", "pass"))
    assert invoke("--log", url, "projections", "run", broken, name, "--once").status == 0
    done = invoke("--log", url, "projections", "status")
    assert (done.status, [one["failing"] for one in done.objects]) == (0, [None])


def test_a_projection_is_removed_with_all_that_there_is_of_it(url: str, views: str, tmp_path: Path) -> None:
    assert invoke("--log", url, "projections", "run", views, "--once").status == 0
    done = invoke("--log", url, "projections", "remove", "turnover")
    assert (done.status, done.objects) == (0, [{"projection": "turnover", "generations": 1}])
    assert [one["projection"] for one in invoke("--log", url, "projections", "status").objects] == ["other"]
    left = {path.name for path in (tmp_path / "log" / "projections" / "default").iterdir() if "turnover" in path.name}
    assert left <= {"turnover.lock", "turnover.swap"}
    again = invoke("--log", url, "projections", "remove", "turnover")
    assert again.status == 1
    assert "there is no projection 'turnover'" in again.stderr
    assert invoke("--log", url, "projections", "remove", "workflows").status == 2
    assert invoke("--log", url, "projections", "run", views, "turnover", "--once").status == 0
    assert table(tmp_path, "SELECT * FROM turnover ORDER BY partition") == [(0, 3, 21), (1, 1, 100)]


def test_a_table_that_one_side_lacks_is_told_without_rows(url: str, views: str, tmp_path: Path) -> None:
    assert invoke("--log", url, "projections", "run", views, "turnover", "--once").status == 0
    table(tmp_path, "CREATE TABLE more(n INTEGER)")
    done = invoke("--log", url, "projections", "verify", views, "turnover", "--text")
    assert done.status == 1
    assert "only the store has the table" in done.stdout
    assert "no row" not in done.stdout


def test_a_store_that_is_away_is_told_in_one_line(url: str) -> None:
    nobody = "postgresql://nobody@127.0.0.1:1/none"
    done = invoke("--log", url, "projections", "status", "--store", nobody)
    assert done.status == 1
    assert len(done.stderr.splitlines()) == 1
    assert "projection ''" not in done.stderr
    assert "\\n" not in done.stderr
