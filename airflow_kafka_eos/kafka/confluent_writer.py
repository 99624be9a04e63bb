"""The plain writer: one confluent-kafka producer, row by row, for one transaction.

Seen with confluent-kafka 2.16.1 (librdkafka 2.16.0):

- ``Producer.close()`` aborts the open transaction; dropping the object does not. So ``close`` here drops it.
- A delivery report carries no headers: the digest is made before a row is handed over.
- ``eos`` in the statistics shows the producer id, the epoch and ``epoch_cnt``, how many were assigned in its life.
- An unknown partition fails only that record, and the transaction could go on without it: every failed delivery
  must be looked at.
- A fatal error (fenced) comes out of ``poll`` and ``flush`` as SystemError, its reason lost, when other callbacks run.
- Unknown topics are waited for, 30 seconds long: topics are checked before (see :mod:`.rows`).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from airflow_kafka_eos.errors import (
    BrokerUnavailableError,
    KafkaEosError,
    ProducerFencedError,
    UndecidableError,
)
from airflow_kafka_eos.kafka.confluent_errors import translate
from airflow_kafka_eos.kafka.digest import record_bytes, record_digest
from airflow_kafka_eos.kafka.rows import Row, rows, too_large
from airflow_kafka_eos.kafka.settings import KafkaSettings
from airflow_kafka_eos.kafka.tally import Tally
from airflow_kafka_eos.kafka.writer import WriteTarget
from airflow_kafka_eos.manifest import PartitionWrites
from airflow_kafka_eos.transaction import (
    CoordinatorState,
    PreparedTransaction,
    PreparedTxnState,
    TransactionDescription,
)

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

#: Asks the coordinator how it sees a transactional id; None when it knows no such id.
Describe = Callable[[str], TransactionDescription | None]

_POLL_S = 0.05
_STATISTICS_MS = 100
_ANSWER_S = 60.0
_QUEUE_KB = 65_536
#: Bytes that a record's batch takes beside key, value and headers, at least (61 of the header, some of the record).
_OVERHEAD = 100


class ConfluentWriter:
    """A :class:`~airflow_kafka_eos.kafka.writer.TransactionWriter` over confluent-kafka.

    :param describe: confirms the identity before it is reported (rule 4).
    :param now_ms: the clock that the deadline is read from, milliseconds since the epoch.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        target: WriteTarget,
        describe: Describe,
        *,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._settings = settings
        self._target = target
        self._describe = describe
        self._now_ms = now_ms
        self._id = str(target.transactional_id)
        self._producer: Producer | None = None
        self._state = PreparedTxnState.EMPTY
        self._eos: Mapping[str, Any] = {}
        self._eos_count = 0
        self._tally = Tally()
        self._sent = 0
        self._failed: KafkaEosError | None = None
        self._last_error: KafkaError | None = None

    # -- the writer's interface ----------------------------------------------------------------------------------

    def open(self) -> PreparedTxnState:
        """See the interface. ``init_transactions`` is called here and nowhere else (rule 8)."""
        left_ms = self._target.deadline_ms - self._now_ms()
        if left_ms <= 0:
            raise UndecidableError(
                f"the deadline for opening transactions passed {-left_ms} ms ago (rule 5)",
                remedy="Clear prepare: it opens a new attempt. If this comes often, give the load a longer deadline",
                transactional_id=self._id,
            )
        self._producer = Producer(
            _configuration(self._settings, self._target),
            stats_cb=self._statistics,
            error_cb=self._error,
            logger=_log,
        )
        try:
            # librdkafka sends InitProducerId again by itself: never beyond the deadline
            self._producer.init_transactions(min(_ANSWER_S, left_ms / 1000))
            self._producer.begin_transaction()
        except KafkaException as e:
            error = self._translate(e, "opening a transaction")
            self._producer = None
            raise error from None
        self._state = self._assigned()
        return self._state

    def write(self, batch: pa.RecordBatch) -> None:
        """See the interface. Blocks while librdkafka's queue is full."""
        for row in rows(batch, self._target):
            self._produce(row)
            self._sent += 1
        self._serve(self._opened().poll, 0)

    def prepare(self) -> tuple[PreparedTransaction, tuple[PartitionWrites, ...]]:
        """See the interface. Waits for every delivery report, as long as librdkafka keeps trying."""
        producer = self._opened()
        while self._serve(producer.flush, 1.0):
            pass
        if self._tally.records != self._sent:
            raise BrokerUnavailableError(
                f"{self._sent} records were sent, {self._tally.records} were acknowledged",
                remedy="Clear prepare to write again",
                transactional_id=self._id,
            )
        self._confirm(self._assigned())
        return PreparedTransaction(self._id, self._state), self._tally.writes()

    def abort(self) -> None:
        """See the interface."""
        if self._producer is None:
            return
        try:
            self._producer.abort_transaction(_ANSWER_S)
        except KafkaException as e:
            _log.warning(
                "%s could not be aborted (%s); cleanup finds it, or the broker ends it after %d ms",
                self._id,
                e.args[0].name(),
                self._target.transaction_timeout_ms,
            )
        self._producer = None

    def close(self) -> None:
        """See the interface. Dropping the producer ends no transaction, its own ``close()`` would."""
        self._producer = None

    # -- private -------------------------------------------------------------------------------------------------

    def _opened(self) -> Producer:
        if self._producer is None:
            raise ProducerFencedError("the writer has no open transaction", remedy="Call open() first, once")
        return self._producer

    def _produce(self, row: Row) -> None:
        producer = self._opened()
        size = record_bytes(row.key, row.value, row.headers)
        report = partial(self._delivered, size, record_digest(row.key, row.value, row.headers))
        place = -1 if row.partition is None else row.partition  # -1: the partitioner chooses
        headers: list[tuple[str, str | bytes | None]] = [*row.headers]
        while True:
            try:
                producer.produce(row.topic, row.value, row.key, place, report, headers=headers)
                return
            except BufferError:
                self._serve(producer.poll, _POLL_S)  # the queue is full: let acknowledgements make room
            except KafkaException as e:
                self._raise_failed()  # the first failure says more than "erroneous state" after it
                raise self._write_error(e.args[0], row.topic, row.partition, size) from None

    def _serve(self, call: Callable[[float], int], seconds: float) -> int:
        """Let callbacks run, and raise what went wrong."""
        try:
            left = call(seconds)
        except KafkaException as e:
            self._raise_failed()
            raise self._translate(e, "writing") from None
        except SystemError:
            self._raise_failed()
            raise self._fatal() from None
        self._raise_failed()
        return left

    def _fatal(self) -> KafkaEosError:
        try:
            self._opened().begin_transaction()  # never succeeds here, and says which fatal error there was
        except KafkaException as e:
            return self._translate(e, "writing")
        return BrokerUnavailableError("librdkafka failed and did not say why", transactional_id=self._id)

    def _delivered(self, size: int, digest: int, error: KafkaError | None, message: Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if error is None and topic is not None and partition is not None and offset is not None:
            self._tally.add(topic, partition, offset, size, digest)
        elif error is not None and self._failed is None:
            self._failed = self._write_error(error, topic or "", partition, size)

    def _write_error(self, error: KafkaError, topic: str, partition: int | None, size: int) -> KafkaEosError:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return too_large(topic, partition, size, self._target)
        where = "" if partition is None else f" partition {partition}"
        return translate(error, f"writing a record of {size} bytes to topic {topic!r}{where}", self._id)

    def _raise_failed(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _translate(self, exception: KafkaException, doing: str) -> KafkaEosError:
        error = exception.args[0]
        if error.code() == KafkaError._TIMED_OUT and self._last_error is not None:
            error = self._last_error  # a refused login shows as a timeout only
        return translate(error, doing, self._id)

    def _error(self, error: KafkaError) -> None:
        self._last_error = error

    def _statistics(self, text: str) -> None:
        self._eos = json.loads(text)["eos"]
        self._eos_count += 1

    def _assigned(self) -> PreparedTxnState:
        """The producer id and epoch, from statistics made after this call (rule 4); one epoch in the whole life."""
        producer = self._opened()
        end = time.monotonic() + _ANSWER_S
        # one document may have been made before this call and wait in the queue
        wanted = self._eos_count + 2
        while self._eos_count < wanted or self._eos["producer_id"] < 0:
            self._serve(producer.poll, _POLL_S)
            if time.monotonic() > end:
                raise BrokerUnavailableError("librdkafka shows no producer id", transactional_id=self._id)
        found = PreparedTxnState(self._eos["producer_id"], self._eos["producer_epoch"])
        if self._eos["epoch_cnt"] != 1 or (not self._state.is_empty and found != self._state):
            raise ProducerFencedError(
                f"the producer began as {self._state or found} and is {found} now, "
                f"after {self._eos['epoch_cnt']} assignments: it is not one transaction (rule 8)",
                remedy="Clear prepare to write again",
                transactional_id=self._id,
            )
        return found

    def _confirm(self, state: PreparedTxnState) -> None:
        """Have the coordinator say the same: still open, same identity, same partitions (rule 4)."""
        seen = self._describe(self._id)
        written = self._tally.partitions
        if (
            seen is None
            or seen.coordinator_state is not CoordinatorState.ONGOING
            or seen.state != state
            or seen.partitions != written
        ):
            shown = (
                "no such transaction"
                if seen is None
                else (f"{seen.coordinator_state.value}, {seen.state}, {len(seen.partitions)} partitions")
            )
            raise ProducerFencedError(
                f"the coordinator shows {shown}; written were {len(written)} partitions as {state}",
                remedy="Someone ended the transaction, or its timeout has passed; clear prepare to write again",
                transactional_id=self._id,
            )


def _configuration(settings: KafkaSettings, target: WriteTarget) -> dict[str, Any]:
    """librdkafka's configuration: the user's own, ours where he has none, and what exactly-once fixes."""
    limits = [t.max_message_bytes for t in target.topics.values()]
    largest = max(limits) + _OVERHEAD  # librdkafka's own limit must not stand before the topic's
    ours = {
        "linger.ms": "20",
        "partitioner": "murmur2_random",  # as the Java client, and so Spark's own sink, places keys
        "message.max.bytes": str(min(max(largest, 1000), 1_000_000_000)),
        # batches of many records must fit the strictest topic
        "batch.size": str(max(1, min(1_000_000, *limits) - _OVERHEAD)),
        "queue.buffering.max.kbytes": str(max(_QUEUE_KB, 2 * largest // 1024)),
    }
    fixed = {
        "transactional.id": str(target.transactional_id),
        "transaction.timeout.ms": str(target.transaction_timeout_ms),
        "statistics.interval.ms": str(_STATISTICS_MS),
        "allow.auto.create.topics": "false",
    }
    return ours | settings.for_librdkafka() | fixed
