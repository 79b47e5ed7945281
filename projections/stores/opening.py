"""Which store the projections of a log are in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gasoline_es.errors import ExtraMissing, ProjectionError
from gasoline_es.log.opening import directory_of
from projections.stores.port import Reach, Store, nothing

if TYPE_CHECKING:
    from gasoline_es.log.port import Log


def open_store(log: Log, url: str | None = None, *, reach: Reach = nothing) -> Store[Any]:
    """Open the store for a log's namespace. Nothing is made before the first projection is.

    ``url`` None: where the log has what is derived from it, of a file log ``<directory>/projections/<namespace>``; or in
    memory. ``sqlite:DIRECTORY``: below that directory, by namespace. ``postgresql://…``: a database, with the extra
    ``gasoline_es[postgres]``.

    Raises: ProjectionError: it is none of these. ExtraMissing.
    """
    if url is None:
        if log.derived is not None:
            from projections.stores.sqlite import SqliteStore

            return SqliteStore(log.derived, log_id=log.log_id, namespace=log.namespace, reach=reach)
        from projections.stores.memory import MemoryStore

        return MemoryStore(log, reach=reach)
    scheme, colon, rest = url.partition(":")
    if colon and scheme == "sqlite" and rest:
        from projections.stores.sqlite import SqliteStore

        directory = directory_of(f"file:{rest}")
        return SqliteStore(
            f"{directory}/{log.namespace}", log_id=log.log_id, namespace=log.namespace, private=False, reach=reach
        )
    if colon and scheme in ("postgresql", "postgres"):
        try:
            from projections.stores.postgres import PostgresStore
        except ModuleNotFoundError as error:
            raise ExtraMissing(
                f"projections in PostgreSQL need psycopg, which is not installed ({error}): "
                f'`pip install "gasoline_es[postgres]"`'
            ) from error
        return PostgresStore(url, log_id=log.log_id, namespace=log.namespace, reach=reach)
    raise ProjectionError(
        f"{url!r} is not the URL of a store for projections: sqlite:DIRECTORY or postgresql://USER@HOST/DATABASE; "
        f"without one they lie with the log",
        store=url,
    )
