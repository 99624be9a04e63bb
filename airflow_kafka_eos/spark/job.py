"""The author's job in Spark: called, and its answer checked."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.spark.airflow_here import questions_refused
from airflow_kafka_eos.spark.chosen_range import without_until
from airflow_kafka_eos.spark.dag_file import shown_job
from airflow_kafka_eos.spark.find_job import by_value, find_job
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.spec import ApplicationSpec


def run_job(spec: ApplicationSpec, spark: SparkSession, store: ManifestStore) -> DataFrame:
    """Run the job or the SQL text. What the author's code raises passes through.

    :param store: is told where the range ends that the job has chosen.
    :raises ConfigurationError: the job is not found, asks Airflow for something, did not return a DataFrame, or does
        not keep to its range.
    """
    if spec.sql is not None:
        return spark.sql(spec.sql, args=spec.arguments) if spec.arguments else spark.sql(spec.sql)
    with questions_refused(f"the job {shown_job(spec.job, spec.arguments)}"):
        found = find_job(spec.job or "", loaded=by_value)(spark, **spec.arguments)
    return checked_frame(found, spec, store)


def checked_frame(found: object, spec: ApplicationSpec, store: ManifestStore) -> DataFrame:
    """What a job has returned, without where its range ends.

    :raises ConfigurationError: it is no DataFrame, or the job does not keep to its range.
    """
    found = without_until(found, spec, store)
    if not isinstance(found, DataFrame):
        rows = "" if found is None else ". Of rows, spark.createDataFrame(rows, schema) makes one"
        raise ConfigurationError(
            f"the job {shown_job(spec.job, spec.arguments)} returned "
            f"{'nothing' if found is None else type(found).__name__}, not a Spark DataFrame",
            remedy=f"Return the DataFrame that is to be loaded; the application writes it{rows}",
        )
    return found
