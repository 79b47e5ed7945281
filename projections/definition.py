"""What a user writes: a projection folds a namespace's events into tables of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature
from operator import attrgetter
from pickle import PicklingError
from typing import Any, Final, TypeAlias

from gasoline_es.core.codec import read
from gasoline_es.core.events import Event, EventData
from gasoline_es.core.topics import OWNERS_TOPICS
from gasoline_es.errors import DefinitionError, ProjectionError
from gasoline_es.log.port import Record
from projections.folding import EachEvent, Folding, unwanted_types
from projections.stores.port import check_name

Apply: TypeAlias = Callable[[Event, Any], None]
Setup: TypeAlias = Callable[[Any], None]


FOLDED_TOPICS: Final = OWNERS_TOPICS
"""The topics that have offsets to stand at: those that a partition's owner writes."""

ENGINES: Final = "workflows"
"""The name of the engine's own projection."""


class Projection:
    """Folds events into tables: give it a ``name``, ``setup`` and ``apply``.

        class Turnover(Projection):
            name = "turnover"
            version = 1

            def setup(self, db: sqlite3.Connection) -> None:
                db.execute("CREATE TABLE turnover(day TEXT PRIMARY KEY, cents INTEGER NOT NULL)")

            def apply(self, event: Event, db: sqlite3.Connection) -> None: ...

    ``db`` is the store's own connection, in a transaction that also moves the position: each event counts once. ``apply`` has
    to be a function of the event and the tables: no clock, no network, nothing random, nothing outside of ``db``.
    Events of one partition come in the order in which they were appended. All events of a workflow are in one partition.
    Those of different partitions come in any order, and in another one when the projection is built anew: the tables must
    not depend on that.

    ``version``: raise it when ``setup`` or ``apply`` change. The tables are then built anew, beside the old ones, and swapped.
    ``topics``: which of the namespace's topics are folded, by the last word of their names. ``only``: the kinds of events that
    ``apply`` is for, if not all; the others are passed without being decoded, which is several times faster. So is one of these
    that does not read as its type. What is of no type that this version knows is given in any case.
    """

    name: str = ""
    version: int = 1
    topics: Sequence[str] = ("events",)
    only: Collection[type[EventData]] = ()

    def setup(self, db: Any) -> None:
        """Make the tables. Called once for each generation."""

    def apply(self, event: Event, db: Any) -> None:
        """Change the tables by one event. An error stops its partition before the event, until it is applied.

        What this version cannot read comes as an event whose ``data`` is ``Unreadable``.
        """
        raise NotImplementedError(f"{type(self).__name__} has no apply(event, db)")

    def read(self, record: Record) -> Event:
        """Return what ``apply`` gets for a record. For topics that hold something else than workflows' events."""
        assert record.value is not None
        return read(record.key, record.value)

    def folding(self, partition: int, db: Any) -> Folding:
        """Return the fold of one partition. The tables are as ``db`` shows them; for folds that keep more in memory."""
        return EachEvent(self, unwanted_types(self.only))

    def topics_of(self, namespace: str) -> list[str]:
        """Return the full names of the topics."""
        return [f"{namespace}.{topic}" for topic in self.topics]

    def __repr__(self) -> str:
        return f"<projection {self.name!r}, version {self.version}>"


class FunctionProjection(Projection):
    """Made by :func:`projection`. ``fn`` is the function, for tests that call it; ``given_setup`` the other."""

    def __init__(
        self,
        name: str,
        version: int,
        setup: Setup,
        topics: Sequence[str],
        only: Collection[type[EventData]],
        fn: Apply,
    ) -> None:
        self.name = name
        self.version = version
        self.topics = topics
        self.only = only
        self.fn = fn
        self.given_setup = setup

    def setup(self, db: Any) -> None:
        self.given_setup(db)

    def apply(self, event: Event, db: Any) -> None:
        self.fn(event, db)

    def __reduce__(self) -> tuple[Any, ...]:
        # Its function's name is that of the projection now: another process finds it there.
        if "<locals>" in self.fn.__qualname__:
            raise PicklingError(f"projection {self.name!r} is made within a function")
        return _of_module, (self.fn.__module__, self.fn.__qualname__)


def _of_module(module: str, name: str) -> Any:
    return attrgetter(name)(import_module(module))


def projection(
    name: str,
    *,
    version: int = 1,
    setup: Setup,
    topics: Sequence[str] = ("events",),
    only: Collection[type[EventData]] = (),
) -> Callable[[Apply], FunctionProjection]:
    """Make a projection of a function ``(event, db) -> None``; see :class:`Projection`.

    Raises: DefinitionError: the name or the version cannot be.
    """

    def make(fn: Apply) -> FunctionProjection:
        made = FunctionProjection(name, version, setup, topics, only, fn)
        check_projection(made)
        return made

    return make


def check_projection(given: object) -> Projection:
    """Return a projection, of a class also an instance. Raises: DefinitionError: it is none, or lacks something."""
    made: object = given
    if isinstance(given, type) and issubclass(given, Projection):
        try:
            made = given()
        except TypeError as error:
            raise DefinitionError(f"{given.__name__} needs arguments: give an instance of it ({error})") from error
    if not isinstance(made, Projection):
        raise DefinitionError(
            f"{given!r} is no projection: decorate a function with @projection(…), or derive a class from Projection"
        )
    try:
        check_name(made.name)
    except ProjectionError as error:
        raise DefinitionError(f"{type(made).__name__}: {error.message}") from error
    if made.name == ENGINES and type(made).__module__ != "projections.workflows":
        raise DefinitionError(f"{ENGINES!r} is the name of the engine's own projection: give this one another")
    if type(made.version) is not int or made.version < 1:
        raise DefinitionError(f"projection {made.name!r}: a version is a whole number from 1 up, not {made.version!r}")
    _check_topics(made)
    _check_only(made)
    given_fn = made.fn if isinstance(made, FunctionProjection) else made.apply
    _check_function(made, "apply", given_fn, ("event", "db"))
    _check_function(made, "setup", made.given_setup if isinstance(made, FunctionProjection) else made.setup, ("db",))
    if type(made).apply is Projection.apply and type(made).folding is Projection.folding:
        raise DefinitionError(f"projection {made.name!r} has no apply(event, db)")
    return made


def _check_topics(made: Projection) -> None:
    topics: Any = made.topics  # users write it
    if isinstance(topics, str | bytes) or not isinstance(topics, Sequence) or not topics:
        raise DefinitionError(
            f"projection {made.name!r}: topics are the last words of topics' names, such as ('events',), not {topics!r}"
        )
    for topic in made.topics:
        if topic not in FOLDED_TOPICS:
            raise DefinitionError(
                f"projection {made.name!r}: there is no topic {topic!r} to fold: topics are of {', '.join(FOLDED_TOPICS)}"
            )
    if len(set(made.topics)) != len(made.topics):
        raise DefinitionError(f"projection {made.name!r}: a topic is named twice in topics={topics!r}")


def _check_only(made: Projection) -> None:
    only: Any = made.only  # users write it
    if isinstance(only, type) or not isinstance(only, Collection):
        raise DefinitionError(
            f"projection {made.name!r}: `only=` is a tuple of kinds of events, such as (WorkflowCompleted,), not {only!r}"
        )
    unwanted_types(made.only)


def _check_function(made: Projection, what: str, fn: Callable[..., Any], given: tuple[str, ...]) -> None:
    """Refuse a function that would do nothing when it is called, or cannot be called so. Raises: DefinitionError."""
    if iscoroutinefunction(fn) or isgeneratorfunction(fn) or isasyncgenfunction(fn):
        raise DefinitionError(
            f"projection {made.name!r}: its {what} is called, and not awaited or iterated, so it has to be a plain `def`"
        )
    try:
        signature(fn).bind(*given)
    except TypeError as error:
        raise DefinitionError(
            f"projection {made.name!r}: its {what} is called with ({', '.join(given)}), and cannot be: {error}"
        ) from error
    except ValueError:  # a function in C that does not say what it takes
        return


def setup_of(given: Projection) -> Setup:
    """Return a projection's ``setup`` as a store calls it: an exit that it asks for is an error of its own."""

    def setup(db: Any) -> None:
        try:
            given.setup(db)
        except Exception:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            raise ProjectionError(
                f"the setup of projection {given.name!r} raised {error!r}: it has to make tables, and to return",
                projection=given.name,
            ) from error

    return setup


def check_projections(given: Sequence[object]) -> list[Projection]:
    """Return projections, each name once. Raises: DefinitionError."""
    made = [check_projection(one) for one in given]
    names = [one.name for one in made]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DefinitionError(f"two projections are called {twice[0]!r}: each needs a name of its own")
    return made
