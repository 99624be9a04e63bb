"""The broker that everybody writes to: the sandbox's, with a server's JVM and its data on disk."""

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

HEAP = "2g"
#: What Kafka's own start script sets.
JVM = (
    f"-Xms{HEAP}", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)  # fmt: skip
#: Kafka's own defaults again where the sandbox has smaller ones. And a deleted topic's files go at once, not after a
#: minute, so that the disk does not fill.
SETTINGS = {"num.network.threads": "3", "num.io.threads": "8", "log.segment.delete.delay.ms": "100"}
WAIT_SECONDS = 60.0


class Broker:
    """A context manager.

    :param folder: for its data; whose it is removes it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kafka = LocalKafka(
            data_dir=self._folder, heap=HEAP, jvm_options=JVM, broker_settings=SETTINGS, log=print
        )
        self._topics = 0

    def __enter__(self) -> Self:
        self._kafka.start()
        self._meter = proc.CpuMeter(proc.find_child("kafka.Kafka"))
        self.settings = KafkaSettings.from_mapping({"bootstrap.servers": self.bootstrap_servers})
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 2})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kafka.stop()

    @property
    def version(self) -> str:
        return self._kafka.version

    @property
    def bootstrap_servers(self) -> str:
        return self._kafka.bootstrap_servers

    @property
    def cpu_seconds(self) -> float:
        """Of the broker's JVM so far."""
        return self._meter.seconds

    def create_topic(self, partitions: int) -> str:
        """A fresh topic."""
        self._topics += 1
        name = f"bench-{self._topics}"
        self._kafka.create_topic(name, partitions=partitions)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until its files are gone, so that the disk never fills."""
        for future in self._admin.delete_topics([name]).values():
            future.result()
        # it is renamed first, <topic>-<partition>.<id>-delete
        end = time.monotonic() + WAIT_SECONDS
        while any(self._data.glob(f"{name}-*")) and time.monotonic() < end:
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
        """See :mod:`bench.logcheck`."""
        return scan_topic(self._data, topic, partitions)

    @property
    def _data(self) -> Path:
        return self._folder / "node-1" / "data"
