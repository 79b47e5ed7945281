"""The W3C ``traceparent`` of a request, and of the events that it leads to (design §4, https://www.w3.org/TR/trace-context).

    00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01      version, trace id, span id, flags: lower-case hex

It names a span of somebody's trace. To the engine it is a text that is handed on; no decision rests on it.
"""

from __future__ import annotations

import re
from typing import Final

_FORM: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def readable(given: object) -> str | None:
    """Return what was given if it is a ``traceparent`` of version 00, else None.

    Whoever cannot read one goes on without it, as Trace Context has it: no dispatch, no signal and no history is refused
    for the sake of a trace.
    """
    return given if isinstance(given, str) and _FORM.fullmatch(given) is not None else None
