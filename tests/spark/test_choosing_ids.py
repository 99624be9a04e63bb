"""Which id of a slot a task attempt takes: one that nobody has initialised since the lease (rule: id-per-task-attempt).

No Spark and no broker needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_kafka_eos.errors import BrokerUnavailableError, UndecidableError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import LoadIdentity, WriterName
from airflow_kafka_eos.naming import AttemptRef
from airflow_kafka_eos.spark import pooled
from airflow_kafka_eos.spark.attempt_writer import AttemptWriter, Part
from airflow_kafka_eos.spark.options import Checked, WriteOptions
from airflow_kafka_eos.transaction import CoordinatorState, PreparedTxnState, TransactionDescription

REF = AttemptRef(LoadIdentity("airflow", "orders", "2013-01-01"), "0123456789", 3, slot=7)


def described(number: int, state: CoordinatorState, epoch: int) -> TransactionDescription:
    return TransactionDescription(
        transactional_id=str(REF.task_id(0, number)),
        coordinator_state=state,
        state=PreparedTxnState(4000 + number, epoch),
        timeout_ms=60_000,
        start_time_ms=-1,
        partitions=frozenset(),
    )


def chosen(
    now: Mapping[int, TransactionDescription], at_lease: Mapping[int, TransactionDescription], first: int
) -> int:
    before = {d.transactional_id: (d.coordinator_state, d.state) for d in at_lease.values()}
    by_name = {d.transactional_id: d for d in now.values()}
    name, is_first = pooled.choose(REF, 0, first, before, lambda wanted: by_name.get(str(wanted)))
    (number,) = [n for n in range(100) if REF.task_id(0, n) == name]
    assert is_first == (number == 0)
    return number


USED_BEFORE = {
    0: described(0, CoordinatorState.COMPLETE_COMMIT, 4),
    1: described(1, CoordinatorState.EMPTY, 0),
}


@pytest.mark.parametrize("first", [0, 1, 2])
def test_an_attempt_begins_at_its_own_number(first: int) -> None:
    assert chosen({}, {}, first) == first
    assert chosen(USED_BEFORE, USED_BEFORE, first) == first, "what an earlier load has left is used again"


@pytest.mark.parametrize(
    "since",
    [
        described(0, CoordinatorState.EMPTY, 5),  # initialised, nothing written yet
        described(0, CoordinatorState.ONGOING, 5),
        described(0, CoordinatorState.COMPLETE_ABORT, 5),
        described(0, CoordinatorState.COMPLETE_COMMIT, 5),  # the same state, another epoch
    ],
    ids=lambda d: d.coordinator_state.value,
)
def test_what_was_initialised_since_the_lease_is_skipped(since: TransactionDescription) -> None:
    """A stage that runs again counts its attempts from 0: InitProducerId on that id would abort what is prepared."""
    assert chosen({**USED_BEFORE, 0: since}, USED_BEFORE, 0) == 1
    assert chosen({0: since}, {}, 0) == 1, "also where no coordinator knew it at the lease"


def test_what_was_open_at_the_lease_is_nobodys_to_abort_from_here() -> None:
    open_ = {0: described(0, CoordinatorState.ONGOING, 4)}
    assert chosen(open_, open_, 0) == 1


def test_a_task_that_finds_none_says_so() -> None:
    every = {n: described(n, CoordinatorState.ONGOING, 0) for n in range(pooled.MOST_TRIES)}
    with pytest.raises(UndecidableError, match="in use since the slot was leased"):
        pooled.choose(REF, 0, 0, {}, lambda name: replace(every[0], transactional_id=str(name)))


@pytest.mark.parametrize("kind", [WriterName.ARROW, WriterName.CONFLUENT])
def test_a_task_that_finds_none_keeps_no_connection(monkeypatch: pytest.MonkeyPatch, kind: WriterName) -> None:
    asked: list[Wire] = []

    def away(wire: Wire, _: object) -> None:
        asked.append(wire)
        raise BrokerUnavailableError("no broker answers", remedy="Start one")

    monkeypatch.setattr("airflow_kafka_eos.kafka.producer.writers.describe", away)
    options = WriteOptions(REF, "/nowhere", ("orders",), 60_000, 2**62)
    writer = AttemptWriter(
        options,
        KafkaSettings.from_mapping({"bootstrap.servers": "localhost:1"}),
        Checked({}, {}, kind, two_phase_commit=False, timeout_ms=60_000),
    )
    rows = pa.RecordBatch.from_pydict({"value": ["v"]})
    with pytest.raises(BrokerUnavailableError):
        writer.write_part(Part(0, 0, 7), iter([rows]), lambda _: None)
    assert [wire._closed for wire in asked] == [True]
