"""The verbs that wait for signals: ``ctx.listen`` and ``ctx.listen_n`` (semantics.md §4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from types import FrameType
from typing import Any, TypeVar, overload

from gasoline_es.core.durations import deadline_us, duration_us
from gasoline_es.core.steps import ListenStep
from gasoline_es.definitions import Seconds
from gasoline_es.errors import DefinitionError
from gasoline_es.signals import Signal, check_signal_kind, signal_codec
from gasoline_es.signatures import frame_at
from gasoline_es.verbs import Step, Verbs

A = TypeVar("A", bound=Signal)
B = TypeVar("B", bound=Signal)
C = TypeVar("C", bound=Signal)
D = TypeVar("D", bound=Signal)
E = TypeVar("E", bound=Signal)
F = TypeVar("F", bound=Signal)


class Listening(Verbs):
    """``listen`` and ``listen_n``, typed by the kinds they wait for.

    Overloads by count (1 to 6 kinds), because a variadic ``type[S]`` would give mypy the base class.
    """

    __slots__ = ()

    @overload
    def listen(self, a: type[A], /) -> Step[A]: ...
    @overload
    def listen(self, a: type[A], /, *, timeout: Seconds | None) -> Step[A | None]: ...
    @overload
    def listen(self, a: type[A], /, *, until: datetime | None) -> Step[A | None]: ...
    @overload
    def listen(self, a: type[A], b: type[B], /) -> Step[A | B]: ...
    @overload
    def listen(self, a: type[A], b: type[B], /, *, timeout: Seconds | None) -> Step[A | B | None]: ...
    @overload
    def listen(self, a: type[A], b: type[B], /, *, until: datetime | None) -> Step[A | B | None]: ...
    @overload
    def listen(self, a: type[A], b: type[B], c: type[C], /) -> Step[A | B | C]: ...
    @overload
    def listen(self, a: type[A], b: type[B], c: type[C], /, *, timeout: Seconds | None) -> Step[A | B | C | None]: ...
    @overload
    def listen(self, a: type[A], b: type[B], c: type[C], /, *, until: datetime | None) -> Step[A | B | C | None]: ...
    @overload
    def listen(self, a: type[A], b: type[B], c: type[C], d: type[D], /) -> Step[A | B | C | D]: ...
    @overload
    def listen(
        self, a: type[A], b: type[B], c: type[C], d: type[D], /, *, timeout: Seconds | None
    ) -> Step[A | B | C | D | None]: ...
    @overload
    def listen(
        self, a: type[A], b: type[B], c: type[C], d: type[D], /, *, until: datetime | None
    ) -> Step[A | B | C | D | None]: ...
    @overload
    def listen(self, a: type[A], b: type[B], c: type[C], d: type[D], e: type[E], /) -> Step[A | B | C | D | E]: ...
    @overload
    def listen(
        self, a: type[A], b: type[B], c: type[C], d: type[D], e: type[E], /, *, timeout: Seconds | None
    ) -> Step[A | B | C | D | E | None]: ...
    @overload
    def listen(
        self, a: type[A], b: type[B], c: type[C], d: type[D], e: type[E], /, *, until: datetime | None
    ) -> Step[A | B | C | D | E | None]: ...
    @overload
    def listen(
        self, a: type[A], b: type[B], c: type[C], d: type[D], e: type[E], f: type[F], /
    ) -> Step[A | B | C | D | E | F]: ...
    @overload
    def listen(
        self, a: type[A], b: type[B], c: type[C], d: type[D], e: type[E], f: type[F], /, *, timeout: Seconds | None
    ) -> Step[A | B | C | D | E | F | None]: ...
    @overload
    def listen(
        self, a: type[A], b: type[B], c: type[C], d: type[D], e: type[E], f: type[F], /, *, until: datetime | None
    ) -> Step[A | B | C | D | E | F | None]: ...
    def listen(self, *kinds: Any, timeout: Seconds | None = None, until: datetime | None = None) -> Any:
        """Wait for one signal of any of the kinds and take it: the oldest queued one.

        With ``timeout`` (seconds or a timedelta) or ``until`` (an aware datetime) it gives None when none came by then.
        The time starts when the step is first reached; a replay waits only for what is left. None waits for ever.

        Raises at the call, recording nothing: ValueError for a time that is negative, not finite, naive, too far off,
        or given both ways. DefinitionError for anything that is not a class derived from Signal, or one given twice.
        """
        return self._listen("listen", kinds, None, timeout, until, frame_at(1))

    @overload
    def listen_n(self, a: type[A], /, *, limit: int) -> Step[list[A]]: ...
    @overload
    def listen_n(self, a: type[A], /, *, limit: int, timeout: Seconds | None) -> Step[list[A]]: ...
    @overload
    def listen_n(self, a: type[A], /, *, limit: int, until: datetime | None) -> Step[list[A]]: ...
    @overload
    def listen_n(self, a: type[A], b: type[B], /, *, limit: int) -> Step[list[A | B]]: ...
    @overload
    def listen_n(self, a: type[A], b: type[B], /, *, limit: int, timeout: Seconds | None) -> Step[list[A | B]]: ...
    @overload
    def listen_n(self, a: type[A], b: type[B], /, *, limit: int, until: datetime | None) -> Step[list[A | B]]: ...
    @overload
    def listen_n(self, a: type[A], b: type[B], c: type[C], /, *, limit: int) -> Step[list[A | B | C]]: ...
    @overload
    def listen_n(
        self, a: type[A], b: type[B], c: type[C], /, *, limit: int, timeout: Seconds | None
    ) -> Step[list[A | B | C]]: ...
    @overload
    def listen_n(
        self, a: type[A], b: type[B], c: type[C], /, *, limit: int, until: datetime | None
    ) -> Step[list[A | B | C]]: ...
    @overload
    def listen_n(
        self, a: type[A], b: type[B], c: type[C], d: type[D], /, *, limit: int
    ) -> Step[list[A | B | C | D]]: ...
    @overload
    def listen_n(
        self, a: type[A], b: type[B], c: type[C], d: type[D], /, *, limit: int, timeout: Seconds | None
    ) -> Step[list[A | B | C | D]]: ...
    @overload
    def listen_n(
        self, a: type[A], b: type[B], c: type[C], d: type[D], /, *, limit: int, until: datetime | None
    ) -> Step[list[A | B | C | D]]: ...
    @overload
    def listen_n(
        self, a: type[A], b: type[B], c: type[C], d: type[D], e: type[E], /, *, limit: int
    ) -> Step[list[A | B | C | D | E]]: ...
    @overload
    def listen_n(
        self, a: type[A], b: type[B], c: type[C], d: type[D], e: type[E], /, *, limit: int, timeout: Seconds | None
    ) -> Step[list[A | B | C | D | E]]: ...
    @overload
    def listen_n(
        self, a: type[A], b: type[B], c: type[C], d: type[D], e: type[E], /, *, limit: int, until: datetime | None
    ) -> Step[list[A | B | C | D | E]]: ...
    @overload
    def listen_n(
        self, a: type[A], b: type[B], c: type[C], d: type[D], e: type[E], f: type[F], /, *, limit: int
    ) -> Step[list[A | B | C | D | E | F]]: ...
    @overload
    def listen_n(
        self,
        a: type[A],
        b: type[B],
        c: type[C],
        d: type[D],
        e: type[E],
        f: type[F],
        /,
        *,
        limit: int,
        timeout: Seconds | None,
    ) -> Step[list[A | B | C | D | E | F]]: ...
    @overload
    def listen_n(
        self,
        a: type[A],
        b: type[B],
        c: type[C],
        d: type[D],
        e: type[E],
        f: type[F],
        /,
        *,
        limit: int,
        until: datetime | None,
    ) -> Step[list[A | B | C | D | E | F]]: ...
    def listen_n(self, *kinds: Any, limit: int, timeout: Seconds | None = None, until: datetime | None = None) -> Any:
        """Wait until a signal of any of the kinds is there and take all that are queued, oldest first.

        At most ``limit``; at least one, unless ``timeout`` or ``until`` passed: then the list may be empty. Otherwise
        like ``listen``.
        """
        if type(limit) is not int or limit < 1:
            raise ValueError(f"ctx.listen_n: limit is {limit!r}; write a whole number of at least 1.")
        return self._listen("listen_n", kinds, limit, timeout, until, frame_at(1))

    def _listen(
        self, verb: str, kinds: tuple[Any, ...], limit: int | None, timeout: Any, until: Any, frame: FrameType
    ) -> Step[Any]:
        if timeout is not None and until is not None:
            raise ValueError(f"ctx.{verb}: both timeout and until are given; write one of them.")
        try:
            decoders = _decoders(verb, kinds)
        except DefinitionError as error:
            raise self._refused(error) from error.__cause__
        return self._made(
            ListenStep(
                self._version,
                verb,
                frame.f_code,
                frame.f_lasti,
                decoders=decoders,
                limit=limit,
                timeout_us=None if timeout is None else duration_us(timeout, f"ctx.{verb}: timeout"),
                until_us=None if until is None else deadline_us(until, f"ctx.{verb}: until"),
            )
        )


def _decoders(verb: str, kinds: tuple[Any, ...]) -> Mapping[str, Callable[[bytes], Any]]:
    """Give the decoder of each kind by its wire name. Raises: DefinitionError."""
    if not kinds:
        raise DefinitionError(f"ctx.{verb} was given no kind of signal; give at least one, as in `ctx.{verb}(Paid)`.")
    try:
        return _checked_decoders(verb, kinds)
    except TypeError as error:  # what cannot be hashed is no class: most often a list of kinds
        listed = any(isinstance(kind, list | set | dict) for kind in kinds)
        fix = "give the kinds one by one" if listed else "give classes derived from gasoline_es.Signal"
        raise DefinitionError(f"ctx.{verb} was given {kinds!r}; {fix}, as in `ctx.{verb}(Paid, Withdrawn)`.") from error


@lru_cache(maxsize=512)
def _checked_decoders(verb: str, kinds: tuple[Any, ...]) -> Mapping[str, Callable[[bytes], Any]]:
    """Cached, because a body listens for the same kinds again and again."""
    known: dict[str, type[Signal]] = {}
    for given in kinds:
        kind = check_signal_kind(given)
        name = kind.__signal_name__
        if name in known:
            fix = "name it once" if known[name] is kind else "give one of the classes another name with `name=`"
            raise DefinitionError(
                f"ctx.{verb} was given two kinds with the wire name {name!r}: {known[name].__qualname__} and "
                f"{kind.__qualname__}; {fix}."
            )
        known[name] = kind
    return {name: signal_codec(kind).decode for name, kind in known.items()}
