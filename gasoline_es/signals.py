"""Signals: packets to one workflow, queued until its ``listen`` takes them (semantics.md §1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from gasoline_es.core.values import Codec
from gasoline_es.errors import DefinitionError
from gasoline_es.kinds import body_codec, is_parametrized, wire_name

if TYPE_CHECKING:
    from pydantic import ConfigDict
    from typing_extensions import Unpack


class Signal(BaseModel):
    """Derive a kind of signal from it: a pydantic model whose fields are the signal's body.

        class Paid(Signal):
            amount: int

        class Withdrawn(Signal, name="order_cancelled"): ...

    The wire name is the class's name in snake case (``paid``), or the class keyword ``name``. It is what the log says,
    so a renamed class needs ``name=`` with the old one. Raises: DefinitionError at the class when the name is not
    ``[a-z0-9_]+``.
    """

    __signal_name__: ClassVar[str]

    if TYPE_CHECKING:

        def __init_subclass__(cls, *, name: str | None = None, **kwargs: Unpack[ConfigDict]) -> None: ...

    else:

        def __init_subclass__(cls, *, name: str | None = None, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)

        def __new__(cls, *args: Any, **kwargs: Any) -> Signal:
            if cls is Signal:
                raise DefinitionError(
                    "Signal itself cannot be sent: it has no name. Derive a kind from it, `class Paid(Signal): amount: "
                    "int`, and send `Paid(amount=9)`."
                )
            return super().__new__(cls)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        # Here and not in __init_subclass__: only now pydantic tells Paid[int] (which keeps Paid's name) from a new
        # class.
        super().__pydantic_init_subclass__()
        if not is_parametrized(cls):
            cls.__signal_name__ = wire_name(cls, Signal, kwargs.get("name"))


def check_signal_kind(kind: object) -> type[Signal]:
    """Give ``kind`` back if it is a class derived from Signal. Raises: DefinitionError with the fix."""
    if isinstance(kind, type) and issubclass(kind, Signal) and kind is not Signal:
        return kind
    if kind is Signal:
        fix = "Signal itself has no name; give the kinds to wait for, as in `ctx.listen(Paid, Withdrawn)`"
    elif isinstance(kind, Signal):
        fix = f"give the class, not an instance: `ctx.listen({type(kind).__name__})`"
    elif isinstance(kind, type):
        fix = f"derive it from Signal: `class {kind.__name__}(Signal): …`"
    else:
        fix = "give classes derived from gasoline_es.Signal, as in `ctx.listen(Paid, Withdrawn)`"
    raise DefinitionError(f"{kind!r} is not a kind of signal; {fix}.")


def signal_codec(kind: type[Signal]) -> Codec[Any]:
    """Give the codec of a kind's bodies."""
    return body_codec(kind, "signal", kind.__signal_name__)
