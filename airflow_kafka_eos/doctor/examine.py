"""Look, and judge what was seen."""

from __future__ import annotations

import time
from dataclasses import dataclass

from airflow_kafka_eos.doctor.brokers import check_brokers, check_clocks
from airflow_kafka_eos.doctor.clients import check_producer, check_spark
from airflow_kafka_eos.doctor.commands import Commands
from airflow_kafka_eos.doctor.finding import (
    Asked,
    ClusterSeen,
    Finding,
    Judgement,
    LedgerSeen,
    Severity,
    Unknown,
)
from airflow_kafka_eos.doctor.ledger import check_ledger, check_waiting
from airflow_kafka_eos.doctor.look import Now, look_at_cluster, look_at_ledger
from airflow_kafka_eos.doctor.topics import check_topics
from airflow_kafka_eos.doctor.transactional_ids import check_access, check_ids
from airflow_kafka_eos.errors import KafkaEosError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings


@dataclass(frozen=True)
class Examination:
    """What was found.

    :param reached_anything: whether cluster or ledger answered.
    """

    findings: tuple[Finding, ...]
    reached_anything: bool

    @property
    def has_errors(self) -> bool:
        return any(f.severity is Severity.ERROR for f in self.findings)


def examine(
    settings: KafkaSettings | None,
    ledger_url: str,
    asked: Asked,
    *,
    timeout_s: float = 10,
    now: Now = time.time,
) -> Examination:
    """All checks. What cannot be checked is said, and raises nothing.

    :param settings: where Kafka is; None when it is not asked about.
    :param ledger_url: an SQLAlchemy URL; the ledger is neither made nor upgraded.
    :param timeout_s: seconds for one question, its repetitions included.
    :param now: this machine's clock, seconds since the epoch.
    :raises ConfigurationError: the ledger's URL is none.
    """
    ledger = look_at_ledger(ledger_url, now, asked.namespace)
    topics_waited_for = () if isinstance(ledger.waiting, Unknown) else sorted(ledger.waiting.topics)
    findings = list(check_ledger(ledger, asked))
    cluster: ClusterSeen | None = None
    if settings is not None:
        commands = Commands.of(settings)
        try:
            cluster = look_at_cluster(
                settings,
                asked,
                commands,
                ledger.ledger_id,
                timeout_s=timeout_s,
                now=now,
                waited_for=topics_waited_for,
            )
        except KafkaEosError as e:
            found = Judgement("cluster-reachable", f"Kafka {settings.bootstrap_servers}", e.message)
            findings.append(found.error("No load can be prepared, decided or finished from here", e.remedy))
        else:
            findings += _of_cluster(cluster, ledger, asked, commands)
        findings.append(check_producer(settings, cluster, asked))
    findings += check_waiting(ledger.waiting, cluster, asked, int(now() * 1000))
    findings += check_clocks(cluster, ledger)
    if asked.spark_conf is not None:
        findings += check_spark(asked.spark_conf, asked.scope)
    reached = cluster is not None or not isinstance(ledger.revision, Unknown)
    return Examination(tuple(findings), reached)


def _of_cluster(cluster: ClusterSeen, ledger: LedgerSeen, asked: Asked, commands: Commands) -> list[Finding]:
    found = Judgement("cluster-reachable", f"Kafka {cluster.bootstrap_servers}", f"{len(cluster.brokers)} brokers")
    return [
        found.ok("It answers, and accepts the login"),
        *check_brokers(cluster, asked, commands),
        *check_topics(cluster, asked, commands),
        *check_access(cluster, asked, commands),
        *check_ids(cluster, ledger, asked),
    ]
