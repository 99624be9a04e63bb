"""When is what a partition has open one that no coordinator will end? Pure: what both sides showed, and the verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kafka_eos.kafka.admin.open_producers import OpenProducer, why_hanging
from airflow_kafka_eos.kafka.admin.partitions import OpenTransaction
from airflow_kafka_eos.protocol.stages.visible import Lag
from airflow_kafka_eos.transaction import (
    CoordinatorState,
    PreparedTxnState,
    TopicPartition,
    TransactionDescription,
)

HERE, THERE = TopicPartition("orders", 0), TopicPartition("orders", 1)
PRODUCER = OpenProducer(HERE, 7, 3, 0, 100, 1_700_000_000_000)
SEEN = TransactionDescription(
    "id", CoordinatorState.ONGOING, PreparedTxnState(7, 3), 60_000, 1_700_000_000_000, frozenset({HERE})
)


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (None, "no coordinator knows its producer id"),
        (SEEN, ""),
        (replace(SEEN, partitions=frozenset({HERE, THERE})), ""),
        (replace(SEEN, partitions=frozenset({THERE})), "does not have this partition"),
        (replace(SEEN, coordinator_state=CoordinatorState.COMPLETE_COMMIT), "its coordinator shows CompleteCommit"),
        (replace(SEEN, coordinator_state=CoordinatorState.COMPLETE_ABORT), "its coordinator shows CompleteAbort"),
        (replace(SEEN, coordinator_state=CoordinatorState.EMPTY), "its coordinator shows Empty"),
        # the markers are on their way; with transaction version 2 under the next epoch
        (replace(SEEN, coordinator_state=CoordinatorState.PREPARE_COMMIT), ""),
        (replace(SEEN, coordinator_state=CoordinatorState.PREPARE_ABORT, state=PreparedTxnState(7, 4)), ""),
        (replace(SEEN, state=PreparedTxnState(7, 4)), "its coordinator has 7:4 open, not 7:3"),
        # what a newer broker calls a state that we do not know is no reason to end anything
        (replace(SEEN, coordinator_state=CoordinatorState.UNKNOWN, partitions=frozenset()), ""),
    ],
)  # fmt: skip
def test_why_it_is_hanging(seen: TransactionDescription | None, why: str) -> None:
    found = why_hanging(PRODUCER, seen)
    assert (why in found) if why else found == ""


def test_who_holds_readers_back_without_an_id_may_be_another_application_and_is_not_called_hanging() -> None:
    text = str(Lag(HERE, 100, 200, (OpenTransaction(7, 3, 100, None), OpenTransaction(8, 0, 120, "billing"))))
    assert "producer 7:3 (its id is not shown: another application's, or hanging;" in text
    assert "airflow-kafka-eos transactions hanging --topic orders" in text and text.endswith(", billing")
