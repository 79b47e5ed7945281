"""What an administrator of a cluster is told: topics, permissions, what is in the topics; and the compose.yaml for a try."""

from __future__ import annotations

import json
import shlex
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from gasoline_es.cli import administering
from gasoline_es.contract.asyncapi import asyncapi
from gasoline_es.contract.schemas import all_schemas
from gasoline_es.log.kafka.acls import ROLES, acls_of
from gasoline_es.log.kafka.opening import open_kafka_log
from gasoline_es.log.kafka.settings import Address
from gasoline_es.log.kafka.topics import PUBLIC_TOPICS, prepare, topics_of
from tests.cli.terminal import Done, invoke, run_on_terminal
from tests.conftest import ROOT
from tests.kafka.cluster_of_memory import Cluster, MemoryDriver
from tests.kafka_server import own_broker

URL = "kafka://memory:9092/shop?prefix=eu."


def run(*words: str, url: str = URL) -> Done:
    return invoke("--log", url, "kafka", *words)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster that the command line asks."""
    made = Cluster()
    monkeypatch.setattr(administering, "make_driver", partial(_driver, made))
    return made


def _driver(cluster: Cluster, address: Address) -> MemoryDriver:
    return MemoryDriver(cluster)


def opened(cluster: Cluster, partitions: int) -> None:
    with closing(MemoryDriver(cluster).admin()) as admin:
        prepare(admin, "memory", "eu.", "shop", partitions, -1, readonly=False)


def changed(cluster: Cluster, topic: str, **settings: str) -> None:
    info = cluster.topics[topic].info
    assert isinstance(info.config, dict)
    info.config.update({name.replace("_", "."): value for name, value in settings.items()})


def test_topics_that_opening_made_are_as_they_should_be(cluster: Cluster) -> None:
    """The settings have one home: what is shown is what opening makes, with the partitions that are there."""
    opened(cluster, 4)
    done = run("topics", "--json")
    assert done.status == 0, done.stderr
    assert [(one["topic"], one["partitions"]) for one in done.objects] == [
        (one.name, one.partitions) for one in topics_of("eu.", "shop", 4)
    ]
    assert all(one["there"] and one["differences"] == [] for one in done.objects)
    assert {one["topic"] for one in done.objects if one["public"]} == {f"eu.shop.{kind}" for kind in PUBLIC_TOPICS}


def test_what_is_missing_or_would_be_refused_fails_and_names_it(cluster: Cluster) -> None:
    opened(cluster, 4)
    del cluster.topics["eu.shop.parked"]
    changed(cluster, "eu.shop.events", cleanup_policy="delete")
    changed(cluster, "eu.shop.replies", retention_ms="5")
    done = run("topics", "--json")
    assert done.status == 1
    assert "missing: eu.shop.parked" in done.stderr
    assert "eu.shop.events has cleanup.policy=delete and not compact" in done.stderr
    assert "replies" not in done.stderr  # how long they stay is the administrator's
    told = {one["topic"]: one for one in done.objects}
    assert told["eu.shop.parked"]["there"] is False
    assert [one["refused"] for one in told["eu.shop.events"]["differences"]] == [True]
    assert [one["refused"] for one in told["eu.shop.replies"]["differences"]] == [False]


def test_the_script_makes_what_is_missing_and_sets_what_would_be_refused(cluster: Cluster) -> None:
    opened(cluster, 4)
    del cluster.topics["eu.shop.parked"]
    changed(cluster, "eu.shop.events", cleanup_policy="delete")
    done = run("topics", "--commands")
    made, altered = [shlex.split(line) for line in done.stdout.splitlines() if line.startswith("kafka-")][::-1]
    assert (made[0], altered[0]) == ("kafka-topics.sh", "kafka-configs.sh")
    assert made[made.index("--topic") + 1] == "eu.shop.parked"
    assert made[made.index("--partitions") + 1] == "4"
    assert "cleanup.policy=compact" in made
    assert altered[-1] == "cleanup.policy=compact"
    assert done.stdout.startswith("#!/bin/sh\n"), "a script goes to a file as it is"
    assert [*run("topics", "--commands", "--json").objects] == [{"script": done.stdout}]


def test_a_wrong_number_of_partitions_is_told_and_no_command_changes_it(cluster: Cluster) -> None:
    opened(cluster, 4)
    cluster.topics["eu.shop.inbox"].info = cluster.topics["eu.shop.workers"].info
    assert "eu.shop.inbox has partitions=1 and not 4" in run("topics", "--json").stderr
    assert "# eu.shop.inbox has partitions=1" in run("topics", "--commands").stdout


def test_without_a_cluster_nothing_is_asked() -> None:
    offline = run("topics", "--offline", "--partitions", "2", "--json")
    alone = invoke("--namespace", "shop", "kafka", "topics", "--json")
    assert (offline.status, alone.status) == (0, 0)
    assert {one["there"] for one in [*offline.objects, *alone.objects]} == {None}
    assert [one["partitions"] for one in alone.objects] == [one.partitions for one in topics_of("", "shop", 32)]


@pytest.mark.parametrize(
    ("words", "told", "status"),
    [
        (("--log", "file:./data", "kafka", "topics"), "is not on Kafka", 1),
        (("--log", URL, "--namespace", "other", "kafka", "acls"), "leave one of them out", 2),
        (("kafka", "acls", "--principal", "shop"), "write ROLE=PRINCIPAL", 2),
        (("kafka", "acls", "--principal", "owner=User:shop"), "administrator, worker, client, reader, consumer", 2),
        (("kafka", "acls", "--principal", "worker=shop"), "User:NAME", 2),
        (("kafka", "acls", "--emit", "a b"), "--emit: 'a b' cannot be the name of a topic", 2),
        (("kafka", "acls", "--emit", "*"), "--emit: '' cannot be the name of a topic", 2),
        (("--log", URL, "kafka", "acls", "--emit", "eu.shop.events"), "named as gasoline's own", 2),
        (("kafka", "acls", "--ingest", "orders:"), "--ingest: '' cannot be the name of a topic", 2),
        (("kafka", "acls", "--ingest", "orders:orders"), "cannot go to the topic that is read", 2),
        (("--namespace", "A b", "kafka", "asyncapi"), "'A b'", 1),
    ],
)
def test_what_cannot_be_meant_is_an_error_that_says_what_to_write(
    words: tuple[str, ...], told: str, status: int
) -> None:
    done = invoke(*words)
    assert (done.status, told in done.stderr) == (status, True), done.stderr


def test_permissions_are_those_that_each_role_needs() -> None:
    done = run("acls", "--json")
    assert {one["role"] for one in done.objects} == set(ROLES)
    assert len(done.objects) == len(acls_of("eu.", "shop"))
    writes = {one["name"] for one in done.objects if one["role"] == "client" and one["operation"] == "Write"}
    assert "eu.shop.events" not in writes  # nobody but a worker can write an event
    readers = {one["operation"] for one in done.objects if one["role"] == "reader"}
    assert readers == {"Describe", "DescribeConfigs", "Read"}


def test_topics_of_others_are_a_workers_where_they_are_named() -> None:
    """By the names that the cluster has, without the prefix. What is read and what is written is told apart."""
    plain = {tuple(one.items()) for one in run("acls", "--json").objects}
    others = ("--emit", "sales", "--emit", "eu.bills.*", "--ingest", "orders", "--ingest", "returns:bad")
    found = [one for one in run("acls", *others, "--json").objects if tuple(one.items()) not in plain]
    assert {one["role"] for one in found} == {"worker"}
    told = [(one["name"], one["pattern"], one["operation"]) for one in found]
    writable = [("sales", "literal"), ("eu.bills.", "prefixed"), ("orders.dead-letter", "literal"), ("bad", "literal")]
    assert sorted(told) == sorted(
        [
            *((*one, operation) for one in writable for operation in ("DescribeConfigs", "Write")),
            ("orders", "literal", "Read"),
            ("returns", "literal", "Read"),
        ]
    )


def test_permissions_as_a_script_name_the_principals_that_were_given() -> None:
    done = run("acls", "--principal", "worker=User:it's", "--principal", "worker=User:b", "--commands")
    lines = [shlex.split(line) for line in done.stdout.splitlines() if line.startswith("kafka-acls.sh")]
    assert lines
    for line in lines:
        assert [line[at + 1] for at, word in enumerate(line) if word == "--allow-principal"] == ["User:it's", "User:b"]
    shown = sum(line.count("--operation") for line in lines)
    assert shown == len([one for one in acls_of("eu.", "shop") if one.role == "worker"])


def test_on_a_terminal_they_are_tables(cluster: Cluster) -> None:
    assert "eu.shop.client.*" in run_on_terminal("--log", URL, "kafka", "acls").stdout
    assert "cleanup.policy=compact" in run_on_terminal("--log", URL, "kafka", "topics", "--offline").stdout


# --- AsyncAPI ---------------------------------------------------------------------------------------------------------


def test_the_document_names_the_public_topics_and_every_event_in_them() -> None:
    document: dict[str, Any] = run("asyncapi").objects[0]
    assert document["asyncapi"] == "3.0.0"
    assert [channel["address"] for channel in document["channels"].values()] == [
        f"eu.shop.{one}" for one in PUBLIC_TOPICS
    ]
    messages = {name for channel in document["channels"].values() for name in channel["messages"]}
    assert messages == set(document["components"]["messages"]) == {f"{one.topic}.{one.type}" for one in all_schemas()}
    assert document["servers"]["broker-1"] == {"host": "memory:9092", "protocol": "kafka"}


def test_every_reference_in_the_document_leads_somewhere() -> None:
    document = asyncapi(topics_of("", "shop", 32), namespace="shop", servers=["a:1", "b:2"])
    found = list(_references(document))
    assert len(found) > 100
    for reference in found:
        assert reference.startswith("#/")
        at: Any = document
        for part in reference[2:].split("/"):
            at = at[part]
    assert "$defs" not in json.dumps(document)


def _references(value: Any) -> Any:
    if isinstance(value, dict):
        for name, inner in value.items():  # pyright: ignore[reportUnknownVariableType]
            if name == "$ref":
                yield inner
            else:
                yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _references(inner)


def test_a_cluster_that_is_reached_by_tls_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_SECURITY_PROTOCOL", "SSL")
    assert run("asyncapi").objects[0]["servers"]["broker-1"]["protocol"] == "kafka-secure"


def test_the_number_of_partitions_is_told_where_it_was_given() -> None:
    document = run("asyncapi", "--partitions", "8").objects[0]
    assert {one["bindings"]["kafka"]["partitions"] for one in document["channels"].values()} == {8}


# --- compose.yaml -----------------------------------------------------------------------------------------------------


def composed() -> dict[str, str]:
    """The settings of the broker that compose.yaml starts, by Kafka's names."""
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    (service,) = compose["services"].values()
    assert set(compose["volumes"]) == {volume.partition(":")[0] for volume in service["volumes"]}
    environment: dict[str, str] = service["environment"]
    assert all(isinstance(value, str) for value in environment.values())  # what is no text, YAML reads in its own way
    return {name.removeprefix("KAFKA_").lower().replace("_", "."): value for name, value in environment.items()}


def test_the_broker_of_compose_yaml_is_set_as_a_log_on_one_broker_needs_it() -> None:
    settings = composed()
    assert settings["auto.create.topics.enable"] == "false"
    for name in ("offsets.topic.replication.factor", "transaction.state.log.replication.factor"):
        assert settings[name] == "1"
    assert settings["transaction.state.log.min.isr"] == "1"
    assert settings["advertised.listeners"] == "PLAINTEXT://localhost:9092"


@pytest.mark.soak
async def test_a_broker_with_the_settings_of_compose_yaml_serves_a_log(tmp_path: Path) -> None:
    places = ("listeners", "log.dirs", "controller.quorum.voters", "node.id")
    settings = {name.replace(".", "_"): value for name, value in composed().items() if not name.endswith(places)}
    with own_broker(other=None, **settings) as broker:
        log = await open_kafka_log(f"kafka://{broker.bootstrap}/shop?state_dir={tmp_path}", partitions=1)
        assert (await log.acquire(0)).epoch == 1
        await log.close()
