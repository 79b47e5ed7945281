"""Operations say of each metric what it means, and of none that does not exist (docs/operations.md, "Metrics")."""

from __future__ import annotations

import re
from pathlib import Path

from gasoline_es.metrics import METRICS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")


def test_every_metric_has_one_row_in_operations_and_no_other_has() -> None:
    section = PAGE.partition("\n## Metrics\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(gasoline_[a-z_]+)` \|", section, re.MULTILINE)
    assert sorted(rows) == sorted(one.name for one in METRICS)


def test_labels_are_named_where_the_metric_is_explained() -> None:
    for one in METRICS:
        (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{one.name}` |"))
        for label in one.labels:
            assert f"`{label}`" in row, (one.name, label)


def test_whatever_is_named_anywhere_in_operations_exists() -> None:
    names = {one.name for one in METRICS}
    named = set(re.findall(r"gasoline_(?!es\b)[a-z]+(?:_[a-z]+)*", PAGE))
    assert named - names == set()
