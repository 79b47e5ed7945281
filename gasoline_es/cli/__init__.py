"""The command line ``gasoline``: looks into a log, beside its workers or with none running, and changes nothing.

Everything here is loaded on demand: typer for any command, rich for tables on a terminal, the log for reading one.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line on ``sys.argv`` and exit: 0 fine, 1 not found, refused, or damaged, 2 used wrongly."""
    from gasoline_es.cli.stopping import hold

    hold()
    from gasoline_es.cli.app import app

    app(prog_name="gasoline")
