"""An abort marker past the coordinator needs a right of its own, and the error names it."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from airflow_kafka_eos.errors import AccessError
from airflow_kafka_eos.kafka.admin.open_producers import OpenProducer, write_marker
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.transaction import TopicPartition
from tests.kafka.writers_support import granted
from tests.secured import Secured


@pytest.mark.broker
def test_without_alter_on_the_cluster_nothing_is_written_and_the_right_is_named(secured: Secured) -> None:
    producer = OpenProducer(TopicPartition("orders", 0), 1_000_000, 0, 0, 0, 0)
    servers = secured.plain.bootstrap_servers
    rights = (ResourceType.TOPIC, "orders", AclOperation.READ)
    with (
        Wire(secured.login(), timeout_s=20) as wire,
        granted(servers, "User:alice", rights),
        pytest.raises(AccessError, match="refused ALTER on Cluster"),
    ):
        write_marker(wire, producer, Verdict.ABORT)
