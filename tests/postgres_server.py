"""A real PostgreSQL for tests: started where its programs are installed, for as long as a test process lives."""

from __future__ import annotations

import getpass
import os
import pwd
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

URL_VARIABLE = "GASOLINE_POSTGRES_URL"
_START_LIMIT_S = 60

# Ends the server when it reads the end of its input: a test process that is killed leaves nothing behind.
_KEEPER = 'folder=$1; shift; "$@" & server=$!; read _; kill -INT $server; wait $server; cd /; rm -rf "$folder"'
_FAST = ("-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off", "-c", "autovacuum=off")


def programs() -> Path | None:
    """Return the folder of the server's programs, of the newest version there is."""
    folders = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if (path / "initdb").exists()]
    on_path = shutil.which("initdb")
    if on_path is not None:
        folders.append(Path(on_path).resolve().parent)
    return max(folders, key=_version, default=None)


def _version(folder: Path) -> int:
    return int(found[1]) if (found := re.search(r"/(\d+)/", f"{folder}/")) else 0


def _user() -> str:
    """Return as whom the server runs: it refuses root."""
    if os.geteuid() != 0:
        return getpass.getuser()
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


@contextmanager
def server(found: Path) -> Generator[str]:
    """Run a server of one's own; yield its URL, without a database."""
    user = _user()
    account: dict[str, Any] = {}
    if os.geteuid() == 0:
        entry = pwd.getpwnam(user)
        account = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    folder = tempfile.mkdtemp(prefix="gasoline-pg-", dir="/tmp")  # short: a socket's path has 107 bytes
    process: subprocess.Popen[Any] | None = None
    try:
        if account:
            os.chown(folder, account["user"], account["group"])
        data = f"{folder}/data"
        init = [f"{found}/initdb", "-D", data, "-U", "gasoline", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        _run(init, account)
        command = [f"{found}/postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", *_FAST]
        with open(f"{folder}/log", "wb") as log:
            process = subprocess.Popen(
                ["sh", "-c", _KEEPER, "sh", folder, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=folder,
                **account,
            )
        _run([f"{found}/pg_isready", "-h", folder, "-U", "gasoline", "-t", str(_START_LIMIT_S)], account, tries=600)
        yield f"postgresql:///postgres?host={folder}&user=gasoline"
    finally:
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(_START_LIMIT_S)
        shutil.rmtree(folder, ignore_errors=True)


def _run(command: list[str], account: dict[str, Any], tries: int = 1) -> None:
    for left in reversed(range(tries)):
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/tmp", **account)
        if done.returncode == 0:
            return
        if not left:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stdout}{done.stderr}")


@contextmanager
def _database(url: str) -> Generator[str]:
    """Make a database of one's own in a server that others use too; drop it at the end."""
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import make_conninfo

    name = f"gasoline_test_{secrets.token_hex(8)}"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
    try:
        yield make_conninfo(url, dbname=name)
    finally:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def available() -> Generator[str]:
    """Yield the URL of a server: ``GASOLINE_POSTGRES_URL``, else one that is started. Skips the test where there is none.

    In CI it fails instead: there the store must have been tested.
    """
    url = os.environ.get(URL_VARIABLE)
    if url:
        with _database(url) as made:
            yield made
        return
    found = programs()
    if found is None:
        why = (
            f"these tests need PostgreSQL: `apt-get install postgresql` (`make test` does it for root), or set {URL_VARIABLE} "
            f"to the URL of a server in which databases can be made"
        )
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    with server(found) as url:
        yield url


if __name__ == "__main__":
    sys.exit(0 if os.environ.get(URL_VARIABLE) or programs() else 1)
