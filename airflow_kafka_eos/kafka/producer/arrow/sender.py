"""Sends sealed batches: several requests under way per broker, each partition in order, each batch until it is there.

The thread that encodes puts batches in; a thread of the sender's own does all the waiting, so that the brokers have
work while the next batches are made. What is sent again is the same batch with the same sequence: the broker takes it
once (KIP-98), and refuses what would leave a gap. Before a partition's first batch it joins the transaction, see
:class:`Enrolment`. What an answer means is :func:`judge`'s: by Kafka's protocol guide, KIP-360, KIP-890 and the Java
client's Sender.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from kafka import errors
from kafka.protocol.producer.produce import ProduceRequest
from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest

from airflow_kafka_eos.errors import (
    AccessError,
    BrokerUnavailableError,
    KafkaEosError,
    ProducerFencedError,
    RecordError,
    TerminalError,
    TopicError,
)
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.client import retry
from airflow_kafka_eos.kafka.client.wire import PipelinedWire
from airflow_kafka_eos.kafka.producer.interface import Tally
from airflow_kafka_eos.kafka.producer.options import ProducerOptions
from airflow_kafka_eos.kafka.producer.produce_request import (
    IMPLICIT_VERSION,
    LOWEST_VERSION,
    TOPIC_ID_VERSION,
    produce_request,
)
from airflow_kafka_eos.kafka.records.batch import SealedBatch
from airflow_kafka_eos.transaction import PreparedTxnState, TopicPartition

_log = logging.getLogger(__name__)

#: Bytes of one request; brokers refuse above socket.request.max.bytes, 100 MiB by default.
_REQUEST_BYTES = 8 * 1024 * 1024
#: How long a topic may be unknown: metadata of a new topic travels for a moment.
_UNKNOWN_S = 10.0
_IDLE_S = 0.5
#: The highest version for clients; from 4 on it is spoken among brokers (KIP-890).
_ADD_PARTITIONS_VERSION = 3

#: The transaction is not open any more, or not this writer's.
NOT_OURS = retry.codes(
    errors.InvalidProducerEpochError,
    errors.InvalidTxnStateError,
    errors.InvalidProducerIdMappingError,
    errors.ProducerFencedError,
    errors.TransactionAbortableError,
)
_TOPIC_REFUSED: int = errors.TopicAuthorizationFailedError.errno
_ID_REFUSED: int = errors.TransactionalIdAuthorizationFailedError.errno
_REFUSED = {_TOPIC_REFUSED, _ID_REFUSED, errors.ClusterAuthorizationFailedError.errno}
_OF_RECORDS = {
    errors.MessageSizeTooLargeError: "the batch is larger than the topic's max.message.bytes, which was lowered since "
    "prepare began",
    errors.InvalidTimestampError: "a timestamp is outside of what the topic takes (message.timestamp.before.max.ms, "
    "…after.max.ms)",
    errors.PolicyViolationError: "the topic's policy refuses it",
    errors.UnsupportedCompressionTypeError: "the broker or the topic does not take this compression.type",
    errors.InvalidRecordError: "the topic refuses a record: a compacted topic takes none without key",
}
_RECORD: dict[int, str] = {error.errno: text for error, text in _OF_RECORDS.items()}


class Answer(Enum):
    """What to do with a batch."""

    DONE = "acknowledged"
    AGAIN = "send the same batch again"
    #: a batch before it failed and is sent again: this one follows it
    BEHIND = "send it again behind the one before it"


def judge(
    code: int, *, base_offset: int, first_unacknowledged: bool, message: str | None, partition: TopicPartition, id: str
) -> Answer | KafkaEosError:
    """One batch's answer.

    :param first_unacknowledged: every batch of the partition before this one is acknowledged.
    :returns: what to do, or the error that ends the attempt.
    """
    if code == 0 and base_offset >= 0:
        return Answer.DONE
    if code == errors.OutOfOrderSequenceNumberError.errno and not first_unacknowledged:
        return Answer.BEHIND
    if code == errors.CorruptRecordError.errno or retry.is_retriable(code, metadata_may_lag=True):
        return Answer.AGAIN
    said = f"{retry.name_of(code)}{f' ({message})' if message else ''}"
    where = f"writing to {partition}"
    if code in NOT_OURS:
        return ProducerFencedError(
            f"{where}: the open transaction is not the one that this writer began: {said}",
            remedy="Someone ended it, or its timeout has passed; clear prepare to write again",
            transactional_id=id,
        )
    if code in _REFUSED:
        resources = {_TOPIC_REFUSED: f"Topic {partition.topic}", _ID_REFUSED: f"TransactionalId {id}"}
        resource = resources.get(code, "Cluster")
        return AccessError(
            f"{where}: the broker refused WRITE on {resource}: {said}",
            remedy=f"Grant the principal of the Kafka connection WRITE on {resource}",
            transactional_id=id,
        )
    if code in _RECORD:
        return RecordError(
            f"{where}: {_RECORD[code]}: {said}", remedy="Correct the rows, or the topic's settings", transactional_id=id
        )
    return TerminalError(
        f"{where}: the broker answered {said}, and sending it again would not help",
        remedy="Clear prepare to write again in a new transaction; if it comes back, look into the broker's log",
        transactional_id=id,
    )


def gone(partition: TopicPartition, seconds: float, id: str) -> TopicError:
    """The brokers have not known the topic for too long."""
    return TopicError(
        f"writing to {partition}: no broker has known this partition, as it was when prepare began, for "
        f"{seconds:g} s: the topic was deleted or recreated",
        remedy="Create it again, or correct the load's topics, then clear prepare",
        transactional_id=id,
    )


class Enrolment:
    """Makes partitions part of one transaction before its first batch is sent there.

    Produce from version 12 on does it by itself where the cluster's ``transaction.version`` is 2 (KIP-890); such a
    version must not be sent where it is not.
    """

    def __init__(
        self,
        wire: PipelinedWire,
        transactional_id: str,
        state: PreparedTxnState,
        *,
        shared: bool,
        look: Callable[[], object] | None = None,
    ) -> None:
        """
        :param shared: scope ``load``: a partition whose leader knows producer id and epoch is refused
            (rule: scope-load-writes-once).
        :param look: called right before each request that may begin the transaction
            (rule: writers-have-a-deadline). Where partitions are announced each announcement may: on transaction
            version 1 it begins anew what somebody has ended. Else Produce, until one is acknowledged: from there on
            whoever ends the transaction raises the epoch, too.
        """
        self._wire = wire
        self._shared = shared
        self._look = look
        self._has_begun = False
        self.transactional_id = transactional_id
        self._state = state
        offered = wire.api_versions()[ProduceRequest.API_KEY][1]
        self._implicit = offered >= IMPLICIT_VERSION and wire.transaction_version() >= 2
        #: the lowest and the highest version of Produce that may be sent
        self.produce_versions = (
            (IMPLICIT_VERSION, TOPIC_ID_VERSION) if self._implicit else (LOWEST_VERSION, IMPLICIT_VERSION - 1)
        )
        self._enrolled: set[TopicPartition] = set()

    @property
    def looks_at_produce(self) -> bool:
        """Whether the next Produce may begin the transaction, and somebody wants to look before."""
        return self._look is not None and self._implicit and not self._has_begun

    def note_begun(self) -> None:
        """A Produce was acknowledged."""
        self._has_begun = True

    def enrol(self, partitions: Sequence[TopicPartition]) -> None:
        """Add partitions where they must be announced; called before each Produce, also before one that is repeated.

        :raises KafkaEosError: the transaction is gone, an ACL is missing, or no coordinator answered in time.
        """
        left = [p for p in partitions if p not in self._enrolled]
        if left:
            if self._shared:
                self._check_unwritten(left)
            if not self._implicit:
                what = f"adding {len(left)} partitions to {self.transactional_id}"
                self._wire.until_settled(lambda: self._add(left), what=what, transactional_id=self.transactional_id)
            self._enrolled.update(left)
        if partitions and self.looks_at_produce:
            assert self._look is not None
            self._look()

    def _check_unwritten(self, partitions: Sequence[TopicPartition]) -> None:
        """Only the second writer of a partition can find them there: each has one owning task.

        The producer id alone may be of an earlier load, which has used the same pooled id; the epoch is one attempt's.
        """
        ours = (self._state.producer_id, self._state.producer_epoch)
        for partition, producers in Partitions(self._wire).producers(partitions).items():
            if any((p.producer_id, p.producer_epoch) == ours for p in producers):
                raise ProducerFencedError(
                    f"{partition} has records of producer id and epoch {self._state} already: another attempt of "
                    "this Spark task has written there",
                    remedy="Clear prepare: it opens a new attempt. With scope load no Spark task may run twice",
                    transactional_id=self.transactional_id,
                )

    def _add(self, partitions: Sequence[TopicPartition]) -> None:
        topics: dict[str, list[int]] = {}
        for p in partitions:
            topics.setdefault(p.topic, []).append(p.partition)
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self._state.producer_id,
            v3_and_below_producer_epoch=self._state.producer_epoch,
            v3_and_below_topics=[topic(name=n, partitions=ps) for n, ps in topics.items()],
            version=_ADD_PARTITIONS_VERSION,
        )
        if self._look is not None:
            node = self._wire.coordinators([self.transactional_id])[self.transactional_id]
            if not self._wire.is_reached(node):
                self._wire.forget_coordinators([self.transactional_id])
                raise retry.Retry("there is no connection to the coordinator yet")
            self._look()
        answer = self._wire.send_to_coordinator(self.transactional_id, request)
        # one that is refused makes the broker attempt none of the others
        codes = {
            (t.name, p.partition_index): p.partition_error_code
            for t in answer.results_by_topic_v3_and_below
            for p in t.results_by_partition
        }
        not_attempted = errors.OperationNotAttemptedError.errno
        for (name, partition), code in sorted(codes.items(), key=lambda item: item[1] == not_attempted):
            if code == errors.NotCoordinatorError.errno:
                self._wire.forget_coordinators([self.transactional_id])
            if code in NOT_OURS:
                raise ProducerFencedError(
                    f"adding {name}-{partition}: the transaction is not this writer's any more: {retry.name_of(code)}",
                    remedy="Someone ended it, or its timeout has passed; clear prepare to write again",
                    transactional_id=self.transactional_id,
                )
            resource = f"TransactionalId {self.transactional_id}" if code == _ID_REFUSED else f"Topic {name}"
            retry.check(
                code, operation="WRITE", resource=resource, transactional_id=self.transactional_id, lag=True
            )


@dataclass(eq=False)
class _Queue:
    """The batches of one partition, oldest first; those in flight come before those that wait."""

    partition: TopicPartition
    waiting: deque[SealedBatch] = field(default_factory=deque)
    in_flight: list[SealedBatch] = field(default_factory=list)
    #: where the batches in flight are on their way to
    broker: int | None = None
    #: something failed: one batch at a time until one is acknowledged
    careful: bool = False
    failures: int = 0
    not_before: float = 0.0
    moved_at: float = 0.0
    unknown_since: float | None = None
    reason: str = ""

    def may_send(self, now: float, most: int) -> bool:
        return bool(self.waiting) and now >= self.not_before and len(self.in_flight) < (1 if self.careful else most)

    def again(self, batch: SealedBatch, now: float, reason: str) -> None:
        """Put a batch back, at its place by sequence."""
        self.in_flight.remove(batch)
        place = sum(1 for b in self.waiting if b.order < batch.order)
        self.waiting.insert(place, batch)
        if not self.careful or not self.in_flight:
            self.failures += 1
        self.careful = True
        self.reason = reason
        self.not_before = now + retry.pause_s(self.failures, 1.0)


class Sender:
    """Sends one transaction's batches.

    :param wire: used by the sender's thread alone between the first :meth:`put` and :meth:`stop`.
    :param topic_ids: by topic; as they were when prepare began.
    :param tally: told what is acknowledged.
    """

    def __init__(
        self,
        wire: PipelinedWire,
        enrolment: Enrolment,
        topic_ids: Mapping[str, uuid.UUID],
        options: ProducerOptions,
        tally: Tally,
    ) -> None:
        self._wire = wire
        self._enrolment = enrolment
        self._id = enrolment.transactional_id
        self._topic_ids = topic_ids
        self._options = options
        self._tally = tally
        self._queues: dict[TopicPartition, _Queue] = {}
        self._requests: dict[int, int] = defaultdict(int)
        self._changed = threading.Condition()
        self._arrived: deque[SealedBatch] = deque()
        self._backlog = 0
        self._failure: BaseException | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None

    # -- for the thread that encodes -----------------------------------------------------------------------------

    def put(self, batch: SealedBatch) -> None:
        """Hand a batch over; waits while too much is not acknowledged.

        :raises KafkaEosError: what went wrong with this batch or an earlier one.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"sender of {self._id}", daemon=True)
            self._thread.start()
        with self._changed:
            while self._failure is None and self._backlog and self._backlog + batch.bytes > self._options.buffer_bytes:
                self._changed.wait(_IDLE_S)
            self._raise_failed()
            self._backlog += batch.bytes
            self._arrived.append(batch)
        self._wire.wake()

    def flush(self) -> None:
        """Wait until everything is acknowledged.

        :raises KafkaEosError: what went wrong.
        """
        with self._changed:
            while self._failure is None and self._backlog:
                self._changed.wait(_IDLE_S)
            self._raise_failed()

    def stop(self) -> None:
        """End the thread; the wire is the caller's again. What is under way may still arrive."""
        if self._thread is not None:
            with self._changed:
                self._stopping = True
            self._wire.wake()
            self._thread.join()
            self._thread = None

    def _raise_failed(self) -> None:
        if self._failure is not None:
            raise self._failure

    # -- the sender's thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping and self._failure is None:
                self._take()
                now = time.monotonic()
                self._dispatch(now)
                self._wire.turn(self._patience(now))
                self._check_progress(time.monotonic())
        except BaseException as e:
            self._fail(e)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()

    def _take(self) -> None:
        now = time.monotonic()
        with self._changed:
            while self._arrived:
                batch = self._arrived.popleft()
                queue = self._queues.get(batch.partition)
                if queue is None:
                    queue = self._queues[batch.partition] = _Queue(batch.partition)
                if not queue.waiting and not queue.in_flight:
                    queue.moved_at = now
                queue.waiting.append(batch)

    def _patience(self, now: float) -> float:
        """Seconds until something is to be done without an answer or a new batch."""
        times = [queue.not_before - now for queue in self._queues.values() if queue.waiting and queue.not_before > now]
        return max(0.0, min([_IDLE_S, *times]))

    def _dispatch(self, now: float) -> None:
        ready = [queue for queue in self._queues.values() if queue.may_send(now, self._options.in_flight)]
        if not ready:
            return
        by_broker: dict[int, list[_Queue]] = defaultdict(list)
        for queue in ready:
            leader = self._leader(queue, now)
            # while batches are on their way to a former leader, the new one would see a gap
            if leader is not None and (not queue.in_flight or queue.broker == leader):
                by_broker[leader].append(queue)
        # only where there is a leader: what has none would keep all others waiting
        self._enrolment.enrol([queue.partition for queues in by_broker.values() for queue in queues])
        for broker, queues in by_broker.items():
            while self._requests[broker] < self._options.in_flight:
                queues = [queue for queue in queues if queue.may_send(now, self._options.in_flight)]
                if not queues:
                    break
                self._send(broker, queues)

    def _send(self, broker: int, queues: list[_Queue]) -> None:
        """One request with the next batch of each queue, as many as it takes."""
        batches: list[SealedBatch] = []
        room = _REQUEST_BYTES
        for queue in queues:
            if batches and queue.waiting[0].bytes > room:
                continue
            batch = queue.waiting.popleft()
            queue.in_flight.append(batch)
            queue.broker = broker
            batches.append(batch)
            room -= batch.bytes
        request = produce_request(
            batches,
            transactional_id=self._id,
            versions=self._enrolment.produce_versions,
            timeout_ms=int(self._options.request_timeout_s * 1000),
            topic_ids=self._topic_ids,
        )
        self._requests[broker] += 1
        self._wire.start(broker, request, partial(self._answered, broker, batches))

    def _answered(self, broker: int, batches: list[SealedBatch], response: Any, error: BaseException | None) -> None:
        self._requests[broker] -= 1
        try:
            self._take_answer(batches, response, error)
        except Exception as e:
            self._fail(e)  # kafka-python would only log it, and the batches would never move again

    def _take_answer(self, batches: list[SealedBatch], response: Any, error: BaseException | None) -> None:
        now = time.monotonic()
        if error is not None:
            if not isinstance(error, BrokerUnavailableError):
                self._fail(error)
                return
            for batch in batches:
                self._queues[batch.partition].again(batch, now, str(error.message))
            self._wire.forget_leaders(b.partition for b in batches)
            return
        topics = {str(i): name for name, i in self._topic_ids.items()}
        answers = {}
        for topic in response.responses:
            name = topic.name or topics.get(str(topic.topic_id), "")
            for answer in topic.partition_responses:
                answers[TopicPartition(name, answer.index)] = answer
        for batch in batches:
            self._settle(batch, answers.get(batch.partition), now)

    def _settle(self, batch: SealedBatch, answer: Any, now: float) -> None:
        queue = self._queues[batch.partition]
        first = min(b.order for b in [*queue.in_flight, *queue.waiting]) == batch.order
        found = judge(
            -1 if answer is None else answer.error_code,
            base_offset=-1 if answer is None else answer.base_offset,
            first_unacknowledged=first,
            message=None if answer is None else answer.error_message,
            partition=batch.partition,
            id=self._id,
        )
        if isinstance(found, KafkaEosError):
            self._fail(found)
        elif found is Answer.DONE:
            self._enrolment.note_begun()
            queue.in_flight.remove(batch)
            queue.moved_at = now
            if first:
                # not behind one that failed: with others ahead of it the broker, which remembers five batches of a
                # producer, would no longer know its copies
                queue.careful, queue.failures, queue.unknown_since = False, 0, None
            last = answer.base_offset + batch.records - 1
            self._tally.of(batch.partition).acknowledge(batch.records, answer.base_offset, last)
            with self._changed:
                self._backlog -= batch.bytes
                self._changed.notify_all()
        else:
            code = -1 if answer is None else answer.error_code
            _log.info("%s: %s for %s, sending it again", self._id, retry.name_of(code), batch.partition)
            queue.again(batch, now, retry.name_of(code))
            if code not in retry.UNKNOWN_TOPIC:
                queue.unknown_since = None  # this broker knows it
            elif queue.unknown_since is None:
                queue.unknown_since = now
            self._wire.forget_leaders([batch.partition])

    def _leader(self, queue: _Queue, now: float) -> int | None:
        """The partition's leader; None when there is none now: the queue waits a little."""
        try:
            leader = self._wire.leaders([queue.partition])[queue.partition]
            # what waits for a connection is sent once it is made, however old a look is by then
            if self._enrolment.looks_at_produce and not self._wire.is_reached(leader):
                raise retry.Retry(f"there is no connection to broker {leader} yet")
            return leader
        except (retry.Retry, BrokerUnavailableError) as e:
            queue.reason = str(e)
        queue.failures += 1
        queue.not_before = time.monotonic() + retry.pause_s(queue.failures, 1.0)
        if queue.unknown_since is None and self._is_unknown(queue.partition):
            queue.unknown_since = now
        return None

    def _is_unknown(self, partition: TopicPartition) -> bool:
        """True when a broker answers that there is no such partition; False when none answers."""
        try:
            topics = self._wire.metadata([partition.topic]).topics
        except BrokerUnavailableError:
            return False
        return not any(
            t.error_code not in retry.UNKNOWN_TOPIC and partition.partition in {p.partition_index for p in t.partitions}
            for t in topics
        )

    def _check_progress(self, now: float) -> None:
        for queue in self._queues.values():
            if not queue.waiting and not queue.in_flight:
                continue
            since = queue.unknown_since
            # not while a batch is on its way to a leader that was found again
            if since is not None and not queue.in_flight and now - since > _UNKNOWN_S:
                raise gone(queue.partition, _UNKNOWN_S, self._id)
            if now - queue.moved_at > self._options.delivery_timeout_s:
                raise BrokerUnavailableError(
                    f"no batch for {queue.partition} was acknowledged for {self._options.delivery_timeout_s:g} s"
                    f"{f', the last reason was: {queue.reason}' if queue.reason else ''}",
                    remedy="Check that the partition's leader is up; clear prepare to write again. "
                    "message.timeout.ms sets how long is waited",
                    transactional_id=self._id,
                )
