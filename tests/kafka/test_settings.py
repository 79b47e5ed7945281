"""The URL of a Kafka log, and what a cluster wants to be shown, for each client library."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from gasoline_es.errors import ExtraMissing, LogError
from gasoline_es.log.kafka.drivers.confluent.settings import settings as for_confluent
from gasoline_es.log.kafka.drivers.kafka_python.settings import settings as for_kafka_python
from gasoline_es.log.kafka.drivers.port import BrokerError
from gasoline_es.log.kafka.security import Secret, Security, TokenCall, read_security
from gasoline_es.log.kafka.settings import CONFIG_VARIABLE, Address, make_driver
from tests.kafka_server import OtherListener, own_broker

HIDDEN = "correct horse battery staple"
SERVERS = ("a:9092", "b:9093")


def token() -> tuple[str, float]:
    return ("token", 2_000_000_000.0)


@pytest.mark.parametrize(
    ("url", "address", "written"),
    [
        ("kafka://h", Address(("h:9092",)), "kafka://h:9092"),
        ("kafka://h:1/ns/", Address(("h:1",), "ns"), "kafka://h:1/ns"),
        (
            "kafka://a,b:2,[::1]:3/my-ns",
            Address(("a:9092", "b:2", "[::1]:3"), "my-ns"),
            "kafka://a:9092,b:2,[::1]:3/my-ns",
        ),
        (
            "kafka://h/ns?driver=confluent&replication=3&prefix=p.&state_dir=/var/x%20y&config=~/c.properties",
            Address(("h:9092",), "ns", "p.", "confluent", "/var/x y", 3, "~/c.properties"),
            "kafka://h:9092/ns?prefix=p.&driver=confluent&state_dir=/var/x+y&replication=3&config=~/c.properties",
        ),
    ],
)
def test_a_url_is_read_and_written(url: str, address: Address, written: str) -> None:
    assert Address.of(url) == address
    assert str(address) == written
    assert Address.of(written) == address


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("file:/x", "write kafka://HOST:PORT"),
        ("kafka:h/ns", "write kafka://HOST:PORT"),
        ("kafka://", "names '' as a server"),
        ("kafka://h:0/ns", "names 'h:0' as a server"),
        ("kafka://h:65536/ns", "names 'h:65536' as a server"),
        ("kafka://h,,i/ns", "names '' as a server"),
        ("kafka://h/UPPER", "a namespace is 1 to 64 of a-z"),
        ("kafka://h/a/b", "a namespace is 1 to 64 of a-z"),
        ("kafka://h/ns?acks=1", "unknown option 'acks'"),
        ("kafka://h/ns?driver=java", "driver='java', which is not one of kafka-python, confluent"),
        ("kafka://h/ns?driver=confluent&driver=confluent", "'driver' twice"),
        ("kafka://h/ns?replication=0", "replication='0'"),
        ("kafka://h/ns?replication=many", "replication='many'"),
        ("kafka://h/ns?prefix=a/b", "prefix='a/b'"),
    ],
)
def test_a_url_that_is_wrong_is_an_error_that_says_where(url: str, told: str) -> None:
    with pytest.raises(LogError) as caught:
        Address.of(url)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"kafka://me:{HIDDEN}@h/ns",
        f"kafka://me@x:{HIDDEN}@h/ns",
        f"kafka://me:x/{HIDDEN}@h/ns",
        f"kafka://me:x@{HIDDEN}/y@h/ns",
        f"kafka://me:{HIDDEN}?y@h/ns",
        f"kafka://{HIDDEN}:1?y@h/ns",
        f"kafka://me%3A{HIDDEN}%40h/ns",
        f"kafka://h/ns?password={HIDDEN}",
    ],
)
def test_a_url_with_a_password_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(LogError) as caught:
        Address.of(url)
    assert HIDDEN not in f"{caught.value!r}{caught.value}{caught.value.fields}"


def test_nothing_given_is_a_cluster_that_wants_to_be_shown_nothing() -> None:
    security = read_security(SERVERS, None, {})
    assert for_confluent(SERVERS, security) == {"bootstrap.servers": "a:9092,b:9093"}
    assert for_kafka_python(SERVERS, security) == {"bootstrap_servers": ["a:9092", "b:9093"]}


def test_variables_and_a_file_are_put_together_for_either_library(tmp_path: Path) -> None:
    certificate, key, ca = (tmp_path / name for name in ("c.pem", "k.pem", "ca.pem"))
    for path in (certificate, key, ca):
        path.touch()
    config = tmp_path / "kafka.properties"
    config.write_text(
        f"# comment\n! comment\n\nbootstrap.servers = b:9093, a:9092\nsecurity.protocol=sasl_ssl\n"
        f"sasl.mechanisms=scram-sha-512\nssl.ca.location = {ca}\nssl.key.password=a=b\n"
        f"ssl.endpoint.identification.algorithm=none\nclient.id=shop\n"
    )
    environ = {
        "KAFKA_SASL_USERNAME": "me",
        "KAFKA_SASL_PASSWORD": HIDDEN,
        "KAFKA_SSL_CERTIFICATE": str(certificate),
        "KAFKA_SSL_KEYFILE": str(key),
        "KAFKA_SECURITY_PROTOCOL": "sasl_ssl",  # said twice, and the same
        "KAFKA_SSL_CAFILE": "",  # as good as not set
    }
    security = read_security(SERVERS, str(config), environ)
    assert for_confluent(SERVERS, security) == {
        "bootstrap.servers": "a:9092,b:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": HIDDEN,
        "ssl.ca.location": str(ca),
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
        "ssl.key.password": "a=b",
        "ssl.endpoint.identification.algorithm": "none",
        "client.id": "shop",
    }
    assert for_kafka_python(SERVERS, security) == {
        "bootstrap_servers": ["a:9092", "b:9093"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "me",
        "sasl_plain_password": HIDDEN,
        "ssl_cafile": str(ca),
        "ssl_certfile": str(certificate),
        "ssl_keyfile": str(key),
        "ssl_password": "a=b",
        "ssl_check_hostname": False,
        "client_id": "shop",
    }


SASL = {"KAFKA_SECURITY_PROTOCOL": "SASL_SSL"}
OAUTH = SASL | {"KAFKA_SASL_MECHANISM": "OAUTHBEARER"}


@pytest.mark.parametrize(
    ("environ", "given", "told"),
    [
        (
            {"KAFKA_SECURITY_PROTOCOL": "TLS"},
            None,
            "KAFKA_SECURITY_PROTOCOL says security.protocol='TLS', which is not one of",
        ),
        (
            {"KAFKA_SASL_PASSWORD": HIDDEN},
            None,
            "KAFKA_SASL_PASSWORD sets sasl.password, which security.protocol=PLAINTEXT",
        ),
        ({"KAFKA_SSL_CAFILE": "/x"}, None, "KAFKA_SSL_CAFILE sets ssl.ca.location, which security.protocol=PLAINTEXT"),
        (SASL, None, "security.protocol=SASL_SSL needs sasl.mechanism"),
        (SASL | {"KAFKA_SASL_MECHANISM": "GSSAPI"}, None, "sasl.mechanism='GSSAPI', which is not one of"),
        (SASL | {"KAFKA_SASL_MECHANISM": "PLAIN", "KAFKA_SASL_USERNAME": "x"}, None, "PLAIN needs sasl.password"),
        (SASL | {"KAFKA_SASL_MECHANISM": "PLAIN"}, None, "PLAIN needs sasl.password and sasl.username"),
        (
            SASL | {"KAFKA_SASL_MECHANISM": "PLAIN", "KAFKA_SASL_MECHANISMS": "SCRAM-SHA-256"},
            None,
            "KAFKA_SASL_MECHANISM and KAFKA_SASL_MECHANISMS say different things about sasl.mechanism",
        ),
        (OAUTH, None, "OAUTHBEARER needs tokens"),
        (
            OAUTH | {"KAFKA_SASL_PASSWORD": HIDDEN},
            token,
            "KAFKA_SASL_PASSWORD sets sasl.password, which sasl.mechanism=OAUTHBEARER",
        ),
        (
            OAUTH | {"KAFKA_SASL_OAUTHBEARER_METHOD": "oidc"},
            token,
            "oauth_token is given, and KAFKA_SASL_OAUTHBEARER_METHOD",
        ),
        (OAUTH | {"KAFKA_SASL_OAUTHBEARER_METHOD": "oidc"}, None, "oidc needs sasl.oauthbearer.client.id"),
        (OAUTH | {"KAFKA_SASL_OAUTHBEARER_SCOPE": "x"}, token, "which only sasl.oauthbearer.method=oidc uses"),
        ({}, token, "oauth_token is given, which security.protocol=PLAINTEXT does not use"),
        (
            SASL | {"KAFKA_SASL_MECHANISM": "PLAIN", "KAFKA_SASL_USERNAME": "x", "KAFKA_SASL_PASSWORD": HIDDEN},
            token,
            "oauth_token is given, which sasl.mechanism=PLAIN does not use",
        ),
        (
            {"KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT", "KAFKA_SASL_MECHANISM": "AWS_MSK_IAM", "AWS_REGION": "x"},
            None,
            "AWS_MSK_IAM needs security.protocol=SASL_SSL",
        ),
        (SASL | {"KAFKA_SASL_MECHANISM": "AWS_MSK_IAM"}, None, "needs the cluster's region"),
        ({"KAFKA_SECURITY_PROTOCOL": "SSL", "KAFKA_SSL_KEY": "/dev/null"}, None, "names a key without a certificate"),
        (
            {"KAFKA_SECURITY_PROTOCOL": "SSL", "KAFKA_SSL_CAFILE": "/nowhere"},
            None,
            "'/nowhere', and no such file can be read",
        ),
    ],
)
def test_settings_that_contradict_or_are_missing_are_an_error_that_says_which(
    environ: Mapping[str, str], given: TokenCall | None, told: str
) -> None:
    with pytest.raises(LogError) as caught:
        read_security(SERVERS, None, environ, given)
    assert told in str(caught.value)
    assert HIDDEN not in f"{caught.value!r}"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("acks=all", "line 2, has the unknown setting 'acks'"),
        (f"sasl.pasword={HIDDEN}", "line 2, has the unknown setting 'sasl.pasword'"),
        (f"sasl.password {HIDDEN}", "line 2, is not NAME=VALUE"),
        ("bootstrap.servers=c:1", "line 2, names other servers than the URL"),
        ("security.protocol=SSL", "line 2 say different things about security.protocol"),
        (f"sasl.password={HIDDEN}", "line 2 sets sasl.password, which security.protocol=PLAINTEXT"),
    ],
)
def test_a_line_of_the_file_that_is_wrong_is_an_error_that_says_where(tmp_path: Path, line: str, told: str) -> None:
    config = tmp_path / "kafka.properties"
    config.write_text(f"security.protocol=PLAINTEXT\n{line}\n")
    with pytest.raises(LogError) as caught:
        read_security(SERVERS, str(config), {})
    assert told in str(caught.value)
    assert HIDDEN not in f"{caught.value!r}"


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="cannot be read"):
        make_driver(Address(SERVERS), environ={CONFIG_VARIABLE: str(tmp_path / "none")})


def test_tokens_come_from_the_function_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tokens_of_a_test.py").write_text(
        f"calls = iter([('{HIDDEN}', 1999), ValueError('{HIDDEN}'), '{HIDDEN}', ('', 1), ('{HIDDEN}', None)])\n"
        "def token():\n"
        "    given = next(calls)\n"
        "    if isinstance(given, Exception):\n"
        "        raise given\n"
        "    return given\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    config = tmp_path / "kafka.properties"
    config.write_text("oauth.token.provider=tokens_of_a_test:token\n")
    security = read_security(SERVERS, str(config), OAUTH)
    assert security.token is not None
    assert for_kafka_python(SERVERS, security)["sasl_oauth_token_provider"].token() == HIDDEN
    assert "oauth.token.provider" not in for_confluent(SERVERS, security)
    with pytest.raises(ValueError, match="correct horse"):
        security.token()
    for _ in range(3):
        with pytest.raises(LogError, match="tokens_of_a_test:token is to return a token and the time") as caught:
            for_confluent(SERVERS, security)["oauth_cb"]("")
        assert HIDDEN not in f"{caught.value!r}"
    assert HIDDEN not in f"{security!r}{security.token!r}{for_confluent(SERVERS, security)!r}{caplog.text}"
    assert "tokens_of_a_test:token raised ValueError" in caplog.text


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("token", "KAFKA_OAUTH_TOKEN_PROVIDER names 'token', which is not module:function"),
        ("os:system('x')", "which is not module:function"),
        ("no_such_module_here:token", "which cannot be loaded: ModuleNotFoundError"),
        ("tests.kafka.test_settings:no_token", "which cannot be loaded: AttributeError"),
        ("tests.kafka.test_settings:SERVERS", "which is no function"),
    ],
)
def test_a_name_that_gives_no_tokens_is_an_error_that_says_where(name: str, told: str) -> None:
    with pytest.raises(LogError) as caught:
        read_security(SERVERS, None, OAUTH | {"KAFKA_OAUTH_TOKEN_PROVIDER": name})
    assert told in str(caught.value)


NAMED = {"KAFKA_OAUTH_TOKEN_PROVIDER": "tests.kafka.test_settings:token"}


@pytest.mark.parametrize(
    ("environ", "given", "told"),
    [
        (
            NAMED,
            None,
            "KAFKA_OAUTH_TOKEN_PROVIDER sets oauth.token.provider, which security.protocol=PLAINTEXT does not",
        ),
        (
            NAMED | SASL | {"KAFKA_SASL_MECHANISM": "PLAIN"},
            None,
            "KAFKA_OAUTH_TOKEN_PROVIDER sets oauth.token.provider, which sasl.mechanism=PLAIN does not use",
        ),
        (NAMED | OAUTH, token, "oauth_token is given, and KAFKA_OAUTH_TOKEN_PROVIDER names another"),
        (
            NAMED | OAUTH | {"KAFKA_SASL_OAUTHBEARER_METHOD": "oidc"},
            None,
            "KAFKA_OAUTH_TOKEN_PROVIDER sets oauth.token.provider, and KAFKA_SASL_OAUTHBEARER_METHOD asks for OIDC",
        ),
    ],
)
def test_a_name_for_tokens_that_nobody_uses_or_of_two_is_an_error(
    environ: Mapping[str, str], given: TokenCall | None, told: str
) -> None:
    with pytest.raises(LogError) as caught:
        read_security(SERVERS, None, environ, given)
    assert told in str(caught.value)


def test_oidc_is_asked_for_in_the_library_that_has_it() -> None:
    environ = OAUTH | {
        "KAFKA_SASL_OAUTHBEARER_METHOD": "OIDC",
        "KAFKA_SASL_OAUTHBEARER_CLIENT_ID": "me",
        "KAFKA_SASL_OAUTHBEARER_CLIENT_SECRET": HIDDEN,
        "KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": "https://x",
    }
    security = read_security(SERVERS, None, environ)
    assert for_confluent(SERVERS, security)["sasl.oauthbearer.method"] == "oidc"
    with pytest.raises(LogError, match="use driver=confluent"):
        for_kafka_python(SERVERS, security)


def test_msk_needs_its_package() -> None:
    environ = SASL | {"KAFKA_SASL_MECHANISM": "AWS_MSK_IAM", "AWS_REGION": "eu-central-1"}
    with pytest.raises(ExtraMissing, match=r"gasoline_es\[msk\]"):
        read_security(SERVERS, None, environ)


def test_msk_shows_tokens_that_are_signed_for_its_region() -> None:
    security = Security({"security.protocol": "SASL_SSL", "sasl.mechanism": "AWS_MSK_IAM", "aws.region": "x"}, token)
    assert for_kafka_python(SERVERS, security)["sasl_mechanism"] == "OAUTHBEARER"
    assert for_kafka_python(SERVERS, security)["sasl_oauth_token_provider"].token() == "token"
    made = for_confluent(SERVERS, security)
    assert made["sasl.mechanism"] == "OAUTHBEARER"
    assert made["oauth_cb"]("") == token()
    assert "aws.region" not in made


def test_a_secret_does_not_show_itself() -> None:
    environ = SASL | {"KAFKA_SASL_MECHANISM": "PLAIN", "KAFKA_SASL_USERNAME": "me", "KAFKA_SASL_PASSWORD": HIDDEN}
    security = read_security(SERVERS, None, environ)
    assert f"{Secret(HIDDEN)}" == HIDDEN
    assert HIDDEN not in f"{security} {for_confluent(SERVERS, security)} {for_kafka_python(SERVERS, security)}"


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """A broker that wants a password, or a token, of those who come by its other listener."""
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    prefix = "listener.name.other."
    listener = OtherListener(
        "SASL_PLAINTEXT",
        settings={
            f"{prefix}sasl.enabled.mechanisms": "PLAIN",
            f"{prefix}plain.sasl.jaas.config": f'{login} user_shop="{HIDDEN}";',
        },
    )
    with own_broker(other=listener) as broker:
        yield broker.other_bootstrap


@pytest.mark.soak
def test_a_password_opens_a_cluster_and_is_told_nowhere(
    guarded: str, driver_name: str, caplog: pytest.LogCaptureFixture, kafka_namespace: str
) -> None:
    caplog.set_level(logging.DEBUG)
    environ = {
        "KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "KAFKA_SASL_MECHANISM": "PLAIN",
        "KAFKA_SASL_USERNAME": "shop",
        "KAFKA_SASL_PASSWORD": HIDDEN,
    }
    driver = make_driver(Address((guarded,), driver=driver_name), environ=environ)
    with closing(driver.admin()) as admin, closing(driver.writer(kafka_namespace, 10)) as writer:
        assert admin.cluster_id(10)
        writer.fence()
    wrong = HIDDEN + " 2"
    driver = make_driver(Address((guarded,), driver=driver_name), environ=environ | {"KAFKA_SASL_PASSWORD": wrong})
    with closing(driver.admin()) as admin, pytest.raises(BrokerError, match="no broker was reached") as caught:
        admin.cluster_id(3)
    assert HIDDEN not in f"{caught.value!r}{caught.value}"
    assert HIDDEN not in caplog.text
