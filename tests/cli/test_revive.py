"""`gasoline workflow revive`: many dead workflows at once, with a dry run, without a worker or beside one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gasoline_es import ActivityContext, Gasoline, WorkflowContext, activity, workflow
from tests.cli.terminal import invoke, plain, run_on_terminal

rates: dict[str, float] = {}


@workflow
async def convert(ctx: WorkflowContext, currency: str) -> float:
    return rates[currency]


@workflow
async def quote(ctx: WorkflowContext, currency: str) -> float:
    raise ValueError(f"no rate of {currency}")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A log with two dead ``convert`` and a dead ``quote``, and nobody at work."""

    async def died() -> str:
        url = f"file:{tmp_path}/log"
        rates.clear()
        async with Gasoline.open(url, partitions=2) as gasoline, gasoline.worker([convert, quote]):
            for definition, currency in ((convert, "CHF"), (convert, "EUR"), (quote, "CHF")):
                handle = await gasoline.dispatch(definition, currency)
                while (await handle.get()).status != "dead":
                    await asyncio.sleep(0.01)
        return url

    return asyncio.run(died())


def statuses(url: str) -> list[str]:
    return [one["status"] for one in invoke("--log", url, "workflow", "list").objects]


def test_dry_run_reports_counts_and_changes_nothing(url: str) -> None:
    """semantics.md §7."""
    done = invoke("--log", url, "workflow", "revive", "--error", "", "--dry-run")
    assert (done.status, done.stderr) == (0, "")
    (told,) = done.objects
    assert (told["dry_run"], len(told["ids"]), told["names"], told["passed"]) == (
        True,
        3,
        {"convert": 2, "quote": 1},
        0,
    )
    assert told["errors"] == {"KeyError: 'CHF'": 1, "KeyError: 'EUR'": 1, "ValueError: no rate of CHF": 1}
    shown = invoke("--log", url, "workflow", "revive", "--name", "convert", "--dry-run", "--text").stdout
    assert [line.split() for line in shown.splitlines()] == [
        ["would", "wake", "2", "workflows"],
        ["by", "name", "2", "convert"],
        ["by", "error", "1", "KeyError:", "'CHF'"],
        ["1", "KeyError:", "'EUR'"],
    ]
    assert statuses(url) == ["dead"] * 3


def test_revive_wakes_them_without_a_worker_and_one_that_comes_runs_them(url: str) -> None:
    """semantics.md §7: what is decided is durable on return."""
    done = invoke("--log", url, "workflow", "revive", "--name", "convert", "--error", "CHF")
    assert (done.status, done.stderr) == (0, "")
    (told,) = done.objects
    assert (told["dry_run"], told["names"]) == (False, {"convert": 1})
    assert sorted(statuses(url)) == ["dead", "dead", "running"]

    async def work() -> float:
        rates["CHF"] = 1.05
        async with Gasoline.open(url) as gasoline, gasoline.worker([convert, quote]):
            return await gasoline.handle(told["ids"][0], convert).output(timeout=30)

    assert asyncio.run(work()) == 1.05
    again = invoke("--log", url, "workflow", "revive", "--name", "convert", "--error", "CHF", "--text")
    assert again.stdout == "woken  0 workflows\n"


async def test_revive_beside_a_worker_is_decided_there(url: str) -> None:
    """design §5: through the inbox; what is woken runs at once."""
    rates.update(CHF=1.05, EUR=1.0)
    async with Gasoline.open(url) as gasoline, gasoline.worker([convert, quote]):
        done = await asyncio.to_thread(run_apart, url)
        assert done == 0
        async for info in gasoline.list(name="convert"):
            assert await gasoline.handle(info.id, convert).output(timeout=30) > 0


def run_apart(url: str) -> int:
    from tests.cli.terminal import run

    return run("--log", url, "workflow", "revive", "--name", "convert").status


def test_a_terminal_sees_the_progress_on_stderr_and_the_counts(url: str) -> None:
    done = run_on_terminal("--log", url, "workflow", "revive", "--error", "Key", stderr=True)
    assert done.status == 0
    assert "reviving" in done.stdout
    assert "2 workflows" in plain(done.stdout)


@pytest.mark.parametrize(
    ("options", "status", "why"),
    [
        ((), 2, "say which: --name NAME or --error TEXT"),
        (("--name", "Con vert"), 2, "Con vert"),
    ],
)
def test_revival_of_nothing_in_particular_is_used_wrongly(
    url: str, options: tuple[str, ...], status: int, why: str
) -> None:
    for dry in ((), ("--dry-run",)):
        done = invoke("--log", url, "workflow", "revive", *options, *dry)
        assert (done.status, done.stdout) == (status, "")
        assert why in done.stderr


def test_log_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    done = invoke("--log", f"file:{tmp_path}/typo", "workflow", "revive", "--error", "")
    assert done.status == 1
    assert "there is no log in" in done.stderr
    assert list(tmp_path.iterdir()) == []


@activity(max_attempts=1)
async def ask_the_bank(ctx: ActivityContext, currency: str) -> float:
    raise ConnectionError("the bank is closed")


@workflow
async def ask(ctx: WorkflowContext, currency: str) -> float:
    return await ctx.activity(ask_the_bank, currency)


@pytest.fixture
def asked(url: str) -> tuple[str, str]:
    """The same log with one more that is dead, of an activity's final failure: its URL, and that one's id."""

    async def died() -> str:
        async with Gasoline.open(url) as gasoline, gasoline.worker([ask]):
            handle = await gasoline.dispatch(ask, "CHF")
            while (await handle.get()).status != "dead":
                await asyncio.sleep(0.01)
            return handle.id

    return url, asyncio.run(died())


def test_woken_ones_that_will_die_again_are_said_with_what_to_do(asked: tuple[str, str]) -> None:
    """semantics.md §7: a final failure stays final."""
    url, workflow_id = asked
    for options in (("--dry-run",), ()):
        told = invoke("--log", url, "workflow", "revive", "--error", "", *options, "--text", columns=160).stdout
        assert "1 of them died of a final failure of an activity, and will of it again:" in told
        assert "to have it tried again, --recover" in told
    (woken,) = invoke("--log", url, "workflow", "wake", workflow_id).objects
    assert (woken["status"], woken["final"]) == ("running", False), "it is not dead of it now"


def test_wake_says_that_a_final_failure_stays(asked: tuple[str, str]) -> None:
    url, workflow_id = asked
    shown = invoke("--log", url, "workflow", "wake", workflow_id, "--text", columns=60).stdout.splitlines()
    told = "it died of a final failure of an activity, and will of it again: to have it tried again, "
    assert shown[-1] == f"{told}`gasoline workflow recover {workflow_id}`"


def test_wake_tells_it_in_json_too(asked: tuple[str, str]) -> None:
    url, workflow_id = asked
    (woken,) = invoke("--log", url, "workflow", "wake", workflow_id).objects
    assert woken == {"id": workflow_id, "name": "ask", "status": "running", "final": True}


def test_revive_recovers_with_a_dry_run_that_says_the_same(asked: tuple[str, str]) -> None:
    url, workflow_id = asked
    call = ("--log", url, "workflow", "revive", "--error", "", "--recover")
    shown = invoke(*call, "--dry-run", "--text", columns=160).stdout.splitlines()
    assert shown[0].split() == ["would", "recover", "1", "workflow"]
    assert shown[-1].split(maxsplit=1) == ["left", "3 workflows that died of no activity's failure: wake them"]
    assert statuses(url) == ["dead"] * 4
    (would,) = invoke(*call, "--dry-run").objects
    (done,) = invoke(*call).objects
    assert done == {**would, "dry_run": False}
    assert (done["ids"], done["final"], done["left"]) == ([workflow_id], 1, 3)
    assert sorted(statuses(url)) == ["dead", "dead", "dead", "running"]
