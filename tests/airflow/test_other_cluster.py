"""A DAG whose Kafka connection leads to another cluster than when its load was written; two real brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_kafka_eos.load import LoadState
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.airflow.steps import a_prepared_load, connection, open_ids, refused, run, state


@pytest.fixture(scope="module")
def other() -> Iterator[LocalKafka]:
    """The other cluster."""
    with LocalKafka(version="4.4.0") as running:
        yield running


@pytest.fixture
def moved(other: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> str:
    """The connection that the DAG has now."""
    connection(monkeypatch, "kafka_moved", "kafka", extra={"bootstrap.servers": other.bootstrap_servers})
    return "kafka_moved"


def test_each_step_says_so_and_the_load_goes_on_over_its_own_connection(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], moved: str
) -> None:
    """Begin, prepare and decide fail without retries; cleanup is tried again, it may be mended."""
    a_prepared_load(home, kafka, "moved", topic(), 3)
    (name,) = open_ids("moved")
    for step in ("begin", "prepare", "decide", "cleanup"):
        said = refused(step, "moved", kafka_conn_id=moved)
        assert "attempt 1 of load airflow/" in said and "the connection leads to Kafka cluster" in said, step
    assert (open_ids("moved"), state("moved")) == ([name], LoadState.PREPARED)
    run("decide", "moved")
    run("commit", "moved")
    assert state("moved") is LoadState.COMMITTED
    # what its readers see is asked where they are (rule: one-cluster-per-attempt)
    said = refused("loaded", "moved", kafka_conn_id=moved)
    assert "attempt 1 of load airflow/" in said and "reload it, or give it a load_key of its own" in said
    run("loaded", "moved")
    # all others are done with it, wherever it is
    for step in ("begin", "prepare", "decide", "commit", "cleanup"):
        run(step, "moved", kafka_conn_id=moved)
