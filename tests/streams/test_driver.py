"""What the driver's side of a query remembers from batch to batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger import Ledger, migrate
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE
from airflow_kafka_eos.streams import driver
from airflow_kafka_eos.streams.application import Told
from airflow_kafka_eos.streams.options import StreamOptions


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What was looked at, by whom; each look has an answer of its own."""
    found: list[Any] = []

    def look(settings: KafkaSettings, write: Any) -> Any:
        found.append((write, settings))
        return len(found)

    monkeypatch.setattr(driver, "check_cluster", look)
    monkeypatch.setattr(driver, "_seen", {})
    yield found


def query(name: str) -> StreamOptions:
    return StreamOptions.parse({"queryName": name, "checkpointLocation": f"/{name}", "topic": "t"})


def checked(options: StreamOptions, brokers: str = "a:1") -> Any:
    write: Any = options.name
    return driver._checked(options, KafkaSettings.from_mapping({"bootstrap.servers": brokers}), write)


def test_queries_of_one_driver_leave_each_others_look_alone(looked: list[Any]) -> None:
    """One that threw away all others would have a thread beside it find nothing where it has just looked."""
    assert [checked(query(name)) for name in ("one", "two", "one", "two")] == [1, 2, 1, 2]
    assert len(looked) == 2


def test_other_settings_are_looked_at_anew(looked: list[Any]) -> None:
    assert [checked(query("one"), brokers) for brokers in ("a:1", "b:1", "b:1")] == [1, 2, 2]
    assert len(driver._seen) == 1, "logins that are replaced are not kept"


def test_a_batchs_line_names_its_load_and_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, query_id = f"sqlite:///{tmp_path}/ledger.db", "11111111-2222-3333-4444-555555555555"
    options = query("orders")
    load = LoadIdentity(options.namespace, "orders", f"{query_id}-0")
    migrate.upgrade(url)
    with Ledger.open(url) as ledger:
        ledger.begin(load, owner="x")
        assert [ledger.submit(load, owner="x").number for _ in range(2)] == [1, 2]
    monkeypatch.setenv(LEDGER_VARIABLE, url)
    said: list[str] = []
    told = Told(options, query_id, said.append)
    told.tell([{"batchId": n, "numInputRows": 7, "durationMs": {"addBatch": 1}} for n in (0, 1)])
    told.end(1)
    assert said[0] == f"batch 0 of query orders: 7 rows read, in 0.0 s; load {load} attempt 2"
    assert said[1].endswith(f"; load {options.namespace}/orders/{query_id}-1"), "the ledger does not have it"


def test_what_is_left_open_names_the_query_where_its_checkpoint_cannot_be_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = query("orders")
    driver.give_up(options, 3)
    (line,) = [r.getMessage() for r in caplog.records if r.name == driver.__name__]
    assert line.startswith(f"what batch 3 of query {options.namespace}/orders has open is left to the next run")
