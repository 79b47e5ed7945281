"""The published end of a segment: a file of fixed size beside it, rewritten in place and never synced.

Layout of ``segments/<number>.end``, :data:`END_BYTES` bytes, padded with spaces before its line feed::

    {"segment":42,"writer":"<incarnation>","batch":4711,"position":812345,"state":"open","check":"<16 hex digits>"}

``position`` is the byte after the last published batch. ``state``: ``open``; ``closed`` (the writer will append no more);
``failed`` (a write or sync failed: nothing beyond counts, ever). ``check`` is the first 16 hex digits of the sha-256 of
the bytes before ``,"check":``. A file that fails it promises nothing (filelog.md §3.1).
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final, Literal, NamedTuple, cast

from pydantic_core import from_json

END_BYTES: Final = 256
State = Literal["open", "closed", "failed"]


class PublishedEnd(NamedTuple):
    """How far a segment is published (a tuple, because one is made for every append)."""

    segment: int
    writer: str
    batch: int
    position: int
    state: State = "open"


def encode_end(end: PublishedEnd) -> bytes:
    """Return the file's bytes."""
    segment, writer, batch, position, state = end
    core = f'{{"segment":{segment},"writer":"{writer}","batch":{batch},"position":{position},"state":"{state}"'.encode()
    line = b'%b,"check":"%b"}' % (core, sha256(core).hexdigest()[:16].encode())
    assert len(line) < END_BYTES, "an incarnation's name has grown beyond the published end's fixed size"
    return line.ljust(END_BYTES - 1) + b"\n"


def decode_end(data: bytes) -> PublishedEnd | None:
    """Return the published end, or None if the bytes promise nothing."""
    core, found, check = data.partition(b',"check":"')
    if not found or check[:16] != sha256(core).hexdigest()[:16].encode():
        return None
    try:
        members = from_json(data)
        return PublishedEnd(
            members["segment"],
            members["writer"],
            members["batch"],
            members["position"],
            cast(State, members["state"]),
        )
    except (ValueError, KeyError, TypeError):
        return None
