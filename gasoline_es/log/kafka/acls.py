"""What each kind of process has to be allowed by the cluster: no more than it does, as ACLs of Kafka.

Who may write or read a topic may describe it as well, so that this is asked for only where somebody does neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from gasoline_es.core.topics import ANYONES_TOPICS, OWNERS_TOPICS, WORKERS
from gasoline_es.log.kafka.topics import PUBLIC_TOPICS

Role = Literal["administrator", "worker", "client", "reader", "consumer"]

ROLES: Final[dict[Role, str]] = {
    "administrator": "makes the namespace's topics; nobody else has to, once they are there",
    "worker": "runs workflows: whatever opens the namespace for a worker, and the command line where it acts",
    "client": "dispatches, signals, asks and subscribes, and runs nothing",
    "reader": "looks, as the command line does; writes nothing",
    "consumer": "any other program that reads the public topics",
}


@dataclass(frozen=True, slots=True)
class Acl:
    """One permission. ``name``: the resource's, or what it begins with where ``prefixed``."""

    role: Role
    resource: Literal["topic", "transactional-id", "group"]
    name: str
    prefixed: bool
    operation: Literal["Create", "Delete", "Describe", "DescribeConfigs", "Read", "Write"]


class Ingested(NamedTuple):
    """A topic of others that a pipeline reads, and where it writes what it cannot take."""

    topic: str
    dead_letters: str


def acls_of(
    prefix: str,
    namespace: str,
    group: str | None = None,
    *,
    emit: Sequence[str] = (),
    ingest: Sequence[Ingested] = (),
) -> list[Acl]:
    """Return what everybody needs.

    ``group``: what consumers' groups begin with; as the topics do unless given. ``emit``: topics of others that bodies write
    to, by whole names; one that ends in ``*`` is all that begin so. ``ingest``: what pipelines read.
    """
    name = f"{prefix}{namespace}."
    everything = (*OWNERS_TOPICS, *ANYONES_TOPICS, WORKERS)
    to_read = [kind for kind in everything if kind != "inbox"]  # which is its owner's alone
    return [
        Acl("administrator", "topic", name, True, "Create"),
        Acl("administrator", "topic", name, True, "Describe"),
        Acl("administrator", "topic", name, True, "DescribeConfigs"),
        *_topics("worker", name, everything, ("DescribeConfigs", "Read", "Write")),
        # What was consumed is removed from the broker.
        *_topics("worker", name, ("inbox",), ("Delete",)),
        *(one for topic in dict.fromkeys(emit) for one in _written(topic)),
        *(one for pipeline in ingest for one in _ingested(pipeline)),
        Acl("worker", "transactional-id", name, True, "Write"),
        *_topics("client", name, everything, ("DescribeConfigs",)),
        *_topics("client", name, to_read, ("Read",)),
        # Its signs of life are among those of workers.
        *_topics("client", name, (*ANYONES_TOPICS, WORKERS), ("Write",)),
        Acl("client", "transactional-id", f"{name}client.", True, "Write"),
        Acl("client", "transactional-id", f"{name}sign.", True, "Write"),
        *_topics("reader", name, everything, ("DescribeConfigs",)),
        *_topics("reader", name, to_read, ("Read",)),
        *_topics("reader", name, ("inbox",), ("Describe",)),
        *_topics("consumer", name, PUBLIC_TOPICS, ("Read",)),
        Acl("consumer", "group", name if group is None else group, True, "Read"),
    ]


def _written(topic: str) -> Iterator[Acl]:
    """What it takes to write to a topic of others: it is looked at first, whether it takes every record."""
    for operation in ("DescribeConfigs", "Write"):
        yield Acl("worker", "topic", topic.removesuffix("*"), topic.endswith("*"), operation)


def _ingested(pipeline: Ingested) -> Iterator[Acl]:
    yield Acl("worker", "topic", pipeline.topic, False, "Read")
    yield from _written(pipeline.dead_letters)


def _topics(role: Role, name: str, kinds: Sequence[str], operations: Sequence[str]) -> Iterator[Acl]:
    for kind in kinds:
        for operation in operations:
            yield Acl(role, "topic", f"{name}{kind}", False, operation)  # type: ignore[arg-type]
