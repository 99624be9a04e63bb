"""Is the transaction at its coordinator the one that a writer wrote? (rule: recorded-identity) No I/O."""

from __future__ import annotations

from airflow_kafka_eos.errors import ProducerFencedError
from airflow_kafka_eos.transaction import (
    CoordinatorState,
    PreparedTxnState,
    TopicPartition,
    TransactionDescription,
)


def confirm(
    seen: TransactionDescription | None,
    state: PreparedTxnState,
    written: frozenset[TopicPartition],
    transactional_id: str,
    *,
    shared: bool = False,
) -> None:
    """Have the coordinator say the same: still open, same identity, same partitions.

    :param shared: others write into the transaction too (scope ``load``): it may have more partitions.
    :raises ProducerFencedError: it does not.
    """
    if (
        seen is not None
        and seen.coordinator_state is CoordinatorState.ONGOING
        and seen.state == state
        and (seen.partitions == written or (shared and written <= seen.partitions))
    ):
        return
    if seen is None:
        shown = "no such transaction"
    else:
        shown = f"{seen.coordinator_state.value}, {seen.state}, {len(seen.partitions)} partitions"
    raise ProducerFencedError(
        f"the coordinator shows {shown}; written were {len(written)} partitions as {state}",
        remedy="Someone ended the transaction, or its timeout has passed; clear prepare to write again",
        transactional_id=transactional_id,
    )
