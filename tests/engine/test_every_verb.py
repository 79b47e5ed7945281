"""Required case B23 for every verb of every client and handle, as their classes list them, so that a new one is met too."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import Gasoline, Message, OperationContext, SignalTo, SyncGasoline, WorkflowHandle, operation
from gasoline_es.errors import GasolineError, InvalidTags, TopicRefused, WorkflowNotFound
from gasoline_es.sync import SyncWorkflowHandle
from projections import Workflows
from tests.engine.test_hostile_names import HOSTILE, data, only_a_log
from tests.engine.workflows import Note, echo, notes

__all__ = ["data"]  # the fixture: a folder with sentinels around it

UNKNOWN = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"
NO_VERBS = {
    "open": "names a log by its URL; see test_hostile_namespaces_are_refused",
    "open_sync": "the same",
    "worker": "takes definitions, whose names were checked; see test_hostile_names_are_refused_where_they_are_defined",
    "run_worker": "the same",
    "close": "takes nothing",
    "handle": "gives a handle; its verbs are tried below",
}


class Moved(Message):
    x: int = 0


@operation
async def look_up(ctx: OperationContext, text: str) -> str:
    return text


def ordinary(name: str) -> Any:
    """What each parameter gets where it is not what is tried. A new one that is required has to get a value here."""
    given: dict[str, Any] = {
        "workflow": echo,
        "input": "x",
        "signal": Note(),
        "signals": [],
        "message": Moved(),
        "kind": Moved,
        "operation": look_up,
        "workflow_id": UNKNOWN,
        "from_location": "1",
        "when": "0 3 * * *",
        "name": "nightly",
        "to": UNKNOWN,
        "signal_id": "line 1",
        "projection": Workflows,
        "topic": "orders",
        "age": 3_600,
        "mapping": lambda incoming: None,  # pyright: ignore[reportUnknownLambdaType]
    }
    return given[name]


def verbs(owner: type) -> dict[str, Callable[..., Any]]:
    return {
        name: getattr(owner, name)
        for name in dir(owner)
        if not name.startswith("_") and name not in NO_VERBS and callable(getattr(owner, name))
    }


def texts_of(verb: Callable[..., Any]) -> Iterator[str]:
    """The parameters that take a text, or tags."""
    for one in inspect.signature(verb).parameters.values():
        if any(word in str(one.annotation) for word in ("str", "Tags")) and one.name != "self":
            yield one.name


def call_with(verb: Callable[..., Any], parameter: str | None, text: str) -> dict[str, Any]:
    """The arguments of a call that has this text there, and what it needs besides."""
    given: dict[str, Any] = {}
    for one in inspect.signature(verb).parameters.values():
        if one.name == "self":
            continue
        if one.name == parameter:
            given[one.name] = {text: text} if "Tags" in str(one.annotation) else text
        elif one.default is inspect.Parameter.empty:
            given[one.name] = ordinary(one.name)
    if (
        verb.__name__ in ("signal", "discard_signal")
        and "workflow" in inspect.signature(verb).parameters
        and "to" not in given
    ):
        given["workflow"] = echo
    if verb.__name__ == "ingest":
        given["mapping"] = ordinary("mapping")
    if verb.__name__ == "revive" and not {"name", "error"} & set(given):
        given["error"] = "x"
    if "timeout" in inspect.signature(verb).parameters:
        given["timeout"] = 0.05
    return given


TRIED = [
    (owner, name, parameter)
    for owner in (Gasoline, SyncGasoline, WorkflowHandle, SyncWorkflowHandle)
    for name, verb in verbs(owner).items()
    for parameter in texts_of(verb)
]


def test_the_verbs_are_read_from_the_classes() -> None:
    found = {(owner, name) for owner, name, _ in TRIED}
    for name in (
        "dispatch",
        "signal",
        "discard_signal",
        "get",
        "history",
        "list",
        "find",
        "wake",
        "cancel",
        "silence",
        "recover",
        "revive",
    ):
        assert {(Gasoline, name), (SyncGasoline, name)} <= found
    for name in ("signal", "discard_signal", "rerun"):
        assert {(WorkflowHandle, name), (SyncWorkflowHandle, name)} <= found
    for name in ("rerun", "message", "subscribe", "tail", "operation"):
        assert (Gasoline, name) in found


async def finished(result: Any) -> Any:
    """What a call gives, whatever it gives it by."""
    if inspect.isawaitable(result):
        return await result
    if isinstance(result, AbstractAsyncContextManager):
        async with result:
            return None
    if isinstance(result, AsyncIterator):
        return [one async for one in result]  # pyright: ignore[reportUnknownVariableType]
    return result


def require_refused_or_data(owner: type, name: str, parameter: str, text: str, outcome: Any) -> None:
    """Hold what came of a call against B23."""
    where = (owner.__name__, name, parameter, text)
    if isinstance(outcome, BaseException):
        assert isinstance(outcome, GasolineError | ValueError), (where, outcome)
        assert len(str(outcome)) < 1_000, (where, "a flood of input does not flood the log")
    if parameter in ("workflow_id", "to"):
        assert isinstance(outcome, WorkflowNotFound), (where, outcome)
    if text == "\udc80" and parameter in ("tags", "topic"):
        assert isinstance(outcome, TopicRefused if name == "ingest" else InvalidTags), (where, outcome)


async def outcome_of(call: Callable[[], Any]) -> Any:
    try:
        async with asyncio.timeout(10):
            return await finished(call())
    except Exception as error:
        return error


@pytest.mark.parametrize(
    ("name", "parameter"), [(name, parameter) for owner, name, parameter in TRIED if owner is Gasoline]
)
async def test_no_verb_makes_a_path_of_what_it_is_given(data: Path, name: str, parameter: str) -> None:
    """required.md B23: refused, not found, or taken as data; nothing outside of the log is touched."""
    async with Gasoline.open(f"file:{data}/log", partitions=2) as gasoline, gasoline.worker([echo]):
        verb = getattr(gasoline, name)
        for text in HOSTILE:
            given = call_with(verb, parameter, text)
            outcome = await outcome_of(lambda given=given: verb(**given))  # type: ignore[misc]
            require_refused_or_data(Gasoline, name, parameter, text, outcome)
    only_a_log(data / "log")


@pytest.mark.parametrize(
    ("name", "parameter"), [(name, parameter) for owner, name, parameter in TRIED if owner is SyncGasoline]
)
def test_no_verb_that_blocks_makes_a_path_of_what_it_is_given(data: Path, name: str, parameter: str) -> None:
    """required.md B23, with ``Gasoline.open_sync``."""
    with Gasoline.open_sync(f"file:{data}/log", partitions=2) as gasoline:
        verb = getattr(gasoline, name)
        for text in HOSTILE:
            given = call_with(verb, parameter, text)
            try:
                outcome: Any = verb(**given)
                if name == "list":
                    outcome = list(outcome)
            except Exception as error:
                outcome = error
            require_refused_or_data(SyncGasoline, name, parameter, text, outcome)
    only_a_log(data / "log")


async def test_every_verb_of_a_handle_says_that_a_hostile_id_is_nobodys(data: Path) -> None:
    """required.md B23: a handle may be made of anything; whoever uses it is told."""
    async with Gasoline.open(f"file:{data}/log", partitions=2) as gasoline:
        for text in HOSTILE:
            handle = gasoline.handle(text, echo)
            for name, verb in verbs(type(handle)).items():
                if name == "id":
                    continue
                call = getattr(handle, name)
                outcome = await outcome_of(lambda call=call, verb=verb: call(**call_with(verb, None, "")))  # type: ignore[misc]
                assert isinstance(outcome, WorkflowNotFound), (name, text, outcome)
        assert [one async for one in gasoline.list()] == []
    only_a_log(data / "log")


def test_every_verb_of_a_handle_that_blocks_says_that_a_hostile_id_is_nobodys(data: Path) -> None:
    """required.md B23, with ``Gasoline.open_sync``."""
    with Gasoline.open_sync(f"file:{data}/log", partitions=2) as gasoline:
        for text in HOSTILE:
            handle = gasoline.handle(text, echo)
            for name, verb in verbs(type(handle)).items():
                if name == "id":
                    continue
                with pytest.raises(WorkflowNotFound):
                    getattr(handle, name)(**call_with(verb, None, ""))
        assert list(gasoline.list()) == []
    only_a_log(data / "log")


@pytest.mark.parametrize(
    ("owner", "name", "parameter"), [row for row in TRIED if row[0] in (WorkflowHandle, SyncWorkflowHandle)]
)
async def test_no_verb_of_a_handle_makes_a_path_of_what_it_is_given(
    data: Path,
    owner: type,
    name: str,
    parameter: str,
) -> None:
    """required.md B23: ids of signals and places, on a workflow that is there."""
    url = f"file:{data}/log"
    async with Gasoline.open(url, partitions=2) as gasoline:
        made = await gasoline.dispatch(notes, 1_000)

    def tried(handle: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
        verb = getattr(handle, name)
        for text in HOSTILE:
            given = call_with(verb, parameter, text)
            yield text, lambda given=given: verb(**given)

    if owner is WorkflowHandle:
        async with Gasoline.open(url) as gasoline:
            for text, call in tried(gasoline.handle(made.id, notes)):
                require_refused_or_data(owner, name, parameter, text, await outcome_of(call))
    else:

        def block() -> list[tuple[str, Any]]:
            outcomes: list[tuple[str, Any]] = []
            with Gasoline.open_sync(url) as gasoline:
                for text, call in tried(gasoline.handle(made.id, notes)):
                    try:
                        outcomes.append((text, call()))
                    except Exception as error:
                        outcomes.append((text, error))
            return outcomes

        for text, outcome in await asyncio.to_thread(block):
            require_refused_or_data(owner, name, parameter, text, outcome)
    only_a_log(data / "log")


async def test_hostile_ids_in_a_batch_of_signals_are_nobodys(data: Path) -> None:
    """required.md B23: signal_many takes its ids in values of their own."""
    async with Gasoline.open(f"file:{data}/log", partitions=2) as gasoline:
        for text in HOSTILE:
            with pytest.raises(WorkflowNotFound):
                await gasoline.signal_many([SignalTo(Note(), text)])


async def test_hostile_topics_are_data_kept_exactly(data: Path) -> None:
    """required.md B23: a topic is data: published, subscribed to and read as the tail exactly as it is."""
    async with Gasoline.open(f"file:{data}/log", partitions=2) as gasoline:
        for text in HOSTILE:
            if text == "\udc80":
                with pytest.raises(InvalidTags):
                    await gasoline.message(Moved(), topic={"to": text})
                continue
            topic = {text: text, "to": text}
            async with gasoline.subscribe(Moved, topic={"to": text}) as messages:
                await gasoline.message(Moved(x=1), topic=topic, wait=True)
                async with asyncio.timeout(10):
                    received = await anext(aiter(messages))
            assert received.topic == topic
            tail = await gasoline.tail(Moved, topic=topic)
            assert tail is not None
            assert tail.topic == topic
    only_a_log(data / "log")
