"""``gasoline dev MODULE``: its options, and which log it runs on."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gasoline_es.cli.failures import USED_WRONGLY, Failure, Misuse
from gasoline_es.cli.typed import KeptUp, Pipelines, settings_of

if TYPE_CHECKING:
    from gasoline_es.cli.dev.session import Plan
    from gasoline_es.cli.settings import Settings

LOCAL: Final = ".gasoline"
LOCAL_URL: Final = f"file:./{LOCAL}"


def dev(
    context: typer.Context,
    module: Annotated[
        str,
        typer.Argument(
            metavar="MODULE",
            help="The code: shop.orders, shop/orders.py, or shop.orders:fulfil,ship for some of its workflows.",
            show_default=False,
        ),
    ],
    log: Annotated[
        str | None,
        typer.Option(
            "--log",
            metavar="URL",
            help=f"The log; {LOCAL_URL} unless given, whatever GASOLINE_LOG is.",
            show_default=False,
        ),
    ] = None,
    watch: Annotated[
        list[str] | None,
        typer.Option(
            "--watch",
            metavar="DIR",
            help="Reload when Python files below it are saved; give it again for more. The current directory unless given.",
            show_default=False,
        ),
    ] = None,
    revive: Annotated[
        bool,
        typer.Option(
            "--revive/--no-revive",
            help="After a reload, wake the workflows that had died meanwhile because code and history did not fit.",
        ),
    ] = True,
    max_concurrency: Annotated[int, typer.Option(metavar="N", min=1, help="So many activities at a time.")] = 1_000,
    stop_limit: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Running activities get so long when it reloads or stops.")
    ] = 2.0,
    projections: KeptUp = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="URL",
            help="Where their tables are: sqlite:DIRECTORY or postgresql://…; with the log unless given, whatever "
            "GASOLINE_PROJECTIONS_STORE is.",
            show_default=False,
        ),
    ] = None,
    pipelines: Pipelines = None,
    json: Annotated[
        bool | None,
        typer.Option(
            "--json/--text",
            help="One JSON object, or a line of text, for each thing that happens; without it a live tree on a terminal, and "
            "text when piped.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run the workflows of a module while you write them: the worker starts anew whenever the code is saved.

    For a developer's own log, not for production: that is `gasoline worker`. Unless --log names one it is in .gasoline
    of the current directory, made if it is not there; GASOLINE_LOG is not used. Workflows under way go on in the new code.
    Code that cannot be loaded is shown, and nothing runs until it is saved again; a module that is not there at all is refused.

    On a terminal a live tree shows what runs and sleeps, its last steps, which activities are under way, and what has died.
    Ctrl-C stops it: running activities get their time to end. A second one gives them up.

    \b
    Examples:
      gasoline dev shop.orders
      gasoline dev shop/orders.py --log file:./data --watch shop --watch lib
      gasoline dev shop.orders --projections shop.views
      gasoline dev shop.orders --pipelines shop.intake
      gasoline dev shop.orders --json | jq -c 'select(.kind == "dead") | .error.message'

    Exit status: 0 stopped; 1 it cannot go on; 2 used wrongly; 130 ended by the second Ctrl-C.

    \b
    JSON keys: time, kind, and by kind
      started: module, log, namespace, watched; ready: pid, workflows, woken;
        reload: files; refused: message; worker_ended: pid, status, again_s;
        worker_killed: pid; log_shared: host, pid; log_unreadable: message;
        dead_before: workflows; stopping, stopped: no others
      dispatched: id, name, parent; completed, cancelled, silenced: id, name;
        woken: id, name, by; rerun: id, name, by, start; dead: id, name, error;
        attempt_failed: id, name, activity, location, attempt, final, error
    """
    from gasoline_es.cli.dev.changes import check_watching, directories
    from gasoline_es.cli.dev.session import Plan

    check_watching()
    watched = directories(watch or ())
    given = log if log is not None else _given_before(context)
    settings = replace(settings_of(context), log=LOCAL_URL if given is None else given)
    namespace = _refuse_misuse(settings, module, projections, store, pipelines)
    plan = Plan(
        module, settings, namespace, watched, revive, max_concurrency, stop_limit, projections, store, pipelines
    )
    _run(plan, json, local=given is None)


def _given_before(context: typer.Context) -> str | None:
    """Return what ``gasoline --log URL dev`` says: not what the environment does, which may name any log."""
    root = context.find_root()
    source = root.get_parameter_source("log")
    return root.params["log"] if source is not None and source.name == "COMMANDLINE" else None


def _refuse_misuse(
    settings: Settings, module: str, projections: str | None, store: str | None, pipelines: str | None
) -> str:
    """Return the namespace. Raises: Failure, Misuse: there is no such code, or that cannot be a log or a store."""
    from gasoline_es.checking.code import Code, CodeRefused
    from gasoline_es.cli.reading import DEFAULT_NAMESPACE, check_place

    namespace = settings.namespace or DEFAULT_NAMESPACE
    check_place(settings, namespace)
    if store is not None and projections is None:
        raise Misuse(f"--store {store!r} says where tables of projections are, and there are none: give --projections")
    try:
        for code in filter(None, (module, projections, pipelines)):
            Code.parse(code).require()
    except CodeRefused as refused:
        raise Failure(str(refused), USED_WRONGLY) from refused
    return namespace


def _run(plan: Plan, as_json: bool | None, *, local: bool) -> None:
    import asyncio
    from contextlib import suppress

    from gasoline_es.cli.dev import notices
    from gasoline_es.cli.dev.screen import screen
    from gasoline_es.cli.dev.session import Session

    ignored = os.environ.get("GASOLINE_LOG") if local else None
    if local:
        _keep_out_of_git()
    shown = screen(as_json)
    try:
        shown.tell(notices.started(plan.module, plan.settings.url, plan.namespace, plan.watched, ignored or None))

        async def run() -> None:
            await Session(plan, shown).run()

        asyncio.run(run())
    finally:
        with suppress(OSError):
            shown.close()


def _keep_out_of_git() -> None:
    """Make the directory of the local log, with a note to git that nothing in it is to be kept."""
    directory = Path(LOCAL)
    if not directory.exists():
        directory.mkdir()
        (directory / ".gitignore").write_text("*\n")
