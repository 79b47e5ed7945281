"""The guard stands in for the loop and the task of whoever drives a body, and for nobody else's (design §3)."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from contextvars import Context
from typing import Any

import pytest

from gasoline_es.core import guard
from gasoline_es.core.guard import Told, check_outside_body, guarded, watch
from gasoline_es.errors import StepMisused


class Watched:
    def __init__(self, place: tuple[str, int] = ("orders.py", 12)) -> None:
        self.refused: list[Exception] = []
        self._place = place

    def refuse(self, error: Exception) -> None:
        self.refused.append(error)

    def place(self) -> tuple[str, int]:
        return self._place

    def told(self) -> Told:
        return Told("an id", "order", "{1}", False)


def driven(watched: Watched, function: Any, *args: Any) -> Any:
    context = Context()
    watch(context, watched)
    return guarded(context.run, function, *args)


def run(coroutine: Any) -> Any:
    """Drive a coroutine that never waits."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


@pytest.mark.parametrize(
    "name",
    sorted(
        name
        for name in dir(asyncio.AbstractEventLoop)
        if not name.startswith("_") and name not in ("get_debug", "is_running", "is_closed")
    ),
)
def test_every_method_of_a_loop_is_refused_and_reported(name: str) -> None:
    watched = Watched()

    def ask() -> None:
        getattr(asyncio.get_running_loop(), name)()

    with pytest.raises(StepMisused, match=r"orders\.py:12") as raised:
        driven(watched, ask)
    assert watched.refused == [raised.value]
    assert raised.value.used == name


def test_loop_task_and_generator_hooks_are_put_back_also_after_an_error() -> None:
    async def main() -> None:
        before = asyncio.get_running_loop(), asyncio.current_task(), sys.get_asyncgen_hooks()
        with pytest.raises(ZeroDivisionError):
            driven(Watched(), lambda: 1 / 0)
        assert (asyncio.get_running_loop(), asyncio.current_task(), sys.get_asyncgen_hooks()) == before
        driven(Watched(), lambda: driven(Watched(), lambda: None))
        assert (asyncio.get_running_loop(), asyncio.current_task(), sys.get_asyncgen_hooks()) == before

    asyncio.run(main())


def test_engines_loop_hears_of_no_generator_of_a_body() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def first() -> int:
        async for number in numbers():
            return number
        return 0

    async def main() -> None:
        heard: list[object] = []
        sys.set_asyncgen_hooks(firstiter=heard.append, finalizer=heard.append)
        assert driven(Watched(), run, first()) == 1
        assert heard == []

    asyncio.run(main())


def test_current_task_has_a_name_and_refuses_the_rest() -> None:
    watched = Watched()

    def ask() -> str:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(StepMisused):
            task.cancel()
        assert not hasattr(task, "__fspath__")
        return task.get_name()

    assert driven(watched, ask) == "workflow body"
    assert len(watched.refused) == 1


def test_bodies_in_two_threads_hear_of_their_own_mistakes_only() -> None:
    both = threading.Barrier(2, timeout=30)
    heard = [Watched(("a.py", 1)), Watched(("b.py", 2))]

    def misuse() -> None:
        both.wait()
        with pytest.raises(StepMisused):
            asyncio.get_running_loop().create_future()
        both.wait()

    threads = [threading.Thread(target=driven, args=(watched, misuse)) for watched in heard]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [[getattr(error, "file", None) for error in watched.refused] for watched in heard] == [["a.py"], ["b.py"]]


def test_what_catches_every_refusal_is_given_what_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "REFUSALS_MAX", 3)

    def ask() -> list[object]:
        given: list[object] = []
        for _ in range(5):
            try:
                given.append(asyncio.get_running_loop().create_future())
            except StepMisused as refused:
                given.append(refused)
        return given

    given = driven(Watched(), ask)
    assert [isinstance(one, StepMisused) for one in given] == [True, True, True, False, False]
    assert next(given[-1].__await__()) is given[-1]
    assert given[-1].cancel() is None


def test_check_outside_a_body_says_nothing_there_and_is_reported_inside() -> None:
    check_outside_body("anything")
    watched = Watched()
    with pytest.raises(StepMisused, match="use `ctx`"):
        driven(watched, check_outside_body, "use `ctx`")
    assert len(watched.refused) == 1


def test_coroutines_given_to_asyncio_are_closed() -> None:
    # Python would warn of each, and warnings are errors here.
    async def never() -> None: ...

    async def gathers() -> None:
        await asyncio.gather(never(), never())

    async def waits() -> None:
        await asyncio.wait_for(never(), 1)

    for body in (gathers, waits):
        with pytest.raises(StepMisused):
            driven(Watched(), body().send, None)
