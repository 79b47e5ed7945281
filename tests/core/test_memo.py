"""A memo makes each result once, and never holds more than its limit."""

from __future__ import annotations

import pytest

from gasoline_es.core.memo import Memo


def test_result_is_made_once() -> None:
    made: list[str] = []
    memo = Memo[str, int](lambda text: made.append(text) or int(text), 10)
    assert [memo["7"], memo["8"], memo["7"]] == [7, 8, 7]
    assert made == ["7", "8"]


def test_memo_stays_within_its_limit() -> None:
    memo = Memo[int, int](lambda n: n * n, 10)
    assert [memo[n] for n in range(100)] == [n * n for n in range(100)]
    assert len(memo) <= 10


def test_what_cannot_be_made_is_not_kept() -> None:
    memo = Memo[str, int](int, 10)
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid"):
            memo["x"]
    assert not memo
