"""An error always becomes data that fits into a record, whatever it says or does (semantics.md §12)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gasoline_es.core.ending import failures_in
from gasoline_es.core.error_info import ERROR_BYTES_MAX, error_info, shortened
from gasoline_es.core.events import ErrorInfo
from gasoline_es.core.history import History
from gasoline_es.core.rollback import error_of
from gasoline_es.errors import ActivityFailed

LONG = {
    "letters": "b" * 5_000_000,
    "euros": "€" * 400_000,
    "control characters": "\x00" * 300_000,
    "lone surrogates": "caf\udce9" * 200_000,
    "other planes": "𝄞" * 300_000,
    "quotes": '"\\' * 200_000,
}


def raised(error: BaseException) -> BaseException:
    """Raise it, so that it has a traceback."""
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_text_of_any_length_fits_and_is_unicode(text: str) -> None:
    told = error_info(raised(ValueError(text)))
    assert told.type == "ValueError"
    for part in (told.message, told.traceback):
        assert len(orjson.dumps(part)) <= ERROR_BYTES_MAX + 2  # the quotes
        assert part.endswith("… (cut)")
    assert told.message[:3] == shortened(ErrorInfo("", text)).message[:3]


def test_short_text_stays_as_it_is() -> None:
    told = error_info(raised(ValueError("no room in Zürich")))
    assert told.message == "no room in Zürich"
    assert told.traceback.endswith("ValueError: no room in Zürich\n")


def test_lone_surrogates_are_shown_escaped() -> None:
    assert error_info(FileNotFoundError(2, "none", "caf\udce9")).message == "[Errno 2] none: 'caf\\udce9'"


def test_name_of_any_length_fits() -> None:
    kind = type("E" * 10_000, (Exception,), {})
    assert len(error_info(kind("x")).type) < 600


def test_group_of_long_errors_fits() -> None:
    group = ExceptionGroup("all \udce9 failed", [ValueError("\udce9" * 400_000)] * 50)
    told = error_info(raised(group))
    assert told.message.startswith("all \\udce9 failed")
    assert told.message.endswith("and 47 more")
    assert orjson.loads(orjson.dumps(told.message)) == told.message


@pytest.mark.parametrize("broken", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_error_whose_text_raises_is_told_by_its_type(broken: type[BaseException]) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise broken

    told = error_info(raised(Mute()))
    assert (told.type.rpartition(".")[2], told.message) == ("Mute", f"(its text cannot be shown: {broken.__name__})")


def test_error_whose_text_is_no_plain_str_is_told() -> None:
    class Odd(str):
        __slots__ = ()

        def __getitem__(self, key: Any) -> str:
            raise SystemExit

        def encode(self, encoding: str = "", errors: str = "") -> bytes:
            raise SystemExit

    class Error(Exception):
        def __str__(self) -> str:
            return Odd("all right")

    message = error_info(Error()).message
    assert (type(message), message) == (str, "all right")


def test_error_whose_traceback_raises_is_told() -> None:
    class Hidden(Exception):
        @property
        def __traceback__(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
            raise SystemExit

    told = error_info(Hidden("lost"))
    assert told.message == "lost"
    assert told.traceback == "(its traceback cannot be shown: SystemExit)"


def test_group_that_hides_its_errors_is_told_and_searched() -> None:
    class Hidden(ExceptionGroup[Exception]):
        @property
        def exceptions(self) -> Any:
            raise ValueError

    told = error_info(Hidden("all", [ValueError("x")]))
    assert told.message == "all (1 sub-exception): (its errors cannot be shown: ValueError)"
    assert failures_in(Hidden("all", [ValueError("x")]), History()) == ()


def test_error_of_a_rollback_fits_and_still_names_what_was_not_undone() -> None:
    failed = ActivityFailed("activity 'refund' failed", activity="refund", location="{1}", attempts=1, error=None)  # type: ignore[arg-type]
    told = error_of(error_info(ValueError("b" * 900_000)), [failed])
    assert told.message.endswith("And what was to undo its steps failed: activity 'refund' failed")
    many = [ActivityFailed("x" * 100_000, activity="a", location="{1}", attempts=1, error=None)] * 5  # type: ignore[arg-type]
    assert len(error_of(ErrorInfo("E", "m"), many).message) <= ERROR_BYTES_MAX
