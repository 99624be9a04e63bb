"""For the doctor: is a Spark Connect server there, and have its executors package, login and the right cluster?"""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.connect.logins import check_login_id, split
from airflow_kafka_eos.connect.remote import Remote, SparkFailed, opened, told
from airflow_kafka_eos.connect.shipped import own_version, shipped
from airflow_kafka_eos.doctor.finding import Finding, Judgement
from airflow_kafka_eos.errors import KafkaEosError
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import TransactionScope
from airflow_kafka_eos.protocol import fences
from airflow_kafka_eos.spark.no_retries import ONE_RUN, run_again_by

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from airflow_kafka_eos.kafka.client.settings import KafkaSettings

#: Tasks of one look: several hosts may answer, and nobody can ask for each.
_TASKS = 8


def examine(
    remote: Remote, settings: KafkaSettings | None, kafka_conn_id: str, scope: TransactionScope
) -> list[Finding]:
    """All checks. What cannot be checked is said, and raises nothing.

    :param settings: of the Kafka connection; None when Kafka is not asked about.
    :param scope: of the load.
    """
    subject = str(remote)
    try:
        with opened(remote) as spark:
            with told(remote):
                version, conf = spark.version, dict(spark.conf.getAll)
            found = [
                Judgement("connect-reachable", subject, f"Spark {version}").ok(
                    "It answers, and accepts the login"
                )
            ]
            found.append(_runs_once(subject, conf, scope))
            found.append(_of_executors(spark, remote, subject))
            if settings is not None and found[-1].severity.value == "ok":
                found.append(_of_kafka(spark, remote, subject, settings, kafka_conn_id))
            return found
    except (KafkaEosError, SparkFailed) as e:
        judged = Judgement("connect-reachable", subject, getattr(e, "message", str(e)))
        return [judged.error("No load can be prepared by it", getattr(e, "remedy", ""))]


def _runs_once(subject: str, conf: dict[str, str], scope: TransactionScope) -> Finding:
    wrong = [f"{key}={ONE_RUN[key]}" for key in run_again_by(conf.get)]
    judged = Judgement(
        "connect-runs-once", subject, f"scope {scope.value}, not set: {', '.join(wrong) or 'nothing'}"
    )
    remedy = "Start the server with " + " ".join(f"--conf {text}" for text in wrong)
    if not wrong:
        return judged.ok("Spark runs no stage twice, and no task twice at once")
    if scope is TransactionScope.LOAD:
        return judged.error("prepare refuses it: Spark could run the writing stage a second time", remedy)
    return judged.warning(
        f"It cannot be told whether Spark has run something twice: cleanup waits {fences.QUIET_S:g} s behind each load",
        remedy,
    )


def _of_executors(spark: SparkSession, remote: Remote, subject: str) -> Finding:
    from airflow_kafka_eos.connect.task import LOOK

    try:
        _asked(spark, remote, LOOK, b"")
    except (KafkaEosError, SparkFailed) as e:
        judged = Judgement("connect-package", subject, getattr(e, "message", str(e)))
        return judged.error("Nothing can be written by it", getattr(e, "remedy", ""))
    return Judgement("connect-package", subject, f"airflow-kafka-eos {own_version()}").ok(
        "Executors have it, too"
    )


def _of_kafka(
    spark: SparkSession, remote: Remote, subject: str, settings: KafkaSettings, kafka_conn_id: str
) -> Finding:
    from airflow_kafka_eos.connect.task import REACH

    login = remote.login_of(kafka_conn_id)
    try:
        check_login_id(login)
        with Wire(settings, timeout_s=10) as wire:
            here = wire.cluster_id()
        sent, kept = split(settings)
        seen = _asked(spark, remote, REACH, pickle.dumps((sent, login, kept)))
    except (KafkaEosError, SparkFailed) as e:
        judged = Judgement("connect-login", subject, getattr(e, "message", str(e)))
        return judged.error("Executors cannot write", getattr(e, "remedy", ""))
    hosts = sorted({str(one["host"]) for one in seen})
    clusters = sorted({str(one["cluster_id"]) for one in seen})
    judged = Judgement(
        "connect-login", subject, f"login {login}: {', '.join(hosts)} come to cluster {', '.join(clusters)}"
    )
    if clusters != [str(here)]:
        return judged.error(
            f"Airflow comes to {here}: nothing will be written",
            f"Put bootstrap.servers of {here} into the file of the login {login}",
        )
    return judged.ok("Executors log in, and come to the same cluster as Airflow")


def _asked(spark: SparkSession, remote: Remote, function: str, work: bytes) -> list[dict[str, Any]]:
    from airflow_kafka_eos.connect.task import schema

    with told(remote):
        frame = spark.range(0, _TASKS, numPartitions=_TASKS)
        table = frame.mapInArrow(shipped(function, work), schema()).toArrow()
    return [json.loads(text.as_py()) for text in table.column(0)]
