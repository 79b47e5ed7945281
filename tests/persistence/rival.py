"""A process that tries to record each version of one aggregate, as others do: it prints the ids it was given, - where it lost.

python -m tests.persistence.rival URL ORIGINATOR VERSIONS
"""

from __future__ import annotations

import os
import sys
from uuid import UUID

from eventsourcing.persistence import IntegrityError, StoredEvent
from eventsourcing.utils import Environment

from gasoline_es.persistence import GasolineFactory


def main(url: str, originator: str, versions: str) -> None:
    factory = GasolineFactory(Environment("shop", {"GASOLINE_LOG": url}))
    recorder = factory.application_recorder()
    for version in range(1, int(versions) + 1):
        event = StoredEvent(UUID(originator), version, "written", str(os.getpid()).encode())
        try:
            ids = recorder.insert_events([event])
        except IntegrityError:
            print("-")
        else:
            assert ids is not None
            print(*ids)
    factory.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
