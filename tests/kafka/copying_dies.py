"""Copies a log, and ends at its n-th append: python copying_dies.py FROM TO N."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from gasoline_es.log import copying
from gasoline_es.log.port import Log, Section

_appended = copying.appended


async def main(source: str, target: str, number: int) -> None:
    left = [number]
    copying._APPEND_RECORDS = 100  # type: ignore[misc]  # pyright: ignore[reportConstantRedefinition]

    async def appended(log: Log, sections: list[Section] | Sequence[Section]) -> None:
        left[0] -= 1
        if left[0] == 0:
            os._exit(9)
        await _appended(log, list(sections))
        if left[0] == 1 and number % 2:
            os._exit(9)

    copying.appended = appended
    await copying.copy_log(source, target, partitions=2)


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
