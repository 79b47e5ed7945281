"""What kinds of signals and kinds of messages share: how a class gets its wire name, and the codec of what it holds."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from gasoline_es.core.ids import check_name, snake_case
from gasoline_es.core.values import Codec, codec_for
from gasoline_es.errors import DefinitionError


def wire_name(kind: type[BaseModel], family: type[BaseModel], name: str | None) -> str:
    """Give what the log calls a kind of a family (Signal, Message): ``name``, or its class's name in snake case.

    Raises: DefinitionError, with the fix: that is no name.
    """
    what = family.__name__
    chosen = snake_case(kind.__name__) if name is None else name
    try:
        return check_name(what.lower(), chosen)
    except (ValueError, TypeError, DefinitionError) as error:
        raise DefinitionError(
            f"{what.lower()} {kind.__module__}.{kind.__qualname__}: {error}. Rename the class, or write "
            f"`class {kind.__name__}({what}, name='…')` with a name of lower-case letters, digits and underscores."
        ) from error


def is_parametrized(kind: type[BaseModel]) -> bool:
    """Whether it is a generic kind with its parameters filled in (``Paid[int]``), which keeps the generic one's name."""
    return kind.__pydantic_generic_metadata__["origin"] is not None


def body_codec(kind: type[BaseModel], what: str, name: str) -> Codec[Any]:
    """Give the codec of a kind's bodies; made at first use, because its fields may name types that come later.

    ``what``: "signal" or "message".
    """
    # Kept on the class itself (and not inherited), so that both go together.
    codec: Codec[Any] | None = kind.__dict__.get("__body_codec__")
    if codec is None:
        shown = f"{what} {name} ({kind.__module__}.{kind.__qualname__})"
        codec = codec_for(kind, f"the {shown}").named(shown)
        type.__setattr__(kind, "__body_codec__", codec)
    return codec
