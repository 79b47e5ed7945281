"""The reference has a row for every type of event (api.md, "Events")."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from gasoline_es.core.events import EventData, Unreadable
from gasoline_es.core.schedule_events import ScheduleData, ScheduleUnreadable

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"


def test_every_type_of_event_has_one_row_in_the_reference_and_no_other_has() -> None:
    section = REFERENCE.read_text(encoding="utf-8").partition("\n## Events\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z_]+\.[a-z_]+)`", section, re.MULTILINE)
    kinds = (*get_args(EventData), *get_args(ScheduleData))
    assert sorted(rows) == sorted(kind.TYPE for kind in kinds if kind not in (Unreadable, ScheduleUnreadable))
