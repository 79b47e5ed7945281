"""Programs that know nothing of this library read what it writes, by the page that says how (docs/kafka-contract.md)."""

# pyright: reportPrivateImportUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportArgumentType=false
# The stubs of confluent-kafka leave open what its admin gives, and what its filters may leave out.

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from cloudevents.core.bindings.kafka import to_binary_event
from cloudevents.core.v1.event import CloudEvent
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from gasoline_es import ActivityContext, Gasoline, WorkflowContext, activity, workflow
from tests.contract.published import problems
from tests.project.doc_pages import read_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kafka-contract.md"


@activity
async def charge(ctx: ActivityContext, cents: int) -> int:
    return cents


@workflow
async def pay(ctx: WorkflowContext, cents: int) -> int:
    return await ctx.activity(charge, cents)


class Recorded(NamedTuple):
    """A namespace with a workflow's events, a tombstone, and a record of a transaction that was aborted."""

    bootstrap: str
    namespace: str
    workflow_id: str
    types: Sequence[str]

    @property
    def topic(self) -> str:
        return f"{self.namespace}.events"


@pytest.fixture(scope="module")
def recorded(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    namespace = f"t-{os.urandom(6).hex()}"

    async def record() -> Recorded:
        url = f"kafka://{kafka_bootstrap}/{namespace}?state_dir={tmp_path_factory.mktemp('state')}"
        async with Gasoline.open(url, partitions=1) as gasoline, gasoline.worker([pay]):
            handle = await gasoline.dispatch(pay, 4200)
            assert await handle.output() == 4200
            history = await handle.history()
            return Recorded(kafka_bootstrap, namespace, handle.id, [f"gasoline.{event.type}.v1" for event in history])

    found = asyncio.run(record())
    writer = Producer({"bootstrap.servers": kafka_bootstrap, "transactional.id": f"{namespace}.pruning"})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(found.topic, key=b"w/9", value=b'{"id":"never happened"}')
    writer.flush(30)
    writer.abort_transaction(30)
    writer.begin_transaction()
    writer.produce(found.topic, key=f"{found.workflow_id}/1".encode(), value=None)
    writer.commit_transaction(30)
    return found


@pytest.fixture
def consumer(recorded: Recorded) -> Iterator[Consumer]:
    made = Consumer(
        {
            "bootstrap.servers": recorded.bootstrap,
            "group.id": f"{recorded.namespace}.{os.urandom(4).hex()}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    made.subscribe([recorded.topic])
    yield made
    made.close()


def shown(name: str) -> str:
    """A file that the page shows."""
    (block,) = (block for block in read_page(PAGE, name=PAGE.name).blocks if block.file == name)
    return block.body


def module(name: str) -> ModuleType:
    """The same, loaded."""
    made = ModuleType(name.removesuffix(".py"))
    exec(compile(shown(name), name, "exec"), made.__dict__)  # noqa: S102  # the page's own code
    return made


def messages(consumer: Consumer, count: int) -> list[Message]:
    """So many records, as they come."""
    found: list[Message] = []
    while len(found) < count:
        message = consumer.poll(30.0)
        assert message is not None, f"{len(found)} of {count} records came"
        assert message.error() is None, message.error()
        found.append(message)
    return found


def test_confluent_kafka_alone_reads_events_that_are_as_the_schemas_say(consumer: Consumer, recorded: Recorded) -> None:
    reading = module("read_events.py").events(consumer)
    events = [next(reading) for _ in recorded.types]
    assert [event["type"] for event in events] == recorded.types
    assert [problems("events", event) for event in events] == [[]] * len(events)
    (last,) = messages(consumer, 1)  # what was aborted is not given
    assert last.value() is None


def test_records_have_the_key_and_the_headers_that_are_promised(consumer: Consumer, recorded: Recorded) -> None:
    *found, tombstone = messages(consumer, len(recorded.types) + 1)
    for seq, (message, kind) in enumerate(zip(found, recorded.types, strict=True), 1):
        assert message.key() == f"{recorded.workflow_id}/{seq}".encode()
        assert dict(message.headers() or ()) == {
            "content-type": b"application/cloudevents+json",
            "ce_type": kind.encode(),
            "ce_subject": recorded.workflow_id.encode(),
        }
    assert tombstone.headers() is None


def test_the_cloudevents_package_reads_events(consumer: Consumer, recorded: Recorded) -> None:
    read = module("cloud.py").cloud_event
    *events, tombstone = [read(message) for message in messages(consumer, len(recorded.types) + 1)]
    assert tombstone is None
    assert [event.get_type() for event in events] == recorded.types
    assert [event.get_id() for event in events] == [f"{recorded.workflow_id}/{at}" for at in range(1, len(events) + 1)]
    assert {event.get_source() for event in events} == {f"/gasoline/{recorded.namespace}"}
    assert [event.get_extension("seq") for event in events] == list(range(1, len(events) + 1))
    assert events[-1].get_data()["output"] == 4200


def test_kcat_reads_events_and_tombstones(recorded: Recorded) -> None:
    if shutil.which("kcat") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("kcat is not there: apt-get install kcat")
    line = next(line for line in shown_lines() if line.startswith("$ kcat"))
    command = line[2:].replace("localhost:9092", recorded.bootstrap).replace("shop.events", recorded.topic)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    lines = done.stdout.splitlines()[: len(recorded.types) + 1]  # another test may have written something behind them
    *events, tombstone = [line.partition(" ")[2] for line in lines]
    assert [json.loads(event)["type"] for event in events] == recorded.types
    assert tombstone == "NULL"


def shown_lines() -> list[str]:
    return PAGE.read_text(encoding="utf-8").splitlines()


EMITTED = """
import asyncio, os
from typing import Any
from faststream import FastStream
from faststream.confluent import KafkaBroker

broker = KafkaBroker(os.environ["KAFKA"])
app = FastStream(broker)


@broker.subscriber(os.environ["TOPIC"], group_id=os.environ["TOPIC"], auto_offset_reset="earliest")
async def ship(order: dict[str, Any]) -> None:
    print("ship", order["order"], flush=True)


asyncio.run(app.run())
"""


def test_a_record_in_binary_mode_needs_no_decoder(recorded: Recorded, tmp_path: Path) -> None:
    """Plain JSON with its attributes in headers, as the cloudevents package writes it."""
    topic = f"{recorded.namespace}.orders"
    admin = AdminClient({"bootstrap.servers": recorded.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    event = CloudEvent({"id": "1", "source": "/gasoline/shop", "type": "order.paid"}, {"order": "o-1"})
    made = to_binary_event(event)
    assert json.loads(made.value) == {"order": "o-1"}
    writer = Producer({"bootstrap.servers": recorded.bootstrap})
    writer.produce(topic, key=b"o-1", value=made.value, headers=dict(made.headers))
    writer.flush(30)
    with running(EMITTED, tmp_path, recorded.bootstrap, topic) as lines:
        assert next(lines) == "ship o-1\n"


def test_faststream_reads_events_by_the_decoder_of_the_page(recorded: Recorded, tmp_path: Path) -> None:
    """A tombstone does it no harm: it goes on with what comes after."""
    with running(shown("billing.py"), tmp_path, recorded.bootstrap, recorded.topic) as lines:
        assert next(lines) == f"bill {recorded.workflow_id} 4200\n"
        later = {"type": "gasoline.workflow.completed.v1", "subject": "later", "data": {"output": 1}}
        writer = Producer({"bootstrap.servers": recorded.bootstrap})
        writer.produce(recorded.topic, key=b"later/1", value=json.dumps(later).encode())
        writer.flush(30)
        assert next(lines) == "bill later 1\n"


@contextmanager
def running(program: str, folder: Path, bootstrap: str, topic: str) -> Generator[Iterator[str]]:
    """Run a program that reads a topic until it is told to stop; yield what it prints."""
    (folder / "program.py").write_text(program)
    environ = os.environ | {"KAFKA": bootstrap, "TOPIC": topic}
    process = subprocess.Popen(
        [sys.executable, "program.py"], cwd=folder, env=environ, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        try:
            yield (
                line for line in process.stdout if line.startswith(("bill ", "ship "))
            )  # FastStream prints there, too
        finally:
            process.kill()
