"""The doctor warns of decisions that nobody verifies, and of two-phase transactions that nobody decides, in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kafka_eos.doctor.finding import (
    Asked,
    BrokerSeen,
    ClusterSeen,
    Finding,
    LayoutSeen,
    Severity,
    Unknown,
)
from airflow_kafka_eos.doctor.ledger import check_waiting
from airflow_kafka_eos.ledger.queries import NOTHING, UndecidedTwoPhase, Unverified, Waiting
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.doctor.patients import asked, examined, new_ledger, of, settings_of
from tests.protocol.world import World

OK, WARNING, ERROR, UNKNOWN = Severity.OK, Severity.WARNING, Severity.ERROR, Severity.UNKNOWN
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW_MS = 1_800_000_000_000
ASKED = Asked("team", (), 15 * 60_000)


def decided(ago_ms: int, key: str = "monday") -> Unverified:
    at = NOW_MS - ago_ms
    return Unverified(LoadIdentity("team", "orders", key), LoadState.COMMITTING, at, {f"of {key}": at})


def cluster(expiration_ms: int | None = 7 * DAY_MS, **retention_ms: int) -> ClusterSeen:
    why = Unknown("not asked")
    config = why if expiration_ms is None else {"transactional.id.expiration.ms": str(expiration_ms)}
    return ClusterSeen(
        "here", False, (BrokerSeen(1, "here", why, config),), LayoutSeen(None, why), {}, None, None, why, why, why,
        retention={f"of {key}": {"retention.ms": str(ms)} for key, ms in retention_ms.items()},
    )  # fmt: skip


def findings(waiting: Waiting | Unknown, seen: ClusterSeen | None) -> list[Finding]:
    return list(check_waiting(waiting, seen, ASKED, NOW_MS))


def test_nothing_waits() -> None:
    assert [f.severity for f in findings(NOTHING, cluster())] == [OK, OK]
    assert [f.severity for f in findings(Unknown("locked"), cluster())] == [UNKNOWN, UNKNOWN]


@pytest.mark.parametrize(
    ("ago_ms", "seen", "severity", "means"),
    [
        (HOUR_MS, cluster(), OK, ""),
        (HOUR_MS, None, OK, ""),
        (25 * HOUR_MS, None, WARNING, "readers lack the load"),
        (25 * HOUR_MS, cluster(), WARNING, "readers lack the load"),
        (25 * HOUR_MS, cluster(None), WARNING, "readers lack the load"),
        # half of the time is gone
        (4 * DAY_MS, cluster(), WARNING, "forget ended transactions"),
        (7 * HOUR_MS, cluster(12 * HOUR_MS), WARNING, "forget ended transactions"),
        (7 * HOUR_MS, cluster(monday=15 * HOUR_MS), OK, ""),
        (7 * HOUR_MS, cluster(monday=13 * HOUR_MS), WARNING, "More than half"),
        (7 * HOUR_MS, cluster(monday=7 * HOUR_MS), ERROR, "IN_DOUBT"),
        (7 * HOUR_MS, cluster(monday=-1), OK, ""),
    ],
)
def test_a_decision_that_nobody_verifies(
    ago_ms: int, seen: ClusterSeen | None, severity: Severity, means: str
) -> None:
    found, _ = findings(Waiting((decided(ago_ms),)), seen)
    assert (found.id, found.severity) == ("decided-not-verified", severity)
    assert means in found.means and f"decided {ago_ms / HOUR_MS:.1f} h ago" in found.seen
    remedy = "airflow-kafka-eos loads recover orders monday --namespace team"
    if severity is ERROR:
        remedy += "\nWhere it says that records are gone, clear prepare in Airflow"
    assert found.remedy == ("" if severity is OK else remedy)


def test_the_one_with_the_least_time_is_named() -> None:
    two = Waiting((decided(5 * HOUR_MS), decided(2 * HOUR_MS, "tuesday")))
    found, _ = findings(two, cluster(monday=DAY_MS, tuesday=3 * HOUR_MS))
    assert found.severity is WARNING and " tuesday " in found.remedy
    assert "loads: 2" in found.seen and "tuesday in 1.0 h" in found.seen


@pytest.mark.parametrize(("ago_ms", "severity"), [(14 * 60_000, OK), (16 * 60_000, WARNING)])
def test_what_nobody_decides_holds_readers_back_for_good(ago_ms: int, severity: Severity) -> None:
    undecided = UndecidedTwoPhase(LoadIdentity("team", "orders", "monday"), 3, NOW_MS - ago_ms)
    _, found = findings(Waiting(undecided=(undecided,)), None)
    assert (found.id, found.severity) == ("two-phase-undecided", severity)
    assert ("cleanup orders monday --namespace team" in found.remedy) is (severity is WARNING)


@pytest.mark.broker
def test_both_are_found_in_a_real_ledger_beside_a_real_cluster(
    kafka: LocalKafka, topic: Callable[..., str], tmp_path: Path
) -> None:
    """Examined by a clock that is hours ahead: nobody verifies, nobody decides, retention is a day."""
    url, settings = new_ledger(tmp_path), settings_of(kafka.bootstrap_servers)
    kept = topic(partitions=1, config={"retention.ms": str(DAY_MS)})
    question = asked()
    with connect(settings, url, question.namespace) as session:
        world = World(session, settings, kept, LoadIdentity(question.namespace, "orders", "1"))
        world.decide(world.prepare(["a"]))
        other = replace(world, load=replace(world.load, key="2"))
        other.prepare_two_phase(["b"])

        def after(hours: int) -> tuple[Finding, Finding]:
            found = examined(settings, url, question, lambda: time.time() + hours * 3600)
            return of(found, "decided-not-verified"), of(found, "two-phase-undecided")

        assert [f.severity for f in after(0)] == [OK, OK]
        late = after(13)
        assert [f.severity for f in late] == [WARNING, WARNING]
        assert "More than half" in late[0].means and "attempt 1 of" in late[1].seen
        assert after(25)[0].severity is ERROR
        # without Kafka, by their ages alone
        alone = examined(None, url, question, lambda: time.time() + 25 * 3600)
        assert of(alone, "decided-not-verified").severity is WARNING
        world.commit()
        sweep(session, other.load, up_to=1, by="test")
        assert [f.severity for f in after(13)] == [OK, OK]
