"""One broker of the sandbox: its settings, its process, and the requests that tell whether it is of use.

The requests go over one plain socket at a time, for a client library would hide what is asked here: whether *this* node
answers *now*. None of them leaves a trace: no transactional id, no group, no topic of the user's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from airflow_kafka_eos.errors import ConfigurationError, SandboxError
from airflow_kafka_eos.sandbox.jars import QUICK_JVM
from airflow_kafka_eos.sandbox.keeping import HOST, signal_group, start_watched, without_frames

TRANSACTION_LOG_PARTITIONS = 4
# to stderr, with the time of day
LOGGING = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
)
KAFKA_MAIN = "kafka.Kafka"
STORAGE_TOOL = "kafka.tools.StorageTool"
GONE_SECONDS = 10.0
STILL_SECONDS = 10.0
#: stopped, dead, or waited for: what runs no more
STILL = frozenset("TXZ")
REQUEST_SECONDS = 5.0
GROUP, TRANSACTION = 0, 1
# DescribeTransactions of an unknown id: the coordinator has loaded and looked it up
OK, TRANSACTIONAL_ID_NOT_FOUND = 0, 105
TOPIC_ALREADY_EXISTS = 36
# the controller cannot be reached, is being elected, or does not know enough brokers yet
NOT_CONTROLLER, REQUEST_TIMED_OUT, INVALID_REPLICATION_FACTOR, BROKER_NOT_AVAILABLE = 41, 7, 38, 8


@dataclass(frozen=True)
class Node:
    """One broker that is also a controller (KRaft combined mode). Ports are TCP ports on loopback."""

    id: int
    port: int
    controller_port: int
    folder: Path

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return f"{HOST}:{self.port}"

    @property
    def data(self) -> Path:
        """Kafka's ``log.dirs``."""
        return self.folder / "data"

    @property
    def properties(self) -> Path:
        return self.folder / "server.properties"

    @property
    def log(self) -> Path:
        return self.folder / "broker.log"


def server_settings(node: Node, nodes: Sequence[Node], overrides: Mapping[str, str]) -> dict[str, str]:
    """Settings of one node; ``overrides`` win. Kafka versions ignore names that they do not know."""
    copies = min(3, len(nodes))
    settings = {
        "process.roles": "broker,controller",
        "node.id": str(node.id),
        "controller.quorum.voters": ",".join(f"{n.id}@{HOST}:{n.controller_port}" for n in nodes),
        "listeners": f"CLIENT://{node.address},CONTROLLER://{HOST}:{node.controller_port}",
        "advertised.listeners": f"CLIENT://{node.address}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(node.data),
        # KIP-939: both are needed before a broker takes Enable2Pc
        "transaction.two.phase.commit.enable": "true",
        "unstable.api.versions.enable": "true",
        # a few internal partitions only, so that coordinators load at once
        "transaction.state.log.num.partitions": str(TRANSACTION_LOG_PARTITIONS),
        "transaction.state.log.replication.factor": str(copies),
        "transaction.state.log.min.isr": str(max(1, copies - 1)),
        "offsets.topic.num.partitions": "2",
        "offsets.topic.replication.factor": str(copies),
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": str(copies),
        "share.coordinator.state.topic.min.isr": str(max(1, copies - 1)),
        "default.replication.factor": str(copies),
        "min.insync.replicas": str(max(1, copies - 1)),
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        # a timed out transaction is aborted within a second of its timeout, not within ten
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        # a killed broker is let in again only when its old session has timed out: 3 s, not 9
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        # followers answer quickly, so acks=all and commit markers do on three brokers
        "replica.fetch.wait.max.ms": "100",
        "num.network.threads": "2",
        "num.io.threads": "4",
        # 128 MB of heap otherwise
        "log.cleaner.dedupe.buffer.size": str(8 << 20),
    }
    return {**settings, **overrides}


def properties_text(settings: Mapping[str, str]) -> str:
    """A Java properties file: backslashes doubled, line breaks escaped."""
    escaped = ((key, value.replace("\\", "\\\\").replace("\n", "\\n")) for key, value in settings.items())
    return "".join(f"{key}={value}\n" for key, value in escaped)


def java_command(java: str, jars: Path, main: str, options: Sequence[str] = ()) -> list[str]:
    """The command that runs one of Kafka's main classes."""
    return [java, *options, *LOGGING, "-cp", f"{jars}/*", main]


def format_storage(
    java: str, jars: Path, nodes: Sequence[Node], cluster_id: str, features: Mapping[str, int] = MappingProxyType({})
) -> None:
    """Format what is not formatted yet (KIP-631), all nodes at a time.

    :param features: levels of the cluster's features (KIP-1022); the others get the version's own.
    :raises SandboxError: Kafka refuses.
    """
    runs = []
    for node in nodes:
        if (node.data / "meta.properties").exists():
            continue
        command = java_command(java, jars, STORAGE_TOOL, QUICK_JVM)
        # with "=": one in 64 random ids begins with a dash, and would be taken for an option
        command += ["format", f"--cluster-id={cluster_id}", "--config", str(node.properties)]
        for name, level in features.items():
            command += ["--feature", f"{name}={level}"]
        runs.append(
            (node, subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        )
    said = [(node, run.communicate()[0], run.returncode) for node, run in runs]
    for node, text, code in said:
        if code != 0:
            raise SandboxError(
                f"Kafka could not format the storage of node {node.id} (exit code {code}). It said:\n"
                + without_frames(text, 12) + "\n",
                remedy="Look at the broker settings and at the data folder",
            )  # fmt: skip


class BrokerProcess:
    """A running broker in its own process group, which dies with the process that started it."""

    def __init__(self, node: Node, command: Sequence[str]) -> None:
        self.node = node
        self._process = start_watched(command, node.log)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """SIGKILL the group, and wait until all of it is gone: the JVM dies a moment after its watcher."""
        signal_group(self._process, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + GONE_SECONDS  # bounded: an init that reaps nobody keeps a zombie forever
        while self._group_exists() and time.monotonic() < deadline:
            time.sleep(0.005)

    def stop(self, seconds: float) -> None:
        """SIGTERM, and SIGKILL when that takes longer than ``seconds``."""
        signal_group(self._process, signal.SIGTERM)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def terminate(self) -> None:
        """SIGTERM without waiting, so that several can end at a time."""
        signal_group(self._process, signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP the group, and wait until it stands still. Its watcher too, which finds a dead parent later."""
        signal_group(self._process, signal.SIGSTOP)
        # its threads run on for milliseconds, in which a broker answers a dozen requests
        deadline = time.monotonic() + STILL_SECONDS
        while self._runs_on() and time.monotonic() < deadline:
            time.sleep(0.001)

    def resume(self) -> None:
        """SIGCONT the group."""
        signal_group(self._process, signal.SIGCONT)

    def _runs_on(self) -> bool:
        """Whether a thread of the group has not stopped yet. Not known without Linux's /proc: False."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ends meanwhile
                if os.getpgid(int(process.name)) == self._process.pid:
                    states = {_state(thread) for thread in (process / "task").iterdir()}
                    if not states <= STILL:
                        return True
        return False

    def _group_exists(self) -> bool:
        try:
            os.killpg(self._process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def _state(thread: Path) -> str:
    """Its state, as ps shows it; "X", dead, where it ends meanwhile."""
    try:
        return (thread / "stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return "X"


class TopicExists(ConfigurationError):
    """There is a topic of that name."""


def ask(address: str, request: Any) -> Any:
    """Send one kafka-python request message to ``host:port`` and decode its answer.

    :raises OSError: no answer.
    """
    host, port = address.rsplit(":", 1)
    request.with_header(correlation_id=1, client_id="airflow-kafka-eos-sandbox")
    with socket.create_connection((host, int(port)), timeout=REQUEST_SECONDS) as connection:
        connection.sendall(request.encode(header=True, framed=True))
        (size,) = struct.unpack(">i", _read(connection, 4))
        answer = _read(connection, size)
    return request.header.get_response_class().decode(answer, header=True)


def _read(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionResetError("the broker closed the connection")
        parts += part
    return bytes(parts)


def why_not_ready(addresses: Sequence[str], transaction_log_partitions: int) -> str | None:
    """What is still missing before transactions work, or None when nothing is.

    Ready means: every node knows all the others, every partition of the transaction log has a coordinator that
    has loaded it, the group coordinator is there, and every node has producer ids to hand out.

    :param addresses: ``host:port`` of every node that should be up.
    :raises OSError: one of them does not answer at all.
    """
    checks = (_all_registered, _transaction_coordinators, _group_coordinator, _producer_ids)
    found = (check(addresses, transaction_log_partitions) for check in checks)
    return next(filter(None, found), None)


def _all_registered(addresses: Sequence[str], partitions: int) -> str | None:
    for address in addresses:
        known = _brokers(address)
        missing = [other for other in addresses if other not in known.values()]
        if missing:
            return f"{address} does not know {', '.join(missing)} yet"
    return None


def _brokers(address: str) -> dict[int, str]:
    from kafka.protocol.metadata import MetadataRequest

    answer = ask(address, MetadataRequest(topics=[], allow_auto_topic_creation=False, version=5))
    return {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}


def _transaction_coordinators(addresses: Sequence[str], partitions: int) -> str | None:
    from kafka.protocol.admin import DescribeTransactionsRequest

    # an id of one letter hashes to its code point (Java's String.hashCode), so these hit every partition once
    for letter in map(chr, range(ord("a"), ord("a") + partitions)):
        coordinator, code = _coordinator(addresses[0], letter, TRANSACTION)
        if coordinator is None:
            return f"no transaction coordinator for partition of {letter!r} (error {code})"
        state = ask(coordinator, DescribeTransactionsRequest(transactional_ids=[letter], version=0))
        code = state.transaction_states[0].error_code
        if code not in (OK, TRANSACTIONAL_ID_NOT_FOUND):
            return f"the transaction coordinator at {coordinator} is not ready (error {code})"
    return None


def _group_coordinator(addresses: Sequence[str], partitions: int) -> str | None:
    coordinator, code = _coordinator(addresses[0], "a", GROUP)
    return None if coordinator else f"no group coordinator (error {code})"


def _coordinator(address: str, key: str, key_type: int) -> tuple[str | None, int]:
    from kafka.protocol.metadata import FindCoordinatorRequest

    answer = ask(address, FindCoordinatorRequest(key=key, key_type=key_type, version=2))
    return (f"{answer.host}:{answer.port}" if answer.error_code == OK else None), answer.error_code


def _producer_ids(addresses: Sequence[str], partitions: int) -> str | None:
    from kafka.protocol.producer import InitProducerIdRequest

    for address in addresses:
        answer = ask(
            address, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000, version=4)
        )
        if answer.error_code != OK:
            return f"{address} has no producer ids yet (error {answer.error_code})"
    return None


def create_topic(
    addresses: Sequence[str], name: str, partitions: int, replication: int, config: Mapping[str, str],
    wait: Callable[[Callable[[], str | None]], None],
) -> None:  # fmt: skip
    """Create a topic and wait until every node names a leader for all of its partitions.

    :param wait: calls what it is given until that returns None (what is missing), or raises.
    :raises TopicExists: there is one of that name.
    :raises ConfigurationError: the broker refuses the topic.
    """
    wait(lambda: _try_create(addresses[0], name, partitions, replication, config))
    wait(lambda: next(filter(None, (_leaderless(address, name, partitions) for address in addresses)), None))


def _try_create(
    address: str, name: str, partitions: int, replication: int, config: Mapping[str, str]
) -> str | None:
    from kafka.protocol.admin import CreateTopicsRequest

    kind = CreateTopicsRequest.CreatableTopic
    configs = [kind.CreatableTopicConfig(name=key, value=value) for key, value in config.items()]
    topic = kind(
        name=name, num_partitions=partitions, replication_factor=replication, assignments=[], configs=configs
    )
    answer = ask(
        address, CreateTopicsRequest(topics=[topic], timeout_ms=5000, validate_only=False, version=4)
    ).topics[0]
    if answer.error_code == OK:
        return None
    said = f"topic {name!r} was refused with error {answer.error_code}: {answer.error_message}"
    if answer.error_code in (NOT_CONTROLLER, REQUEST_TIMED_OUT, BROKER_NOT_AVAILABLE):
        return said
    if answer.error_code == TOPIC_ALREADY_EXISTS:
        raise TopicExists(said, remedy="Use another name")
    raise ConfigurationError(said, remedy="Look at its partitions and config")


def _leaderless(address: str, name: str, partitions: int) -> str | None:
    from kafka.protocol.metadata import MetadataRequest

    wanted = [MetadataRequest.MetadataRequestTopic(name=name)]
    answer = ask(address, MetadataRequest(topics=wanted, allow_auto_topic_creation=False, version=5)).topics[
        0
    ]
    led = sum(partition.error_code == OK and partition.leader_id >= 0 for partition in answer.partitions)
    return None if led == partitions else f"{address} sees {led} of {partitions} leaders of topic {name!r}"
