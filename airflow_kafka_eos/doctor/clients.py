"""Settings of a load's clients: the Kafka connection's for producers, and Spark's. No I/O, and no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_kafka_eos.doctor.finding import Asked, ClusterSeen, Finding, Judgement
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.client.librdkafka import OnlyLibrdkafkaError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.producer.options import ProducerOptions, check_setting_values
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
            return found.error("prepare refuses it: the confluent writer cannot do what the load asks for", e.remedy)
        if asked.two_phase_commit is TwoPhaseCommit.AUTO and seen is not None and seen.grants_two_phase:
            return found.error("prepare refuses it: it would cost the load its two-phase commit", e.remedy)
        return found.warning("Loads are written row by row by the confluent writer, several times slower", e.remedy)
    except ConfigurationError as e:
        return Judgement(id, subject, e.message).error("prepare refuses it", e.remedy)
    return Judgement(id, subject, "all are known, and valid").ok("The arrow writer follows them")


#: In scope `load` nothing may run twice: finding, setting, the value that is right there, and what another one does.
_ONE_RUN = (
    ("spark-speculation", "spark.speculation", "false", "Spark would run a task twice at once"),
    (
        "spark-stage-attempts",
        "spark.stage.maxConsecutiveAttempts",
        "1",
        "Spark could run the writing stage twice",
    ),
    (
        "spark-decommission",
        "spark.stage.ignoreDecommissionFetchFailure",
        "false",
        "Spark could run the writing stage twice when a host is taken out of service",
    ),
)


def check_spark(conf: Mapping[str, str], scope: TransactionScope) -> Iterator[Finding]:
    """Settings that a Spark connection, or ``spark_args``, brings along.

    In scope ``load`` the packaged application sets what is right by itself; what is set by hand wins over it.

    :param conf: by name, such as ``spark.speculation``.
    """
    once = scope is TransactionScope.LOAD
    for id, key, right, means in _ONE_RUN:
        found = _seen(id, key, conf, scope)
        if once and conf.get(key, right).strip().lower() != right:
            yield found.error(f"{means}: prepare refuses that", f"--conf {key}={right}, or scope=task")
        else:
            yield found.ok("Nothing is run twice" if once else "Each task attempt has a transaction of its own")
    key = "spark.task.maxFailures"
    found, value = _seen("spark-task-failures", key, conf, scope), conf.get(key)
    if once and value not in (None, "1"):
        yield found.warning(
            "A failed task is run again, only to find that it may not write: the attempt fails later",
            f"Remove {key}, or --conf {key}=1",
        )
    elif not once and value == "1":
        yield found.warning("One lost executor fails the load. In scope task it need not", f"Remove {key}")
    else:
        yield found.ok("A failed task fails the attempt at once" if once else "A failed task is run again")


def _seen(id: str, key: str, conf: Mapping[str, str], scope: TransactionScope) -> Judgement:
    value = f"is {conf[key]}" if key in conf else "is not set"
    return Judgement(id, "Spark settings", f"{key} {value}, scope {scope.value}")
