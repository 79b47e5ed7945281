"""`gasoline_es.testing.replay_check` and its pytest fixture: the same check, in a project's own tests."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import Gasoline
from gasoline_es.checking.code import Code, CodeRefused
from gasoline_es.testing import ReplayCheck, replay_check
from gasoline_es.testing.replays import replay_check_or_fail
from tests.cli.histories import Order, Story, doomed, fulfil_of, hostile, waiting

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = "gasoline_es.testing.plugin"


def test_the_function_gives_a_report(story: Story) -> None:
    report = replay_check([fulfil_of(2), doomed, hostile, waiting], story.url)
    assert (report.ok, report.histories, report.replayed) == (True, 4, 4)
    assert report.not_in_module == {"doubtful": 1}
    assert str(report) == "4 of 4 histories replay, 0 diverge, 0 cannot be read, 1 are of other workflows"


async def test_the_function_may_be_called_where_a_loop_runs_also_on_a_memory_log() -> None:
    async with Gasoline.open("memory:checked") as gasoline, gasoline.worker([waiting]):
        await gasoline.dispatch(waiting, Order(order="1"))
        assert replay_check([waiting], "memory:checked").replayed == 1


def test_the_fixture_fails_a_test_with_what_diverges(story: Story, tmp_path: Path) -> None:
    from tests.cli.terminal import invoke

    events = tmp_path / "events.jsonl"
    events.write_text(invoke("--log", story.url, "log", "dump", "--topic", "events").stdout)
    check: ReplayCheck = replay_check_or_fail
    assert check([fulfil_of(2), waiting], events).ok
    (tmp_path / "changed.py").write_text(
        "from gasoline_es import WorkflowContext, workflow\nfrom tests.cli.histories import Order, notify\n\n\n"
        "@workflow\nasync def fulfil(ctx: WorkflowContext, order: Order) -> None:\n    await ctx.activity(notify, order)\n"
    )
    changed = Code(str(tmp_path / "changed.py")).load()
    with pytest.raises(pytest.fail.Exception) as failed:
        check(changed.values(), str(events))
    assert f"fulfil {story.fulfil}: history diverged at {{1}}: recorded is activity 'charge'" in str(failed.value)


def test_two_workflows_of_one_name_are_refused(story: Story) -> None:
    with pytest.raises(CodeRefused, match="two workflows have the name 'fulfil'"):
        replay_check([fulfil_of(1), _other_fulfil()], story.url)


def test_the_plugin_is_found_by_pytest_and_loads_nothing_at_its_start(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert PLUGIN in project["entry-points"]["pytest11"].values()
    (tmp_path / "test_it.py").write_text(
        "import sys\n\n\ndef test_it(gasoline_replay_check):\n"
        "    assert gasoline_replay_check.__name__ == 'replay_check_or_fail'\n"
        "    heavy = ('pydantic', 'orjson', 'typer', 'rich')\n"
        "    assert [name for name in heavy if name in sys.modules] == []\n"
    )
    # The entry point is that of whatever is installed here; the module is this one's.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", PLUGIN, "test_it.py"]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_the_exports_load_when_they_are_asked_for() -> None:
    code = (
        "import sys, gasoline_es.testing as testing\nassert 'pydantic' not in sys.modules\n"
        "from gasoline_es.testing import replay_check\nassert callable(replay_check)\nassert 'rich' not in sys.modules\n"
        "import gasoline_es.testing.replays\nassert testing.replay_check is replay_check\n"
    )
    environment = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def _other_fulfil() -> Any:
    from gasoline_es import WorkflowContext, workflow

    @workflow("fulfil")
    async def fulfil(ctx: WorkflowContext, order: Order) -> str:
        await asyncio.sleep(0)
        return order.order

    return fulfil
