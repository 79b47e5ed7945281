"""What ``gasoline worker`` does: runs a worker in this process, or shows those that run."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from gasoline_es.cli import render
from gasoline_es.cli.acting import deciding
from gasoline_es.cli.escape import escape
from gasoline_es.cli.output import Output
from gasoline_es.cli.reading import reading
from gasoline_es.cli.settings import Settings
from gasoline_es.cli.stopping import Stopping
from gasoline_es.core.durations import format_time
from gasoline_es.definitions import Workflow
from gasoline_es.log_records import WorkflowLogFilter
from gasoline_es.pipelines import Pipeline
from gasoline_es.projecting import AnyProjection
from gasoline_es.runtime.sharing import Peer

_log = logging.getLogger(__name__)


def work(
    settings: Settings,
    workflows: Iterable[Workflow[Any, Any]],
    early: Stopping,
    *,
    version: int,
    max_concurrency: int,
    stop_limit: float,
    metrics_port: int | None,
    metrics_host: str,
    tracing: bool = False,
    projections: Sequence[AnyProjection] = (),
    store: str | None = None,
    pipelines: Sequence[Pipeline[Any]] = (),
    prune_after_us: int | None = None,
    compact_every_us: int | None = None,
    archive: str | None = None,
) -> None:
    """Run the workflows until a signal. Raises: LogFailed and others of its kind. GasolineError: spans need the extra."""
    log_to_stderr()
    opening = deciding(settings, tracing=tracing)
    if tracing:
        _check_provider()

    async def run() -> None:
        async with opening as gasoline:
            with early.ending():
                await gasoline.run_worker(
                    workflows,
                    version=version,
                    max_concurrency=max_concurrency,
                    stop_limit=stop_limit,
                    metrics_port=metrics_port,
                    metrics_host=metrics_host,
                    projections=projections,
                    store=store,
                    pipelines=pipelines,
                    prune_after=None if prune_after_us is None else timedelta(microseconds=prune_after_us),
                    compact_every=None if compact_every_us is None else timedelta(microseconds=compact_every_us),
                    archive=archive,
                )

    early.run(run())


def _check_provider() -> None:
    """Say so if nobody has set a tracer provider: spans that go nowhere look like a worker that does nothing."""
    from opentelemetry import trace

    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        _log.warning(
            "--tracing was given, and no tracer provider is set, so spans go nowhere: set one in the module, "
            "`trace.set_tracer_provider(…)`, or start the worker by `opentelemetry-instrument`"
        )


def log_to_stderr() -> None:
    """Let a worker's process say on standard error what happens, and of which workflow; unless its module has seen to that."""
    handler = logging.StreamHandler()
    handler.addFilter(WorkflowLogFilter())
    handler.setFormatter(_Line("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _Line(logging.Formatter):
    """A line that ends with the workflow that it is about, where the message does not name it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name is that of logging
        """Return the line."""
        line = super().formatMessage(record)
        workflow_id = record.__dict__.get("workflow_id")
        return line if workflow_id is None or str(workflow_id) in line else f"{line} [{workflow_id}]"


def show_workers(settings: Settings, as_json: bool | None) -> None:
    """Print a line for each worker."""
    output = Output(as_json)
    with reading(settings) as opened:
        log = opened.log
        owners = [log.owner(index) for index in range(log.partition_count)]
        owned = Counter(one.incarnation for one in owners if one is not None and one.alive and not one.released)
        found = [(member, peer) for member in log.members() if (peer := Peer.of(member)) is not None]
    if output.json:
        for member, peer in found:
            output.object(
                {
                    "worker": member.incarnation,
                    "host": member.host,
                    "pid": member.pid,
                    "code_version": peer.version,
                    "weight": peer.weight,
                    "partitions": owned[member.incarnation],
                    "held_up_since": None if peer.held_up is None else format_time(peer.held_up.since_us),
                    "held_up_by": None if peer.held_up is None else peer.held_up.by,
                    "pipelines": peer.pipelines,
                }
            )
    elif not found:
        output.console.print("no worker runs")
    else:
        _show(
            output,
            [(escape(one.incarnation), escape(one.host), one.pid, peer, owned[one.incarnation]) for one, peer in found],
        )


def _show(output: Output, rows: Sequence[tuple[str, str, int, Peer, int]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in ("WORKER", "HOST", "PID", "CODE VERSION", "WEIGHT", "PARTITIONS"):
        table.add_column(name, overflow="fold", justify="left" if name in ("WORKER", "HOST") else "right")
    for worker, host, pid, peer, partitions in rows:
        table.add_row(worker, host, str(pid), str(peer.version), f"{peer.weight:g}", str(partitions))
    output.console.print(table)
    for worker, _, _, peer, _ in rows:
        if peer.held_up is not None:
            since, by = render.second(peer.held_up.since_us), escape(peer.held_up.by)
            told = f"{worker} stands still since {since}, held up by {by}: nothing goes on in its partitions"
            output.console.print(Text(told, "bold red"))
    _show_pipelines(output, [(worker, peer.pipelines) for worker, _, _, peer, _ in rows])


def _show_pipelines(output: Output, rows: Sequence[tuple[str, tuple[str, ...] | None]]) -> None:
    """Print a line for each pipeline: a partition of its topic is read by one worker, whoever that is."""
    from rich.text import Text

    for name in sorted({one for _, pipelines in rows for one in pipelines or ()}):
        without = [worker for worker, pipelines in rows if pipelines is not None and name not in pipelines]
        told = f"pipeline {escape(name)}: "
        if without:
            told += f"not ingested by {', '.join(without)}: what they would have to read is read by nobody"
        else:
            told += "ingested by all workers"
        output.console.print(Text(told, "bold red" if without else ""))
