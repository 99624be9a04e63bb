"""``foreachBatch`` with exactly-once batches: for Spark 3.5, which has no Python data sources, or who needs the frame.

    write = exactly_once(queryName="orders", topic="orders", checkpointLocation="/checkpoints/orders", …)

    def each(batch_df, batch_id):
        write(batch_df.select(…), batch_id)

    df.writeStream.foreachBatch(each).queryName("orders").option("checkpointLocation", "/checkpoints/orders").start()

It runs in the driver's own Python process, in the thread of the query or in an ``InheritableThread`` of it. Each batch
is written, an empty one too, and of each batch one frame: a second one under the same name would be taken for the
first, which comes again. The rows that are written are those of one action: a frame that is used for more should be
cached first.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
import uuid
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.manifest import ManifestEntry
from airflow_kafka_eos.spark.attempt_writer import PartReport
from airflow_kafka_eos.spark.write import check_complete
from airflow_kafka_eos.streams.messages import Message, Reports
from airflow_kafka_eos.streams.options import StreamOptions
from airflow_kafka_eos.streams.source import QUERY_ID, BatchWriter
from airflow_kafka_eos.streams.words import told_to_a_query

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Accumulator
    from pyspark.sql import DataFrame

#: Bytes of a pickled writer: what is larger Spark hands to executors by way of files, with the secrets in it.
_IN_MEMORY = 500_000
#: run -> (namespace, query name) -> the batch that a frame was handed over for last
_frames: dict[str, dict[tuple[str, str], int]] = {}
_noting = threading.Lock()


class exactly_once:
    """A function for ``foreachBatch``, or for the author's own to call. One is one run of a query.

    :param options: those of ``df.writeStream.format("kafka_eos")``; keys with dots by ``**{"load.namespace": …}``.
    :raises ConfigurationError: an option is missing, unknown, misshapen, or a secret.
    """

    def __init__(self, **options: str) -> None:
        self._options = StreamOptions.parse(options)
        self._identity = f"{socket.gethostname()[:120]} {uuid.uuid4().hex}"

    @told_to_a_query()
    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        """Write the batch, or see that it was committed before; back when every marker was seen.

        :raises ConfigurationError: a frame of this batch was handed over under the name before; or it comes in a thread
            that is not the query's.
        :raises KafkaEosError: see :mod:`airflow_kafka_eos.streams.driver`. The query fails, and goes on when it is
            started again.
        """
        # not where executors unpickle what is made here: they have no ledger
        from airflow_kafka_eos.streams.driver import begin, end, give_up

        query_id = batch_df.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        beside = self._check_first_frame(_run_of(batch_df, query_id, batch_id), batch_id)
        begun, writer = begin(
            self._options,
            batch_df.schema,
            os.environ,
            expected=(query_id, batch_id),
            identity=self._identity,
            beside=beside,
        )
        try:
            messages = _written(batch_df, BatchWriter(begun, writer, batch_df.schema, gets_arrow=True))
            if not messages:  # a frame without partitions has no task
                none = PartReport(ManifestEntry(0, None, ())) if writer is not None else None
                messages = [Message(begun.number, 0, none, False, begun)]
            end(self._options, messages, batch_id)
        except BaseException:
            give_up(self._options, batch_id, identity=self._identity)
            raise

    def _check_first_frame(self, run_id: str, batch_id: int) -> Collection[tuple[str, str]]:
        """Noted before anything is written: whether what failed was decided is not known here.

        :returns: the names of the run's frames, of those too that other threads hand over from now on.
        """
        options = self._options
        name = (options.namespace, options.name)
        with _noting:
            frames = _frames.setdefault(run_id, {})
            if frames.get(name) == batch_id:
                raise ConfigurationError(
                    f"a frame of batch {batch_id} of query {options.name!r} was handed over before: the second one "
                    "would be taken for the first, and not be written",
                    remedy="Write one frame of a batch: unite them, with a column topic for each record's topic; or "
                    "have an exactly_once with a queryName of its own for each",
                )
            frames[name] = batch_id
        return frames.keys()


def _run_of(batch_df: DataFrame, query_id: str | None, batch_id: int) -> str:
    """Spark's id of the query's run, whichever thread hands the frame over, and whatever job group it has.

    Of all sessions of the driver: that of the frame is a copy, which knows of no query.
    """
    session = batch_df.sparkSession
    context = session.sparkContext
    assert context._jvm is not None
    run = None
    if query_id is not None:
        queries = session._jsparkSession.sharedState().activeStreamingQueries()
        run = queries.get(context._jvm.java.util.UUID.fromString(query_id))
    if run is None:
        raise ConfigurationError(
            f"batch {batch_id} was handed over in a thread that does not belong to a query at work: which run of the "
            "query it is of is not known, nor whether it comes for the second time",
            remedy="Call `write(batch_df, batch_id)` in the thread that has called the function of foreachBatch; or "
            "in a `pyspark.InheritableThread` that the function starts, and waits for. For a pool, wrap what it calls "
            "by `pyspark.inheritable_thread_target` in each batch",
        )
    return str(run.runId())


def _written(frame: DataFrame, writer: BatchWriter) -> list[Message]:
    from pyspark import cloudpickle

    if len(cloudpickle.dumps(writer)) > _IN_MEMORY:  # type: ignore[no-untyped-call]
        raise ConfigurationError(
            "the writer of the batch is so large that Spark would hand it to executors in files, logins and all",
            remedy="Use transaction.naming=incrementing, whose writer has no list of ids, or Spark 4.0 with "
            'format("kafka_eos")',
        )
    reports = frame.sparkSession.sparkContext.accumulator([], Reports())
    found: list[Any] = frame.mapInArrow(task_of(writer, reports), "message binary").collect()
    messages: list[Message] = [pickle.loads(row.message) for row in found]
    if writer.writer is not None:
        check_complete(reports.value, [m.report for m in messages if m.report], writer.writer.options.attempt)
    return messages


def task_of(
    writer: BatchWriter, reports: Accumulator[list[PartReport]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What executors run, by pickle: they have nothing of the ledger (docs/adr/0031)."""

    # its name is what Spark's UI and plans show
    def kafka_eos(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        message = writer.write(batches)
        if message.report is not None:
            reports.add([message.report])
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(message)], pa.binary())], ["message"])

    return kafka_eos
