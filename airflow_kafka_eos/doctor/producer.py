"""The connection's settings for producers: what prepare would refuse, and what costs two-phase commit. No I/O."""

from __future__ import annotations

from airflow_kafka_eos.doctor.finding import Finding, Judgement, Unknown
from airflow_kafka_eos.doctor.seen import Asked, ClusterSeen
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.producer_options import OnlyLibrdkafkaError, ProducerOptions
from airflow_kafka_eos.kafka.setting_values import refuse_wrong_values
from airflow_kafka_eos.kafka.settings import KafkaSettings
from airflow_kafka_eos.load import TransactionScope, TwoPhaseCommit


def check(settings: KafkaSettings, seen: ClusterSeen | None, asked: Asked) -> Finding:
    """As prepare will look at them, for ``writer="auto"``.

    :param seen: None where the cluster does not answer.
    """
    id, subject = "producer-settings", f"Kafka {settings.bootstrap_servers}"
    try:
        refuse_wrong_values(settings)
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
