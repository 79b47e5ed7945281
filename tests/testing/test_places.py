"""Where a simulation may be used: in plain tests, on whatever event loop, in fixtures of every scope, in several at once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from gasoline_es.testing import Simulation
from tests.testing.shop import WEEK, Order, fulfil

ORDER = Order(number=1)
ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def shared() -> Iterator[Simulation]:
    with Simulation([fulfil]) as sim:
        yield sim


@pytest.mark.parametrize("run", range(3))
def test_a_module_shares_one(shared: Simulation, run: int) -> None:
    before = shared.elapsed
    assert shared.dispatch(fulfil, ORDER).output() == "cancelled"
    assert shared.elapsed - before == WEEK


async def test_a_module_shares_one_with_its_async_tests(shared: Simulation) -> None:
    assert shared.dispatch(fulfil, ORDER).output() == "cancelled"


async def test_the_outer_loop_goes_on_where_it_was() -> None:
    ticks: list[int] = []

    async def tick() -> None:
        for number in range(3):
            ticks.append(number)
            await asyncio.sleep(0)

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    ticking = asyncio.create_task(tick())
    before = loop.time()
    with Simulation([fulfil]) as sim:
        assert sim.dispatch(fulfil, ORDER).output() == "cancelled"
        assert asyncio.get_running_loop() is loop
        assert asyncio.current_task() is task
    assert ticks == [], "it stands still meanwhile"
    await ticking
    assert ticks == [0, 1, 2]
    async with asyncio.timeout(10):
        await asyncio.sleep(0.001)
    assert loop.time() - before < timedelta(days=1).total_seconds()


def test_two_simulations_have_times_of_their_own() -> None:
    with Simulation([fulfil]) as one, Simulation([fulfil]) as two:
        first, second = one.dispatch(fulfil, ORDER), two.dispatch(fulfil, ORDER)
        assert first.output() == "cancelled"
        assert (one.elapsed, two.elapsed) == (WEEK, timedelta(0))
        assert second.output() == "cancelled"


def test_an_error_in_the_block_is_the_error_of_the_test() -> None:
    def block() -> None:
        with Simulation([fulfil]) as sim:
            sim.dispatch(fulfil, ORDER)
            raise LookupError

    with pytest.raises(LookupError):
        block()


# --- the plugin -------------------------------------------------------------------------------------------------------

MODULE = """
    import pytest
    from gasoline_es import WorkflowContext, workflow
    from gasoline_es.testing import Simulation

    SCOPES = ["", "class_", "module_", "package_", "session_"]

    @workflow
    async def rest(ctx: WorkflowContext, days: int) -> int:
        await ctx.sleep(days * 86_400)
        return days

    made = {}

    @pytest.fixture(scope="session")
    def whole_session(session_gasoline_simulation) -> Simulation:
        return session_gasoline_simulation([rest])

    @pytest.fixture(params=SCOPES)
    def any_scope(request) -> Simulation:
        make = request.getfixturevalue(f"{request.param}gasoline_simulation")
        return make([rest], partitions=1)

    @pytest.mark.parametrize("days", [1, 2, 3])
    def test_in_any_scope(any_scope, days) -> None:
        assert any_scope.dispatch(rest, days).output() == days
        assert any_scope.elapsed.days == days

    @pytest.mark.parametrize("days", [1, 2, 3])
    def test_in_the_session(whole_session, days) -> None:
        before = whole_session.elapsed
        assert whole_session.dispatch(rest, days).output() == days
        assert (whole_session.elapsed - before).days == days

    async def test_in_a_coroutine(whole_session, gasoline_simulation) -> None:
        assert whole_session.dispatch(rest, 1).output() == 1
        assert gasoline_simulation([rest]).dispatch(rest, 2).output() == 2

    @pytest.mark.anyio
    async def test_with_anyio(whole_session) -> None:
        assert whole_session.dispatch(rest, 1).output() == 1

    @pytest.fixture(scope="class")
    def sim(class_gasoline_simulation) -> Simulation:
        return class_gasoline_simulation([rest])

    class TestInAClass:
        def test_first(self, sim) -> None:
            made.setdefault("sim", sim)
            assert made["sim"] is sim

        def test_second(self, sim) -> None:
            self.test_first(sim)
"""

ASYNCIO = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"]


def pytest_in(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_rest.py").write_text(textwrap.dedent(MODULE))
    # The name of the plugin is that of its entry point: naming it is right whether it is installed as such or not.
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "gasoline_es.testing.plugin", *options]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False)


def test_fixtures_of_every_scope_in_random_order(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, "-p", "no:cacheprovider", *ASYNCIO)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "22 passed" in done.stdout, done.stdout


def test_the_plugin_loads_nothing_before_a_fixture_is_used() -> None:
    code = "import sys, pytest; before = set(sys.modules); import gasoline_es.testing.plugin; print(*set(sys.modules) - before)"
    done = python(code)
    assert set(done.stdout.split()) == {
        "gasoline_es",
        "gasoline_es.lazy",
        "gasoline_es.testing",
        "gasoline_es.testing.plugin",
    }, done.stderr


@pytest.mark.parametrize("module", ["gasoline_es", "gasoline_es.testing", "gasoline_es.testing.crashes"])
def test_without_pytest_there_is_all_but_the_plugin(module: str) -> None:
    code = f"import sys; sys.modules['pytest'] = None; import {module}"
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_the_plugin_is_an_entry_point_under_its_own_name() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert points == {"gasoline_es.testing.plugin": "gasoline_es.testing.plugin"}
