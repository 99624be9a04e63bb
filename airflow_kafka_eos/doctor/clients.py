"""The connection's settings for producers: what prepare would refuse, and what costs two-phase commit. No I/O.

Spark settings that decide what a load can bear. No I/O, and no Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_kafka_eos.doctor.finding import Asked, ClusterSeen, Finding, Judgement, Unknown
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.producer.options import (
    OnlyLibrdkafkaError,
    ProducerOptions,
    check_setting_values,
)
from airflow_kafka_eos.load import TransactionScope, TwoPhaseCommit


def check_producer(settings: KafkaSettings, seen: ClusterSeen | None, asked: Asked) -> Finding:
    """As prepare will look at them, for ``writer="auto"``.

    :param seen: None where the cluster does not answer.
    """
    id, subject = "producer-settings", f"Kafka {settings.bootstrap_servers}"
    try:
        check_setting_values(settings)
        ProducerOptions.from_settings(settings)
    except OnlyLibrdkafkaError as e:
        found = Judgement(id, subject, e.message)
        if asked.scope is TransactionScope.LOAD or asked.two_phase_commit is TwoPhaseCommit.REQUIRED:
            return found.error("prepare refuses it: what the load asks for, the confluent writer cannot", e.remedy)
        if asked.two_phase_commit is TwoPhaseCommit.AUTO and _is_granted(seen):
            return found.error("prepare refuses it, for it would cost the load its two-phase commit", e.remedy)
        return found.warning("Loads are written row by row by the confluent writer, several times slower", e.remedy)
    except ConfigurationError as e:
        return Judgement(id, subject, e.message).error("prepare refuses it", e.remedy)
    return Judgement(id, subject, "known, and right").ok("The arrow writer goes by them")


def _is_granted(seen: ClusterSeen | None) -> bool:
    return seen is not None and not isinstance(seen.two_phase, Unknown) and seen.two_phase.is_granted


_SPARK = "Spark settings"


def check_spark(conf: Mapping[str, str], scope: TransactionScope) -> Iterator[Finding]:
    """Settings that a Spark connection, or ``spark_args``, brings along.

    In scope ``load`` the packaged application sets what is right by itself; what is set by hand wins over it.

    :param conf: by name, such as ``spark.speculation``.
    """
    yield _speculation(conf, scope)
    yield _task_failures(conf, scope)
    yield _stage_attempts(conf, scope)
    yield _decommission(conf, scope)


def _seen(id: str, key: str, conf: Mapping[str, str], scope: TransactionScope) -> Judgement:
    return Judgement(id, _SPARK, f"{key} {'is ' + conf[key] if key in conf else 'is not set'}, scope {scope.value}")


def _speculation(conf: Mapping[str, str], scope: TransactionScope) -> Finding:
    key = "spark.speculation"
    found = _seen("spark-speculation", key, conf, scope)
    if scope is TransactionScope.TASK:
        return found.ok("Each task attempt has a transaction of its own")
    if conf.get(key, "false").strip().lower() == "false":
        return found.ok("No task is run twice at once")
    return found.error(
        "Spark would run a task twice at once: prepare refuses that", f"--conf {key}=false, or scope=task"
    )


def _task_failures(conf: Mapping[str, str], scope: TransactionScope) -> Finding:
    key = "spark.task.maxFailures"
    found = _seen("spark-task-failures", key, conf, scope)
    value = conf.get(key)
    if scope is TransactionScope.LOAD and value not in (None, "1"):
        return found.warning(
            "A task that failed is run again only to find that it may not write: the attempt fails later",
            f"Remove {key}, or --conf {key}=1",
        )
    if scope is TransactionScope.TASK and value == "1":
        return found.warning("One lost executor fails the load, which scope task need not", f"Remove {key}")
    once = scope is TransactionScope.LOAD
    return found.ok("A failed task fails the attempt at once" if once else "A failed task is run again")


def _stage_attempts(conf: Mapping[str, str], scope: TransactionScope) -> Finding:
    key = "spark.stage.maxConsecutiveAttempts"
    found = _seen("spark-stage-attempts", key, conf, scope)
    if scope is TransactionScope.LOAD and conf.get(key, "1") != "1":
        return found.error(
            "Spark could run the writing stage twice: prepare refuses that", f"--conf {key}=1, or scope=task"
        )
    return found.ok("As it must be")


def _decommission(conf: Mapping[str, str], scope: TransactionScope) -> Finding:
    key = "spark.stage.ignoreDecommissionFetchFailure"
    found = _seen("spark-decommission", key, conf, scope)
    if scope is TransactionScope.LOAD and conf.get(key, "false").strip().lower() != "false":
        return found.error(
            "Spark could run the writing stage twice when a host is taken out of service: prepare refuses that",
            f"--conf {key}=false, or scope=task",
        )
    return found.ok("As it must be")
