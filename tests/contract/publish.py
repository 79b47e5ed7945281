"""Publishes the schemas below docs/: python -m tests.contract.publish."""

from __future__ import annotations

import shutil

from gasoline_es.contract.schemas import all_schemas
from tests.contract.published import SCHEMAS


def publish() -> None:
    """Write each schema to its file; what is no schema any more goes."""
    shutil.rmtree(SCHEMAS, ignore_errors=True)
    for one in all_schemas():
        file = SCHEMAS / one.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(one.text, encoding="utf-8")


if __name__ == "__main__":
    publish()
