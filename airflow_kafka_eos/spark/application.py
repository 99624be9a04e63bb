"""The packaged spark-submit application: claims the attempt, runs the author's job, writes what it returns.

    spark-submit ... airflow_kafka_eos/spark/application.py --spec '<json>'      (or otherwise: :mod:`.spec_argument`)

The Kafka settings come in the environment variable AIRFLOW_KAFKA_EOS_KAFKA of the driver, or in a file that
AIRFLOW_KAFKA_EOS_KAFKA_FILE names (:mod:`.driver_secrets`), never on the command line. Exits with 1 on any error; an
error of this package is the last line that it prints, and what any other comes from is told in the last few, behind its
traceback (spark-submit sends both of a Python driver's streams to its own stdout).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from airflow_kafka_eos.spark.manifest_store import ManifestStore
    from airflow_kafka_eos.spark.orphan import StopWhenSuperseded
    from airflow_kafka_eos.spark.spec import ApplicationSpec


def _leave_own_folder() -> None:
    # spark-submit runs this file by its path and puts its folder first: our modules would hide others of their names
    here = Path(__file__).resolve().parent
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != here]


def main(arguments: list[str]) -> int:
    """Run the application.

    :returns: the exit code.
    """
    return run(arguments, prepare, _leave_word)


def run(
    arguments: list[str],
    work: Callable[[str], object],
    leave_word: Callable[[str, str], object] = lambda spec, text: None,
    *,
    at_orphaned: Callable[[], object] = lambda: None,
) -> int:
    """Do the work of a packaged application, and say what went wrong so that Airflow's task finds it.

    :param work: gets the text of the specification.
    :param leave_word: is told of an error, with the specification.
    :param at_orphaned: is called before this process ends because its Airflow task is gone.
    :returns: the exit code. Errors that are not ours, the author's among them, are printed with their traceback.
    """
    from airflow_kafka_eos.spark.airflow_here import prepare_for_airflow
    from airflow_kafka_eos.spark.errortext import FAILED, cause, gist, own_error
    from airflow_kafka_eos.spark.orphan import end_with_parent
    from airflow_kafka_eos.spark.spec_argument import read_spec

    end_with_parent(os.environ, at_orphaned)
    prepare_for_airflow(os.environ)
    parser = argparse.ArgumentParser(prog="airflow_kafka_eos application")
    parser.add_argument("--spec", required=True, help="ApplicationSpec as JSON, base64:<word>, @file or @s3://…")
    spec = parser.parse_args(arguments).spec
    try:
        spec = read_spec(spec)
        work(spec)
    except Exception as e:
        ours = own_error(e)
        if ours is not None:
            leave_word(spec, ours)
            print(_masked(ours), file=sys.stderr, flush=True)
            return 1
        print(_masked("".join(traceback.format_exception(e))), file=sys.stderr, end="")
        lines = cause(e)
        leave_word(spec, FAILED + gist(lines))
        # Airflow shows the last lines only, and Spark's errors end with a stack of the JVM's; none may look like ours
        for line in lines:
            print(_masked(f"{FAILED}{line}"), file=sys.stderr, flush=True)
        return 1
    return 0


def _masked(text: str) -> str:
    """Airflow masks a task's log file, and not what a LocalExecutor's scheduler prints of it."""
    from airflow_kafka_eos.reasons import without_known
    from airflow_kafka_eos.spark.errortext import secrets_of

    try:
        return without_known(text, secrets_of(os.environ))
    except Exception:  # what was handed over cannot be read, which may be the very error
        return text


def _leave_word(spec_text: str, text: str) -> None:
    """For the ledger's reason. The error itself is printed, whatever becomes of this."""
    from airflow_kafka_eos.spark.errortext import leave

    with contextlib.suppress(Exception):
        leave(spec_text, text, os.environ)


def prepare(spec_text: str) -> None:
    """Claim the attempt, run the job, write its DataFrame, and say what was prepared.

    :raises UndecidableError: the attempt was claimed before: a restarted driver, or a prepare that ran twice
        (rule: one-application-per-attempt).
    :raises SupersededError: the attempt was superseded or aborted meanwhile, and can never become visible.
    """
    from airflow_kafka_eos.amounts import duration_text, size_text
    from airflow_kafka_eos.spark.errortext import THIS_PROCESS
    from airflow_kafka_eos.spark.manifest_store import ManifestStore
    from airflow_kafka_eos.spark.spec import ApplicationSpec

    spec = ApplicationSpec.from_json(spec_text)
    claimant = f"{THIS_PROCESS}{uuid.uuid4().hex}"
    spec = replace(spec, options=replace(spec.options, claim=claimant))
    store, ref = ManifestStore(spec.options.manifest_dir), spec.options.attempt
    store.claim(ref, claimant)
    say(f"load {ref}: claimed by {claimant}")

    # only now: a driver that may not write need not start Spark
    from airflow_kafka_eos.spark.orphan import StopWhenSuperseded

    with StopWhenSuperseded(store, ref) as watch:
        took_s = _write(spec, store, watch)
    made = store.read(ref)
    say(
        f"load {ref}: prepared {made.records:,} records in {made.how}, {len(made.entries)} Spark partitions, "
        f"{size_text(made.bytes)}, {duration_text(took_s)}; manifest {store.path(ref)}"
    )


def _write(spec: ApplicationSpec, store: ManifestStore, watch: StopWhenSuperseded) -> float:
    """Run the job and write what it returns; the seconds that it took."""
    from airflow_kafka_eos.load import TransactionScope
    from airflow_kafka_eos.spark.formats.settings import RegistrySettings
    from airflow_kafka_eos.spark.formats.shaping import shape
    from airflow_kafka_eos.spark.job import run_job
    from airflow_kafka_eos.spark.no_retries import ONE_RUN, ran_once
    from airflow_kafka_eos.spark.progress import Progress, counter
    from airflow_kafka_eos.spark.versions import OLDEST, require_spark

    require_spark(OLDEST, "this package", "Point the Spark connection to a Spark that is newer")
    from airflow_kafka_eos.spark.write import arrow_batches, write

    options, ref = spec.options, spec.options.attempt
    one_for_all = options.scope is TransactionScope.LOAD
    spark = new_session(arrow_batches() | (ONE_RUN if one_for_all else {}))
    context = spark.sparkContext
    try:
        watch.cancels(context.cancelAllJobs)
        written = counter(context)
        with Progress(context, written, str(ref), say) as progress:
            frame = shape(
                run_job(spec, spark, store),
                spec.value_format,
                topics=options.topics,
                default_topic=options.default_topic,
                registry=RegistrySettings.from_environment(os.environ),
            )
            if one_for_all:
                from airflow_kafka_eos.spark.scope import own_partitions

                frame = own_partitions(frame, options)
            watch.check()
            say(f"load {ref}: writing to {', '.join(options.topics)}")
            group = f"kafka_eos {uuid.uuid4().hex}"
            context.setJobGroup(group, str(ref))
            write(frame, options, written)
            if ran_once(context, group):
                store.note_ran_once(ref)
        return progress.seconds
    finally:
        leave_server(context)
        spark.stop()  # before anything else is printed: it logs


def new_session(defaults: Mapping[str, str]) -> SparkSession:
    """Spark with these settings, but for those that the author has set himself: what cannot be is refused later."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    # without a JVM, SparkConf() is empty: what spark-submit was given is there only
    SparkContext._ensure_initialized()
    given = SparkConf()
    builder = SparkSession.builder
    for key, value in defaults.items():
        if not given.contains(key):
            builder = builder.config(key, value)
    Thread(target=_import_writers, daemon=True).start()
    return builder.getOrCreate()


def leave_server(context: SparkContext) -> None:
    """PySpark waits up to a second for the thread of its accumulators' server, which ends with this process; where it
    is a Unix socket (spark.python.unix.domain.socket.enabled), that also removes its file.
    """
    if isinstance(context._accumulatorServer.server_address, tuple):
        context._accumulatorServer = None  # type: ignore[assignment]


def _import_writers() -> None:
    """0.3 s of a core, while Python only waits for the JVM. What is wrong with them, the write finds out."""
    with contextlib.suppress(Exception):
        import airflow_kafka_eos.kafka.producer.writers  # noqa: F401


def say(line: str) -> None:
    """A line of the application's own among Spark's."""
    print(f"airflow-kafka-eos: {line}", flush=True)


if __name__ == "__main__":
    _leave_own_folder()
    sys.exit(main(sys.argv[1:]))
