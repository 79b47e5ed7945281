"""How a record that a body emits is written on a topic of others: plain JSON, and a CloudEvent 1.0 in binary mode (design §6).

The attributes are headers, as the Kafka protocol binding of CloudEvents has them, so that whoever reads the topic needs to
know nothing of this library. ``ce_source`` names the workflow's definition and ``ce_id`` the event that records the step:
together they are of this record alone, and the same however often a reader is given it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gasoline_es.core.durations import format_time

EMITTED_TYPE: Final = "gasoline.emitted.v1"
_MASK: Final = 0xFFFFFFFF
_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995


def emitted_headers(
    namespace: str, workflow: str, workflow_id: str, seq: int, time_us: int, *, tombstone: bool
) -> Mapping[str, str]:
    """Return the headers of a record that the event ``seq`` of a workflow emits. A tombstone has no content."""
    headers = {
        "ce_specversion": "1.0",
        "ce_id": f"{workflow_id}/{seq}",
        "ce_source": f"/gasoline/{namespace}/{workflow}",
        "ce_type": EMITTED_TYPE,
        "ce_subject": workflow_id,
        "ce_time": format_time(time_us),
    }
    return headers if tombstone else {**headers, "content-type": "application/json"}


def partition_by_key(key: str, partitions: int) -> int:
    """Return the partition of a topic that a key belongs to, as Kafka's own clients place it: by murmur2 of its bytes."""
    return (_murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    """MurmurHash2 (Austin Appleby) with the seed of Kafka's ``Utils.murmur2``, as an unsigned number."""
    whole = len(data) & ~3
    h = _SEED ^ len(data)
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ (k >> 24)) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if len(data) > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)
