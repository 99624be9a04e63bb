"""Scope ``load``: each Kafka partition has one owner, and an owner refuses what is not its own.

Rule: scope-load-writes-once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_eos.errors import ConfigurationError, RecordError, UndecidableError
from airflow_kafka_eos.spark.no_retries import ONE_RUN, check_first_attempt, check_spark_settings
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.scope import Owners, check_own_rows

GIVEN = {
    "topic": "one", "topics": "one,two", "load.name": "l", "load.key": "k", "load.attempt": "1",
    "ledger.id": "0123456789", "manifest.dir": "/m", "transaction.timeout.ms": "1000", "deadline.ms": "1",
    "transaction.scope": "load",
}  # fmt: skip
OPTIONS = WriteOptions.parse(GIVEN)
TOPICS = {"one": 3, "two": 2}


def batch(**columns: tuple[Any, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({k: pa.array(*v) for k, v in columns.items()})


@given(st.dictionaries(st.text(min_size=1), st.integers(1, 9), min_size=1), st.none() | st.integers(1, 40))
def test_every_kafka_partition_has_one_owner_and_no_owner_is_idle(topics: dict[str, int], tasks: int) -> None:
    owners = Owners.of(topics, tasks)
    codes = np.repeat(np.arange(len(topics)), [topics[n] for n in sorted(topics)])
    partitions = np.concatenate([np.arange(topics[n]) for n in sorted(topics)])
    found = owners.owners(codes, partitions)
    assert set(found) == set(range(owners.tasks))
    assert max(np.bincount(found)) - min(np.bincount(found)) <= 1
    assert owners.tasks == min(tasks or sum(topics.values()), sum(topics.values()))


def test_an_owner_takes_its_own_rows() -> None:
    check_own_rows(batch(partition=([1, 1], pa.int32())), 1, Owners.of(TOPICS, None), OPTIONS)
    two = batch(topic=(["two", "two"],), partition=([1, 1], pa.int32()))
    check_own_rows(two, 4, Owners.of(TOPICS, None), OPTIONS)
    mixed = batch(topic=(["one", "two"],), partition=([1, 0], pa.int32()))
    check_own_rows(mixed, 1, Owners.of(TOPICS, 2), OPTIONS)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"value": (["v"],)}, "must name its partition"),
        ({"partition": ([1, None], pa.int32())}, "must name its partition"),
        ({"partition": ([1, 2], pa.int32())}, "Spark task 1 of 5 has a row of partition 2 of topic 'one'"),
        ({"partition": ([1], pa.int32()), "topic": (["two"],)}, "partition 1 of topic 'two'.*another task's"),
    ],
)
def test_an_owner_refuses_other_rows_and_names_the_function_to_call(
    columns: dict[str, tuple[Any, ...]], says: str
) -> None:
    with pytest.raises(RecordError, match=says) as caught:
        check_own_rows(batch(**columns), 1, Owners.of(TOPICS, None), OPTIONS)
    assert "airflow_kafka_eos.spark.scope.own_partitions" in caught.value.remedy


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"partition": ([3], pa.int32())}, "partition 3 of topic 'one', which has partitions 0 to 2"),
        ({"partition": ([0], pa.int32()), "topic": (["three"],)}, "topic 'three'"),
    ],
)
def test_a_place_that_is_not_there_is_named(columns: dict[str, tuple[Any, ...]], says: str) -> None:
    with pytest.raises(RecordError, match=says):
        check_own_rows(batch(**columns), 1, Owners.of(TOPICS, None), OPTIONS)


def test_spark_must_run_nothing_twice() -> None:
    check_spark_settings(ONE_RUN.get)
    check_spark_settings({**ONE_RUN, "spark.speculation": None}.get)
    for key, value in (
        ("spark.stage.maxConsecutiveAttempts", None),
        ("spark.stage.maxConsecutiveAttempts", "2"),
        ("spark.stage.ignoreDecommissionFetchFailure", "true"),
        ("spark.stage.ignoreDecommissionFetchFailure", None),
        ("spark.speculation", "TRUE"),
    ):
        with pytest.raises(ConfigurationError, match=key):
            check_spark_settings({**ONE_RUN, key: value}.get)


def test_a_second_run_of_a_task_is_refused_in_scope_load_only() -> None:
    check_first_attempt(0, OPTIONS, 3)
    check_first_attempt(2, WriteOptions.parse(GIVEN | {"transaction.scope": "task"}), 3)
    with pytest.raises(UndecidableError, match="Spark has run task 3 before") as caught:
        check_first_attempt(1, OPTIONS, 3)
    assert caught.value.attempt == 1
