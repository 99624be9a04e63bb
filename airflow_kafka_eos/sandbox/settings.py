"""What a sandbox broker is told: its server.properties, as a pure function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
TRANSACTION_LOG_PARTITIONS = 4


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
