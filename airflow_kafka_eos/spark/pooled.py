"""Which id of its slot a Spark task attempt writes with: one that nobody has initialised since the lease.

Rule: id-per-task-attempt.

``n`` begins at ``TaskContext.attemptNumber()``; a stage that is run again begins at 0 once more, so an id that was
initialised meanwhile is skipped. That is told by its state: the driver has described every id of the slot when it took
the lease up, before any task ran, and InitProducerId changes what a coordinator shows (a new id, or another epoch).

Two task attempts may choose the same id when both look before either initialises. Then the later InitProducerId fences
the earlier one's producer: that attempt fails when it writes, or when it confirms its identity before it reports; none
is reported as what it is not, for the recorded identity is what the writer's own InitProducerId was answered
(rule: recorded-identity). A transaction that was reported is never met so: a writer that comes later sees that its id
is in use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow_kafka_eos.errors import UndecidableError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.naming import AnyId, AttemptRef, PooledId, slot_prefix
from airflow_kafka_eos.transaction import CoordinatorState, PreparedTxnState, TransactionDescription

#: id -> how its coordinator showed it when the lease was taken up; ids that none knew are not in it.
Snapshot = Mapping[str, tuple[CoordinatorState, PreparedTxnState]]

#: More attempts of one task than any Spark makes (spark.task.maxFailures x spark.stage.maxConsecutiveAttempts are 16).
MOST_TRIES = 1000


def snapshot(settings: KafkaSettings, ref: AttemptRef) -> Snapshot:
    """Every id of an attempt's slot, in whatever state. Empty without a slot.

    :raises KafkaEosError: a broker did not answer: a part of it would be taken for the whole.
    """
    if ref.slot is None:
        return {}
    from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
    from airflow_kafka_eos.kafka.client.wire import Wire

    with Wire(settings) as wire:
        coordinator = Coordinator(wire, namespace=ref.load.namespace, ledger_id=ref.ledger_id)
        listed = coordinator.list_known(slot_prefix(ref.load.namespace, ref.ledger_id, ref.load.name, ref.slot))
        return as_leased(ref, coordinator.describe([name for name in listed if ref.owns(PooledId.parse(name))]))


def as_leased(ref: AttemptRef, described: Mapping[str, TransactionDescription]) -> Snapshot:
    """The same, by what was described behind the lease and before any task ran."""
    return {name: _state(found) for name, found in described.items() if ref.owns(PooledId.parse(name))}


def choose(
    ref: AttemptRef,
    spark_partition: int,
    attempt_number: int,
    at_lease: Snapshot,
    describe: Callable[[AnyId], TransactionDescription | None],
) -> tuple[AnyId, bool]:
    """The id for a task attempt to write with, and whether it is the one that a first run takes.

    :param describe: how the coordinator shows an id now; None when it knows no such id.
    :raises UndecidableError: there is none among :data:`MOST_TRIES`.
    """
    for number in range(attempt_number, attempt_number + MOST_TRIES):
        wanted = ref.task_id(spark_partition, number)
        before, now = at_lease.get(str(wanted)), describe(wanted)
        # what was open at the lease is nobody's to abort from here: InitProducerId would
        if (None if now is None else _state(now)) == before and (now is None or not now.is_open):
            return wanted, number == 0
    raise UndecidableError(
        f"{MOST_TRIES} ids of Spark partition {spark_partition} are in use since the slot was leased",
        remedy="Clear prepare: it opens a new attempt",
        **ref.ids,
    )


def _state(found: TransactionDescription) -> tuple[CoordinatorState, PreparedTxnState]:
    return found.coordinator_state, found.state
