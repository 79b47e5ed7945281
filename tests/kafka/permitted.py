"""What each role does on a cluster, all of it, in a process that can be given up: python -m tests.kafka.permitted ROLE URL.

Ends with 0 if everything went well. What is refused ends it with another status, or with nothing within its time.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from contextlib import closing

from confluent_kafka import Consumer

from gasoline_es.core.topics import ANYONES_TOPICS, OWNERS_TOPICS
from gasoline_es.errors import LogError
from gasoline_es.log.kafka.drivers.port import Feed
from gasoline_es.log.kafka.opening import open_kafka_log
from gasoline_es.log.kafka.settings import Address, make_driver
from gasoline_es.log.kafka.topics import ASK_S, PUBLIC_TOPICS, prepare
from gasoline_es.log.port import Log, NewRecord, Section

_EVENT = (
    b'{"specversion":"1.0","id":"w/1","source":"/gasoline/%b","type":"gasoline.workflow.woken.v1","subject":"w",'
    b'"time":"2026-01-01T00:00:00.000000Z","datacontenttype":"application/json","seq":1,"partition":0,"epoch":1,'
    b'"workflow":"w","rayid":"w","worker":"w","data":{"by":"me"}}'
)


def others_of(namespace: str) -> tuple[str, str, str]:
    """Name the topics of others that are used with a namespace: what is emitted to, what is ingested, its dead letters."""
    return f"{namespace}-out", f"{namespace}-in", f"{namespace}-in.dead-letter"


async def administrator(url: str) -> None:
    """Make the topics."""
    address = Address.of(url)
    assert address.namespace is not None
    with closing(make_driver(address)) as driver, closing(driver.admin()) as admin:
        prepare(admin, url, address.prefix, address.namespace, 1, -1, readonly=False)


async def worker(url: str) -> None:
    """Own the partition, live, write and read every topic, those of others too, and remove what was consumed."""
    address = Address.of(url)
    log = await open_kafka_log(url)
    owned = await log.acquire(0)
    log.announce({"name": "w"})
    emitted, source, letters = others_of(log.namespace)
    for topic in (emitted, letters):
        assert await log.partitions_of(topic) == 1
    records = [
        NewRecord(topic, 0, "w/1", _EVENT % log.namespace.encode(), time.time_ns() // 1000)
        for topic in (*_topics(log, (*OWNERS_TOPICS, *ANYONES_TOPICS)), emitted, letters)
    ]
    await _append(log, Section(0, owned.epoch, records))
    await _read(log)
    inbox = log.tail(f"{log.namespace}.inbox", 0)
    await log.refresh((f"{log.namespace}.inbox", 0))
    assert inbox.poll()
    assert await log.partitions_of(source, reading=True) == 1
    ingested = await log.source(source, 0)
    while not await ingested.poll(1):
        pass
    await ingested.close()
    while not log.members():  # its sign of life came back
        await asyncio.sleep(0.02)
    with closing(make_driver(address)) as driver, closing(driver.admin()) as admin:
        admin.delete_before({Feed(f"{address.prefix}{log.namespace}.inbox", 0): 1}, ASK_S)
    await log.close()


async def client(url: str) -> None:
    """Live, write what anyone writes, and read every topic."""
    log = await open_kafka_log(url)
    await log.shown()
    records = [NewRecord(topic, 0, "c", b"{}", time.time_ns() // 1000) for topic in _topics(log, ANYONES_TOPICS)]
    await _append(log, Section(0, None, records))
    await _read(log)
    await log.close()


async def reader(url: str) -> None:
    """Read every topic."""
    log = await open_kafka_log(url, readonly=True)
    await _read(log)
    await log.close()


async def consumer(url: str) -> None:
    """Read the public topics from their beginning, by a client that knows nothing of the library.

    In a group of its own each time: one that was here before would go on where it has committed, and be given nothing.
    """
    from gasoline_es.log.kafka.drivers.confluent.settings import settings
    from gasoline_es.log.kafka.settings import security_of

    address = Address.of(url)
    name = f"{address.prefix}{address.namespace}."
    reach = settings(address.servers, security_of(address))
    reading = Consumer({**reach, "group.id": f"{name}billing-{secrets.token_hex(4)}", "auto.offset.reset": "earliest"})
    wanted = {f"{name}{kind}" for kind in PUBLIC_TOPICS}
    reading.subscribe(sorted(wanted))
    while wanted:
        message = reading.poll(1.0)
        if message is not None:
            if message.error() is not None:
                raise SystemExit(str(message.error()))
            wanted.discard(str(message.topic()))
    reading.commit(asynchronous=False)
    reading.close()


def _topics(log: Log, kinds: tuple[str, ...]) -> list[str]:
    return [f"{log.namespace}.{kind}" for kind in kinds]


async def _append(log: Log, section: Section) -> None:
    (outcome,) = await log.append([section])
    if isinstance(outcome, LogError):
        raise outcome


async def _read(log: Log) -> None:
    for topic in _topics(log, (*OWNERS_TOPICS, "replies", "messages")):
        await log.refresh((topic, 0))
    assert list(log.read(f"{log.namespace}.events", 0))


ROLES = {one.__name__: one for one in (administrator, worker, client, reader, consumer)}

if __name__ == "__main__":
    asyncio.run(ROLES[sys.argv[1]](sys.argv[2]))
