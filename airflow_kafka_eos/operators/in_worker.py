"""engine="arrow": what prepare does in its own process instead of a spark-submit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.arguments import check_whole_number
from airflow_kafka_eos.errors import ConfigurationError, KafkaEosError
from airflow_kafka_eos.load import Engine
from airflow_kafka_eos.operators.submitting import for_airflow
from airflow_kafka_eos.spark.dag_file import JOB, function_here

if TYPE_CHECKING:
    from airflow_kafka_eos.hooks import Resolved
    from airflow_kafka_eos.operators.preparing import Taken
    from airflow_kafka_eos.spark.formats.settings import RegistrySettings
    from airflow_kafka_eos.spark.manifest_store import ManifestStore

log = logging.getLogger(__name__)

#: Of one batch of a stream: a worker has a few hundred megabytes to itself, at least.
BATCH_BYTES = 256 * 1024 * 1024


def runner(
    job: str,
    job_args: Mapping[str, Any],
    resolved: Resolved,
    registry: RegistrySettings | None,
    store: ManifestStore,
    *,
    batch_bytes: int,
    max_records: int | None,
    stop: threading.Event,
) -> Callable[[Taken], None]:
    """What prepares an attempt.

    :param stop: ends it between two batches.
    :raises ConfigurationError: there is no such job: found out before an attempt is taken.
    """
    function = _bound(job, job_args)

    def run(taken: Taken) -> None:
        from airflow_kafka_eos.arrow.engine import prepare
        from airflow_kafka_eos.arrow.stream import Bounds
        from airflow_kafka_eos.spark.spec import ApplicationSpec

        try:
            prepare(
                ApplicationSpec.from_json(taken.spec),
                resolved.settings,
                store,
                function,
                bounds=Bounds(batch_bytes, max_records),
                stop=stop,
                say=log.info,
                registry=registry,
            )
        except KafkaEosError as e:
            raise for_airflow(type(e), str(e)) from e

    return run


def _bound(job: str, job_args: Mapping[str, Any]) -> Callable[..., Any]:
    if job != JOB:
        from airflow_kafka_eos.spark.find_job import find_job

        return partial(find_job(job, where="where prepare runs"), **job_args)
    return partial(function_here(job_args), **job_args["arguments"])


def check_engine(engine: str, sql: Any, max_batch_bytes: Any) -> None:
    """
    :raises ConfigurationError: engine="arrow" was asked for, and what only Spark has; or its bound is no number.
    """
    check_whole_number("max_batch_bytes", max_batch_bytes, least=1, required=True)
    if engine != Engine.ARROW:
        return
    if sql is not None:
        raise ConfigurationError(
            "sql=… is Spark's SQL, and engine='arrow' starts no Spark",
            remedy="Run the query in a job, such as duckdb.sql('…'), and return what it gives; or use engine='spark'",
        )
