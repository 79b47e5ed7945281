"""What the driver on kafka-python reaches into is there: a version without it fails by its name, and not by what follows."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from gasoline_es.errors import LogError
from gasoline_es.log.kafka.drivers.kafka_python.client import _Client, _Manager, _Sockets, internal
from gasoline_es.log.kafka.drivers.kafka_python.writing import KafkaPythonWriter

OF_PRODUCER = ("_sender", "_transaction_manager", "_unregister_cleanup", "_closed")
OF_SENDER = ("force_close", "join")
OF_TRANSACTIONS = ("_supports_epoch_bump", "producer_id_and_epoch", "last_error")
OF_CLIENT = ("_manager", "_net")
OF_LOOP = ("_selector", "stop", "wait_read", "wait_write")


@pytest.fixture
def producer(kafka_bootstrap: str, kafka_namespace: str) -> Any:
    writer = KafkaPythonWriter({"bootstrap_servers": [kafka_bootstrap]}, kafka_namespace, 20)
    with closing(writer):
        writer.fence()
        yield writer._producer


def test_a_producer_has_what_the_driver_reaches_into(producer: Any) -> None:
    for of, names in (
        (producer, OF_PRODUCER),
        (producer._sender, OF_SENDER),
        (producer._transaction_manager, OF_TRANSACTIONS),
    ):
        assert [name for name in names if not hasattr(of, name)] == []
    assert not producer._transaction_manager._supports_epoch_bump()
    assert {"producer_id", "epoch"} <= {*dir(producer._transaction_manager.producer_id_and_epoch)}


def test_a_client_has_what_the_driver_reaches_into() -> None:
    client = _Client(bootstrap_servers=["127.0.0.1:1"])
    loop: Any = client._net
    assert [name for name in OF_CLIENT if not hasattr(client, name)] == []
    assert [name for name in OF_LOOP if not hasattr(loop, name)] == []
    assert callable(loop._selector.get_map)
    client.close()


@pytest.mark.parametrize(
    ("kind", "name"), [(_Sockets, "sock_connect"), (_Manager, "_build_transport"), (_Client, "close")]
)
def test_what_the_driver_puts_in_the_place_of_the_librarys_own_is_asked_for_by_it(kind: Any, name: str) -> None:
    """Under another name nobody would call it."""
    assert any(name in vars(one) for one in kind.__mro__[1:]), f"{kind.__mro__[1].__name__} has no {name} any more"


def test_one_that_is_missing_is_told_by_its_name_and_what_to_install() -> None:
    with pytest.raises(LogError, match=r"kafka-python [0-9.]+ has no object\._sender.*pip install 'kafka-python>="):
        internal(object(), "_sender")
