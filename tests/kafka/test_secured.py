"""Clusters that are reached by TLS, and want a password or a token: by both client libraries, and nothing secret is told."""

# pyright: reportPrivateImportUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportArgumentType=false
# The stubs of confluent-kafka leave open what its admin gives, and what its filters may leave out.

from __future__ import annotations

import asyncio
import base64
import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from gasoline_es import Gasoline
from gasoline_es.log.kafka.drivers.port import BrokerError, Committed, Driver, Feed, NewTopic, Out
from gasoline_es.log.kafka.records import now_ms, read_through
from gasoline_es.log.kafka.settings import Address, make_driver
from tests.kafka_server import OtherListener, own_broker

pytestmark = pytest.mark.soak

PASSWORD = "correct horse battery"
STORE = "changeit"
_OTHER = "listener.name.other."
_LOGIN = "org.apache.kafka.common.security.{} required"


class Certificates(NamedTuple):
    """Of an authority of the test's own. ``store``: what the broker shows."""

    store: Path
    authority: Path


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certificates")
    _openssl(folder, "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem")
    _openssl(folder, "req -newkey rsa:2048 -nodes -subj /CN=broker -keyout broker.key -out broker.csr")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    _openssl(
        folder, "x509 -req -in broker.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out b.pem"
    )
    _openssl(
        folder, f"pkcs12 -export -in b.pem -inkey broker.key -certfile ca.pem -passout pass:{STORE} -out broker.p12"
    )
    return Certificates(folder / "broker.p12", folder / "ca.pem")


def _openssl(folder: Path, words: str) -> None:
    subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)


def _tls(certificates: Certificates) -> dict[str, str]:
    return {
        f"{_OTHER}ssl.keystore.type": "PKCS12",
        f"{_OTHER}ssl.keystore.location": str(certificates.store),
        f"{_OTHER}ssl.keystore.password": STORE,
        f"{_OTHER}ssl.key.password": STORE,
    }


@pytest.fixture(scope="module")
def by_tls(certificates: Certificates) -> Iterator[str]:
    """A broker that is reached by TLS, and takes SCRAM-SHA-512 and PLAIN."""
    listener = OtherListener(
        "SASL_SSL",
        settings=_tls(certificates)
        | {
            f"{_OTHER}sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
            f"{_OTHER}scram-sha-512.sasl.jaas.config": f"{_LOGIN.format('scram.ScramLoginModule')};",
            f"{_OTHER}plain.sasl.jaas.config": f'{_LOGIN.format("plain.PlainLoginModule")} user_shop="{PASSWORD}";',
        },
    )
    with own_broker(other=listener) as broker:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion("shop", info, PASSWORD.encode())
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.alter_user_scram_credentials([change]).values():
            future.result(30)
        yield broker.other_bootstrap


@pytest.fixture(scope="module")
def by_token() -> Iterator[str]:
    """A broker that takes tokens, signed by nobody."""
    listener = OtherListener(
        "SASL_PLAINTEXT",
        settings={
            f"{_OTHER}sasl.enabled.mechanisms": "OAUTHBEARER",
            f"{_OTHER}oauthbearer.sasl.jaas.config": (
                f'{_LOGIN.format("oauthbearer.OAuthBearerLoginModule")} unsecuredLoginStringClaim_sub="broker";'
            ),
        },
    )
    with own_broker(other=listener) as broker:
        yield broker.other_bootstrap


def writes_and_reads(driver: Driver, namespace: str) -> None:
    """Do what a log does: make a topic, write a transaction, read it."""
    feed = Feed(f"{namespace}.events", 0)
    with closing(driver.admin()) as admin:
        admin.create([NewTopic(feed.topic, 1, 1, {})], 30)
    with closing(driver.writer(f"{namespace}.0", 30)) as writer:
        writer.fence()
        assert isinstance(writer.commit([Out(feed, b"key", b"{}", (), now_ms())]), Committed)
    with closing(driver.reader()) as reader:
        assert [one.value for one in read_through(reader, feed, 0, 30)] == [b"{}"]


def shown(mechanism: str, **more: str) -> dict[str, str]:
    return {"KAFKA_SECURITY_PROTOCOL": "SASL_SSL", "KAFKA_SASL_MECHANISM": mechanism} | more


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_a_password_over_tls_opens_a_cluster_and_is_told_nowhere(
    mechanism: str,
    by_tls: str,
    certificates: Certificates,
    driver_name: str,
    kafka_namespace: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    environ = shown(
        mechanism,
        KAFKA_SASL_USERNAME="shop",
        KAFKA_SASL_PASSWORD=PASSWORD,
        KAFKA_SSL_CA_LOCATION=str(certificates.authority),
    )
    with closing(_driver(by_tls, driver_name, environ)) as driver:
        writes_and_reads(driver, kafka_namespace)
        assert PASSWORD not in f"{driver!r}{vars(driver)!r}"
    wrong = environ | {"KAFKA_SASL_PASSWORD": f"{PASSWORD} 2"}
    with closing(_driver(by_tls, driver_name, wrong)) as driver, closing(driver.admin()) as admin:
        with pytest.raises(BrokerError) as caught:
            admin.cluster_id(5)
        assert PASSWORD not in f"{caught.value!r}{caught.value}{caught.value.__cause__!r}"
    told = capfd.readouterr()
    assert PASSWORD not in caplog.text + told.out + told.err


def test_a_cluster_whose_certificate_nobody_vouches_for_is_not_spoken_to(by_tls: str, driver_name: str) -> None:
    """Required of TLS: without the authority's certificate nothing is shown to whoever answers."""
    environ = shown("PLAIN", KAFKA_SASL_USERNAME="shop", KAFKA_SASL_PASSWORD=PASSWORD)
    driver = _driver(by_tls, driver_name, environ)
    with closing(driver), closing(driver.admin()) as admin, pytest.raises(BrokerError):
        admin.cluster_id(5)


def test_a_token_opens_a_cluster_and_is_told_nowhere(
    by_token: str, driver_name: str, kafka_namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    asked: list[str] = []

    def token() -> tuple[str, float]:
        asked.append(_unsecured("shop"))
        return asked[-1], time.time() + 300

    environ = {"KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT", "KAFKA_SASL_MECHANISM": "OAUTHBEARER"}
    address = Address((by_token,), driver=driver_name)
    with closing(make_driver(address, environ=environ, oauth_token=token)) as driver:
        writes_and_reads(driver, kafka_namespace)
    assert asked
    assert not any(one in caplog.text for one in asked)


SHOP = """
import base64, json, os, sys, time
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate
from gasoline_es import WorkflowContext, workflow

def token():
    now = time.time()
    parts = ({"alg": "none"}, {"sub": "shop", "iat": now, "exp": now + 300})
    joined = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts)
    return joined + ".", now + 300

@workflow
async def sell(ctx: WorkflowContext, item: str) -> str:
    return item

class Shop(Application):
    pass

if __name__ == "__main__":
    with Shop(env={"PERSISTENCE_MODULE": "gasoline_es.persistence", "GASOLINE_LOG": sys.argv[1]}) as shop:
        one = Aggregate()
        shop.save(one)
        assert shop.repository.get(one.id).version == 1
"""


async def test_a_function_that_is_named_brings_tokens_to_every_kind_of_process(
    by_token: str,
    driver_name: str,
    kafka_namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker by its command, another command, a client, an application of eventsourcing."""
    (tmp_path / "shop_of_a_test.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("KAFKA_SECURITY_PROTOCOL", "SASL_PLAINTEXT")
    monkeypatch.setenv("KAFKA_SASL_MECHANISM", "OAUTHBEARER")
    monkeypatch.setenv("KAFKA_OAUTH_TOKEN_PROVIDER", "shop_of_a_test:token")
    options = f"driver={driver_name}&state_dir={tmp_path}/state"
    url = f"kafka://{by_token}/{kafka_namespace}?{options}"
    gasoline = str(Path(sys.executable).with_name("gasoline"))
    other = f"{url}-of-the-worker"
    async with Gasoline.open(url, partitions=1) as client:
        worker = await asyncio.create_subprocess_exec(
            gasoline, "--log", other, "worker", "run", "shop_of_a_test", cwd=tmp_path, stderr=asyncio.subprocess.PIPE
        )
        assert worker.stderr is not None
        told = asyncio.ensure_future(worker.stderr.read())
        try:
            async with asyncio.timeout(60):
                handle = await client.dispatch(import_module("shop_of_a_test").sell, "tea")
                assert await handle.output() == "tea"
        finally:
            worker.terminate()
            await worker.wait()
        listed = await asyncio.to_thread(_run, tmp_path, gasoline, "--log", other, "workflow", "list", "--json")
        assert handle.id in listed
    shop = f"kafka://{by_token}?{options}&prefix={kafka_namespace}."
    listed += await asyncio.to_thread(_run, tmp_path, sys.executable, "shop_of_a_test.py", shop)
    signed = base64.urlsafe_b64encode(b'{"alg": "none"}').rstrip(b"=").decode()
    assert signed not in (await told).decode() + listed


def _run(cwd: Path, *words: str) -> str:
    done = subprocess.run(words, check=False, cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def _driver(bootstrap: str, name: str, environ: Mapping[str, str]) -> Driver:
    return make_driver(Address((bootstrap,), driver=name), environ=environ)


def _unsecured(subject: str) -> str:
    """A token in three parts, the last of which, the signature, is empty."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": subject, "iat": now, "exp": now + 300})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + "."
