"""What is claimed about processes, with real ones: killed, stopped and thawed, forked, and many at once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gasoline_es.errors import PartitionOwned
from gasoline_es.log.file.log import open_file_log
from gasoline_es.log.port import Appended
from gasoline_es.testing.log_contract import EVENTS, INBOX, event, numbers, put

_CHILD = """
import asyncio, sys
from gasoline_es.log import open_log
from gasoline_es.testing.log_contract import INBOX, event, put

async def main(directory):
    log = await open_log("file:" + directory, segment_bytes_max=5_000)
    owned = None
    loop = asyncio.get_running_loop()
    while True:
        command, *numbers = (await loop.run_in_executor(None, sys.stdin.readline)).split()
        if command == "acquire":
            owned = await log.acquire(int(numbers[0]))
            print("owned", owned.epoch, flush=True)
        elif command == "put":
            outcome = await put(log, owned.epoch, *[event(int(n)) for n in numbers])
            print(type(outcome).__name__, flush=True)
        elif command == "send":
            first, last = map(int, numbers)
            for number in range(first, last):
                await put(log, None, event(number, 1, INBOX))
            print("sent", flush=True)
        elif command == "close":
            await log.close()
            print("closed", flush=True)
            return

asyncio.run(main(sys.argv[1]))
"""


class Child:
    """A process that opened the log and does what it is told."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, command: str) -> str:
        self.tell(command)
        return self.answer()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


@contextmanager
def child(directory: Path) -> Generator[Child]:
    started = Child(directory)
    try:
        yield started
    finally:
        started.end()


async def test_a_killed_owners_partition_is_free_at_once(tmp_path: Path) -> None:
    """filelog.md §4.6: the kernel lets go of the lock with the process."""
    with child(tmp_path) as owner:
        assert owner.ask("acquire 0") == "owned 1"
        assert owner.ask("put 1 2 3") == "Appended"
        log = await open_file_log(str(tmp_path))
        with pytest.raises(PartitionOwned):
            await log.acquire(0)
        await log.changed()
        waiting = asyncio.create_task(log.changed())
        owner.end()
        taken = await log.acquire(0)
        assert dict(taken.ends) == {EVENTS: 3}
        await put(log, taken.epoch, event(4))
        assert numbers(log.read(EVENTS, 0)) == [1, 2, 3, 4]
        async with asyncio.timeout(5):
            await waiting
        await log.close()


async def test_a_stopped_owners_partition_is_free_after_the_wait_and_its_late_writes_are_void(tmp_path: Path) -> None:
    """filelog.md §4.6: a silent owner's partition is takeable; thawed, it is fenced (§4.4)."""
    now_s = 0.0
    with child(tmp_path) as owner:
        assert owner.ask("acquire 0") == "owned 1"
        assert owner.ask("put 1 2") == "Appended"
        log = await open_file_log(str(tmp_path), clock=lambda: now_s)
        reader = await open_file_log(str(tmp_path), readonly=True)
        with pytest.raises(PartitionOwned):
            await log.acquire(0)
        os.kill(owner.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, owner.process.pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(PartitionOwned):
            await log.acquire(0)  # the last heartbeat seen is counted from now on
        now_s += 9.9
        with pytest.raises(PartitionOwned):
            await log.acquire(0)
        now_s += 0.2
        owner.tell("put 3")
        taken = await log.acquire(0)
        assert isinstance(await put(log, taken.epoch, event(10)), Appended)
        os.kill(owner.process.pid, signal.SIGCONT)
        assert owner.answer() == "Fenced"
        assert owner.ask("put 4") == "Fenced"
        assert numbers(log.read(EVENTS, 0)) == numbers(reader.read(EVENTS, 0)) == [1, 2, 10]
        await put(log, taken.epoch, event(11))
        assert numbers(log.read(EVENTS, 0)) == numbers(reader.read(EVENTS, 0)) == [1, 2, 10, 11]
        assert owner.ask("close") == "closed"
        await log.close()
        await reader.close()


async def test_many_processes_write_at_once_and_a_tail_sees_everything_once(tmp_path: Path) -> None:
    """filelog.md §1: no lock on the append path; segment numbers are claimed one by one."""
    log = await open_file_log(str(tmp_path))
    tail = log.tail(INBOX, 1)
    with child(tmp_path) as one, child(tmp_path) as two, child(tmp_path) as three:
        for number, sender in enumerate((one, two, three)):
            sender.tell(f"send {number * 1000} {number * 1000 + 150}")
        seen: list[int] = []
        async with asyncio.timeout(60):
            while len(seen) < 450:
                await log.changed()
                seen += numbers(tail.poll())
        for number in range(3):
            assert [n for n in seen if n // 1000 == number] == list(range(number * 1000, number * 1000 + 150))
        for sender in (one, two, three):
            assert sender.answer() == "sent"
            assert sender.ask("close") == "closed"
    assert tail.poll() == []
    await log.close()
    reader = await open_file_log(str(tmp_path), readonly=True)
    assert sorted(numbers(reader.tail(INBOX, 1).poll())) == sorted(seen)
    await reader.close()


async def test_what_another_process_publishes_is_seen_within_milliseconds(tmp_path: Path) -> None:
    """filelog.md §3.5. The bound is wide: two shared cores are slow now and then; the defaults would take 53–99 ms."""
    with child(tmp_path) as sender:
        sender.ask("send 0 1")
        log = await open_file_log(str(tmp_path))
        tail = log.tail(INBOX, 1)
        tail.poll()
        await log.changed()
        times: list[float] = []
        for number in range(1, 16):
            started = time.perf_counter()
            sender.tell(f"send {number} {number + 1}")
            while not tail.poll():
                await log.changed()
            times.append(time.perf_counter() - started)
            sender.answer()
        assert sorted(times)[len(times) // 2] < 0.04, times
        await log.close()


_FORK = """
import asyncio, os, subprocess, sys, warnings
from gasoline_es.errors import LogError
from gasoline_es.log import open_log
from gasoline_es.testing.log_contract import INBOX, event, put

warnings.simplefilter("ignore", DeprecationWarning)
PROBE = '''
import asyncio, sys
from gasoline_es.errors import PartitionOwned
from gasoline_es.log import open_log
async def main():
    log = await open_log("file:" + sys.argv[1])
    try:
        await log.acquire(0)
    except PartitionOwned:
        print("owned")
    await log.close()
asyncio.run(main())
'''

async def main(directory):
    log = await open_log("file:" + directory)
    owned = await log.acquire(0)
    pid = os.fork()
    if pid == 0:
        refused = 0
        for use in (lambda: log.append([]), lambda: log.acquire(1), lambda: log.close()):
            try:
                use().send(None)
            except LogError:
                refused += 1
        try:
            log.end("default.events", 0)
        except LogError:
            refused += 1
        os._exit(0 if refused == 4 else 1)
    _, status = os.waitpid(pid, 0)
    print("refused" if status == 0 else "NOT refused", flush=True)
    print(subprocess.run([sys.executable, "-c", PROBE, directory], capture_output=True, text=True).stdout.strip())
    print(type(await put(log, owned.epoch, event(1))).__name__)
    await log.close()

asyncio.run(main(sys.argv[1]))
"""


def test_a_forked_child_may_not_use_the_handle_and_does_not_cost_the_parent_its_lock(tmp_path: Path) -> None:
    """filelog.md §4.6: the lock does not pass to forked children."""
    done = subprocess.run([sys.executable, "-c", _FORK, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["refused", "owned", "Appended"], done.stderr


_LIGHT = """
import sys
import gasoline_es.log
heavy = [name for name in ("portalocker", "pydantic", "asyncio") if name in sys.modules]
print(heavy)
"""


def test_importing_the_log_is_light() -> None:
    """What a kind of log needs is imported when one is opened."""
    done = subprocess.run([sys.executable, "-c", _LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
