"""Random lives of a log against a simple model: what was acknowledged counts, once, in order, whatever crashes.

Two handles append, roll, release, freeze, run out of space, die and lose power in any order. The model knows only what each
append was told: acknowledged records must count; refused ones (no space) must not; fenced ones may.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import suppress
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gasoline_es.errors import Fenced, NoSpace, PartitionOwned
from gasoline_es.log.file.log import FileLog, open_file_log
from gasoline_es.log.port import Appended, Epoch, Problem
from gasoline_es.testing.faults import FaultyDisk, Killed
from gasoline_es.testing.log_contract import EVENTS, INBOX, event, numbers, put

_WHO = st.integers(0, 1)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), _WHO, st.integers(1, 6)),
        st.tuples(st.just("take"), _WHO, st.just(0)),
        st.tuples(st.sampled_from(["release", "die", "freeze", "reopen", "full", "send"]), _WHO, st.integers(0, 700)),
        st.tuples(st.sampled_from(["look", "power"]), st.just(0), st.integers(0, 2**31)),
    ),
    max_size=40,
)


class Life:
    """A log's directory, its two handles, and what they were told."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.now_s = 0.0
        self.disk = FaultyDisk(directory)
        self.logs: list[FileLog] = []
        self.epochs: list[Epoch | None] = [None, None]
        self.acked: list[int] = []
        self.maybe: set[int] = set()
        self.sent: list[int] = []
        self.counted: list[int] = []
        self.next = 0

    async def open(self) -> FileLog:
        return await open_file_log(
            self.directory, partitions=1, segment_bytes_max=1_500, disk=self.disk, clock=lambda: self.now_s
        )

    async def step(self, what: str, who: int, amount: int) -> None:
        log = self.logs[who]
        match what:
            case "put" | "full":
                await self._put(who, amount if what == "put" else 3, space=amount if what == "full" else None)
            case "send":
                self.next += 1
                if isinstance(await put(log, None, event(self.next, 0, INBOX)), Appended):
                    self.sent.append(self.next)
            case "take":
                with suppress(PartitionOwned, Fenced):
                    self.epochs[who] = (await log.acquire(0)).epoch
            case "release":
                await log.release(0)
            case "freeze":
                # Only this one's heart stands still: the other sees it, waits, and may take over.
                self.logs[1 - who].owner(0)
                self.now_s += 10.0
                other = self.logs[1 - who]._incarnation
                assert other is not None
                other.beat()
            case "die" | "reopen":
                await (log.crash() if what == "die" else log.close())
                self.logs[who], self.epochs[who] = await self.open(), None
            case "power":
                for each in self.logs:
                    await each.crash()
                self.disk.lose_power(Random(amount))
                self.logs, self.epochs = [await self.open(), await self.open()], [None, None]
                self.look()
            case _:
                self.look()

    async def _put(self, who: int, count: int, space: int | None) -> None:
        if self.epochs[who] is None:
            await self.step("take", who, 0)
        epoch = self.epochs[who]
        if epoch is None:
            return
        new = list(range(self.next + 1, self.next + 1 + count))
        self.next += count
        self.disk.space = space
        outcome = await put(self.logs[who], epoch, *[event(number, value=b'"%b"' % (b"x" * 40)) for number in new])
        self.disk.space = None
        if isinstance(outcome, Appended):
            self.acked += new
            assert numbers(self.logs[who].read(EVENTS, 0, outcome.offsets[EVENTS])) == new
        elif isinstance(outcome, Fenced):
            self.maybe |= set(new)
        else:
            assert isinstance(outcome, NoSpace), outcome

    def look(self) -> None:
        for log in self.logs:
            history = list(log.read(EVENTS, 0))
            assert [record.offset for record in history] == list(range(log.end(EVENTS, 0)))
            found = numbers(history)
            assert found[: len(self.counted)] == self.counted
            assert [number for number in found if number not in self.maybe] == self.acked
            assert len(set(found)) == len(found)
            self.counted = found
            sent = numbers(log.tail(INBOX, 0).poll())
            assert sorted(sent) == self.sent


async def _live(steps: list[tuple[str, int, int]], directory: str) -> None:
    life = Life(directory)
    life.logs = [await life.open(), await life.open()]
    for what, who, amount in steps:
        await life.step(what, who, amount)
    life.look()
    reader = await open_file_log(directory, readonly=True)
    assert numbers(reader.read(EVENTS, 0)) == life.counted
    for log in life.logs:
        await log.close()
    assert [found for found in reader.verify() if isinstance(found, Problem)] == []
    await reader.close()


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(steps=_STEPS)
def test_whatever_happens_what_was_acknowledged_counts_once_and_in_order(steps: list[tuple[str, int, int]]) -> None:
    """filelog.md §3–4, required.md B01, B03, B04."""
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_live(steps, directory))


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31), cut=st.integers(0, 60))
def test_a_process_killed_between_any_two_calls_leaves_a_log_that_opens(seed: int, cut: int) -> None:
    """required.md B01, B03: killed after any call to the disk, with and without power lost, at rolls and take-overs too."""

    async def live(directory: str) -> None:
        disk = FaultyDisk(directory)
        log = await open_file_log(directory, partitions=1, disk=disk, segment_bytes_max=900)
        disk.kill_after = len(disk.calls) + cut
        acked: list[int] = []
        with suppress(Killed):
            owned = await log.acquire(0)
            for number in range(40):
                assert isinstance(await put(log, owned.epoch, event(number)), Appended)
                acked.append(number)
        disk.kill_after = None
        await log.crash()
        if seed % 2:
            disk.lose_power(Random(seed))
        again = await open_file_log(directory)
        found = numbers(again.read(EVENTS, 0))
        assert found in (acked, [*acked, len(acked)])
        taken = await again.acquire(0)
        await put(again, taken.epoch, event(99))
        assert numbers(again.read(EVENTS, 0)) == [*found, 99]
        await again.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(live(directory))
