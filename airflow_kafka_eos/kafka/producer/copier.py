"""Copy what an aborted transaction wrote out of the log into a new one (ADR 14: the records are still there).

Batches are taken over as they are: only their frame (producer, sequence, checksum) is new. So keys, values, headers,
timestamps and order are equal by construction, and counts and digests prove that it was all of them. What a copy takes
is known before it is begun: its beginning is read, and timed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_kafka_eos.errors import (
    ConfigurationError,
    InDoubtError,
    RecordsGoneError,
    TooLargeToCopyError,
    TopicError,
)
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator, TimeoutTooLongError
from airflow_kafka_eos.kafka.admin.find_markers import METADATA_LAG_S, OFFSET_OUT_OF_RANGE, fetch_request
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.client import retry
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.producer.arrow.sender import Sender
from airflow_kafka_eos.kafka.producer.arrow.sent_transaction import SentTransaction
from airflow_kafka_eos.kafka.producer.interface import left_ms
from airflow_kafka_eos.kafka.producer.options import ProducerOptions
from airflow_kafka_eos.kafka.records.digest import PartitionDigest
from airflow_kafka_eos.kafka.records.split import BrokenRecords
from airflow_kafka_eos.kafka.records.stored import StoredBatch, batches, feed, reframe
from airflow_kafka_eos.manifest import PartitionWrites
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState

log = logging.getLogger(__name__)

#: Bytes of one partition in one Fetch: so much, and the sender's buffer, is in memory at a time.
FETCH_BYTES = 4 << 20
#: The share of its time after which a copy is judged by its pace.
PATIENCE = 0.1
#: What has no more is copied in a moment: not worth a measurement.
SMALL_BYTES = 8 << 20
SMALL_RECORDS = 50_000
_SAMPLE_S = 1.0
#: The best of such stretches counts: what stalls now and then is not taken for slow.
_STRETCH_S = 0.05
RAISE_TIMEOUT = "Raise transaction.max.timeout.ms on every broker, then run commit again"
_REMEDY = "Give the load up first; what is missing can then only be written again from its source"


class Copier(SentTransaction):
    """Writes one new transaction. Used once, by one thread; aborted only once its repair is undecidable
    (rule: decide-before-kafka).

    :param reader: where the records are read from; its settings say where the copy goes too.
    :param timeout_ms: the broker aborts the new transaction after that.
    :param or_less: what is asked for in turn where the broker does not allow that.
    :param deadline_ms: milliseconds since the epoch; past it the transaction is not begun
        (rule: writers-have-a-deadline).
    """

    def __init__(
        self,
        reader: Wire,
        name: TransactionalId,
        *,
        timeout_ms: int,
        deadline_ms: int,
        or_less: Sequence[int] = (),
    ) -> None:
        super().__init__(reader.settings, name, _options(reader.settings))
        self._reader = reader
        self._timeouts_ms = (timeout_ms, *or_less)
        self.timeout_ms = timeout_ms
        self._deadline_ms = deadline_ms

    def copy(
        self, lost: PreparedTransaction, writes: tuple[PartitionWrites, ...], topic_ids: Mapping[str, str]
    ) -> tuple[PreparedTransaction, tuple[PartitionWrites, ...]]:
        """Copy all that ``lost`` wrote; the new transaction is prepared then, flushed and still open.

        :param writes: as they were recorded: where its records are, how many, and their digests.
        :param topic_ids: topic -> topic id, as recorded.
        :returns: the new transaction, and its writes: the recorded ones at other offsets.
        :raises RecordsGoneError: not all of the records are in the log any more.
        :raises InDoubtError: they are not what was recorded, or their topic is gone.
        :raises TooLargeToCopyError: at the rate at which it goes the broker would end it before it is done.
        :raises KafkaEosError: reading or writing did not succeed; trying again may.
        """
        self._check_topics(topic_ids)
        wire = self._connect()
        self._state = self._initialise(self._coordinator(wire))
        sender = self._make_sender(wire, topic_ids)
        pace = _Pace(str(self._name), self.timeout_ms / 1000, sum(w.records for w in writes))
        for w in writes:
            self._copy_partition(sender, lost, w, topic_ids[w.topic], pace)
        self._flush(sender, "copied", "Run commit again")
        self._check_topics(topic_ids)
        prepared = self._confirm()
        found = (self._tally.of(w.topic_partition) for w in writes)
        copied = (
            replace(w, first_offset=new.first_offset, last_offset=new.last_offset)
            for w, new in zip(writes, found, strict=True)
        )
        return prepared, tuple(copied)

    # -- private -------------------------------------------------------------------------------------------------

    def _initialise(self, coordinator: Coordinator) -> PreparedTxnState:
        """With the first timeout that the broker takes: a refused one initialises nothing.

        Rule: one-init-per-transaction.
        """
        for timeout_ms in self._timeouts_ms:
            self.timeout_ms = timeout_ms
            try:
                return coordinator.init_producer_id(
                    str(self._name),
                    timeout_ms,
                    before_sending=lambda: left_ms(self._deadline_ms, int(time.time() * 1000), str(self._name)),
                )
            except TimeoutTooLongError as e:
                refused = e
        raise refused

    def _copy_partition(
        self, sender: Sender, lost: PreparedTransaction, w: PartitionWrites, topic_id: str, pace: _Pace
    ) -> None:
        found = self._tally.of(w.topic_partition)
        for order, batch in enumerate(read_batches(self._reader, lost, w, topic_id)):
            _check(lost, w, batch, found.digest)
            sealed = reframe(batch, w.topic_partition, order, self._state, found.records)
            found.records += batch.records
            sender.put(sealed)
            pace.goes_on(batch.records)
        if (found.records, found.digest.hexdigest()) != (w.records, w.digest):
            what = (
                f"it holds {found.records} records with digest {found.digest.hexdigest()}, recorded were {w.records} "
                f"with digest {w.digest}"
            )
            # a compaction takes whole batches too
            raise gone(lost, w, what) if found.records < w.records else unusable(lost, w, what)

    def _check_topics(self, topic_ids: Mapping[str, str]) -> None:
        try:
            now = Partitions(self._reader).topic_info(topic_ids)
        except TopicError as e:
            raise InDoubtError(f"{e.message}, and with it the lost records", remedy=_REMEDY) from e
        for topic, topic_id in topic_ids.items():
            if now[topic].topic_id != topic_id:
                raise InDoubtError(
                    f"topic {topic} was deleted and created again, and the lost records are gone with the old one",
                    remedy=_REMEDY,
                )


class _Pace:
    """Stops a copy as soon as it is plain that the broker will end it first, and not when it has.

    :param timeout_s: how long the transaction may stay open.
    :param records: all that are to be copied.
    """

    def __init__(self, name: str, timeout_s: float, records: int) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._records = records
        self._done = 0
        self._began = time.monotonic()

    def goes_on(self, records: int) -> None:
        """
        :raises TooLargeToCopyError: see above. Not in the first tenth of the time: anything may stall for a moment.
        """
        self._done += records
        took = time.monotonic() - self._began
        if took < PATIENCE * self._timeout_s:
            return
        needed = took * self._records / self._done
        if needed > self._timeout_s:
            why = f"{self._done:,} of {self._records:,} records took {took:.3g} s"
            raise too_large(self._name, why, self._timeout_s)


def too_large(name: str, why: str, timeout_s: float) -> TooLargeToCopyError:
    """The error for a copy that the broker would end before it is done."""
    return TooLargeToCopyError(
        f"its copy cannot be done in the {timeout_s:g} s that the brokers allow a transaction: {why}",
        remedy=RAISE_TIMEOUT,
        transactional_id=name,
    )


def _options(settings: KafkaSettings) -> ProducerOptions:
    try:
        return ProducerOptions.from_settings(settings)
    except ConfigurationError:
        # a partitioner or compression that only librdkafka has: nothing is placed or compressed here
        return ProducerOptions()


def read_batches(
    wire: Wire, lost: PreparedTransaction, w: PartitionWrites, topic_id: str
) -> Iterator[StoredBatch]:
    """The data batches of one transaction in one partition, in the log's order, whatever became of it.

    :raises RecordsGoneError: the log does not have all of them any more.
    :raises InDoubtError: it has others in their place.
    """
    identity = (lost.state.producer_id, lost.state.producer_epoch)
    offset = w.first_offset
    while offset <= w.last_offset:
        fetched = _fetch(wire, lost, w, topic_id, offset)
        for batch in batches(fetched):
            if batch.last_offset < offset:
                continue
            if batch.base_offset > w.last_offset:
                return
            if batch.producer_id == identity[0]:
                if (batch.producer_id, batch.producer_epoch) != identity or batch.is_control:
                    raise unusable(lost, w, f"offset {batch.base_offset} is of another transaction of its producer")
                if not batch.is_whole:
                    raise gone(lost, w, f"compaction took records from offset {batch.base_offset} on")
                yield batch
            offset = batch.last_offset + 1


def _fetch(wire: Wire, lost: PreparedTransaction, w: PartitionWrites, topic_id: str, offset: int) -> bytes:
    """The log from an offset on: at least one whole batch, each of ours intact."""
    tp = w.topic_partition
    believe_gone_at = time.monotonic() + min(METADATA_LAG_S, wire.timeout_s / 2)

    def attempt() -> bytes:
        answer = wire.send_to_leader(
            tp, fetch_request([(topic_id, w.partition, offset)], FETCH_BYTES, FETCH_BYTES)
        )
        retry.check(answer.error_code, operation="READ", resource="Cluster")
        (row,) = [p for t in answer.responses for p in t.partitions]
        if row.error_code == OFFSET_OUT_OF_RANGE:
            raise gone(lost, w, f"the log has no offset {offset} (any more)")
        if row.error_code in retry.UNKNOWN_TOPIC and time.monotonic() >= believe_gone_at:
            raise unusable(lost, w, "the topic was deleted")
        if row.error_code:
            wire.forget_leaders([tp])
        retry.check(row.error_code, operation="READ", resource=f"Topic {tp.topic}", lag=True)
        records: bytes = row.records or b""
        found = [b for b in batches(records) if b.last_offset >= offset]
        if not found:
            raise retry.Retry(f"the leader of {tp} sent no records")
        if any(b.producer_id == lost.state.producer_id and not b.is_intact for b in found):
            raise retry.Retry(f"a batch of {tp} has a wrong checksum")
        return records

    return wire.until_settled(attempt, what=f"reading {tp} from offset {offset} on")


def _check(lost: PreparedTransaction, w: PartitionWrites, batch: StoredBatch, digest: PartitionDigest) -> None:
    """:raises InDoubtError: its checksum fits, but it does not hold the records that its header counts."""
    try:
        feed(batch, digest)
    except BrokenRecords as e:
        raise unusable(lost, w, f"the batch at offset {batch.base_offset} is broken: {e}") from e


def unusable(lost: PreparedTransaction, w: PartitionWrites, why: str) -> InDoubtError:
    """The records cannot be copied out of a partition's log."""
    return InDoubtError(_not_copied(w, why), remedy=_REMEDY, transactional_id=lost.transactional_id)


def gone(lost: PreparedTransaction, w: PartitionWrites, why: str) -> RecordsGoneError:
    """Retention, compaction or DeleteRecords took them."""
    remedy = "Only prepare can write them again"
    return RecordsGoneError(_not_copied(w, why), remedy=remedy, transactional_id=lost.transactional_id)


def _not_copied(w: PartitionWrites, why: str) -> str:
    return (
        f"the {w.records} records of the lost transaction in {w.topic_partition}, offsets {w.first_offset} to "
        f"{w.last_offset}, cannot be copied: {why}"
    )


@dataclass(frozen=True)
class Cost:
    """
    :param bytes: of keys, values and headers, before compression.
    :param seconds: a copy takes no less, for to read and check the records takes so long by itself; None: a moment.
    """

    records: int
    bytes: int
    seconds: float | None

    def __str__(self) -> str:
        how_long = "" if self.seconds is None else f", about {self.seconds:.3g} s"
        return f"{self.records:,} records, {self.bytes / 1e6:,.1f} MB{how_long}"


def is_small(writes: tuple[PartitionWrites, ...]) -> bool:
    """Whether a copy is a matter of a moment."""
    return sum(w.bytes for w in writes) <= SMALL_BYTES and sum(w.records for w in writes) <= SMALL_RECORDS


def cost_of(
    wire: Wire, lost: PreparedTransaction, writes: tuple[PartitionWrites, ...], topic_ids: Mapping[str, str]
) -> Cost:
    """Measure for a second what a copy does for each record but send it.

    :raises KafkaEosError: no leader answers. Whether all records are there is not said here.
    """
    records = sum(w.records for w in writes)
    rate = 0.0 if is_small(writes) else _rate(wire, lost, max(writes, key=lambda w: w.records), topic_ids)
    return Cost(records, sum(w.bytes for w in writes), records / rate if rate else None)


def _rate(wire: Wire, lost: PreparedTransaction, w: PartitionWrites, topic_ids: Mapping[str, str]) -> float:
    """Records per second, from one partition; 0 where it cannot be told."""
    digest, best, done = PartitionDigest(), 0.0, 0
    began = at = time.monotonic()
    try:
        for batch in read_batches(wire, lost, w, topic_ids[w.topic]):
            _check(lost, w, batch, digest)
            done += batch.records
            now = time.monotonic()
            if now - at >= _STRETCH_S:
                best, done, at = max(best, done / (now - at)), 0, now
            if now - began >= _SAMPLE_S:
                break
    except InDoubtError:
        pass  # the copy will say so, of all of them
    return best
