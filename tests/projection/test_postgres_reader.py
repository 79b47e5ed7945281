"""A role that only reads: what the guide grants is enough, through a swap too, and no more than that (design §7)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import psycopg
import pytest
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo

from gasoline_es.log.port import Log
from projections.reading import ProjectionView
from projections.stores.postgres import PostgresStore
from tests.projection.orders import append_orders, turnover
from tests.projection.test_running import keep_up

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "projections.md"
NAMES = re.compile(r"\b(views|keeper|reader)\b")
"""As the guide names the database and the two roles."""


def of_guide(beginning: str) -> list[str]:
    """Return the statements of the guide's block that begins so."""
    (block,) = re.findall(rf"^```text\n({re.escape(beginning)}.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    return [statement.strip() for statement in block.split(";") if statement.strip()]


class Roles:
    """Two roles of their own on the server, for a database's owner that does what the guide says."""

    def __init__(self, url: str) -> None:
        self._url = url
        with psycopg.connect(url, autocommit=True) as db:
            row = db.execute("SELECT current_database()").fetchone()
        assert row is not None
        suffix = token_hex(4)
        self._names: dict[str, str] = {
            "views": f'"{row[0]}"',
            "keeper": f"keeper_{suffix}",
            "reader": f"reader_{suffix}",
        }

    def owner_does(self, statements: list[str]) -> None:
        with psycopg.connect(self._url, autocommit=True) as db:
            for statement in statements:
                named = NAMES.sub(lambda found: self._names[found[1]], statement)
                db.execute(named.encode())
                if named.startswith("CREATE ROLE"):
                    db.execute(f"ALTER ROLE {named.split()[2]} PASSWORD 'secret'".encode())

    def url_of(self, role: str) -> str:
        return make_conninfo(self._url, user=self._names[role], password="secret")

    def drop(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as db:
            for role in ("keeper", "reader"):
                name = sql.Identifier(self._names[role])
                if db.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (self._names[role],)).fetchone():
                    db.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(name))
                    db.execute(sql.SQL("DROP ROLE {}").format(name))


@pytest.fixture
def roles(postgres_url: str) -> Iterator[Roles]:
    made = Roles(postgres_url)
    yield made
    made.drop()


def shown(url: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as db:
        return db.execute("SELECT cents FROM default__turnover.turnover").fetchall()


@pytest.mark.parametrize("granted", ["before", "afterwards"])
async def test_a_role_that_was_granted_it_reads_and_goes_on_after_a_swap(granted: str, log: Log, roles: Roles) -> None:
    statements = of_guide("CREATE ROLE keeper LOGIN")
    defaults = [one for one in statements if one.startswith("ALTER DEFAULT")]
    roles.owner_does([one for one in statements if granted == "before" or one not in defaults])
    keeper = PostgresStore(roles.url_of("keeper"), log_id=log.log_id, namespace="default")
    reader = PostgresStore(roles.url_of("reader"), log_id=log.log_id, namespace="default")
    await append_orders(log, 5, 7)
    keep_up(log, keeper, turnover())
    if granted == "afterwards":
        with pytest.raises(errors.InsufficientPrivilege):
            shown(roles.url_of("reader"))
        roles.owner_does([*defaults, *of_guide("GRANT USAGE ON SCHEMA")])

    view = ProjectionView(log, reader, turnover())
    for version in (1, 2):
        keep_up(log, keeper, turnover(version=version))
        await view.wait_for(timeout=10)
        with view.read() as db:
            assert db.execute("SELECT cents FROM turnover").fetchall() == [(12,)]
        with view.snapshot() as snapshot:
            assert snapshot.meta.version == version
        assert shown(roles.url_of("reader")) == [(12,)]
        assert [one.meta.state for one in reader.generations("turnover")][-1] == "live"
    with psycopg.connect(roles.url_of("reader")) as db:
        for statement in (
            "DELETE FROM default__turnover.turnover",
            "UPDATE default__turnover.gasoline_projection SET current = NULL",
            "UPDATE default__turnover__2.gasoline_positions SET digest = ''",
            "CREATE SCHEMA default__mine",
        ):
            with pytest.raises(errors.InsufficientPrivilege):
                db.execute(statement.encode())
            db.rollback()
