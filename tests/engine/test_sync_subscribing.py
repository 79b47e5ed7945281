"""Subscribing without async: a blocking iterator (semantics.md §9; api.md, "Outside")."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from gasoline_es import Gasoline, Message, Received, SyncGasoline, SyncSubscription
from gasoline_es.errors import DefinitionError, GasolineError, InvalidTags, LogError
from tests.engine.harness import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


class Moved(Message, tail_ttl=90):
    x: int


@pytest.fixture
def gasoline() -> Generator[SyncGasoline]:
    with Gasoline.open_sync("memory:") as opened:
        yield opened


@contextmanager
def beside(work: Callable[[], list[int]]) -> Generator[Callable[[], list[int]]]:
    """Run it in a thread of its own; gives what waits for its result."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        yield lambda: future.result(PATIENCE_S)


def numbers(subscription: SyncSubscription[Moved], waits: threading.Event | None = None) -> list[int]:
    """What comes until the iteration ends. ``waits``: set when the first message has come, and the next is waited for."""
    taken: list[int] = []
    for received in subscription:
        taken.append(received.message.x)
        if waits is not None:
            waits.set()
    return taken


def send(gasoline: SyncGasoline, *xs: int, **topic: str) -> None:
    for x in xs:
        gasoline.message(Moved(x=x), topic=topic, wait=True)


def test_what_is_published_after_entering_comes_in_order_and_by_topic(gasoline: SyncGasoline) -> None:
    send(gasoline, 1, map="forest")
    with gasoline.subscribe(Moved, topic={"map": "forest"}, timeout=PATIENCE_S) as moved:
        send(gasoline, 2, map="forest", player="Ann")
        send(gasoline, 3, map="desert")
        send(gasoline, 4, map="forest")
        first, second = next(moved), next(moved)
    assert isinstance(first, Received)
    assert (first.message, first.topic) == (Moved(x=2), {"map": "forest", "player": "Ann"})
    assert second.message.x == 4
    assert list(moved) == []


def test_messages_of_another_process_come(tmp_log_url: str) -> None:
    code = (
        "import sys; from gasoline_es import Gasoline; from tests.engine.test_sync_subscribing import Moved\n"
        "with Gasoline.open_sync(sys.argv[1]) as gasoline: gasoline.message(Moved(x=7), wait=True)"
    )
    with Gasoline.open_sync(tmp_log_url) as gasoline, gasoline.subscribe(Moved, timeout=PATIENCE_S) as moved:
        subprocess.run([sys.executable, "-c", code, tmp_log_url], cwd=ROOT, check=True, timeout=PATIENCE_S)
        assert next(moved).message.x == 7


def test_iteration_ends_when_nothing_comes_in_time_and_another_goes_on_without_a_gap(gasoline: SyncGasoline) -> None:
    with gasoline.subscribe(Moved, timeout=0.01) as moved:
        assert numbers(moved) == []
        assert not moved.closed
        send(gasoline, 1, 2)
        assert numbers(moved) == [1, 2]
        send(gasoline, 3)
        assert numbers(moved) == [3]
    assert moved.closed


def test_for_subscribes_when_it_begins(gasoline: SyncGasoline) -> None:
    moved = gasoline.subscribe(Moved, timeout=0.01)
    send(gasoline, 1)
    assert numbers(moved) == []
    send(gasoline, 2)
    assert numbers(moved) == [2]
    moved.close()


def test_close_from_another_thread_ends_an_iteration_that_waits(gasoline: SyncGasoline) -> None:
    waits = threading.Event()
    with gasoline.subscribe(Moved) as moved, beside(lambda: numbers(moved, waits)) as taken:
        send(gasoline, 1)
        assert waits.wait(PATIENCE_S)
        moved.close()
        moved.close()
        assert taken() == [1]
    send(gasoline, 2)
    assert numbers(moved) == []


def test_closed_before_it_began_gives_nothing_and_cannot_be_entered(gasoline: SyncGasoline) -> None:
    moved = gasoline.subscribe(Moved)
    moved.close()
    assert list(moved) == []
    with pytest.raises(StopIteration):
        next(moved)
    with pytest.raises(GasolineError, match=r"was closed: make another with `gasoline\.subscribe"), moved:
        pass


def test_entering_twice_is_refused(gasoline: SyncGasoline) -> None:
    with gasoline.subscribe(Moved) as moved, pytest.raises(GasolineError, match="was entered before"), moved:
        pass


def test_each_message_goes_to_one_of_several_threads(gasoline: SyncGasoline) -> None:
    taken: list[int] = []
    all_taken = threading.Event()

    def take() -> list[int]:
        for received in moved:
            taken.append(received.message.x)
            if len(taken) == 50:
                all_taken.set()
        return []

    with gasoline.subscribe(Moved) as moved, beside(take) as one, beside(take) as two:
        send(gasoline, *range(50))
        assert all_taken.wait(PATIENCE_S)
        moved.close()
        assert one() == two() == []
    assert sorted(taken) == list(range(50))


def test_closing_the_client_ends_it_with_a_log_error(gasoline: SyncGasoline) -> None:
    waits = threading.Event()
    with gasoline.subscribe(Moved) as moved:
        with beside(lambda: numbers(moved, waits)) as taken:
            send(gasoline, 1)
            assert waits.wait(PATIENCE_S)
            gasoline.close()
            with pytest.raises(LogError, match="was closed"):
                taken()
        with pytest.raises(LogError, match=r"was closed. Open it again"):
            next(moved)
    assert moved.closed  # leaving the block raised nothing
    with pytest.raises(LogError, match="was closed"):
        gasoline.subscribe(Moved)


def test_who_is_too_slow_loses_the_oldest_and_they_are_counted(gasoline: SyncGasoline) -> None:
    with gasoline.subscribe(Moved, buffer=2, timeout=0.01) as moved:
        send(gasoline, 1, 2, 3, 4)
        deadline = threading.Event()
        while moved.lost < 2:  # they come once the event loop has read them
            assert not deadline.wait(0.001)
        assert numbers(moved) == [3, 4]


async def test_it_is_refused_in_the_thread_of_an_event_loop(gasoline: SyncGasoline) -> None:
    with pytest.raises(GasolineError, match="blocks, and was called in the thread of a running event loop"):
        gasoline.subscribe(Moved)
    moved = await asyncio.to_thread(gasoline.subscribe, Moved)
    with pytest.raises(GasolineError, match="running event loop"):
        next(moved)


def test_mistakes_are_refused_at_the_call(gasoline: SyncGasoline) -> None:
    with pytest.raises(DefinitionError):
        gasoline.subscribe(int)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidTags):
        gasoline.subscribe(Moved, topic={"map": [1]})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="buffer is 0"):
        gasoline.subscribe(Moved, buffer=0)
    with pytest.raises(ValueError, match="timeout must not be negative"):
        gasoline.subscribe(Moved, timeout=-1)
    with pytest.raises(TypeError, match="timeout must be seconds"):
        gasoline.subscribe(Moved, timeout="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


FORKING = """
import os, sys
from gasoline_es import Gasoline, GasolineError
from tests.engine.test_sync_subscribing import Moved

gasoline = Gasoline.open_sync(sys.argv[1])
with gasoline.subscribe(Moved, timeout=30) as moved:
    child = os.fork()
    if child == 0:
        for refused in (lambda: next(moved), lambda: list(moved), lambda: gasoline.subscribe(Moved)):
            try:
                refused()
            except GasolineError as error:
                print(error, flush=True)
        moved.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    gasoline.message(Moved(x=1), wait=True)
    print(next(moved).message.x, flush=True)
"""


def test_forked_child_is_refused_and_the_parents_goes_on(tmp_log_url: str) -> None:
    command = [
        sys.executable,
        "-W",
        "error",
        "-W",
        "ignore:This process:DeprecationWarning",
        "-c",
        FORKING,
        tmp_log_url,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    *refused, parents = done.stdout.splitlines()
    assert len(refused) == 3
    assert all("was opened by process" in line and "after the fork" in line for line in refused)
    assert parents == "1"
