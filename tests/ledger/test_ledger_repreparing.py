"""A repair that Spark has prepared enters the decision under the id of one of its task attempts.

Rule: repair-replaces-lost-row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.ledger import Ledger, TransactionRow
from airflow_kafka_eos.ledger.rows import RepairRow, RepairState
from airflow_kafka_eos.load import LoadState
from airflow_kafka_eos.manifest import PartitionWrites
from airflow_kafka_eos.naming import IdRole, TransactionalId
from airflow_kafka_eos.transaction import Outcome, PreparedTransaction, PreparedTxnState
from tests.ledger.ledger_support import LOAD, OTHER, commit

STATE = PreparedTxnState(2000, 0)


def lost_and_opened(ledger: Ledger) -> tuple[TransactionRow, RepairRow]:
    commit(ledger)
    lost = ledger.transactions(LOAD, 1)[0]
    name = lost.transaction.transactional_id
    ledger.record_outcomes(LOAD, 1, {name: Outcome.LOST})
    row = ledger.open_repair(LOAD, 1, name, opened_by="prepare")
    assert row is not None and lost.spark_partition is not None
    return lost, row


def moved(lost: TransactionRow) -> tuple[PartitionWrites, ...]:
    return tuple(replace(w, first_offset=100, last_offset=109, oldest_timestamp_ms=5) for w in lost.writes)


def adopt(ledger: Ledger, row: RepairRow, name: object, writes: Sequence[PartitionWrites]) -> RepairRow:
    return ledger.adopt(LOAD, row.number, PreparedTransaction(str(name), STATE), writes)


def test_the_task_attempts_id_stands_in_the_lost_ones_place(ledger: Ledger) -> None:
    lost, row = lost_and_opened(ledger)
    name = TransactionalId(LOAD, ledger.ledger_id, row.number, lost.spark_partition, 17)
    for _ in range(2):  # as when the answer was lost
        done = adopt(ledger, row, name, moved(lost))
        assert (done.state, done.transactional_id) == (RepairState.ADOPTED, str(name))
    assert ledger.repairs(LOAD) == [done]
    new = next(t for t in ledger.transactions(LOAD, 1) if t.transaction.transactional_id == str(name))
    assert (new.spark_partition, new.writes, new.outcome) == (lost.spark_partition, moved(lost), None)
    assert ledger.is_decided_commit(new.transaction)
    # one of it is adopted, and no other
    with pytest.raises(ConfigurationError, match="is not the transaction of repair"):
        adopt(ledger, row, replace(name, task_attempt_id=18), moved(lost))


def test_ids_of_others_are_not_adopted(ledger: Ledger) -> None:
    lost, row = lost_and_opened(ledger)
    own = TransactionalId(LOAD, ledger.ledger_id, row.number, lost.spark_partition, 17)
    for foreign in (
        replace(own, attempt=row.number + 1),
        replace(own, attempt=1),
        replace(own, load=OTHER),
        replace(own, ledger_id="0" * 10),
        replace(own, spark_partition=None, task_attempt_id=None, role=IdRole.PROBE),
        "somebody else's",
    ):
        with pytest.raises(ConfigurationError, match="is not the transaction of repair"):
            adopt(ledger, row, foreign, moved(lost))
    assert ledger.transactions(LOAD, 1)[0].outcome is Outcome.LOST


def test_only_the_same_spark_partition_counts_and_digests_enter(ledger: Ledger) -> None:
    lost, row = lost_and_opened(ledger)
    assert lost.spark_partition is not None
    own = TransactionalId(LOAD, ledger.ledger_id, row.number, lost.spark_partition, 17)
    first, *more = moved(lost)
    for writes in (
        [replace(first, digest="f" * 32), *more],
        [replace(first, records=first.records + 1), *more],
        [replace(first, partition=first.partition + 5), *more],
        more,
        [first, *more, replace(first, partition=first.partition + 5)],
    ):
        with pytest.raises(ConfigurationError, match="is not what"):
            adopt(ledger, row, own, writes)
    with pytest.raises(ConfigurationError, match="is not what"):
        adopt(ledger, row, replace(own, spark_partition=lost.spark_partition + 1), moved(lost))
    assert [r.state for r in ledger.repairs(LOAD)] == [RepairState.OPEN]
    assert adopt(ledger, row, own, moved(lost)).state is RepairState.ADOPTED


def test_a_newer_reason_is_taken_and_committed_is_final(ledger: Ledger) -> None:
    lost, row = lost_and_opened(ledger)
    assert ledger.record_repairing(LOAD, 1, "first", newer=True)
    assert ledger.record_repairing(LOAD, 1, "second", newer=True)
    assert ledger.record_repairing(LOAD, 1, "third")
    known = ledger.load(LOAD)
    assert known is not None
    assert (known.state, known.reason) == (LoadState.REPAIRING, "second")
    own = TransactionalId(LOAD, ledger.ledger_id, row.number, lost.spark_partition, 17)
    adopt(ledger, row, own, moved(lost))
    for t in ledger.transactions(LOAD, 1):
        ledger.record_outcomes(LOAD, 1, {t.transaction.transactional_id: Outcome.COMMITTED})
    ledger.record_committed(LOAD, 1)
    assert not ledger.record_repairing(LOAD, 1, "late", newer=True)
    known = ledger.load(LOAD)
    assert known is not None and known.state is LoadState.COMMITTED


def test_a_load_in_doubt_is_taken_back_by_who_repairs_it_and_nobody_else(ledger: Ledger) -> None:
    lost, row = lost_and_opened(ledger)
    ledger.record_in_doubt(LOAD, 1, "both digests")
    for newer in (False, True):
        assert ledger.record_repairing(LOAD, 1, "one was lost", newer=newer)
    known = ledger.load(LOAD)
    assert known is not None
    assert (known.state, known.reason) == (LoadState.IN_DOUBT, "both digests")
    own = TransactionalId(LOAD, ledger.ledger_id, row.number, lost.spark_partition, 17)
    assert adopt(ledger, row, own, moved(lost)).state is RepairState.UNDECIDABLE
    assert ledger.open_repair(LOAD, 1, lost.transaction.transactional_id, opened_by="ada") is not None
    known = ledger.load(LOAD)
    assert known is not None and known.state is LoadState.REPAIRING
