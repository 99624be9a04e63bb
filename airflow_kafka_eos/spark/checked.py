"""What the driver has checked, for the tasks and the manifest. No I/O, and light to import: it travels by pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_kafka_eos.kafka.writer import TopicLimits
from airflow_kafka_eos.load import WriterName
from airflow_kafka_eos.manifest import TopicInfo


@dataclass(frozen=True)
class Checked:
    """The topics as prepare saw them, what they take, by name, and how the attempt is written: decided once for it.

    ``timeout_ms`` is what coordinators will show of its transactions.
    """

    topics: Mapping[str, TopicInfo]
    limits: Mapping[str, TopicLimits]
    writer: WriterName
    two_phase_commit: bool
    timeout_ms: int

    @property
    def partitions(self) -> dict[str, int]:
        """How many each topic has."""
        return {name: info.partitions for name, info in self.topics.items()}
