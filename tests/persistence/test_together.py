"""What several threads store at the same time: in one append, by one of them, and each hears of its own (decision 0030)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import pytest

from gasoline_es.core.stored_events import EventStored
from gasoline_es.core.storing import Store
from gasoline_es.errors import LogError, StoreConflict
from gasoline_es.persistence.journal import StoreIds
from gasoline_es.persistence.together import BYTES_AT_ONCE, Result, StoredTogether, StoreNow
from tests.engine.harness import PATIENCE_S

_new_store_id = StoreIds()


def a_store(size: int = 2) -> Store:
    return Store(_new_store_id(), "events", [EventStored("a", False, 1, "t", b"x" * size)])


class Place:
    """The loop's place, which one thread holds until the others wait, and in which ``store_now`` stores."""

    def __init__(self) -> None:
        self.together = StoredTogether()
        self.batches: list[list[Store]] = []
        self.entered, self.open = threading.Event(), threading.Event()
        self.stored: Callable[[Sequence[Store]], Sequence[Result]] = lambda commands: list(range(len(commands)))
        self.there = True

    def store_now(self, commands: Sequence[Store]) -> Sequence[Result]:
        self.batches.append(list(commands))
        return self.stored(commands)

    def in_place(self, deed: Callable[[StoreNow], None]) -> None:
        self.entered.set()
        assert self.open.wait(PATIENCE_S)
        if self.there:
            deed(self.store_now)

    def store(self, command: Store) -> Future[Result]:
        """Store it on a thread of its own."""
        future: Future[Result] = Future()

        def run() -> None:
            try:
                future.set_result(self.together.store(command, self.in_place))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return future

    def all_wait(self, count: int) -> None:
        waiting = self.together._waiting
        while len(waiting) < count:
            pass


@pytest.fixture
def place() -> Place:
    return Place()


def behind_the_first(place: Place, commands: Sequence[Store]) -> list[Future[Result]]:
    """Let one thread be in the place, and others wait with these, in order; then let it go on."""
    first = place.store(a_store())
    assert place.entered.wait(PATIENCE_S)
    others: list[Future[Result]] = []
    for command in commands:
        others.append(place.store(command))
        place.all_wait(1 + len(others))
    place.open.set()
    assert first.result(PATIENCE_S) == 0 or first.exception(PATIENCE_S) is not None
    return others


def test_what_waits_is_stored_together_in_order_and_each_hears_of_its_own(place: Place) -> None:
    commands = [a_store() for _ in range(7)]
    results = [one.result(PATIENCE_S) for one in behind_the_first(place, commands)]
    assert place.batches[1:] == [commands]
    assert results == list(range(7))
    assert not place.together._waiting


def test_what_one_is_refused_concerns_nobody_else(place: Place) -> None:
    refused = StoreConflict("version 1 of a is stored already")
    place.stored = lambda commands: [refused if at == 1 else at for at in range(len(commands))]
    results = [one.result(PATIENCE_S) for one in behind_the_first(place, [a_store() for _ in range(3)])]
    assert results == [0, refused, 2]


def test_more_than_may_go_together_is_stored_in_several_appends(place: Place) -> None:
    big = BYTES_AT_ONCE // 2
    commands = [a_store(big), a_store(big), a_store(), a_store(3 * big), a_store()]
    for one in behind_the_first(place, commands):
        one.result(PATIENCE_S)
    assert place.batches[1:] == [commands[:2], commands[2:3], commands[3:4], commands[4:]]


def test_where_the_place_cannot_be_had_each_is_given_back(place: Place) -> None:
    place.there = False
    first = place.store(command := a_store())
    place.open.set()
    assert first.result(PATIENCE_S) is command


def test_whoever_is_interrupted_before_anything_was_done_leaves_the_others_to_ask_themselves(place: Place) -> None:
    place.open.set()
    held = threading.Event()
    commands = [a_store(), a_store()]
    others: list[Future[Result]] = []

    def interrupted(_: Callable[[StoreNow], None]) -> None:
        others.append(place.store(commands[1]))
        place.all_wait(2)
        held.set()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.together.store(commands[0], interrupted)
    assert held.is_set()
    assert others[0].result(PATIENCE_S) == 0
    assert place.batches == [[commands[1]]]


def test_what_breaks_off_in_the_middle_tells_the_others_that_it_may_have_been_recorded(place: Place) -> None:
    def broken(commands: Sequence[Store]) -> Sequence[Result]:
        if len(commands) > 1:
            raise MemoryError
        return [0]

    place.stored = broken
    results = behind_the_first(place, [a_store(), a_store()])
    said = [one.exception(PATIENCE_S) or one.result() for one in results]
    assert sorted(type(one).__name__ for one in said) == ["LogError", "MemoryError"]
    (told,) = [one for one in said if isinstance(one, LogError)]
    assert "may have been recorded" in str(told)


def test_what_a_call_within_a_call_of_the_same_thread_has_stored_is_not_stored_again(place: Place) -> None:
    """A signal's handler, or a finaliser, may store something wherever it comes."""
    place.open.set()
    outer, within = a_store(), a_store()
    inner: list[Result] = []

    def in_place(deed: Callable[[StoreNow], None]) -> None:
        inner.append(place.together.store(within, place.in_place))
        place.in_place(deed)

    assert place.together.store(outer, in_place) == 0
    assert inner == [1]
    assert place.batches == [[outer, within]]


def test_a_call_within_the_place_itself_is_given_back(place: Place) -> None:
    place.open.set()
    outer, within = a_store(), a_store()
    inner: list[Result] = []

    def stored(commands: Sequence[Store]) -> Sequence[Result]:
        inner.append(place.together.store(within, place.in_place))
        return list(range(len(commands)))

    place.stored = stored
    assert place.together.store(outer, place.in_place) == 0
    assert inner == [within]
    assert place.batches == [[outer]]
