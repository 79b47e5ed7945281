"""`gasoline worker`: a worker in a process of its own, and the list of those that run."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from gasoline_es import Gasoline, WorkflowContext, workflow
from gasoline_es.clock import VirtualClock
from gasoline_es.core.durations import parse_time
from gasoline_es.core.ids import workflow_id_from_key
from gasoline_es.log.port import NewRecord, Section
from gasoline_es.runtime.sharing import HeldUp, Peer
from tests.cli.terminal import environment, invoke, plain, run, run_on_terminal
from tests.engine.harness import soon
from tests.engine.workflows import Note, echo, notes

_COMMAND = [sys.executable, "-c", "from gasoline_es.cli import main; main()"]
ROOT = Path(__file__).resolve().parents[2]


async def start(url: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(*_COMMAND, "--log", url, "worker", *arguments),
        cwd=ROOT,
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_worker_of_a_module_runs_until_sigterm_and_is_listed_meanwhile(tmp_path: Path) -> None:
    """api.md: the noun `worker`; semantics.md §8."""
    url = f"file:{tmp_path}/log"
    process = await start(url, "tests.engine.workflows", "--code-version", "7")
    try:
        assert process.stderr is not None
        while b"worker runs" not in await soon(process.stderr.readline()):
            pass
        (listed,) = run("--log", url, "worker", "list").objects
        assert (listed["pid"], listed["code_version"], listed["weight"], listed["partitions"]) == (
            process.pid,
            7,
            1.0,
            16,
        )
        shown = plain(run_on_terminal("--log", url, "worker", "list", columns=120).stdout)
        assert listed["worker"] in shown
        assert "CODE VERSION" in shown
        async with Gasoline.open(url) as gasoline:
            handle = await soon(gasoline.dispatch(notes, 1))
            await soon(handle.signal(Note(text="to a worker of the command line")))
            assert await soon(handle.output()) == ["to a worker of the command line"]
        process.send_signal(signal.SIGTERM)
        _, err = await soon(process.communicate())
        assert process.returncode == 0
        assert b"worker stopped" in err
        assert b"Traceback" not in err
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert "no worker runs" in run_on_terminal("--log", url, "worker", "list").stdout


async def test_worker_that_stands_still_is_shown_with_what_holds_it_up(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/log"
    async with Gasoline.open(url) as gasoline:
        since_us = parse_time("2026-11-29T09:00:00.5Z")
        log = gasoline._node.log  # pyright: ignore[reportPrivateUsage]
        log.announce(
            Peer(
                log.incarnation, 1, 1.0, HeldUp(since_us, "the body of workflow \x1b[31mgreedy at a.py:7 in b")
            ).about()
        )
        (listed,) = run("--log", url, "worker", "list").objects
        assert listed["held_up_since"] == "2026-11-29T09:00:00.500000Z"
        assert listed["held_up_by"].endswith("greedy at a.py:7 in b")
        shown = plain(run_on_terminal("--log", url, "worker", "list", columns=200).stdout)
        assert f"{log.incarnation} stands still since 2026-11-29T09:00:00Z, held up by the body of workflow" in shown
        assert "at a.py:7 in b" in shown
        log.announce(Peer(log.incarnation, 1, 1.0).about())
        (listed,) = run("--log", url, "worker", "list").objects
        assert (listed["held_up_since"], listed["held_up_by"]) == (None, None)
        assert "stands still" not in run_on_terminal("--log", url, "worker", "list", columns=200).stdout


@pytest.mark.parametrize(
    "arguments", [["nosuchmodule"], ["run", "nosuchmodule"], ["tests.engine.harness"], ["not a module"]]
)
def test_worker_without_code_is_refused_and_makes_no_log(tmp_path: Path, arguments: list[str]) -> None:
    """style.md: what, where, what to do; nothing is left behind."""
    done = invoke("--log", f"file:{tmp_path}/log", "worker", *arguments)
    assert done.status == 2
    assert done.stderr.startswith("gasoline: ")
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--metrics-port", "1", "nosuchmodule"],
        ["--metrics-port=1", "nosuchmodule"],
        ["--code-version", "3", "run", "nosuchmodule"],
        ["--tracing", "nosuchmodule", "--stop-limit", "5"],
    ],
)
def test_options_of_a_worker_may_stand_before_its_module(tmp_path: Path, arguments: list[str]) -> None:
    """They are read as those behind it: what is refused here is the module."""
    done = invoke("--log", f"file:{tmp_path}/log", "worker", *arguments)
    assert (done.status, done.stdout) == (2, "")
    assert "there is no module 'nosuchmodule'" in done.stderr


async def test_worker_cleans_its_log_if_asked_to(tmp_path: Path) -> None:
    """docs/operations.md, "Cleaning": what former workers have left and pruned goes by itself."""
    url, clock = f"file:{tmp_path}/log", VirtualClock()
    for prunes in (0, 20):
        async with (
            Gasoline.open(url, clock=clock) as gasoline,
            gasoline.worker([echo], prune_after=10) as worker,
        ):
            assert worker.pruner is not None
            assert await worker.pruner.look() == prunes
            for handle in [await gasoline.dispatch(echo, "a" * 500) for _ in range(20)]:
                await handle.output()
            clock.advance(20)
    process = await start(url, "tests.engine.workflows", "--compact-every", "1s")
    try:
        assert process.stderr is not None
        while b"the log was cleaned: " not in await soon(process.stderr.readline()):
            pass
    finally:
        process.terminate()
        _, err = await soon(process.communicate())
    assert (process.returncode, b"Traceback" in err) == (0, False)
    assert (await asyncio.to_thread(invoke, "--log", url, "log", "verify")).status == 0


@pytest.mark.parametrize("length", ["0s", "often", ""])
def test_lengths_of_time_that_are_none_are_refused(tmp_path: Path, length: str) -> None:
    for option in ("--compact-every", "--prune-after"):
        done = invoke("--log", f"file:{tmp_path}/log", "worker", "tests.engine.workflows", option, length)
        assert done.status == 2
        assert f"{option} {length!r} is no length of time" in done.stderr


def test_option_that_is_none_of_a_worker_is_said_to_be_none(tmp_path: Path) -> None:
    done = invoke("--log", f"file:{tmp_path}/log", "worker", "--nosuch", "1", "tests.engine.workflows")
    assert (done.status, done.stdout) == (2, "")
    assert done.stderr == "gasoline: No such option: --nosuch. See gasoline worker --help\n"
    for words in (["--help"], ["-h"]):
        shown = invoke("worker", *words)
        assert shown.status == 0
        assert "MODULE | COMMAND" in shown.stdout


def test_objects_of_a_module_that_cannot_be_looked_at_are_no_workflows(tmp_path: Path) -> None:
    """A lazy proxy that has nothing to stand for yet is one of that kind."""
    (tmp_path / "odd.py").write_text(
        "class Odd:\n    def __getattribute__(self, name): raise RuntimeError(name)\n\nodd = Odd()\n"
    )
    done = run("--log", f"file:{tmp_path}/log", "worker", f"{tmp_path}/odd.py")
    assert done.status == 2
    assert "no workflow" in done.stderr
    assert "mistake in gasoline" not in done.stderr


def test_workers_of_what_is_no_log(tmp_path: Path) -> None:
    done = invoke("--log", f"file:{tmp_path}/log", "worker", "list")
    assert (done.status, done.stdout) == (1, "")
    assert not (tmp_path / "log").exists()


# --- spans ------------------------------------------------------------------------------------------------------------

TRACED_MODULE = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from gasoline_es import ActivityContext, WorkflowContext, activity, workflow


@activity
def charge(ctx: ActivityContext, cents: int) -> str:
    current = trace.get_current_span().get_span_context()
    return trace.format_span_id(current.span_id)


@workflow
async def order(ctx: WorkflowContext, cents: int) -> str:
    return await ctx.activity(charge, cents)


if PROVIDER:
    provider = TracerProvider()
    exporter = ConsoleSpanExporter(out=open(FILE, "w"), formatter=lambda span: span.to_json(indent=None) + "\\n")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
"""


@workflow
async def order(ctx: WorkflowContext, cents: int) -> str:
    raise AssertionError("the module's runs, in the worker")


async def traced_worker(folder: Path, *, provider: bool) -> tuple[str, list[dict[str, Any]], str]:
    """Run a workflow by a worker with --tracing; return its traceparent, the worker's spans and its output."""
    module, file, url = folder / "orders.py", folder / "spans.jsonl", f"file:{folder}/log"
    module.write_text(TRACED_MODULE.replace("FILE", repr(str(file))).replace("PROVIDER", str(provider)))
    process = await start(url, str(module), "--tracing")
    try:
        assert process.stderr is not None
        read = b""
        while b"worker runs" not in read:
            line = await soon(process.stderr.readline())
            assert line, read
            read += line
        assert (b"spans go nowhere" in read) is not provider
        tracer_provider = TracerProvider()
        async with Gasoline.open(url, tracing=tracer_provider) as gasoline:
            with tracer_provider.get_tracer("tests").start_as_current_span("request"):
                handle = await soon(gasoline.dispatch(order, 5))
            output = await soon(handle.output())
            traceparent = (await handle.history())[0].traceparent
        process.send_signal(signal.SIGTERM)
        await soon(process.communicate())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    spans = [json.loads(line) for line in file.read_text().splitlines()] if provider else []
    assert traceparent is not None
    (first, *_) = run("--log", url, "workflow", "history", handle.id, "--json").objects
    assert first["traceparent"] == traceparent
    return traceparent, spans, output


async def test_worker_process_goes_on_with_the_trace_of_a_client_process(tmp_path: Path) -> None:
    """docs/design/0026: two processes, two tracer providers, one trace; the module sets the worker's."""
    traceparent, spans, output = await traced_worker(tmp_path, provider=True)
    _, trace_id, span_id, _ = traceparent.split("-")
    assert [span["name"] for span in spans] == ["activity charge", "workflow order"]
    for span in spans:
        assert (span["context"]["trace_id"], span["parent_id"]) == (f"0x{trace_id}", f"0x{span_id}")
    assert spans[0]["context"]["span_id"] == f"0x{output}"


async def test_worker_that_traces_to_nowhere_says_so_and_works(tmp_path: Path) -> None:
    traceparent, _, output = await traced_worker(tmp_path, provider=False)
    assert output == traceparent.split("-")[2]  # the API alone hands the parent on


def test_tracing_without_the_extra_says_what_to_install_and_makes_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "gasoline_es.runtime.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    done = invoke("--log", f"file:{tmp_path}/log", "worker", "tests.engine.workflows", "--tracing")
    assert done.status == 1
    assert "pip install gasoline_es[otel]" in done.stderr
    assert not (tmp_path / "log").exists()


def test_worker_needs_a_log() -> None:
    done = invoke("worker", "tests.engine.workflows")
    assert done.status == 2
    assert "no log was given" in done.stderr


async def test_worker_serves_metrics_at_the_port_it_is_given_and_tells_which(tmp_path: Path) -> None:
    """docs/operations.md, "Metrics": a real process, scraped over HTTP."""
    url = f"file:{tmp_path}/log"
    process = await start(url, "tests.engine.workflows", "--metrics-port", "0")
    try:
        assert process.stderr is not None
        while (told := re.search(rb"metrics are served at port (\d+)", await soon(process.stderr.readline()))) is None:
            pass
        port = int(told[1])
        while b"worker runs" not in await soon(process.stderr.readline()):
            pass  # a client that comes sooner may get a partition before it
        async with Gasoline.open(url) as gasoline:
            handle = await soon(gasoline.dispatch(echo, "counted"))
            assert await soon(handle.output()) == "counted"
        with await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        assert 'gasoline_workflows_completed_total{workflow="echo"} 1.0' in text
        assert "gasoline_partitions_owned 16.0" in text
        second = await start(url, "tests.engine.workflows", "--metrics-port", str(port))
        _, err = await soon(second.communicate())
        assert second.returncode == 1
        assert f"gasoline: metrics cannot be served at 127.0.0.1:{port}: ".encode() in err
        assert b"Traceback" not in err
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = await soon(process.communicate())
    assert process.returncode == 0
    assert b"Traceback" not in err


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_worker_refuses_what_is_no_port(tmp_path: Path, port: str) -> None:
    done = invoke("--log", f"file:{tmp_path}/log", "worker", "tests.engine.workflows", "--metrics-port", port)
    assert done.status == 2
    assert "--metrics-port" in done.stderr
    assert not (tmp_path / "log").exists()


# --- pipelines ----------------------------------------------------------------------------------------------------------

_INTAKE = """
from gasoline_es.pipelines import Dispatch, Incoming, pipeline
from tests.engine.workflows import echo

@pipeline("orders")
def orders(incoming: Incoming[bytes | None]):
    return Dispatch(echo, incoming.value.decode(), id=incoming.key)

@pipeline("payments", name="pay")
def payments(incoming: Incoming[bytes | None]):
    return None

again = orders
"""


async def test_worker_runs_the_pipelines_of_a_module_and_lists_them(tmp_path: Path) -> None:
    url, module = f"file:{tmp_path}/log", tmp_path / "intake.py"
    module.write_text(_INTAKE)
    async with Gasoline.open(url) as gasoline:
        await gasoline.log.append([Section(0, None, [NewRecord("orders", 0, "k-1", b"41", 0)])])
    process = await start(url, "tests.engine.workflows", "--pipelines", str(module), "--past-lost", "pay")
    try:
        assert process.stderr is not None
        while b"worker runs" not in await soon(process.stderr.readline()):
            pass
        (listed,) = run("--log", url, "worker", "list").objects
        assert listed["pipelines"] == ["orders", "pay"]
        shown = plain(run_on_terminal("--log", url, "worker", "list", columns=120).stdout)
        assert "pipeline orders: ingested by all workers" in shown
        async with Gasoline.open(url, readonly=True) as gasoline:
            wanted = gasoline.handle(workflow_id_from_key("default", "echo", "k-1"), echo)
            async with asyncio.timeout(60):
                while not await gasoline.counts():
                    await asyncio.sleep(0.02)
            assert await soon(wanted.output()) == "41"
        process.send_signal(signal.SIGTERM)
        _, err = await soon(process.communicate())
        assert process.returncode == 0
        assert b"Traceback" not in err
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_worker_that_lacks_a_pipeline_is_named(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/log"
    async with Gasoline.open(url) as one, Gasoline.open(url) as other:
        one.log.announce(Peer(one.log.incarnation, 1, 1.0, None, ("orders",)).about())
        other.log.announce(Peer(other.log.incarnation, 1, 1.0, None, ()).about())
        shown = plain(run_on_terminal("--log", url, "worker", "list", columns=200).stdout)
        assert (
            f"pipeline orders: not ingested by {other.log.incarnation}: what they would have to read is read" in shown
        )


@pytest.mark.parametrize(
    ("source", "arguments", "told"),
    [
        (
            _INTAKE,
            ["--past-lost", "orders"],
            "--past-lost 'orders' is about a pipeline, and there are none: give --pipel",
        ),
        (_INTAKE, ["--pipelines", "{}", "--past-lost", "nosuch"], "no such pipeline in"),
        (_INTAKE, ["--pipelines", "{}:nosuch"], "there is no pipeline 'nosuch' in"),
        ("x = 1", ["--pipelines", "{}"], "there is no pipeline in"),
        (_INTAKE + '\nmore = pipeline("orders")(print)', ["--pipelines", "{}"], "read by the name 'orders'"),
    ],
)
def test_pipelines_that_are_not_there_are_refused_and_no_log_is_made(
    tmp_path: Path, source: str, arguments: list[str], told: str
) -> None:
    module = tmp_path / "intake.py"
    module.write_text(source)
    given = [argument.format(module) for argument in arguments]
    done = invoke("--log", f"file:{tmp_path}/log", "worker", "tests.engine.workflows", *given)
    assert done.status == 2
    assert told in done.stderr
    assert not (tmp_path / "log").exists()
