"""Numbers for Airflow's Stats (docs/howto-on-call.md names them all).

Each goes out twice, as Airflow's own do while it keeps its former names: ``kafka_eos.<number>`` with the namespace as
a tag, and ``kafka_eos.<namespace>.<number>`` for a StatsD without tags, where namespaces would overwrite each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk.observability.stats import gauge, incr, normalize_name_for_stats, timing

from airflow_kafka_eos.load import LoadIdentity

PREFIX = "kafka_eos"


def send_gauges(namespace: str, numbers: Mapping[str, int]) -> None:
    """What is now, by name."""
    for number, value in numbers.items():
        _send(gauge, namespace, number, value)


def count(namespace: str, number: str, by: int) -> None:
    """What happened so many times more."""
    if by > 0:
        _send(incr, namespace, number, by)


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
    _send(timing, load.namespace, "decided_to_visible", passed)


def _send(send: Callable[..., None], namespace: str, number: str, value: float | timedelta) -> None:
    send(f"{PREFIX}.{number}", value, tags={"namespace": namespace})
    # a dot in the name would make a level of its own
    level = normalize_name_for_stats(namespace, log_warning=False).replace(".", "_")
    send(f"{PREFIX}.{level}.{number}", value)
