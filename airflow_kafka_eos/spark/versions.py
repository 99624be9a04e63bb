"""What needs a newer Spark than the oldest that a load runs on (docs/compatibility.md has the table).

Spark 3.5 has no Python data sources, so ``format("kafka_eos")`` is not there; the packaged application writes without
it. What needs Spark 4.1 says so before anything is written.
"""

from __future__ import annotations

from airflow_kafka_eos.errors import ConfigurationError

#: mapInArrow, as it is used here
OLDEST = (3, 5)
#: functions over Arrow arrays, and rows that say to which task they go (``DataFrame.repartitionById``)
ARROW_FUNCTIONS = (4, 1)
#: Python data sources
PYTHON_SOURCES = (4, 0)
#: ``spark.sql.execution.arrow.maxBytesPerBatch``
BATCHES_BY_BYTES = (4, 0)


def is_at_least(version: tuple[int, int]) -> bool:
    """Whether this process's pyspark is of that version or newer."""
    import pyspark

    major, minor = pyspark.__version__.split(".")[:2]
    return (int(major), int(minor)) >= version


def require_spark(needed: tuple[int, int], what: str, remedy: str) -> None:
    """
    :param needed: the oldest Spark that can do it.
    :param what: what is asked for, such as ``value_format=confluent-avro``.
    :param remedy: what to do where Spark stays as it is.
    :raises ConfigurationError: this process's pyspark is older.
    """
    if not is_at_least(needed):
        import pyspark

        raise ConfigurationError(
            f"{what} needs Spark {needed[0]}.{needed[1]} or newer, and this is {pyspark.__version__}", remedy=remedy
        )
