"""A namespace moves to a real cluster, and from there (0040)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gasoline_es import Gasoline
from gasoline_es.log.copying import copy_log
from gasoline_es.log.opening import open_log
from tests.engine.workflows import Note, echo, nap, notes

Events = dict[str, bytes | None]


async def events_of(url: str, namespace: str) -> Events:
    log = await open_log(url, namespace=namespace, readonly=True)
    topic = f"{namespace}.events"
    await log.refresh(*((topic, p) for p in range(log.partition_count)))
    found = {one.key: one.value for p in range(log.partition_count) for one in log.read(topic, p)}
    await log.close()
    return found


async def fill(url: str, namespace: str, count: int) -> tuple[str, str]:
    """Make a log: some that is over, one that sleeps, one that listens and has a signal."""
    async with Gasoline.open(url, namespace=namespace, partitions=3) as gasoline:
        async with gasoline.worker([echo, nap, notes]):
            for number in range(count):
                await (await gasoline.dispatch(echo, f"{number}")).output()
            sleeping = await gasoline.dispatch(nap, 1.0)
        listening = await gasoline.dispatch(notes, 2)
        await listening.signal(Note(text="before"))
    return sleeping.id, listening.id


async def all_goes_on(url: str, namespace: str, sleeping: str, listening: str) -> None:
    """Let what :func:`fill` left come to its end."""
    async with Gasoline.open(url, namespace=namespace) as gasoline, gasoline.worker([echo, nap, notes]):
        assert await gasoline.handle(sleeping, nap).output() == "awake"
        await gasoline.handle(listening, notes).signal(Note(text="after"))
        assert await gasoline.handle(listening, notes).output() == ["before", "after"]


async def test_files_go_to_a_cluster_and_everything_goes_on(
    kafka_bootstrap: str, kafka_namespace: str, tmp_path: Path
) -> None:
    files = f"file:{tmp_path}/old"
    cluster = f"kafka://{kafka_bootstrap}/{kafka_namespace}?state_dir={tmp_path}/state"
    sleeping, listening = await fill(files, kafka_namespace, 5)
    await copy_log(files, cluster, partitions=2)
    assert await events_of(cluster, kafka_namespace) == await events_of(files, kafka_namespace)
    await all_goes_on(cluster, kafka_namespace, sleeping, listening)


@pytest.mark.soak
async def test_a_cluster_goes_to_files_and_everything_goes_on(
    kafka_bootstrap: str, kafka_namespace: str, tmp_path: Path
) -> None:
    cluster = f"kafka://{kafka_bootstrap}/{kafka_namespace}?state_dir={tmp_path}/state"
    files = f"file:{tmp_path}/files"
    sleeping, listening = await fill(cluster, kafka_namespace, 20)
    await copy_log(cluster, files, partitions=4)
    assert await events_of(files, kafka_namespace) == await events_of(cluster, kafka_namespace)
    await all_goes_on(files, kafka_namespace, sleeping, listening)


@pytest.mark.soak
@pytest.mark.parametrize("driver", ["confluent", "kafka-python"])
async def test_killed_on_its_way_to_a_cluster_it_comes_to_its_end(
    kafka_bootstrap: str, kafka_namespace: str, tmp_path: Path, driver: str
) -> None:
    files = f"file:{tmp_path}/old"
    cluster = f"kafka://{kafka_bootstrap}/{kafka_namespace}?driver={driver}&state_dir={tmp_path}/state"
    await fill(files, kafka_namespace, 300)
    # It ends at its n-th append, as SIGKILL would end it, whichever log that is to.
    for number in (2, 5, 8, 11, 40):
        died = await asyncio.to_thread(_copy_dying, files, cluster, number)
        assert died in (0, 9), died
        if died == 0:
            break
        await asyncio.sleep(11)  # on a cluster a process is taken for dead by its silence
    copied = await copy_log(files, cluster, partitions=2)
    assert await events_of(cluster, kafka_namespace) == await events_of(files, kafka_namespace)
    assert copied.again or copied.topics["events"].found > 0


def _copy_dying(source: str, target: str, number: int) -> int:
    program = Path(__file__).with_name("copying_dies.py")
    env = {**os.environ, "PYTHONPATH": str(program.parents[2])}
    return subprocess.run([sys.executable, str(program), source, target, f"{number}"], env=env, check=False).returncode
