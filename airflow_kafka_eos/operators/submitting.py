"""What stands around a spark-submit: settings and their secrets handed over, and the application's own error first."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_kafka_eos.errors import (
    AccessError,
    BrokerTooOldError,
    ConfigurationError,
    KafkaEosError,
    RecordError,
    SupersededError,
)


@contextmanager
def private_files(texts: Mapping[str, str]) -> Iterator[dict[str, Path]]:
    """A file for each text that this user alone may read, gone afterwards.

    :param texts: by variable.
    """
    with TemporaryDirectory(prefix="airflow-kafka-eos-") as folder:
        paths = {variable: Path(folder) / f"{variable.lower()}.json" for variable in texts}
        for variable, path in paths.items():
            path.touch(mode=0o600)
            path.write_text(texts[variable], encoding="utf-8")
        yield paths


@contextmanager
def environment(texts: Mapping[str, str], local: bool) -> Iterator[None]:
    """Hand the cluster's and the registry's settings to the Spark driver by environment: all else is shown.

    Set on this process, not by the hook's ``env_vars``: on YARN and Kubernetes those become ``--conf`` arguments.
    """
    from airflow_kafka_eos.spark.airflow_here import NO_DATABASE
    from airflow_kafka_eos.spark.orphan import PARENT_VARIABLE, identity_of
    from airflow_kafka_eos.spark.quick_python import quick_python

    with quick_python() as python:
        # the driver sets it for itself; here for the executors of a local master, which inherit this environment too
        wanted = {**texts, PARENT_VARIABLE: identity_of(os.getpid()), NO_DATABASE: "1"}
        if "PYSPARK_DRIVER_PYTHON" not in os.environ:
            wanted["PYSPARK_DRIVER_PYTHON"] = python  # client mode: the driver runs here, with our package
        if local and "PYSPARK_PYTHON" not in os.environ:
            wanted["PYSPARK_PYTHON"] = python
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


@contextmanager
def own_error_first() -> Iterator[None]:
    """Say what the application said, before spark-submit's command line and the tail of its output.

    An error that the next attempt would meet too ends the task without retries.
    """
    from airflow_kafka_eos.spark.errortext import printed_error

    try:
        yield
    except AirflowException as e:
        found = printed_error(str(e))
        if found is None:
            raise
        kind, message = found
        # superseded: a retry would open one attempt more, and so stop the one that has superseded this one
        final = issubclass(kind, (ConfigurationError, AccessError, BrokerTooOldError, RecordError, SupersededError))
        raise (AirflowFailException if final else AirflowException)(f"{kind.__name__}: {message}") from e


def reason_of(error: BaseException) -> str:
    """Why prepare failed, for the ledger, which more people read than prepare's log.

    What spark-submit's error repeats of the command and the driver's output stays in that log: of our own error among
    it, only the class is kept, for an author's may look like one.
    """
    from airflow_kafka_eos.spark.errortext import printed_error

    if isinstance(error, KafkaEosError):
        return f"{type(error).__name__}: {error}"
    printed = printed_error(str(error))
    kind = type(error).__name__ if printed is None else f"{type(error).__name__} ({printed[0].__name__})"
    return f"{kind}: see prepare's log"
