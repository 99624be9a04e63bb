"""What the doctor says of a broker's requests, by made ApiVersions answers."""

from __future__ import annotations

from typing import Any

from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from airflow_kafka_eos.doctor import brokers
from airflow_kafka_eos.doctor.commands import Commands
from airflow_kafka_eos.doctor.finding import BrokerSeen, ClusterSeen, LayoutSeen, Severity, Unknown
from airflow_kafka_eos.doctor.transactional_ids import check_access
from airflow_kafka_eos.kafka.admin.capabilities import CAPABILITIES
from airflow_kafka_eos.kafka.admin.inspect import Versions
from tests.doctor.patients import asked

OK, WARNING, ERROR = Severity.OK, Severity.WARNING, Severity.ERROR


def test_an_old_broker_lacks_requests() -> None:
    """One too old to be started here: its ApiVersions answer, as kafka-python knows it."""
    old = Versions({int(k): v for k, v in BROKER_API_VERSIONS[2, 8].items()}, {}, {})
    found = list(brokers.of_broker(BrokerSeen(7, "b7:9092", old, {})))
    assert [(f.id, f.severity) for f in found] == [
        ("broker-reachable", OK), ("broker-requests", ERROR), ("broker-requests-optional", OK),
    ]  # fmt: skip
    assert "ListTransactions (decide, cleanup: finding lingering transactions" in found[1].seen
    assert "from 3.8 on, and is tried from 3.9 on" in found[1].remedy


def test_a_broker_that_takes_no_end_markers_is_a_warning_and_no_more() -> None:
    """Whatever the login may do: then the right is of no use."""
    offered = {c.key: (0, c.highest) for c in CAPABILITIES if not c.warns}
    one = BrokerSeen(7, "b7:9092", Versions(offered, {}, {}), {})
    _, needed, optional = brokers.of_broker(one)
    assert (needed.severity, optional.severity) == (OK, WARNING)
    assert optional.seen.startswith("WriteTxnMarkers (commit, cleanup, transactions hanging: ")
    assert "Loads work" in optional.means and "loads recover" in optional.remedy
    nothing, why = LayoutSeen(None, Unknown("")), Unknown("not asked")
    every: dict[str, Any] = {"may_describe": None, "may_write": None, "two_phase": why, "ids": why, "clock": why}
    for rights, says in (
        (["ALTER"], "of no use: see broker-requests-optional"),
        ([], "until somebody who has ALTER"),
    ):
        seen = ClusterSeen("b7", False, (one,), nothing, {}, cluster_rights=frozenset(rights), **every)
        *_, alter = check_access(seen, asked(), Commands("b7"))
        assert says in alter.means


def test_what_is_done_without_is_told_and_is_no_warning() -> None:
    """Kafka 3.9: all that it lacks costs time, or is another finding's."""
    old = Versions({int(k): v for k, v in BROKER_API_VERSIONS[3, 9].items()}, {}, {})
    *_, optional = brokers.of_broker(BrokerSeen(7, "b7:9092", old, {}))
    assert optional.severity is OK
    assert "without ListTransactions v2 brokers list every application's ids" in optional.means
