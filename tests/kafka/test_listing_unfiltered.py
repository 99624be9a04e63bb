"""What ListTransactions and Metadata answers are read as, where a broker of the tests does not give such ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors

from airflow_kafka_eos.kafka.admin import coordinator
from airflow_kafka_eos.transaction import CoordinatorState

OURS = "airflow.0123456789.orders."


class Answers:
    """A wire with one answer to everything, of a broker that knows no newer version than ``version``."""

    def __init__(self, answer: Any, version: int = 1) -> None:
        self.answer = answer
        self.version = version

    def api_version(self, _: object) -> int:
        return self.version

    def send_to_broker(self, _: int, request: Any) -> Any:
        return self.answer

    def metadata(self, _: list[str]) -> Any:
        return self.answer


def listed(*names: str) -> Any:
    rows = [SimpleNamespace(transactional_id=n, transaction_state="Ongoing") for n in names]
    return SimpleNamespace(error_code=0, unknown_state_filters=[], transaction_states=rows)


def test_of_a_listing_by_an_old_broker_ours_are_picked() -> None:
    """Before Kafka 4.1 it cannot filter by name, and shows what every application has."""
    wire: Any = Answers(listed(OURS + "k.1-0-1", "billing-7", "x" + OURS + "k.1-0-1"))
    assert coordinator.rows_on(wire, 1, OURS, ["Ongoing"], -1) == [(OURS + "k.1-0-1", CoordinatorState.ONGOING)]


def partition(index: int, leader: int, error_code: int = 0) -> Any:
    return SimpleNamespace(partition_index=index, leader_id=leader, leader_epoch=3, error_code=error_code)


def metadata(*partitions: Any, error_code: int = 0) -> Any:
    return SimpleNamespace(topics=[SimpleNamespace(error_code=error_code, partitions=partitions)], brokers=[])


@pytest.mark.parametrize("away", [partition(1, -1), partition(1, 2, error_code=5)])
def test_while_a_coordinator_is_away_there_are_no_places(away: Any) -> None:
    """A listing then hides the ids of its partition, and proves nothing."""
    wire: Any = Answers(metadata(partition(0, 1), away))
    assert coordinator.epochs(wire) is None
    wire = Answers(metadata(partition(0, 1), partition(1, 2)))
    assert coordinator.epochs(wire) == frozenset({(0, 1, 3), (1, 2, 3)})


def test_where_nobody_has_ever_written_a_transaction_there_are_none_to_miss() -> None:
    wire: Any = Answers(metadata(error_code=errors.UnknownTopicOrPartitionError.errno))
    assert coordinator.epochs(wire) == frozenset()
