"""Our own error, found again in what Spark makes of it.

Spark turns an exception of a Python data source into text inside a Java exception, with a long stack of both.
"""

from __future__ import annotations

import re

from airflow_kafka_eos import errors

_PRINTED = re.compile(r"^(\w+): (.+)$", re.MULTILINE)
#: What is imported before a task can look itself (:mod:`.installed`).
_NOT_THERE = re.compile(r"ModuleNotFoundError: No module named '(airflow_kafka_eos|kafka|xxhash|numpy|pyarrow)[.']")
_OURS = re.compile(r"airflow_kafka_eos\.errors\.(\w+): (.+)")


def own_error(exception: BaseException) -> str | None:
    """``"<class>: <message>"`` of our error, from the exception itself or from its text; None when it has none.

    With several (one of each failed task), the last terminal one: a retried task ends with it.
    """
    if isinstance(exception, errors.KafkaEosError):
        return f"{type(exception).__name__}: {exception}"
    found = [(name, text.strip()) for name, text in _OURS.findall(str(exception)) if name in errors.__all__]
    terminal = [f for f in found if issubclass(getattr(errors, f[0]), errors.TerminalError)]
    if not found:
        # the executors have not even our errors
        missing = _NOT_THERE.search(str(exception))
        return None if missing is None else f"{errors.ConfigurationError.__name__}: {_no_package(missing[1])}"
    return ": ".join((terminal or found)[-1])


def printed_error(text: str) -> tuple[type[errors.KafkaEosError], str] | None:
    """Class and message of our error that the packaged application printed on a line of its own; the last one."""
    found = [(name, message) for name, message in _PRINTED.findall(text) if name in errors.__all__]
    return (getattr(errors, found[-1][0]), found[-1][1].strip()) if found else None


def _no_package(name: str) -> errors.ConfigurationError:
    archived = name in ("airflow_kafka_eos", "kafka")
    return errors.ConfigurationError(
        f"the Python of Spark's executors (spark.pyspark.python) has no package {name}",
        remedy="Write an archive with airflow-kafka-eos spark-archive OUT.zip and ship it with "
        "spark_args={'py_files': 'OUT.zip'}, or install airflow-kafka-eos there"
        if archived
        else f"pip install {name} on every executor, and where the driver runs (docs/spark.md)",
    )
