"""The packaged application's write: the data source's, less the Python processes that Spark starts for one.

Spark 4.2 finds, plans, commits and aborts a write to a Python data source in processes of their own on the driver: a
core's second per write (bench/AIRFLOW.md). Between them it runs a mapInArrow over the tasks, and that is what is left
here (docs/adr/0021).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pyspark.accumulators import AccumulatorParam

from airflow_kafka_eos.manifest import ManifestEntry
from airflow_kafka_eos.spark.datasource import KafkaEosDataSource, PreparedPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class _Reports(AccumulatorParam[list[PreparedPartition]]):
    """What tasks report, for the driver to have when the write fails as a whole."""

    def zero(self, value: list[PreparedPartition]) -> list[PreparedPartition]:
        return []

    def addInPlace(self, value1: list[PreparedPartition], value2: list[PreparedPartition]) -> list[PreparedPartition]:
        value1.extend(value2)
        return value1


def write(frame: DataFrame, options: Mapping[str, str]) -> None:
    """``frame.write.format("kafka_eos").options(**options).mode("append").save()``, with the same outcome.

    Of each Spark partition one task attempt counts, the one whose result Spark takes, as with its commit coordinator;
    an attempt whose result it does not take has no say any more, and cleanup finds its transaction.

    :raises KafkaEosError: what :class:`KafkaEosDataSource` and its writer raise.
    """
    if find_spec("pandas") is None:
        # mapInArrow asks for it, and has no use for it: a Spark of the user's own may do without
        frame.sparkSession.dataSource.register(KafkaEosDataSource)
        frame.write.format(KafkaEosDataSource.name()).options(**options).mode("append").save()
        return
    writer = KafkaEosDataSource(dict(options)).writer(frame.schema, overwrite=False)
    reports = frame.sparkSession.sparkContext.accumulator([], _Reports())

    # its name is what Spark's UI and plans show
    def kafka_eos(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        report = writer.write(batches)
        reports.add([report])
        yield pa.record_batch([pa.array([pickle.dumps(report)])], names=["report"])

    try:
        rows = frame.mapInArrow(kafka_eos, "report binary").collect()
        # a DataFrame without partitions has no task: the data source gets an empty one
        taken = [pickle.loads(row.report) for row in rows] or [PreparedPartition(ManifestEntry(0, None, ()))]
        writer.commit(taken)
    except BaseException:
        writer.abort(reports.value)
        raise
