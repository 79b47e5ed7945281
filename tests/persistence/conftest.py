"""What every test of the persistence module gets: no journal of one test is open in the next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gasoline_es.persistence import lease


@pytest.fixture(autouse=True)
def journals_are_closed() -> Iterator[None]:
    yield
    for shared in list(lease._shared.values()):
        shared.loop.close()
    lease._shared.clear()
