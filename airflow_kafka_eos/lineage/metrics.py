"""Numbers for Airflow's Stats (docs/howto-on-call.md names them all).

Each goes out twice, as Airflow's own do while it keeps its former names: ``kafka_eos.<number>`` with the namespace as
a tag, and ``kafka_eos.<namespace>.<number>`` for a StatsD without tags, where namespaces would overwrite each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk.observability.stats import gauge, incr, normalize_name_for_stats, timing

from airflow_kafka_eos.load import LoadIdentity

PREFIX = "kafka_eos"


def send_gauges(namespace: str, numbers: Mapping[str, int]) -> None:
    """What is now, by name."""
    for number, value in numbers.items():
        gauge(f"{PREFIX}.{number}", value, tags={"namespace": namespace})
        gauge(_untagged(namespace, number), value)


def count(namespace: str, number: str, by: int) -> None:
    """What happened so many times more."""
    if by > 0:
        incr(f"{PREFIX}.{number}", by, tags={"namespace": namespace})
        incr(_untagged(namespace, number), by)


def count_arrival(load: LoadIdentity, arrival: Mapping[str, Any], now: datetime) -> None:
    """A load that readers see for the first time.

    :param arrival: :func:`~airflow_kafka_eos.protocol.stages.visible.arrival_of` the load.
    """
    for number, by in (
        ("loads", 1),
        ("records", arrival["records"] or 0),
        ("attempts", arrival["attempt"]),
        ("repaired_transactions", arrival["repaired"]),
    ):
        count(load.namespace, number, by)
    passed = max(timedelta(0), now - datetime.fromisoformat(arrival["decided_at"]))
    timing(f"{PREFIX}.decided_to_visible", passed, tags={"namespace": load.namespace})
    timing(_untagged(load.namespace, "decided_to_visible"), passed)


def _untagged(namespace: str, number: str) -> str:
    # a dot in the name would make a level of its own
    return f"{PREFIX}.{normalize_name_for_stats(namespace, log_warning=False).replace('.', '_')}.{number}"
