"""The packaged spark-submit application: claims the attempt, runs the author's job, writes what it returns.

    spark-submit ... airflow_kafka_eos/spark/application.py --spec '<json>'      (or --spec @file)

The Kafka settings come in the environment variable AIRFLOW_KAFKA_EOS_KAFKA of the driver, never on the command
line. Exits with 1 on any error; an error of this package is the last line that it prints (spark-submit sends both of
a Python driver's streams to its own stdout).
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import uuid
from pathlib import Path


def _leave_own_folder() -> None:
    # spark-submit runs this file by its path and puts its folder first: our modules would hide others of their names
    here = Path(__file__).resolve().parent
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != here]


def main(arguments: list[str]) -> int:
    """Run the application.

    :returns: the exit code. Errors of the author's own code are raised.
    """
    from airflow_kafka_eos.spark.errortext import own_error
    from airflow_kafka_eos.spark.orphan import end_with_parent

    end_with_parent(os.environ)
    parser = argparse.ArgumentParser(prog="airflow_kafka_eos application")
    parser.add_argument("--spec", required=True, help="ApplicationSpec as JSON, or @file")
    spec = parser.parse_args(arguments).spec
    try:
        prepare(Path(spec[1:]).read_text(encoding="utf-8") if spec.startswith("@") else spec)
    except Exception as e:
        ours = own_error(e)
        if ours is None:
            raise
        print(ours, file=sys.stderr, flush=True)
        return 1
    return 0


def prepare(spec_text: str) -> None:
    """Claim the attempt, run the job, write its DataFrame, and say what was prepared.

    :raises UndecidableError: the attempt was claimed before: a restarted driver, or a prepare that ran twice (rule 3).
    """
    from airflow_kafka_eos.spark.manifest_store import ManifestStore
    from airflow_kafka_eos.spark.spec import ApplicationSpec

    spec = ApplicationSpec.from_json(spec_text)
    store = ManifestStore(spec.manifest_dir)
    claimant = f"{socket.gethostname()} process {os.getpid()}, {uuid.uuid4().hex}"
    store.claim(spec.attempt, claimant)
    _say(f"{spec.attempt}: claimed by {claimant}")

    # only now: a driver that may not write need not start Spark
    from pyspark.sql import SparkSession

    from airflow_kafka_eos.spark.datasource import KafkaEosDataSource
    from airflow_kafka_eos.spark.job import run_job

    spark = SparkSession.builder.getOrCreate()
    try:
        spark.dataSource.register(KafkaEosDataSource)
        frame = run_job(spec, spark)
        _say(f"{spec.attempt}: writing to {', '.join(spec.topics)}")
        frame.write.format("kafka_eos").options(**write_options(spec, claimant)).mode("append").save()
    finally:
        spark.stop()  # before anything else is printed: it logs
    made = store.read(spec.attempt)
    _say(
        f"{spec.attempt}: prepared {made.records} records in {len(made.transactions)} transactions, "
        f"{len(made.entries)} Spark partitions; manifest {store.path(spec.attempt)}"
    )


def write_options(spec: object, claimant: str) -> dict[str, str]:
    """The options of the data source for a specification."""
    from airflow_kafka_eos.spark.spec import ApplicationSpec

    assert isinstance(spec, ApplicationSpec)
    load = spec.attempt.load
    return {
        "topics": ",".join(spec.topics),
        "load.namespace": load.namespace,
        "load.name": load.name,
        "load.key": load.key,
        "load.attempt": str(spec.attempt.attempt),
        "load.claim": claimant,
        "ledger.id": spec.attempt.ledger_id,
        "manifest.dir": spec.manifest_dir,
        "transaction.timeout.ms": str(spec.transaction_timeout_ms),
        "deadline.ms": str(spec.deadline_ms),
    }


def _say(line: str) -> None:
    print(f"airflow-kafka-eos: {line}", flush=True)


if __name__ == "__main__":
    _leave_own_folder()
    sys.exit(main(sys.argv[1:]))
