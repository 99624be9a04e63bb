"""Cleanup costs as many requests among many foreign transactional ids as among few (FLIP-511, Kafka 4.1 on)."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from bench import cleanup

pytestmark = pytest.mark.broker


def test_the_number_of_requests_is_flat(kafka: LocalKafka, tmp_path: Path) -> None:
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    kafka.create_topic(cleanup.TOPIC, partitions=1)
    found, made = [], 0
    with connect(settings, url, cleanup.NAMESPACE) as session:
        for ids in (10, 200):
            cleanup.initialise(settings, (f"cleanup-{n}" for n in range(made, ids)))
            made = ids
            assert len(session.coordinator.list_known("cleanup-")) == ids
            ending, quiet = cleanup.listing(session, settings)
            # an EndTxn may be repeated while its coordinator is at it
            ended = {name: n for name, n in ending.by_name.items() if "EndTxn" not in name}
            found.append((ended, quiet.requests))
    assert found[0] == found[1]
    # per broker: whether a ledger that was restored has forgotten something, before it is aborted; and what is open
    assert found[0][0]["ListTransactionsRequest"] == 2
    assert cleanup.probing(settings, 10).by_name["InitProducerIdRequest"] == 10
