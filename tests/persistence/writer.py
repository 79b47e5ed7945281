"""A process that records events of one application until it is killed: what it prints was acknowledged.

python -m tests.persistence.writer URL NAME
"""

from __future__ import annotations

import itertools
import sys
from uuid import NAMESPACE_URL, uuid5

from eventsourcing.persistence import StoredEvent
from eventsourcing.utils import Environment

from gasoline_es.persistence import GasolineFactory


def main(url: str, name: str) -> None:
    recorder = GasolineFactory(Environment("shop", {"GASOLINE_LOG": url})).application_recorder()
    originator = uuid5(NAMESPACE_URL, name)
    for version in itertools.count(1):
        pair = [StoredEvent(originator, 2 * version + more, "written", b"{}") for more in (0, 1)]
        ids = recorder.insert_events(pair)
        assert ids is not None
        print(*ids, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
