"""The fast writer: record batches straight from Arrow columns, sent by a pipelined producer of our own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_kafka_eos.errors import ProducerFencedError
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import PipelinedWire
from airflow_kafka_eos.kafka.producer.arrow.batcher import Batcher, TooLarge
from airflow_kafka_eos.kafka.producer.arrow.columns import pieces, read
from airflow_kafka_eos.kafka.producer.arrow.encoding import Columns
from airflow_kafka_eos.kafka.producer.arrow.partitioner import UnplacedRow, place
from airflow_kafka_eos.kafka.producer.arrow.sender import Sender
from airflow_kafka_eos.kafka.producer.arrow.sent_transaction import ANSWER_S, SentTransaction
from airflow_kafka_eos.kafka.producer.interface import (
    TopicLimits,
    WriteTarget,
    already_prepared,
    check_unchanged,
    left_ms,
    too_large,
    too_old,
    unknown_partition,
    unknown_topic,
)
from airflow_kafka_eos.kafka.producer.options import ProducerOptions
from airflow_kafka_eos.kafka.records.compression import compressor
from airflow_kafka_eos.kafka.records.kernel import kernel
from airflow_kafka_eos.manifest import PartitionWrites
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState, TopicPartition


class ArrowWriter(SentTransaction):
    """A :class:`~airflow_kafka_eos.kafka.producer.interface.TransactionWriter` that touches no row in Python.

    :param now_ms: the clock that the deadline is read from, milliseconds since the epoch.
    :param wire: see :class:`~airflow_kafka_eos.kafka.producer.arrow.sent_transaction.SentTransaction`, as
        ``keeps_wire``.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        target: WriteTarget,
        *,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        wire: PipelinedWire | None = None,
        keeps_wire: bool = False,
    ) -> None:
        options = ProducerOptions.from_settings(settings)
        super().__init__(settings, target.transactional_id, options, wire, keeps_wire=keeps_wire)
        self._target = target
        self._shared = target.shared is not None
        self._codec = compressor(self._options.compression, self._options.compression_level)
        self._now_ms = now_ms
        self._topics: Mapping[str, TopicLimits] = target.topics
        self._counts = {name: limits.partitions for name, limits in target.topics.items()}
        names = sorted(self._counts)
        self._places = [TopicPartition(name, p) for name in names for p in range(self._counts[name])]
        self._oldest = np.array([target.topics[name].oldest_timestamp_ms for name in names], np.int64)
        # where each topic's partitions begin among all places
        self._first_place = np.cumsum([0, *(self._counts[name] for name in names)], dtype=np.int32)
        # rows without a key begin at another partition in each Spark task: small tasks must not all fill the first
        self._run = target.transactional_id.spark_partition or 0
        self._prepared = False
        self._batcher: Batcher | None = None

    # -- the writer's interface ----------------------------------------------------------------------------------

    def open(self) -> PreparedTxnState:
        """See the interface. InitProducerId is sent here and nowhere else; in scope ``load``, not at all.

        Rule: one-init-per-transaction.
        """
        self._look()  # before anything is asked: this may be another cluster, which says no more than that it refuses
        wire = self._connect()
        wire.timeout_s = min(ANSWER_S, self._left_ms() / 1000)
        self._topics = self._identified(wire)
        self._state = self._target.shared or self._coordinator(wire).init_producer_id(
            self._id,
            self._target.transaction_timeout_ms,
            enable_2pc=self._target.two_phase_commit,
            # it is sent again until it is answered: never beyond the deadline, nor when the attempt is over
            before_sending=self._may_begin,
        )
        wire.timeout_s = ANSWER_S
        ids = {name: limits.topic_id or "" for name, limits in self._topics.items()}
        self._make_sender(wire, ids, self._target.look)
        self._batcher = Batcher(
            self._state,
            {name: limits.max_message_bytes for name, limits in self._target.topics.items()},
            self._options.batch_bytes,
            self._codec,
            self._tally,
            self._now_ms,
            kernel(),
        )
        return self._state

    def write(self, batch: pa.RecordBatch) -> None:
        """See the interface. Waits while more than ``queue.buffering.max.kbytes`` are not acknowledged."""
        sender, batcher = self._opened()
        if self._prepared:
            raise already_prepared(self._target)
        for piece in pieces(batch):
            columns = read(piece, self._target, self._now_ms())
            try:
                topics, partitions = place(
                    piece, self._counts, self._target.default_topic, self._options.partitioner, start=self._run
                )
                self._run += 1
                self._check_timestamps(columns, topics)
                for sealed in batcher.add(columns, self._first_place[topics] + partitions, self._places):
                    sender.put(sealed)
            except UnplacedRow as e:
                if e.partition is None or e.topic is None:
                    raise unknown_topic(e.topic, self._target) from None
                raise unknown_partition(e.topic, e.partition, self._target) from None
            except TooLarge as e:
                key = None if columns.key is None else columns.key[e.row].as_py()
                topic, partition = e.partition.topic, e.partition.partition
                raise too_large(topic, partition, e.size, self._target, key) from None

    def prepare(self) -> tuple[PreparedTransaction, tuple[PartitionWrites, ...]]:
        """See the interface."""
        sender, batcher = self._opened()
        for sealed in batcher.finish():
            sender.put(sealed)
        self._prepared = True  # nothing is written behind what is reported
        self._flush(sender, "sent", "Clear prepare to write again")
        assert self._wire is not None
        check_unchanged(self._topics, Partitions(self._wire).topic_info(self._topics), self._id)
        return self._confirm(), self._tally.writes()

    # -- private -------------------------------------------------------------------------------------------------

    def _left_ms(self) -> int:
        return left_ms(self._target.deadline_ms, self._now_ms(), self._id)

    def _look(self) -> None:
        if self._target.look is not None:
            self._target.look()

    def _may_begin(self) -> None:
        """Rule: writers-have-a-deadline."""
        self._left_ms()
        self._look()

    def _check_timestamps(self, columns: Columns, topics: npt.NDArray[np.int32]) -> None:
        if columns.timestamps is None:
            return
        late = np.flatnonzero(columns.timestamps < self._oldest[topics])
        if len(late):
            row = int(late[0])
            raise too_old(sorted(self._topics)[topics[row]], int(columns.timestamps[row]), self._target)

    def _opened(self) -> tuple[Sender, Batcher]:
        if self._sender is None or self._batcher is None:
            raise ProducerFencedError("the writer has no open transaction", remedy="Call open() first, once")
        return self._sender, self._batcher

    def _identified(self, wire: PipelinedWire) -> dict[str, TopicLimits]:
        """Topics as the driver saw them, so that nothing is written to one that was recreated since."""
        known = dict(self._target.topics)
        asked = [name for name, limits in known.items() if limits.topic_id is None]
        for name, info in Partitions(wire).topic_info(asked).items() if asked else ():
            known[name] = replace(known[name], topic_id=info.topic_id)
        return known
