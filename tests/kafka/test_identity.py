"""What is reported must be what the coordinator shows: each of its parts counts. No broker needed.

Rule: recorded-identity.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kafka_eos.errors import ProducerFencedError
from airflow_kafka_eos.kafka.producer.interface import confirm
from airflow_kafka_eos.transaction import (
    CoordinatorState,
    PreparedTxnState,
    TopicPartition,
    TransactionDescription,
)

STATE = PreparedTxnState(7, 3)
WRITTEN = frozenset({TopicPartition("t", 0), TopicPartition("t", 1)})
MORE = WRITTEN | {TopicPartition("t", 2)}
SEEN = TransactionDescription("an id", CoordinatorState.ONGOING, STATE, 60_000, 1, WRITTEN)


def test_the_same_is_confirmed() -> None:
    confirm(SEEN, STATE, WRITTEN, "an id")
    confirm(replace(SEEN, partitions=MORE), STATE, WRITTEN, "an id", shared=True)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "seen",
    [
        None,
        *(replace(SEEN, coordinator_state=s) for s in CoordinatorState if s is not CoordinatorState.ONGOING),
        replace(SEEN, state=PreparedTxnState(7, 4)),
        replace(SEEN, state=PreparedTxnState(8, 3)),
        replace(SEEN, partitions=frozenset({TopicPartition("t", 0)})),
    ],
)
def test_anything_else_is_not(seen: TransactionDescription | None, shared: bool) -> None:
    with pytest.raises(ProducerFencedError, match="an id"):
        confirm(seen, STATE, WRITTEN, "an id", shared=shared)


def test_a_transaction_of_ones_own_has_no_partition_of_others() -> None:
    with pytest.raises(ProducerFencedError, match="3 partitions; written were 2"):
        confirm(replace(SEEN, partitions=MORE), STATE, WRITTEN, "an id")
