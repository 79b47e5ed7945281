"""The worker's process of ``gasoline dev``: loads the code once, runs it, and ends. Not for people to start.

It lives no longer than the process that started it: its standard input is a pipe from there, on which nothing comes after
the first line but its end.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Final

from gasoline_es.checking.code import Code, CodeRefused, Workflows
from gasoline_es.cli.dev.reports import Order, Ready, Refused, Report, Running, UnderWay, running, write
from gasoline_es.cli.failures import explain
from gasoline_es.cli.piped import load_pipelines
from gasoline_es.cli.working import log_to_stderr
from gasoline_es.core.error_info import PACKAGE
from gasoline_es.core.location import format_location
from gasoline_es.engine import Gasoline
from gasoline_es.errors import GasolineError
from gasoline_es.pipelines import Pipeline
from gasoline_es.projecting import AnyProjection
from gasoline_es.runtime.worker import Worker

EVICT_AFTER_S: Final = 1.0
"""A workflow that waits leaves memory soon: what it waits for then stands in the log, and it comes back by a replay."""
_LOOK_S: Final = 0.1
"""So often it is looked which attempts run."""
_WAKE_AT_ONCE: Final = 100

Loaded = tuple[Workflows, Sequence[AnyProjection], Sequence[Pipeline[Any]]]
"""What the modules have."""


def main() -> None:
    """Run the worker; exit 0 when it was stopped or the code refused, 1 when it could not run."""
    order = Order.read(sys.argv[1])
    lifeline, to_wake = _take_standard_input()
    os.set_inheritable(order.report_fd, False)  # what activities start must not seem to be this process
    # Bytecode is told apart by the second and the size of its source: two saves in a second may look alike.
    sys.dont_write_bytecode = True
    log_to_stderr()
    loaded = _load(order)
    if loaded is None:
        return
    try:
        asyncio.run(_work(order, loaded, lifeline, to_wake))
    except (GasolineError, OSError) as error:
        told, status = explain(error)
        sys.stderr.write(told + "\n")
        sys.exit(status)


def _take_standard_input() -> tuple[int, list[str]]:
    """Return what ends when the supervisor does, and the ids of the workflows to wake. The code gets an empty input."""
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    first = b""
    while not first.endswith(b"\n"):
        read = os.read(lifeline, 65_536)
        if not read:
            sys.exit(0)
        first += read
    ids: list[str] = json.loads(first)
    return lifeline, ids


def _load(order: Order) -> Loaded | None:
    loads = order.module
    try:
        workflows = Code.parse(order.module).load()
        projections: Sequence[AnyProjection] = ()
        if order.projections is not None:
            from gasoline_es.cli.projected import projections_of  # with all that stores need

            loads = order.projections
            projections = projections_of(Code.parse(order.projections))
        pipelines: Sequence[Pipeline[Any]] = ()
        if order.pipelines is not None:
            loads = order.pipelines
            pipelines = load_pipelines(Code.parse(order.pipelines))
        return workflows, projections, pipelines
    except CodeRefused as refused:
        if refused.__cause__ is not None:
            sys.stderr.write(_shown(refused.__cause__))
        message = str(refused)
    except BaseException as error:  # what ends a process at its import: sys.exit()
        message = f"{loads} cannot be loaded: {type(error).__name__}: {error}"
    os.write(order.report_fd, write(Refused(message)))
    return None


def _shown(error: BaseException) -> str:
    """Return the traceback of what the code raised, from where the code begins."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = (PACKAGE, "<frozen importlib", importlib.__file__)
    theirs = [frame for frame in frames if not frame.filename.startswith(ours)]
    head = ["Traceback (most recent call last):\n", *traceback.format_list(theirs)] if theirs else []
    return "".join([*head, *traceback.format_exception_only(error)])


async def _work(order: Order, loaded: Loaded, lifeline: int, to_wake: Sequence[str]) -> None:
    workflows, projections, pipelines = loaded
    async with Gasoline.open(order.url, namespace=order.namespace) as gasoline:
        worker = gasoline.worker(
            workflows.values(),
            max_concurrency=order.max_concurrency,
            stop_limit=order.stop_limit_s,
            evict_after=EVICT_AFTER_S,
            projections=projections,
            pipelines=pipelines,
            store=order.store,
        )
        _stop_with(lifeline)
        reporting = asyncio.create_task(_report(order.report_fd, gasoline, worker, tuple(workflows), to_wake))
        try:
            await worker.run()
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)


def _stop_with(lifeline: int) -> None:
    """Stop as by SIGTERM when the other end is closed."""
    loop = asyncio.get_running_loop()

    def ended() -> None:
        if not os.read(lifeline, 4096):
            loop.remove_reader(lifeline)
            os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(lifeline, ended)


async def _report(fd: int, gasoline: Gasoline, worker: Worker, names: tuple[str, ...], to_wake: Sequence[str]) -> None:
    await worker.started.wait()
    _send(fd, Ready(names, await _wake(gasoline, to_wake)))
    os.set_blocking(fd, False)
    told = Running()
    while True:
        now = running(
            UnderWay(one.live.id, format_location(one.wait.location), one.definition.name, one.number, one.started_us)
            for one in worker.under_way
        )
        if now != told and _send(fd, now):
            told = now
        await asyncio.sleep(_LOOK_S)


async def _wake(gasoline: Gasoline, ids: Sequence[str]) -> int:
    """Wake them; return how many there were. One that is gone since is passed."""
    woken = 0
    for first in range(0, len(ids), _WAKE_AT_ONCE):
        some = ids[first : first + _WAKE_AT_ONCE]
        done = await asyncio.gather(*map(gasoline.wake, some), return_exceptions=True)
        woken += sum(not isinstance(one, BaseException) for one in done)
    return woken


def _send(fd: int, report: Report) -> bool:
    """Report, unless nobody reads: the worker waits for no one who only looks on. Returns whether it is told."""
    try:
        os.write(fd, write(report))
    except (BlockingIOError, BrokenPipeError):
        return False
    return True


if __name__ == "__main__":
    main()
