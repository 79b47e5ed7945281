"""``workflow history --archive``: what was archived of a workflow before it was pruned."""

from __future__ import annotations

from gasoline_es.cli.failures import Failure
from gasoline_es.cli.output import Output
from gasoline_es.core.codec import decode
from gasoline_es.core.ids import check_workflow_id
from gasoline_es.errors import LogError


def show_history(workflow_id: str, directory: str, output: Output, *, full: bool) -> None:
    """Show the events of a workflow as they were archived, as from the log.

    Raises: WorkflowNotFound for a text that is no id. Failure: there are none, or the archive cannot be read. Where a
        file of it is cut off, that is said on standard error, and is no failure: nothing there was pruned.
    """
    from gasoline_es.log.archive import history_of  # zstandard is loaded where it is asked for

    check_workflow_id(workflow_id)
    notes: list[str] = []
    try:
        records = history_of(workflow_id, directory, note=notes.append)
        values = [record.value for record in records if record.value is not None]
        if output.json:
            for value in values:
                output.raw(value)
        elif values:
            from gasoline_es.cli.tree import show

            show([decode(value) for value in values], output, full=full)
    except (LogError, ValueError) as error:
        raise Failure(str(error)) from error
    if not values:
        told = f": {notes[0]}" if notes else ""
        raise Failure(f"workflow {workflow_id} was not found in the archive {directory}{told}")
    for note in notes:
        _tell(note)


def _tell(note: str) -> None:
    import typer

    typer.echo(f"gasoline: {note}", err=True)
