"""A projection that is folded once nobody waits for it any more."""

from __future__ import annotations

import os
import time
from typing import Any

from gasoline_es import Event
from projections import projection

_parent = os.getppid()


@projection("waits", setup=lambda db: db.execute("CREATE TABLE none(n INTEGER)"))
def waits(event: Event, db: Any) -> None:
    """Say that it is folded; go on when the one that started it has ended."""
    with open(os.environ["PIDS"], "a") as file:
        file.write(f"{os.getpid()}\n")
    while os.getppid() == _parent:
        time.sleep(0.01)
