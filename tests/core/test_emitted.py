"""Where a record of others' topics goes, and how it is marked (design §6)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary_event

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


def test_tombstone_has_no_content_and_says_of_none() -> None:
    headers = emitted_headers("shop", "sell", "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f", 4, 0, tombstone=True)
    assert "content-type" not in headers
    assert headers["ce_id"] == "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f/4"


def test_headers_read_as_a_cloud_event_of_binary_mode() -> None:
    workflow_id = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"
    headers = emitted_headers("shop", "sell", workflow_id, 4, 1_700_000_000_123_456, tombstone=False)
    message = KafkaMessage({name: text.encode() for name, text in headers.items()}, b"order 1", b'{"cents":7}')
    event = from_binary_event(message)
    assert event.get_specversion() == "1.0"
    assert event.get_id() == f"{workflow_id}/4"
    assert event.get_source() == "/gasoline/shop/sell"
    assert event.get_type() == "gasoline.emitted.v1"
    assert event.get_subject() == workflow_id
    assert event.get_time() == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
    assert event.get_datacontenttype() == "application/json"
    assert event.get_data() == {"cents": 7}
