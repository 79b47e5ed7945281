"""A broker that wants to know who comes, and allows nobody anything but what it was told."""

# pyright: reportPrivateImportUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportArgumentType=false
# The stubs of confluent-kafka leave open what its admin gives, and what its filters may leave out.

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from gasoline_es.log.kafka.acls import Acl
from tests.kafka_server import Broker, OtherListener, own_broker

PASSWORD = "correct horse battery"
USERS = ("administrator", "worker", "client", "reader", "consumer")
_LOGIN = "org.apache.kafka.common.security.{} required"
_OTHER = "listener.name.other."

_RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}
_OPERATIONS = {
    "Create": AclOperation.CREATE,
    "Delete": AclOperation.DELETE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
}


@contextmanager
def guarded_broker() -> Generator[Broker]:
    """Run one whose other listener knows the roles by name and password. By the first listener everything is allowed."""
    known = " ".join(f'user_{name}="{PASSWORD}"' for name in USERS)
    listener = OtherListener(
        "SASL_PLAINTEXT",
        settings={
            f"{_OTHER}sasl.enabled.mechanisms": "PLAIN",
            f"{_OTHER}plain.sasl.jaas.config": f"{_LOGIN.format('plain.PlainLoginModule')} {known};",
        },
    )
    with own_broker(
        other=listener,
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:ANONYMOUS",
    ) as broker:
        yield broker


def shown_as(role: str, folder: Path) -> Path:
    """Write the file of settings with which a role comes."""
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": role,
        "sasl.password": PASSWORD,
    }
    file = folder / f"{role}.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return file


class Guard:
    """The broker's permissions, as its administrator changes them."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def allow(self, permissions: Iterable[Acl]) -> None:
        """Allow so much, and wait until that is so."""
        bindings = [_binding(one) for one in permissions]
        for future in self._admin.create_acls(bindings).values():
            future.result(30)
        while not set(bindings) <= self.allowed():
            pass

    def forbid(self, permissions: Sequence[Acl]) -> None:
        """Take permissions away, and wait until they are gone."""
        bindings = [_binding(one) for one in permissions]
        filters = [AclBindingFilter(*_parts(one)) for one in permissions]
        for future in self._admin.delete_acls(filters).values():
            future.result(30)
        while set(bindings) & self.allowed():
            pass

    def allowed(self) -> set[AclBinding]:
        """What is allowed now."""
        every = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            None,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        return set(self._admin.describe_acls(every).result(30))


def _parts(one: Acl) -> tuple[Any, ...]:
    return (
        _RESOURCES[one.resource],
        one.name,
        ResourcePatternType.PREFIXED if one.prefixed else ResourcePatternType.LITERAL,
        f"User:{one.role}",
        "*",
        _OPERATIONS[one.operation],
        AclPermissionType.ALLOW,
    )


def _binding(one: Acl) -> AclBinding:
    return AclBinding(*_parts(one))
