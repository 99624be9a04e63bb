"""The doctor finds each of its faults on real clusters and ledgers, and is silent where there is none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from airflow_kafka_eos.doctor.examine import Examination
from airflow_kafka_eos.doctor.finding import TRANSACTION_LOG, Severity
from airflow_kafka_eos.kafka.admin.inspect import ids_listed, topic_seen
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.location import default_url
from airflow_kafka_eos.ledger.migrate import current
from airflow_kafka_eos.load import TransactionScope, TwoPhaseCommit
from airflow_kafka_eos.protocol.guards.id_caps import Caps
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.doctor.patients import (
    BAD_SPARK,
    NAMESPACE,
    OTHER_LEDGER,
    an_hour_ahead,
    asked,
    broken_broker,
    examined,
    new_ledger,
    of,
    outdated_ledger,
    settings_of,
)

pytestmark = pytest.mark.broker

#: held in test_access.py
ACLS = {
    "acl-cluster-alter",
    "acl-topic-read",
    "acl-topic-write",
    "acl-transactional-id-describe",
    "acl-transactional-id-write",
}

OK, WARNING, ERROR, UNKNOWN = Severity.OK, Severity.WARNING, Severity.ERROR, Severity.UNKNOWN
NOBODY = "127.0.0.1:1"
NO_LEDGER = "postgresql://someone:hunter2@127.0.0.1:1/nothing"

#: see test_waiting.py
WAITING = ("decided-not-verified", "two-phase-undecided")
#: held in test_requests.py
REQUESTS = ("broker-requests", "broker-requests-optional")
#: held in test_producer_settings_are_judged_as_prepare_will
PRODUCER = "producer-settings"
#: no fault, either way
INDEX = "topic-transaction-index"


class Case(NamedTuple):
    """What a patient suffers from: the check that finds it, on which subject, and a text of its remedy."""

    patient: str
    id: str
    severity: Severity
    says: str
    remedy: str
    subject: str = ""


CASES = [
    Case("broken", "transaction-version", WARNING, "transaction.version=1", "--feature transaction.version=2"),
    Case("broken", "two-phase-commit", WARNING, "switched off on broker 1", "transaction.two.phase.commit.enable=true"),
    Case("required", "two-phase-commit", ERROR, "switched off on broker 1", "transaction.two.phase.commit.enable=true"),
    Case("broken", "transaction-max-timeout", ERROR, "=60000, hold time 900000 ms", "max.timeout.ms=900000"),
    Case("broken", "transactional-id-expiration", ERROR, "=600000", "transactional.id.expiration.ms=604800000"),
    Case("impatient", "transactional-id-expiration", WARNING, "=600000", "transactional.id.expiration.ms=604800000"),
    Case("broken", "transaction-log-replication", WARNING, "replicas: 1, brokers: 1", "Run 3 brokers or more"),
    Case("broken", "topic-exists", ERROR, "there is no such topic", "kafka-topics.sh", "nowhere"),
    Case("broken", "topic-replication", WARNING, "replicas: 1, brokers: 1", "Run 3 brokers", "sick"),
    Case("broken", "topic-min-insync", ERROR, "min.insync.replicas=2, replicas: 1", "min.insync.replicas=1", "sick"),
    Case("broken", "topic-unclean-election", ERROR, "election.enable=true", "election.enable=false", "sick"),
    Case("broken", "topic-retention", ERROR, "retention.ms=1000", "sick --add-config retention.ms=", "sick"),
    Case("broken", "topic-retention-bytes", WARNING, "retention.bytes=1000", "retention.bytes=-1", "sick"),
    Case("broken", "topic-compaction", WARNING, "delete.retention.ms=0", "min.compaction.lag.ms=86400000", "sick"),
    Case("well", INDEX, OK, "cleanup.policy=delete, remote.storage.enable=false", "", "fine"),
    Case("broken", INDEX, OK, "cleanup.policy=compact", "", "sick"),
    Case("broken", "topic-message-size", WARNING, "max.message.bytes=5000", "max.message.bytes=1000000", "sick"),
    Case("broken", "namespace-shared", ERROR, f"ledger {OTHER_LEDGER} has 1 ids (1 open)", "a namespace of its own"),
    Case("broken", "ids-near-cap", ERROR, "brokers: 4, cap: 4", "transaction_naming='pooling'", "load name orders"),
    Case("impatient", "ids-near-cap", WARNING, "brokers: 4, cap: 5", "transaction_naming='pooling'", "namespace"),
    Case("broken", "clock-brokers", ERROR, "-3600.", "NTP"),
    Case("broken", "ledger-shared", ERROR, "CeleryExecutor", "a PostgreSQL"),
    Case("broken", "spark-speculation", ERROR, "spark.speculation is true", "spark.speculation=false"),
    Case("broken", "spark-task-failures", WARNING, "maxFailures is 4", "spark.task.maxFailures=1"),
    Case("broken", "spark-stage-attempts", ERROR, "Attempts is 4", "spark.stage.maxConsecutiveAttempts=1"),
    Case("broken", "spark-decommission", ERROR, "is true", "ignoreDecommissionFetchFailure=false"),
    Case("lost", "broker-reachable", ERROR, "127.0.0.1:", "advertised.listeners"),
    Case("lost", "two-phase-commit", UNKNOWN, "no broker answers", ""),
    Case("nothing", "cluster-reachable", ERROR, "cannot be reached", "bootstrap.servers"),
    Case("nothing", "ledger-reachable", ERROR, "did not answer", "Make the database reachable"),
    Case("nothing", "ledger-shared", OK, "", ""),
    Case("no ledger", "two-phase-commit", UNKNOWN, "without a ledger no id is ours", "Make the database reachable"),
    Case("no ledger", "namespace-shared", UNKNOWN, "did not answer", "Make the database reachable"),
    Case("old ledger", "ledger-migrations", ERROR, "revision 0001", "airflow-kafka-eos ledger upgrade"),
    Case("lame", "topic-in-sync", WARNING, "brokers 3 lack records", "broker 3", "fine"),
    Case("lame", "topic-in-sync", ERROR, "brokers 3 lack records", "broker 3", "strict"),
    Case("lame", "transaction-log-in-sync", WARNING, "brokers 3 lack records", "broker 3"),
    Case("mixed", "topic-replication", ERROR, "replicas: 1, brokers: 3", "kafka-reassign-partitions.sh", "single"),
    Case("mixed", "topic-min-insync", WARNING, "=3, replicas: 3", "min.insync.replicas=2", "strict"),
    Case("mixed", "topic-min-insync", WARNING, "=1, replicas: 3", "min.insync.replicas=2", "lax"),
    Case("lame", "transaction-log-min-insync", WARNING, "=1, replicas: 3", "min.insync.replicas=2"),
]


@pytest.fixture(scope="module")
def ledger_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return new_ledger(tmp_path_factory.mktemp("ledger"))


@pytest.fixture(scope="module")
def three() -> Iterator[LocalKafka]:
    with LocalKafka(brokers=3) as kafka:
        kinds = {"fine": (3, 2), "strict": (3, 3), "lax": (3, 1), "single": (1, 1)}
        new = [
            NewTopic(name, 1, copies, config={"min.insync.replicas": str(least)})
            for name, (copies, least) in kinds.items()
        ]
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        for done in admin.create_topics(new).values():
            done.result(30)
        yield kafka


TOPICS = ("fine", "strict", "lax", "single")


@pytest.fixture(scope="module")
def patients(
    three: LocalKafka, ledger_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Examination]]:
    """Each examined once, in the order in which they fall ill."""
    found: dict[str, Examination] = {}
    settings = settings_of(three.bootstrap_servers)
    found["well"] = _when_well(settings, ledger_url)
    found["mixed"] = examined(settings, ledger_url, asked(*TOPICS))
    found["no ledger"] = examined(settings, NO_LEDGER, asked())
    _weaken_transaction_log(three)
    _lose_one(three)
    found["lame"] = examined(settings_of(three.address(1)), ledger_url, asked(*TOPICS))
    with Ledger.open(ledger_url) as ledger:
        ledger_id = ledger.ledger_id
    with broken_broker(tmp_path_factory.mktemp("broken"), ledger_id) as (kafka, lost):
        here = settings_of(kafka.bootstrap_servers)
        bad = asked("sick", "fine", "nowhere", executor="CeleryExecutor", spark_conf=BAD_SPARK, caps=Caps(4, None))
        found["broken"] = examined(here, ledger_url, bad, an_hour_ahead)
        found["required"] = examined(here, ledger_url, asked(two_phase_commit=TwoPhaseCommit.REQUIRED))
        found["impatient"] = examined(here, ledger_url, replace(asked(caps=Caps(None, 5)), hold_time_ms=1000))
        found["lost"] = examined(settings_of(lost), ledger_url, asked(), timeout_s=5)
    found["nothing"] = examined(settings_of(NOBODY), NO_LEDGER, asked(), timeout_s=1)
    found["old ledger"] = examined(None, outdated_ledger(tmp_path_factory.mktemp("old")), asked())
    yield found


def _when_well(settings: KafkaSettings, ledger_url: str) -> Examination:
    """Three brokers that have just started may lack one another for a moment."""
    until = time.monotonic() + 60
    while True:
        found = examined(settings, ledger_url, asked("fine"))
        if all(f.severity is OK for f in found.findings) or time.monotonic() > until:
            return found
        time.sleep(0.2)


def _weaken_transaction_log(three: LocalKafka) -> None:
    admin = AdminClient({"bootstrap.servers": three.bootstrap_servers})
    entry = ConfigEntry("min.insync.replicas", "1", incremental_operation=AlterConfigOpType.SET)
    log = ConfigResource(ResourceType.TOPIC, TRANSACTION_LOG, incremental_configs=[entry])
    for done in admin.incremental_alter_configs([log]).values():
        done.result(30)


def _lose_one(three: LocalKafka) -> None:
    three.kill(3)
    with Wire(settings_of(three.address(1))) as wire:
        until = time.monotonic() + 60
        while True:
            seen = topic_seen(wire, "fine")
            assert seen is not None
            if set(seen.partitions[0].in_sync) == {1, 2} and set(wire.broker_ids()) == {1, 2}:
                return
            assert time.monotonic() < until, "the cluster does not notice"
            time.sleep(0.1)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.patient}-{c.id}-{c.severity.value}{c.subject}")
def test_each_fault_is_found_with_the_command_that_mends_it(case: Case, patients: dict[str, Examination]) -> None:
    found = of(patients[case.patient], case.id, case.subject)
    assert (found.severity, case.says in found.seen, case.remedy in found.remedy) == (case.severity, True, True), found
    assert "hunter2" not in str(patients[case.patient])


def test_who_is_well_hears_of_nothing(patients: dict[str, Examination]) -> None:
    """And every check that can speak was asked."""
    well = patients["well"].findings
    assert [f for f in well if f.severity is not OK] == []
    spoken = {case.id for case in CASES if case.severity is not OK}
    assert {f.id for f in well} == spoken | {*REQUESTS, PRODUCER, INDEX, *ACLS, *WAITING}


@pytest.mark.parametrize(
    ("setting", "changes", "severity", "says"),
    [
        ({"compression.type": "zsdt"}, {}, ERROR, "Did you mean zstd?"),
        ({"linger.ms": "soon"}, {"two_phase_commit": TwoPhaseCommit.OFF}, ERROR, "from 0 to 900000"),
        ({"partitioner": "fnv1a"}, {"scope": TransactionScope.TASK}, ERROR, "two-phase"),
        ({"partitioner": "fnv1a"}, {"scope": TransactionScope.LOAD}, ERROR, "scope=load"),
        (
            {"partitioner": "fnv1a"},
            {"scope": TransactionScope.TASK, "two_phase_commit": TwoPhaseCommit.OFF},
            WARNING,
            "Use one of murmur2_random",
        ),
    ],
)
def test_producer_settings_are_judged_as_prepare_will(
    setting: dict[str, str], changes: dict[str, object], severity: Severity, says: str, kafka: LocalKafka,
    ledger_url: str,
) -> None:  # fmt: skip
    """The session's broker grants two-phase commit."""
    found = examined(settings_of(kafka.bootstrap_servers, **setting), ledger_url, asked(**changes))
    one = of(found, PRODUCER)
    assert one.severity is severity and says in one.remedy and next(iter(setting.values())) in one.seen


def test_a_ledger_is_neither_made_nor_upgraded(tmp_path: Path) -> None:
    missing = tmp_path / "none" / "ledger.db"
    found = of(examined(None, f"sqlite:///{missing}", asked()), "ledger-migrations")
    assert (found.severity, missing.parent.exists()) == (ERROR, False)
    assert "If loads have run already, create none" in found.means
    old = outdated_ledger(tmp_path)
    examined(None, old, asked())
    assert current(old) == "0001"


def test_the_embedded_ledger_need_not_be_there_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first load creates it."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    found = examined(None, default_url(), asked())
    assert (of(found, "ledger-migrations").severity, list(tmp_path.iterdir())) == (OK, [])


def test_nothing_is_left_behind_but_one_probe(
    three: LocalKafka, patients: dict[str, Examination], ledger_url: str
) -> None:
    with Ledger.open(ledger_url) as ledger, Wire(settings_of(three.address(1))) as wire:
        assert [i.transactional_id for i in ids_listed(wire, f"{NAMESPACE}.")] == [
            f"{NAMESPACE}.{ledger.ledger_id}.doctor.probe.1-probe"
        ]
        assert ledger.loads() == []
