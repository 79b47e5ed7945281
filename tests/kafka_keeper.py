"""Ends the brokers of tests once no process uses them: run apart, as ``python kafka_keeper.py FOLDER USERS [ADDRESS]``.

Whoever uses the brokers of FOLDER holds a shared lock on the file USERS. The system lets go of it when that process ends,
however it ends. Then this process gets the file for itself, and nobody else gets it before everything is gone: the processes
that are named in FOLDER/pids, the containers that are named in FOLDER/containers, the file ADDRESS, and FOLDER.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path


def is_of(pid: int, folder: Path) -> bool:
    """Whether the process is one of this folder's: its number may be another's by now."""
    try:
        return os.fsencode(folder) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return not Path("/proc/self/cmdline").exists()


def remove_container(name: str) -> None:
    """Remove a container by its name, with what it holds."""
    import docker  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]

    with suppress(Exception):  # it may never have been made
        docker.from_env().containers.get(name).remove(force=True, v=True)


def keep(folder: Path, users: Path, address: Path | None) -> None:
    """Wait until nobody holds ``users``; then end everything."""
    with users.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if address is not None:
            address.unlink(missing_ok=True)
        for path in (folder / "pids").glob("[0-9]*"):
            if is_of(int(path.name), folder):
                with suppress(ProcessLookupError):
                    os.kill(int(path.name), signal.SIGKILL)
        for path in (folder / "containers").glob("*"):
            remove_container(path.name)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
