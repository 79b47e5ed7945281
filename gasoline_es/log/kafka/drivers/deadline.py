"""Calls of client libraries that may never return, under a deadline of our own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Late(Exception):
    """A call had not returned in time. It goes on in its thread, and nobody learns what becomes of it."""


def within(timeout_s: float, call: Callable[[], T]) -> T:
    """Return what the call returns, or raise what it raises. Raises: Late."""
    results: list[T] = []
    errors: list[BaseException] = []
    over = threading.Event()

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)
        finally:
            over.set()

    # A daemon: a call that hangs for good must not keep the process from ending.
    threading.Thread(target=run, name="gasoline-kafka-call", daemon=True).start()
    if not over.wait(max(timeout_s, 0)):
        raise Late(f"no answer within {timeout_s:.1f} s")
    if errors:
        raise errors[0]
    return results[0]


def in_background(call: Callable[[], object]) -> None:
    """Let the call run; nobody waits for it."""
    threading.Thread(target=call, name="gasoline-kafka-closing", daemon=True).start()
