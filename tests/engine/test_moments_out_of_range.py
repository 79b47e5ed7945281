"""A time that lies outside of the calendar in UTC is refused like any other wrong argument."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from gasoline_es import Gasoline

BEFORE = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))
BEHIND = datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12)))


@pytest.mark.parametrize("moment", [BEFORE, BEHIND])
@pytest.mark.parametrize("argument", ["since", "until", "as_of"])
async def test_a_time_outside_of_the_calendar_is_a_value_error(argument: str, moment: datetime) -> None:
    given: dict[str, Any] = {argument: moment}
    async with Gasoline.open("memory:") as gasoline:
        with pytest.raises(ValueError, match=argument):
            [info async for info in gasoline.list(**given)]
