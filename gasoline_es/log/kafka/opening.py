"""Opening a Kafka log: the cluster, the topics, which log it is, and where its copies are kept."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from gasoline_es.core.topics import WORKERS
from gasoline_es.errors import LogError
from gasoline_es.log.kafka.drivers.port import BrokerError, Committed, Driver, Feed, In, Out, Reader
from gasoline_es.log.kafka.log import APPEND_LIMIT_S, SILENT_AFTER_S, KafkaLog
from gasoline_es.log.kafka.mirror import Mirror
from gasoline_es.log.kafka.records import now_ms, read_through
from gasoline_es.log.kafka.settings import Address, make_driver
from gasoline_es.log.kafka.topics import ASK_S, prepare
from gasoline_es.log.kafka.who import LOG_KEY
from gasoline_es.log.names import check_namespace, check_wanted

_TRIES: Final = 20
_LOG_ID: Final = re.compile(rb'^{"log_id": ?"([0-9a-f]{32})"}$')


async def open_kafka_log(
    url: str,
    *,
    namespace: str = "default",
    partitions: int | None = None,
    readonly: bool = False,
    silent_after_s: float = SILENT_AFTER_S,
    final: bool = False,
    **options: Any,
) -> KafkaLog:
    """Open the namespace of a cluster, making its topics unless ``readonly``.

    ``silent_after_s``: who gave no sign of life for so long is taken for dead. ``final`` changes nothing: what is read was
    committed. Raises: LogError: it cannot be opened so. BrokerError: no broker was reached.
    """
    if options:
        raise LogError(f"a Kafka log has no option {', '.join(sorted(options))}", url=url)
    address = Address.of(url)
    if address.namespace is not None:
        if namespace not in ("default", address.namespace):
            raise LogError(
                f"{url!r} names the namespace {address.namespace!r}, and it was opened with namespace={namespace!r}: leave "
                f"one of them out",
                url=url,
            )
        namespace = address.namespace
    check_namespace(namespace)
    check_wanted(partitions)
    return await open_cluster(
        make_driver(address),
        address,
        namespace,
        partitions=partitions,
        readonly=readonly,
        silent_after_s=silent_after_s,
    )


async def open_cluster(
    driver: Driver,
    address: Address,
    namespace: str,
    *,
    partitions: int | None,
    readonly: bool,
    silent_after_s: float = SILENT_AFTER_S,
) -> KafkaLog:
    """Open a namespace by a driver that is set up. The log closes it. Raises: as :func:`open_kafka_log`."""
    try:
        count = await asyncio.to_thread(_prepare, driver, address, namespace, partitions, readonly)
        workers = Feed(f"{address.prefix}{namespace}.{WORKERS}", 0)
        log_id, known = await asyncio.to_thread(_meet, driver, address, namespace, workers, readonly)
        directory = state_dir_of(address, namespace, log_id)
        mirror = await asyncio.to_thread(Mirror, directory / "mirror.sqlite", address.prefix)
    except BaseException:
        driver.close()
        raise
    log = KafkaLog(
        str(address),
        driver,
        mirror,
        namespace=namespace,
        prefix=address.prefix,
        partitions=count,
        readonly=readonly,
        silent_after_s=silent_after_s,
        log_id=log_id,
        derived=str(directory / "projections"),
        known=known,
    )
    try:
        async with asyncio.timeout(ASK_S):
            await asyncio.wrap_future(log.start())
    except BaseException as error:
        await log.close()
        if isinstance(error, TimeoutError):
            raise BrokerError(f"{address}: the broker did not answer in {ASK_S:g} s") from None
        raise
    return log


def state_dir_of(address: Address, namespace: str, log_id: str) -> Path:
    """Return where this machine keeps copies and views of a log: one directory for each log, whatever it is called now."""
    if address.state_dir is not None:
        base = Path(address.state_dir).expanduser()
    else:
        base = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "gasoline_es"
    return base / f"{namespace}-{log_id}"


def _prepare(driver: Driver, address: Address, namespace: str, partitions: int | None, readonly: bool) -> int:
    with closing(driver.admin()) as admin:
        return prepare(
            admin, str(address), address.prefix, namespace, partitions, address.replication, readonly=readonly
        )


def _meet(
    driver: Driver, address: Address, namespace: str, workers: Feed, readonly: bool
) -> tuple[str, tuple[Sequence[In], int]]:
    """Return which log this is, and what was read of who works on it, up to which offset.

    Its name was drawn when it was made, by whoever came first.
    """
    with closing(driver.reader()) as reader:
        log_id, known = _read_workers(reader, workers)
        if log_id is None and readonly:
            raise LogError(f"namespace {namespace!r} in {address} was never opened for writing", namespace=namespace)
        for _ in range(_TRIES):
            if log_id is not None:
                return log_id, known
            with closing(driver.writer(f"{address.prefix}{namespace}.log", APPEND_LIMIT_S)) as writer:
                writer.fence()  # whoever was about to tell has told, or cannot any more
                log_id, known = _read_workers(reader, workers)
                if log_id is None:
                    value = json.dumps({"log_id": secrets.token_hex(16)}).encode()
                    fate = writer.commit([Out(workers, LOG_KEY, value, (), now_ms())])
                    if not isinstance(fate, Committed):
                        time.sleep(0.1)
                    log_id, known = _read_workers(reader, workers)
    raise BrokerError(f"{address}: the log could not be given its name, though the broker answers")


def _read_workers(reader: Reader, workers: Feed) -> tuple[str | None, tuple[Sequence[In], int]]:
    begin = reader.begins([workers], ASK_S)[workers]
    reader.assign({})  # so that it begins at the beginning, the second time too
    records = list(read_through(reader, workers, begin, ASK_S))
    told = [log_id for one in records if one.key == LOG_KEY and (log_id := _log_id(one.value)) is not None]
    position = records[-1].offset + 1 if records else begin
    return told[0] if told else None, (records, position)


def _log_id(value: bytes | None) -> str | None:
    """Read the name of a log; None: it is none. It becomes that of a directory."""
    found = None if value is None else _LOG_ID.search(value)
    return None if found is None else found[1].decode()
