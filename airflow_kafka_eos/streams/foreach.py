"""``foreachBatch`` with exactly-once batches: for Spark 3.5, which has no Python data sources, or who needs the frame.

    write = exactly_once(queryName="orders", topic="orders", checkpointLocation="/checkpoints/orders", …)

    def each(batch_df, batch_id):
        write(batch_df.select(…), batch_id)

    df.writeStream.foreachBatch(each).queryName("orders").option("checkpointLocation", "/checkpoints/orders").start()

It runs in the driver's own Python process, in the thread of the query. Of each batch one frame is written, and the rows
that are written are those of one action: a frame that is used for more should be cached first.
"""

from __future__ import annotations

import os
import pickle
import socket
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.accumulators import AccumulatorParam

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.manifest import ManifestEntry
from airflow_kafka_eos.spark.attempt_writer import PartReport
from airflow_kafka_eos.spark.write import check_complete
from airflow_kafka_eos.streams.driver import begin, end, give_up
from airflow_kafka_eos.streams.messages import Message
from airflow_kafka_eos.streams.options import StreamOptions
from airflow_kafka_eos.streams.source import QUERY_ID, BatchWriter, check_same_batch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

#: Bytes of a pickled writer: what is larger Spark hands to executors by way of files, with the secrets in it.
_IN_MEMORY = 500_000


class _Reports(AccumulatorParam[list[PartReport]]):
    """What accepted tasks report, beside their results."""

    def zero(self, value: list[PartReport]) -> list[PartReport]:
        return []

    def addInPlace(self, value1: list[PartReport], value2: list[PartReport]) -> list[PartReport]:
        value1.extend(value2)
        return value1


class exactly_once:
    """A function for ``foreachBatch``, or for the author's own to call. One is one run of a query.

    :param options: those of ``df.writeStream.format("kafka_eos")``; keys with dots by ``**{"load.namespace": …}``.
    :raises ConfigurationError: an option is missing, unknown, misshapen, or a secret.
    """

    def __init__(self, **options: str) -> None:
        self._options = StreamOptions.parse(options)
        self._identity = f"{socket.gethostname()[:120]} {uuid.uuid4().hex}"

    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        """Write the batch, or see that it was committed before; back when every marker was seen.

        :raises KafkaEosError: see :mod:`airflow_kafka_eos.streams.driver`. The query fails, and goes on when it is
            started again.
        """
        context = batch_df.sparkSession.sparkContext
        begun, writer = begin(self._options, batch_df.schema, os.environ, identity=self._identity)
        try:
            check_same_batch(begun.batch, context.getLocalProperty(QUERY_ID), str(batch_id))
            messages = _written(batch_df, BatchWriter(begun, writer, batch_df.schema, gets_arrow=True))
            if not messages:  # a frame without partitions has no task
                none = PartReport(ManifestEntry(0, None, ())) if writer is not None else None
                messages = [Message(begun.number, 0, none, False, begun)]
            end(self._options, messages, batch_id)
        except BaseException:
            give_up(self._options, batch_id, identity=self._identity)
            raise


def _written(frame: DataFrame, writer: BatchWriter) -> list[Message]:
    from pyspark import cloudpickle

    if len(cloudpickle.dumps(writer)) > _IN_MEMORY:  # type: ignore[no-untyped-call]
        raise ConfigurationError(
            "the writer of the batch is so large that Spark would hand it to executors in files, logins and all",
            remedy="Use transaction.naming=incrementing, whose writer has no list of ids, or Spark 4.0 with "
            'format("kafka_eos")',
        )
    reports = frame.sparkSession.sparkContext.accumulator([], _Reports())

    # its name is what Spark's UI and plans show
    def kafka_eos(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        message = writer.write(batches)
        if message.report is not None:
            reports.add([message.report])
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(message)], pa.binary())], ["message"])

    found: list[Any] = frame.mapInArrow(kafka_eos, "message binary").collect()
    messages: list[Message] = [pickle.loads(row.message) for row in found]
    if writer.writer is not None:
        check_complete(reports.value, [m.report for m in messages if m.report], writer.writer.options.attempt)
    return messages
