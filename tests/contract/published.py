"""The published schemas, ready to hold events against."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"


@cache
def validator(topic: str, cloud_type: str) -> Draft202012Validator:
    """What is published for the events of a type (as ``gasoline.activity.completed.v1``) in a topic."""
    file = SCHEMAS / topic / f"{cloud_type.removeprefix('gasoline.')}.json"
    schema = json.loads(file.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def problems(topic: str, value: bytes | Mapping[str, Any]) -> list[str]:
    """Return in what an event is not as the published schema of its type says, with where in the event."""
    event: Any = json.loads(value) if isinstance(value, bytes) else value
    found = validator(topic, event["type"]).iter_errors(event)  # pyright: ignore[reportUnknownMemberType]
    return [f"{one.json_path}: {one.message}" for one in found]
