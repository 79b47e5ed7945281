"""The reference has a row for every type of event (api.md, "Events")."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from gasoline_es.core.events import EventData, Unreadable
from gasoline_es.core.parked_events import ParkedData
from gasoline_es.core.schedule_events import ScheduleData
from gasoline_es.core.stored_events import TYPES

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"


def rows_of(heading: str) -> list[str]:
    section = REFERENCE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return sorted(re.findall(r"^\| `([a-z_]+\.[a-z_]+)`", section, re.MULTILINE))


def test_every_type_of_event_has_one_row_in_the_reference_and_no_other_has() -> None:
    kinds = (*get_args(EventData), *get_args(ScheduleData))
    assert rows_of("Events") == sorted(kind.TYPE for kind in kinds if kind.TYPE != Unreadable.TYPE)


def test_every_type_of_event_of_a_parked_signal_has_one_row_too() -> None:
    kinds = [kind for kind in get_args(ParkedData) if kind.TYPE != Unreadable.TYPE]
    assert rows_of("Events of parked signals") == sorted(kind.TYPE for kind in kinds)


def test_every_type_of_stored_event_has_one_row_too() -> None:
    assert rows_of("Stored events") == sorted(TYPES.values())
