"""``gasoline registry``: which definitions workers have registered."""

from __future__ import annotations

from typing import Annotated

import typer

from gasoline_es.cli.typed import Json, settings_of


def registry(
    context: typer.Context,
    all_: Annotated[
        bool, typer.Option("--all", help="Also workers that were killed, or lost what they owned: they live no more.")
    ] = False,
    json: Json = None,
) -> None:
    """Show which workers live, which workflows and activities they have registered, and which names wait for nobody.

    A worker says so on the log soon after it has its first partition, and takes it back when it stops; a spare one, which owns
    nothing yet, is not shown. Activities are those that its bodies name directly. A name is stranded when workflows of it are
    running or sleeping and no living worker has registered it: start one that has.

    \b
    Examples:
      gasoline registry
      gasoline registry --json | jq -r 'select(.stranded) | .name'

    \b
    JSON: one object a worker (kind "worker": worker, alive, owns, host, pid,
    started, library (its version), workflows, activities), then one a
    definition (kind "workflow": name, workers, waiting, stranded; kind
    "activity": name, workers).
    """
    from gasoline_es.cli.output import Output
    from gasoline_es.cli.reading import reading
    from gasoline_es.cli.registered import members, registered, show

    output = Output(json)
    with reading(settings_of(context)) as log:
        found = registered(log, gone=all_)
        if output.json:
            for one in members(found):
                output.object(one)
        else:
            show(found, output)
