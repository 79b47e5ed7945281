"""Where a record of others' topics goes, and how it is marked (design §6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from gasoline_es.core.emitted import emitted_headers, partition_by_key

# Those of Apache Kafka's own UtilsTest.
KNOWN = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


@pytest.mark.parametrize("key", KNOWN)
def test_key_goes_to_the_partition_that_the_java_client_gives_it(key: str) -> None:
    assert partition_by_key(key, 2**31) == KNOWN[key] & 0x7FFFFFFF
    assert partition_by_key(key, 7) == (KNOWN[key] & 0x7FFFFFFF) % 7


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(1, 5_000))
def test_any_key_goes_where_another_implementation_puts_it(key: str, partitions: int) -> None:
    assert partition_by_key(key, partitions) == (murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def test_tombstone_has_no_content_and_says_of_none() -> None:
    headers = emitted_headers("shop", "sell", "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f", 4, 0, tombstone=True)
    assert "content-type" not in headers
    assert headers["ce_id"] == "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f/4"
