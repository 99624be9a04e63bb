"""What stands around a spark-submit: settings and their secrets handed over, and the application's own error first."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_kafka_eos.errors import (
    AccessError,
    BrokerTooOldError,
    ConfigurationError,
    RecordError,
    SupersededError,
)

log = logging.getLogger(__name__)

#: How SparkSubmitHook's error begins; a command line of a kilobyte follows.
_SUBMIT_FAILED = "Cannot execute: "
_ERROR_CODE = re.compile(r"Error code is: (-?\d+)")


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
def own_error_first(word: Callable[[], str | None] = lambda: None) -> Iterator[None]:
    """Say what the application said, before spark-submit's command line and the tail of its output.

    An error that the next attempt would meet too ends the task without retries.

    :param word: asks for what the application has left as its reason, where its output does not reach this process.
    """
    from airflow_kafka_eos.spark.errortext import gist, printed_cause, printed_error

    try:
        yield
    except AirflowException as e:
        printed = str(e)
        found, lines = printed_error(printed), printed_cause(printed)
        if found is None and not lines and (left := _asked(word)):
            found, lines = printed_error(left), printed_cause(left)
        if found is not None:
            kind, message = found
            # superseded: a retry would open one attempt more, and so stop the one that has superseded this one
            final = issubclass(kind, (ConfigurationError, AccessError, BrokerTooOldError, RecordError, SupersededError))
            raise (AirflowFailException if final else AirflowException)(f"{kind.__name__}: {message}") from e
        if lines:
            raise AirflowException(f"the Spark application failed: {gist(lines)}") from e
        if isinstance(e, AirflowFailException) or not printed.startswith(_SUBMIT_FAILED):
            raise
        code = _ERROR_CODE.search(printed)
        raise AirflowException(
            f"spark-submit ended with exit code {code[1] if code else 'unknown'}, and the application has left no word "
            "why: it did not begin, or was killed. The lines above say more"
        ) from e


def _asked(word: Callable[[], str | None]) -> str | None:
    try:
        return word()
    except Exception as e:  # a store that is away must not hide the error
        log.debug("whether the application has left a word is not known: %s", e)
        return None
