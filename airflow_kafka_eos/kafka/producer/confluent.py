"""The plain writer: one confluent-kafka producer, row by row, for one transaction.

Seen with confluent-kafka 2.16.1 (librdkafka 2.16.0):

- ``Producer.close()`` aborts the open transaction; dropping the object does not. So ``close`` here drops it.
- A delivery report carries no headers: the row is kept until it is delivered.
- ``eos`` in the statistics shows the producer id, the epoch and ``epoch_cnt``, how many were assigned in its life.
- An unknown partition fails only that record, and the transaction could go on without it: every failed delivery
  must be looked at.
- A fatal error (fenced) comes out of ``poll`` and ``flush`` as SystemError, its reason lost, when other callbacks run.
- A fenced producer that is dropped with records that it has not reported yet corrupts the heap (seen 3 of 3 times under
  ``MALLOC_CHECK_=3``): ``purge`` and ``flush`` report them first.
- Unknown topics are waited for, 30 seconds long: each row's place is checked before, see :func:`rows`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from airflow_kafka_eos.errors import (
    AccessError,
    BrokerTooOldError,
    BrokerUnavailableError,
    ConfigurationError,
    KafkaEosError,
    ProducerFencedError,
    RecordError,
    TerminalError,
    TopicError,
)
from airflow_kafka_eos.kafka.client.settings import CONNECTION_KEYS, KafkaSettings
from airflow_kafka_eos.kafka.producer.interface import (
    Tally,
    WriteTarget,
    already_prepared,
    bad_timestamp,
    beyond_librdkafka,
    check_unchanged,
    confirm,
    left_ms,
    no_header_name,
    too_large,
    too_old,
    unknown_partition,
    unknown_topic,
)
from airflow_kafka_eos.kafka.records.digest import Header, record_bytes
from airflow_kafka_eos.manifest import PartitionWrites, TopicInfo
from airflow_kafka_eos.transaction import (
    PreparedTransaction,
    PreparedTxnState,
    TopicPartition,
    TransactionDescription,
)

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

#: Asks the coordinator how it sees a transactional id; None when it knows no such id.
Describe = Callable[[str], TransactionDescription | None]

_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
_POLL_S = 0.05
_STATISTICS_MS = 100
_ANSWER_S = 60.0
_DROP_S = 3.0
_QUEUE_KB = 65_536
#: Bytes that a record's batch takes beside key, value and headers, at least (61 of the header, some of the record).
_OVERHEAD = 100
#: The columns that a batch may have: those of Spark's own Kafka sink, and the timestamp of its source.
COLUMNS = ("key", "value", "headers", "topic", "partition", "timestamp")
#: Rows that are turned into Python objects at a time: bounds the memory beside Arrow's own.
_SLICE = 1024

_FENCED = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.INVALID_TXN_STATE,
}
_LOGIN = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED}
_ACCESS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_TOPIC = {KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION}
_RECORD = {KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG, KafkaError.INVALID_TIMESTAMP}
_TOO_OLD = {KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE}
_UNAVAILABLE = {
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
}


class ConfluentWriter:
    """A :class:`~airflow_kafka_eos.kafka.producer.interface.TransactionWriter` over confluent-kafka.

    :param describe: confirms the identity before it is reported (rule: recorded-identity).
    :param topics_now: asks the brokers what the target's topics are, before the same; None: they are not asked.
    :param now_ms: the clock that the deadline is read from, milliseconds since the epoch.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        target: WriteTarget,
        describe: Describe,
        topics_now: Callable[[], Mapping[str, TopicInfo]] | None = None,
        *,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._settings = settings
        self._target = target
        self._describe = describe
        self._topics_now = topics_now
        self._now_ms = now_ms
        self._id = str(target.transactional_id)
        self._producer: Producer | None = None
        self._state = PreparedTxnState.EMPTY
        self._eos: Mapping[str, Any] = {}
        self._eos_count = 0
        self._tally = Tally()
        self._sent = 0
        self._prepared = False
        self._failed: KafkaEosError | None = None
        self._purged_from = self._purged_topic = ""
        self._last_error: KafkaError | None = None

    # -- the writer's interface ----------------------------------------------------------------------------------

    def open(self) -> PreparedTxnState:
        """See the interface. ``init_transactions`` is called here and nowhere else (rule: one-init-per-transaction)."""
        if (tokens := self._settings.token_source()) is not None:
            tokens.current()  # librdkafka would tell what is the matter with it as a timeout
        left_s = left_ms(self._target.deadline_ms, self._now_ms(), self._id) / 1000
        self._producer = Producer(
            _configuration(self._settings, self._target),
            stats_cb=self._statistics,
            error_cb=self._error,
            logger=_log,
        )
        try:
            # librdkafka sends InitProducerId again by itself: never beyond the deadline
            self._producer.init_transactions(min(_ANSWER_S, left_s))
            self._producer.begin_transaction()
        except KafkaException as e:
            error = self._translate(e, "opening a transaction")
            self._producer = None
            raise error from None
        self._state = self._assigned()
        return self._state

    def write(self, batch: pa.RecordBatch) -> None:
        """See the interface. Blocks while librdkafka's queue is full."""
        self._opened()
        if self._prepared:
            raise already_prepared(self._target)
        for row in rows(batch, self._target):
            self._produce(row)
            self._sent += 1
        self._serve(self._opened().poll, 0)

    def prepare(self) -> tuple[PreparedTransaction, tuple[PartitionWrites, ...]]:
        """See the interface. Waits for every delivery report, as long as librdkafka keeps trying."""
        producer = self._opened()
        while self._serve(producer.flush, 1.0):
            pass
        self._prepared = True  # nothing is written behind what is reported
        if self._tally.records != self._sent:
            raise BrokerUnavailableError(
                f"{self._sent} records were sent, {self._tally.records} were acknowledged",
                remedy="Clear prepare to write again",
                transactional_id=self._id,
            )
        if self._topics_now is not None:
            check_unchanged(self._target.topics, self._topics_now(), self._id)
        confirm(self._describe(self._id), self._assigned(), self._tally.partitions, self._id)
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
        self._drop()

    def close(self) -> None:
        """See the interface. Dropping the producer ends no transaction, its own ``close()`` would."""
        self._drop()

    # -- private -------------------------------------------------------------------------------------------------

    def _drop(self) -> None:
        """Let go of the producer, with no record in it that it has not reported. No request is sent for it."""
        producer, self._producer = self._producer, None
        if producer is None or self._prepared:
            return  # prepared: all are reported, and librdkafka is left alone
        producer.purge()
        until = time.monotonic() + _DROP_S
        while time.monotonic() < until:
            with suppress(KafkaException, SystemError):  # why it failed is told already
                # statistics are counted too, and come in at any time
                if not producer.flush(_POLL_S):
                    return
        _log.warning("%s: librdkafka has not reported all records, %.0f s after they were purged", self._id, _DROP_S)

    def _opened(self) -> Producer:
        if self._producer is None:
            raise ProducerFencedError("the writer has no open transaction", remedy="Call open() first, once")
        return self._producer

    def _produce(self, row: Row) -> None:
        producer = self._opened()
        size = record_bytes(row.key, row.value, row.headers)
        report = partial(self._delivered, row, size)
        place = -1 if row.partition is None else row.partition  # -1: the partitioner chooses
        headers: list[tuple[str, str | bytes | None]] = [*row.headers]
        while True:
            try:
                producer.produce(
                    row.topic,
                    row.value,
                    row.key,
                    place,
                    on_delivery=report,
                    timestamp=row.timestamp_ms,
                    headers=headers,
                )
                return
            except BufferError:
                self._serve(producer.poll, _POLL_S)  # the queue is full: let acknowledgements make room
            except KafkaException as e:
                self._raise_failed()  # the first failure says more than "erroneous state" after it
                error: KafkaError = e.args[0]
                if error.code() == KafkaError._FATAL:  # no report of it is served yet
                    raise self._fatal(_writing(row.topic, row.partition, size)) from None
                raise self._write_error(error, row.topic, row.partition, size, row.key) from None

    def _serve(self, call: Callable[[float], int], seconds: float) -> int:
        """Let callbacks run, and raise what went wrong."""
        try:
            left = call(seconds)
        except KafkaException as e:
            self._raise_failed()
            raise self._translate(e, "writing") from None
        except SystemError:
            self._raise_failed()
            raise self._fatal("writing") from None
        self._raise_failed()
        return left

    def _fatal(self, doing: str) -> KafkaEosError:
        end = time.monotonic() + _DROP_S
        while (found := self._why_given_up(doing)) is None and time.monotonic() < end:
            time.sleep(_POLL_S)  # the producer is failed first, its transaction, which knows why, a moment later
        return found or BrokerUnavailableError(
            "librdkafka failed and did not say why",
            remedy="Look at the logs of the brokers and of Spark's executors. Nothing of it is committed: it is "
            "written again with prepare's next try",
            transactional_id=self._id,
        )

    def _delivered(self, row: Row, size: int, error: KafkaError | None, message: Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if error is None and topic is not None and partition is not None and offset is not None:
            # reports come in the order of the partition's log
            found = self._tally.of(TopicPartition(topic, partition))
            found.records += 1
            found.bytes += size
            found.digest.update(row.key, row.value, row.headers)
            found.date(message.timestamp()[1])
            found.acknowledge(1, offset, offset)
        elif error is not None and self._failed is None:
            self._failed = self._write_error(error, topic or "", partition, size, row.key)
            if error.code() in _PURGED:
                self._purged_from, self._purged_topic = f"writing to topic {topic!r} partition {partition}", topic or ""

    def _write_error(
        self, error: KafkaError, topic: str, partition: int | None, size: int, key: bytes | None
    ) -> KafkaEosError:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return too_large(topic, partition, size, self._target, key)
        return translate(error, _writing(topic, partition, size), self._id, topic=topic)

    def _raise_failed(self) -> None:
        if self._failed is None:
            return
        if self._purged_from:
            # librdkafka gave the transaction up and reports its records as purged: why, only the transaction knows
            reason, self._purged_from = self._why_given_up(self._purged_from), ""
            self._failed = reason or self._failed
        raise self._failed

    def _why_given_up(self, doing: str) -> KafkaEosError | None:
        try:
            self._opened().begin_transaction()  # never succeeds here
        except KafkaException as e:
            return None if e.args[0].code() == KafkaError._STATE else self._translate(e, doing)
        return None

    def _translate(self, exception: KafkaException, doing: str) -> KafkaEosError:
        error = exception.args[0]
        if error.code() == KafkaError._TIMED_OUT and self._last_error is not None:
            error = self._last_error  # a refused login shows as a timeout only
        return translate(error, doing, self._id, topic=self._purged_topic)

    def _error(self, error: KafkaError) -> None:
        self._last_error = error

    def _statistics(self, text: str) -> None:
        self._eos = json.loads(text)["eos"]
        self._eos_count += 1

    def _assigned(self) -> PreparedTxnState:
        """The producer id and epoch, from statistics made after this call; one epoch in the whole life.

        Rule: recorded-identity.
        """
        producer = self._opened()
        end = time.monotonic() + _ANSWER_S
        # one document may have been made before this call and wait in the queue
        wanted = self._eos_count + 2
        while self._eos_count < wanted or self._eos["producer_id"] < 0:
            self._serve(producer.poll, _POLL_S)
            if time.monotonic() > end:
                raise BrokerUnavailableError(
                    f"librdkafka has shown no producer id for {_ANSWER_S:g} s",
                    remedy="Look whether the executor's host is short of CPU or memory. Nothing of it is committed: it "
                    "is written again with prepare's next try",
                    transactional_id=self._id,
                )
        found = PreparedTxnState(self._eos["producer_id"], self._eos["producer_epoch"])
        if self._eos["epoch_cnt"] != 1 or (not self._state.is_empty and found != self._state):
            raise ProducerFencedError(
                f"the producer began as {self._state or found} and is {found} now, "
                f"after {self._eos['epoch_cnt']} assignments: it is not one transaction",
                remedy="Clear prepare to write again",
                transactional_id=self._id,
            )
        return found


def _writing(topic: str, partition: int | None, size: int) -> str:
    where = "" if partition is None else f" partition {partition}"
    return f"writing a record of {size} bytes to topic {topic!r}{where}"


def check_configuration(settings: KafkaSettings, target: WriteTarget) -> None:
    """Does librdkafka take these settings together? Nothing is connected.

    :raises ConfigurationError: with what it has against them.
    """
    wanted = _configuration(settings, target)
    offline = {k: v for k, v in wanted.items() if not k.startswith(CONNECTION_KEYS)}
    try:
        Producer(offline | {"log_level": 0})
    except KafkaException as e:
        raise ConfigurationError(
            f"librdkafka refuses the Kafka settings for the confluent writer: {e.args[0].str().strip()}",
            remedy="Correct or remove what it names, or use writer=arrow",
        ) from None


def _configuration(settings: KafkaSettings, target: WriteTarget) -> dict[str, Any]:
    """librdkafka's configuration: the user's own, ours where he has none, and what exactly-once fixes."""
    limits = [t.max_message_bytes for t in target.topics.values()]
    largest = max(limits) + _OVERHEAD  # librdkafka's own limit must not stand before the topic's
    ours = {
        "linger.ms": "20",
        "partitioner": "murmur2_random",  # as the Java client, and so Spark's own sink, places keys
        "message.max.bytes": str(min(max(largest, 1000), 1_000_000_000)),
        "queue.buffering.max.kbytes": str(max(_QUEUE_KB, 2 * largest // 1024)),
    }
    given = settings.for_librdkafka()
    # batches of many records must fit the strictest topic, also where the user would have larger ones
    fitting = max(1, min(limits) - _OVERHEAD)
    wanted = given.get("batch.size", "1000000")
    fixed = {
        "batch.size": str(min(int(wanted), fitting)) if wanted.isdecimal() else wanted,
        "transactional.id": str(target.transactional_id),
        "transaction.timeout.ms": str(target.transaction_timeout_ms),
        "statistics.interval.ms": str(_STATISTICS_MS),
        "allow.auto.create.topics": "false",
    }
    return ours | given | fixed


# -- rows of an Arrow batch, as a row-wise client wants them ---------------------------------------------------------


class Row(NamedTuple):
    """One record to be written. ``partition`` None: the client's partitioner chooses; timestamp 0: now."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    timestamp_ms: int = 0


def rows(batch: pa.RecordBatch, target: WriteTarget) -> Iterator[Row]:
    """The rows of a batch, each with a topic of the target's.

    :raises RecordError: a row without topic, with a topic or partition that is not there, or too large even alone.
    """
    for start in range(0, batch.num_rows, _SLICE):
        part = batch.slice(start, _SLICE)
        for topic, partition, key, value, headers, timestamp in zip(
            _values(part, "topic"),
            _values(part, "partition"),
            _binary(part, "key"),
            _binary(part, "value"),
            _values(part, "headers"),
            _timestamps(part, target),
            strict=True,
        ):
            to = target.default_topic if topic is None else topic
            if to is None:
                raise unknown_topic(None, target)
            yield _placed(Row(to, partition, key, value, _headers(headers, target), timestamp), target)


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    index = batch.schema.get_field_index(name)
    return [None] * batch.num_rows if index < 0 else batch.column(index).to_pylist()


def _binary(batch: pa.RecordBatch, name: str) -> list[bytes | None]:
    import pyarrow as pa

    index = batch.schema.get_field_index(name)
    if index < 0:
        return [None] * batch.num_rows
    column = batch.column(index)
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())  # UTF-8 as it stands, no copy
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    return column.to_pylist()  # type: ignore[no-any-return]


def _timestamps(batch: pa.RecordBatch, target: WriteTarget) -> list[int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    index = batch.schema.get_field_index("timestamp")
    if index < 0:
        return [0] * batch.num_rows
    whole = pc.cast(batch.column(index), pa.timestamp("ms"), safe=False).view(pa.int64())
    if pc.any(pc.equal(whole, 0)).as_py():
        raise beyond_librdkafka("timestamp 0 (1970-01-01), which would become the moment of writing", target)
    return pc.fill_null(whole, 0).to_pylist()  # type: ignore[no-any-return]


def _headers(value: list[dict[str, Any]] | None, target: WriteTarget) -> list[Header]:
    if not value:
        return []
    for header in value:
        if header is None or header["key"] is None:
            raise no_header_name(target)
        if "\0" in header["key"]:
            raise beyond_librdkafka("a header with a zero byte in its name, which would be cut there", target)
    return [(header["key"], header["value"]) for header in value]


def _placed(row: Row, target: WriteTarget) -> Row:
    limits = target.topics.get(row.topic)
    if limits is None:
        raise unknown_topic(row.topic, target)
    if row.partition is not None and not 0 <= row.partition < limits.partitions:
        raise unknown_partition(row.topic, row.partition, target)
    if row.timestamp_ms < 0:
        raise bad_timestamp(row.topic, row.timestamp_ms, target)
    if 0 < row.timestamp_ms < limits.oldest_timestamp_ms:
        raise too_old(row.topic, row.timestamp_ms, target)
    size = record_bytes(row.key, row.value, row.headers)
    if size > limits.max_message_bytes:
        raise too_large(row.topic, row.partition, size, target, row.key)
    return row


# -- librdkafka's errors as ours -------------------------------------------------------------------------------------


def translate(error: KafkaError, doing: str, transactional_id: str, *, topic: str = "") -> KafkaEosError:
    """The error to raise.

    :param doing: what was going on, such as ``writing to topic 'orders' partition 3``.
    :param topic: where a record was to go; empty where no record was.
    """
    code = error.code()
    kind: type[KafkaEosError]
    if code in _FENCED:
        kind = ProducerFencedError
        remedy = "Someone ended this transaction or took its id over (a newer attempt does so); clear prepare"
    elif code in _LOGIN:
        kind, remedy = AccessError, "Check security.protocol, sasl.mechanism and the login of the Kafka connection"
    elif code in _ACCESS:
        right = _right(code, topic, transactional_id)
        kind, remedy = AccessError, f"Grant the principal of the Kafka connection {right}"
    elif code in _TOPIC:
        kind, remedy = TopicError, "Check the topic's name and number of partitions; a topic may have been deleted"
    elif code in _RECORD:
        kind, remedy = RecordError, "Correct the record; a compacted topic takes no record without a key"
    elif code in _TOO_OLD:
        kind, remedy = BrokerTooOldError, "Kafka 3.9 or newer is needed"
    elif code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
        kind, remedy = ConfigurationError, "Lower the hold time, or raise the broker's transaction.max.timeout.ms"
    elif code in _UNAVAILABLE or error.retriable():
        kind, remedy = BrokerUnavailableError, "Check that the brokers are up and reachable from Spark's executors"
    else:
        kind, remedy = TerminalError, "Look at the broker's log; clear prepare to write again"
    what = f"{doing} failed: {error.name()} ({error.str()})"
    return kind(what, remedy=remedy, transactional_id=transactional_id)


def _right(code: int, topic: str, transactional_id: str) -> str:
    if code == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        # the next attempt has other ids
        return f"WRITE (which includes DESCRIBE) on TransactionalIds prefixed {transactional_id.partition('.')[0]}."
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return f"WRITE on Topic {topic or 'that was written to'}"
    return "IDEMPOTENT_WRITE on Cluster"
