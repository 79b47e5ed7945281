"""Dead letters: records of a foreign topic that came to nothing, with the reason, as records of another topic (design §6).

The value of one, on every log, is a JSON object:

    {"reason":{"type":"ValueError","message":"…"},"pipeline":"orders",
     "topic":"orders","partition":3,"record":"4711","time":"2026-12-01T10:00:00.000000Z","key":"c-17",
     "headers":{"trace":"…"},"value":"{\\"id\\":…"}

``record`` names it in its partition (of Kafka, the offset). A value that is no UTF-8 is under ``value_base64`` instead, a
tombstone's is null, and one that does not fit beside the rest is left out, with ``"value_omitted":true``. So are a key (it is
empty then, that of the record too) and headers (none are told), with ``"key_omitted":true`` and ``"headers_omitted":true``.

What is refused where it was not read waits in the registry of the partition that refuses it, until its topic can be written
(decision 0038): a record with a key of its own, which is taken back in the append that writes the letter.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from gasoline_es.core.durations import MICROSECONDS, format_time
from gasoline_es.core.events import ErrorInfo

VALUE_BYTES_MAX: Final = 400_000
"""A longer value is left out: as text in JSON it may take twice as much and more, and goes along with a command."""
KEY_BYTES_MAX: Final = 50_000
"""As JSON. A record has it twice, in its value too."""
HEADERS_BYTES_MAX: Final = 100_000
"""As JSON, of all of them together."""
WAITING: Final = "letter/"
"""What the registry's keys of letters that wait begin with."""
TIME_US_MAX: Final = 253_402_300_800 * MICROSECONDS - 1
"""The end of the year 9999. What is said to be later was written then, and what has no time in 1970."""


@dataclass(frozen=True, slots=True)
class Letter:
    """What becomes a dead letter if its command is refused. ``to`` and ``to_partition``: where it goes then."""

    to: str
    to_partition: int
    pipeline: str
    topic: str
    partition: int
    record: str
    time_us: int
    key: str
    headers: Mapping[str, str]
    value: bytes | None
    value_omitted: bool = False
    key_omitted: bool = False
    headers_omitted: bool = False

    def fitting(self) -> Letter:
        """Return it as it fits into a record whatever its writer put into it: without what is too long, in a year that is."""
        letter = replace(self, time_us=min(max(self.time_us, 0), TIME_US_MAX))
        if self.value is not None and len(_written(self.value)) > VALUE_BYTES_MAX:
            letter = letter.without_value()
        if len(orjson.dumps(self.key)) > KEY_BYTES_MAX:
            letter = replace(letter, key="", key_omitted=True)
        if len(orjson.dumps(dict(self.headers))) > HEADERS_BYTES_MAX:
            letter = replace(letter, headers={}, headers_omitted=True)
        return letter

    def without_value(self) -> Letter:
        """Return it without its value, which has to be looked for where it came from."""
        return replace(self, value=None, value_omitted=True)

    def members(self) -> dict[str, Any]:
        """Return it as a JSON object, for :func:`read_letter`."""
        members: dict[str, Any] = {
            "to": self.to,
            "to_partition": self.to_partition,
            "pipeline": self.pipeline,
            "topic": self.topic,
            "partition": self.partition,
            "record": self.record,
            "time_us": self.time_us,
            "key": self.key,
            "headers": dict(self.headers),
        }
        return members | self._value() | self._omitted()

    def because(self, reason: ErrorInfo) -> bytes:
        """Write it as the value of a record: one line of JSON."""
        written: dict[str, Any] = {
            "reason": {"type": reason.type, "message": reason.message},
            "pipeline": self.pipeline,
            "topic": self.topic,
            "partition": self.partition,
            "record": self.record,
            "time": format_time(self.time_us),
            "key": self.key,
            "headers": dict(self.headers),
        }
        return orjson.dumps(written | self._value() | self._omitted())

    def _omitted(self) -> dict[str, Any]:
        told = {"key_omitted": self.key_omitted, "headers_omitted": self.headers_omitted}
        return {name: True for name, omitted in told.items() if omitted}

    def _value(self) -> dict[str, Any]:
        if self.value_omitted:
            return {"value_omitted": True}
        if self.value is None:
            return {"value": None}
        try:
            return {"value": self.value.decode()}
        except UnicodeDecodeError:
            return {"value_base64": base64.b64encode(self.value).decode()}


def read_letter(members: Any) -> Letter:
    """Read what :meth:`Letter.members` gave. Raises: TypeError, KeyError, ValueError: it is none."""
    texts = {name: members[name] for name in ("to", "pipeline", "topic", "record", "key")}
    numbers = {name: members[name] for name in ("to_partition", "partition", "time_us")}
    headers = members["headers"]
    if any(type(text) is not str for text in (*texts.values(), *headers.keys(), *headers.values())):
        raise TypeError(f"a letter's members are texts: {texts!r}, {headers!r}")
    if any(type(number) is not int or number < 0 for number in numbers.values()):
        raise TypeError(f"a letter's numbers are not below 0: {numbers!r}")
    if "value_base64" in members:
        value: bytes | None = base64.b64decode(members["value_base64"], validate=True)
    else:
        text = members.get("value")
        value = None if text is None else text.encode()
    return Letter(
        **texts,
        **numbers,
        headers=headers,
        value=value,
        value_omitted=bool(members.get("value_omitted", False)),
        key_omitted=bool(members.get("key_omitted", False)),
        headers_omitted=bool(members.get("headers_omitted", False)),
    )


@dataclass(frozen=True, slots=True)
class Waiting:
    """A dead letter that waits in the registry. ``key`` and ``value`` are those of the record that it becomes."""

    to: str
    to_partition: int
    pipeline: str
    key: str
    value: bytes

    def json(self) -> bytes:
        """Write it as the value of its record."""
        told = {"to": self.to, "to_partition": self.to_partition, "pipeline": self.pipeline, "key": self.key}
        return orjson.dumps({**told, "letter": orjson.Fragment(self.value)})

    @classmethod
    def read(cls, raw: bytes) -> Waiting:
        """Read what :meth:`json` wrote. Raises: ValueError: it is none."""
        try:
            told = orjson.loads(raw)
            texts = [str(told[name]) for name in ("to", "pipeline", "key")]
            return cls(texts[0], int(told["to_partition"]), texts[1], texts[2], orjson.dumps(told["letter"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a letter that waits: {error!r}") from error


def waiting_key(letter: Letter, workflow_id: str) -> str:
    """Return the registry's key of a letter whose command to a workflow was refused; the same one if it is refused again."""
    place = "\0".join((letter.pipeline, letter.topic, str(letter.partition), letter.record, workflow_id))
    return f"{WAITING}{letter.to}/{hashlib.sha256(place.encode()).hexdigest()[:32]}"


def waits_for(key: str) -> str:
    """Return the topic that a letter goes to, by the registry's key of it."""
    return key.split("/")[1]


def _written(value: bytes) -> bytes:
    try:
        return orjson.dumps(value.decode())
    except UnicodeDecodeError:
        return base64.b64encode(value)
