"""A mixture of everything, killed by SIGKILL at random moments, again and again (design §1)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from gasoline_es import Gasoline
from gasoline_es.core import events as ev
from tests.engine.harness import PATIENCE_S, assert_sound, consumed, soon, successes
from tests.engine.subprocesses import line, program
from tests.engine.workflows import PUSHES, mixture_output


async def chaos(url: str, workflows: int, kills: int, longest_s: float, seed: int) -> None:
    moments = random.Random(seed)
    for _ in range(kills):
        async with program("chaos", url, str(workflows)) as process:
            if await line(process) == "ready":
                try:
                    async with asyncio.timeout(moments.uniform(0, longest_s)):
                        await process.wait()
                except TimeoutError:
                    pass
            with contextlib.suppress(ProcessLookupError):  # it was done before its time came
                process.kill()
    async with program("chaos", url, str(workflows)) as process:
        assert await line(process) == "ready"
        # What the kills left is work, and much of it: 1,000 workflows take this last life half a minute.
        assert await line(process, PATIENCE_S + workflows / 4) == "complete"
        _, err = await soon(process.communicate())
        assert process.returncode == 0
        assert err == b""
    await assert_all_well(url, workflows)


async def assert_all_well(url: str, workflows: int) -> None:
    """Every workflow is complete with its output; every step is recorded once, every signal consumed once."""
    async with Gasoline.open(url, readonly=True) as gasoline:
        infos = [info async for info in gasoline.list(payloads=True)]
        assert len(infos) == workflows
        for info in infos:
            assert info.status == "complete", info
            history = await gasoline.history(info.id)
            assert_sound(history)
            assert info.output == mixture_output(info.input)
            assert sorted(consumed(history)) == [f"push-{number}" for number in range(PUSHES)]
            done = successes(history)
            assert [one.name for one in done] == ["step", "thread_step"] * 3
            assert len({one.location for one in done}) == 6
            assert info.state == {"steps": ["0", "1", "2"]}, "a failed attempt's change of the state is dropped"
            sleeps = [event for event in history if isinstance(event.data, ev.SleepFinished)]
            assert len(sleeps) == 6
        assert list(gasoline.log.verify())


async def test_mixture_of_workflows_survives_kills_at_random_moments(tmp_path: Path) -> None:
    """design §1: 4 kills; every step recorded once, every signal consumed once."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    await chaos(f"file:{tmp_path}/log", workflows=20, kills=4, longest_s=0.5, seed=seed)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("round_", range(3))
async def test_mixture_of_many_workflows_survives_many_kills(tmp_path: Path, round_: int) -> None:
    """design §1: 60 kills over 1,000 workflows."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}, round {round_}")
    await chaos(f"file:{tmp_path}/log", workflows=1_000, kills=60, longest_s=3.0, seed=seed)
