"""Required case B23, the API's part: ids, names, keys and tag values from requests never become paths."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import Gasoline, Signal, SignalTo, workflow
from gasoline_es.errors import DefinitionError, GasolineError, LogError, WorkflowNotFound
from tests.engine.harness import soon
from tests.engine.workflows import Note, echo, one_note

HOSTILE = [
    "../../x",
    "..\\x",
    "/etc/passwd",
    "a\x00b",
    ".",
    "..",
    "",
    ".lock",
    "x" * 300,
    "sentinel",
    "../sentinel",
    "segments/0000000001.jsonl",
    "a\nb",
    "\udc80",
    "018f3a2-7c1e",
    "0190F3A2-7C1E-7D05-9B3A-5F2C81E40A3F",
    "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f/../x",
    "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f\n",
    "٠١٩٠f3a2-7c1e-7d05-9b3a-5f2c81e40a3f",
]
SHOWN = [ascii(one)[:40] for one in HOSTILE]
FOREIGN: list[Any] = [5, b"0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f", ["x"], object()]


OF_A_LOG = re.compile(
    r"manifest\.(json|lock)|segments|segments/\d{10}\.(jsonl|end|index)|messages(/[\w.-]+)?|workers(/[0-9a-f-]+(\.name)?)?"
    r"|epochs|epochs/default(/\d+(/\d{10})?)?"
    r"|verified(/(log|\d{10})\.json)?"
    r"|projections(/default(/workflows\.(lock|swap|sqlite|\d+\.sqlite(-wal|-shm)?))?)?"
)


def only_a_log(folder: Path) -> None:
    """In a log's folder stands nothing but what belongs there."""
    assert [one for path in folder.rglob("*") if not OF_A_LOG.fullmatch(one := str(path.relative_to(folder)))] == []


def snapshot(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
        if "data" not in path.relative_to(folder).parts
    }


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data folder with sentinel files on all sides; afterwards they are as they were, and no other came."""
    home = tmp_path / "a" / "b"
    (home / "data").mkdir(parents=True)
    for place in (tmp_path, tmp_path / "a", home):
        for name in ("x", "sentinel", ".lock", "x" * 200):
            (place / name).write_text(f"{place} {name}")
    before = snapshot(tmp_path)
    yield home / "data"
    assert snapshot(tmp_path) == before


async def test_hostile_ids_are_not_found_by_any_call(data: Path) -> None:
    """required.md B23: ids of a foreign form are WorkflowNotFound."""
    async with Gasoline.open(f"file:{data}/log") as gasoline:
        hostile: list[Any] = [*HOSTILE, *FOREIGN]
        one: Any
        for one in hostile:
            handle = gasoline.handle(one, echo)
            for call in (
                gasoline.get(one),
                gasoline.history(one),
                gasoline.wake(one),
                handle.signal(Note()),
                gasoline.signal_many([SignalTo(Note(), one)]),
                handle.get(),
                handle.history(),
                handle.output(timeout=1),
                gasoline.wake(one),
                handle.wake(),
            ):
                with pytest.raises(WorkflowNotFound) as caught:
                    await call
                assert len(str(caught.value)) < 500, "a flood of input does not flood the log"
        assert [info async for info in gasoline.list()] == []


@pytest.mark.parametrize("name", HOSTILE, ids=SHOWN)
def test_hostile_names_are_refused_where_they_are_defined(name: str) -> None:
    """required.md B23, semantics.md §1: names match [a-z0-9_]+."""
    if name == "sentinel":
        name = "Sentinel"
    with pytest.raises(DefinitionError):
        workflow(name=name)(echo.fn)
    with pytest.raises(DefinitionError):
        type("Bad", (Signal,), {"__module__": __name__}, name=name)


@pytest.mark.parametrize("name", HOSTILE, ids=SHOWN)
async def test_hostile_namespaces_are_refused(data: Path, name: str) -> None:
    """design §5: a namespace is [a-z0-9-]+, as it stands in paths and topic names."""
    if name in ("sentinel", "018f3a2-7c1e"):
        name = name + "/"
    with pytest.raises(LogError):
        async with Gasoline.open(f"file:{data}/log", namespace=name):
            pass


async def test_hostile_tags_are_data_kept_exactly(data: Path) -> None:
    """required.md B23: tag values are data: stored and returned exactly, never a path."""
    url = f"file:{data}/log"
    async with Gasoline.open(url) as gasoline, gasoline.worker([one_note]):
        for one in HOSTILE:
            tags = {one: one, "other": one}
            if one == "\udc80":
                with pytest.raises(GasolineError):
                    await gasoline.dispatch(one_note, None, tags=tags)
                continue
            handle = await gasoline.dispatch(one_note, None, tags=tags)
            assert (await handle.get()).tags == tags
            found = await gasoline.find(one_note, tags={one: one})
            assert found is not None
            assert found.id == handle.id
            assert [info.id async for info in gasoline.list(tags={"other": one})] == [handle.id]
            await gasoline.signal(Note(text=one), one_note, tags=tags)
            assert await soon(handle.output()) == one
    async with Gasoline.open(url, readonly=True) as gasoline:
        kept = [info.tags["other"] async for info in gasoline.list()]
        assert kept == [one for one in HOSTILE if one != "\udc80"]


async def test_hostile_keys_and_signal_ids_are_data_or_refused(data: Path) -> None:
    """required.md B23: a caller's key or id is text without control characters, up to 300 characters; never a path."""
    url = f"file:{data}/log"
    async with Gasoline.open(url) as gasoline, gasoline.worker([echo, one_note]):
        for one in HOSTILE:
            waiting = await gasoline.dispatch(one_note, None)
            if one in ("a\x00b", "", "\udc80") or "\n" in one:
                with pytest.raises(ValueError, match="not allowed"):
                    await gasoline.dispatch(echo, "x", key=one)
                with pytest.raises(ValueError, match="not allowed"):
                    await waiting.signal(Note(), id=one)
                continue
            handle = await gasoline.dispatch(echo, one, key=one)
            assert (await gasoline.dispatch(echo, one, key=one)).id == handle.id
            assert await soon(handle.output()) == one
            assert await waiting.signal(Note(text="x"), id=one) == one
            assert await soon(waiting.output()) == "x"
        with pytest.raises(ValueError, match="300"):
            await gasoline.dispatch(echo, "x", key="x" * 301)


async def test_hostile_texts_are_filters_that_find_nothing(data: Path) -> None:
    """required.md B23: names and error texts given to list are compared, nothing more."""
    async with Gasoline.open(f"file:{data}/log") as gasoline:
        await gasoline.dispatch(echo, "x")
        for one in HOSTILE:
            if one:
                assert [info async for info in gasoline.list(name=one)] == []
                assert [info async for info in gasoline.list(error=one)] == []
