"""What goes to Airflow's Stats: which numbers there are, what each counts, and how it is sent.

The gauges that maintenance measures at the brokers are the fields of
:class:`~airflow_kafka_eos.protocol.metrics.Metrics`; all others stand here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from airflow.providers.common.compat.sdk import Stats

from airflow_kafka_eos.load import LoadIdentity

#: How all names begin.
PREFIX = "kafka_eos"
#: By maintenance, each time it runs, beside what it measures.
GAUGES: Mapping[str, str] = {
    "problems": "things that need a person; the log of the sweep and its XCom name them",
    "in_doubt_loads": "loads that are IN_DOUBT",
    "unknown_transactions": "open under this ledger's id, and not known to it: was it restored from a backup?",
    "other_ledgers_transactions": "open for long, of a ledger that is not this one: of a deployment that is gone?",
}
#: When it happens.
COUNTERS: Mapping[str, str] = {
    "swept_transactions": "transactions that maintenance has ended; each is of a run that did not clean up",
    "loads": "loads that became visible, counted by the run that wrote them",
    "records": "records of these loads",
    "attempts": "attempts that these loads took: as many as loads when nothing failed",
    "repaired_transactions": "transactions of these loads that were lost after the decision, and copied",
}
TIMERS: Mapping[str, str] = {"decided_to_visible": "milliseconds from a load's decision until readers see all of it"}


def send_gauges(namespace: str, numbers: Mapping[str, int]) -> None:
    """What is now, by name."""
    for number, value in numbers.items():
        _send(Stats.gauge, namespace, number, value)


def count(namespace: str, number: str, by: int) -> None:
    """What happened so many times more.

    :param number: one of :data:`COUNTERS`.
    """
    if by > 0:
        _send(Stats.incr, namespace, number, by)


def count_arrival(load: LoadIdentity, arrival: Mapping[str, Any], now: datetime) -> None:
    """A load that readers see for the first time.

    :param arrival: :func:`~airflow_kafka_eos.protocol.stages.visible.arrival_of` the load.
    """
    for number, by in (
        ("loads", arrival.get("loads", 1)),
        ("records", arrival["records"] or 0),
        ("attempts", arrival["attempts"] if "attempts" in arrival else arrival["attempt"]),
        ("repaired_transactions", arrival["repaired"]),
    ):
        count(load.namespace, number, by)
    passed = max(timedelta(0), now - datetime.fromisoformat(arrival["decided_at"]))
    _send(Stats.timing, load.namespace, "decided_to_visible", passed)


def _send(send: Callable[..., None], namespace: str, number: str, value: float | timedelta) -> None:
    """Twice, as Airflow sends its own while it keeps their former names: ``kafka_eos.<number>`` with the namespace as a
    tag, and ``kafka_eos.<namespace>.<number>`` for a StatsD without tags, where namespaces would overwrite each other.
    """
    send(f"{PREFIX}.{number}", value, tags={"namespace": namespace})
    # as Airflow replaces what no name may have, and a dot would make a level of its own
    level = re.sub(r"[^a-zA-Z0-9_-]", "_", namespace)
    send(f"{PREFIX}.{level}.{number}", value)
