"""Requests about topics and partitions: who they are, how far they reach, what stands in them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

from kafka import errors
from kafka.protocol.admin.configs import DescribeConfigsRequest
from kafka.protocol.admin.transactions import DescribeProducersRequest
from kafka.protocol.consumer.offsets import ListOffsetsRequest

from airflow_kafka_eos.errors import KafkaEosError, TopicError
from airflow_kafka_eos.kafka.admin.coordinator import Listed, of_producers, transactional_ids_of
from airflow_kafka_eos.kafka.admin.find_markers import (
    METADATA_LAG_S,
    Evidence,
    Progress,
    find_markers,
    text_of,
)
from airflow_kafka_eos.kafka.client import retry
from airflow_kafka_eos.kafka.client.pool import ConnectionPool
from airflow_kafka_eos.kafka.client.wire import Wire, metadata_request
from airflow_kafka_eos.kafka.records.scan import Sought
from airflow_kafka_eos.manifest import TopicInfo
from airflow_kafka_eos.transaction import Marker, TopicPartition

T = TypeVar("T")
#: Makes a request of topics and their partitions.
_OfTopics = Callable[[Mapping[str, list[int]]], Any]

_TOPIC, _BROKER = 2, 4  # resource types of DescribeConfigs
_LATEST, _EARLIEST = -1, -2
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
_FORBIDDEN = retry.codes(errors.TopicAuthorizationFailedError, errors.ClusterAuthorizationFailedError)


class ProducerState(NamedTuple):
    """What a partition's leader remembers of a producer. ``txn_start_offset`` is -1 when no transaction is open."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    txn_start_offset: int
    last_timestamp_ms: int = -1
    coordinator_epoch: int = -1


class Standing(NamedTuple):
    """Where a partition's log ended, and what producers its leader remembered right behind that."""

    end_offset: int
    producers: list[ProducerState]


class LsoBlocker(NamedTuple):
    """An open transaction, which holds back a partition's last stable offset.

    ``transactional_id`` is None when no coordinator shows it: another application's that may not be described here, or
    a hanging one. Which of them only :func:`airflow_kafka_eos.protocol.hanging.find` tells.
    """

    producer_id: int
    producer_epoch: int
    txn_start_offset: int
    transactional_id: str | None


class Partitions:
    """Requests about topics and partitions. Reads only."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    # -- topics and settings ---------------------------------------------------------------------------------------

    def topic_info(self, names: Iterable[str], *, to_read: bool = False) -> dict[str, TopicInfo]:
        """Topic id and number of partitions of each topic.

        :param to_read: nothing is going to be written there: an empty topic in place of one that is gone helps nobody.
        :raises TopicError: naming the topics that do not exist, and how to create them, or where else to look.
        :raises AccessError: DESCRIBE on a topic is missing.
        """
        wanted = sorted(set(names))
        believe_missing_at = time.monotonic() + min(METADATA_LAG_S, self.wire.timeout_s / 2)

        def attempt() -> dict[str, TopicInfo]:
            topics = self.wire.metadata(wanted).topics if wanted else []
            missing = [t.name for t in topics if t.error_code == errors.UnknownTopicOrPartitionError.errno]
            if missing and time.monotonic() >= believe_missing_at:
                where = self.wire.settings.bootstrap_servers
                raise TopicError(
                    f"topic {', '.join(missing)} does not exist on {where}",
                    remedy="It was deleted, or has another name, or is on another cluster: compare the name, and the "
                    "brokers' addresses, with those of who writes it"
                    if to_read
                    else f"Create it: kafka-topics.sh --bootstrap-server {where} --create --topic {missing[0]} "
                    "--partitions <n>",
                )
            for t in topics:
                retry.check(t.error_code, operation="DESCRIBE", resource=f"Topic {t.name}", lag=True)
            return {t.name: TopicInfo(text_of(t.topic_id), len(t.partitions)) for t in topics}

        return self.wire.until_settled(attempt, what=f"looking up topics {', '.join(wanted)}")

    def topic_config(self, names: Iterable[str], keys: Iterable[str]) -> dict[str, dict[str, str]]:
        """The settings ``keys`` of each topic, as texts. An empty dict where DESCRIBE_CONFIGS is missing."""
        wanted = sorted(set(names))
        if not wanted:
            return {}
        request = _config_request(_TOPIC, wanted, list(keys))
        return self.wire.until_settled(
            lambda: _configs(self.wire.send_to_any(request())), what=f"reading settings of topics {', '.join(wanted)}"
        )

    def shown_config(self, names: Iterable[str], keys: Iterable[str]) -> dict[str, dict[str, str]]:
        """The same, asked once: topics whose settings are not shown now, for whatever reason, are left out."""
        request = _config_request(_TOPIC, sorted(set(names)), list(keys))
        try:
            answer = self.wire.send_to_any(request())
        except KafkaEosError:
            return {}
        return {
            result.resource_name: {c.name: c.value for c in result.configs if c.value is not None}
            for result in answer.results
            if result.error_code == 0
        }

    def broker_configs(self, keys: Iterable[str]) -> dict[int, dict[str, str]]:
        """The settings ``keys`` of each broker by node id. An empty dict where DESCRIBE_CONFIGS is missing."""
        asked = list(keys)

        def attempt() -> dict[int, dict[str, str]]:
            found = {}
            for node_id in self.wire.broker_ids():
                request = _config_request(_BROKER, [str(node_id)], asked)
                found[node_id] = _configs(self.wire.send_to_broker(node_id, request()))[str(node_id)]
            return found

        return self.wire.until_settled(attempt, what="reading settings of the brokers")

    # -- offsets ---------------------------------------------------------------------------------------------------

    def last_stable_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """How far a ``read_committed`` reader gets: the offset of the first record that it does not see."""
        return self._offsets(tps, _LATEST, _READ_COMMITTED)

    def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermarks: the offset of the next record."""
        return self._offsets(tps, _LATEST, _READ_UNCOMMITTED)

    def log_start_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the oldest record that is still there."""
        return self._offsets(tps, _EARLIEST, _READ_UNCOMMITTED)

    def _offsets(self, tps: Iterable[TopicPartition], timestamp: int, isolation: int) -> dict[TopicPartition, int]:
        request = self._offsets_request(timestamp, isolation)
        return ask_leaders(self.wire, tps, request, lambda row: int(row.offset), "DESCRIBE", "reading the offsets")

    def _offsets_request(self, timestamp: int, isolation: int) -> _OfTopics:
        topic = ListOffsetsRequest.ListOffsetsTopic

        def request(mine: Mapping[str, list[int]]) -> Any:
            return ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation,
                topics=[
                    topic(
                        name=name,
                        partitions=[topic.ListOffsetsPartition(partition_index=p, timestamp=timestamp) for p in parts],
                    )
                    for name, parts in mine.items()
                ],
                timeout_ms=int(self.wire.timeout_s * 1000),
                min_version=4,
            )

        return request

    # -- producers -------------------------------------------------------------------------------------------------

    def producers(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, list[ProducerState]]:
        """The producers that each partition's leader remembers, by producer id (KIP-664).

        :raises AccessError: READ on a topic is missing.
        """
        return ask_leaders(
            self.wire, tps, describe_producers, producer_states, "READ", "describing the producers"
        )

    def lso_blockers(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, list[LsoBlocker]]:
        """The open transactions of each partition, the one that holds back readers first; one listing for all."""
        there = {
            tp: sorted((p for p in found if p.txn_start_offset >= 0), key=lambda p: p.txn_start_offset)
            for tp, found in self.producers(tps).items()
        }
        ids = transactional_ids_of(self.wire, (p.producer_id for found in there.values() for p in found))
        return {
            tp: [LsoBlocker(p.producer_id, p.producer_epoch, p.txn_start_offset, ids.get(p.producer_id)) for p in found]
            for tp, found in there.items()
        }

    def listed(self, producer_ids: Iterable[int]) -> list[Listed]:
        """What each broker lists of these producer ids; what may not be described is left out without a word."""
        return of_producers(self.wire, producer_ids)

    def standing(self, tps: Iterable[TopicPartition], patience_s: float) -> dict[TopicPartition, Standing]:
        """Each partition's end, and then its producers: asked once, of all leaders at once. No answer: left out.

        For what is good to know, and must keep nobody waiting.

        :param patience_s: for all of it.
        """
        wanted = set(tps)
        give_up = time.monotonic() + patience_s
        with closing(self.wire.pool()) as pool:
            node_id = pool.any_broker()
            missing = {tp.topic for tp in wanted - self.wire.known_leaders(wanted).keys()}
            if missing and node_id is not None:
                pool.submit(node_id, metadata_request(sorted(missing)), None, timeout_s=patience_s)
                for reply in pool.wait(patience_s):
                    if reply.error is None:
                        self.wire.take_metadata(reply.answer)
            ends = self._ask_once(pool, wanted, self._offsets_request(_LATEST, _READ_UNCOMMITTED), give_up)
            shown = self._ask_once(pool, ends, describe_producers, give_up)
        return {tp: Standing(int(ends[tp].offset), producer_states(row)) for tp, row in shown.items()}

    def _ask_once(
        self, pool: ConnectionPool[Any], tps: Iterable[TopicPartition], request: _OfTopics, give_up: float
    ) -> dict[TopicPartition, Any]:
        found = {}
        patience_s = max(0.0, give_up - time.monotonic())
        grouped = _by_leader(self.wire.known_leaders(tps))
        for node_id, mine in grouped.items():
            pool.submit(node_id, request(_by_topic(mine)), None, timeout_s=patience_s)
        waiting = len(grouped)
        while waiting and (left := give_up - time.monotonic()) > 0:
            for reply in pool.wait(left):
                waiting -= 1
                for topic in reply.answer.topics if reply.error is None else ():
                    found.update({
                        TopicPartition(topic.name, row.partition_index): row
                        for row in topic.partitions
                        if row.error_code == 0
                    })  # fmt: skip
        return found

    # -- evidence --------------------------------------------------------------------------------------------------

    def markers(
        self,
        producer_id: int,
        last_offsets: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, str],
        *,
        producer_epoch: int | None = None,
    ) -> dict[TopicPartition, Marker]:
        """Evidence: per partition the first control record of a producer id behind its last record.

        Rule: log-is-the-evidence.

        The log is read without interpretation from ``last_offset`` up to the high watermark, and only under the
        recorded topic id. What the answer rests on:

        - A producer id has one open transaction at a time, so the first control record behind the transaction's last
          record ends it, as long as nothing between is lost: its batch with the last record is there, or no offset
          is missing (:class:`~airflow_kafka_eos.kafka.records.scan.LogScan`). On transaction version 1 the epoch does
          not tell two transactions apart, and a timeout adds one as transaction version 2 does.
        - UNREADABLE when ``last_offset + 1`` is no longer in the log (deleted by retention or DeleteRecords, or
          truncated).
        - UNREADABLE too when a data batch of the producer id stands before the marker, when compaction left the
          marker empty, or when its epoch is none that this transaction can have.
        - UNREADABLE when the topic is gone or has another id, believed after some seconds (metadata may lag).
        - COMPACTED when none of its own batches is left, though the log reaches back so far.
        - MISSING when the high watermark is reached without a marker: the transaction is open there.

        :param last_offsets: the offset of the transaction's last record in each of its partitions.
        :param topic_ids: topic name -> topic id, as :meth:`topic_info` showed them when the records were written.
        :param producer_epoch: the epoch that the transaction was written with; not compared when None.
        :raises AccessError: READ on a topic is missing.
        """
        sought = {tp: [Sought(producer_id, producer_epoch, last)] for tp, last in last_offsets.items()}
        found, error, _ = self.markers_of(sought, topic_ids)
        if error is not None:
            raise error
        return {tp: marker for tp, by in found.items() for marker in by.values()}

    def markers_of(
        self,
        sought: Mapping[TopicPartition, Iterable[Sought]],
        topic_ids: Mapping[str, str],
        indexed: Collection[str] = (),
        progress: Progress | None = None,
    ) -> Evidence:
        """:meth:`markers` of many transactions: the log of each partition is gone through once for all of them.

        An error keeps nothing back that was found: leaders that answer are asked whoever does not.

        :param indexed: topics whose leaders' lists of aborted transactions may be believed
            (:func:`~airflow_kafka_eos.kafka.records.transaction_index.may_be_believed`): there the log is gone through
            only where the list tells nothing. What stands in ``by_index`` rests on the list alone.
        :param progress: what is known before; it is added to. None: nobody looks again.
        """
        return find_markers(self.wire, sought, topic_ids, indexed, progress)


def ask_leaders(
    wire: Wire,
    tps: Iterable[TopicPartition],
    request: _OfTopics,
    read: Callable[[Any], T],
    operation: str,
    what: str,
) -> dict[TopicPartition, T]:
    """One request to each leader, for all of its partitions; again for those that moved meanwhile.

    :param request: made of topics and their partitions.
    :param read: what is kept of a partition's part of the answer.
    :param operation: that an ACL on the topic must allow.
    """
    found: dict[TopicPartition, T] = {}
    left = sorted(set(tps))

    def attempt() -> None:
        nonlocal left
        reason = ""
        for node_id, mine in _by_leader(wire.leaders(left)).items():
            try:
                answer = wire.send_to_broker(node_id, request(_by_topic(mine)))
            except Exception:
                wire.forget_leaders(mine)
                raise
            for t in answer.topics:
                for row in t.partitions:
                    tp = TopicPartition(t.name, row.partition_index)
                    try:
                        retry.check(row.error_code, operation=operation, resource=f"Topic {t.name}", lag=True)
                    except retry.Retry as e:
                        wire.forget_leaders([tp])
                        reason = e.reason
                    else:
                        found[tp] = read(row)
        left = [tp for tp in left if tp not in found]
        if left:
            raise retry.Retry(reason or f"no answer for {left[0]}")

    wire.until_settled(attempt, what=f"{what} of {', '.join(map(str, left[:5]))}")
    return found


def describe_producers(mine: Mapping[str, list[int]]) -> DescribeProducersRequest:
    """The request for topics and their partitions."""
    topic = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(topics=[topic(name=name, partition_indexes=parts) for name, parts in mine.items()])


def producer_states(row: Any) -> list[ProducerState]:
    """A partition's part of the answer, by producer id."""
    return [
        ProducerState(
            p.producer_id,
            p.producer_epoch,
            p.last_sequence,
            p.current_txn_start_offset,
            p.last_timestamp,
            p.coordinator_epoch,
        )
        for p in sorted(row.active_producers, key=lambda p: p.producer_id)
    ]


def _by_leader(leaders: Mapping[TopicPartition, int]) -> dict[int, list[TopicPartition]]:
    grouped: dict[int, list[TopicPartition]] = defaultdict(list)
    for tp, node_id in leaders.items():
        grouped[node_id].append(tp)
    return grouped


def _by_topic(tps: Iterable[TopicPartition]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = defaultdict(list)
    for tp in tps:
        grouped[tp.topic].append(tp.partition)
    return grouped


def _config_request(kind: int, names: list[str], keys: list[str]) -> Callable[[], Any]:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    return lambda: DescribeConfigsRequest(
        resources=[resource(resource_type=kind, resource_name=n, configuration_keys=keys) for n in names],
        include_synonyms=False,
        include_documentation=False,
    )


def _configs(answer: Any) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for result in answer.results:
        if result.error_code in _FORBIDDEN:
            found[result.resource_name] = {}
            continue
        resource = f"Topic or Broker {result.resource_name}"
        retry.check(result.error_code, operation="DESCRIBE_CONFIGS", resource=resource, lag=True)
        found[result.resource_name] = {c.name: c.value for c in result.configs if c.value is not None}
    return found
