"""The broker that everybody writes to, or three: the sandbox's, with a server's JVM and its data on disk."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient

from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import TopicPartition
from bench import proc
from bench.logcheck import Found, scan_topic

#: In GB, by the number of brokers. Three have what Kafka's own start script gives each.
HEAPS = {1: 2, 3: 1}
#: What Kafka's own start script sets.
JVM = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)  # fmt: skip
#: Kafka's own defaults again where the sandbox has smaller ones. And a deleted topic's files go at once, not after a
#: minute, so that the disk does not fill.
SETTINGS = {
    "num.network.threads": "3", "num.io.threads": "8", "replica.fetch.wait.max.ms": "500",
    "log.segment.delete.delay.ms": "100",
}  # fmt: skip
WAIT_SECONDS = 60.0


class Broker:
    """One broker; or a cluster of three, whose topics have three copies, two of which must be in sync.

    A context manager.

    :param folder: for its data; whose it is removes it.
    :param brokers: 1 or 3.
    :ivar folder: as given.
    :ivar kafka: what runs them.
    """

    def __init__(self, folder: Path, brokers: int = 1) -> None:
        self.folder = folder
        heap = f"{HEAPS[brokers]}g"
        self.kafka = LocalKafka(
            data_dir=self.folder, brokers=brokers, heap=heap, jvm_options=(f"-Xms{heap}", *JVM),
            broker_settings=SETTINGS, log=print,
        )  # fmt: skip
        self._topics = 0

    def __enter__(self) -> Self:
        self.kafka.start()
        # by what it was started with: this process may have other brokers
        started = [str(self.folder / f"node-{node}" / "server.properties") for node in self.kafka.node_ids]
        self._meters = [proc.CpuMeter(proc.find_child(properties)) for properties in started]
        self.settings = KafkaSettings.from_mapping({"bootstrap.servers": self.bootstrap_servers})
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 2})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kafka.stop()

    @property
    def version(self) -> str:
        return self.kafka.version

    @property
    def bootstrap_servers(self) -> str:
        return self.kafka.bootstrap_servers

    @property
    def cpu_seconds(self) -> float:
        """Of all brokers' JVMs so far."""
        return sum(meter.seconds for meter in self._meters)

    def create_topic(self, partitions: int) -> str:
        """A fresh topic."""
        self._topics += 1
        name = f"bench-{self._topics}"
        self.kafka.create_topic(name, partitions=partitions)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until its files are gone everywhere, so that the disk never fills."""
        for future in self._admin.delete_topics([name]).values():
            future.result()
        # it is renamed first, <topic>-<partition>.<id>-delete
        end = time.monotonic() + WAIT_SECONDS
        while any(self.folder.glob(f"node-*/data/{name}-*")) and time.monotonic() < end:
            time.sleep(0.05)

    def wait_ended(self, topic: str, partitions: int) -> None:
        """Until no transaction holds back a reader: every marker is written."""
        tps = [TopicPartition(topic, p) for p in range(partitions)]
        end = time.monotonic() + WAIT_SECONDS
        with Wire(self.settings) as wire:
            asked = Partitions(wire)
            while asked.last_stable_offsets(tps) != asked.end_offsets(tps):
                if time.monotonic() > end:
                    return  # the check of the log tells what is missing
                time.sleep(0.02)

    def scan(self, topic: str, partitions: int) -> list[Found]:
        """What the leaders have; see :mod:`bench.logcheck`."""
        tps = [TopicPartition(topic, p) for p in range(partitions)]
        with Wire(self.settings) as wire:
            leaders = wire.leaders(tps)
        return scan_topic([self.folder / f"node-{leaders[tp]}" / "data" for tp in tps], topic)
