"""Real Kafka brokers for tests: one that all tests of a run share, and brokers of a test's own that can be killed.

The shared one is the one that ``GASOLINE_KAFKA_BOOTSTRAP`` names, else a container where a Docker daemon answers, else a
process of Java, whose programs Maven brings. Brokers of a test's own are always processes of Java.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.kafka_jars import bring_jars, jars

BOOTSTRAP_VARIABLE = "GASOLINE_KAFKA_BOOTSTRAP"
_START_LIMIT_S = 60
_KEEPER = Path(__file__).with_name("kafka_keeper.py")
_IMAGE = "confluentinc/cp-kafka:8.0.0"

# Less memory and a quicker start, for brokers that live for seconds.
_JAVA = ("java", "-Xmx384m", "-Xss512k", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
_LOGGING = """\
status=error
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{1}: %m%n
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
"""
_SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.dedupe.buffer.size": "8388608",
    "log.index.size.max.bytes": "1048576",
    "log.segment.delete.delay.ms": "1000",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    # That a broker is gone is noticed soon.
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "2000",
}


def why_no_java() -> str | None:
    """Return what is missing for brokers that are processes of Java, and how to get it; None: nothing."""
    missing = [name for name in ("java", "mvn") if shutil.which(name) is None]
    if jars() is not None:
        missing = [name for name in missing if name != "mvn"]
    if not missing:
        return None
    return (
        f"these tests need a Kafka broker, and {' and '.join(missing)} to start one is not there: "
        f"`apt-get install default-jre-headless maven` (`make test` does it for root)"
    )


def free_port() -> int:
    """Return a port that is free now, and that the system gives nobody by itself: a broker finds it again when restarted."""
    for port in random.sample(range(20_000, 32_000), 200):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise RuntimeError("no port between 20,000 and 32,000 is free")


def living_brokers(bootstrap: str, timeout_s: float = 2.0) -> set[int]:
    """Return the ids of the brokers that a broker says are alive; none: it does not answer yet."""
    host, _, port = bootstrap.rpartition(":")
    # Metadata, version 1, of no topic: api key, version, correlation id, client id; an empty array.
    request = struct.pack(">hhih4si", 3, 1, 7, 4, b"test", 0)
    try:
        with socket.create_connection((host, int(port)), timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            (length,) = struct.unpack(">i", _exactly(connection, 4))
            answer = _exactly(connection, length)
    except OSError:
        return set()
    (count,) = struct.unpack_from(">i", answer, 4)
    found: set[int] = set()
    at = 8
    for _ in range(count):
        node, host_bytes = struct.unpack_from(">ih", answer, at)
        at += 6 + host_bytes + 4
        (rack_bytes,) = struct.unpack_from(">h", answer, at)
        at += 2 + max(rack_bytes, 0)
        found.add(node)
    return found


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("the broker closed the connection")
        data += more
    return data


@dataclass(frozen=True, slots=True)
class OtherListener:
    """Another way to a broker, beside the one that it has anyway: by a proxy, or one that wants to be shown a password."""

    protocol: str = "PLAINTEXT"
    advertised_port: int | None = None
    """Where clients are sent that come this way; None: to the port that it listens on."""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the broker, with its names."""


@dataclass(slots=True)
class Broker:
    """A broker of its own: a process of Java on a folder and a port, which both stay when it is killed and started again."""

    folder: Path
    """Of all the brokers that end together."""
    node: int
    port: int
    other_port: int | None = None
    """Of the other listener, if there is one."""
    pid: int | None = field(default=None, init=False)

    @property
    def bootstrap(self) -> str:
        """Its address, as clients are given it."""
        return f"127.0.0.1:{self.port}"

    @property
    def other_bootstrap(self) -> str:
        """Its address by the other listener."""
        return f"127.0.0.1:{self.other_port}"

    @property
    def log_text(self) -> str:
        """What it has said so far, warnings and worse."""
        return (self.folder / f"broker-{self.node}.log").read_text(errors="replace")

    def start(self, *, wait: bool = True) -> None:
        """Start it, anew or again, and wait until it answers. Raises: RuntimeError, with what it said."""
        assert self.pid is None, "the broker runs"
        settings = self.folder / f"broker-{self.node}.properties"
        command = [*_JAVA, f"-Dlog4j2.configurationFile={self.folder}/logging.properties"]
        command += ["-cp", f"{bring_jars()}/*", "kafka.Kafka", str(settings)]
        # Noted before it is one: the keeper ends every process that is noted.
        script = 'echo >"$0/pids/$$" && exec "$@"'
        log = self.folder / f"broker-{self.node}.log"
        self.pid = os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", script, str(self.folder), *command],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self, brokers: int = 1) -> None:
        """Wait until it knows of so many living brokers. Raises: RuntimeError, with what it said."""
        deadline = time.monotonic() + _START_LIMIT_S
        while len(living_brokers(self.bootstrap)) < brokers:
            if self._ended() or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the broker at {self.bootstrap} did not start:\n{self.log_text[-4000:]}")
            time.sleep(0.05)

    def _ended(self) -> bool:
        if self.pid is not None and os.waitpid(self.pid, os.WNOHANG)[0]:
            self._forget()
        return self.pid is None

    def _forget(self) -> None:
        (self.folder / "pids" / str(self.pid)).unlink(missing_ok=True)
        self.pid = None

    def kill(self) -> None:
        """End it as a power failure would (SIGKILL). A broker that does not run: does nothing."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in good order (SIGTERM)."""
        self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """Hold it where it is (SIGSTOP): its connections stay open, and it answers nothing."""
        assert self.pid is not None
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on (SIGCONT)."""
        assert self.pid is not None
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, sign: signal.Signals) -> None:
        if self.pid is None:
            return
        os.kill(self.pid, sign)
        os.waitpid(self.pid, 0)
        self._forget()


def _write_settings(
    brokers: Sequence[Broker], controllers: dict[int, int], other: OtherListener | None = None, **extra: str
) -> None:
    """Write what each broker is started with, and format its folder."""
    copies = str(len(brokers))
    voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in controllers.items())
    folder = brokers[0].folder
    (folder / "pids").mkdir(exist_ok=True)
    (folder / "logging.properties").write_text(_LOGGING)
    formatting: list[subprocess.Popen[bytes]] = []
    for broker in brokers:
        settings = {
            **_SETTINGS,
            "node.id": str(broker.node),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://{broker.bootstrap},CONTROLLER://127.0.0.1:{controllers[broker.node]}",
            "advertised.listeners": f"PLAINTEXT://{broker.bootstrap}",
            "log.dirs": f"{folder}/data-{broker.node}",
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": str(min(2, len(brokers))),
            "default.replication.factor": copies,
            "min.insync.replicas": str(min(2, len(brokers))),
            **extra,
        }
        if other is not None:
            settings["listeners"] += f",OTHER://127.0.0.1:{broker.other_port}"
            settings["advertised.listeners"] += f",OTHER://127.0.0.1:{other.advertised_port or broker.other_port}"
            settings["listener.security.protocol.map"] += f",OTHER:{other.protocol}"
            settings.update(other.settings)
        path = folder / f"broker-{broker.node}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command = [*_JAVA, "-cp", f"{bring_jars()}/*", "kafka.tools.StorageTool", "format"]
        command += ["-t", "Z2Fzb2xpbmVfZXMtdGVzdA", "-c", str(path)]
        formatting.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    for process in formatting:
        said, _ = process.communicate(timeout=_START_LIMIT_S)
        if process.returncode != 0:
            raise RuntimeError(f"a broker's folder cannot be formatted: {said.decode(errors='replace')}")


def _keep(folder: Path, users: Path, address: Path | None = None) -> None:
    """Start the process that ends the folder's brokers once nobody holds ``users``."""
    command = [sys.executable, "-I", str(_KEEPER), str(folder), str(users)]
    command += [str(address)] if address is not None else []
    outputs = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1, 2)]
    os.posix_spawn(sys.executable, command, os.environ, file_actions=outputs, setsid=True)


def _new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="gasoline-kafka-", dir="/tmp"))
    (folder / "pids").mkdir()
    (folder / "containers").mkdir()
    return folder


@contextmanager
def cluster(count: int = 1, *, other: OtherListener | None = None, **extra: str) -> Generator[list[Broker]]:
    """Run so many brokers of one's own, which can be killed and started again; with three, one may be dead.

    ``other``: another listener of each. ``extra``: settings of the brokers, with ``_`` for ``.``.

    Skips the test where there is no Java; in CI it fails.
    """
    why = why_no_java()
    if why is not None:
        _give_up(why)
    folder = _new_folder()
    users = folder / "users"
    brokers = [
        Broker(folder, node, free_port(), None if other is None else free_port()) for node in range(1, count + 1)
    ]
    with users.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        _keep(folder, users)
        try:
            more = {name.replace("_", "."): value for name, value in extra.items()}
            _write_settings(brokers, {broker.node: free_port() for broker in brokers}, other, **more)
            for broker in brokers:
                broker.start(wait=False)
            for broker in brokers:
                broker.wait_until_ready(count)
            yield brokers
        finally:
            for broker in brokers:
                broker.kill()
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def own_broker(*, other: OtherListener | None = None, **extra: str) -> Generator[Broker]:
    """Run one broker of one's own (see :func:`cluster`)."""
    with cluster(1, other=other, **extra) as (broker,):
        yield broker


@contextmanager
def shared(folder: Path) -> Generator[str]:
    """Yield the address of the broker that all processes share that name this folder; the first of them starts it.

    It ends with the last of them, however that ends. Skips the test where there can be none; in CI it fails.
    """
    given = os.environ.get(BOOTSTRAP_VARIABLE)
    if given:
        if not living_brokers(given.partition(",")[0], 10):
            pytest.fail(f"{BOOTSTRAP_VARIABLE} is {given!r}, and no broker answers there")
        yield given
        return
    folder.mkdir(exist_ok=True)
    users, address = folder / "users", folder / "address"
    with users.open("a") as held, (folder / "starting").open("a") as starting:
        fcntl.flock(held, fcntl.LOCK_SH)  # waits while the broker of those before is being ended
        fcntl.flock(starting, fcntl.LOCK_EX)
        if not address.exists():
            started = _start_shared(users, address)
            address.with_suffix(".new").write_text(started)
            address.with_suffix(".new").rename(address)
        fcntl.flock(starting, fcntl.LOCK_UN)
        yield address.read_text()


def _start_shared(users: Path, address: Path) -> str:
    docker = _docker_answers()
    why = why_no_java()
    if why is not None and not docker:
        _give_up(why)
    folder = _new_folder()
    _keep(folder, users, address)
    if docker:
        try:
            return _start_container(folder)
        except Exception:  # its image, say, can be had from nowhere
            if why is not None:
                raise
    broker = Broker(folder, 1, free_port())
    _write_settings([broker], {1: free_port()})
    broker.start()
    return broker.bootstrap


def _docker_answers() -> bool:
    """Whether a Docker daemon answers; which is not asked where there is no way to one."""
    if not os.environ.get("DOCKER_HOST") and not Path("/var/run/docker.sock").exists():
        return False
    try:
        import docker  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]

        docker.from_env(timeout=5).ping()  # pyright: ignore[reportUnknownMemberType]
    except Exception:  # DockerException, and what its transport raises
        return False
    return True


def _start_container(folder: Path) -> str:
    """Start a broker in a container that the keeper of the folder removes."""
    from testcontainers.community.kafka import KafkaContainer
    from testcontainers.core.config import testcontainers_config

    # Its own reaper would end the container with this process, and others use it too.
    testcontainers_config.ryuk_disabled = True
    (folder / "containers" / folder.name).touch()
    container = KafkaContainer(_IMAGE).with_kraft().with_name(folder.name)
    container.with_env("KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR", "1")
    container.with_env("KAFKA_TRANSACTION_STATE_LOG_MIN_ISR", "1")
    container.with_env("KAFKA_AUTO_CREATE_TOPICS_ENABLE", "false")
    container.with_env("KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS", "500")
    container.with_env("KAFKA_TRANSACTION_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS", "500")
    container.with_env("KAFKA_LOG_CLEANER_BACKOFF_MS", "500")
    container.start(timeout=_START_LIMIT_S)
    return str(container.get_bootstrap_server())


def _give_up(why: str) -> None:
    """Skip the test; in CI, where the log must have been tested, fail it."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(f"{why}; or set {BOOTSTRAP_VARIABLE} to the address of a broker")


def _prepare() -> int:
    """Bring what is missing, as far as that can be had without installing anything; return whether something still is."""
    if os.environ.get(BOOTSTRAP_VARIABLE):
        return 0
    if why_no_java() is not None:
        return 0 if _docker_answers() and not os.environ.get("CI") else 1
    bring_jars()
    return 0


if __name__ == "__main__":
    sys.exit(_prepare())
