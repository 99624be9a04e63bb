"""What the driver's side of a query remembers from batch to batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.streams import driver
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
