"""The version of a Produce request is chosen when it is sent, by what that very connection's broker offers."""

from __future__ import annotations

import uuid

import pytest
from kafka.errors import IncompatibleBrokerVersion
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS, BrokerVersionData

from airflow_kafka_eos.kafka.client.connections import RequestInPieces
from airflow_kafka_eos.kafka.producer.produce_request import produce_request
from airflow_kafka_eos.kafka.records.batch import SealedBatch
from airflow_kafka_eos.transaction import TopicPartition

TOPIC_ID = uuid.UUID(int=0x0102030405060708090A0B0C0D0E0F10)


def request(versions: tuple[int, int]) -> RequestInPieces:
    batch = SealedBatch(TopicPartition("orders", 0), 0, 0, 1, [b"the batch"], 9)
    return produce_request(
        [batch], transactional_id="id", versions=versions, timeout_ms=1, topic_ids={"orders": TOPIC_ID}
    )


@pytest.mark.parametrize(("broker", "version"), [((4, 1), 13), ((4, 0), 12)])
def test_topics_are_named_by_id_where_the_broker_knows_that(broker: tuple[int, int], version: int) -> None:
    made = request((12, 13))
    assert made.API_VERSION is None
    made.API_VERSION = BrokerVersionData(api_versions=BROKER_API_VERSIONS[broker]).api_version(made)
    assert version == made.API_VERSION
    made.with_header(7, "client")
    frame = b"".join(made.encode(framed=True, header=True))
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    assert frame[4:8] == bytes([0, 0, 0, version]) and b"the batch" in frame
    assert (TOPIC_ID.bytes in frame, b"orders" in frame) == (version == 13, version == 12)


def test_a_broker_that_has_none_of_them_gets_none() -> None:
    with pytest.raises(IncompatibleBrokerVersion, match=r"client \[12-13\] and broker \[0-11\]"):
        BrokerVersionData(api_versions=BROKER_API_VERSIONS[3, 9]).api_version(request((12, 13)))
