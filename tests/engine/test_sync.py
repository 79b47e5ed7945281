"""The client that blocks: the verbs of the asynchronous one, from any thread (api.md, "Outside")."""

from __future__ import annotations

import asyncio
import inspect
import shutil
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import (
    ActivityContext,
    Gasoline,
    Message,
    OperationContext,
    ScheduleHandle,
    SignalTo,
    SyncGasoline,
    SyncScheduleHandle,
    SyncWorkflowHandle,
    WorkflowContext,
    WorkflowHandle,
    activity,
    operation,
    workflow,
)
from gasoline_es.client import Client
from gasoline_es.errors import (
    DefinitionError,
    GasolineError,
    LogCorrupt,
    LogError,
    LogReadOnly,
    ScheduleNotFound,
    StepMisused,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowNotFound,
)
from gasoline_es.handles import WorkflowInfo
from gasoline_es.sync import LISTED_AT_ONCE
from tests.engine.harness import PATIENCE_S, consumed, soon, types
from tests.engine.workflows import Note, echo, nap, notes, one_note

ROOT = Path(__file__).resolve().parents[2]


class Moved(Message, tail_ttl=90):
    x: int


@operation
async def doubled(ctx: OperationContext, number: int) -> int:
    return 2 * number


NO_VERBS = {
    "open": "makes an asynchronous one",
    "open_sync": "makes the one that blocks",
    "log": "is not for several threads",
    "worker": "is a program of its own",
    "run_worker": "is a program of its own",
    "ingest": "works beside a worker",
}


@contextmanager
def program(*arguments: str) -> Generator[subprocess.Popen[str]]:
    """Run a program of the engine's tests until the block ends."""
    command = [sys.executable, "-W", "error", "-m", "tests.engine.programs", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# --- the same verbs ---------------------------------------------------------------------------------------------------


def verbs(kind: type[Any]) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_every_verb_of_the_asynchronous_client_is_there() -> None:
    assert verbs(Gasoline) - set(NO_VERBS) - verbs(SyncGasoline) == set()
    assert verbs(WorkflowHandle) - verbs(SyncWorkflowHandle) == set()
    assert verbs(SyncGasoline) - verbs(Gasoline) == {"close"}
    assert verbs(SyncWorkflowHandle) - verbs(WorkflowHandle) == set()
    assert verbs(SyncScheduleHandle) == verbs(ScheduleHandle)


@pytest.mark.parametrize(
    ("blocking", "awaited"),
    [(SyncGasoline, Client), (SyncWorkflowHandle, WorkflowHandle), (SyncScheduleHandle, ScheduleHandle)],
)
def test_verbs_have_the_signatures_and_the_docs_of_the_awaited_ones(blocking: type[Any], awaited: type[Any]) -> None:
    for name in verbs(awaited) & verbs(blocking) - {"id", "name", "log", "subscribe"}:
        here, there = getattr(blocking, name), getattr(awaited, name)
        assert inspect.signature(here).parameters == inspect.signature(there).parameters, name
        assert here.__doc__ == there.__doc__, name
        assert not inspect.iscoroutinefunction(here), name
    assert inspect.signature(Gasoline.open_sync).parameters == inspect.signature(Gasoline.open).parameters
    mine, theirs = (inspect.signature(one.subscribe).parameters for one in (SyncGasoline, Client))
    assert {name: one for name, one in mine.items() if name != "timeout"} == dict(theirs)
    assert inspect.signature(SyncGasoline.dispatch).return_annotation == "SyncWorkflowHandle[O]"
    assert inspect.signature(SyncGasoline.schedule).return_annotation == "SyncScheduleHandle[O]"
    assert inspect.signature(SyncGasoline.list).return_annotation == "Iterator[WorkflowInfo]"


def test_every_verb_works_beside_a_worker_process(tmp_log_url: str) -> None:
    with program("worker", tmp_log_url) as worker:
        assert line(worker) == "ready"
        with Gasoline.open_sync(tmp_log_url) as gasoline:
            handle = gasoline.dispatch(notes, 3, tags={"a": 1})
            assert handle.signal(Note(text="by id"), id="mine") == "mine"
            assert gasoline.signal(Note(text="by tags"), notes, tags={"a": 1}) is not None
            assert gasoline.signal(Note(), echo, graceful_not_found=True) is None
            assert [one.id for one in (gasoline.find(notes, tags={"a": 1}),) if one is not None] == [handle.id]
            assert gasoline.find(echo) is None
            assert gasoline.get(handle.id).name == handle.get().name == "notes"
            (sent,) = gasoline.signal_many([SignalTo(Note(text="in a batch"), handle.id)])
            assert handle.output(timeout=PATIENCE_S) == ["by id", "by tags", "in a batch"]
            assert consumed(handle.history())[::2] == ["mine", sent]
            assert gasoline.history(handle.id) == handle.history()
            fork = handle.rerun("{3}", fork=True)
            assert isinstance(fork, SyncWorkflowHandle)
            assert fork.output(timeout=PATIENCE_S) == handle.output()
            assert gasoline.rerun(handle.id, "{3}", dry_run=True).id == handle.id
            napping = gasoline.dispatch(nap, 600.0, key="nap")
            assert gasoline.handle(napping.id, nap).id == gasoline.dispatch(nap, 600.0, key="nap").id
            with pytest.raises(TimeoutError, match="owns its partition"):
                napping.output(timeout=0.01)
            napping.wake()
            napping.cancel()
            with pytest.raises(WorkflowCancelled):
                napping.output(timeout=PATIENCE_S)
            dead = gasoline.dispatch(nap, 1e300)
            with pytest.raises(WorkflowFailed, match="too long"):
                dead.output(timeout=PATIENCE_S)
            with pytest.raises(GasolineError, match="did not die of an activity's failure"):
                dead.recover()
            nightly = gasoline.schedule("0 3 * * *", echo, "seven", name="nightly", timezone="Europe/Berlin")
            assert isinstance(nightly, SyncScheduleHandle)
            assert nightly.trigger().output(timeout=PATIENCE_S) == "seven"
            nightly.pause()
            assert [(info.name, info.status) for info in gasoline.schedules()] == [("nightly", "paused")]
            nightly.resume()
            nightly.remove()
            assert nightly.history()[-1].type == "schedule.removed"
            with pytest.raises(ScheduleNotFound):
                gasoline.schedule_handle("nightly", echo).get()
            listed = [info.id for info in gasoline.list(name="notes")]
            assert listed == [handle.id, fork.id]
            assert repr(handle) == f"<workflow notes {handle.id}>"


# --- threads ----------------------------------------------------------------------------------------------------------


def test_threads_call_at_once_and_each_ones_calls_keep_their_order(tmp_log_url: str) -> None:
    """design §5: calls are decided in the order they are made."""
    with program("worker", tmp_log_url) as worker, Gasoline.open_sync(tmp_log_url) as gasoline:
        assert line(worker) == "ready"
        shared = gasoline.dispatch(notes, 8 * 5)

        def caller(number: int) -> list[str]:
            handle = gasoline.dispatch(notes, 5, tags={"caller": number})
            for step in range(5):
                gasoline.signal(Note(text=f"{step}"), notes, tags={"caller": number})
                shared.signal(Note(text=f"{number} {step}"))
            return handle.output(timeout=PATIENCE_S)

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(caller, range(8))) == [["0", "1", "2", "3", "4"]] * 8
        told = [text.split() for text in shared.output(timeout=PATIENCE_S)]
        for number in range(8):
            assert [step for caller, step in told if caller == str(number)] == ["0", "1", "2", "3", "4"]


def test_close_while_another_thread_waits_for_an_output_ends_that_with_an_error() -> None:
    gasoline = Gasoline.open_sync("memory:")
    handle = gasoline.dispatch(one_note, None)
    begun = threading.Event()

    def waits() -> None:
        begun.set()
        handle.output()

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(waits)
        assert begun.wait(PATIENCE_S)
        gasoline.close()
        with pytest.raises(LogError, match="was closed"):
            waiting.result(PATIENCE_S)
    assert repr(gasoline) == "<SyncGasoline memory:, closed>"
    gasoline.close()


def test_activity_in_a_thread_uses_a_client_that_blocks(tmp_log_url: str) -> None:
    """A plain `def` activity may not await: this client is the one for it."""

    async def worked(gasoline: SyncGasoline) -> str:
        @activity
        def dispatch_echo(ctx: ActivityContext, text: str) -> str:
            return gasoline.dispatch(echo, text, key=ctx.idempotency_key, from_activity=True).id

        @workflow
        async def dispatching(ctx: WorkflowContext, text: str) -> str:
            return await ctx.activity(dispatch_echo, text)

        async with Gasoline.open(tmp_log_url) as working, working.worker([dispatching, echo]):
            workflow_id = await soon((await working.dispatch(dispatching, "said")).output())
            output: str = await soon(working.handle(workflow_id, echo).output())
            return output

    with Gasoline.open_sync(tmp_log_url) as gasoline:
        assert asyncio.run(worked(gasoline)) == "said"


def test_client_that_blocks_shares_a_log_in_memory_with_a_worker_on_another_loop() -> None:
    """For tests of a web application: everything in one process, and nothing on disk."""
    url = "memory:shared-with-a-worker"
    stop = threading.Event()
    ready = threading.Event()

    async def work() -> None:
        async with Gasoline.open(url) as gasoline, gasoline.worker([notes]):
            ready.set()
            await asyncio.to_thread(stop.wait)

    with ThreadPoolExecutor() as pool, Gasoline.open_sync(url) as gasoline:
        working = pool.submit(asyncio.run, work())
        try:
            assert ready.wait(PATIENCE_S)
            for number in range(20):
                handle = gasoline.dispatch(notes, 2, key=f"{number}")
                handle.signal(Note(text="a"))
                gasoline.signal_many([SignalTo(Note(text="b"), handle.id)])
                assert handle.output(timeout=PATIENCE_S) == ["a", "b"]
        finally:
            stop.set()
        working.result(PATIENCE_S)


# --- list -------------------------------------------------------------------------------------------------------------


def test_list_fetches_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    info = Client._info

    def counted(self: Client, *args: Any) -> WorkflowInfo:
        found = info(self, *args)
        made.append(found.id)
        return found

    with Gasoline.open_sync("memory:") as gasoline:
        ids = [gasoline.dispatch(echo, f"{number}").id for number in range(2 * LISTED_AT_ONCE + 1)]
        monkeypatch.setattr(Client, "_info", counted)
        listed = gasoline.list()
        assert made == []
        assert next(listed).id == ids[0]
        assert made == ids[:LISTED_AT_ONCE]
        assert [found.id for found in listed] == ids[1:]
        assert list(gasoline.list(name="nobody")) == []
        unfinished = gasoline.list()
        next(unfinished)
        del unfinished  # left behind: nothing is complained about


def test_list_of_a_damaged_log_gives_what_can_be_read_and_then_the_damage(tmp_path: Path) -> None:
    with Gasoline.open_sync(f"file:{tmp_path}", partitions=1) as gasoline:
        ids = [gasoline.dispatch(echo, f"number {number}").id for number in range(5)]
    segment = tmp_path / "segments" / "0000000001.jsonl"
    segment.write_bytes(segment.read_bytes().replace(b"number 3", b"number 7"))
    shutil.rmtree(tmp_path / "projections")  # else nothing of it is read to list them
    listed: list[str] = []
    with Gasoline.open_sync(f"file:{tmp_path}", readonly=True) as reader:
        with pytest.raises(LogCorrupt):
            listed.extend(info.id for info in reader.list())
        assert listed == ids[:3]
    with pytest.raises(LogCorrupt):
        Gasoline.open_sync(f"file:{tmp_path}")


# --- where it cannot be used ------------------------------------------------------------------------------------------


def calls(gasoline: SyncGasoline, handle: SyncWorkflowHandle[str]) -> dict[str, Callable[[], object]]:
    return {
        "dispatch": lambda: gasoline.dispatch(echo, "y"),
        "signal": lambda: gasoline.signal(Note(), to=handle.id),
        "list": gasoline.list,
        "output": handle.output,
        "get": handle.get,
    }


def test_use_after_close_says_how_to_open_it_again() -> None:
    with Gasoline.open_sync("memory:") as gasoline:
        handle = gasoline.dispatch(echo, "x")
    for verb, call in calls(gasoline, handle).items():
        with pytest.raises(
            LogError, match=rf"`gasoline\.{verb}\(…\)`: memory: was closed. Open it again: `Gasoline.open_sync"
        ):
            list(call()) if verb == "list" else call()  # type: ignore[call-overload]


def test_use_in_a_running_event_loop_says_what_to_use_there() -> None:
    with Gasoline.open_sync("memory:") as gasoline:
        handle = gasoline.dispatch(echo, "x")

        async def used() -> None:
            for verb, call in calls(gasoline, handle).items():
                with pytest.raises(GasolineError, match=rf"`gasoline\.{verb}\(…\)` blocks.*`async with Gasoline.open"):
                    call()
            with pytest.raises(GasolineError, match=r"`Gasoline.open_sync\(…\)` blocks"):
                Gasoline.open_sync("memory:")

        asyncio.run(used())
        assert [info.id for info in gasoline.list()] == [handle.id]


def test_use_in_a_body_ends_the_run(tmp_log_url: str) -> None:
    with Gasoline.open_sync("memory:") as gasoline:

        @workflow
        async def misusing(ctx: WorkflowContext, _: None) -> str:
            return gasoline.dispatch(echo, "x").id

        async def run() -> None:
            async with Gasoline.open(tmp_log_url) as working, working.worker([misusing]):
                with pytest.raises(WorkflowFailed, match="a client must not be used in a workflow body"):
                    await soon((await working.dispatch(misusing, None)).output())

        asyncio.run(run())
        assert list(gasoline.list()) == []
        assert issubclass(StepMisused, GasolineError)


def test_worker_is_refused_with_what_to_write() -> None:
    with Gasoline.open_sync("memory:") as gasoline:
        for name in ("worker", "run_worker"):
            with pytest.raises(AttributeError, match=r"runs no worker.*await gasoline.run_worker\(\[…\]\)"):
                getattr(gasoline, name)
        assert not hasattr(gasoline, "nonsense")


def test_messages_and_operations_are_there(tmp_log_url: str) -> None:
    """api.md: the same verbs; an operation runs on the event loop's thread, which the caller waits for."""
    with Gasoline.open_sync(tmp_log_url) as gasoline:
        assert gasoline.tail(Moved, topic={"piece": "rook"}) is None
        gasoline.message(Moved(x=3), topic={"piece": "rook"}, wait=True)
        received = gasoline.tail(Moved, topic={"piece": "rook"})
        assert received is not None
        assert received.message == Moved(x=3)
        assert gasoline.operation(doubled, 4) == 8


def test_reader_reads_and_writes_nothing(tmp_log_url: str) -> None:
    with Gasoline.open_sync(tmp_log_url) as gasoline:
        handle = gasoline.dispatch(echo, "x")
    with Gasoline.open_sync(tmp_log_url, readonly=True) as reader:
        assert reader.get(handle.id).status == "running"
        assert types(reader.history(handle.id)) == ["workflow.dispatched"]
        with pytest.raises(LogReadOnly):
            reader.dispatch(echo, "y")
    with pytest.raises(LogError, match="there is no namespace 'other'"):
        Gasoline.open_sync(tmp_log_url, namespace="other", readonly=True)


def test_errors_show_where_the_caller_stands_and_where_it_came_from() -> None:
    with Gasoline.open_sync("memory:") as gasoline:
        with pytest.raises(WorkflowNotFound) as raised:
            gasoline.get("01a2299f-b11a-7f0e-b661-000000000000")
        shown = [frame.name for frame in traceback.extract_tb(raised.tb)]
        assert shown[0] == "test_errors_show_where_the_caller_stands_and_where_it_came_from"
        assert shown[-1] == "_summary"
        handle = gasoline.dispatch(echo, "x")
        with pytest.raises(DefinitionError, match="is a 'echo', and its handle was made for 'one_note'"):
            gasoline.handle(handle.id, one_note).get()


# --- processes --------------------------------------------------------------------------------------------------------

FORKING = """
import os, sys, traceback
from gasoline_es import Gasoline
from tests.engine.workflows import echo

gasoline = Gasoline.open_sync(sys.argv[1])
handle = gasoline.dispatch(echo, "parent")
child = os.fork()
if child == 0:
    for call in (lambda: gasoline.dispatch(echo, "child"), handle.output, gasoline.list):
        try:
            call()
        except Exception as error:
            print(type(error).__name__, error, flush=True)
    gasoline.close()
    with Gasoline.open_sync(sys.argv[1]) as own:
        print(own.dispatch(echo, "its own").get().name, flush=True)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(gasoline.dispatch(echo, "parent again").get().name, len(list(gasoline.list())), flush=True)
gasoline.close()
"""

LEAVING = """
import atexit, sys, threading
from gasoline_es import Gasoline
from gasoline_es.log.file import log
from tests.engine.workflows import echo

log._INLINE_SYNC_S = 0  # as on a slow disk: every append goes to a thread
how = sys.argv[2]
gasoline = Gasoline.open_sync(sys.argv[1])
gasoline.dispatch(echo, "x")
if how == "atexit":
    atexit.register(gasoline.close)
elif how == "thread":
    def later():
        threading.main_thread().join()
        gasoline.dispatch(echo, "y")
        gasoline.close()
    threading.Thread(target=later).start()
elif how == "waiting":
    threading.Thread(target=gasoline.dispatch(echo, "y").output, daemon=True).start()
print("left", flush=True)
"""


def run(code: str, *arguments: str) -> str:
    """Run a script to its end; nothing is said on stderr."""
    # From Python 3.12 on a fork beside threads is warned of; that is what is tested here.
    command = [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c", code, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_forked_child_is_told_to_open_its_own_and_the_parent_goes_on(tmp_log_url: str) -> None:
    refused, refused_too, refused_list, *rest = run(FORKING, tmp_log_url).splitlines()
    assert refused.startswith(f"GasolineError `gasoline.dispatch(…)`: {tmp_log_url} was opened by process ")
    assert "Open the log in each worker process, after the fork: in gunicorn's `post_fork` hook" in refused
    assert refused_too.startswith("GasolineError `gasoline.output(…)`")
    assert refused_list.startswith("GasolineError `gasoline.list(…)`")
    assert rest == ["echo", "echo 3"]


@pytest.mark.parametrize(("how", "recorded"), [("nothing", 1), ("atexit", 1), ("thread", 2), ("waiting", 2)])
def test_program_ends_with_and_without_a_close_and_loses_nothing(tmp_log_url: str, how: str, recorded: int) -> None:
    assert run(LEAVING, tmp_log_url, how) == "left\n"
    with Gasoline.open_sync(tmp_log_url, readonly=True) as reader:
        assert len(list(reader.list())) == recorded
