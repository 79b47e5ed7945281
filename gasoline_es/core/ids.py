"""Identities: workflow ids and the partition they route to, ids derived from places in a history, names.

A workflow id is a UUID whose last three hex digits are its routing slot (design §5):

    0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f      xxxxxxxx-xxxx-Vxxx-vxxx-xxxxxxxxxsss
                                              V version (7 or 8), v variant, s slot (12 bits)

Time and randomness are arguments, so that everything here is pure.
"""

from __future__ import annotations

import re
from hashlib import sha256

from gasoline_es.errors import DefinitionError, WorkflowNotFound

SLOTS = 4096

_WORKFLOW_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NAME = re.compile(r"[a-z0-9_]{1,100}")
OPERATOR_CHARACTERS_MAX = 200
_CALLER_ID_CHARACTERS_MAX = 300
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


# --- workflow ids -----------------------------------------------------------------------------------------------------


def new_workflow_id(time_us: int, random: bytes, slot: int | None = None) -> str:
    """Make a UUIDv7 (RFC 9562 §5.7) that sorts by ``time_us`` to a quarter of a microsecond and carries a slot.

    The first 48 bits are milliseconds since 1970, the next 12 the fraction of that millisecond (§6.2, method 3).
    ``random`` is at least 8 bytes; ``slot`` is in [0, 4096) and comes from the random bytes unless given.

    Raises: ValueError for an argument out of its range.
    """
    if len(random) < 8:
        raise ValueError(f"a workflow id takes at least 8 random bytes, not {len(random)}")
    time_ms, rest_us = divmod(time_us, 1000)
    if not 0 <= time_ms < 1 << 48:
        raise ValueError(f"time {time_us} us does not fit into a UUIDv7")
    low = int.from_bytes(random[:8], "big") & 0x3FFF_FFFF_FFFF_FFFF
    if slot is not None:
        if not 0 <= slot < SLOTS:
            raise ValueError(f"slot {slot} is not in [0, {SLOTS})")
        low = (low & ~0xFFF) | slot
    fraction = rest_us * 4096 // 1000
    return _uuid_text(time_ms << 80 | 0x7 << 76 | fraction << 64 | 0x2 << 62 | low)


def workflow_id_from_key(namespace: str, workflow_name: str, key: str) -> str:
    """Derive the id of the workflow that a caller's ``key`` stands for; equal arguments give equal ids, for ever."""
    return derived_uuid("key", namespace, workflow_name, key)


def derived_uuid(*parts: str) -> str:
    """Make a UUIDv8 (RFC 9562 §5.8) from the sha-256 of the parts, each prefixed by its length in bytes.

    The prefix keeps ("ab", "c") apart from ("a", "bc"). Raises: UnicodeEncodeError (a ValueError) for a lone surrogate.
    """
    digest = sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    bits = int.from_bytes(digest.digest()[:16], "big")
    bits = bits & ~(0xF << 76) | 0x8 << 76
    return _uuid_text(bits & ~(0x3 << 62) | 0x2 << 62)


def derived_workflow_id(slot: int | None, *parts: str) -> str:
    """Derive an id from the parts, with a routing slot of one's own choice unless it is None."""
    derived = derived_uuid(*parts)
    return derived if slot is None else f"{derived[:-3]}{slot:03x}"


def is_workflow_id(text: object) -> bool:
    """Tell whether ``text`` has the form of a workflow id: a lower-case UUID with hyphens."""
    return isinstance(text, str) and _WORKFLOW_ID.fullmatch(text) is not None


def check_workflow_id(text: str) -> str:
    """Return ``text`` if it has the form of a workflow id: a lower-case UUID with hyphens.

    Raises: WorkflowNotFound for anything else; no such text can name a workflow, and none may reach a path (B23).
    """
    if not is_workflow_id(text):
        shown = _shown(text)
        raise WorkflowNotFound(
            f"no workflow has the id {shown}: an id is a lower-case UUID such as 0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f",
            workflow_id=shown,
        )
    return text


# --- routing ----------------------------------------------------------------------------------------------------------


def slot_of(workflow_id: str) -> int:
    """Read the routing slot, in [0, 4096), of an id that :func:`check_workflow_id` accepts."""
    return int(workflow_id[-3:], 16)


def partition_of(workflow_id: str, partition_count: int) -> int:
    """Give the partition of a workflow, in [0, partition_count)."""
    return partition_of_slot(slot_of(workflow_id), partition_count)


def partition_of_slot(slot: int, partition_count: int) -> int:
    """Give the partition of a routing slot, in [0, partition_count)."""
    return slot * partition_count // SLOTS


def unique_slot(workflow_name: str, canonical_tags: str) -> int:
    """Give the slot in which all unique dispatches of this name and these tags meet (design §5)."""
    return slot_of(derived_uuid("unique", workflow_name, canonical_tags))


# --- names ------------------------------------------------------------------------------------------------------------


def check_name(kind: str, name: str) -> str:
    """Return ``name`` if it matches ``[a-z0-9_]+`` and has at most 100 characters (semantics.md §1).

    ``kind`` says what is named ("workflow", "activity", "signal" …). Raises: DefinitionError otherwise.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:  # pyright: ignore[reportUnnecessaryIsInstance] -- names come from users
        raise DefinitionError(
            f"{kind} name {_shown(name)} is not allowed: a name is 1 to 100 characters out of a-z, 0-9 and _",
            kind=kind,
            name=_shown(name),
        )
    return name


def snake_case(class_name: str) -> str:
    """Give the default wire name of a class: ``OrderPaid`` → ``order_paid``, ``HTTPError`` → ``http_error``."""
    return _WORD_START.sub("_", class_name).lower()


def check_caller_id(kind: str, text: str) -> str:
    """Return an id or key that a caller chose, if it is 1 to 300 characters without control characters.

    Raises: ValueError otherwise, also for a lone surrogate, which no record could hold.
    """
    if not isinstance(text, str) or not 1 <= len(text) <= _CALLER_ID_CHARACTERS_MAX:  # pyright: ignore[reportUnnecessaryIsInstance] -- comes from users
        raise ValueError(f"{kind} {_shown(text)} is not allowed: it must be a str of 1 to 300 characters")
    for character in text:
        if character < " " or "\x7f" <= character <= "\x9f" or "\ud800" <= character <= "\udfff":
            raise ValueError(f"{kind} {_shown(text)} is not allowed: it contains the control character {character!r}")
    return text


def check_operator(text: str) -> str:
    """Return what is told of who decides: at most 200 characters without control characters; may be empty.

    Raises: ValueError otherwise, also for a lone surrogate.
    """
    if isinstance(text, str) and len(text) > OPERATOR_CHARACTERS_MAX:  # pyright: ignore[reportUnnecessaryIsInstance] -- comes from users
        raise ValueError(
            f"operator {_shown(text)} is not allowed: it has {len(text)} characters, and {OPERATOR_CHARACTERS_MAX} are the most"
        )
    return text if text == "" else check_caller_id("operator", text)


def _uuid_text(bits: int) -> str:
    text = f"{bits:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _shown(value: object) -> str:
    """Show hostile input safely: escaped, and cut so that an error cannot be flooded."""
    if not isinstance(value, str):
        return f"of type {type(value).__name__}"
    return ascii(value) if len(value) <= 100 else f"{value[:100]!a}… ({len(value)} characters)"


def time_of(identifier: str) -> int:
    """Give the time in microseconds (to the millisecond) of an id made by :func:`new_workflow_id`."""
    return int(identifier[:8] + identifier[9:13], 16) * 1000
