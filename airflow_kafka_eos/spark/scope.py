"""Scope ``load``: one transaction, written by all Spark tasks together.

Sequence numbers of a producer id must have one source in each Kafka partition. So each Kafka partition is owned by one
Spark task, and a task that is run a second time writes nothing (rule: scope-load-writes-once): nobody can take back, or
tell apart, what its first run has written. ``df.write`` needs a DataFrame that :func:`own_partitions` has arranged::

    own_partitions(df, options).write.format("kafka_eos").options(**options).mode("append").save()

The packaged application does this by itself. Each task checks that it gets no other's rows.

Rows with a key must go where their key says, through a shuffle. Rows without one may stay in their task, which gives
them partitions that it owns: that is done where the number of tasks is known before they run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_eos.errors import RecordError, TopicError
from airflow_kafka_eos.kafka.producer.arrow.partitioner import UnplacedRow, place
from airflow_kafka_eos.kafka.producer.interface import TopicLimits, unknown_partition, unknown_topic
from airflow_kafka_eos.kafka.producer.options import ProducerOptions
from airflow_kafka_eos.naming import IdRole
from airflow_kafka_eos.spark.no_retries import check_spark_settings
from airflow_kafka_eos.spark.options import WriteOptions, check_schema
from airflow_kafka_eos.spark.preflight import partitions_of
from airflow_kafka_eos.spark.versions import ARROW_FUNCTIONS, require_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from airflow_kafka_eos.kafka.client.settings import KafkaSettings

FUNCTION = "airflow_kafka_eos.spark.scope.own_partitions"
_PLACE = "kafka_eos place"
#: In the metadata of the column ``partition``: the topics' partitions that the rows were arranged for, and the tasks.
_ARRANGED, _TASKS = "kafka_eos.partitions", "kafka_eos.tasks"
#: The lower bits of ``monotonically_increasing_id()``: which row of its task it is.
_ROW_BITS = 33


@dataclass(frozen=True)
class Owners:
    """Which Spark task owns which Kafka partition: they are counted through, topic by topic, and dealt out.

    :param partitions: by topic.
    :param tasks: how many Spark tasks write.
    """

    partitions: Mapping[str, int]
    tasks: int

    @classmethod
    def of(cls, partitions: Mapping[str, int], tasks: int | None) -> Owners:
        """As many tasks as there are Kafka partitions, unless told otherwise."""
        every = sum(partitions.values())
        return cls(dict(partitions), min(tasks or every, every))

    def owners(self, codes: Any, partitions: Any) -> Any:
        """The owning task of each row.

        :param codes: per row the topic, as its place among the sorted topics.
        """
        counts = [self.partitions[name] for name in sorted(self.partitions)]
        firsts = np.cumsum([0, *counts[:-1]])
        return ((firsts[codes] + partitions) % self.tasks).astype(np.int32)


def own_partitions(
    frame: DataFrame, options: Mapping[str, str] | WriteOptions, settings: KafkaSettings | None = None
) -> DataFrame:
    """Fill the column ``partition`` as the writer would, and move each row to the task that owns its Kafka partition.

    :param frame: what is to be written.
    :param options: those of ``df.write.format("kafka_eos")``.
    :param settings: of Kafka; None: those of the options, and of the environment.
    :returns: the same rows, in ``transaction.tasks`` Spark partitions, or fewer. Rows of one Spark partition keep their
        order.
    :raises ConfigurationError: options or columns are wrong, a topic is missing, Spark may run a stage twice, or is too
        old.
    """
    from pyspark.sql import functions as F
    from pyspark.sql import types as t

    parsed = options if isinstance(options, WriteOptions) else WriteOptions.parse(options)
    check_schema(frame.schema, has_default_topic=parsed.default_topic is not None)
    session = frame.sparkSession
    # what the scheduler goes by are the context's settings; tasks will see the session's. A client of Spark Connect
    # sees the context's among the session's, where by default they cannot be changed
    if hasattr(frame, "_jdf"):
        running = session.sparkContext.getConf()
        check_spark_settings(lambda key: running.get(key, None))
    check_spark_settings(lambda key: session.conf.get(key, None))
    settings = settings or parsed.settings(os.environ)
    counts = partitions_of(settings, parsed)
    owners = Owners.of(counts, parsed.tasks)
    if len(counts) == 1 and not {"topic", "key", "partition"} & set(frame.columns):
        tasks = _tasks_as_they_are(frame)
        # fewer tasks than the rest of the plan could use would cost more than the shuffle that is saved
        if tasks and (tasks <= owners.tasks or owners.tasks >= session.sparkContext.defaultParallelism):
            return _left_in_place(frame, tasks, owners)
    require_spark(
        ARROW_FUNCTIONS,
        "transaction scope load, of rows that are to be shuffled to the tasks that own their Kafka partitions,",
        "Use scope task",
    )
    from pyspark.sql.pandas.functions import arrow_udf

    names = [n for n in frame.columns if n in ("topic", "key", "partition")]
    # a column there must be, to tell how many rows there are
    columns = [F.col(n) for n in names] or [F.monotonically_increasing_id()]
    place = arrow_udf(  # type: ignore[call-overload]  # its stubs know no type hints
        _placing(names, owners, parsed, ProducerOptions.from_settings(settings).partitioner),
        # made of types, not read from a text, which may be a class of Spark Connect's client for executors to import
        t.StructType([t.StructField("partition", t.IntegerType()), t.StructField("owner", t.IntegerType())]),
    ).asNondeterministic()
    partition = F.col(f"`{_PLACE}`.partition").alias("partition", metadata=_arrangement(owners))
    others = [F.col(n) for n in frame.columns if n != "partition"]
    return (
        frame.withColumn(_PLACE, place(*columns))
        .select(*others, partition, F.col(f"`{_PLACE}`.owner").alias(_PLACE))
        .repartitionById(owners.tasks, F.col(f"`{_PLACE}`"))
        .drop(_PLACE)
    )


def _tasks_as_they_are(frame: DataFrame) -> int | None:
    """How many tasks a DataFrame has whose plan has one stage; None where that is not known before it runs."""
    try:
        execution = frame._jdf.queryExecution()
        # behind an exchange the number is adaptive execution's, and asking for it would run what is before
        plan = str(execution.executedPlan().toString())
        if any(word in plan for word in ("Exchange", "AdaptiveSparkPlan", "Subquery", "InMemoryTableScan")):
            return None
        return int(execution.toRdd().getNumPartitions())
    except Exception:
        return None


def _left_in_place(frame: DataFrame, tasks: int, owners: Owners) -> DataFrame:
    """Rows without a key, in turn to the partitions that their task owns."""
    from pyspark.sql import functions as F

    if tasks > owners.tasks:
        frame = frame.coalesce(owners.tasks)
    owners = Owners.of(owners.partitions, min(tasks, owners.tasks))
    (every,) = owners.partitions.values()
    task = F.spark_partition_id()
    owned = F.floor((F.lit(every - 1) - task) / owners.tasks) + 1
    turn = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << _ROW_BITS) - 1)) % owned
    partition = (task + turn * owners.tasks).cast("int")
    return frame.select("*", partition.alias("partition", metadata=_arrangement(owners)))


def _arrangement(owners: Owners) -> dict[str, Any]:
    return {_ARRANGED: dict(owners.partitions), _TASKS: owners.tasks}


def _placing(
    names: list[str], owners: Owners, options: WriteOptions, partitioner: str
) -> Callable[[Iterator[Any]], Iterator[pa.Array]]:
    def one(columns: tuple[pa.Array, ...], start: int) -> pa.Array:
        batch = pa.RecordBatch.from_arrays(list(columns), names=names or ["any"])
        codes, partitions = placed(batch, owners, options, partitioner, start)
        found = [pa.array(partitions), pa.array(owners.owners(codes, partitions))]
        return pa.StructArray.from_arrays(found, names=["partition", "owner"])

    def every(batches: Iterator[Any]) -> Iterator[pa.Array]:
        from pyspark import TaskContext

        context = TaskContext.get()
        # rows without a key are spread in runs: each task, and each batch, begins elsewhere
        start = 0 if context is None else context.partitionId()
        for columns in batches:
            yield one(columns if isinstance(columns, tuple) else (columns,), start)
            start += 1

    # Spark reads from these that it is an iterator of one column, or of several
    columns = Iterator[pa.Array] if len(names) <= 1 else Iterator[tuple[pa.Array, ...]]
    every.__annotations__ = {"batches": columns, "return": Iterator[pa.Array]}
    return every


def placed(
    batch: pa.RecordBatch, owners: Owners, options: WriteOptions, partitioner: str, start: int = 0
) -> tuple[Any, Any]:
    """Topic (its place among the sorted topics) and partition of each row.

    :raises RecordError: a row's topic or partition is not there.
    """
    try:
        return place(batch, owners.partitions, options.default_topic, partitioner, start=start)
    except UnplacedRow as e:
        limits = {name: TopicLimits(count, 0) for name, count in owners.partitions.items()}
        target = options.target(options.attempt.common_id(IdRole.LOAD), limits)
        if e.partition is None:
            raise unknown_topic(e.topic, target) from None
        raise unknown_partition(e.topic or "", e.partition, target) from None


def check_arrangement(schema: StructType, partitions: Mapping[str, int], options: WriteOptions) -> int | None:
    """Refuse rows that were arranged while a topic had fewer partitions: their keys would be in the wrong ones.

    :param schema: of the DataFrame that is written; nothing is known of one that has lost the metadata of its columns.
    :param partitions: by topic, as they are now.
    :returns: for how many tasks they were arranged; None: not known.
    :raises TopicError: naming both.
    """
    metadata = next((f.metadata for f in schema.fields if f.name == "partition"), {})
    arranged = metadata.get(_ARRANGED)
    if arranged is not None and arranged != dict(partitions):
        raise TopicError(
            f"the rows were arranged for topics with these partitions: {arranged}; now they have {dict(partitions)}",
            remedy="Clear prepare; or arrange the DataFrame with own_partitions(df, options) again, and write it then",
            **options.attempt.ids,
        )
    return metadata.get(_TASKS)


def check_own_rows(batch: pa.RecordBatch, task: int, owners: Owners, options: WriteOptions) -> None:
    """Refuse a batch that another task's rows are in.

    :param task: the Spark partition.
    :raises RecordError: a row has no partition, or one that this task does not own.
    """
    remedy = f"Arrange the DataFrame with {FUNCTION}(df, options) and write what it returns, as it is"
    index = batch.schema.get_field_index("partition")
    if index < 0 or batch.column(index).null_count:
        raise RecordError("in scope load each row must name its partition, some do not", remedy=remedy)
    # one look at each different pair of topic and partition, not at each row: they are few in a task
    column = batch.column(index)
    topics = batch.column("topic") if "topic" in batch.schema.names else pa.nulls(len(batch), pa.string())
    if topics.null_count == len(topics):
        pairs = [pa.nulls(len(found := pc.unique(column)), pa.string()), found]
    else:
        table = pa.table([topics, column], names=["topic", "partition"]).group_by(["topic", "partition"])
        pairs = table.aggregate([]).combine_chunks().to_batches()[0].columns
    few = pa.RecordBatch.from_arrays(pairs, names=["topic", "partition"])
    codes, partitions = placed(few, owners, options, "murmur2_random")
    foreign = np.flatnonzero(owners.owners(codes, partitions) != task)
    if len(foreign):
        row = foreign[0]
        topic = sorted(owners.partitions)[codes[row]]
        raise RecordError(
            f"Spark task {task} of {owners.tasks} has a row of partition {partitions[row]} of topic {topic!r}, which "
            "is another task's: in scope load each Kafka partition is written by one",
            remedy=remedy,
        )
