"""How partitions join the transaction: by themselves with transaction version 2, announced before with version 1."""

from __future__ import annotations

from collections.abc import Sequence

from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest

from airflow_kafka_eos.errors import ProducerFencedError
from airflow_kafka_eos.kafka import retry
from airflow_kafka_eos.kafka.arrow.answers import NOT_OURS
from airflow_kafka_eos.kafka.partitions import Partitions
from airflow_kafka_eos.kafka.produce_request import IMPLICIT_VERSION, LOWEST_VERSION, TOPIC_ID_VERSION
from airflow_kafka_eos.kafka.produce_wire import ProduceWire
from airflow_kafka_eos.transaction import PreparedTxnState, TopicPartition

#: The highest version for clients; from 4 on it is spoken among brokers (KIP-890).
_ADD_PARTITIONS_VERSION = 3
_NOT_ATTEMPTED = 55
_PRODUCE = 0  # its api key


class Enrolment:
    """Makes partitions part of one transaction before its first batch is sent there.

    Produce from version 12 on does it by itself where the cluster's ``transaction.version`` is 2 (KIP-890); such a
    version must not be sent where it is not.
    """

    def __init__(self, wire: ProduceWire, transactional_id: str, state: PreparedTxnState, *, shared: bool) -> None:
        """
        :param shared: scope ``load``: a partition whose leader knows producer id and epoch is refused
            (rule: scope-load-writes-once).
        """
        self._wire = wire
        self._shared = shared
        self.transactional_id = transactional_id
        self._state = state
        offered = wire.api_versions()[_PRODUCE][1]
        self._implicit = offered >= IMPLICIT_VERSION and wire.transaction_version() >= 2
        highest = TOPIC_ID_VERSION if self._implicit else IMPLICIT_VERSION - 1
        #: the version of Produce to send
        self.produce_version = max(LOWEST_VERSION, min(offered, highest))
        self._enrolled: set[TopicPartition] = set()

    def enrol(self, partitions: Sequence[TopicPartition]) -> None:
        """Add partitions where they must be announced.

        :raises KafkaEosError: the transaction is gone, an ACL is missing, or no coordinator answered in time.
        """
        left = [p for p in partitions if p not in self._enrolled]
        if not left:
            return
        if self._shared:
            self._refuse_known(left)
        if not self._implicit:
            retry.until_settled(
                lambda: self._add(left),
                what=f"adding {len(left)} partitions to {self.transactional_id}",
                timeout_s=self._wire.timeout_s,
                transactional_id=self.transactional_id,
            )
        self._enrolled.update(left)

    def _refuse_known(self, partitions: Sequence[TopicPartition]) -> None:
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
        answer = self._wire.send_to_coordinator(self.transactional_id, request)
        # one that is refused makes the broker attempt none of the others
        codes = {
            (t.name, p.partition_index): p.partition_error_code
            for t in answer.results_by_topic_v3_and_below
            for p in t.results_by_partition
        }
        for (name, partition), code in sorted(codes.items(), key=lambda item: item[1] == _NOT_ATTEMPTED):
            if code == retry.NOT_COORDINATOR:
                self._wire.forget_coordinators([self.transactional_id])
            if code in NOT_OURS:
                raise ProducerFencedError(
                    f"adding {name}-{partition}: the transaction is not this writer's any more: {retry.name_of(code)}",
                    remedy="Someone ended it, or its timeout has passed; clear prepare to write again",
                    transactional_id=self.transactional_id,
                )
            resource = f"TransactionalId {self.transactional_id}" if code == 53 else f"Topic {name}"
            retry.check(
                code, operation="WRITE", resource=resource, transactional_id=self.transactional_id, lag=True
            )
